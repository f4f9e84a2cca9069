//! Read-only requests: first and end offsets of partitions, offsets for times, and the list of topics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{BrokerId, ListOffsetsRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use whimbrel_model::ports::{Bounds, LogError};
use whimbrel_model::{PartitionId, Timestamp};

use super::client::cluster::{ANSWER_MAX, Cluster};
use super::known::KnownTopic;
use super::outcome::{self, KafkaError};

/// The pause between two attempts, in which leadership can settle.
pub(super) const PAUSE_BEFORE_ASKING_AGAIN: Duration = Duration::from_millis(20);
/// How long a partition that is known here may be unknown to a broker: it may have been created a moment ago.
const METADATA_PROPAGATION_MAX: Duration = Duration::from_secs(1);

/// The special times of `ListOffsets`.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Behind the last record that readers can see.
    Visible,
    /// Behind the last record that is written, open transactions included.
    Written,
}

impl End {
    /// The isolation level on the wire.
    pub fn isolation(self) -> i8 {
        match self {
            Self::Visible => 1,
            Self::Written => 0,
        }
    }
}

/// One attempt at a request, within the time that it is given.
pub(super) type Attempt<'a, T> = BoxFuture<'a, Result<T, KafkaError>>;

pub(super) struct Queries {
    cluster: Arc<Cluster>,
    timeout: Duration,
}

impl Queries {
    pub fn new(cluster: Arc<Cluster>, timeout: Duration) -> Self {
        Self { cluster, timeout }
    }

    /// The first kept offset, and the end.
    pub async fn bounds(&self, topic: &KnownTopic, partition: PartitionId, end: End) -> Result<Bounds, LogError> {
        let attempt = |limit| -> Attempt<'_, (u64, u64)> {
            Box::pin(async move {
                let first = self.offset(topic.name(), partition.index, EARLIEST, End::Written, limit);
                let next = self.offset(topic.name(), partition.index, LATEST, end, limit);
                let (first, next) = tokio::join!(first, next);
                Ok((first?.unwrap_or(0), next?.unwrap_or(0)))
            })
        };
        let (first, next) = self.ask(topic, partition, attempt).await?;
        Ok(Bounds { first, next: next.max(first) })
    }

    /// The offset of the first record at or after a time; the end where there is none.
    pub async fn offset_at(
        &self,
        topic: &KnownTopic,
        partition: PartitionId,
        time: Timestamp,
    ) -> Result<u64, LogError> {
        let time = time.as_millis().max(0);
        let attempt = |limit| -> Attempt<'_, u64> {
            Box::pin(async move {
                // The end is read first: a record that is appended between the two requests lies behind it.
                let end = self.offset(topic.name(), partition.index, LATEST, End::Written, limit).await?;
                let found = self.offset(topic.name(), partition.index, time, End::Written, limit).await?;
                Ok(found.or(end).unwrap_or(0))
            })
        };
        self.ask(topic, partition, attempt).await
    }

    /// One `ListOffsets` about one partition. `None` where no record is that late.
    pub async fn offset(
        &self,
        topic: &str,
        index: u32,
        time: i64,
        end: End,
        limit: Duration,
    ) -> Result<Option<u64>, KafkaError> {
        let leader = self.leader(topic, index).await?;
        let partition = ListOffsetsPartition::default()
            .with_partition_index(index as i32)
            .with_timestamp(time)
            .with_current_leader_epoch(-1);
        let asked = ListOffsetsTopic::default()
            .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_isolation_level(end.isolation())
            .with_topics(vec![asked]);
        let connection =
            self.cluster.metadata_connection(leader).await.map_err(super::client::connection::CallError::NotSent)?;
        let answer = connection.call(&request, limit.min(ANSWER_MAX)).await?;
        let answer = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
        let answer = answer.ok_or_else(|| KafkaError::Malformed("the answer names no partition".to_owned()))?;
        outcome::check(answer.error_code).map_err(KafkaError::Code)?;
        Ok(u64::try_from(answer.offset).ok())
    }

    /// The partition's leader, looked up where it is not known.
    pub async fn leader(&self, topic: &str, index: u32) -> Result<i32, KafkaError> {
        if let Some(leader) = self.cluster.leader(topic, index) {
            return Ok(leader);
        }
        self.cluster.refresh(topic).await;
        self.cluster.leader(topic, index).ok_or(KafkaError::NoLeader)
    }

    /// The metadata of one topic or of all. A topic that is not there is in it with an error.
    pub async fn metadata(&self, topic: Option<&str>) -> Result<MetadataResponse, LogError> {
        let topics = topic.as_ref().map(std::slice::from_ref);
        self.cluster.metadata(topics, self.timeout).await.map_err(|error| outcome::unavailable(&error))
    }

    /// Whether the cluster reports that it has no such partition. One broker may not have learned of it yet: every broker that
    /// answers must report the same.
    pub async fn is_gone(&self, topic: &str, index: u32) -> Result<bool, LogError> {
        let answers = self.metadata_of_each(topic).await?;
        Ok(answers.iter().all(|answer| outcome::is_without(answer, topic, index)))
    }

    /// The same for several partitions, asked at the same time. A partition counts as existing where the brokers do not answer.
    pub async fn are_gone(&self, partitions: impl Iterator<Item = (&str, u32)>) -> Vec<bool> {
        let asked = partitions.map(|(topic, index)| self.is_gone(topic, index));
        join_all(asked).await.into_iter().map(|gone| gone.unwrap_or(false)).collect()
    }

    /// The largest number of partitions that a broker reports for the topic. A broker that has not learned of a growth reports fewer.
    pub async fn partition_count(&self, topic: &str) -> Result<u32, LogError> {
        let answers = self.metadata_of_each(topic).await?;
        let topics = answers.iter().flat_map(|answer| &answer.topics);
        let named = topics.filter(|found| found.name.as_ref().is_some_and(|name| name.as_str() == topic));
        Ok(named.map(|found| found.partitions.len() as u32).max().unwrap_or(0))
    }

    /// Checks that a partition exists which the topic does not seem to have: another client may have grown the topic. Only an answer of
    /// the whole cluster makes it `UnknownPartition`.
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
        loop {
            let left = self.timeout.saturating_sub(began.elapsed());
            let error = match attempt(left).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // A partition whose broker failed or has just started is unknown to all brokers for a moment, although it exists.
            let may_be_gone = error == KafkaError::NoLeader || error.code().is_some_and(outcome::is_unknown_partition);
            if may_be_gone && Instant::now() >= check_at {
                if self.is_gone(topic.name(), partition.index).await? {
                    return Err(LogError::UnknownPartition(partition));
                }
                check_at = Instant::now() + METADATA_PROPAGATION_MAX;
            }
            let is_over = began.elapsed() + PAUSE_BEFORE_ASKING_AGAIN >= self.timeout;
            if is_over || !(error.is_passing() || may_be_gone) {
                return Err(outcome::unavailable(&error));
            }
            tokio::time::sleep(PAUSE_BEFORE_ASKING_AGAIN).await;
            self.cluster.refresh(topic.name()).await;
        }
    }
}
