//! A store of inboxes that implements exactly the contract of the port, and rejects every forbidden write.

use std::collections::BTreeMap;

use bytes::Bytes;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{ApplyOutcome, InboxChange, InboxWrite, RowKey};
use whimbrel_people::carrier::user_box::UserBox;

use super::profile::PeopleProfile;
use crate::CheckResult;

/// The contents of the disk.
#[derive(Debug, Clone, Default)]
struct InboxContents {
    applied: u64,
    /// The number of writes.
    writes: u64,
    boxes: BTreeMap<Uid, Bytes>,
    own: BTreeMap<(Uid, u64), Bytes>,
    shared: BTreeMap<u64, (Bytes, u32)>,
}

pub struct SimInbox {
    /// From the coordination; not lost with the contents.
    epoch: u64,
    now: InboxContents,
    /// The state of the last synced write.
    synced: InboxContents,
    profile: PeopleProfile,
    writes: u64,
    /// The number of writes when the owner of an epoch opened the store or wrote last.
    written: BTreeMap<u64, u64>,
}

impl SimInbox {
    pub fn new(profile: PeopleProfile) -> Self {
        Self {
            epoch: 0,
            now: InboxContents::default(),
            synced: InboxContents::default(),
            profile,
            writes: 0,
            written: BTreeMap::new(),
        }
    }

    pub fn open(&mut self, epoch: u64) -> Option<u64> {
        if epoch < self.epoch {
            return None;
        }
        self.epoch = epoch;
        self.written.insert(epoch, self.now.writes);
        Some(self.now.applied)
    }

    pub fn applied(&self) -> u64 {
        self.now.applied
    }

    pub fn boxes(&self, uids: &[Uid]) -> Vec<Option<Bytes>> {
        uids.iter().map(|uid| self.now.boxes.get(uid).cloned()).collect()
    }

    pub fn rows(&self, keys: &[RowKey]) -> Vec<Option<Bytes>> {
        keys.iter().map(|key| self.row(key)).collect()
    }

    fn row(&self, key: &RowKey) -> Option<Bytes> {
        match key {
            RowKey::Own { uid, seq } => self.now.own.get(&(uid.clone(), *seq)).cloned(),
            RowKey::Shared { seq } => self.now.shared.get(seq).map(|(row, _)| row.clone()),
        }
    }

    /// The stored box of a user.
    pub fn user(&self, uid: &Uid) -> CheckResult<Option<UserBox>> {
        let decode = |bytes: &Bytes| UserBox::decode(bytes).map_err(|error| format!("the box of {uid}: {error}"));
        self.now.boxes.get(uid).map(decode).transpose()
    }

    pub fn users(&self) -> Vec<Uid> {
        self.now.boxes.keys().cloned().collect()
    }

    pub fn apply(&mut self, write: InboxWrite) -> CheckResult<ApplyOutcome> {
        if write.epoch < self.epoch {
            return Ok(ApplyOutcome::OlderEpoch);
        }
        if write.expected != self.now.applied || self.written.get(&write.epoch) != Some(&self.now.writes) {
            return Ok(ApplyOutcome::Behind { at: self.now.applied });
        }
        self.writes += 1;
        let is_lost = self.profile == PeopleProfile::LostWrites && self.writes.is_multiple_of(10);
        if write.reset {
            self.now = InboxContents { writes: self.now.writes, ..InboxContents::default() };
        }
        self.now.applied = write.applied;
        self.now.writes += 1;
        self.written.insert(write.epoch, self.now.writes);
        let mut users = Vec::new();
        for change in write.changes {
            if let InboxChange::PutBox { uid, .. } = &change {
                users.push(uid.clone());
            }
            if !is_lost {
                self.change(change)?;
            }
        }
        users.iter().try_for_each(|uid| self.has_rows_of(uid))?;
        if write.synced {
            self.synced = self.now.clone();
        }
        Ok(ApplyOutcome::Done)
    }

    fn change(&mut self, change: InboxChange) -> CheckResult {
        let now = &mut self.now;
        match change {
            InboxChange::PutBox { uid, state: Some(state), .. } => drop(now.boxes.insert(uid, state)),
            InboxChange::PutBox { uid, state: None, .. } => drop(now.boxes.remove(&uid)),
            InboxChange::PutOwn { uid, seq, row } => drop(now.own.insert((uid, seq), row)),
            InboxChange::PutShared { seq, row, references } => {
                now.shared.entry(seq).or_insert((row, 0)).1 += references;
            }
            InboxChange::DropOwn { uid, seq } => {
                let row = now.own.remove(&(uid.clone(), seq));
                row.ok_or_else(|| format!("row {seq} of {uid} is dropped and was not there"))?;
            }
            InboxChange::ReleaseShared { seq, references } => {
                let twice = if self.profile == PeopleProfile::DoubleRelease { 2 } else { 1 };
                let row = now.shared.get_mut(&seq).ok_or_else(|| format!("row {seq} is released and was not there"))?;
                row.1 = row.1.saturating_sub(references * twice);
                if row.1 == 0 {
                    now.shared.remove(&seq);
                }
            }
        }
        Ok(())
    }

    /// Checks that the row of every slot in a box exists.
    fn has_rows_of(&self, uid: &Uid) -> CheckResult {
        let Some(user) = self.user(uid)? else { return Ok(()) };
        for slot in &user.slots {
            let key = match slot.shared {
                true => RowKey::Shared { seq: slot.seq },
                false => RowKey::Own { uid: uid.clone(), seq: slot.seq },
            };
            self.row(&key).ok_or_else(|| format!("{uid} waits for {}, and its row is missing", slot.seq))?;
        }
        Ok(())
    }

    /// A power loss: unsynced writes are lost.
    pub fn fall_back(&mut self) {
        self.now = self.synced.clone();
    }

    /// Loses all contents.
    pub fn lose(&mut self) {
        self.now = InboxContents::default();
        self.synced = InboxContents::default();
    }

    /// Checks that each row has as many references as boxes with it, and that no row is unreferenced.
    pub fn is_whole(&self) -> CheckResult {
        let mut references: BTreeMap<u64, u32> = BTreeMap::new();
        let mut own = 0;
        for uid in self.now.boxes.keys() {
            self.has_rows_of(uid)?;
            for slot in self.user(uid)?.into_iter().flat_map(|user| user.slots) {
                if slot.shared { *references.entry(slot.seq).or_default() += 1 } else { own += 1 }
            }
        }
        let counted: BTreeMap<u64, u32> = self.now.shared.iter().map(|(seq, (_, count))| (*seq, *count)).collect();
        if counted != references {
            return Err(format!("stored reference counts are {counted:?}, boxes have {references:?}"));
        }
        if own != self.now.own.len() {
            return Err(format!("{} rows are stored, and boxes have {own}", self.now.own.len()));
        }
        Ok(())
    }

    /// Checks that nothing is stored any more.
    pub fn is_empty(&self) -> CheckResult {
        self.is_whole()?;
        let rows: Vec<_> = self.now.own.keys().collect();
        if !rows.is_empty() || !self.now.shared.is_empty() {
            return Err(format!("{rows:?} and {:?} are still stored", self.now.shared.keys()));
        }
        Ok(())
    }
}
