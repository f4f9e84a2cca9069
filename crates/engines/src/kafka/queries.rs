//! Read-only requests: first and end offsets of partitions, offsets for times, and the list of topics.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use kafka_protocol::messages::{MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use whimbrel_model::ports::{Bounds, LogError};
use whimbrel_model::{Event, EventSink, PartitionId, Timestamp};

use super::client::cluster::{ANSWER_MAX, KafkaCluster};
use super::known_topics::KnownTopic;
use super::outcome::{self, KafkaError};
use super::requests::{self, EARLIEST, LATEST};

/// The pause between two attempts, in which leadership can settle.
pub(super) const PAUSE_BEFORE_ASKING_AGAIN: Duration = Duration::from_millis(20);
/// The time for which a known partition may be unknown to a broker: it may have been created a moment ago.
const METADATA_PROPAGATION_MAX: Duration = Duration::from_secs(1);

/// The time for which a partition that the brokers do not have counts as missing before they are asked again.
const MISSING_FOR: Duration = Duration::from_secs(1);
/// The delay of the report that a topic is missing. Within this time a node learns that another one deletes the topic.
const REPORT_MISSING_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogEnd {
    /// After the last record that readers can see.
    Visible,
    /// After the last record that is written, open transactions included.
    Written,
}

impl LogEnd {
    /// The isolation level on the wire.
    pub fn isolation(self) -> i8 {
        match self {
            Self::Visible => 1,
            Self::Written => 0,
        }
    }
}

/// One attempt at a request, with its timeout.
pub(super) type Attempt<'a, T> = BoxFuture<'a, Result<T, KafkaError>>;

pub(super) struct Queries {
    cluster: Arc<KafkaCluster>,
    timeout: Duration,
    events: EventSink,
    pub(super) report_missing_after: Duration,
}

impl Queries {
    pub fn new(cluster: Arc<KafkaCluster>, timeout: Duration, events: EventSink) -> Self {
        Self { cluster, timeout, events, report_missing_after: REPORT_MISSING_AFTER }
    }

