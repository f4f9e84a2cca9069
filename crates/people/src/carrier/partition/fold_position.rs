//! The position of a partition in the log: up to where it has read and folded. The folded offset never passes the next read.

use super::CarrierIncident;

#[derive(Default)]
pub(super) struct FoldPosition {
    /// All records below this offset are folded.
    pub folded: u64,
    /// The end of the log when this owner started: numbers below it were assigned before.
    pub began_at: u64,
    /// The store was empty or belonged to another log: everything below `began_at` is folded again.
    pub is_rebuilding: bool,
    /// The offset of the next read.
    read_next: u64,
    is_reading: bool,
}

impl FoldPosition {
    /// The position of a new owner whose store is at `applied`, in a log that begins at `first` and ends at `end`.
    pub fn starting(applied: u64, first: u64, end: u64) -> (Self, Option<CarrierIncident>) {
        let (from, incident) = if applied > end {
            (first, Some(CarrierIncident::OtherLog { applied, end }))
        } else {
            let is_gap = 0 < applied && applied < first;
            (applied.max(first), is_gap.then_some(CarrierIncident::Gap { from: applied, to: first }))
        };
        let is_rebuilding = applied == 0 || applied > end;
        (Self { folded: from, began_at: end, is_rebuilding, read_next: from, is_reading: false }, incident)
    }

    /// Starts the next read. `None` while one is in progress.
    pub fn start_read(&mut self) -> Option<u64> {
        (!std::mem::replace(&mut self.is_reading, true)).then_some(self.read_next)
    }

    /// A read has ended. `next`: the offset from which to continue, if it has changed.
    pub fn read_ended(&mut self, next: Option<u64>) {
        self.is_reading = false;
        self.read_next = self.read_next.max(next.unwrap_or(0));
    }

    /// Everything is folded up to the next queued record, or to the next read: offsets between have no records.
    pub fn folded_up_to(&mut self, queued: Option<u64>) {
        self.folded = queued.unwrap_or(self.read_next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_reports_trimmed_records_and_another_log() {
        let gap = CarrierIncident::Gap { from: 3, to: 5 };
        let other = CarrierIncident::OtherLog { applied: 9, end: 8 };
        for (applied, from, is_rebuilding, incident) in
            [(0, 5, true, None), (3, 5, false, Some(gap)), (6, 6, false, None), (9, 5, true, Some(other))]
        {
            let (position, reported) = FoldPosition::starting(applied, 5, 8);
            assert_eq!((position.folded, position.is_rebuilding, reported), (from, is_rebuilding, incident));
        }
    }

    #[test]
    fn only_one_read_is_in_progress_and_it_never_goes_back() {
        let (mut position, _) = FoldPosition::starting(6, 0, 8);
        assert_eq!((position.start_read(), position.start_read()), (Some(6), None));
        position.read_ended(Some(4));
        position.folded_up_to(None);
        assert_eq!((position.folded, position.start_read()), (6, Some(6)));
    }
}
