//! Tests of deadlines and of refusals, on the sender of one partition and on brokers in this process.

use std::sync::atomic::{AtomicUsize, Ordering};

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{InitProducerIdResponse, ProduceRequest, ProduceResponse, ProducerId};
use tokio::sync::oneshot;

use super::outgoing_batch::{self, SendBatch};
use super::partition_sender::PartitionSender;
use super::*;
use crate::conformance::log::record;
use crate::kafka::stub_cluster::{self, Respond, StubCluster};

const LONG: Duration = Duration::from_secs(8);

fn topic() -> KnownTopic {
    KnownTopic::new(TopicNumber(1), stub_cluster::TOPIC.to_owned(), stub_cluster::PARTITIONS as u32, 1000)
}

fn partition() -> PartitionId {
    PartitionId::new(TopicNumber(1), 0)
}

/// A partition's sender whose queue has one record per deadline.
struct Waiting {
    shared: AppendShared,
    sender: PartitionSender,
    answers: Vec<oneshot::Receiver<AppendOutcome>>,
}

impl Waiting {
    fn new(deadlines: &[Instant]) -> Self {
        let shared = AppendShared {
            settings: KafkaSettings::new("127.0.0.1:1"),
            queues: RwLock::default(),
            ready: Mutex::default(),
            forgotten: Mutex::default(),
            wake: Notify::new(),
            records: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        };
        let (topic, mut answers) = (Arc::new(topic()), Vec::new());
        for deadline in deadlines {
            let (call, answered) = AppendCall::new(1);
            let mut chunk = RecordChunk::new(call, Instant::now(), *deadline);
            shared.reserve(&record("x")).unwrap();
            chunk.push(0, record("x"));
            shared.put(topic.clone(), partition(), chunk);
            answers.push(answered);
        }
        let queues = std::mem::take(&mut *shared.ready.lock().unwrap()).into();
        Self { shared, sender: PartitionSender { queues, ..PartitionSender::default() }, answers }
    }

    /// The records as one batch that was sent before.
    fn sent(deadlines: &[Instant], may_be_written: bool) -> Self {
        let mut waiting = Self::new(deadlines);
        let chunks = waiting.sender.queues[0].state().chunks.drain(..).collect();
        let mut batch = SendBatch::new(Arc::new(topic()), partition(), chunks);
        (batch.is_repeat, batch.may_be_written) = (true, may_be_written);
        waiting.sender.again.push_back(batch);
        waiting
    }

    fn answer(&mut self, at: usize) -> Option<Result<u64, LogError>> {
        self.answers[at].try_recv().ok().map(|outcome| outcome[0].clone())
    }
}

#[test]
fn a_record_with_time_left_does_not_fail_with_an_older_one() {
    let now = Instant::now();
    let mut waiting = Waiting::new(&[now + ROUND_TRIP_MIN / 2, now + LONG]);
    waiting.sender.expire(now, &waiting.shared);
    let old = waiting.answer(0);
    assert!(matches!(old, Some(Err(LogError::Unavailable(_)))), "{old:?}");
    assert_eq!(waiting.sender.gather().map(|batch| batch.count), Some(1));
    assert_eq!(waiting.answer(1), None);
}

#[test]
fn records_with_distant_deadlines_are_not_in_one_batch() {
    let now = Instant::now();
    let near = now + ROUND_TRIP_MIN * 2;
    let mut waiting = Waiting::new(&[near, near + DEADLINE_SPREAD_MAX, now + LONG]);
    assert_eq!(waiting.sender.gather().map(|batch| batch.count), Some(2));
    assert_eq!(waiting.sender.gather().map(|batch| batch.count), Some(1));
}

#[test]
fn an_unsent_batch_loses_only_its_expired_records() {
    let now = Instant::now();
    let mut waiting = Waiting::sent(&[now, now + LONG], false);
    waiting.sender.expire(now, &waiting.shared);
    let old = waiting.answer(0);
    assert!(matches!(old, Some(Err(LogError::Unavailable(_)))), "{old:?}");
    assert_eq!(waiting.sender.again.front().map(|batch| batch.count), Some(1));
    assert_eq!(waiting.shared.records.load(Ordering::Acquire), 1);
}

