//! Fetched records that are still in memory, so that several readers at nearby offsets share them. Pure: it has no connection to Kafka. It
//! must never return records after a gap to a reader: a reader outside the window gets an error.

use std::collections::VecDeque;

use whimbrel_model::StoredRecord;
use whimbrel_model::ports::{ReadBatch, ReadLimits};

/// The maximum bytes of read records that stay in memory for slower readers.
const KEPT_BYTES: usize = 512 << 10;
/// Approximate memory of a record beside its bytes.
const RECORD_OVERHEAD_BYTES: usize = 128;

/// The reader's offset is outside the window: its records were evicted, or have not been fetched yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutsideWindow;

/// A range of a partition. The window has every record in `start..next`.
#[derive(Debug)]
pub(super) struct RecordWindow {
    start: u64,
    next: u64,
    records: VecDeque<StoredRecord>,
    bytes: usize,
    /// The offset up to which any reader has read, and the bytes of the records before it.
    read_to: u64,
    unread_bytes: usize,
}

impl RecordWindow {
    /// An empty window without readers.
    pub fn at(from: u64) -> Self {
        Self { start: from, next: from, records: VecDeque::new(), bytes: 0, read_to: from, unread_bytes: 0 }
    }

    /// Bytes that no reader has read.
    pub fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether a reader at `from` can continue here, now or when the next record arrives.
    pub fn covers(&self, from: u64) -> bool {
        (self.start..=self.next).contains(&from)
    }

    /// Adds the following record. Ignores a record that was added before.
    pub fn push(&mut self, stored: StoredRecord) {
        if stored.offset < self.next {
            return;
        }
        self.next = stored.offset + 1;
        self.bytes += cost(&stored);
        self.unread_bytes += cost(&stored);
        self.records.push_back(stored);
    }

    /// Extends the window to `position`: the partition has no other records before it.
    pub fn pass_to(&mut self, position: u64) {
        self.next = self.next.max(position);
    }

    /// Reads the records from `from` on: as many as the limits allow, and at least one if there is one.
    pub fn read(&mut self, from: u64, limits: &ReadLimits) -> Result<ReadBatch, OutsideWindow> {
        if !self.covers(from) {
            return Err(OutsideWindow);
        }
        let begin = self.records.partition_point(|stored| stored.offset < from);
        let mut bytes = 0;
        let within = |stored: &&StoredRecord| {
            bytes += stored.record.size();
            bytes <= limits.max_bytes
        };
        let fitting = self.records.range(begin..).take_while(within).count().max(1);
        let end = (begin + fitting.min(limits.max_records.max(1))).min(self.records.len());
        let records: Vec<StoredRecord> = self.records.range(begin..end).cloned().collect();
        let next = match records.last() {
            Some(last) if end < self.records.len() => last.offset + 1,
            _ => self.next,
        };
        self.read_to(next);
        Ok(ReadBatch { records, next })
    }

    fn read_to(&mut self, next: u64) {
        if next > self.read_to {
            let place = |offset: u64| self.records.partition_point(|stored| stored.offset < offset);
            let passed = self.records.range(place(self.read_to)..place(next));
            self.unread_bytes -= passed.map(cost).sum::<usize>();
            self.read_to = next;
        }
    }

    /// Evicts the oldest read records, beyond the bytes that are kept for slower readers.
    pub fn forget_read(&mut self) {
        self.forget_read_beyond(KEPT_BYTES);
    }

    /// Evicts every read record, to free memory.
    pub fn forget_all_read(&mut self) {
        self.forget_read_beyond(0);
    }

    fn forget_read_beyond(&mut self, kept_bytes: usize) {
        while self.bytes > kept_bytes && self.records.front().is_some_and(|first| first.offset < self.read_to) {
            self.drop_first();
        }
        self.assert_whole();
    }

    /// Evicts records that the log does not keep any more.
    pub fn forget_before(&mut self, first: u64) {
        while self.records.front().is_some_and(|stored| stored.offset < first) {
            self.drop_first();
        }
        self.start = self.start.max(first);
        self.next = self.next.max(self.start);
        self.assert_whole();
    }

    /// The window has every record in `start..next`. An evicted record while `start` is below it would be a gap that readers skip without
    /// an error.
    fn assert_whole(&self) {
        let first = self.records.front().map_or(self.next, |stored| stored.offset);
        let end = self.records.back().map_or(self.start, |stored| stored.offset + 1);
        let (start, next) = (self.start, self.next);
        assert!(start <= first && end <= next && start <= next, "{first}..{end} is not within {start}..{next}");
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.records.pop_front() {
            self.bytes -= cost(&first);
            if first.offset >= self.read_to {
                self.unread_bytes -= cost(&first);
            }
            self.start = first.offset + 1;
        }
    }
}

