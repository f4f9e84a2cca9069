//! The system topics, created at the first start: `_events` for incidents, `_holds` for delayed messages, `_push` and its companions for
//! people. A process opens its registry here, once, and passes it to every role.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::push::{NOTICES_TOPIC, PRESENCE_TOPIC, PUSH_DEAD_TOPIC, PUSH_TOPIC};
use whimbrel_model::{EVENTS_TOPIC, HOLDS_TOPIC};

use super::registry::{Registry, RegistryPorts, TopicChange, TopicDefaults, TopicError};

/// Shards of the holds, unless set before the first start.
pub const SHARDS_DEFAULT: u32 = 16;
/// Partitions of `_push`, unless set before the first start.
pub const PUSH_PARTITIONS_DEFAULT: u32 = 16;

const NOTICES_PARTITIONS: u32 = 4;
const DAY: Duration = Duration::from_secs(86_400);
const WEEK: Duration = Duration::from_secs(7 * 86_400);
/// The attempts to reach a log that has just started or is busy, with a pause between them.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// The partitions of system topics at the first start. They never change afterwards: a hold's shard follows from the number of partitions
/// of `_holds`, and a user's partition from that of `_push`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemTopics {
    pub shards: u32,
    pub push_partitions: u32,
}

impl Default for SystemTopics {
    fn default() -> Self {
        Self { shards: SHARDS_DEFAULT, push_partitions: PUSH_PARTITIONS_DEFAULT }
    }
}

/// Opens the registry, and creates missing system topics.
///
/// The caller must also run [`Registry::watch`].
pub async fn open_topics(
    ports: RegistryPorts,
    defaults: TopicDefaults,
    system: SystemTopics,
) -> Result<Arc<Registry>, TopicError> {
    let registry = Registry::open(ports, defaults).await?;
    let with = |partitions| TopicChange { partitions: Some(partitions), ..TopicChange::default() };
    // The owners trim these topics after they have carried records forward. Retention must not remove records.
    let trimmed = |partitions| TopicChange { retention: Some(None), retention_bytes: Some(None), ..with(partitions) };
    let kept_for = |partitions, age| TopicChange { retention: Some(Some(age)), ..with(partitions) };
    let topics = [
        (EVENTS_TOPIC, with(1)),
        (HOLDS_TOPIC, trimmed(system.shards)),
        (PUSH_TOPIC, trimmed(system.push_partitions)),
        (PUSH_DEAD_TOPIC, with(1)),
        (NOTICES_TOPIC, kept_for(NOTICES_PARTITIONS, WEEK)),
        (PRESENCE_TOPIC, kept_for(1, DAY)),
    ];
    for (name, change) in topics {
        if registry.get(name).is_none() {
            retry_while_log_unavailable(name, TopicError::is_log_unavailable, async || {
                registry.put(name, change.clone()).await
            })
            .await?;
        }
    }
    Ok(Arc::new(registry))
}

/// Retries a call while the log does not answer at a start. The call must be safe to repeat.
pub async fn retry_while_log_unavailable<T, E: std::fmt::Display>(
    what: &str,
    is_log_unavailable: impl Fn(&E) -> bool,
    ask: impl AsyncFn() -> Result<T, E>,
) -> Result<T, E> {
    let mut tries = 1;
    loop {
        match ask().await {
            Err(error) if tries < TRIES && is_log_unavailable(&error) => {
                tracing::warn!(%error, "{what}: the log does not answer; retrying");
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            told => return told,
        }
    }
}
