//! Growing a topic: more partitions, barriers for those who keep the order of keys.
//!
//! In this order, each step durable before the next:
//! 1. the log gets the new partitions, which nobody knows of yet;
//! 2. the topic's gate is closed, and every publish by the old mapping has been answered by the log (see [`super::gate`]);
//! 3. the old partitions' ends are read: these are the barriers. A moved key's messages lie below them in its old partition, and its
//!    next ones will lie in its new partition;
//! 4. the catalogue's entry gets the new number and the barriers in one write;
//! 5. the map is swapped, and publishes go on by the new mapping.
//!
//! After a crash between 1 and 4 the log has more partitions than the entry says. The next start finishes the growth: nobody
//! publishes yet, so the ends of that moment are barriers as good.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_model::PartitionId;
use whimbrel_model::TopicNumber;
use whimbrel_model::ports::{Log, LogError};

/// How long a growth waits for publishes under way. The log answers or refuses well within it.
pub(crate) const DRAIN_WITHIN: Duration = Duration::from_secs(30);
/// How long a publish waits for a growth before it is told to come again.
pub(crate) const PUBLISH_WAITS_WITHIN: Duration = Duration::from_secs(5);

/// One growth of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    pub at_ms: i64,
    pub from: u32,
    pub to: u32,
    /// The barriers: the next offset of each old partition at that moment.
    pub ends: Vec<u64>,
}

/// The next offset of each of the first `count` partitions.
pub(crate) async fn ends_of(log: &dyn Log, topic: TopicNumber, count: u32) -> Result<Vec<u64>, LogError> {
    let mut ends = Vec::with_capacity(count as usize);
    for index in 0..count {
        ends.push(log.bounds(PartitionId::new(topic, index)).await?.next);
    }
    Ok(ends)
}
