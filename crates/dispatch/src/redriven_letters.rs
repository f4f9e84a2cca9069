//! The dead letters of a subscription that were redriven: their offsets in the dead-letter topic. Pure. At most one redrive runs at a time.

use roaring::RoaringTreemap;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{ProgressKey, ProgressRow};

use super::line_set::CURSOR;
use super::progress_format;
use super::window::PartitionProgress;

/// The row that saves the offsets of redriven letters. It has the place of the cursor's progress in the partition of the dead letters.
pub fn redriven_row(partition: PartitionId, run: u32, redriven: RoaringTreemap) -> ProgressRow {
    let progress = PartitionProgress { watermark: 0, read_to: 0, unfinished: redriven, retries: Vec::new() };
    let place = ProgressKey { line: CURSOR, partition };
    ProgressRow { place, run, state: progress_format::encode(&progress, None).into() }
}

#[derive(Default)]
pub struct RedrivenLetters {
    offsets: RoaringTreemap,
    /// Whether the offsets changed since the last save.
    is_changed: bool,
    is_running: bool,
}

impl RedrivenLetters {
    pub fn offsets(&self) -> &RoaringTreemap {
        &self.offsets
    }

    /// Adds offsets that an earlier owner saved.
    pub fn load(&mut self, saved: RoaringTreemap) {
        self.offsets |= saved;
    }

    /// Begins a redrive. Returns false if one is running.
    pub fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.is_running, true)
    }

    /// Ends the redrive, which appended these dead letters.
    pub fn end(&mut self, done: RoaringTreemap, is_saved: bool) {
        self.is_running = false;
        self.offsets |= done;
        self.is_changed |= !is_saved;
    }

    /// Takes the offsets if they changed since the last save.
    pub fn unsaved(&mut self) -> Option<RoaringTreemap> {
        std::mem::take(&mut self.is_changed).then(|| self.offsets.clone())
    }

    /// Marks the offsets as changed after a save failed.
    pub fn not_saved(&mut self) {
        self.is_changed = !self.offsets.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_redrive_runs_at_a_time_and_its_offsets_are_saved_until_a_save_succeeds() {
        let mut letters = RedrivenLetters::default();
        assert!(letters.begin() && !letters.begin());
        letters.end([4].into_iter().collect(), false);
        assert!(letters.begin(), "the first one has ended");
        assert_eq!(letters.unsaved(), Some([4].into_iter().collect()));
        assert_eq!(letters.unsaved(), None);
        letters.not_saved();
        assert!(letters.unsaved().is_some());
    }
}
