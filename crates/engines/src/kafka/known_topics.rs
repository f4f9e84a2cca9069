//! The topics of Kafka that this process uses, by their numbers. Kafka has names only: callers of `create` give the numbers, and the
//! mapping lasts as long as the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;
use whimbrel_model::ports::LogError;
use whimbrel_model::{PartitionId, TopicNumber};

use super::missing_partitions::MissingPartitions;

/// The interval at which a topic may be looked up again because a request named a partition that it does not seem to have.
const GROWTH_LOOKUP_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of one batch with several records.
const BATCH_BYTES_MAX: usize = 1_000_000;

#[derive(Debug)]
pub(super) struct KnownTopic {
    pub number: TopicNumber,
    name: TopicName,
    /// The largest record that its `max.message.bytes` allows.
    pub record_bytes_max: usize,
    partitions: AtomicU32,
    /// The topic's `min.insync.replicas`; 0 until it is read.
    min_insync: AtomicU32,
    looked_up_at: Mutex<Option<Instant>>,
    /// First kept offsets of the partitions that this process has trimmed.
    trims: Mutex<HashMap<u32, u64>>,
    pub missing: Arc<MissingPartitions>,
}

impl KnownTopic {
    pub fn new(number: TopicNumber, name: String, partitions: u32, record_bytes_max: usize) -> Self {
        let (name, partitions) = (TopicName(StrBytes::from_string(name)), AtomicU32::new(partitions));
        let (looked_up_at, trims, missing) = (Mutex::new(None), Mutex::default(), Arc::default());
        let min_insync = AtomicU32::new(0);
        Self { number, name, record_bytes_max, partitions, min_insync, looked_up_at, trims, missing }
    }

    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The name for a request; cloning it copies no text.
    pub fn wire_name(&self) -> TopicName {
        self.name.clone()
    }

    pub fn partitions(&self) -> u32 {
        self.partitions.load(Ordering::Acquire)
    }

    pub fn has(&self, index: u32) -> bool {
        index < self.partitions()
    }

    /// The bytes of one batch with several records. It stays below Kafka's default of `max.message.bytes`, which counts whole batches.
    pub fn batch_bytes_max(&self) -> usize {
        self.record_bytes_max.min(BATCH_BYTES_MAX)
    }

    /// The number of in-sync replicas that Kafka requires for a write; 0 if it is not known.
    pub fn min_insync(&self) -> u32 {
        self.min_insync.load(Ordering::Acquire)
    }

    pub fn learn_min_insync(&self, min_insync: u32) {
        self.min_insync.store(min_insync, Ordering::Release);
    }

    /// Records that this process has dropped the partition's records before an offset.
    pub fn trim(&self, index: u32, before: u64) {
        let mut trims = self.trims.lock().unwrap_or_else(PoisonError::into_inner);
        let first = trims.entry(index).or_default();
        *first = before.max(*first);
    }

    /// The first kept offset, if this process has trimmed the partition.
    pub fn trimmed(&self, index: u32) -> Option<u64> {
        self.trims.lock().unwrap_or_else(PoisonError::into_inner).get(&index).copied()
    }

    /// Records the number of partitions. Topics of Kafka only grow, so the largest number is the newest.
    pub fn learn_partitions(&self, partitions: u32) {
        self.partitions.fetch_max(partitions, Ordering::AcqRel);
    }

    /// Whether it is time to ask Kafka if the topic has grown. Requests with a wrong index must not cause a metadata request each.
    pub fn may_look_up(&self, now: Instant) -> bool {
        let mut last = self.looked_up_at.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.duration_since(last) >= GROWTH_LOOKUP_INTERVAL);
        if due {
            *last = Some(now);
        }
        due
    }
}

pub(super) type TopicPartition = (Arc<KnownTopic>, PartitionId);

#[derive(Debug, Default)]
pub(super) struct KnownTopics(RwLock<HashMap<TopicNumber, Arc<KnownTopic>>>);

impl KnownTopics {
    pub fn get(&self, number: TopicNumber) -> Option<Arc<KnownTopic>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    pub fn of(&self, partition: PartitionId) -> Result<Arc<KnownTopic>, LogError> {
        let topic = self.get(partition.topic).filter(|topic| topic.has(partition.index));
        topic.ok_or(LogError::UnknownPartition(partition))
    }

    /// Adds a topic. A name belongs to one number at a time: a topic that was created again under an old name replaces the old number.
    /// Returns the numbers that are no longer valid.
    pub fn put(&self, topic: KnownTopic) -> Vec<TopicNumber> {
        let mut topics = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let namesakes = topics.values().filter(|other| other.number != topic.number && other.name == topic.name);
        let displaced: Vec<TopicNumber> = namesakes.map(|other| other.number).collect();
        displaced.iter().for_each(|number| drop(topics.remove(number)));
        // The metadata may come from a broker that has not learned of a growth yet.
        if let Some(known) = topics.get(&topic.number).filter(|known| known.name == topic.name) {
            topic.learn_partitions(known.partitions.load(Ordering::Acquire));
            topic.learn_min_insync(known.min_insync());
        }
        topics.insert(topic.number, Arc::new(topic));
        displaced
    }

    /// Every partition of every known topic.
    pub fn partitions(&self) -> Vec<PartitionId> {
        let topics = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let each = |topic: &Arc<KnownTopic>| {
            let number = topic.number;
            (0..topic.partitions.load(Ordering::Acquire)).map(move |index| PartitionId::new(number, index))
        };
        topics.values().flat_map(each).collect()
    }

    pub fn remove(&self, number: TopicNumber) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(number: u32, name: &str) -> KnownTopic {
        KnownTopic::new(TopicNumber(number), name.to_owned(), 2, 1000)
    }

    #[test]
    fn a_partition_is_known_below_the_topics_count() {
        let known = KnownTopics::default();
        known.put(topic(1, "orders"));
        let partition = |index| PartitionId::new(TopicNumber(1), index);
        assert!(known.of(partition(1)).is_ok());
        assert_eq!(known.of(partition(2)).unwrap_err(), LogError::UnknownPartition(partition(2)));
        known.get(TopicNumber(1)).unwrap().learn_partitions(3);
        assert!(known.of(partition(2)).is_ok());
        known.get(TopicNumber(1)).unwrap().learn_partitions(1);
        assert!(known.of(partition(2)).is_ok(), "topics only grow");
    }

    #[test]
    fn a_name_leads_from_its_newest_number_only() {
        let known = KnownTopics::default();
        assert_eq!(known.put(topic(1, "orders")), []);
        assert_eq!(known.put(topic(2, "orders")), [TopicNumber(1)]);
        assert_eq!(known.put(topic(2, "orders")), []);
        assert!(known.get(TopicNumber(1)).is_none());
        assert!(known.get(TopicNumber(2)).is_some());
    }

    #[test]
    fn growth_is_looked_up_no_more_than_once_in_a_while() {
        let (topic, now) = (topic(1, "orders"), Instant::now());
        assert!(topic.may_look_up(now));
        assert!(!topic.may_look_up(now + GROWTH_LOOKUP_INTERVAL / 2));
        assert!(topic.may_look_up(now + GROWTH_LOOKUP_INTERVAL));
    }
}
