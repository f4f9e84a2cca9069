//! Outgoing records: chunks as callers append them, and batches as they are sent to brokers.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use whimbrel_model::ports::LogError;
use whimbrel_model::{PartitionId, Record};

use super::call::AppendCall;
use super::{AppendShared, REQUEST_GRACE, UNKNOWN_MAX};
use crate::kafka::client::batch::{self, BatchIdentity};
use crate::kafka::known_topics::KnownTopic;

/// Records of one call for one partition.
pub(super) struct RecordChunk {
    pub(super) call: Arc<AppendCall>,
    pub(super) indexes: Vec<u32>,
    pub(super) records: Vec<Record>,
    pub(super) bytes: usize,
    pub(super) put_at: Instant,
    pub(super) deadline: Instant,
}

impl RecordChunk {
    pub(super) fn new(call: Arc<AppendCall>, put_at: Instant, deadline: Instant) -> Self {
        Self { call, indexes: Vec::new(), records: Vec::new(), bytes: 0, put_at, deadline }
    }

    pub(super) fn push(&mut self, index: u32, record: Record) {
        self.bytes += record.size();
        self.indexes.push(index);
        self.records.push(record);
    }

    /// Removes the first records: as many as fit into `room` bytes of a batch, and at least one if `must_take`.
    pub(super) fn split(&mut self, room: usize, must_take: bool) -> Option<Self> {
        let mut used = 0;
        let fits = |record: &&Record| {
            used += batch::encoded_bytes_max(record);
            used <= room
        };
        let count = self.records.iter().take_while(fits).count().max(usize::from(must_take));
        if count == 0 {
            return None;
        }
        let mut first = Self::new(self.call.clone(), self.put_at, self.deadline);
        let (indexes, records) = (self.indexes.split_off(count), self.records.split_off(count));
        first.indexes = std::mem::replace(&mut self.indexes, indexes);
        first.records = std::mem::replace(&mut self.records, records);
        first.bytes = first.records.iter().map(Record::size).sum();
        self.bytes -= first.bytes;
        Some(first)
    }
}

/// A batch that is sent until it is acknowledged, fails or expires.
pub(super) struct SendBatch {
    pub(super) topic: Arc<KnownTopic>,
    pub(super) partition: PartitionId,
    pub(super) chunks: Vec<RecordChunk>,
    pub(super) count: usize,
    pub(super) bytes: usize,
    /// Whether a broker may have written it in an attempt that was not answered.
    pub(super) may_be_written: bool,
    /// Whether it was sent before.
    pub(super) is_repeat: bool,
    pub(super) unknown_since: Option<Instant>,
    pub(super) encoded: Option<(BatchIdentity, Bytes)>,
}

