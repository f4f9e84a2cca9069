//! A simulated log: one topic that grows and is trimmed, the subscription's retry topic and its dead letters; and the holds that bring
//! retries into the retry topic.

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_catalogue::topics::Growth;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::ports::{LogError, ReadBatch};
use whimbrel_model::{Hold, HoldId, PartitionId, Record, StoredRecord, Timestamp, TopicNumber};

pub const TOPIC: TopicNumber = TopicNumber(1);
pub const RETRIES: PartitionId = PartitionId { topic: TopicNumber(2), index: 0 };
pub const DEAD: PartitionId = PartitionId { topic: TopicNumber(3), index: 0 };

#[derive(Debug, Default)]
struct Partition {
    records: Vec<StoredRecord>,
    first: u64,
    next: u64,
}

#[derive(Debug)]
pub struct SimLog {
    partitions: BTreeMap<PartitionId, Partition>,
    /// Partitions of the topic.
    pub count: u32,
    pub growths: Vec<Growth>,
    /// Records of one read at most.
    pub page: usize,
}

impl SimLog {
    pub fn new(count: u32) -> Self {
        Self { partitions: BTreeMap::new(), count, growths: Vec::new(), page: 1000 }
    }

    /// The topic's partitions.
    pub fn ids(&self) -> impl Iterator<Item = PartitionId> + use<> {
        (0..self.count).map(|index| PartitionId::new(TOPIC, index))
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

    /// An offset without a record, as a transaction leaves it.
    pub fn skip_one(&mut self, id: PartitionId) {
        self.partitions.entry(id).or_default().next += 1;
    }

    pub fn end(&self, id: PartitionId) -> u64 {
        self.partitions.get(&id).map_or(0, |partition| partition.next)
    }

    pub fn first(&self, id: PartitionId) -> u64 {
        self.partitions.get(&id).map_or(0, |partition| partition.first)
    }

    /// Everything that was ever written there.
    pub fn records(&self, id: PartitionId) -> &[StoredRecord] {
        self.partitions.get(&id).map_or(&[], |partition| &partition.records)
    }

    pub fn trim(&mut self, id: PartitionId, first: u64) {
        let partition = self.partitions.entry(id).or_default();
        partition.first = partition.first.max(first.min(partition.next));
    }

    /// The topic has so many partitions from here on.
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

/// Holds as a subscription sees them: each fires once into the retry topic, and one that was ever known is not held again.
#[derive(Debug, Default)]
pub struct SimHolds {
    due: BTreeSet<(Timestamp, HoldId)>,
    known: BTreeMap<HoldId, Hold>,
}

impl SimHolds {
    /// False where it is known already.
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

    /// The next that is due fires into the log.
    pub fn fire(&mut self, now: Timestamp, log: &mut SimLog) -> bool {
        if self.next_time().is_none_or(|due| due > now) {
            return false;
        }
        let Some((_, id)) = self.due.pop_first() else { return false };
        log.append(RETRIES, self.known[&id].fire(now));
        true
    }
}
