//! Tests of topics that are missing.

use std::sync::Mutex;

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};
use whimbrel_model::TopicNumber;

use super::*;
use crate::kafka::stub_cluster::{PARTITIONS, Respond, StubCluster, TOPIC, TopicView, topic_name};

/// Brokers that answer metadata requests only.
struct MetadataOnly;

impl Respond for MetadataOnly {}

/// The kinds of the events, and queries that report a missing topic at once.
fn queries(brokers: &StubCluster) -> (Queries, Arc<Mutex<Vec<&'static str>>>) {
    let kinds: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let kept = kinds.clone();
    let events: EventSink = Arc::new(move |event| kept.lock().unwrap().push(event.kind));
    let queries = Queries::new(brokers.connect(), Duration::from_secs(2), events);
    (Queries { report_missing_after: Duration::ZERO, ..queries }, kinds)
}

fn topic() -> KnownTopic {
    KnownTopic::new(TopicNumber(1), TOPIC.to_owned(), PARTITIONS as u32, 1 << 20)
}

/// Brokers, queries that have asked them for the topic, and the kinds of the events.
async fn known_on(count: usize) -> (StubCluster, Queries, Arc<Mutex<Vec<&'static str>>>, KnownTopic) {
    let brokers = StubCluster::start_with(count, MetadataOnly).await;
    let (queries, events) = queries(&brokers);
    queries.refresh(TOPIC).await;
    (brokers, queries, events, topic())
}

#[tokio::test]
async fn a_topic_that_another_application_deleted_is_reported_once() {
    let (brokers, queries, events, topic) = known_on(2).await;
    assert_eq!(queries.is_missing(&topic, 3).await, Ok(false));
    brokers.delete_topic();
    for index in 0..4 {
        assert_eq!(queries.is_missing(&topic, index).await, Ok(true));
    }
    while events.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(queries.is_missing(&topic, 0).await, Ok(true));
    assert!(!topic.missing.begin_report(), "a second report would begin");
    assert_eq!(*events.lock().unwrap(), ["topic_missing"]);
}

#[tokio::test]
async fn a_topic_that_is_deleted_through_whimbrel_is_not_reported() {
    let (brokers, queries, events, topic) = known_on(1).await;
    brokers.delete_topic();
    topic.missing.expect();
    assert_eq!(queries.is_missing(&topic, 0).await, Ok(true));
    // A report that had begun would be due, or done with its event.
    assert!(!topic.missing.finish_report(true));
    assert_eq!(*events.lock().unwrap(), [] as [&str; 0]);
}

#[tokio::test]
async fn a_topic_that_one_broker_has_is_not_missing() {
    let (brokers, queries, _, topic) = known_on(2).await;
    brokers.delete_topic();
    brokers.set_topic(1, TopicView { partitions: PARTITIONS, leader: 1, leader_epoch: 0 });
    assert_eq!(queries.is_missing(&topic, 0).await, Ok(false));
    assert!(!topic.missing.is_whole_topic());
}

#[tokio::test]
async fn a_missing_partition_is_remembered_and_asked_for_again_later() {
    let (brokers, queries, _, topic) = known_on(1).await;
    brokers.delete_topic();
    assert_eq!(queries.is_still_missing(&topic, 0).await, Ok(false), "it was not missing before");
    assert_eq!(queries.is_missing(&topic, 0).await, Ok(true));
    assert!((0..PARTITIONS as u32).all(|index| topic.missing.at(index).is_some()), "the whole topic is missing");
    brokers.set_topic(0, TopicView { partitions: PARTITIONS, leader: 0, leader_epoch: 0 });
    // The brokers are not asked: they would report that it exists.
    let now = Instant::now();
    topic.missing.learn(0, true, now + MISSING_FOR);
    assert_eq!(queries.is_still_missing(&topic, 0).await, Ok(true));
    topic.missing.learn(0, true, now.checked_sub(MISSING_FOR).unwrap());
    assert_eq!(queries.is_still_missing(&topic, 0).await, Ok(false));
    assert_eq!(topic.missing.at(0), None);
}

#[tokio::test]
async fn the_error_of_a_request_names_the_configured_timeout() {
    /// Brokers whose leaders have moved.
    struct Moved;
    impl Respond for Moved {
        fn list_offsets(&self, _: i32, _: ListOffsetsRequest) -> Option<ListOffsetsResponse> {
            let part = ListOffsetsPartitionResponse::default().with_error_code(Code::NotLeaderOrFollower.code());
            let topic = ListOffsetsTopicResponse::default().with_name(topic_name()).with_partitions(vec![part]);
            Some(ListOffsetsResponse::default().with_topics(vec![topic]))
        }
    }
    let brokers = StubCluster::start_with(1, Moved).await;
    let ((queries, _), topic) = (queries(&brokers), topic());
    let error =
        queries.bounds(&topic, PartitionId::new(TopicNumber(1), 0), LogEnd::Written).await.unwrap_err().to_string();
    assert!(error.contains("tried for 2s (`kafka.request_timeout`)"), "{error}");
    assert!(!error.contains(" 0 ms"), "{error}");
}
