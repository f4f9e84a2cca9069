//! A topic: an immutable copy of the catalogue's entry, with the state that outlives entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use whimbrel_model::partitioner::partition_of;
use whimbrel_model::push::PUSH_TOPIC;
use whimbrel_model::{HOLDS_TOPIC, PartitionId, Timestamp, TopicNumber};

use super::fold_backlog::FoldBacklog;
use super::gate::{Gate, Placement};
use super::growth::Growth;
use super::rate_meter::RateMeter;
use super::stored::StoredTopic;
use crate::topic_metrics::TopicMetrics;

/// A topic. A new value replaces it when the catalogue's entry changes; holders of the old value keep the old entry.
#[derive(Debug)]
pub struct Topic {
    pub name: Arc<str>,
    pub stored: StoredTopic,
    pub version: u64,
    /// The gate of publishes by key. Shared with the next value unless the partitions changed.
    pub(crate) mapping_gate: Arc<Gate>,
    /// The gate of all other publishes. Shared by all values of the topic.
    pub(crate) topic_gate: Arc<Gate>,
    /// Shared by all values of the topic.
    pub counters: Arc<TopicCounters>,
}

pub struct TopicCounters {
    next_partition: AtomicU32,
    /// The backlog of owners that fold the topic's partitions, for system topics with owners.
    pub fold_backlog: FoldBacklog,
    pub published: RateMeter,
    pub metrics: TopicMetrics,
}

impl std::fmt::Debug for TopicCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TopicCounters")
    }
}

impl Topic {
    pub fn new(name: &str, stored: StoredTopic, version: u64) -> Self {
        let fold_backlog = if matches!(name, HOLDS_TOPIC | PUSH_TOPIC) {
            FoldBacklog::new(stored.partitions)
        } else {
            FoldBacklog::default()
        };
        let counters = TopicCounters {
            next_partition: AtomicU32::new(0),
            fold_backlog,
            published: RateMeter::default(),
            metrics: TopicMetrics::of(name),
        };
        Self {
            name: name.into(),
            stored,
            version,
            mapping_gate: Arc::default(),
            topic_gate: Arc::default(),
            counters: Arc::new(counters),
        }
    }

    pub fn succeeded_by(&self, stored: StoredTopic, version: u64) -> Self {
        let is_same_mapping = stored.partitions == self.stored.partitions;
        Self {
            name: Arc::clone(&self.name),
            stored,
            version,
            mapping_gate: if is_same_mapping { Arc::clone(&self.mapping_gate) } else { Arc::default() },
            topic_gate: Arc::clone(&self.topic_gate),
            counters: Arc::clone(&self.counters),
        }
    }

    pub(crate) fn gate(&self, placement: Placement) -> &Arc<Gate> {
        match placement {
            Placement::ByKey => &self.mapping_gate,
            Placement::Free => &self.topic_gate,
        }
    }

    /// Stops all publishes by this value of the topic.
    pub fn retire(&self) {
        self.mapping_gate.retire();
        self.topic_gate.retire();
    }

    pub fn number(&self) -> TopicNumber {
        self.stored.number
    }

    pub fn partitions(&self) -> u32 {
        self.stored.partitions
    }

    pub fn partition(&self, index: u32) -> PartitionId {
        PartitionId::new(self.stored.number, index)
    }

    pub fn all_partitions(&self) -> impl Iterator<Item = PartitionId> + use<> {
        let number = self.stored.number;
        (0..self.stored.partitions).map(move |index| PartitionId::new(number, index))
    }

    /// The partition of a message: by its key, or in rotation without a key.
    pub fn place(&self, key: Option<&[u8]>) -> PartitionId {
        let index = match key {
            Some(key) => partition_of(key, self.stored.partitions),
            None => self.counters.next_partition.fetch_add(1, Ordering::Relaxed) % self.stored.partitions,
        };
        self.partition(index)
    }

    /// Every partition to which a key can have been mapped since the topic was created, without repeats.
    pub fn places_ever(&self, key: &[u8]) -> Vec<u32> {
        let counts = self.stored.growths.iter().map(|growth| growth.from).chain([self.stored.partitions]);
        let mut places: Vec<u32> = counts.filter(|count| *count > 0).map(|count| partition_of(key, count)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Whether a record of the key at this offset is in the key's order: between the barriers around the record, the key mapped to this
    /// partition. A node that lost its session may have appended a record behind a barrier, under the old mapping.
    pub fn is_in_order(&self, key: &[u8], partition: u32, offset: u64) -> bool {
        let growths = &self.stored.growths;
        let is_behind = |growth: &&Growth| growth.ends.get(partition as usize).is_none_or(|end| offset >= *end);
        let passed = growths.iter().filter(is_behind).count();
        let count = growths.get(passed).map_or(self.stored.partitions, |next| next.from);
        partition_of(key, count) == partition
    }

    pub fn is_system(&self) -> bool {
        is_system_name(&self.name)
    }

    /// A topic without a catalogue entry, for tests of this and other crates.
    #[doc(hidden)]
    pub fn for_tests(name: &str, partitions: u32) -> Arc<Self> {
        Arc::new(Self::new(name, StoredTopic::new(TopicNumber(1), partitions, Timestamp::from_millis(0)), 1))
    }
}

/// Whether a topic is a system topic. Such a topic never grows: the owners of its partitions depend on their number.
pub fn is_system_name(name: &str) -> bool {
    name.starts_with('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_without_a_key_rotate_and_keys_keep_their_partition() {
        let topic = Topic::for_tests("orders", 3);
        let turns: Vec<u32> = (0..6).map(|_| topic.place(None).index).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
        assert_eq!(topic.place(Some(b"abc")), topic.place(Some(b"abc")));
    }

    #[test]
    fn places_ever_has_every_partition_that_a_key_was_mapped_to() {
        let mut topic = Arc::into_inner(Topic::for_tests("orders", 64)).unwrap();
        topic.stored.growths.push(Growth { at_ms: 0, from: 1, to: 64, ends: vec![9] });
        let now = topic.place(Some(b"abc")).index;
        assert_ne!(now, 0, "the key was chosen to move");
        assert_eq!(topic.places_ever(b"abc"), [0, now]);
    }

    #[test]
    fn a_record_by_an_old_mapping_is_in_order_only_before_the_barrier() {
        let mut topic = Arc::into_inner(Topic::for_tests("orders", 64)).unwrap();
        topic.stored.growths.push(Growth { at_ms: 0, from: 1, to: 64, ends: vec![9] });
        let now = topic.place(Some(b"abc")).index;
        assert_ne!(now, 0, "the key was chosen to move");
        assert!(topic.is_in_order(b"abc", 0, 8) && topic.is_in_order(b"abc", now, 0));
        assert!(!topic.is_in_order(b"abc", 0, 9));
    }
}
