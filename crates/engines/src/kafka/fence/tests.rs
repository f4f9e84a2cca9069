//! Tests of fences on brokers that disagree.

use super::*;
use crate::kafka::stub_cluster::{PARTITIONS, Respond, StubCluster, TOPIC, TopicView};
use bytes::Bytes;
use kafka_protocol::messages::{InitProducerIdResponse, ProducerId};
use whimbrel_model::{Headers, PartitionId, Record, Timestamp, TopicNumber};

const NUMBER: TopicNumber = TopicNumber(1);
const TIMEOUT: Duration = Duration::from_secs(1);

/// Brokers that assign producer ids and accept no transaction.
struct IdsOnly;

impl Respond for IdsOnly {
    fn init_producer_id(&self, _: i32) -> Option<InitProducerIdResponse> {
        Some(InitProducerIdResponse::default().with_producer_id(ProducerId(1)))
    }
}

async fn brokers(count: usize) -> StubCluster {
    StubCluster::start_with(count, IdsOnly).await
}

/// A context whose topic has `partitions` partitions, as far as this process knows.
fn context(brokers: &StubCluster, partitions: u32) -> FenceContext {
    let cluster = brokers.connect();
    let known = Arc::new(KnownTopics::default());
    known.put(KnownTopic::new(NUMBER, TOPIC.to_owned(), partitions, 1 << 20));
    let events: EventSink = Arc::new(|_| {});
    FenceContext {
        queries: Arc::new(Queries::new(cluster.clone(), TIMEOUT)),
        fetcher: Arc::new(Fetcher::new(cluster.clone(), 1)),
        hanging: Arc::new(Hanging::new(TIMEOUT, events.clone())),
        transactional_id: "holds/1".to_owned(),
        timeout: TIMEOUT,
        write_timeout: TIMEOUT,
        compression: Compression::None,
        cluster,
        known,
        events,
    }
}

fn entry(index: u32) -> Entry {
    let (value, timestamp) = (Bytes::from_static(b"x"), Timestamp::from_millis(1));
    let record = Record { key: None, value, headers: Headers::EMPTY, timestamp };
    Entry { partition: PartitionId::new(NUMBER, index), record }
}

async fn outcome_at(brokers: &StubCluster, index: u32) -> CommitOutcome {
    let context = context(brokers, 4);
    // A read of a partition that does not exist has looked the topic up a moment ago.
    assert!(context.known.get(NUMBER).unwrap().may_look_up(Instant::now()));
    FenceHandle::open(context).await.unwrap().commit(vec![entry(index)]).await
}

#[tokio::test]
async fn a_new_fence_follows_the_leader_that_its_coordinator_knows() {
    let brokers = brokers(2).await;
    let context = context(&brokers, PARTITIONS as u32);
    let cluster = context.cluster.clone();
    cluster.refresh(TOPIC).await;
    assert_eq!(cluster.leader(TOPIC, 0), Some(0));
    brokers.set_topic(1, TopicView { partitions: PARTITIONS, leader: 1, leader_epoch: 2 });
    let _fence = FenceHandle::open(context).await.unwrap();
    assert_eq!(cluster.leader(TOPIC, 0), Some(1));
}

#[tokio::test]
async fn a_partition_that_one_broker_knows_is_not_refused() {
    let brokers = brokers(3).await;
    for behind in [0, 1] {
        brokers.set_topic(behind, TopicView { partitions: 4, leader: 0, leader_epoch: 0 });
    }
    let outcome = outcome_at(&brokers, 6).await;
    assert!(matches!(outcome, CommitOutcome::NotNow(_)), "the stub accepts no transaction: {outcome:?}");
}

#[tokio::test]
async fn a_partition_that_no_broker_knows_is_refused() {
    let brokers = brokers(3).await;
    let outcome = outcome_at(&brokers, PARTITIONS as u32).await;
    assert!(
        matches!(outcome, CommitOutcome::Refused { index: 0, error: LogError::UnknownPartition(_) }),
        "{outcome:?}"
    );
}
