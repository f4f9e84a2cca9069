//! Changes that the store does not have yet, and the schedule of saves. One write is in progress at most.
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

use super::fold::{millis, row_key};
use super::{LoadedUser, LoadedUsers};
use crate::carrier::rows::encode_row;
use crate::carrier::settings::CarrierSettings;
use crate::carrier::user_box::InboxSlot;

/// How long a box with nothing but names of pushes is kept.
const NAMES_KEPT: Duration = Duration::from_secs(86_400);
/// Bytes that a changed box counts as, without its rows.
const BOX_BYTES: usize = 64;

pub(super) struct UnsavedChanges {
    /// The owner's epoch, which fences its writes.
    epoch: u64,
    /// The store has all records below this offset.
    pub saved: u64,
    dirty: HashSet<Uid, RandomState>,
    rows: HashMap<RowKey, NewRow, RandomState>,
    dropped: Vec<(Uid, u64)>,
    released: HashMap<u64, u32, RandomState>,
    bytes: usize,
    pub wants_reset: bool,
    pub wants_sync: bool,
    last_save: Timestamp,
    in_flight: Option<InFlightWrite>,
}

struct NewRow {
    message: Arc<OutMessage>,
    references: u32,
}

struct InFlightWrite {
    applied: u64,
    /// The write empties the store first.
    is_reset: bool,
    rows: HashMap<RowKey, Arc<OutMessage>>,
    users: HashSet<Uid, RandomState>,
}

impl UnsavedChanges {
    pub fn new(epoch: u64, now: Timestamp) -> Self {
        Self {
            epoch,
            saved: 0,
            dirty: HashSet::default(),
            rows: HashMap::default(),
            dropped: Vec::new(),
            released: HashMap::default(),
            bytes: 0,
            wants_reset: false,
            wants_sync: false,
            last_save: now,
            in_flight: None,
        }
    }

    /// The user's box has changed.
    pub fn note(&mut self, uid: &Uid, user: &mut LoadedUser) {
        user.is_dirty = true;
        self.dirty.insert(uid.clone());
    }

    /// The message of a slot that the store may not have yet.
    pub fn message(&self, key: &RowKey) -> Option<Arc<OutMessage>> {
        let new = self.rows.get(key).map(|row| &row.message);
        new.or_else(|| self.in_flight.as_ref()?.rows.get(key)).cloned()
    }

    pub fn put_row(&mut self, uid: &Uid, slot: &InboxSlot, message: &Arc<OutMessage>) {
        self.bytes += BOX_BYTES;
        let row = self.rows.entry(row_key(uid, slot)).or_insert_with(|| {
            self.bytes += slot.bytes as usize;
            NewRow { message: Arc::clone(message), references: 0 }
        });
        row.references += 1;
    }