#[test]
fn a_batch_that_may_be_written_is_repeated_until_its_last_deadline() {
    let now = Instant::now();
    let mut waiting = Waiting::sent(&[now, now + DEADLINE_SPREAD_MAX], true);
    waiting.sender.expire(now, &waiting.shared);
    assert_eq!((waiting.answer(0), waiting.answer(1)), (None, None));
    waiting.sender.expire(now + DEADLINE_SPREAD_MAX, &waiting.shared);
    let answers = [waiting.answer(0), waiting.answer(1)];
    assert!(answers.iter().all(|answer| matches!(answer, Some(Err(LogError::Unknown(_))))), "{answers:?}");
}

#[test]
fn a_request_ends_while_the_callers_of_its_oldest_records_wait() {
    let now = Instant::now();
    let request_by = |second: Instant| {
        let batches = [now, second].map(|deadline| Waiting::sent(&[deadline], true).sender.again.pop_front().unwrap());
        outgoing_batch::answer_by(&batches)
    };
    assert_eq!(request_by(now + DEADLINE_SPREAD_MAX), Some(now + DEADLINE_SPREAD_MAX));
    assert_eq!(request_by(now + LONG), Some(now + REQUEST_GRACE));
}

/// Brokers that accept every record. Broker 1 leads.
#[derive(Default)]
struct Accepting {
    produced: Arc<AtomicUsize>,
    /// The delay with which the leader opens a connection.
    opening_delay: Duration,
    /// Brokers that are cut off from the controllers: they can assign no producer id.
    without_producer_ids: Vec<i32>,
}

impl Respond for Accepting {
    fn produce(&self, _broker: i32, request: ProduceRequest) -> Option<ProduceResponse> {
        self.produced.fetch_add(1, Ordering::AcqRel);
        let topics = request.topic_data.iter().map(|topic| {
            let part = |index| PartitionProduceResponse::default().with_index(index);
            let parts = topic.partition_data.iter().map(|data| part(data.index)).collect();
            TopicProduceResponse::default().with_name(topic.name.clone()).with_partition_responses(parts)
        });
        Some(ProduceResponse::default().with_responses(topics.collect()))
    }

    fn init_producer_id(&self, broker: i32) -> Option<InitProducerIdResponse> {
        let is_refused = self.without_producer_ids.contains(&broker);
        let code = if is_refused { Code::CoordinatorLoadInProgress.code() } else { 0 };
        Some(InitProducerIdResponse::default().with_producer_id(ProducerId(7)).with_error_code(code))
    }

    fn opening_delay(&self, broker: i32) -> Duration {
        if broker == 1 { self.opening_delay } else { Duration::ZERO }
    }
}

/// Appends one record through a log with this `message_timeout`.
async fn append_one(brokers: Accepting, message_timeout: Duration) -> Result<u64, LogError> {
    let brokers = StubCluster::start_with(2, brokers).await;
    brokers.set_leader(1);
    let settings = KafkaSettings { message_timeout, ..KafkaSettings::new("127.0.0.1:1") };
    let cluster = brokers.connect();
    let queries = Arc::new(Queries::new(cluster.clone(), settings.request_timeout, Arc::new(|_| {})));
    let appender = Appender::start(&settings, cluster, queries);
    let known = KnownTopics::default();
    known.put(topic());
    let outcome = appender.append(&known, vec![Entry { partition: partition(), record: record("x") }]).await;
    outcome.into_iter().next().unwrap()
}

#[tokio::test]
async fn a_record_is_not_sent_after_its_deadline_where_the_connection_opens_late() {
    let produced = Arc::new(AtomicUsize::new(0));
    let message_timeout = Duration::from_secs(1);
    let brokers = Accepting { produced: produced.clone(), opening_delay: message_timeout * 2, ..Accepting::default() };
    let outcome = append_one(brokers, message_timeout).await;
    assert!(matches!(outcome, Err(LogError::Unavailable(_))), "{outcome:?}");
    assert_eq!(produced.load(Ordering::Acquire), 0);
}

#[tokio::test]
async fn another_broker_is_asked_where_one_assigns_no_producer_id() {
    let brokers = Accepting { without_producer_ids: vec![0], ..Accepting::default() };
    assert_eq!(append_one(brokers, LONG).await, Ok(0));
}

#[tokio::test]
async fn a_publish_that_failed_without_a_producer_id_names_the_reason() {
    let brokers = Accepting { without_producer_ids: vec![0, 1], ..Accepting::default() };
    let error = append_one(brokers, Duration::from_secs(3)).await.unwrap_err().to_string();
    assert!(error.contains("producer id") && error.contains("CoordinatorLoadInProgress"), "{error}");
}
