//! Asks the leaders of partitions for the open transactions of this producer (`DescribeProducers`), and for the last stable offsets of
//! the partitions without one.
//!
//! A `DescribeProducers` answer without an open transaction proves little: a former leader may have sent it, and a leader reports a
//! transaction as closed before the marker is replicated. `repair` documents what else is required.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse, ListOffsetsResponse};
use whimbrel_model::PartitionId;

use super::transaction::{FenceError, FencedProducer, MOVING_PAUSE, UNKNOWN_MAX, blocked, not_now, refused};
use crate::kafka::client::cluster::ANSWER_MAX;
use crate::kafka::client::connection::CallError;
use crate::kafka::known_topics::TopicPartition;
use crate::kafka::outcome;
use crate::kafka::queries::LogEnd;
use crate::kafka::requests::{self, LATEST, group_by_topic};

/// The time for which a commit waits for the leaders of some of its partitions while those of others have answered.
const BLOCKED_AFTER: Duration = Duration::from_millis(1500);

/// A transaction of this producer that is open in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenTransaction {
    /// Its first offset.
    pub start: u64,
    /// The epoch of the coordinator that wrote the producer's last marker there; 0 where it wrote none.
    pub coordinator_epoch: i32,
}

/// A partition in which this producer has no transaction open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuietPartition {
    /// The last stable offset. Transactions that end before it are closed on all in-sync replicas. `None` if it is not known.
    pub stable_end: Option<u64>,
    /// The leader epoch under which the leader was asked.
    pub leader_epoch: Option<i32>,
}

pub(super) struct LeaderAnswers {
    /// Partitions in which this producer has a transaction open.
    pub open: HashMap<PartitionId, OpenTransaction>,
    /// Partitions in which this producer has no transaction open.
    pub quiet: HashMap<PartitionId, QuietPartition>,
    /// Partitions whose leader has not answered.
    pub waiting: Vec<TopicPartition>,
    /// A partition that this client may not read, and Kafka's answer.
    refused: Option<(TopicPartition, Code)>,
    /// The reason why a leader has not answered.
    pub why: String,
}

impl FencedProducer {
    /// Asks the leaders of the partitions until all of them have answered. If the leaders of other partitions of the same commit have
    /// answered, it waits for at most [`BLOCKED_AFTER`]. The answers leave out a deleted topic: it has no open transaction, and a write
    /// to it reports that it does not exist.
    ///
    /// `commit_size` is the number of partitions of the commit.
    pub(super) async fn open_transactions(
        &mut self,
        places: &[TopicPartition],
        commit_size: usize,
        deadline: Instant,
    ) -> Result<LeaderAnswers, FenceError> {
        let began = Instant::now();
        let mut asked = self.ask_leaders(places, deadline).await;
        loop {
            if let Some((place, code)) = &asked.refused {
                let index = places.iter().position(|each| each.1 == place.1).unwrap_or(0);
                return Err(refused(place, index, *code, 0));
            }
            let is_blocked = began.elapsed() >= BLOCKED_AFTER && asked.waiting.len() < commit_size;
            let is_late = Instant::now() >= deadline || is_blocked;
            if is_late || began.elapsed() >= UNKNOWN_MAX {
                let gone = self.are_gone(&asked.waiting).await;
                let there = asked.waiting.into_iter().zip(gone).filter(|(_, is_gone)| !is_gone);
                asked.waiting = there.map(|(place, _)| place).collect();
            }
            let Some((topic, _)) = asked.waiting.first() else { return Ok(asked) };
            if is_late && asked.waiting.len() < commit_size {
                return Err(blocked(&asked.waiting, asked.why));
            }
            if is_late {
                return Err(not_now(0, asked.why));
            }
            tokio::time::sleep(MOVING_PAUSE).await;
            self.context.cluster.refresh(topic.name()).await;
            let again = self.ask_leaders(&asked.waiting, deadline).await;
            asked.open.extend(again.open);
            asked.quiet.extend(again.quiet);
            asked = LeaderAnswers { open: asked.open, quiet: asked.quiet, ..again };
        }
    }

    /// Whether the cluster reports that it has no such partition, for each of `places`.
    pub(super) async fn are_gone(&self, places: &[TopicPartition]) -> Vec<bool> {
        let asked = places.iter().map(|(topic, partition)| self.context.queries.is_missing(topic, partition.index));
        // A partition counts as existing where the brokers do not answer.
        let answers = futures_util::future::join_all(asked).await;
        answers.into_iter().map(|is_missing| is_missing.unwrap_or(false)).collect()
    }

