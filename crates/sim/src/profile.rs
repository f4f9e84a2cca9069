//! The faults of a run, and its settings. The seed determines both.

use std::time::Duration;

use whimbrel_storage::LogSettings;

use crate::disk::Faults;
use crate::rng::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Power losses and kills at any call, also during recovery.
    Crashes,
    /// Crashes, calls that return errors, and syncs that lose the data that they failed to sync.
    Errors,
    /// Crashes, and a disk that is full and later has space again.
    Full,
    /// Crashes, and bits that flip at rest.
    Flips,
    /// All of the above together.
    Mixed,
    /// A deliberate breakage: syncs that do nothing. Runs must fail.
    LyingSync,
    /// A deliberate breakage: bytes that change together with their checksums. Runs must fail.
    ResealedFlips,
}

impl Profile {
    pub(crate) fn has_errors(self) -> bool {
        matches!(self, Profile::Errors | Profile::Mixed)
    }

    pub(crate) fn fills_disk(self) -> bool {
        matches!(self, Profile::Full | Profile::Mixed)
    }

    pub(crate) fn flips_bits(self) -> bool {
        matches!(self, Profile::Flips | Profile::Mixed | Profile::ResealedFlips)
    }

    pub(crate) fn faults(self, rng: &mut Rng) -> Faults {
        let mut faults = Faults { sync_by_file: rng.one_in(2), ..Faults::default() };
        if self.has_errors() {
            let rate = *rng.pick(&[50, 200, 1000]);
            let mut some = |one_in: u64| if rng.one_in(2) { rate * one_in } else { 0 };
            (faults.read_error, faults.write_error) = (some(2), some(2));
            (faults.sync_error, faults.name_error) = (some(1), some(1));
        }
        if self.fills_disk() && rng.one_in(3) {
            faults.sync_without_room = 100;
        }
        if self == Profile::LyingSync {
            faults.lie_about_sync = 4;
        }
        faults
    }

    /// Small files, so that a short run reaches each boundary.
    pub(crate) fn settings(self, rng: &mut Rng) -> LogSettings {
        let frame_bytes_max = *rng.pick(&[8 << 10, 16 << 10, 64 << 10]);
        let journal_file_bytes = frame_bytes_max as u64 * *rng.pick(&[2, 3, 4]);
        let journal_bytes_max = journal_file_bytes * rng.between(3, 6);
        LogSettings {
            frame_bytes_max,
            frame_bytes_target: 4096,
            journal_file_bytes,
            journal_bytes_max,
            checkpoint_bytes: journal_bytes_max / 2,
            segment_bytes: *rng.pick(&[4 << 10, 8 << 10, 32 << 10]),
            segment_age: Duration::from_millis(*rng.pick(&[500, 100_000])),
            index_interval_bytes: *rng.pick(&[256, 1024, 4096]),
            tail_bytes: *rng.pick(&[0, 4 << 10, 64 << 10]),
            unsaved_bytes_max: 2 * frame_bytes_max as u64,
            disk_reserve_bytes: *rng.pick(&[0, 32 << 10]),
            // The simulator does not wait for unreadable places.
            unreadable_for: Duration::ZERO,
            ..LogSettings::default()
        }
    }
}
