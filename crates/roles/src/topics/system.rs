//! The topics of the system itself, made at the first start: `_events` for what an operator wants to know, `_holds` for everything
//! about messages that arrive later. A process opens its registry here, once, and hands it to every role.

use std::sync::Arc;

use whimbrel_model::{EVENTS_TOPIC, HOLDS_TOPIC};

use super::registry::{Registry, RegistryPorts, TopicChange, TopicDefaults, TopicError};

/// Shards of the holds, unless set before the first start.
pub const SHARDS_DEFAULT: u32 = 16;

/// Opens the registry and makes the system's topics where they are not there yet. `shards` is for the first start only: the
/// partitions of `_holds` never change afterwards, since a hold's shard is computed from their number.
///
/// Whoever opens it also runs [`Registry::watch`].
pub async fn open_topics(
    ports: RegistryPorts,
    defaults: TopicDefaults,
    shards: u32,
) -> Result<Arc<Registry>, TopicError> {
    let registry = Registry::open(ports, defaults).await?;
    if registry.get(EVENTS_TOPIC).is_none() {
        registry.put(EVENTS_TOPIC, TopicChange { partitions: Some(1), ..TopicChange::default() }).await?;
    }
    if registry.get(HOLDS_TOPIC).is_none() {
        // Its owners trim it behind what they have carried forward; no age and no size may.
        let change = TopicChange {
            partitions: Some(shards),
            retention: Some(None),
            retention_bytes: Some(None),
            ..TopicChange::default()
        };
        registry.put(HOLDS_TOPIC, change).await?;
    }
    Ok(Arc::new(registry))
}
