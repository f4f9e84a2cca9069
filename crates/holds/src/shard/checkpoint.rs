//! Checkpoints of unsaved changes to the store.
//!
//! A checkpoint contains exactly the effects of the records up to its offset: the sealed changes are those folded up to `folded`. It
//! contains a lower bound of all rows' due times, so that no read begins at the start of the store.

use whimbrel_model::Timestamp;
use whimbrel_model::ports::{ApplyOutcome, TimersError, TimersWrite};

use super::super::settings::{RETRY_AFTER, SYNC_EVERY};
use super::{HoldEffect, HoldShard, ShardPhase, after};

impl HoldShard {
    pub(super) fn save_at(&self) -> Option<Timestamp> {
        self.store.save_at(self.fold.folded, self.settings.checkpoint_interval)
    }

    pub(super) fn save(&mut self, effects: &mut Vec<HoldEffect>) {
        let now = self.time.now();
        if self.store.saving.is_some() || self.store.has_fallen || self.store.save_again_at.is_some_and(|at| now < at) {
            return;
        }
        let is_retried = self.store.save_again_at.take().is_some();
        let is_large = self.memory.unsaved.changes() >= self.settings.checkpoint_changes
            || self.memory.unsaved.bytes() >= self.settings.checkpoint_bytes;
        let is_time = self.save_at().is_some_and(|at| now >= at);
        if !(is_retried || is_large || is_time || self.store.must_reset)
            || self.fold.folded == self.store.saved && !self.store.must_reset
        {
            return;
        }
        // Changes that were sealed before and not written are written with the later ones.
        self.memory.unsaved.unseal();
        self.store.saving = Some(self.fold.folded);
        self.store.saving_synced = now >= self.store.sync_at || self.settings.trim_interval <= SYNC_EVERY;
        effects.push(HoldEffect::Apply(TimersWrite {
            epoch: self.epoch,
            expected: self.store.saved,
            reset: self.store.must_reset,
            changes: self.memory.unsaved.seal(),
            applied: self.fold.folded,
            floor: self.memory.floor(),
            now: self.time.expiry,
            synced: self.store.saving_synced,
        }));
    }

    /// The last checkpoint before the shard is given up. `None` if there is nothing to write, or if memory is not reliable.
    pub fn last_checkpoint(&mut self) -> Option<TimersWrite> {
        let may_write = self.store.saving.is_none()
            && !self.store.has_fallen
            && !self.store.must_reset
            && self.fold.folded != self.store.saved;
        if !may_write || self.phase == ShardPhase::Starting {
            return None;
        }
        self.memory.unsaved.unseal();
        let floor = self.memory.floor();
        let (epoch, expected, applied, now) = (self.epoch, self.store.saved, self.fold.folded, self.time.expiry);
        Some(TimersWrite {
            epoch,
            expected,
            reset: false,
            changes: self.memory.unsaved.seal(),
            applied,
            floor,
            now,
            synced: true,
        })
    }

    pub(super) fn applied(&mut self, applied: Result<ApplyOutcome, TimersError>, effects: &mut Vec<HoldEffect>) {
        let Some(upto) = self.store.saving.take() else { return };
        self.store.last_saved_at = self.time.now();
        match applied {
            Ok(ApplyOutcome::Done) => self.is_saved(upto),
            // An earlier attempt at the same write had succeeded.
            Ok(ApplyOutcome::Behind { at }) if at == upto && !self.store.must_reset => self.is_saved(upto),
            Ok(ApplyOutcome::Behind { .. }) => self.store.has_fallen = true,
            Ok(ApplyOutcome::OlderEpoch) => {
                effects.push(HoldEffect::Resign { why: "a newer owner has the shard's store".to_owned() });
            }
            Err(error) => {
                self.store.save_again_at = Some(after(self.time.now(), RETRY_AFTER));
                self.store.failed(&error);
            }
        }
    }

    fn is_saved(&mut self, upto: u64) {
        self.store.is_saved(upto, self.time.now());
        self.memory.unsaved.saved();
        self.is_ready_now();
    }
}
