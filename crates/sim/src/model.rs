//! The expected log: lists in memory, and explicit states for everything uncertain.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use whimbrel_storage::{LogRecord, PartitionKey};

use crate::rng::Rng;

/// One record of the model. Its unique number determines its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelRecord {
    pub number: u64,
    pub timestamp: i64,
    /// The group commit of the record.
    pub frame: u64,
}

/// The sizes of record values. Most are small.
const VALUE_BYTES: [u64; 8] = [0, 8, 30, 30, 100, 100, 300, 2500];

impl ModelRecord {
    pub fn record(&self) -> LogRecord {
        let mut rng = Rng::new(self.number.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let mut bytes = |bound: u64| -> Vec<u8> {
            let len = rng.below(bound + 1) as usize;
            let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| rng.draw().to_le_bytes()).collect();
            bytes.truncate(len);
            bytes
        };
        let key = (!self.number.is_multiple_of(3)).then(|| Bytes::from(bytes(20)));
        let headers = Bytes::from(bytes(if self.number.is_multiple_of(2) { 0 } else { 30 }));
        let mut value = self.number.to_le_bytes().to_vec();
        value.extend(bytes(VALUE_BYTES[self.number as usize % VALUE_BYTES.len()]));
        LogRecord { timestamp: self.timestamp, key, headers, value: value.into() }
    }

    pub fn encode(&self, buffer: &mut Vec<u8>) {
        let record = self.record();
        LogRecord::encode(buffer, record.timestamp, record.key.as_deref(), &record.headers, &record.value);
    }
}

#[derive(Debug, Clone, Default)]
pub struct PartitionModel {
    /// All entries by offset, from offset 0 on.
    pub entries: Vec<ModelRecord>,
    /// The first kept offset.
    pub first: u64,
    /// The first kept offset in the last checkpoint. A crash may return to it.
    pub first_durable: u64,
    /// The offsets whose frames the journal lost to flipped bits.
    pub holes: BTreeSet<u64>,
    /// A failed call may have created it. While it is empty, it may disappear again.
    pub is_adopted: bool,
}

impl PartitionModel {
    pub fn next(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The first record at or after a time, by a scan of all records.
    pub fn offset_at(&self, time: i64) -> u64 {
        let from = self.first as usize;
        let found = self.entries[from..].iter().position(|entry| entry.timestamp >= time);
        found.map_or(self.next(), |at| (from + at) as u64)
    }
}

/// The state of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicState {
    Alive,
    /// A call to grow it failed or was interrupted: empty partitions up to this number may exist.
    Growing {
        upto: u32,
    },
    /// A call to delete it failed or was interrupted.
    Deleting,
    Gone,
}

/// The records of one group commit, by partition, with their first offsets.
#[derive(Debug, Clone, Default)]
pub struct GroupRecords {
    pub parts: Vec<(PartitionKey, u64, Vec<ModelRecord>)>,
}

#[derive(Debug, Default)]
pub struct Model {
    pub partitions: BTreeMap<PartitionKey, PartitionModel>,
    pub topics: BTreeMap<u32, TopicState>,
    /// A group commit with an unknown outcome.
    pub limbo: Option<GroupRecords>,
    /// The token of the newest fence of each name.
    pub fences: BTreeMap<String, u64>,
    pub newest_token: u64,
    /// The log acknowledges nothing until it is opened again.
    pub poisoned: bool,
    /// An idle frame followed the last acknowledged group commit.
    pub last_frame_marked: bool,
    pub frames: u64,
}

impl Model {
    pub fn add(&mut self, frame: &GroupRecords) {
        for (key, base, entries) in &frame.parts {
            let Some(partition) = self.partitions.get_mut(key) else { continue };
            debug_assert_eq!(partition.next(), *base);
            partition.entries.extend(entries);
        }
    }

    pub fn alive(&self) -> Vec<PartitionKey> {
        let is_alive = |key: &&PartitionKey| {
            matches!(self.topics.get(&key.topic), Some(TopicState::Alive | TopicState::Growing { .. }))
        };
        self.partitions.keys().filter(is_alive).copied().collect()
    }

    pub fn partitions_of(&self, topic: u32) -> u32 {
        self.partitions.keys().filter(|key| key.topic == topic).count() as u32
    }
}
