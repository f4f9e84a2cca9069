//! A simulated log: one topic that grows and is trimmed, the retry topic and the dead letters of the subscription. Also the holds that fire
//! retries into the retry topic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use whimbrel_catalogue::topics::stored::StoredTopic;
use whimbrel_catalogue::topics::{Growth, Topic};
use whimbrel_dispatch::source_topics::SubscriptionTopics;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::ports::{LogError, ReadBatch};
use whimbrel_model::{HOLDS_TOPIC, Hold, HoldId, PartitionId, Record, StoredRecord, Timestamp, TopicNumber};

pub const TOPIC: TopicNumber = TopicNumber(1);
pub const RETRIES: PartitionId = PartitionId { topic: TopicNumber(2), index: 0 };
pub const DEAD: PartitionId = PartitionId { topic: TopicNumber(3), index: 0 };
pub const HOLDS: PartitionId = PartitionId { topic: TopicNumber(4), index: 0 };

#[derive(Debug, Default)]
struct SimPartition {
    records: Vec<StoredRecord>,
    first: u64,
    next: u64,
}

#[derive(Debug)]
pub struct SimTopic {
    partitions: BTreeMap<PartitionId, SimPartition>,
    /// The number of partitions of the topic.
    pub count: u32,
    pub growths: Vec<Growth>,
    /// Limit of the records of one read.
    pub page: usize,
}

impl SimTopic {
    pub fn new(count: u32) -> Self {
        Self { partitions: BTreeMap::new(), count, growths: Vec::new(), page: 1000 }
    }

    /// The partitions of the topic.
    pub fn ids(&self) -> impl Iterator<Item = PartitionId> + use<> {
        (0..self.count).map(|index| PartitionId::new(TOPIC, index))
    }

    /// The catalogue's entries of the topics, for a subscription to `orders`.
    pub fn view(&self) -> SubscriptionTopics {
        let topic = |name: &str, number, partitions, growths: &[Growth]| {
            let stored = StoredTopic::new(number, partitions, Timestamp::from_millis(0));
            let stored = StoredTopic { growths: growths.to_vec(), ..stored };
            Arc::new(Topic::new(name, stored, growths.len() as u64 + 1))
        };
        SubscriptionTopics {
            sources: vec![topic("orders", TOPIC, self.count, &self.growths)],
            retry: Some(topic("_retry.billing", RETRIES.topic, 1, &[])),
            dead: Some(topic("_dead.billing", DEAD.topic, 1, &[])),
            holds: Some(topic(HOLDS_TOPIC, HOLDS.topic, 1, &[])),
        }
    }

    pub fn place_of(&self, key: Option<&[u8]>, spread: u64) -> PartitionId {
        let index = key.map_or(spread as u32 % self.count, |key| partition_of(key, self.count));
        PartitionId::new(TOPIC, index)
    }

    pub fn append(&mut self, id: PartitionId, record: Record) -> u64 {
        let partition = self.partitions.entry(id).or_default();
        let offset = partition.next;
        partition.records.push(StoredRecord { offset, record });
        partition.next += 1;
        offset
    }

    /// Adds an offset without a record, like a transaction marker.
    pub fn skip_one(&mut self, id: PartitionId) {
        self.partitions.entry(id).or_default().next += 1;
    }

    pub fn end(&self, id: PartitionId) -> u64 {
        self.partitions.get(&id).map_or(0, |partition| partition.next)
    }

    pub fn first(&self, id: PartitionId) -> u64 {
        self.partitions.get(&id).map_or(0, |partition| partition.first)
    }

    /// All records ever written to a partition.
    pub fn records(&self, id: PartitionId) -> &[StoredRecord] {
        self.partitions.get(&id).map_or(&[], |partition| &partition.records)
    }

    pub fn trim(&mut self, id: PartitionId, first: u64) {
        let partition = self.partitions.entry(id).or_default();
        partition.first = partition.first.max(first.min(partition.next));
    }

    /// Grows the topic to this many partitions.
    pub fn grow(&mut self, to: u32) {
        let ends = self.ids().map(|id| self.end(id)).collect();
        self.growths.push(Growth { at_ms: 0, from: self.count, to, ends });
        self.count = to;
    }

    pub fn read(&self, id: PartitionId, from: u64, max_bytes: usize) -> Result<ReadBatch, LogError> {
        let Some(partition) = self.partitions.get(&id) else {
            return Ok(ReadBatch { records: Vec::new(), next: from });
        };
        if from < partition.first {
            return Err(LogError::Trimmed { asked: from, first: partition.first });
        }
        let begin = partition.records.partition_point(|stored| stored.offset < from);
        let (mut records, mut bytes) = (Vec::new(), 0);
        for stored in &partition.records[begin..] {
            bytes += stored.record.size();
            if records.len() == self.page || bytes > max_bytes && !records.is_empty() {
                let next = stored.offset;
                return Ok(ReadBatch { records, next });
            }
            records.push(stored.clone());
        }
        Ok(ReadBatch { records, next: partition.next })
    }
}

/// Holds as a subscription uses them: each fires once into the retry topic, and a known id is not held again.
#[derive(Debug, Default)]
pub struct SimHolds {
    due: BTreeSet<(Timestamp, HoldId)>,
    known: BTreeMap<HoldId, Hold>,
}

impl SimHolds {
    /// Returns false if the id is known already.
    pub fn accept(&mut self, hold: Hold) -> bool {
        if self.known.contains_key(&hold.id) {
            return false;
        }
        self.due.insert((hold.due, hold.id.clone()));
        self.known.insert(hold.id.clone(), hold);
        true
    }

    pub fn waiting(&self) -> usize {
        self.due.len()
    }

    pub fn next_time(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Fires the next due hold into the log. Returns false if none is due.
    pub fn fire(&mut self, now: Timestamp, log: &mut SimTopic) -> bool {
        if self.next_time().is_none_or(|due| due > now) {
            return false;
        }
        let Some((_, id)) = self.due.pop_first() else { return false };
        log.append(RETRIES, self.known[&id].fire(now));
        true
    }
}
