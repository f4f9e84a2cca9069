//! Finds stalled partitions that no reader of this process observes. A partition is stalled if its last stable offset is behind the high
//! watermark and does not advance. Each sweep reads the offsets of all known partitions. It reads those of partitions that look stalled
//! again, in all at most [`LOOKS_MAX`] times. `stalled_partitions` collects the observations, and fences close their own transactions.
//!
//! A fence confirms its own commits. The sweep finds transactions of a process that crashed before it could confirm them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::PartitionId;

use super::client::cluster::{ANSWER_MAX, KafkaCluster};
use super::known_topics::{KnownTopics, TopicPartition};
use super::outcome::KafkaError;
use super::queries::LogEnd;
use super::requests::{self, LATEST};
use super::stalled_partitions::StalledPartitions;

/// The pause between two sweeps. The first one comes after [`FIRST_SWEEP_AFTER`].
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
const FIRST_SWEEP_AFTER: Duration = Duration::from_secs(5);
/// The pause before the offsets of partitions that look stalled are read again.
const LOOK_INTERVAL: Duration = Duration::from_millis(600);
const LOOKS_MAX: usize = 10;
const PARTITIONS_PER_REQUEST: usize = 1000;

pub(super) struct StallSweep {
    pub cluster: Arc<KafkaCluster>,
    pub known: Arc<KnownTopics>,
    pub hanging: Arc<StalledPartitions>,
}

/// The last stable offset (`visible`) and the high watermark (`written`) of a partition.
struct Ends {
    place: TopicPartition,
    visible: u64,
    written: u64,
}

impl StallSweep {
    pub async fn run(self) {
        tokio::time::sleep(FIRST_SWEEP_AFTER).await;
        loop {
            self.sweep().await;
            tokio::time::sleep(SWEEP_INTERVAL).await;
        }
    }

    async fn sweep(&self) {
        let place = |partition: PartitionId| Some((self.known.get(partition.topic)?, partition));
        let mut places: Vec<TopicPartition> = self.known.partitions().into_iter().filter_map(place).collect();
        for _ in 0..LOOKS_MAX {
            let mut stalled = Vec::new();
            for some in places.chunks(PARTITIONS_PER_REQUEST) {
                stalled.extend(self.observe(some).await);
            }
            if stalled.is_empty() {
                return;
            }
            places = stalled;
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Records the ends of the partitions. Returns those that look stalled. Partitions whose leader does not answer are left out.
    async fn observe(&self, places: &[TopicPartition]) -> Vec<TopicPartition> {
        let mut stalled = Vec::new();
        for (leader, led) in self.by_leader(places).await {
            for ends in self.ends(leader, &led).await.unwrap_or_default() {
                let (topic, partition) = &ends.place;
                self.hanging.observe(topic.name(), *partition, ends.visible, ends.written);
                if ends.visible < ends.written {
                    stalled.push(ends.place);
                }
            }
        }
        stalled
    }

    /// Groups partitions by their leaders. Does not cache the leaders: a refresh looks up every cached topic, also unused ones.
    async fn by_leader(&self, places: &[TopicPartition]) -> HashMap<i32, Vec<TopicPartition>> {
        let mut names: Vec<&str> = places.iter().map(|(topic, _)| topic.name()).collect();
        names.sort_unstable();
        names.dedup();
        let mut led: HashMap<i32, Vec<TopicPartition>> = HashMap::new();
        let Ok(metadata) = self.cluster.look_up(&names, ANSWER_MAX).await else { return led };
        let mut leaders = HashMap::new();
        for topic in &metadata.topics {
            let name = topic.name.as_ref().map_or("", |name| name.as_str());
            leaders.extend(topic.partitions.iter().map(|each| ((name, each.partition_index), each.leader_id.0)));
        }
        for place in places {
            let leader = leaders.get(&(place.0.name(), place.1.index as i32)).filter(|leader| **leader >= 0);
            if let Some(leader) = leader {
                led.entry(*leader).or_default().push(place.clone());
            }
        }
        led
    }

    /// The offsets of partitions of one leader. Reads the high watermark first, so that records committed between the two requests do
    /// not make a partition look stalled.
    async fn ends(&self, leader: i32, places: &[TopicPartition]) -> Result<Vec<Ends>, KafkaError> {
        let connection = self.cluster.metadata_connection(leader).await?;
        let names = || places.iter().map(|(topic, partition)| (topic.wire_name(), partition.index));
        let written = connection.call(&requests::list_offsets(names(), LATEST, LogEnd::Written), ANSWER_MAX).await?;
        let visible = connection.call(&requests::list_offsets(names(), LATEST, LogEnd::Visible), ANSWER_MAX).await?;
        let ends = places.iter().filter_map(|place| {
            let end = |answer| requests::offset_in(answer, place.0.name(), place.1.index).ok().flatten();
            Some(Ends { place: place.clone(), visible: end(&visible)?, written: end(&written)? })
        });
        Ok(ends.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::known_topics::KnownTopic;
    use crate::kafka::stub_cluster::{PARTITIONS, Respond, StubCluster, TOPIC, topic_name};
    use kafka_protocol::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
    use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};
    use whimbrel_model::TopicNumber;

    /// A leader with a transaction in partition 3 that is open since offset 5.
    struct StalledAt3;

    impl Respond for StalledAt3 {
        fn list_offsets(&self, _: i32, request: ListOffsetsRequest) -> Option<ListOffsetsResponse> {
            let part = |index| {
                let is_behind = index == 3 && request.isolation_level == LogEnd::Visible.isolation();
                let offset = if is_behind { 5 } else { 9 };
                ListOffsetsPartitionResponse::default().with_partition_index(index).with_offset(offset)
            };
            let asked =
                request.topics.iter().flat_map(|topic| &topic.partitions).map(|each| part(each.partition_index));
            let topic = ListOffsetsTopicResponse::default().with_name(topic_name()).with_partitions(asked.collect());
            Some(ListOffsetsResponse::default().with_topics(vec![topic]))
        }
    }

    #[tokio::test]
    async fn a_stalled_partition_without_a_reader_is_found() {
        let brokers = StubCluster::start_with(2, StalledAt3).await;
        let (cluster, known) = (brokers.connect(), Arc::new(KnownTopics::default()));
        cluster.refresh(TOPIC).await;
        known.put(KnownTopic::new(TopicNumber(1), TOPIC.to_owned(), PARTITIONS as u32, 1000));
        let hanging = Arc::new(StalledPartitions::new(Duration::from_secs(3), Arc::new(|_| {})));
        let sweep = StallSweep { cluster, known, hanging: hanging.clone() };
        sweep.sweep().await;
        let stalled = PartitionId::new(TopicNumber(1), 3);
        assert_eq!(hanging.overdue(Duration::from_secs(1)), [(stalled, 5)]);
    }
}
