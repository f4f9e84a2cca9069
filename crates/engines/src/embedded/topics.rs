//! The `LogTopics` port on the storage crate: a topic is a folder of partitions.

use std::io;

use whimbrel_model::ports::{ExactTopic, LogError, LogTopics, PartitionStatus, PortFuture, TopicStatus};
use whimbrel_model::{ExistingTopic, NamedBounds, PartitionId, Retention, TopicNumber, TopicSpec};
use whimbrel_storage::{PartitionKey, TopicRetention};

use super::EmbeddedLog;

/// The number of the single node of an embedded log.
const ONLY_NODE: i32 = 0;

impl LogTopics for EmbeddedLog {
    fn create<'a>(&'a self, spec: &'a TopicSpec) -> PortFuture<'a, Result<u32, LogError>> {
        Box::pin(async move {
            self.make_partitions(spec).await?;
            Ok(self.store.partition_count(spec.number.0))
        })
    }

    fn alter<'a>(&'a self, spec: &'a TopicSpec, _: NamedBounds) -> PortFuture<'a, Result<(), LogError>> {
        Box::pin(self.make_partitions(spec))
    }

    /// The topic number: the catalogue never reuses it.
    fn identity<'a>(&'a self, topic: TopicNumber, _: &'a str) -> PortFuture<'a, Result<Option<String>, LogError>> {
        let is_here = self.store.partition_count(topic.0) > 0;
        Box::pin(async move { Ok(is_here.then(|| topic.0.to_string())) })
    }

    fn delete<'a>(&'a self, topic: ExactTopic<'a>) -> PortFuture<'a, Result<(), LogError>> {
        let number = topic.number.0;
        Box::pin(async move { self.blocking(move |store| store.delete_topic(number)).await?.map_err(io_error) })
    }

    fn describe(&self, topic: TopicNumber) -> PortFuture<'_, Result<TopicStatus, LogError>> {
        Box::pin(async move {
            self.blocking(move |store| {
                let partition = |index| PartitionStatus {
                    index,
                    leader: Some(ONLY_NODE),
                    replicas: vec![ONLY_NODE],
                    in_sync: vec![ONLY_NODE],
                    bytes: store.bytes_on_disk(PartitionKey { topic: topic.0, partition: index }).ok(),
                };
                match store.partition_count(topic.0) {
                    0 => Err(LogError::UnknownPartition(PartitionId::new(topic, 0))),
                    count => Ok(TopicStatus { partitions: (0..count).map(partition).collect() }),
                }
            })
            .await?
        })
    }

    fn exists<'a>(&'a self, _: &'a str) -> PortFuture<'a, Result<bool, LogError>> {
        Box::pin(async { Ok(false) })
    }

    fn found<'a>(
        &'a self,
        _: &'a (dyn Fn(&str) -> bool + Sync),
    ) -> PortFuture<'a, Result<Vec<ExistingTopic>, LogError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

impl EmbeddedLog {
    async fn make_partitions(&self, spec: &TopicSpec) -> Result<(), LogError> {
        for (asked, name) in [(spec.replicas, "replicas"), (spec.min_insync, "min_insync")] {
            if asked.is_some_and(|number| number > 1) {
                return Err(LogError::Unsupported(format!(
                    "the embedded log keeps one copy on one machine, so `{name}` must be 1; use the Kafka engine for more copies"
                )));
            }
        }
        let (topic, partitions, retention) = (spec.number.0, spec.partitions, retention_of(spec.retention));
        self.blocking(move |store| {
            store.create_partitions(topic, partitions)?;
            store.set_retention(topic, retention);
            Ok(())
        })
        .await?
        .map_err(io_error)
    }
}

fn retention_of(retention: Retention) -> TopicRetention {
    TopicRetention { time: retention.time, bytes: retention.bytes }
}

fn io_error(error: io::Error) -> LogError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => LogError::DiskFull(error.to_string()),
        _ => LogError::Unavailable(error.to_string()),
    }
}
