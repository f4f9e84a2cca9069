//! Kafka's errors in the port's words. Pure: a code goes in, an error comes out.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::Metadata;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::LogError;

use super::native::Persistence;

/// What became of a record whose delivery failed with `code`.
///
/// Persistence is judged before the code: the code is that of the last attempt, and an earlier one that was never answered may
/// have written the record all the same.
pub(super) fn append_error(
    code: Code,
    persistence: Persistence,
    partition: PartitionId,
    size: usize,
    limit: usize,
) -> LogError {
    if persistence == Persistence::Possible {
        return LogError::Unknown(format!("Kafka has not acknowledged the record: {code}"));
    }
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            LogError::TooLarge { size, limit }
        }
        _ if is_unknown_partition(code) => LogError::UnknownPartition(partition),
        Code::QueueFull => LogError::Overloaded("the queue to Kafka is full".to_owned()),
        _ if is_refused_for_good(code) => LogError::Unsupported(format!("Kafka refuses the record: {code}")),
        _ => LogError::Unavailable(format!("Kafka did not take the record: {code}")),
    }
}

/// Whether the topic or the partition is not there.
pub(super) fn is_unknown_partition(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownPartition
            | Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownTopicId
            | Code::InvalidTopic
    )
}

/// Whether the cluster says that it has no such partition. A broker that was started a moment ago knows no topic and no broker, not
/// even itself: what it says is not the cluster's word.
pub(super) fn is_without(metadata: &Metadata, topic: &str, index: u32) -> bool {
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let has = found.is_some_and(|found| found.partitions().iter().any(|each| each.id() == index as i32));
    !metadata.brokers().is_empty() && !has
}

/// Whether trying again cannot help. A time that Kafka does not believe is not among them: our clock or its own is wrong, and that is
/// no fault of the record.
fn is_refused_for_good(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidRecord
            | Code::InvalidMessage
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
        Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch | Code::TransactionCoordinatorFenced
    )
}

/// Whether leadership moved or is moving, so that the same question may be answered a moment later.
pub(super) fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::NotLeaderForPartition
            | Code::LeaderNotAvailable
            | Code::ReplicaNotAvailable
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::OffsetNotAvailable
            | Code::BrokerTransportFailure
            | Code::NetworkException
            | Code::RequestTimedOut
            | Code::WaitCache
            | Code::DestroyBroker
            | Code::BrokerNotAvailable
            | Code::KafkaStorageError
    )
}

/// The error of a question to the broker about one partition.
pub(super) fn question_error(error: &KafkaError, partition: PartitionId) -> LogError {
    match error.rdkafka_error_code() {
        Some(code) if is_unknown_partition(code) => LogError::UnknownPartition(partition),
        _ => unavailable(error),
    }
}

pub(super) fn unavailable(error: &KafkaError) -> LogError {
    LogError::Unavailable(format!("Kafka: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::TopicNumber;

    fn outcome(code: Code, persistence: Persistence) -> LogError {
        append_error(code, persistence, PartitionId::new(TopicNumber(1), 0), 10, 5)
    }

    #[test]
    fn a_record_that_may_have_been_sent_is_unknown_and_one_that_was_not_is_unavailable() {
        assert!(matches!(outcome(Code::MessageTimedOut, Persistence::Possible), LogError::Unknown(_)));
        assert!(matches!(outcome(Code::MessageTimedOut, Persistence::Excluded), LogError::Unavailable(_)));
        assert!(matches!(outcome(Code::PurgeInflight, Persistence::Possible), LogError::Unknown(_)));
    }

    #[test]
    fn a_retry_that_is_refused_does_not_undo_a_first_send_that_was_never_answered() {
        let refusals = [
            Code::TopicAuthorizationFailed,
            Code::PolicyViolation,
            Code::MessageSizeTooLarge,
            Code::UnknownTopicOrPartition,
            Code::QueueFull,
        ];
        for code in refusals {
            assert!(matches!(outcome(code, Persistence::Possible), LogError::Unknown(_)), "{code}");
        }
        assert!(matches!(outcome(Code::TopicAuthorizationFailed, Persistence::Excluded), LogError::Unsupported(_)));
    }

    #[test]
    fn refusals_keep_their_meaning() {
        assert_eq!(
            outcome(Code::MessageSizeTooLarge, Persistence::Excluded),
            LogError::TooLarge { size: 10, limit: 5 }
        );
        assert!(matches!(outcome(Code::QueueFull, Persistence::Excluded), LogError::Overloaded(_)));
        assert!(matches!(outcome(Code::UnknownTopicOrPartition, Persistence::Excluded), LogError::UnknownPartition(_)));
        assert!(matches!(outcome(Code::InvalidRecord, Persistence::Excluded), LogError::Unsupported(_)));
        assert!(matches!(outcome(Code::InvalidTimestamp, Persistence::Excluded), LogError::Unavailable(_)));
    }
}
