//! The transactions that a producer has open, as the leaders of the partitions report them (`DescribeProducers`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse};
use whimbrel_model::PartitionId;

use super::transaction::{FencedProducer, MOVING_PAUSE, UNKNOWN_MAX, WriteError, not_now};
use crate::kafka::client::cluster::ANSWER_MAX;
use crate::kafka::client::connection::CallError;
use crate::kafka::known::KnownTopic;
use crate::kafka::outcome;

/// A partition with its topic.
pub(super) type Place = (Arc<KnownTopic>, PartitionId);

impl FencedProducer {
    /// The partitions in which this producer has a transaction open, each with its first offset. Asks again until every leader has
    /// answered.
    pub(super) async fn open_transactions(
        &mut self,
        places: &[Place],
        deadline: Instant,
    ) -> Result<HashMap<PartitionId, u64>, WriteError> {
        let mut open = HashMap::new();
        let mut waiting: Vec<&Place> = places.iter().collect();
        let mut unknown_since: Option<Instant> = None;
        while !waiting.is_empty() {
            let mut why = "the partition has no leader".to_owned();
            let mut by_leader: HashMap<i32, Vec<&Place>> = HashMap::new();
            for place in &waiting {
                if let Some(leader) = self.context.cluster.leader(place.0.name(), place.1.index) {
                    by_leader.entry(leader).or_default().push(place);
                }
            }
            let asked = by_leader.iter().map(|(leader, places)| self.describe_producers(*leader, places, deadline));
            let answers = futures_util::future::join_all(asked).await;
            for ((_, places), answer) in by_leader.iter().zip(answers) {
                let answer = match answer {
                    Ok(answer) => answer,
                    Err(error) => {
                        why = error.to_string();
                        continue;
                    }
                };
                for place in places {
                    match open_in(&answer, place, self.producer_id()) {
                        Ok(found) => {
                            open.extend(found.map(|at| (place.1, at)));
                            waiting.retain(|each| each.1 != place.1);
                        }
                        Err(code) => why = code.to_string(),
                    }
                }
            }
            let Some((topic, partition)) = waiting.first() else { break };
            // A topic that was deleted has nothing open. Writing to it reports that it does not exist.
            if unknown_since.get_or_insert_with(Instant::now).elapsed() >= UNKNOWN_MAX {
                unknown_since = None;
                if self.context.queries.is_gone(topic.name(), partition.index).await.unwrap_or(false) {
                    waiting.remove(0);
                    continue;
                }
            }
            if Instant::now() >= deadline {
                return Err(not_now(0, why));
            }
            tokio::time::sleep(MOVING_PAUSE).await;
            self.context.cluster.refresh(topic.name()).await;
        }
        Ok(open)
    }

    fn describe_producers(
        &self,
        leader: i32,
        places: &[&Place],
        deadline: Instant,
    ) -> impl Future<Output = Result<DescribeProducersResponse, CallError>> + Send + use<> {
        let mut topics: Vec<TopicRequest> = Vec::new();
        for (topic, partition) in places {
            let index = partition.index as i32;
            match topics.iter_mut().find(|each| each.name.as_str() == topic.name()) {
                Some(topic) => topic.partition_indexes.push(index),
                None => topics
                    .push(TopicRequest::default().with_name(topic.wire_name()).with_partition_indexes(vec![index])),
            }
        }
        let request = DescribeProducersRequest::default().with_topics(topics);
        let left = deadline.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(20), ANSWER_MAX);
        let (links, cluster) = (self.links.clone(), self.context.cluster.clone());
        async move { links.to(&cluster, leader).await?.call(&request, left).await }
    }
}

/// Where the producer has a transaction open in the partition, by a leader's answer.
fn open_in(
    answer: &DescribeProducersResponse,
    (topic, partition): &Place,
    producer_id: i64,
) -> Result<Option<u64>, Code> {
    let topic = answer.topics.iter().find(|each| each.name.as_str() == topic.name());
    let found =
        topic.and_then(|topic| topic.partitions.iter().find(|each| each.partition_index == partition.index as i32));
    let found = found.ok_or(Code::UnknownServerError)?;
    outcome::check(found.error_code)?;
    let ours = found.active_producers.iter().find(|producer| producer.producer_id.0 == producer_id);
    Ok(ours.and_then(|producer| u64::try_from(producer.current_txn_start_offset).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::ProducerId;
    use kafka_protocol::messages::describe_producers_response::{PartitionResponse, ProducerState, TopicResponse};
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

    fn place() -> Place {
        let topic = KnownTopic::new(TopicNumber(1), "orders".to_owned(), 4, 1000);
        (Arc::new(topic), PartitionId::new(TopicNumber(1), 3))
    }

    #[test]
    fn only_an_open_transaction_of_the_producer_itself_counts() {
        assert_eq!(open_in(&answer(0, &[(7, 40), (8, -1)]), &place(), 7), Ok(Some(40)));
        assert_eq!(open_in(&answer(0, &[(7, 40), (8, -1)]), &place(), 8), Ok(None));
        assert_eq!(open_in(&answer(0, &[(7, 40)]), &place(), 9), Ok(None));
    }

    #[test]
    fn an_answer_without_the_partition_says_nothing() {
        let moved = Code::NotLeaderOrFollower;
        assert_eq!(open_in(&answer(moved.code(), &[]), &place(), 7), Err(moved));
        assert!(open_in(&DescribeProducersResponse::default(), &place(), 7).is_err());
    }
}
