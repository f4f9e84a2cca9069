//! Growths of a topic: more partitions, and barriers for readers that keep the order of keys.
//!
//! The steps, each durable before the next:
//! 1. The topic's gate for publishes by key is closed, and the log has answered all publishes by the old mapping (see [`super::gate`]).
//!    If several nodes share the topics, that holds on every node (see [`super::agreement`]).
//! 2. The log has the new partitions, which no publish uses yet. A single process adds them before it closes the gate.
//! 3. The ends of the old partitions are read: these are the barriers. A moved key's messages are below them in its old partition, and
//!    its next ones will be in its new partition.
//! 4. One write of the catalogue's entry sets the new number of partitions and the barriers.
//! 5. The map is swapped, and publishes continue by the new mapping.
//!
//! If the outcome of the write in step 4 is unknown, the gate stays closed until the entry has been read again. After a crash between 2
//! and 4, the log has more partitions than the entry. A single process finishes the growth at its next start: no publishes run yet, so
//! the ends at that time are valid barriers. Several nodes finish it by agreement.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_model::PartitionId;
use whimbrel_model::TopicNumber;
use whimbrel_model::ports::{Log, LogError};

/// How long a growth waits for publishes in progress. The log answers well within this time.
pub(crate) const DRAIN_WITHIN: Duration = Duration::from_secs(30);
/// How long a publish waits for a growth before it fails with a retryable error.
pub(crate) const PUBLISH_WAITS_WITHIN: Duration = Duration::from_secs(5);
/// How long a publish by key waits for this node's session before it fails with a retryable error.
pub(crate) const SESSION_WAITS_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    pub at_ms: i64,
    pub from: u32,
    pub to: u32,
    /// The barriers: the next offset of each old partition at that time.
    pub ends: Vec<u64>,
}

impl Growth {
    /// Whether any old partition had messages. Without messages there is no order to keep.
    pub(crate) fn has_barriers(&self) -> bool {
        self.ends.iter().any(|end| *end > 0)
    }
}

/// The next offset of each of the first `count` partitions.
pub(crate) async fn ends_of(log: &dyn Log, topic: TopicNumber, count: u32) -> Result<Vec<u64>, LogError> {
    let mut ends = Vec::with_capacity(count as usize);
    for index in 0..count {
        ends.push(log.bounds(PartitionId::new(topic, index)).await?.next);
    }
    Ok(ends)
}
