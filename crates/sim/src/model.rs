//! The log as it should be: lists in memory, and what is not certain said as such.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use whimbrel_storage::{PartitionKey, Record};

use crate::rng::Rng;

/// One record of the model. Its bytes follow from its number, which no other record has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub number: u64,
    pub timestamp: i64,
    /// The group commit it came with.
    pub frame: u64,
}

/// Sizes that records have; most are small.
const VALUE_BYTES: [u64; 8] = [0, 8, 30, 30, 100, 100, 300, 2500];

impl Entry {
    pub fn record(&self) -> Record {
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
        Record { timestamp: self.timestamp, key, headers, value: value.into() }
    }

    pub fn encode(&self, buffer: &mut Vec<u8>) {
        let record = self.record();
        Record::encode(buffer, record.timestamp, record.key.as_deref(), &record.headers, &record.value);
    }
}

#[derive(Debug, Clone, Default)]
pub struct PartitionModel {
    /// By offset, from the very first.
    pub entries: Vec<Entry>,
    /// The first kept offset.
    pub first: u64,
    /// As the last checkpoint had it: a crash may bring it back to here.
    pub first_durable: u64,
    /// Offsets whose frame the journal lost to flipped bits.
    pub holes: BTreeSet<u64>,
    /// It came from a call that failed: while it is empty, it may go as it came.
    pub is_adopted: bool,
}

impl PartitionModel {
    pub fn next(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The first record at or after a time, by looking at all of them.
    pub fn offset_at(&self, time: i64) -> u64 {
        let from = self.first as usize;
        let found = self.entries[from..].iter().position(|entry| entry.timestamp >= time);
        found.map_or(self.next(), |at| (from + at) as u64)
    }
}

/// What is known of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicState {
    Alive,
    /// A call that made it larger failed or was cut off: partitions up to this many may be there, empty.
    Growing {
        upto: u32,
    },
    /// A call that deleted it failed or was cut off.
    Deleting,
    Gone,
}

/// The records of one group commit, by partition with their first offsets.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    pub parts: Vec<(PartitionKey, u64, Vec<Entry>)>,
}

#[derive(Debug, Default)]
pub struct Model {
    pub partitions: BTreeMap<PartitionKey, PartitionModel>,
    pub topics: BTreeMap<u32, TopicState>,
    /// A group commit of which nobody knows whether it was written.
    pub limbo: Option<Frame>,
    /// The token of each name's newest fence.
    pub fences: BTreeMap<String, u64>,
    pub newest_token: u64,
    /// No more acknowledgements until the log was opened again.
    pub poisoned: bool,
    /// An idle frame followed the last group commit that was acknowledged.
    pub last_frame_marked: bool,
    pub frames: u64,
}

impl Model {
    pub fn add(&mut self, frame: &Frame) {
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
