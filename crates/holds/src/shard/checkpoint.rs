//! Checkpoints of unsaved changes to the store, and the window that is filled from the store.
//!
//! A checkpoint contains exactly the effects of the records up to its offset: the sealed changes are those folded up to `folded`. It
//! contains a lower bound of all rows' due times, so that no read begins at the start of the store.

use std::sync::Arc;

use whimbrel_model::ports::{ApplyOutcome, AtOffset, DueCursor, TimersError, TimersWrite};
use whimbrel_model::{Hold, HoldId, Timestamp};

use super::super::settings::{RETRY_AFTER, SYNC_EVERY};
use super::super::window::{before, place_of};
use super::{CallToken, HoldEffect, HoldShard, ShardPhase, StoreRead, after};

impl HoldShard {
    pub(super) fn save_at(&self) -> Option<Timestamp> {
        if self.saving.is_some() {
            return None;
        }
        if self.save_again_at.is_some() {
            return self.save_again_at;
        }
        (self.folded != self.saved || self.must_reset)
            .then(|| after(self.last_saved_at, self.settings.checkpoint_interval))
    }

    pub(super) fn save(&mut self, effects: &mut Vec<HoldEffect>) {
        let now = self.clock.now();
        if self.saving.is_some() || self.has_fallen || self.save_again_at.is_some_and(|at| now < at) {
            return;
        }
        let is_retried = self.save_again_at.take().is_some();
        let is_large = self.unsaved.changes() >= self.settings.checkpoint_changes
            || self.unsaved.bytes() >= self.settings.checkpoint_bytes;
        let is_time = self.save_at().is_some_and(|at| now >= at);
        if !(is_retried || is_large || is_time || self.must_reset) || self.folded == self.saved && !self.must_reset {
            return;
        }
        // Changes that were sealed before and not written are written with the later ones.
        self.unsaved.unseal();
        self.saving = Some(self.folded);
        self.saving_synced = now >= self.sync_at || self.settings.trim_interval <= SYNC_EVERY;
        effects.push(HoldEffect::Apply(TimersWrite {
            epoch: self.epoch,
            expected: self.saved,
            reset: self.must_reset,
            changes: self.unsaved.seal(),
            applied: self.folded,
            floor: self.floor(),
            now: self.expiry,
            synced: self.saving_synced,
        }));
    }

    /// The last checkpoint before the shard is given up. `None` if there is nothing to write, or if memory is not reliable.
    pub fn last_checkpoint(&mut self) -> Option<TimersWrite> {
        let may_write = self.saving.is_none() && !self.has_fallen && !self.must_reset && self.folded != self.saved;
        if !may_write || self.phase == ShardPhase::Starting {
            return None;
        }
        self.unsaved.unseal();
        let floor = self.floor();
        let (epoch, expected, applied, now) = (self.epoch, self.saved, self.folded, self.expiry);
        Some(TimersWrite {
            epoch,
            expected,
            reset: false,
            changes: self.unsaved.seal(),
            applied,
            floor,
            now,
            synced: true,
        })
    }

    /// A lower bound of the due times of all pending holds: in the window, on the wheel, in a commit, set aside, or beyond the horizon.
    /// Stores drop all rows below it, so this function checks every hold of the window instead of relying on the wheel.
    fn floor(&self) -> Timestamp {
        let earliest = self.window.earliest().into_iter().chain(self.aside.earliest());
        earliest.chain([self.window.horizon().due]).min().unwrap_or(self.window.horizon().due)
    }

    pub(super) fn applied(&mut self, applied: Result<ApplyOutcome, TimersError>, effects: &mut Vec<HoldEffect>) {
        let Some(upto) = self.saving.take() else { return };
        self.last_saved_at = self.clock.now();
        match applied {
            Ok(ApplyOutcome::Done) => self.is_saved(upto),
            // An earlier attempt at the same write had succeeded.
            Ok(ApplyOutcome::Behind { at }) if at == upto && !self.must_reset => self.is_saved(upto),
            Ok(ApplyOutcome::Behind { .. }) => self.has_fallen = true,
            Ok(ApplyOutcome::OlderEpoch) => {
                effects.push(HoldEffect::Resign { why: "a newer owner has the shard's store".to_owned() });
            }
            Err(error) => {
                self.save_again_at = Some(after(self.clock.now(), RETRY_AFTER));
                self.store_failed(&error);
            }
        }
    }