    /// The first kept offset, and the end.
    pub async fn bounds(&self, topic: &KnownTopic, partition: PartitionId, end: LogEnd) -> Result<Bounds, LogError> {
        let attempt = |limit| -> Attempt<'_, (u64, u64)> {
            Box::pin(async move {
                let first = self.offset(topic.name(), partition.index, EARLIEST, LogEnd::Written, limit);
                let next = self.offset(topic.name(), partition.index, LATEST, end, limit);
                let (first, next) = tokio::join!(first, next);
                Ok((first?.unwrap_or(0), next?.unwrap_or(0)))
            })
        };
        let (first, next) = self.ask(topic, partition, attempt).await?;
        Ok(Bounds { first, next: next.max(first) })
    }

    /// The offset of the first record at or after a time; the end if there is none.
    pub async fn offset_at(
        &self,
        topic: &KnownTopic,
        partition: PartitionId,
        time: Timestamp,
    ) -> Result<u64, LogError> {
        let time = time.as_millis().max(0);
        let attempt = |limit| -> Attempt<'_, u64> {
            Box::pin(async move {
                // The end is read first: a record that is appended between the two requests has a higher offset.
                let end = self.offset(topic.name(), partition.index, LATEST, LogEnd::Written, limit).await?;
                let found = self.offset(topic.name(), partition.index, time, LogEnd::Written, limit).await?;
                Ok(found.or(end).unwrap_or(0))
            })
        };
        self.ask(topic, partition, attempt).await
    }

    /// One `ListOffsets` about one partition. `None` if no record is that late.
    pub async fn offset(
        &self,
        topic: &str,
        index: u32,
        time: i64,
        end: LogEnd,
        limit: Duration,
    ) -> Result<Option<u64>, KafkaError> {
        let leader = self.leader(topic, index).await?;
        let name = TopicName(StrBytes::from_string(topic.to_owned()));
        let request = requests::list_offsets([(name, index)], time, end);
        let connection = self.cluster.metadata_connection(leader).await?;
        let answer = connection.call(&request, limit.min(ANSWER_MAX)).await?;
        requests::offset_in(&answer, topic, index)
    }

    /// The partition's leader. Looks it up if it is not known.
    pub async fn leader(&self, topic: &str, index: u32) -> Result<i32, KafkaError> {
        if let Some(leader) = self.cluster.leader(topic, index) {
            return Ok(leader);
        }
        self.cluster.refresh(topic).await;
        self.cluster.leader(topic, index).ok_or(KafkaError::NoLeader)
    }

    /// The metadata of one topic or of all. A missing topic is in the answer with an error.
    pub async fn metadata(&self, topic: Option<&str>) -> Result<MetadataResponse, LogError> {
        let topics = topic.as_ref().map(std::slice::from_ref);
        self.cluster.metadata(topics, self.timeout).await.map_err(|error| outcome::timed_out(&error, self.timeout))
    }

    /// Whether the cluster reports that it has no such partition. One broker may not have learned of it yet: every broker that
    /// answers must report the same.
    pub async fn is_gone(&self, topic: &str, index: u32) -> Result<bool, LogError> {
        let answers = self.metadata_of_each(topic).await?;
        Ok(answers.iter().all(|answer| outcome::is_without(answer, topic, index)))
    }

    /// The ids that the brokers report for a topic name. A broker with stale metadata reports no id, or an old one.
    pub async fn topic_ids(&self, name: &str) -> Result<BTreeSet<String>, LogError> {
        let answers = self.metadata_of_each(name).await?;
        Ok(answers.iter().filter_map(|answer| outcome::topic_id(answer, name)).collect())
    }

    /// Whether no broker that answers lists the topic with this name and id. The brokers may list a later topic with this name.
    pub async fn is_deleted(&self, name: &str, id: &str) -> Result<bool, LogError> {
        let is_other = |answer| outcome::topic_id(answer, name).is_some_and(|found| found != id);
        let answers = self.metadata_of_each(name).await?;
        Ok(answers.iter().all(|answer| outcome::is_without(answer, name, 0) || is_other(answer)))
    }

    /// Like [`Self::is_gone`], for a partition of a topic in the catalogue. Reports a topic that another application has deleted.
    pub async fn is_missing(&self, topic: &KnownTopic, index: u32) -> Result<bool, LogError> {
        let answers = self.metadata_of_each(topic.name()).await?;
        let is_without = |index| answers.iter().all(|answer| outcome::is_without(answer, topic.name(), index));
        let (is_missing, is_whole_topic) = (is_without(index), is_without(0));
        if topic.has(index) {
            topic.missing.learn(index, is_missing, Instant::now());
        }
        if !is_whole_topic {
            topic.missing.learn(0, false, Instant::now());
        } else if is_missing {
            topic.missing.learn_all_missing(topic.partitions(), Instant::now());
            if topic.missing.begin_report() {
                self.report_missing(topic);
            }
        }
        Ok(is_missing)
    }

    /// Reports the topic after a while, if every broker that answers still lacks it.
    fn report_missing(&self, topic: &KnownTopic) {
        let (name, missing) = (topic.name().to_owned(), topic.missing.clone());
        let (cluster, events, timeout) = (self.cluster.clone(), self.events.clone(), self.timeout.min(ANSWER_MAX));
        let wait = self.report_missing_after;
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            // Brokers that do not answer may have it.
            let answers = cluster.metadata_of_each(&name, timeout).await;
            let is_missing =
                answers.is_ok_and(|answers| answers.iter().all(|answer| outcome::is_without(answer, &name, 0)));
            if missing.finish_report(is_missing) {
                let detail = format!(
                    "topic `{name}` does not exist in Kafka any more: another application deleted it. Its messages are lost, and \
                     holds for it become dead letters. Delete it in Whimbrel too: `whimbrel topic delete {name}`"
                );
                events(Event::warning("topic_missing", detail).with("topic", name));
            }
        });
    }

    /// Whether a partition is still missing. Asks the brokers again after [`MISSING_FOR`].
    pub async fn is_still_missing(&self, topic: &KnownTopic, index: u32) -> Result<bool, LogError> {
        match topic.missing.at(index) {
            None => Ok(false),
            Some(at) if at.elapsed() < MISSING_FOR => Ok(true),
            Some(_) => self.is_missing(topic, index).await,
        }
    }

    /// The largest number of partitions that a broker reports for the topic. A broker that has not learned of a growth reports fewer.
    pub async fn partition_count(&self, topic: &str) -> Result<u32, LogError> {
        let answers = self.metadata_of_each(topic).await?;
        let topics = answers.iter().flat_map(|answer| &answer.topics);
        let named = topics.filter(|found| found.name.as_ref().is_some_and(|name| name.as_str() == topic));
        Ok(named.map(|found| found.partitions.len() as u32).max().unwrap_or(0))
    }

    /// Checks that a partition exists which the topic seems to lack: another client may have grown the topic. Only an answer of the whole
    /// cluster makes it `UnknownPartition`.
    pub async fn check_exists(&self, topic: &KnownTopic, partition: PartitionId) -> Result<(), LogError> {
        if topic.has(partition.index) {
            return Ok(());
        }
        topic.learn_partitions(self.partition_count(topic.name()).await?);
        if topic.has(partition.index) {
            return Ok(());
        }
        if self.is_gone(topic.name(), partition.index).await? {
            return Err(LogError::UnknownPartition(partition));
        }
        let (name, index) = (topic.name(), partition.index);
        Err(LogError::Unavailable(format!("the brokers do not agree yet whether topic `{name}` has partition {index}")))
    }

    async fn metadata_of_each(&self, topic: &str) -> Result<Vec<MetadataResponse>, LogError> {
        let answers = self.cluster.metadata_of_each(topic, self.timeout.min(ANSWER_MAX)).await;
        answers.map_err(|error| outcome::unavailable(&error))
    }

    /// Looks up the leaders again.
    pub async fn refresh(&self, topic: &str) {
        self.cluster.refresh(topic).await;
    }

    /// Sends a request about a partition, and repeats it while leadership is moving or a broker has not learned of the partition yet.
    pub async fn ask<'a, T>(
        &self,
        topic: &KnownTopic,
        partition: PartitionId,
        attempt: impl Fn(Duration) -> Attempt<'a, T>,
    ) -> Result<T, LogError> {
        let began = Instant::now();
        let mut check_at = began + METADATA_PROPAGATION_MAX.min(self.timeout);
        let mut left = self.timeout;
        loop {
            let error = match attempt(left).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // A partition whose broker failed or has just started is unknown to all brokers for a moment, although it exists.
            let may_be_gone = error == KafkaError::NoLeader || error.code().is_some_and(outcome::is_unknown_partition);
            if may_be_gone && Instant::now() >= check_at {
                if self.is_missing(topic, partition.index).await? {
                    return Err(LogError::UnknownPartition(partition));
                }
                check_at = Instant::now() + METADATA_PROPAGATION_MAX;
            }
            if !(error.is_passing() || may_be_gone) {
                return Err(outcome::unavailable(&error));
            }
            if began.elapsed() + PAUSE_BEFORE_ASKING_AGAIN < self.timeout {
                tokio::time::sleep(PAUSE_BEFORE_ASKING_AGAIN).await;
                self.cluster.refresh(topic.name()).await;
            }
            // An attempt without time would only hide the error of this one, and close a connection that others use.
            left = self.timeout.saturating_sub(began.elapsed());
            if left <= PAUSE_BEFORE_ASKING_AGAIN {
                return Err(outcome::timed_out(&error, self.timeout));
            }
        }
    }
}

#[cfg(test)]
mod tests;
