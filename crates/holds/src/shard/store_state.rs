//! The state of the store as the shard knows it: the offset, the write in progress, and whether the store can be trusted.
//!
//! A result of the store counts only at the offset of the last save, or of the write in progress.

use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::ports::TimersError;

use super::super::settings::SYNC_EVERY;
use super::after;

#[derive(Debug, Default)]
pub(super) struct StoreState {
    /// The store's offset, and the number of its changes so far.
    pub(super) saved: u64,
    pub(super) saves: u64,
    /// The offset of the last synced checkpoint, whether the one in progress is synced, and when the next one must be.
    pub(super) synced: u64,
    pub(super) saving_synced: bool,
    pub(super) sync_at: Timestamp,
    /// The offset of the checkpoint in progress.
    pub(super) saving: Option<u64>,
    /// The next checkpoint must empty the store first: its contents cannot be folded upon.
    pub(super) must_reset: bool,
    pub(super) last_saved_at: Timestamp,
    pub(super) save_again_at: Option<Timestamp>,
    /// The store is at an unexpected offset.
    pub(super) has_fallen: bool,
}

/// Whether the result of a store read is usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreRead {
    Sound,
    AskAgain,
    Fallen,
}

impl StoreState {
    /// Takes the offset of the store. Returns false if its contents cannot be folded upon.
    pub(super) fn started(&mut self, applied: u64, first: u64, end: u64, last_saved_at: Timestamp) -> bool {
        (self.saved, self.synced) = (applied, applied);
        self.saves += 1;
        self.last_saved_at = last_saved_at;
        // A store that is behind the kept log or beyond its end does not belong to this log.
        self.must_reset |= applied < first || applied > end;
        !self.must_reset
    }

    pub(super) fn forget(&mut self) {
        (self.has_fallen, self.saving, self.save_again_at) = (false, None, None);
    }

    pub(super) fn plan_again(&mut self, now: Timestamp) {
        (self.sync_at, self.last_saved_at, self.save_again_at) = (now, now, None);
    }

    /// Checks the result of a store read by the offset at which the store was.
    pub(super) fn check_read(&self, at: u64, saves_when_asked: u64) -> StoreRead {
        if at == self.saved || self.saving == Some(at) {
            StoreRead::Sound
        } else if saves_when_asked != self.saves {
            // The read began before a checkpoint ended.
            StoreRead::AskAgain
        } else {
            StoreRead::Fallen
        }
    }

    pub(super) fn failed(&mut self, error: &TimersError) {
        if let TimersError::Damaged(_) = error {
            self.must_reset = true;
            self.has_fallen = true;
        }
    }

    /// When the next checkpoint is due, if the log is folded up to `folded`.
    pub(super) fn save_at(&self, folded: u64, interval: Duration) -> Option<Timestamp> {
        if self.saving.is_some() {
            return None;
        }
        if self.save_again_at.is_some() {
            return self.save_again_at;
        }
        (folded != self.saved || self.must_reset).then(|| after(self.last_saved_at, interval))
    }

    /// The store has everything up to that offset.
    pub(super) fn is_saved(&mut self, upto: u64, now: Timestamp) {
        self.saved = upto;
        self.saves += 1;
        if self.saving_synced {
            self.synced = upto;
            self.sync_at = after(now, SYNC_EVERY);
        }
        self.must_reset = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_counts_only_at_the_offset_of_the_last_save_or_the_one_in_progress() {
        let now = Timestamp::from_millis(0);
        let mut store = StoreState::default();
        assert!(store.started(10, 5, 20, now));
        let asked_after = store.saves;
        store.saving = Some(15);
        assert_eq!([10, 15].map(|at| store.check_read(at, asked_after)), [StoreRead::Sound; 2]);
        assert_eq!(store.check_read(12, asked_after), StoreRead::Fallen);
        store.saving = None;
        store.is_saved(15, now);
        assert_eq!(store.check_read(10, asked_after), StoreRead::AskAgain, "it began before the save");
        assert_eq!(store.check_read(10, store.saves), StoreRead::Fallen);
    }

    #[test]
    fn a_store_of_another_log_is_emptied_by_the_next_save_only() {
        let now = Timestamp::from_millis(0);
        for (first, end) in [(11, 20), (0, 9)] {
            let mut store = StoreState::default();
            assert!(!store.started(10, first, end, now) && store.must_reset);
            store.is_saved(12, now);
            assert!(!store.must_reset);
        }
    }
}
