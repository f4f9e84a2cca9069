//! A simulated log: one partition of `_holds` with its fence, and the topics as counts of the holds fired into them.
//!
//! It keeps all records ever written, also the trimmed ones, as the true history. Readers see only records that are kept and visible.

use whimbrel_model::ports::{Bounds, LogError, ReadBatch};
use whimbrel_model::{Record, StoredRecord, Timestamp};

#[derive(Debug, Default)]
pub struct SimHoldsLog {
    records: Vec<StoredRecord>,
    first: u64,
    next: u64,
    /// Readers see the records below this offset, or all of them if it is `None`.
    visible: Option<u64>,
    /// The newest fence. Commits under any other fence are rejected.
    fence: u64,
    /// Each commit is followed by an offset without a record, as on Kafka.
    pub has_markers: bool,
}

impl SimHoldsLog {
    pub fn append(&mut self, record: Record) -> u64 {
        let offset = self.next;
        self.records.push(StoredRecord { offset, record });
        self.next += 1;
        offset
    }

    /// Opens a fence and voids all earlier ones.
    pub fn open_fence(&mut self) -> u64 {
        self.fence += 1;
        self.fence
    }

    pub fn stands(&self, fence: u64) -> bool {
        self.fence == fence
    }

    /// Appends all records at once. The caller has checked the fence.
    pub fn commit(&mut self, records: Vec<Record>) -> Vec<u64> {
        let offsets = records.into_iter().map(|record| self.append(record)).collect();
        self.next += u64::from(self.has_markers);
        offsets
    }

    fn visible_end(&self) -> u64 {
        self.visible.unwrap_or(self.next)
    }

    /// Makes later records durable but invisible until [`SimHoldsLog::show_all`].
    pub fn stall(&mut self) {
        self.visible = self.visible.or(Some(self.next));
    }

    pub fn show_all(&mut self) {
        self.visible = None;
    }

    pub fn is_stalled(&self) -> bool {
        self.visible.is_some()
    }

    pub fn read(&self, from: u64, max_records: usize) -> Result<ReadBatch, LogError> {
        if from < self.first {
            return Err(LogError::Trimmed { asked: from, first: self.first });
        }
        if from > self.next {
            return Err(LogError::BeyondEnd { asked: from, next: self.next });
        }
        let end = self.visible_end();
        let mut seen = self.from(from).filter(|stored| stored.offset < end);
        let records: Vec<StoredRecord> = seen.by_ref().take(max_records).cloned().collect();
        let next = match (records.last(), seen.next()) {
            (Some(last), Some(_)) => last.offset + 1,
            _ => end.max(from),
        };
        Ok(ReadBatch { records, next })
    }

    /// All kept records from an offset on, visible or not.
    pub fn from(&self, from: u64) -> impl Iterator<Item = &StoredRecord> {
        let from = from.max(self.first);
        let index = self.records.partition_point(|stored| stored.offset < from);
        self.records[index..].iter()
    }

    pub fn bounds(&self) -> Bounds {
        Bounds { first: self.first, next: self.next }
    }

    pub fn offset_at(&self, time: Timestamp) -> u64 {
        let found = self.from(self.first).find(|stored| stored.record.timestamp >= time);
        found.map_or(self.next, |stored| stored.offset)
    }

    pub fn trim(&mut self, before: u64) {
        self.first = self.first.max(before);
    }
}
