//! Changes that the store does not have yet, and the schedule of saves.
//!
//! A message that is acknowledged before the next save never reaches the store; only the seat's cursor does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{ApplyOutcome, InboxChange, InboxError, InboxWrite, OutMessage, RowKey};
use whimbrel_model::push::expiry;

use super::super::rows::encode_row;
use super::super::user_box::InboxSlot;
use super::fold::{millis, row_key};
use super::{CarrierEffect, PushPartition};

/// How long a box with nothing but names of pushes is kept.
const NAMES_KEPT: Duration = Duration::from_secs(86_400);
/// Bytes that a changed box counts as, without its rows.
const BOX_BYTES: usize = 64;

pub(super) struct UnsavedChanges {
    /// The store has all records below this offset.
    pub saved: u64,
    pub dirty: HashSet<Uid, RandomState>,
    rows: HashMap<RowKey, NewRow, RandomState>,
    dropped: Vec<(Uid, u64)>,
    released: HashMap<u64, u32, RandomState>,
    pub bytes: usize,
    pub wants_reset: bool,
    pub wants_sync: bool,
    pub last: Timestamp,
}

struct NewRow {
    message: Arc<OutMessage>,
    references: u32,
}

pub(super) struct InFlightWrite {
    applied: u64,
    /// The write empties the store first.
    pub is_reset: bool,
    pub rows: HashMap<RowKey, Arc<OutMessage>>,
    pub users: HashSet<Uid, RandomState>,
}

impl UnsavedChanges {
    pub fn new(now: Timestamp) -> Self {
        Self {
            saved: 0,
            dirty: HashSet::default(),
            rows: HashMap::default(),
            dropped: Vec::new(),
            released: HashMap::default(),
            bytes: 0,
            wants_reset: false,
            wants_sync: false,
            last: now,
        }
    }

    pub fn message(&self, key: &RowKey) -> Option<Arc<OutMessage>> {
        self.rows.get(key).map(|row| Arc::clone(&row.message))
    }

    pub fn put_row(&mut self, uid: &Uid, slot: &InboxSlot, message: &Arc<OutMessage>) {
        self.bytes += BOX_BYTES;
        let row = self.rows.entry(row_key(uid, slot)).or_insert_with(|| {
            self.bytes += slot.bytes as usize;
            NewRow { message: Arc::clone(message), references: 0 }
        });
        row.references += 1;
    }

    pub fn drop_rows(&mut self, uid: &Uid, slots: Vec<InboxSlot>) {
        for slot in slots {
            let key = row_key(uid, &slot);
            if let Some(row) = self.rows.get_mut(&key) {
                row.references -= 1;
                if row.references == 0 {
                    self.rows.remove(&key);
                }
            } else if slot.shared {
                *self.released.entry(slot.seq).or_default() += 1;
            } else {
                self.dropped.push((uid.clone(), slot.seq));
            }
        }
    }
}

impl PushPartition {
    pub(super) fn is_unsaved(&self) -> bool {
        self.folded != self.unsaved.saved
            || !self.unsaved.dirty.is_empty()
            || self.unsaved.wants_sync
            || self.unsaved.wants_reset
    }

    /// The time of the next save. `None` if the store is current, or if a write or an append is in progress.
    pub(super) fn save_due(&self) -> Option<Timestamp> {
        let is_free = self.in_flight.is_none() && !self.is_appending && self.outbound.is_empty();
        if !is_free || !self.is_unsaved() {
            return None;
        }
        let soon =
            self.unsaved.bytes >= self.settings.unsaved_bytes || self.unsaved.wants_sync || self.unsaved.wants_reset;
        let wait = if soon { 0 } else { millis(self.settings.save_interval) };
        Some(expiry(self.unsaved.last, wait))
    }

    pub(super) fn save(&mut self, now: Timestamp) {
        if self.save_due().is_none_or(|due| due > now) {
            return;
        }
        let keep_seats = i64::try_from(self.settings.keep_seats.as_millis()).unwrap_or(i64::MAX);
        let unsaved = &mut self.unsaved;
        let users: HashSet<Uid, RandomState> = unsaved.dirty.drain().collect();
        let mut changes = Vec::with_capacity(users.len() + unsaved.rows.len() + unsaved.dropped.len());
        for uid in &users {
            let Some(user) = self.users.get_mut(uid.as_str()) else { continue };
            user.is_dirty = false;
            let is_empty = user.state.is_empty() && user.sessions.is_empty();
            if is_empty && !user.is_stored {
                continue;
            }
            let has_names_at_most = user.state.seats.is_empty() && user.state.slots.is_empty();
            let names_until = has_names_at_most.then(|| expiry(now, millis(NAMES_KEPT)));
            let reclaim_at = user.state.reclaim_at(keep_seats).max(names_until).filter(|_| !is_empty);
            let was = std::mem::replace(&mut user.state.found_under, reclaim_at);
            let state = (!is_empty).then(|| user.state.encode());
            user.is_stored = !is_empty;
            changes.push(InboxChange::PutBox { uid: uid.clone(), state, reclaim_at, was });
        }
        let mut rows = HashMap::with_capacity(unsaved.rows.len());
        for (key, new) in unsaved.rows.drain() {
            let row = encode_row(&new.message);
            changes.push(match &key {
                RowKey::Own { uid, seq } => InboxChange::PutOwn { uid: uid.clone(), seq: *seq, row },
                RowKey::Shared { seq } => InboxChange::PutShared { seq: *seq, row, references: new.references },
            });
            rows.insert(key, new.message);
        }
        changes.extend(unsaved.dropped.drain(..).map(|(uid, seq)| InboxChange::DropOwn { uid, seq }));
        let released = unsaved.released.drain();
        changes.extend(released.map(|(seq, references)| InboxChange::ReleaseShared { seq, references }));
        let write = InboxWrite {
            epoch: self.epoch,
            expected: unsaved.saved,
            reset: std::mem::take(&mut unsaved.wants_reset),
            changes,
            applied: self.folded,
            synced: std::mem::take(&mut unsaved.wants_sync),
        };
        let is_reset = write.reset;
        unsaved.bytes = 0;
        unsaved.last = now;
        self.in_flight = Some(InFlightWrite { applied: self.folded, is_reset, rows, users });
        self.effects.push(CarrierEffect::Apply(write));
    }

    /// Handles the result of a write. A write with an unknown outcome is not retried, because references would be counted twice; the
    /// owner resigns, and the next one reads the store's offset.
    pub(super) fn applied(&mut self, outcome: Result<ApplyOutcome, InboxError>) {
        let Some(in_flight) = self.in_flight.take() else { return };
        match outcome {
            Ok(ApplyOutcome::Done) => {
                self.unsaved.saved = in_flight.applied;
                in_flight.users.iter().for_each(|uid| self.release(uid.as_str()));
            }
            Ok(ApplyOutcome::Behind { at }) if at == self.unsaved.saved => {
                self.resign("the inbox store has lost writes that it had acknowledged".to_owned());
            }
            Ok(ApplyOutcome::Behind { at }) => {
                self.resign(format!("the inbox store is at offset {at}, expected {}", self.unsaved.saved));
            }
            Ok(ApplyOutcome::OlderEpoch) => self.resign("a newer owner has opened the inbox store".to_owned()),
            Err(error) => self.resign(error.to_string()),
        }
    }
}
