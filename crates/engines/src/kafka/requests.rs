//! Requests that several parts of the engine send.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{BrokerId, ListOffsetsRequest, ListOffsetsResponse, ProduceRequest, TopicName};
use whimbrel_model::PartitionId;

use super::known_topics::KnownTopic;
use super::outcome::{self, KafkaError};
use super::queries::LogEnd;

/// The special timestamps of `ListOffsets`.
pub(super) const LATEST: i64 = -1;
pub(super) const EARLIEST: i64 = -2;

/// Groups the partitions of a request by topic, in the order in which the topics first appear.
pub(super) fn group_by_topic<T>(partitions: impl IntoIterator<Item = (TopicName, T)>) -> Vec<(TopicName, Vec<T>)> {
    let mut topics: Vec<(TopicName, Vec<T>)> = Vec::new();
    for (name, partition) in partitions {
        match topics.iter_mut().find(|(other, _)| *other == name) {
            Some((_, partitions)) => partitions.push(partition),
            None => topics.push((name, vec![partition])),
        }
    }
    topics
}

/// A request to write one encoded batch to each of these partitions on all in-sync replicas.
pub(super) fn produce<'a>(
    batches: impl IntoIterator<Item = (&'a KnownTopic, PartitionId, Option<Bytes>)>,
    timeout: Duration,
) -> ProduceRequest {
    let partitions = batches.into_iter().map(|(topic, partition, records)| {
        let data = PartitionProduceData::default().with_index(partition.index as i32).with_records(records);
        (topic.wire_name(), data)
    });
    let topics = group_by_topic(partitions).into_iter();
    let topics = topics.map(|(name, data)| TopicProduceData::default().with_name(name).with_partition_data(data));
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(outcome::broker_timeout_ms(timeout))
        .with_topic_data(topics.collect())
}

/// A request for the offsets of these partitions at a time, or at [`LATEST`] or [`EARLIEST`]. Only the leader of a partition answers it.
pub(super) fn list_offsets(
    partitions: impl IntoIterator<Item = (TopicName, u32)>,
    time: i64,
    end: LogEnd,
) -> ListOffsetsRequest {
    let partition = |(name, index): (TopicName, u32)| {
        let partition = ListOffsetsPartition::default()
            .with_partition_index(index as i32)
            .with_timestamp(time)
            .with_current_leader_epoch(-1);
        (name, partition)
    };
    let topics = group_by_topic(partitions.into_iter().map(partition)).into_iter();
    let topics =
        topics.map(|(name, partitions)| ListOffsetsTopic::default().with_name(name).with_partitions(partitions));
    ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_isolation_level(end.isolation())
        .with_topics(topics.collect())
}

/// The offset of a partition in the answer to [`list_offsets`]. `None` if every record is earlier than the requested time.
pub(super) fn offset_in(answer: &ListOffsetsResponse, topic: &str, index: u32) -> Result<Option<u64>, KafkaError> {
    let found = answer.topics.iter().find(|each| each.name.as_str() == topic);
    let found = found.and_then(|found| found.partitions.iter().find(|each| each.partition_index == index as i32));
    let found = found.ok_or_else(|| KafkaError::Malformed("the answer lacks the partition".to_owned()))?;
    outcome::check(found.error_code).map_err(KafkaError::Code)?;
    Ok(u64::try_from(found.offset).ok())
}
