//! Requests that several parts of the engine send.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ProduceRequest, TopicName};
use whimbrel_model::PartitionId;

use super::known::KnownTopic;
use super::outcome;

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
