//! Start positions of subscriptions, and their offsets in each partition.

use futures_util::{StreamExt, TryStreamExt};
use whimbrel_model::ports::{Log, LogError};
use whimbrel_model::subscription::{Start, TopicStart};
use whimbrel_model::{PartitionId, Timestamp};

use crate::topics::Topic;

/// The most partitions whose bounds are read concurrently.
const PARTITIONS_AT_ONCE: usize = 16;

/// A position in all partitions of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartPosition {
    Earliest,
    Latest,
    /// The first message at or after this time.
    At(Timestamp),
}

impl From<Start> for StartPosition {
    fn from(start: Start) -> Self {
        match start {
            Start::Earliest => Self::Earliest,
            Start::Latest => Self::Latest,
            Start::At(ms) => Self::At(Timestamp::from_millis(ms)),
        }
    }
}

/// A partition in which the log no longer has the requested start. Delivery starts at the oldest kept message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncation {
    pub topic: String,
    pub partition: u32,
    /// The offset of the oldest kept message.
    pub first: u64,
}

/// The offset of a position in every partition of a topic, and the partitions in which older messages were removed.
pub(super) async fn start_at(
    log: &dyn Log,
    topic: &Topic,
    position: StartPosition,
) -> Result<(TopicStart, Vec<Truncation>), LogError> {
    let asked = topic.all_partitions().map(|partition| offset_at(log, partition, position));
    let found: Vec<(u64, bool)> = futures_util::stream::iter(asked).buffered(PARTITIONS_AT_ONCE).try_collect().await?;
    let truncated =
        found.iter().enumerate().filter(|(_, (_, is_truncated))| *is_truncated).map(|(index, (first, _))| Truncation {
            topic: topic.name.to_string(),
            partition: index as u32,
            first: *first,
        });
    let truncated = truncated.collect();
    let offsets = found.into_iter().map(|(offset, _)| offset).collect();
    Ok((TopicStart { topic: topic.name.to_string(), number: topic.number(), offsets }, truncated))
}

async fn offset_at(log: &dyn Log, partition: PartitionId, position: StartPosition) -> Result<(u64, bool), LogError> {
    let bounds = log.bounds(partition).await?;
    match position {
        StartPosition::Earliest => Ok((bounds.first, false)),
        StartPosition::Latest => Ok((bounds.next, false)),
        StartPosition::At(time) => {
            let offset = log.offset_at(partition, time).await?.clamp(bounds.first, bounds.next);
            // If the first kept message is at or after the time, removed messages may have been too.
            Ok((offset, offset == bounds.first && bounds.first > 0))
        }
    }
}