    pub fn drop_rows(&mut self, uid: &Uid, slots: impl IntoIterator<Item = InboxSlot>) {
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

    /// Whether there is room for more changes before the next save.
    pub fn has_room(&self, settings: &CarrierSettings) -> bool {
        self.bytes < 2 * settings.unsaved_bytes
    }

    /// Whether the store, and everything in memory up to `folded`, are the same.
    pub fn is_empty(&self, folded: u64) -> bool {
        folded == self.saved && self.dirty.is_empty() && !self.wants_sync && !self.wants_reset
    }

    pub fn is_writing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether reads may still return contents of another log.
    pub fn is_emptying(&self) -> bool {
        self.wants_reset || self.in_flight.as_ref().is_some_and(|in_flight| in_flight.is_reset)
    }

    /// Whether a write with that user is in progress: the store may still return the earlier state.
    pub fn is_writing_user(&self, uid: &str) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.users.contains(uid))
    }

    /// The clock went back: the wait for the next save restarts from the new time.
    pub fn restart_wait(&mut self, now: Timestamp) {
        self.last_save = self.last_save.min(now);
    }

    /// The time of the next save. `None` if the store is current, or if a write is in progress.
    pub fn save_due(&self, folded: u64, settings: &CarrierSettings) -> Option<Timestamp> {
        if self.is_writing() || self.is_empty(folded) {
            return None;
        }
        let soon = self.bytes >= settings.unsaved_bytes || self.wants_sync || self.wants_reset;
        let wait = if soon { 0 } else { millis(settings.save_interval) };
        Some(expiry(self.last_save, wait))
    }

    /// Starts a write of all changes up to `folded`.
    pub fn start_write(&mut self, users: &mut LoadedUsers, folded: u64, keep_seats: i64, now: Timestamp) -> InboxWrite {
        let dirty: HashSet<Uid, RandomState> = self.dirty.drain().collect();
        let mut changes = Vec::with_capacity(dirty.len() + self.rows.len() + self.dropped.len());
        for uid in &dirty {
            let Some(user) = users.get_mut(uid.as_str()) else { continue };
            changes.extend(box_change(uid, user, keep_seats, now));
        }
        let mut rows = HashMap::with_capacity(self.rows.len());
        for (key, new) in self.rows.drain() {
            let row = encode_row(&new.message);
            changes.push(match &key {
                RowKey::Own { uid, seq } => InboxChange::PutOwn { uid: uid.clone(), seq: *seq, row },
                RowKey::Shared { seq } => InboxChange::PutShared { seq: *seq, row, references: new.references },
            });
            rows.insert(key, new.message);
        }
        changes.extend(self.dropped.drain(..).map(|(uid, seq)| InboxChange::DropOwn { uid, seq }));
        let released = self.released.drain();
        changes.extend(released.map(|(seq, references)| InboxChange::ReleaseShared { seq, references }));
        let write = InboxWrite {
            epoch: self.epoch,
            expected: self.saved,
            reset: std::mem::take(&mut self.wants_reset),
            changes,
            applied: folded,
            synced: std::mem::take(&mut self.wants_sync),
        };
        (self.bytes, self.last_save) = (0, now);
        self.in_flight = Some(InFlightWrite { applied: folded, is_reset: write.reset, rows, users: dirty });
        write
    }

    /// Handles the result of the write, and returns its users; or the reason why the owner must resign. A write with an unknown outcome is
    /// not retried, because references would be counted twice: the next owner reads the store's offset.
    pub fn write_ended(
        &mut self,
        outcome: Result<ApplyOutcome, InboxError>,
    ) -> Result<HashSet<Uid, RandomState>, String> {
        let Some(in_flight) = self.in_flight.take() else { return Ok(HashSet::default()) };
        match outcome {
            Ok(ApplyOutcome::Done) => {
                self.saved = in_flight.applied;
                Ok(in_flight.users)
            }
            Ok(ApplyOutcome::Behind { at }) if at == self.saved => {
                Err("the inbox store has lost writes that it had acknowledged".to_owned())
            }
            Ok(ApplyOutcome::Behind { at }) => {
                Err(format!("the inbox store is at offset {at}, expected {}", self.saved))
            }
            Ok(ApplyOutcome::OlderEpoch) => Err("a newer owner has opened the inbox store".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The change that writes a user's box. `None` if the box is empty and not in the store.
fn box_change(uid: &Uid, user: &mut LoadedUser, keep_seats: i64, now: Timestamp) -> Option<InboxChange> {
    user.is_dirty = false;
    let is_empty = user.state.is_empty() && user.sessions.is_empty();
    if is_empty && !user.is_stored {
        return None;
    }
    let has_names_at_most = user.state.seats.is_empty() && user.state.slots.is_empty();
    let names_until = has_names_at_most.then(|| expiry(now, millis(NAMES_KEPT)));
    let reclaim_at = user.state.reclaim_at(keep_seats).max(names_until).filter(|_| !is_empty);
    let was = std::mem::replace(&mut user.state.found_under, reclaim_at);
    let state = (!is_empty).then(|| user.state.encode());
    user.is_stored = !is_empty;
    Some(InboxChange::PutBox { uid: uid.clone(), state, reclaim_at, was })
}
