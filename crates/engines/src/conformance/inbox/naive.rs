//! A reference model of a partition of inboxes.

use std::collections::BTreeMap;

use bytes::Bytes;
use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::timers::ApplyOutcome;
use whimbrel_model::ports::{InboxChange, InboxWrite, RowKey, reclaim_hour};

/// A partition: its state, and its answers to writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NaiveInbox {
    pub epoch: u64,
    pub applied: u64,
    boxes: BTreeMap<Uid, (Bytes, Option<Timestamp>)>,
    own: BTreeMap<(Uid, u64), Bytes>,
    shared: BTreeMap<u64, (Bytes, u64)>,
}

impl NaiveInbox {
    pub fn open(&mut self, epoch: u64) -> Option<u64> {
        if epoch < self.epoch {
            return None;
        }
        self.epoch = epoch;
        Some(self.applied)
    }

    pub fn apply(&mut self, write: &InboxWrite) -> ApplyOutcome {
        if write.epoch < self.epoch {
            return ApplyOutcome::OlderEpoch;
        }
        if write.expected != self.applied {
            return ApplyOutcome::Behind { at: self.applied };
        }
        if write.reset {
            *self = Self::default();
        }
        (self.epoch, self.applied) = (write.epoch, write.applied);
        write.changes.iter().cloned().for_each(|change| self.change(change));
        ApplyOutcome::Done
    }

    fn change(&mut self, change: InboxChange) {
        match change {
            InboxChange::PutBox { uid, state: Some(state), reclaim_at, .. } => {
                self.boxes.insert(uid, (state, reclaim_at));
            }
            InboxChange::PutBox { uid, state: None, .. } => {
                self.boxes.remove(&uid);
            }
            InboxChange::PutOwn { uid, seq, row } => {
                self.own.insert((uid, seq), row);
            }
            InboxChange::DropOwn { uid, seq } => {
                self.own.remove(&(uid, seq));
            }
            InboxChange::PutShared { seq, row, references } => {
                if references > 0 {
                    self.shared.entry(seq).or_insert((row, 0)).1 += u64::from(references);
                }
            }
            InboxChange::ReleaseShared { seq, references } => {
                if let Some((_, left)) = self.shared.get_mut(&seq) {
                    *left = left.saturating_sub(u64::from(references));
                }
                self.shared.retain(|_, (_, left)| *left > 0);
            }
        }
    }

    /// The time from which the user's box may be reclaimed, if there is one.
    pub fn reclaim_at(&self, uid: &Uid) -> Option<Timestamp> {
        self.boxes.get(uid)?.1
    }

    pub fn boxes(&self, uids: &[Uid]) -> Vec<Option<Bytes>> {
        uids.iter().map(|uid| self.boxes.get(uid).map(|(state, _)| state.clone())).collect()
    }

    pub fn rows(&self, keys: &[RowKey]) -> Vec<Option<Bytes>> {
        let row = |key: &RowKey| match key {
            RowKey::Own { uid, seq } => self.own.get(&(uid.clone(), *seq)).cloned(),
            RowKey::Shared { seq } => self.shared.get(seq).map(|(row, _)| row.clone()),
        };
        keys.iter().map(row).collect()
    }

    pub fn reclaimable(&self, before: Timestamp, limit: usize) -> Vec<Uid> {
        let hours = self.boxes.iter().filter_map(|(uid, (_, at))| Some((reclaim_hour((*at)?), uid.clone())));
        let mut due: Vec<_> = hours.filter(|(hour, _)| *hour < reclaim_hour(before)).collect();
        due.sort();
        due.into_iter().map(|(_, uid)| uid).take(limit).collect()
    }
}