    fn is_saved(&mut self, upto: u64) {
        self.saved = upto;
        self.saves += 1;
        if self.saving_synced {
            self.synced = upto;
            self.sync_at = after(self.clock.now(), SYNC_EVERY);
        }
        self.must_reset = false;
        self.unsaved.saved();
        self.is_ready_now();
    }

    pub(super) fn store_failed(&mut self, error: &TimersError) {
        if let TimersError::Damaged(_) = error {
            self.must_reset = true;
            self.has_fallen = true;
        }
    }

    pub(super) fn fill_at(&self) -> Option<Timestamp> {
        if self.filling.is_some() || !self.window.has_room() {
            return None;
        }
        if self.fill_again_at.is_some() {
            return self.fill_again_at;
        }
        // The window is refilled when a quarter of it has passed.
        let horizon = self.window.horizon().due.as_millis();
        let window = i64::try_from(self.settings.window.as_millis()).unwrap_or(i64::MAX);
        Some(Timestamp::from_millis(horizon.saturating_sub(window / 4 * 3)))
    }

    /// Reads the next holds in due order, from the horizon on.
    pub(super) fn fill(&mut self, effects: &mut Vec<HoldEffect>) {
        let now = self.clock.now();
        if self.has_fallen || self.fill_at().is_none_or(|at| now < at) {
            return;
        }
        self.fill_again_at = None;
        let token = self.token();
        self.filling = Some((token, self.saves));
        let horizon = self.window.horizon();
        let after_place = (horizon.due.as_millis() != i64::MIN).then(|| horizon.clone());
        effects.push(HoldEffect::Due { token, after: after_place, until: after(now, self.settings.window) });
        self.filling_after = horizon.clone();
        self.filling_until = after(now, self.settings.window);
    }

    pub(super) fn filled(
        &mut self,
        token: CallToken,
        found: Result<AtOffset<Vec<Arc<Hold>>>, TimersError>,
        _: &mut Vec<HoldEffect>,
    ) {
        let Some((_, saves)) = self.filling.take_if(|(asked, _)| *asked == token) else { return };
        let page = match found {
            Ok(page) => page,
            Err(error) => {
                self.fill_again_at = Some(after(self.clock.now(), RETRY_AFTER));
                return self.store_failed(&error);
            }
        };
        match self.check_read(page.applied, saves) {
            StoreRead::Sound => {}
            StoreRead::AskAgain => return,
            StoreRead::Fallen => {
                self.has_fallen = true;
                return;
            }
        }
        // The window dropped holds after the query: this page would leave a gap.
        if *self.window.horizon() != self.filling_after {
            return;
        }
        let horizon = page.found.last().map_or_else(|| before(self.filling_until), |last| place_of(last));
        let unsaved = self.unsaved.take_near(&horizon, self.window.room());
        // If not all of them fit, those after the last one wait for the next page.
        let horizon = if self.unsaved.has_near(&horizon) { unsaved.last().map(|last| place_of(last)) } else { None }
            .unwrap_or(horizon);
        let mut near: Vec<Arc<Hold>> = page.found.into_iter().filter(|hold| self.is_new_to_window(&hold.id)).collect();
        near.extend(unsaved);
        near.retain(|hold| place_of(hold) <= horizon);
        near.sort_unstable_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
        self.fill_with(near, horizon);
    }

    /// Whether the window takes this hold from the store. It does not if memory has a newer state of the hold, or the hold is set aside.
    pub(super) fn is_new_to_window(&self, id: &HoldId) -> bool {
        self.unsaved.get(id).is_none() && self.aside.get(id).is_none()
    }

    /// Inserts holds in due order while there is room. A window filled beyond its bound would drop all of them and be filled again,
    /// endlessly.
    fn fill_with(&mut self, near: Vec<Arc<Hold>>, horizon: DueCursor) {
        let mut near = near.into_iter();
        while let Some(hold) = near.next() {
            let place = place_of(&hold);
            self.window.insert(hold);
            if self.window.room() == 0 {
                self.window.reach(place);
                for left in near.filter(|left| self.unsaved.get(&left.id).is_some()).collect::<Vec<_>>() {
                    self.unsaved.note_far(&left);
                }
                return;
            }
        }
        self.window.reach(horizon);
    }
}
