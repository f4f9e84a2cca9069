//! Maps Kafka's error codes to the errors of the port. Pure functions.

use std::time::Duration;

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::MetadataResponse;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use whimbrel_model::ports::LogError;
use whimbrel_model::{PartitionId, format_duration};

use super::client::connection::CallError;

/// The reason why a request to the brokers failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum KafkaError {
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("{0}")]
    Code(Code),
    #[error("the partition has no leader")]
    NoLeader,
    #[error("{0}")]
    Malformed(String),
}

impl KafkaError {
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Code(code) => Some(*code),
            _ => None,
        }
    }

    /// Whether the same request may succeed a moment later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Call(_) | Self::NoLeader => true,
            Self::Code(code) => is_passing(*code),
            Self::Malformed(_) => false,
        }
    }
}

/// The error of an answer, unless its code is 0.
pub(super) fn check(code: i16) -> Result<(), Code> {
    Code::try_from_code(code).map_or(Ok(()), Err)
}

/// The time that a broker has to replicate a write, in milliseconds: half of `answer_timeout`, so that it answers before this client
/// stops waiting. It then reports the partitions that are not replicated in time, and acknowledges the others.
pub(super) fn broker_timeout_ms(answer_timeout: Duration) -> i32 {
    i32::try_from(answer_timeout.as_millis() / 2).unwrap_or(i32::MAX)
}

/// Whether a record may have been written despite this error. A leader that resigns while a record waits for its replicas answers
/// `NotLeaderOrFollower` (or `KafkaStorageError`) although the record is in its log.
pub(super) fn may_be_written(code: Code) -> bool {
    matches!(
        code,
        Code::RequestTimedOut
            | Code::NotEnoughReplicasAfterAppend
            | Code::NotLeaderOrFollower
            | Code::KafkaStorageError
            | Code::NetworkException
            | Code::UnknownServerError
    )
}

/// The error of a record that Kafka rejected with `code` and has certainly not written.
pub(super) fn append_error(code: Code, partition: PartitionId, size: usize, limit: usize) -> LogError {
    match code {
        Code::MessageTooLarge | Code::RecordListTooLarge => LogError::TooLarge { size, limit },
        _ if is_unknown_partition(code) => LogError::UnknownPartition(partition),
        _ if is_refused_for_good(code) => LogError::Unsupported(format!("Kafka refused the record: {code}")),
        _ => LogError::Unavailable(format!("Kafka did not accept the record: {code}")),
    }
}

/// Whether the topic or the partition does not exist.
pub(super) fn is_unknown_partition(code: Code) -> bool {
    matches!(code, Code::UnknownTopicOrPartition | Code::UnknownTopicId | Code::InvalidTopicException)
}

/// Whether the cluster reports that it has no such partition. A broker that has just started knows no topic and no broker, not even
/// itself: its answer is not the cluster's.
pub(super) fn is_without(metadata: &MetadataResponse, topic: &str, index: u32) -> bool {
    let found = metadata.topics.iter().find(|found| found.name.as_ref().is_some_and(|name| name.as_str() == topic));
    let has = found.is_some_and(|found| found.partitions.iter().any(|each| each.partition_index == index as i32));
    let is_certain = found.is_none_or(|found| match Code::try_from_code(found.error_code) {
        None => true,
        Some(code) => is_unknown_partition(code),
    });
    !metadata.brokers.is_empty() && is_certain && !has
}

/// The id of the topic that a broker lists under the name.
pub(super) fn topic_id(metadata: &MetadataResponse, name: &str) -> Option<String> {
    let is_it = |found: &&MetadataResponseTopic| found.name.as_ref().is_some_and(|each| each.as_str() == name);
    let found = metadata.topics.iter().find(is_it)?;
    (!found.partitions.is_empty() && !found.topic_id.is_nil()).then(|| found.topic_id.to_string())
}

/// Whether a retry cannot help. `InvalidTimestamp` is not among them: our clock or the broker's is wrong, not the record.
pub(super) fn is_refused_for_good(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidRecord
            | Code::MessageTooLarge
            | Code::RecordListTooLarge
            | Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::PolicyViolation
            | Code::UnsupportedForMessageFormat
            | Code::UnsupportedCompressionType
    )
}