impl SendBatch {
    pub(super) fn new(topic: Arc<KnownTopic>, partition: PartitionId, chunks: Vec<RecordChunk>) -> Self {
        let count = chunks.iter().map(|chunk| chunk.records.len()).sum();
        let bytes = chunks.iter().map(|chunk| chunk.bytes).sum();
        Self {
            topic,
            partition,
            chunks,
            count,
            bytes,
            may_be_written: false,
            is_repeat: false,
            unknown_since: None,
            encoded: None,
        }
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> + Clone {
        self.chunks.iter().flat_map(|chunk| &chunk.records)
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.chunks.iter().map(|chunk| chunk.deadline).min()
    }

    pub(super) fn last_deadline(&self) -> Option<Instant> {
        self.chunks.iter().map(|chunk| chunk.deadline).max()
    }

    /// The time of the last attempt: before the first deadline of the batch's records, or, if a broker may have written the batch, before
    /// the last one.
    pub(super) fn send_by(&self) -> Option<Instant> {
        if self.may_be_written { self.last_deadline() } else { self.first_deadline() }
    }

    /// Fails the records whose deadline is not after `until`, as not written.
    pub(super) fn expire_records(&mut self, until: Instant, why: &str, shared: &AppendShared) {
        let is_over = |chunk: &mut RecordChunk| chunk.deadline <= until;
        let over: Vec<RecordChunk> = self.chunks.extract_if(.., is_over).collect();
        if over.is_empty() {
            return;
        }
        let over = Self::new(self.topic.clone(), self.partition, over);
        self.count -= over.count;
        self.bytes -= over.bytes;
        self.encoded = None;
        over.expired(why, shared);
    }

    pub(super) fn written_at(self, base: u64, shared: &AppendShared) {
        let mut next = base;
        for chunk in &self.chunks {
            chunk.call.settle_from(&chunk.indexes, next);
            next += chunk.indexes.len() as u64;
        }
        self.release(shared);
    }

    pub(super) fn failed(self, error: &LogError, shared: &AppendShared) {
        self.chunks.iter().for_each(|chunk| chunk.call.settle(&chunk.indexes, Err(error.clone())));
        self.release(shared);
    }

    pub(super) fn release(&self, shared: &AppendShared) {
        shared.release(self.count, self.bytes);
    }

    /// Fails a batch that is given up: as unknown if it may have been written.
    pub(super) fn expired(self, why: &str, shared: &AppendShared) {
        let error = if self.may_be_written {
            LogError::Unknown(format!("Kafka did not acknowledge the record in time; it may have been written: {why}"))
        } else {
            LogError::Unavailable(format!("the record was not written in time: {why}"))
        };
        self.failed(&error, shared);
    }

    /// Removes the records at these positions of the batch and fails them with `error`.
    pub(super) fn refuse_some(&mut self, places: &[usize], error: &LogError, shared: &AppendShared) {
        let mut at = 0;
        for chunk in &mut self.chunks {
            let records = std::mem::take(&mut chunk.records);
            let indexes = std::mem::take(&mut chunk.indexes);
            for (index, record) in indexes.into_iter().zip(records) {
                if places.contains(&at) {
                    chunk.call.settle(&[index], Err(error.clone()));
                    chunk.bytes -= record.size();
                    self.bytes -= record.size();
                    self.count -= 1;
                    shared.release(1, record.size());
                } else {
                    chunk.indexes.push(index);
                    chunk.records.push(record);
                }
                at += 1;
            }
        }
        self.encoded = None;
    }

    /// Splits off the second half of the records.
    pub(super) fn halve(&mut self) -> Self {
        let (mut left, mut second) = (self.count / 2, Vec::new());
        let mut first = Vec::new();
        for mut chunk in std::mem::take(&mut self.chunks) {
            if left == 0 {
                second.push(chunk);
            } else if chunk.records.len() <= left {
                left -= chunk.records.len();
                first.push(chunk);
            } else {
                let mut rest = RecordChunk::new(chunk.call.clone(), chunk.put_at, chunk.deadline);
                rest.indexes = chunk.indexes.split_off(left);
                rest.records = chunk.records.split_off(left);
                rest.bytes = rest.records.iter().map(Record::size).sum();
                chunk.bytes -= rest.bytes;
                left = 0;
                first.push(chunk);
                second.push(rest);
            }
        }
        let second = Self::new(self.topic.clone(), self.partition, second);
        *self = Self::new(self.topic.clone(), self.partition, first);
        second
    }
}

/// The time by which a request with these batches must have ended: the last deadline of their records, but no later than `REQUEST_GRACE`
/// after the first one.
pub(super) fn answer_by(batches: &[SendBatch]) -> Option<Instant> {
    let first = batches.iter().filter_map(SendBatch::first_deadline).min()?;
    let last = batches.iter().filter_map(SendBatch::last_deadline).max()?;
    Some(last.min(first + REQUEST_GRACE))
}

impl SendBatch {
    pub(super) fn is_unknown_for_long(&self) -> bool {
        self.unknown_since.is_some_and(|since| since.elapsed() >= UNKNOWN_MAX)
    }
}
