//! Growing a topic: more partitions, and barriers for readers who keep the order of keys.
//!
//! In this order, each step durable before the next:
//! 1. the topic's gate for publishes by key is closed, and every publish by the old mapping has been answered by the log (see
//!    [`super::gate`]): in this process where it is alone, on every node where several share the topics (see [`super::agreement`]);
//! 2. the log has the new partitions, which no publish uses yet. A process that is alone adds them first, before the gate is closed;
//! 3. the old partitions' ends are read: these are the barriers. A moved key's messages lie below them in its old partition, and its
//!    next ones will lie in its new partition;
//! 4. the catalogue's entry gets the new number and the barriers in one write;
//! 5. the map is swapped, and publishes go on by the new mapping.
//!
//! When the outcome of the write in step 4 is unknown, the gate stays closed until the entry was read again.
//! After a crash between 2 and 4 the log has more partitions than the entry says. A process that is alone finishes the growth at its
//! next start: nothing publishes yet, so the ends of that moment are barriers as good. Several nodes finish it by agreement.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_model::PartitionId;
use whimbrel_model::TopicNumber;
use whimbrel_model::ports::{Log, LogError};

/// How long a growth waits for publishes under way. The log answers or refuses well within it.
pub(crate) const DRAIN_WITHIN: Duration = Duration::from_secs(30);
/// How long a publish waits for a growth before it is told to come again.
pub(crate) const PUBLISH_WAITS_WITHIN: Duration = Duration::from_secs(5);
/// How long a publish by key waits for this node's session before it is told to come again.
pub(crate) const SESSION_WAITS_WITHIN: Duration = Duration::from_secs(2);

/// One growth of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    pub at_ms: i64,
    pub from: u32,
    pub to: u32,
    /// The barriers: the next offset of each old partition at that moment.
    pub ends: Vec<u64>,
}

impl Growth {
    /// A topic that has nothing yet has no order to keep.
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
