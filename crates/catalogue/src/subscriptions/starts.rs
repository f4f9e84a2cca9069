//! Where to begin: a position that people name, as an offset of each partition.

use futures_util::{StreamExt, TryStreamExt};
use whimbrel_model::ports::{Log, LogError};
use whimbrel_model::subscription::{Start, TopicStart};
use whimbrel_model::{PartitionId, Timestamp};

use crate::topics::Topic;

/// Partitions whose bounds are asked for at one time.
const PARTITIONS_AT_ONCE: usize = 16;

/// A place in every partition at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    Earliest,
    Latest,
    /// The first message at or after that time.
    At(Timestamp),
}

impl From<Start> for Position {
    fn from(start: Start) -> Self {
        match start {
            Start::Earliest => Self::Earliest,
            Start::Latest => Self::Latest,
            Start::At(ms) => Self::At(Timestamp::from_millis(ms)),
        }
    }
}

/// A partition in which what was asked for is not kept any more: it begins at the oldest that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncation {
    pub topic: String,
    pub partition: u32,
    /// The oldest that is kept.
    pub first: u64,
}

/// The offset of a position in every partition of a topic, and the partitions in which something older is gone.
pub(super) async fn start_at(
    log: &dyn Log,
    topic: &Topic,
    position: Position,
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

async fn offset_at(log: &dyn Log, partition: PartitionId, position: Position) -> Result<(u64, bool), LogError> {
    let bounds = log.bounds(partition).await?;
    match position {
        Position::Earliest => Ok((bounds.first, false)),
        Position::Latest => Ok((bounds.next, false)),
        Position::At(time) => {
            let offset = log.offset_at(partition, time).await?.clamp(bounds.first, bounds.next);
            // Where the first kept one is at or after the time, and others were before it, some of those may have been too.
            Ok((offset, offset == bounds.first && bounds.first > 0))
        }
    }
}