    pub(super) async fn ask_leaders(&self, places: &[TopicPartition], deadline: Instant) -> LeaderAnswers {
        let why = "the partition has no leader".to_owned();
        let (open, quiet, waiting) = (HashMap::new(), HashMap::new(), Vec::new());
        let mut asked = LeaderAnswers { open, quiet, waiting, refused: None, why };
        let epoch_of = |place: &TopicPartition| self.context.cluster.leader_epoch(place.0.name(), place.1.index);
        let epochs: HashMap<PartitionId, Option<i32>> = places.iter().map(|place| (place.1, epoch_of(place))).collect();
        let mut by_leader: HashMap<i32, Vec<&TopicPartition>> = HashMap::new();
        for place in places {
            match self.context.cluster.leader(place.0.name(), place.1.index) {
                Some(leader) => by_leader.entry(leader).or_default().push(place),
                None => asked.waiting.push(place.clone()),
            }
        }
        let requests = by_leader.iter().map(|(leader, places)| self.examine(*leader, places, deadline));
        let answers = futures_util::future::join_all(requests).await;
        for ((_, places), answer) in by_leader.iter().zip(answers) {
            let found = |place: &TopicPartition| match &answer {
                Ok((answer, ends)) => open_in(answer, place, self.producer_id())
                    .map(|open| (open, ends.as_ref().and_then(|ends| stable_end_in(ends, place))))
                    .map_err(|code| (Some(code), code.to_string())),
                Err(error) => Err((None, error.to_string())),
            };
            for place in places {
                match found(place) {
                    Ok((Some(open), _)) => drop(asked.open.insert(place.1, open)),
                    Ok((None, stable_end)) => {
                        let leader_epoch = epochs.get(&place.1).copied().flatten();
                        asked.quiet.insert(place.1, QuietPartition { stable_end, leader_epoch });
                    }
                    Err((code, why)) => {
                        let refusal = code.filter(|code| outcome::is_refused_for_good(*code));
                        asked.refused = asked.refused.or(refusal.map(|code| ((*place).clone(), code)));
                        asked.waiting.push((*place).clone());
                        asked.why = why;
                    }
                }
            }
        }
        asked
    }

    /// Asks one leader for the producers and the last stable offsets of its partitions.
    fn examine(
        &self,
        leader: i32,
        places: &[&TopicPartition],
        deadline: Instant,
    ) -> impl Future<Output = Result<(DescribeProducersResponse, Option<ListOffsetsResponse>), CallError>> + Send + use<>
    {
        let partitions = places.iter().map(|(topic, partition)| (topic.wire_name(), partition.index as i32));
        let topics = group_by_topic(partitions).into_iter();
        let topics =
            topics.map(|(name, indexes)| TopicRequest::default().with_name(name).with_partition_indexes(indexes));
        let producers = DescribeProducersRequest::default().with_topics(topics.collect());
        let names = places.iter().map(|(topic, partition)| (topic.wire_name(), partition.index));
        let stable_ends = requests::list_offsets(names, LATEST, LogEnd::Visible);
        let left = deadline.saturating_duration_since(Instant::now()).clamp(MOVING_PAUSE, ANSWER_MAX);
        let (links, cluster) = (self.links.clone(), self.context.cluster.clone());
        async move {
            let late =
                |_| CallError::NotSent(format!("no connection to broker {leader} within {} ms", left.as_millis()));
            let connection = tokio::time::timeout(left, links.to(&cluster, leader)).await.map_err(late)??;
            let answers = tokio::join!(connection.call(&producers, left), connection.call(&stable_ends, left));
            Ok((answers.0?, answers.1.ok()))
        }
    }
}

fn stable_end_in(answer: &ListOffsetsResponse, (topic, partition): &TopicPartition) -> Option<u64> {
    requests::offset_in(answer, topic.name(), partition.index).ok().flatten()
}

/// The producer's open transaction in the partition, as its leader reports it.
fn open_in(
    answer: &DescribeProducersResponse,
    (topic, partition): &TopicPartition,
    producer_id: i64,
) -> Result<Option<OpenTransaction>, Code> {
    let topic = answer.topics.iter().find(|each| each.name.as_str() == topic.name());
    let found =
        topic.and_then(|topic| topic.partitions.iter().find(|each| each.partition_index == partition.index as i32));
    let found = found.ok_or(Code::UnknownServerError)?;
    outcome::check(found.error_code)?;
    let ours = found.active_producers.iter().find(|producer| producer.producer_id.0 == producer_id);
    Ok(ours.and_then(|producer| {
        let start = u64::try_from(producer.current_txn_start_offset).ok()?;
        Some(OpenTransaction { start, coordinator_epoch: producer.coordinator_epoch.max(0) })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::known_topics::KnownTopic;
    use kafka_protocol::messages::ProducerId;
    use kafka_protocol::messages::describe_producers_response::{PartitionResponse, ProducerState, TopicResponse};
    use std::sync::Arc;
    use whimbrel_model::TopicNumber;

    fn answer(error_code: i16, producers: &[(i64, i64)]) -> DescribeProducersResponse {
        let producer = |(id, start): &(i64, i64)| {
            ProducerState::default().with_producer_id(ProducerId(*id)).with_current_txn_start_offset(*start)
        };
        let partition = PartitionResponse::default()
            .with_partition_index(3)
            .with_error_code(error_code)
            .with_active_producers(producers.iter().map(producer).collect());
        let topic = TopicResponse::default().with_name(place().0.wire_name()).with_partitions(vec![partition]);
        DescribeProducersResponse::default().with_topics(vec![topic])
    }

    fn place() -> TopicPartition {
        let topic = KnownTopic::new(TopicNumber(1), "orders".to_owned(), 4, 1000);
        (Arc::new(topic), PartitionId::new(TopicNumber(1), 3))
    }

    #[test]
    fn only_an_open_transaction_of_the_producer_itself_counts() {
        let open = OpenTransaction { start: 40, coordinator_epoch: 0 };
        assert_eq!(open_in(&answer(0, &[(7, 40), (8, -1)]), &place(), 7), Ok(Some(open)));
        assert_eq!(open_in(&answer(0, &[(7, 40), (8, -1)]), &place(), 8), Ok(None));
        assert_eq!(open_in(&answer(0, &[(7, 40)]), &place(), 9), Ok(None));
    }

    #[test]
    fn an_answer_without_the_partition_proves_nothing() {
        let moved = Code::NotLeaderOrFollower;
        assert_eq!(open_in(&answer(moved.code(), &[]), &place(), 7), Err(moved));
        assert!(open_in(&DescribeProducersResponse::default(), &place(), 7).is_err());
    }
}
