//! The topics of the system itself, made at the first start: `_events` for what an operator wants to know, `_holds` for everything
//! about messages that arrive later, `_push` and those beside it for everything about people. A process opens its registry here, once,
//! and hands it to every role.

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
/// A log that has just started itself, or is busy, may not answer in the time that it has. So often it is asked, with a pause between.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// How the system's topics are made. It is for the first start only: a hold's shard is computed from the number of partitions of
/// `_holds`, and a user's place from that of `_push`, so that neither ever changes afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemTopics {
    /// The partitions of `_holds`.
    pub shards: u32,
    /// The partitions of `_push`.
    pub push_partitions: u32,
}

impl Default for SystemTopics {
    fn default() -> Self {
        Self { shards: SHARDS_DEFAULT, push_partitions: PUSH_PARTITIONS_DEFAULT }
    }
}

/// Opens the registry and makes the system's topics where they are not there yet.
///
/// Whoever opens it also runs [`Registry::watch`].
pub async fn open_topics(
    ports: RegistryPorts,
    defaults: TopicDefaults,
    system: SystemTopics,
) -> Result<Arc<Registry>, TopicError> {
    let registry = Registry::open(ports, defaults).await?;
    let as_any = |partitions| TopicChange { partitions: Some(partitions), ..TopicChange::default() };
    // Its owners trim it behind what they have carried forward; no age and no size may.
    let trimmed = |partitions| TopicChange { retention: Some(None), retention_bytes: Some(None), ..as_any(partitions) };
    let kept_for = |partitions, age| TopicChange { retention: Some(Some(age)), ..as_any(partitions) };
    let topics = [
        (EVENTS_TOPIC, as_any(1)),
        (HOLDS_TOPIC, trimmed(system.shards)),
        (PUSH_TOPIC, trimmed(system.push_partitions)),
        (PUSH_DEAD_TOPIC, as_any(1)),
        (NOTICES_TOPIC, kept_for(NOTICES_PARTITIONS, WEEK)),
        (PRESENCE_TOPIC, kept_for(1, DAY)),
    ];
    for (name, change) in topics {
        if registry.get(name).is_none() {
            patiently(name, TopicError::is_log_away, async || registry.put(name, change.clone()).await).await?;
        }
    }
    Ok(Arc::new(registry))
}

/// Asks a log again that does not answer at a start. What is asked may be asked twice.
pub async fn patiently<T, E: std::fmt::Display>(
    what: &str,
    is_log_away: impl Fn(&E) -> bool,
    ask: impl AsyncFn() -> Result<T, E>,
) -> Result<T, E> {
    let mut tries = 1;
    loop {
        match ask().await {
            Err(error) if tries < TRIES && is_log_away(&error) => {
                tracing::warn!(%error, "{what}: the log does not answer; trying again");
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            told => return told,
        }
    }
}