/// Whether a newer fence of the same name is open.
pub(super) fn is_fenced(code: Code) -> bool {
    matches!(
        code,
        Code::ProducerFenced | Code::InvalidProducerEpoch | Code::TransactionCoordinatorFenced | Code::FencedInstanceId
    )
}

/// Whether the coordinator of a transaction has to be looked up again, or is not ready yet.
pub(super) fn is_coordinator_moving(code: Code) -> bool {
    matches!(code, Code::CoordinatorLoadInProgress | Code::CoordinatorNotAvailable | Code::NotCoordinator)
}

/// Whether leadership moved or is moving, so that the same request may succeed a moment later.
pub(super) fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::NotLeaderOrFollower
            | Code::LeaderNotAvailable
            | Code::ReplicaNotAvailable
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::OffsetNotAvailable
            | Code::NetworkException
            | Code::RequestTimedOut
            | Code::BrokerNotAvailable
            | Code::KafkaStorageError
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::NotController
            | Code::ThrottlingQuotaExceeded
            | Code::ConcurrentTransactions
    ) || is_coordinator_moving(code)
}

/// The error of a request that was repeated until `kafka.request_timeout` elapsed.
pub(super) fn timed_out(error: &impl std::fmt::Display, request_timeout: Duration) -> LogError {
    let timeout = format_duration(request_timeout);
    LogError::Unavailable(format!("Kafka: {error}; tried for {timeout} (`kafka.request_timeout`)"))
}

pub(super) fn unavailable(error: &impl std::fmt::Display) -> LogError {
    LogError::Unavailable(format!("Kafka: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::metadata_response::{
        MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
    };
    use kafka_protocol::messages::{BrokerId, TopicName};
    use whimbrel_model::TopicNumber;

    fn outcome(code: Code) -> LogError {
        append_error(code, PartitionId::new(TopicNumber(1), 0), 10, 5)
    }

    #[test]
    fn refusals_keep_their_meaning() {
        assert_eq!(outcome(Code::MessageTooLarge), LogError::TooLarge { size: 10, limit: 5 });
        assert!(matches!(outcome(Code::UnknownTopicOrPartition), LogError::UnknownPartition(_)));
        assert!(matches!(outcome(Code::InvalidRecord), LogError::Unsupported(_)));
        assert!(matches!(outcome(Code::InvalidTimestamp), LogError::Unavailable(_)));
        assert!(matches!(outcome(Code::NotEnoughReplicas), LogError::Unavailable(_)));
    }

    #[test]
    fn a_leader_that_resigns_may_have_written_the_record() {
        assert!(may_be_written(Code::NotLeaderOrFollower) && may_be_written(Code::KafkaStorageError));
        assert!(!may_be_written(Code::NotEnoughReplicas) && !may_be_written(Code::MessageTooLarge));
    }

    fn metadata(brokers: usize, error_code: i16, partitions: i32) -> MetadataResponse {
        let partition = |index| MetadataResponsePartition::default().with_partition_index(index);
        let topic = MetadataResponseTopic::default()
            .with_name(Some(TopicName("orders".into())))
            .with_error_code(error_code)
            .with_partitions((0..partitions).map(partition).collect());
        let broker = MetadataResponseBroker::default().with_node_id(BrokerId(1));
        MetadataResponse::default().with_brokers(vec![broker; brokers]).with_topics(vec![topic])
    }

    #[test]
    fn a_partition_is_missing_only_if_the_metadata_lists_brokers() {
        let unknown = Code::UnknownTopicOrPartition.code();
        assert!(is_without(&metadata(1, unknown, 0), "orders", 0));
        assert!(!is_without(&metadata(0, unknown, 0), "orders", 0), "the broker has just started");
        assert!(!is_without(&metadata(1, 0, 2), "orders", 1));
        assert!(is_without(&metadata(1, 0, 2), "orders", 2));
        assert!(!is_without(&metadata(1, Code::TopicAuthorizationFailed.code(), 0), "orders", 0));
    }
}
