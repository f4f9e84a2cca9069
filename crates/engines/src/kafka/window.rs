//! The records that a cursor has taken from Kafka and still has in memory, so that several readers near the same place share
//! them. Pure: it knows nothing of Kafka.

use std::collections::VecDeque;

use whimbrel_model::StoredRecord;
use whimbrel_model::ports::{ReadBatch, ReadLimits};

/// How many bytes of records that were already read stay for the next reader.
const KEPT_BYTES: usize = 256 << 10;
/// What a record costs in memory beside its bytes, roughly.
const RECORD_OVERHEAD_BYTES: usize = 128;

/// A stretch of a partition: everything that has a record in `start..next` is here.
#[derive(Debug)]
pub(super) struct Window {
    start: u64,
    next: u64,
    records: VecDeque<StoredRecord>,
    bytes: usize,
}

impl Window {
    pub fn at(from: u64) -> Self {
        Self { start: from, next: from, records: VecDeque::new(), bytes: 0 }
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether a reader at `from` can go on here, now or when the next record comes.
    pub fn covers(&self, from: u64) -> bool {
        (self.start..=self.next).contains(&from)
    }

    /// Adds the record that follows. One that was here before is ignored.
    pub fn push(&mut self, stored: StoredRecord) {
        if stored.offset < self.next {
            return;
        }
        self.next = stored.offset + 1;
        self.bytes += cost(&stored);
        self.records.push_back(stored);
    }

    /// There is no record before `position` that is not here.
    pub fn pass_to(&mut self, position: u64) {
        self.next = self.next.max(position);
    }

    /// What a reader at `from` gets: as many records as its limits allow, and at least one where there is one.
    pub fn read(&self, from: u64, limits: &ReadLimits) -> ReadBatch {
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
            _ => self.next.max(from),
        };
        ReadBatch { records, next }
    }

    /// Forgets the oldest records that were read, beyond what is kept for others.
    pub fn forget_read(&mut self, read_to: u64) {
        while self.bytes > KEPT_BYTES && self.records.front().is_some_and(|first| first.offset < read_to) {
            self.drop_first();
        }
    }

    /// Forgets what is no longer kept by the log.
    pub fn forget_before(&mut self, first: u64) {
        while self.records.front().is_some_and(|stored| stored.offset < first) {
            self.drop_first();
        }
        self.start = self.start.max(first);
        self.next = self.next.max(self.start);
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.records.pop_front() {
            self.bytes -= cost(&first);
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
    use std::time::Duration;
    use whimbrel_model::{Headers, Record, Timestamp};

    fn stored(offset: u64, size: usize) -> StoredRecord {
        let record = Record {
            key: None,
            value: vec![0; size].into(),
            headers: Headers::EMPTY,
            timestamp: Timestamp::from_millis(1),
        };
        StoredRecord { offset, record }
    }

    fn limits(max_records: usize, max_bytes: usize) -> ReadLimits {
        ReadLimits { max_records, max_bytes, wait: Duration::ZERO }
    }

    fn offsets(batch: &ReadBatch) -> Vec<u64> {
        batch.records.iter().map(|stored| stored.offset).collect()
    }

    #[test]
    fn a_reader_goes_on_behind_the_last_record_it_got() {
        let mut window = Window::at(5);
        [5, 6, 8, 9].into_iter().for_each(|offset| window.push(stored(offset, 10)));
        let batch = window.read(5, &limits(2, 1000));
        assert_eq!((offsets(&batch), batch.next), (vec![5, 6], 7));
        let batch = window.read(7, &limits(10, 1000));
        assert_eq!((offsets(&batch), batch.next), (vec![8, 9], 10));
    }

    #[test]
    fn bytes_are_honoured_and_one_record_comes_all_the_same() {
        let mut window = Window::at(0);
        (0..4).for_each(|offset| window.push(stored(offset, 10)));
        assert_eq!(offsets(&window.read(0, &limits(10, 25))), [0, 1]);
        assert_eq!(offsets(&window.read(0, &limits(10, 1))), [0]);
        assert_eq!(offsets(&window.read(0, &limits(0, 1000))), [0]);
    }

    #[test]
    fn markers_at_the_end_are_passed() {
        let mut window = Window::at(0);
        window.push(stored(0, 1));
        window.pass_to(3);
        assert_eq!(window.read(0, &limits(10, 10)).next, 3);
        let batch = window.read(1, &limits(10, 10));
        assert_eq!((batch.records.len(), batch.next), (0, 3));
        window.pass_to(2);
        assert_eq!(window.next(), 3, "it never goes back");
    }

    #[test]
    fn what_was_read_is_forgotten_beyond_a_bound_and_what_was_not_is_kept() {
        let mut window = Window::at(0);
        (0..10).for_each(|offset| window.push(stored(offset, KEPT_BYTES / 4)));
        window.forget_read(2);
        assert!(!window.covers(1) && window.covers(2), "nothing unread is forgotten");
        window.forget_read(10);
        assert!(!window.covers(6) && window.covers(7) && window.covers(10));
    }

    #[test]
    fn what_the_log_no_longer_keeps_is_no_longer_covered() {
        let mut window = Window::at(0);
        (0..4).for_each(|offset| window.push(stored(offset, 1)));
        window.forget_before(2);
        assert!(!window.covers(1) && window.covers(2));
        assert_eq!(offsets(&window.read(2, &limits(10, 10))), [2, 3]);
    }

    #[test]
    fn a_record_that_comes_twice_is_kept_once() {
        let mut window = Window::at(3);
        [2, 3, 3, 4].into_iter().for_each(|offset| window.push(stored(offset, 1)));
        assert_eq!(offsets(&window.read(3, &limits(10, 10))), [3, 4]);
    }
}
