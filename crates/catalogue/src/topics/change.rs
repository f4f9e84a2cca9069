//! Changes of an existing topic: its retention and its workers, first in the catalogue and then in the log.

use std::sync::Arc;

use tokio::sync::MutexGuard;
use whimbrel_model::NamedBounds;
use whimbrel_model::ports::LogError;

use super::agreement::PendingGrowth;
use super::registry::{PutOutcome, Registry, TopicChange, TopicError, TopicPut, encode};
use super::stored::{StoredTopic, key_of};
use super::topic::Topic;

impl Registry {
    /// Changes a topic as requested, up to a growth that all nodes must confirm.
    pub(super) async fn change(
        &self,
        topic: Arc<Topic>,
        change: TopicChange,
        changing: &MutexGuard<'_, i64>,
    ) -> Result<TopicPut, TopicError> {
        let name = topic.name.to_string();
        let mut stored = topic.stored.clone();
        self.check_copies(&topic, &change).await?;
        if let Some(retention) = change.retention {
            stored.retention_ms = retention.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        }
        if let Some(bytes) = change.retention_bytes {
            stored.retention_bytes = bytes;
        }
        if let Some(workers) = change.workers {
            stored.workers = workers.applied(&name, stored.workers.as_ref())?;
        }
        let wanted = change.partitions.unwrap_or(stored.partitions);
        if wanted < stored.partitions {
            return Err(TopicError::Shrink { name, from: stored.partitions, to: wanted });
        }
        let named = NamedBounds { time: change.retention.is_some(), bytes: change.retention_bytes.is_some() };
        let topic = self.change_entry(topic, stored, named).await?;
        if wanted <= topic.stored.partitions {
            return Ok(TopicPut::Now(PutOutcome { topic, created: false, grown: None }));
        }
        if !self.lease.is_shared() {
            return self.grow_alone(topic, wanted, changing).await.map(TopicPut::Now);
        }
        match topic.stored.growing {
            Some(growing) if growing.to == wanted => Ok(TopicPut::Growing(topic, growing)),
            Some(_) => Err(TopicError::Growing(name)),
            None => {
                let begun = self.begin_growth(&topic, wanted).await?;
                let growing = PendingGrowth { to: wanted, base: topic.version };
                Ok(TopicPut::Growing(begun, growing))
            }
        }
    }

    /// Changes the entry of a topic, and the bounds of its retention that the request names. The catalogue goes first: messages that the
    /// log drops cannot be restored, so the log must not get a change that is then rejected. After a crash the log may lack the bounds of
    /// the entry, so it gets them even if the entry does not change.
    async fn change_entry(
        &self,
        topic: Arc<Topic>,
        stored: StoredTopic,
        named: NamedBounds,
    ) -> Result<Arc<Topic>, TopicError> {
        let (name, key) = (topic.name.to_string(), key_of(&topic.name));
        let mut changed = Arc::clone(&topic);
        if stored != topic.stored {
            let version = self.ports.catalogue.put(&key, encode(&stored), Some(topic.version)).await?;
            changed = self.show(topic.succeeded_by(stored, version))?;
        }
        if named == NamedBounds::NONE {
            return Ok(changed);
        }
        match self.ports.log_topics.alter(&changed.stored.spec(&name), named).await {
            Ok(()) => Ok(changed),
            // The log may have made the change. The entry has the new bounds, so a repeat of the request makes both equal.
            Err(LogError::Unavailable(why) | LogError::Unknown(why)) => Err(LogError::Unknown(format!(
                "the catalogue has the new retention of `{name}`, and whether the log has it is not known; repeat the request: {why}"
            ))
            .into()),
            Err(error) => {
                if changed.version != topic.version {
                    let version =
                        self.ports.catalogue.put(&key, encode(&topic.stored), Some(changed.version)).await?;
                    self.show(changed.succeeded_by(topic.stored.clone(), version))?;
                }
                Err(error.into())
            }
        }
    }

    /// Rejects changes of the number of copies, which is fixed at creation. The present number is no change.
    async fn check_copies(&self, topic: &Topic, change: &TopicChange) -> Result<(), TopicError> {
        let refused = |what, has: String| TopicError::Copies { name: topic.name.to_string(), what, has };
        if let Some(asked) = change.min_insync.filter(|_| change.min_insync != topic.stored.min_insync) {
            let has = topic.stored.min_insync.map_or("the engine's own number".to_owned(), |has| has.to_string());
            return Err(refused(format!("min_insync {asked}"), has));
        }
        if let Some(asked) = change.replicas.filter(|_| change.replicas != topic.stored.replicas) {
            let status = self.ports.log_topics.describe(topic.number()).await?;
            let has = status.partitions.iter().map(|partition| partition.replicas.len()).max().unwrap_or(0);
            if has != asked as usize {
                return Err(refused(format!("replicas {asked}"), has.to_string()));
            }
        }
        Ok(())
    }
}
