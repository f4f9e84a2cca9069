//! One topic as the door sees it: an immutable picture of the catalogue's entry, and what runs along with the topic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use whimbrel_model::partitioner::partition_of;
use whimbrel_model::push::PUSH_TOPIC;
use whimbrel_model::{HOLDS_TOPIC, PartitionId, TopicNumber};

use super::folding::Folding;
use super::gate::{Gate, Placement};
use super::growth::Growth;
use super::rates::Meter;
use super::stored::StoredTopic;
use crate::topic_metrics::TopicMetrics;

/// A topic. Replaced by a new one when the catalogue's entry changes; whoever holds the old one sees the old picture.
#[derive(Debug)]
pub struct Topic {
    pub name: Arc<str>,
    pub stored: StoredTopic,
    /// The version of the catalogue's entry.
    pub version: u64,
    /// The gate of publishes by key. Shared with the next picture unless the partitions changed.
    pub(crate) mapping_gate: Arc<Gate>,
    /// The gate of all other publishes. Lives as long as the topic does.
    pub(crate) topic_gate: Arc<Gate>,
    /// Lives as long as the topic does, over all its pictures.
    pub running: Arc<Running>,
}

/// What counts and turns while messages pass.
pub struct Running {
    next_partition: AtomicU32,
    /// For topics whose partitions are folded into a state.
    pub folding: Folding,
    pub published: Meter,
    pub figures: TopicMetrics,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

impl Topic {
    pub fn new(name: &str, stored: StoredTopic, version: u64) -> Self {
        let folding =
            if matches!(name, HOLDS_TOPIC | PUSH_TOPIC) { Folding::new(stored.partitions) } else { Folding::default() };
        let running = Running {
            next_partition: AtomicU32::new(0),
            folding,
            published: Meter::default(),
            figures: TopicMetrics::of(name),
        };
        Self {
            name: name.into(),
            stored,
            version,
            mapping_gate: Arc::default(),
            topic_gate: Arc::default(),
            running: Arc::new(running),
        }
    }

    /// The next picture of the same topic.
    pub fn succeeded_by(&self, stored: StoredTopic, version: u64) -> Self {
        let is_same_mapping = stored.partitions == self.stored.partitions;
        Self {
            name: Arc::clone(&self.name),
            stored,
            version,
            mapping_gate: if is_same_mapping { Arc::clone(&self.mapping_gate) } else { Arc::default() },
            topic_gate: Arc::clone(&self.topic_gate),
            running: Arc::clone(&self.running),
        }
    }

    pub(crate) fn gate(&self, placement: Placement) -> &Arc<Gate> {
        match placement {
            Placement::ByKey => &self.mapping_gate,
            Placement::Free => &self.topic_gate,
        }
    }

    /// Nothing is published to this topic under this picture any more.
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

    /// Where a message goes: by its key, or in turn where it has none.
    pub fn place(&self, key: Option<&[u8]>) -> PartitionId {
        let index = match key {
            Some(key) => partition_of(key, self.stored.partitions),
            None => self.running.next_partition.fetch_add(1, Ordering::Relaxed) % self.stored.partitions,
        };
        self.partition(index)
    }

    /// Every partition that a key can have been mapped to since the topic was made, without repeats.
    pub fn places_ever(&self, key: &[u8]) -> Vec<u32> {
        let counts = self.stored.growths.iter().map(|growth| growth.from).chain([self.stored.partitions]);
        let mut places: Vec<u32> = counts.filter(|count| *count > 0).map(|count| partition_of(key, count)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Whether a record of the key at this place is in the key's order: between the barriers around the record, the key mapped to this
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

    /// A topic that is in no catalogue, for tests of this and other crates.
    #[doc(hidden)]
    pub fn for_tests(name: &str, partitions: u32) -> Arc<Self> {
        let stored = StoredTopic {
            number: TopicNumber(1),
            partitions,
            retention_ms: None,
            retention_bytes: None,
            replicas: None,
            min_insync: None,
            created_at_ms: 0,
            adopted: false,
            deleting: false,
            identity: None,
            growths: Vec::new(),
            growing: None,
            workers: None,
        };
        Arc::new(Self::new(name, stored, 1))
    }
}

/// Whether a topic is the system's own. Such a topic never grows: the owners of its partitions depend on their number.
pub fn is_system_name(name: &str) -> bool {
    name.starts_with('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_without_a_key_take_turns_and_keys_stay() {
        let topic = Topic::for_tests("orders", 3);
        let turns: Vec<u32> = (0..6).map(|_| topic.place(None).index).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
        assert_eq!(topic.place(Some(b"abc")), topic.place(Some(b"abc")));
    }

    #[test]
    fn a_key_is_looked_for_wherever_it_ever_was() {
        let mut topic = Arc::into_inner(Topic::for_tests("orders", 64)).unwrap();
        topic.stored.growths.push(Growth { at_ms: 0, from: 1, to: 64, ends: vec![9] });
        let now = topic.place(Some(b"abc")).index;
        assert_ne!(now, 0, "the key was chosen to move");
        assert_eq!(topic.places_ever(b"abc"), [0, now]);
    }

    #[test]
    fn a_record_by_an_old_mapping_is_in_order_before_the_barrier_only() {
        let mut topic = Arc::into_inner(Topic::for_tests("orders", 64)).unwrap();
        topic.stored.growths.push(Growth { at_ms: 0, from: 1, to: 64, ends: vec![9] });
        let now = topic.place(Some(b"abc")).index;
        assert_ne!(now, 0, "the key was chosen to move");
        assert!(topic.is_in_order(b"abc", 0, 8) && topic.is_in_order(b"abc", now, 0));
        assert!(!topic.is_in_order(b"abc", 0, 9));
    }
}
