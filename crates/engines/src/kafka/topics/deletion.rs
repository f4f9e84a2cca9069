//! Identifies and deletes topics by their Kafka ids. A topic that is created again under an old name has another id, so a deletion that
//! is late or runs twice never drops a later topic.

use std::time::Instant;

use kafka_protocol::messages::DeleteTopicsRequest;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use whimbrel_model::ports::{ExactTopic, LogError};

use super::super::outcome;
use super::{KafkaTopics, METADATA_POLL_INTERVAL, refused};

impl KafkaTopics {
    /// The id of the topic that has this name now.
    pub async fn identity(&self, name: &str) -> Result<Option<String>, LogError> {
        if self.look(name, |_| true).await?.is_none() && self.queries.is_gone(name, 0).await? {
            return Ok(None);
        }
        // A broker with stale metadata reports the id of the earlier topic.
        let mut ids = self.queries.topic_ids(name).await?;
        if ids.len() != 1 {
            return Err(LogError::Unavailable(format!(
                "the brokers do not yet agree on the id of topic `{name}`; try again in a few seconds"
            )));
        }
        Ok(ids.pop_first())
    }

    pub async fn delete(&self, topic: ExactTopic<'_>) -> Result<(), LogError> {
        if let Some(known) = self.known.get(topic.number) {
            known.missing.expect();
        }
        if let Some(id) = topic.identity {
            self.delete_by_id(id, topic.name).await?;
            self.wait_until_deleted(id, topic.name).await?;
        }
        self.known.remove(topic.number);
        self.retire(&[topic.number]);
        self.cluster.forget(topic.name);
        Ok(())
    }

    async fn delete_by_id(&self, id: &str, name: &str) -> Result<(), LogError> {
        let malformed = || LogError::Unsupported(format!("`{id}` is not the id of a Kafka topic (topic `{name}`)"));
        let topic = DeleteTopicState::default().with_name(None).with_topic_id(id.parse().ok().ok_or_else(malformed)?);
        let request = DeleteTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(self.timeout_ms());
        match self.administer(&request, |answer| Some(answer.responses.first()?.error_code)).await {
            Err(error) if !error.code().is_some_and(outcome::is_unknown_partition) => Err(refused(&error, name)),
            _ => Ok(()),
        }
    }

    /// Waits until no broker lists the topic, so that a later topic with this name is not mistaken for it.
    async fn wait_until_deleted(&self, id: &str, name: &str) -> Result<(), LogError> {
        let (began, timeout) = (Instant::now(), self.settings.request_timeout);
        while !self.queries.is_deleted(name, id).await? {
            if began.elapsed() > timeout {
                return Err(LogError::Unavailable(format!(
                    "brokers still list topic `{name}` {timeout:?} after its deletion; try again"
                )));
            }
            tokio::time::sleep(METADATA_POLL_INTERVAL).await;
        }
        Ok(())
    }
}
