//! Deletes a topic: closes and drains its gates, marks the entry as `deleting` together with the topic's identity in the log, deletes
//! exactly the topic with that identity, and removes the entry.

use std::sync::Arc;

use tokio::sync::MutexGuard;
use whimbrel_model::Event;
use whimbrel_model::ports::{CatalogueError, ExactTopic};

use super::gate::{ClosedGate, GateTimeout};
use super::growth::DRAIN_WITHIN;
use super::registry::{Registry, TopicError, encode, is_unknown};
use super::stored::{StoredTopic, key_of};
use super::topic::Topic;

impl Registry {
    /// Begins to delete a topic: closes its gates, and waits until the operations in progress have ended. A caller that then lists what
    /// belongs to the topic gets all of it. Dropping the returned value leaves the topic as it was.
    pub async fn begin_delete(&self, name: &str) -> Result<Deletion<'_>, TopicError> {
        let changing = self.changing.lock().await;
        let topic = self.get(name).ok_or_else(|| TopicError::Unknown(name.to_owned()))?;
        // Publishes in progress end first: an engine that identifies topics by name would write them to a new topic of this name.
        let closed = [topic.mapping_gate.close(), topic.topic_gate.close()];
        for gate in &closed {
            gate.drained(DRAIN_WITHIN).await.map_err(|GateTimeout| TopicError::InUse(name.to_owned()))?;
        }
        Ok(Deletion { registry: self, topic, changing, closed })
    }

    /// Finishes a deletion that the entry records. The entry may be old: another node may have finished the deletion, and the name may
    /// belong to a later topic, which must stay.
    pub(super) async fn finish_deleting(
        &self,
        name: &str,
        mut stored: StoredTopic,
        mut version: u64,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<(), TopicError> {
        if stored.identity.is_none() {
            stored.identity = self.ports.log_topics.identity(stored.number, name).await?;
            if stored.identity.is_some() {
                // The write fails if the entry has changed. So if it succeeds, no later topic had the name when the identity was read.
                version = self.ports.catalogue.put(&key_of(name), encode(&stored), Some(version)).await?;
            }
        }
        self.delete_exactly(name, &stored, version, changing).await
    }

    /// Deletes the topic that the entry identifies, and removes the entry.
    async fn delete_exactly(
        &self,
        name: &str,
        stored: &StoredTopic,
        version: u64,
        _changing: &MutexGuard<'_, i64>,
    ) -> Result<(), TopicError> {
        let topic = ExactTopic { number: stored.number, name, identity: stored.identity.as_deref() };
        self.ports.log_topics.delete(topic).await?;
        match self.ports.catalogue.remove(&key_of(name), version).await {
            // Another node finished the same deletion and reported it.
            Err(CatalogueError::Conflict { .. }) => return Ok(()),
            removed => removed?,
        }
        (self.ports.events)(Event::new("topic_deleted", format!("topic `{name}` was deleted")).with("topic", name));
        Ok(())
    }
}

/// A topic that is being deleted, with its gates closed.
pub struct Deletion<'a> {
    registry: &'a Registry,
    topic: Arc<Topic>,
    changing: MutexGuard<'a, i64>,
    closed: [ClosedGate; 2],
}

impl Deletion<'_> {
    /// Deletes the topic with its messages. Callers must spawn this: it must not be cancelled.
    pub async fn finish(self) -> Result<(), TopicError> {
        let Self { registry, topic, changing, closed } = self;
        let name = &*topic.name;
        let mut stored = topic.stored.clone();
        stored.deleting = true;
        // Reads the identity before the write: if the write succeeds, the name belonged to this topic all the time.
        stored.identity = registry.ports.log_topics.identity(stored.number, name).await?;
        let written = registry.ports.catalogue.put(&key_of(name), encode(&stored), Some(topic.version)).await;
        let version = match written {
            Ok(version) => version,
            Err(error) => {
                if is_unknown(&error) {
                    registry.keep_closed(closed);
                }
                return Err(error.into());
            }
        };
        registry.hide(name);
        registry.delete_exactly(name, &stored, version, &changing).await
    }
}