fn cost(stored: &StoredRecord) -> usize {
    stored.record.size() + RECORD_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::log::record;
    use std::time::Duration;

    fn stored(offset: u64, size: usize) -> StoredRecord {
        StoredRecord { offset, record: record(vec![0; size]) }
    }

    fn limits(max_records: usize, max_bytes: usize) -> ReadLimits {
        ReadLimits { max_records, max_bytes, wait: Duration::ZERO }
    }

    fn read(window: &mut RecordWindow, from: u64, limits: &ReadLimits) -> ReadBatch {
        window.read(from, limits).expect("the window covers the reader")
    }

    fn offsets(batch: &ReadBatch) -> Vec<u64> {
        batch.records.iter().map(|stored| stored.offset).collect()
    }

    #[test]
    fn a_reader_continues_after_its_last_record() {
        let mut window = RecordWindow::at(5);
        [5, 6, 8, 9].into_iter().for_each(|offset| window.push(stored(offset, 10)));
        let batch = read(&mut window, 5, &limits(2, 1000));
        assert_eq!((offsets(&batch), batch.next), (vec![5, 6], 7));
        let batch = read(&mut window, 7, &limits(10, 1000));
        assert_eq!((offsets(&batch), batch.next), (vec![8, 9], 10));
    }

    #[test]
    fn the_byte_limit_is_honoured_but_one_record_is_always_returned() {
        let mut window = RecordWindow::at(0);
        (0..4).for_each(|offset| window.push(stored(offset, 10)));
        assert_eq!(offsets(&read(&mut window, 0, &limits(10, 25))), [0, 1]);
        assert_eq!(offsets(&read(&mut window, 0, &limits(10, 1))), [0]);
        assert_eq!(offsets(&read(&mut window, 0, &limits(0, 1000))), [0]);
    }

    #[test]
    fn markers_at_the_end_are_skipped() {
        let mut window = RecordWindow::at(0);
        window.push(stored(0, 1));
        window.pass_to(3);
        assert_eq!(read(&mut window, 0, &limits(10, 10)).next, 3);
        let batch = read(&mut window, 1, &limits(10, 10));
        assert_eq!((batch.records.len(), batch.next), (0, 3));
        window.pass_to(2);
        assert_eq!(window.next(), 3, "it never goes back");
    }

    #[test]
    fn read_records_are_evicted_beyond_a_bound_and_unread_ones_are_kept() {
        let mut window = RecordWindow::at(0);
        (0..10).for_each(|offset| window.push(stored(offset, KEPT_BYTES / 4)));
        read(&mut window, 0, &limits(2, usize::MAX));
        window.forget_read();
        assert!(!window.covers(1) && window.covers(2), "nothing unread is forgotten");
        read(&mut window, 2, &limits(10, usize::MAX));
        window.forget_read();
        assert!(!window.covers(6) && window.covers(7) && window.covers(10));
    }

    #[test]
    fn all_read_records_are_evicted_when_memory_is_short() {
        let mut window = RecordWindow::at(0);
        (0..4).for_each(|offset| window.push(stored(offset, 10)));
        read(&mut window, 0, &limits(3, usize::MAX));
        window.forget_all_read();
        assert!(!window.covers(2) && window.covers(3), "nothing unread is forgotten");
        assert_eq!(window.bytes(), window.unread_bytes());
    }

    #[test]
    fn a_reader_at_an_evicted_offset_gets_no_records_after_the_gap() {
        let mut window = RecordWindow::at(0);
        (0..10).for_each(|offset| window.push(stored(offset, KEPT_BYTES / 4)));
        read(&mut window, 0, &limits(10, usize::MAX));
        window.forget_read();
        assert_eq!(window.read(0, &limits(10, usize::MAX)), Err(OutsideWindow));
        assert_eq!(window.read(11, &limits(10, usize::MAX)), Err(OutsideWindow), "nor does one beyond the end");
        assert_eq!(offsets(&read(&mut window, 7, &limits(10, usize::MAX))), [7, 8, 9]);
    }

    #[test]
    fn unread_bytes_are_those_after_the_foremost_reader() {
        let mut window = RecordWindow::at(0);
        (0..4).for_each(|offset| window.push(stored(offset, 10)));
        let each = cost(&stored(0, 10));
        assert_eq!(window.unread_bytes(), 4 * each);
        read(&mut window, 2, &limits(1, 1000));
        assert_eq!(window.unread_bytes(), each, "a reader in front counts for all before it");
        read(&mut window, 0, &limits(10, 1000));
        assert_eq!(window.unread_bytes(), 0);
        window.push(stored(4, 10));
        window.forget_before(9);
        assert_eq!((window.unread_bytes(), window.bytes()), (0, 0));
    }

    #[test]
    fn trimmed_records_are_no_longer_covered() {
        let mut window = RecordWindow::at(0);
        (0..4).for_each(|offset| window.push(stored(offset, 1)));
        window.forget_before(2);
        assert_eq!(window.read(1, &limits(10, 10)), Err(OutsideWindow), "a trim is no silent jump");
        assert_eq!(offsets(&read(&mut window, 2, &limits(10, 10))), [2, 3]);
    }

    #[test]
    fn a_trim_beyond_the_window_moves_it_and_leaves_its_readers_behind() {
        let mut window = RecordWindow::at(0);
        window.push(stored(0, 1));
        window.forget_before(5);
        assert_eq!(window.read(0, &limits(10, 10)), Err(OutsideWindow));
        window.push(stored(5, 1));
        assert_eq!(offsets(&read(&mut window, 5, &limits(10, 10))), [5]);
    }

    #[test]
    fn a_record_that_is_added_twice_is_kept_once() {
        let mut window = RecordWindow::at(3);
        [2, 3, 3, 4].into_iter().for_each(|offset| window.push(stored(offset, 1)));
        assert_eq!(offsets(&read(&mut window, 3, &limits(10, 10))), [3, 4]);
    }
}
