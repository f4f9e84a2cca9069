//! Topics as engines store them: a number that is never reused, a name, a number of partitions, a retention.

use std::fmt;
use std::time::Duration;

/// A topic's number. A topic that is deleted and created again gets a new number, so that it inherits nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct TopicNumber(pub u32);

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

/// The bounds up to which records are retained. `None`: no bound. The system's state topics have no bounds; their owners trim them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    pub time: Option<Duration>,
    /// Bytes per partition, not per topic, as Kafka's `retention.bytes`.
    pub bytes: Option<u64>,
}

/// The bounds of a retention that a change sets. The engine leaves the others unchanged, even if they differ from the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamedBounds {
    pub time: bool,
    pub bytes: bool,
}

impl NamedBounds {
    pub const NONE: Self = Self { time: false, bytes: false };
    pub const ALL: Self = Self { time: true, bytes: true };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingTopic {
    pub name: String,
    pub partitions: u32,
    pub retention: Retention,
}

/// The properties of a topic that an engine creates or alters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    pub number: TopicNumber,
    pub name: String,
    pub partitions: u32,
    pub retention: Retention,
    /// Copies of each partition. The embedded log has one. `None`: Kafka uses its broker's default.
    pub replicas: Option<u32>,
    /// The number of copies that must contain a record before it is acknowledged.
    pub min_insync: Option<u32>,
}
