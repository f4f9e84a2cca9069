//! Topics as engines see them: a number that is never used twice, a name, a count of partitions, a retention.

use std::fmt;
use std::time::Duration;

/// A topic's number. A topic made again under an old name has a new one, so that it inherits nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct TopicNumber(pub u32);

/// One partition of one topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    pub topic: TopicNumber,
    pub index: u32,
}

impl PartitionId {
    pub const fn new(topic: TopicNumber, index: u32) -> Self {
        Self { topic, index }
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic.0, self.index)
    }
}

/// How long records are kept. `None` is without that bound: the system's state topics have neither and are trimmed by their owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    pub time: Option<Duration>,
    /// Of the whole topic's partitions each, not together: as Kafka's `retention.bytes`.
    pub bytes: Option<u64>,
}

/// The bounds of a retention that a change names. The engine keeps the others as they are, also where they differ from the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamedBounds {
    pub time: bool,
    pub bytes: bool,
}

impl NamedBounds {
    pub const NONE: Self = Self { time: false, bytes: false };
    pub const ALL: Self = Self { time: true, bytes: true };
}

/// A topic that exists in the engine under its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTopic {
    pub name: String,
    pub partitions: u32,
    pub retention: Retention,
}

/// What an engine is told about a topic when it is made or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    pub number: TopicNumber,
    pub name: String,
    pub partitions: u32,
    pub retention: Retention,
    /// Copies of each partition. The embedded log has one; Kafka takes its broker's default where this is `None`.
    pub replicas: Option<u32>,
    /// How many copies must have a record before it is acknowledged.
    pub min_insync: Option<u32>,
}
