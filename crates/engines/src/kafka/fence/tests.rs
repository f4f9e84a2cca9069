//! Tests of fences on brokers that disagree, that write transaction markers late, or that lack a partition or its leader.

use super::*;
use crate::kafka::stub_cluster::{PARTITIONS, Respond, StubCluster, TOPIC, TopicView};
use bytes::Bytes;
use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::describe_producers_response::{PartitionResponse, ProducerState, TopicResponse};
use kafka_protocol::messages::describe_transactions_response::TransactionState;
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, DescribeProducersRequest, DescribeProducersResponse,
    DescribeTransactionsResponse, EndTxnRequest, EndTxnResponse, InitProducerIdResponse, ListOffsetsRequest,
    ListOffsetsResponse, ProduceRequest, ProduceResponse, ProducerId, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use kafka_protocol::protocol::StrBytes;
use std::sync::Mutex;
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

/// A context whose topic has `partitions` partitions in the cache of this process.
fn context(brokers: &StubCluster, partitions: u32) -> FenceContext {
    context_with(brokers, partitions, Arc::new(|_| {}))
}

fn context_with(brokers: &StubCluster, partitions: u32, events: EventSink) -> FenceContext {
    let cluster = brokers.connect();
    let known = Arc::new(KnownTopics::default());
    known.put(KnownTopic::new(NUMBER, TOPIC.to_owned(), partitions, 1 << 20));
    FenceContext {
        queries: Arc::new(Queries::new(cluster.clone(), TIMEOUT, events.clone())),
        fetcher: Arc::new(Fetcher::new(cluster.clone(), 1)),
        hanging: Arc::new(StalledPartitions::new(TIMEOUT, events.clone())),
        transactional_id: "holds/1".to_owned(),
        timeout: TIMEOUT,
        write_timeout: TIMEOUT,
        compression: Compression::None,
        stalled_after: TIMEOUT,
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

/// Brokers whose leader writes the marker of the first transaction late, or never.
#[derive(Clone, Default)]
struct LateMarker(Arc<Mutex<Transactions>>);

#[derive(Default)]
struct Transactions {
    ended: usize,
    /// The number of times that the leader reports the first transaction as open after it was ended.
    reported_open: usize,
    reported_open_max: usize,
    /// The code with which the leader answers a request to write a marker.
    marker_code: Option<Code>,
    /// Whether the leader answers the request for the first marker with a timeout, although it has written the marker.
    is_first_marker_unclear: bool,
    /// The outcomes of the markers that the client wrote: whether each was a commit.
    markers: Vec<bool>,
    marker_epochs: Vec<i16>,
    /// The number of transactions that began while the first one was open.
    begun_behind_open: usize,
    begun_epochs: Vec<i16>,
    epochs: i16,
    /// The number of times that the coordinator reports the first transaction as unfinished.
    unfinished_reports_max: usize,
    unfinished_reports: usize,
    /// The number of times that the coordinator was asked whether it has finished.
    finish_requests: usize,
    /// The number of transactions begun before the coordinator reported that it had finished the first one.
    begun_unfinished: usize,
    /// The last stable offset of every partition, where the leader reports one.
    stable_end: Option<i64>,
    /// The number of times that the coordinator answers an attempt to begin a transaction with a retriable error.
    unclear_begins: usize,
    /// The partition in which the first transaction is open; `None`: in all.
    only_open_in: Option<i32>,
    produced: usize,
    /// The number of times that the coordinator answers a commit with an order to abort.
    abortable_commits: usize,
    /// Whether the coordinator answers commits with the report that it loads its log.
    is_loading: bool,
}

impl Transactions {
    /// Whether the marker of the first transaction is missing.
    fn is_open(&self) -> bool {
        self.ended == 1 && self.markers.is_empty() && self.reported_open < self.reported_open_max
    }

    fn is_unfinished(&self) -> bool {
        self.ended == 1 && self.unfinished_reports < self.unfinished_reports_max
    }
}

impl LateMarker {
    fn after_reports(reported_open_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Transactions { reported_open_max, ..Transactions::default() })))
    }

    fn get<T>(&self, value: impl Fn(&mut Transactions) -> T) -> T {
        value(&mut self.0.lock().unwrap())
    }
}

impl Respond for LateMarker {
    fn init_producer_id(&self, _: i32) -> Option<InitProducerIdResponse> {
        let epoch = self.get(|transactions| {
            transactions.epochs += 1;
            transactions.epochs - 1
        });
        Some(InitProducerIdResponse::default().with_producer_id(ProducerId(1)).with_producer_epoch(epoch))
    }

    fn list_offsets(&self, _: i32, request: ListOffsetsRequest) -> Option<ListOffsetsResponse> {
        let Some(end) = self.get(|transactions| transactions.stable_end) else {
            return Some(ListOffsetsResponse::default());
        };
        let topics = request.topics.iter().map(|topic| {
            let part = |each: &ListOffsetsPartition| {
                ListOffsetsPartitionResponse::default().with_partition_index(each.partition_index).with_offset(end)
            };
            let parts = topic.partitions.iter().map(part).collect();
            ListOffsetsTopicResponse::default().with_name(topic.name.clone()).with_partitions(parts)
        });
        Some(ListOffsetsResponse::default().with_topics(topics.collect()))
    }

    fn describe_transactions(&self) -> Option<DescribeTransactionsResponse> {
        let state = self.get(|transactions| {
            transactions.finish_requests += 1;
            let is_unfinished = transactions.is_unfinished();
            transactions.unfinished_reports += usize::from(is_unfinished);
            if is_unfinished { "PrepareCommit" } else { "CompleteCommit" }
        });
        let state = TransactionState::default().with_transaction_state(StrBytes::from_static_str(state));
        Some(DescribeTransactionsResponse::default().with_transaction_states(vec![state]))
    }

    fn add_partitions_to_txn(&self, request: AddPartitionsToTxnRequest) -> Option<AddPartitionsToTxnResponse> {
        let is_unclear = self.get(|transactions| {
            transactions.begun_behind_open += usize::from(transactions.is_open());
            transactions.begun_unfinished += usize::from(transactions.is_unfinished());
            transactions.begun_epochs.push(request.v3_and_below_producer_epoch);
            let is_unclear = transactions.unclear_begins > 0;
            transactions.unclear_begins -= usize::from(is_unclear);
            is_unclear
        });
        let code = if is_unclear { Code::CoordinatorNotAvailable.code() } else { 0 };
        let topics = request.v3_and_below_topics.iter().map(|topic| {
            let part = |index: &i32| {
                AddPartitionsToTxnPartitionResult::default()
                    .with_partition_index(*index)
                    .with_partition_error_code(code)
            };
            let parts = topic.partitions.iter().map(part).collect();
            AddPartitionsToTxnTopicResult::default().with_name(topic.name.clone()).with_results_by_partition(parts)
        });
        Some(AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics.collect()))
    }

    fn produce(&self, _: i32, request: ProduceRequest) -> Option<ProduceResponse> {
        self.get(|transactions| transactions.produced += 1);
        let topics = request.topic_data.iter().map(|topic| {
            let part = |index| PartitionProduceResponse::default().with_index(index);
            let parts = topic.partition_data.iter().map(|data| part(data.index)).collect();
            TopicProduceResponse::default().with_name(topic.name.clone()).with_partition_responses(parts)
        });
        Some(ProduceResponse::default().with_responses(topics.collect()))
    }

    fn end_txn(&self, request: EndTxnRequest) -> Option<EndTxnResponse> {
        let code = self.get(|transactions| {
            if request.committed && transactions.is_loading {
                return Code::CoordinatorLoadInProgress.code();
            }
            if request.committed && transactions.abortable_commits > 0 {
                transactions.abortable_commits -= 1;
                return Code::TransactionAbortable.code();
            }
            transactions.ended += 1;
            0
        });
        Some(EndTxnResponse::default().with_error_code(code))
    }

    fn describe_producers(&self, _: i32, request: DescribeProducersRequest) -> Option<DescribeProducersResponse> {
        let only_in = self.get(|transactions| transactions.only_open_in);
        let is_open = self.get(|transactions| {
            let is_open = transactions.is_open();
            transactions.reported_open += usize::from(is_open);
            is_open
        });
        Some(producers(&request, |index| if is_open && only_in.is_none_or(|only| only == index) { 0 } else { -1 }))
    }

    fn write_txn_markers(&self, request: WriteTxnMarkersRequest) -> Option<WriteTxnMarkersResponse> {
        let marker = &request.markers[0];
        let code = self.get(|transactions| {
            if transactions.marker_code.is_none() {
                transactions.markers.push(marker.transaction_result);
                transactions.marker_epochs.push(marker.producer_epoch);
            }
            let is_unclear = transactions.is_first_marker_unclear && transactions.markers.len() == 1;
            let code = if is_unclear { Some(Code::RequestTimedOut) } else { transactions.marker_code };
            code.map_or(0, |code| code.code())
        });
        let part = WritableTxnMarkerPartitionResult::default().with_error_code(code);
        let topic = WritableTxnMarkerTopicResult::default().with_partitions(vec![part]);
        let result = WritableTxnMarkerResult::default().with_topics(vec![topic]);
        Some(WriteTxnMarkersResponse::default().with_markers(vec![result]))
    }
}

/// A leader's answer: the producer has a transaction open since the offset `start_in` the partition, or none (-1).
fn producers(request: &DescribeProducersRequest, start_in: impl Fn(i32) -> i64) -> DescribeProducersResponse {
    let topics = request.topics.iter().map(|topic| {
        let part = |index: &i32| {
            let producer = ProducerState::default()
                .with_producer_id(ProducerId(1))
                .with_current_txn_start_offset(start_in(*index));
            PartitionResponse::default().with_partition_index(*index).with_active_producers(vec![producer])
        };
        let parts = topic.partition_indexes.iter().map(part).collect();
        TopicResponse::default().with_name(topic.name.clone()).with_partitions(parts)
    });
    DescribeProducersResponse::default().with_topics(topics.collect())
}

/// Commits one record and waits until `is_over`. Returns the kinds of the events.
async fn commit_and_wait(brokers: &LateMarker, is_over: impl Fn(&mut Transactions) -> bool) -> Vec<&'static str> {
    let stub = StubCluster::start_with(1, brokers.clone()).await;
    let kinds: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let kept = kinds.clone();
    let context = context_with(&stub, 4, Arc::new(move |event| kept.lock().unwrap().push(event.kind)));
    context.cluster.refresh(TOPIC).await;
    let fence = FenceHandle::open(context).await.unwrap();
    let outcome = fence.commit(vec![entry(0)]).await;
    assert!(matches!(outcome, CommitOutcome::Done(_)), "{outcome:?}");
    while !brokers.get(&is_over) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A second commit finds every earlier transaction closed, and runs after a repair that is in progress.
    let outcome = fence.commit(vec![entry(0)]).await;
    assert!(matches!(outcome, CommitOutcome::Done(_)), "{outcome:?}");
    kinds.lock().unwrap().clone()
}

#[tokio::test]
async fn a_marker_that_kafka_writes_late_is_not_written_a_second_time() {
    let brokers = LateMarker::after_reports(1);
    let events = commit_and_wait(&brokers, |transactions| transactions.reported_open == 1).await;
    assert_eq!(events, [] as [&str; 0]);
    brokers.get(|transactions| {
        assert_eq!(transactions.ended, 2, "one for each commit");
        assert_eq!(transactions.markers, [] as [bool; 0]);
    });
}

#[tokio::test]
async fn no_transaction_is_begun_in_a_partition_where_an_earlier_one_is_open() {
    let brokers = LateMarker::after_reports(3);
    let events = commit_and_wait(&brokers, |_| true).await;
    brokers.get(|transactions| {
        // On a busy machine the fence's grace ends before the third report, and the fence writes the marker itself.
        if transactions.markers.is_empty() {
            assert_eq!((transactions.reported_open, &events[..]), (3, &[][..]));
        } else {
            assert_eq!(events, ["hanging_transaction_ended"]);
        }
        assert_eq!(transactions.begun_behind_open, 0);
        assert_eq!(transactions.ended, 2, "one for each commit");
    });
}

#[tokio::test]
async fn a_marker_that_kafka_does_not_write_is_written_by_the_fence() {
    let brokers = LateMarker::after_reports(usize::MAX);
    let events = commit_and_wait(&brokers, |_| true).await;
    assert_eq!(events, ["hanging_transaction_ended"]);
    brokers.get(|transactions| {
        assert_eq!(transactions.markers, [true], "as the transaction was decided");
        assert_eq!(transactions.begun_behind_open, 0);
        assert_eq!(transactions.ended, 2, "one for each commit");
    });
}

#[tokio::test]
async fn no_transaction_is_begun_before_the_coordinator_has_finished_the_earlier_one() {
    // The leader has the marker, but may lose it: the marker is not replicated.
    let brokers = LateMarker::after_reports(0);
    brokers.get(|transactions| transactions.unfinished_reports_max = 3);
    commit_and_wait(&brokers, |_| true).await;
    brokers.get(|transactions| {
        assert_eq!(transactions.begun_unfinished, 0);
        assert_eq!(transactions.unfinished_reports, 3, "the coordinator was asked until it had finished");
    });
}

#[tokio::test]
async fn a_last_stable_offset_behind_the_commit_proves_that_its_marker_is_replicated() {
    let brokers = LateMarker::after_reports(0);
    let asked = Arc::new(Mutex::new(0));
    let kept = asked.clone();
    let first_is_over = move |transactions: &mut Transactions| {
        *kept.lock().unwrap() = transactions.finish_requests;
        transactions.stable_end = Some(2);
        true
    };
    commit_and_wait(&brokers, first_is_over).await;
    let asked = *asked.lock().unwrap();
    assert_eq!(brokers.get(|transactions| transactions.finish_requests), asked, "the coordinator is not asked");
}

#[tokio::test]
async fn a_leader_that_was_replaced_cannot_confirm_that_nothing_is_open() {
    /// Broker 0 leads until the first commit; then broker 1 leads, which lacks the marker.
    #[derive(Clone)]
    struct Replaced(LateMarker);
    impl Respond for Replaced {
        fn init_producer_id(&self, broker: i32) -> Option<InitProducerIdResponse> {
            self.0.init_producer_id(broker)
        }
        fn add_partitions_to_txn(&self, request: AddPartitionsToTxnRequest) -> Option<AddPartitionsToTxnResponse> {
            self.0.add_partitions_to_txn(request)
        }
        fn produce(&self, broker: i32, request: ProduceRequest) -> Option<ProduceResponse> {
            self.0.produce(broker, request)
        }
        fn end_txn(&self, request: EndTxnRequest) -> Option<EndTxnResponse> {
            self.0.end_txn(request)
        }
        fn write_txn_markers(&self, request: WriteTxnMarkersRequest) -> Option<WriteTxnMarkersResponse> {
            self.0.write_txn_markers(request)
        }
        fn describe_producers(
            &self,
            broker: i32,
            request: DescribeProducersRequest,
        ) -> Option<DescribeProducersResponse> {
            match broker {
                0 => Some(producers(&request, |_| -1)),
                _ => self.0.describe_producers(broker, request),
            }
        }
    }
    let brokers = LateMarker::after_reports(usize::MAX);
    let stub = StubCluster::start_with(2, Replaced(brokers.clone())).await;
    let context = context(&stub, 4);
    context.cluster.refresh(TOPIC).await;
    let fence = FenceHandle::open(context).await.unwrap();
    assert!(matches!(fence.commit(vec![entry(0)]).await, CommitOutcome::Done(_)));
    // Only the coordinator's broker has learned of the new leader.
    stub.set_topic(1, TopicView { partitions: PARTITIONS, leader: 1, leader_epoch: 1 });
    assert!(matches!(fence.commit(vec![entry(0)]).await, CommitOutcome::Done(_)));
    brokers.get(|transactions| {
        assert_eq!(transactions.begun_behind_open, 0);
        assert_eq!(transactions.markers, [true]);
    });
}

#[tokio::test]
async fn a_missing_marker_is_written_under_a_new_epoch() {
    let brokers = LateMarker::after_reports(usize::MAX);
    commit_and_wait(&brokers, |_| true).await;
    brokers.get(|transactions| {
        assert_eq!(transactions.marker_epochs, [1], "a late marker of epoch 0 is rejected");
        assert_eq!(transactions.begun_epochs, [0, 1]);
    });
}

#[tokio::test]
async fn a_hanging_transaction_in_one_partition_does_not_stop_the_others() {
    let brokers = LateMarker::after_reports(usize::MAX);
    let stub = StubCluster::start_with(1, brokers.clone()).await;
    let context = context(&stub, 4);
    context.cluster.refresh(TOPIC).await;
    let fence = FenceHandle::open(context).await.unwrap();
    assert!(matches!(fence.commit(vec![entry(1)]).await, CommitOutcome::Done(_)));
    brokers.get(|transactions| {
        transactions.marker_code = Some(Code::NotEnoughReplicas);
        transactions.only_open_in = Some(1);
    });
    let outcome = fence.commit(vec![entry(0), entry(1)]).await;
    let CommitOutcome::Blocked { partitions, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(partitions, [PartitionId::new(NUMBER, 1)]);
    let outcome = fence.commit(vec![entry(0)]).await;
    assert!(matches!(outcome, CommitOutcome::Done(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_transaction_whose_beginning_may_arrive_again_is_ended_before_records_are_written() {
    let brokers = LateMarker::after_reports(0);
    brokers.get(|transactions| transactions.unclear_begins = 1);
    let stub = StubCluster::start_with(1, brokers.clone()).await;
    let context = context(&stub, 4);
    context.cluster.refresh(TOPIC).await;
    let fence = FenceHandle::open(context).await.unwrap();
    assert!(matches!(fence.commit(vec![entry(0)]).await, CommitOutcome::Done(_)));
    brokers.get(|transactions| {
        assert_eq!(transactions.begun_epochs, [0, 0, 1], "the records are written under a new epoch");
        assert_eq!((transactions.produced, transactions.ended), (1, 2), "the empty transaction and the commit");
    });
}

#[tokio::test]
async fn a_transaction_after_an_aborted_one_has_a_new_epoch() {
    let brokers = LateMarker::after_reports(0);
    brokers.get(|transactions| transactions.abortable_commits = 1);
    let stub = StubCluster::start_with(1, brokers.clone()).await;
    let context = context(&stub, 4);
    context.cluster.refresh(TOPIC).await;
    let fence = FenceHandle::open(context).await.unwrap();
    let outcome = fence.commit(vec![entry(0)]).await;
    assert!(matches!(outcome, CommitOutcome::NotNow(_)), "{outcome:?}");
    assert!(matches!(fence.commit(vec![entry(0)]).await, CommitOutcome::Done(_)));
    // Kafka can repeat the marker of the abort, which arrives while the second transaction is open.
    assert_eq!(brokers.get(|transactions| transactions.begun_epochs.clone()), [0, 1]);
}

#[tokio::test]
async fn a_commit_that_meets_a_loading_coordinator_until_its_deadline_has_an_unknown_outcome() {
    let brokers = LateMarker::after_reports(0);
    brokers.get(|transactions| transactions.is_loading = true);
    let stub = StubCluster::start_with(1, brokers.clone()).await;
    let context = context(&stub, 4);
    context.cluster.refresh(TOPIC).await;
    let fence = FenceHandle::open(context).await.unwrap();
    // The coordinator may have written the decision before it began to load.
    let outcome = fence.commit(vec![entry(0)]).await;
    assert!(matches!(outcome, CommitOutcome::Unknown(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_repair_whose_result_is_unclear_is_reported_once_it_is_proven() {
    let brokers = LateMarker::after_reports(usize::MAX);
    brokers.get(|transactions| transactions.is_first_marker_unclear = true);
    let events = commit_and_wait(&brokers, |transactions| transactions.markers == [true]).await;
    assert_eq!(events, ["hanging_transaction_ended"]);
    assert_eq!(brokers.get(|transactions| transactions.markers.clone()), [true]);
}

#[tokio::test]
async fn a_commit_that_is_the_last_gets_its_missing_marker_too() {
    let brokers = LateMarker::after_reports(usize::MAX);
    let events = commit_and_wait(&brokers, |transactions| transactions.markers == [true]).await;
    assert_eq!(events, ["hanging_transaction_ended"]);
}

#[tokio::test]
async fn a_fence_that_may_not_write_markers_ends_an_empty_transaction() {
    let brokers = LateMarker::after_reports(usize::MAX);
    brokers.get(|transactions| transactions.marker_code = Some(Code::ClusterAuthorizationFailed));
    let events = commit_and_wait(&brokers, |_| true).await;
    assert_eq!(events, ["hanging_transaction_ended"]);
    assert_eq!(brokers.get(|transactions| transactions.ended), 3, "one for each commit and one for the repair");
}

#[tokio::test]
async fn a_partition_without_a_leader_is_named_and_does_not_stop_the_others() {
    let stub = StubCluster::start_with(1, LateMarker::default()).await;
    stub.set_leaderless(&[1, 3]);
    let context = context(&stub, 4);
    context.cluster.refresh(TOPIC).await;
    let fence = FenceHandle::open(context).await.unwrap();
    let outcome = fence.commit(vec![entry(0), entry(1), entry(2), entry(3)]).await;
    let CommitOutcome::Blocked { partitions, error } = outcome else { panic!("{outcome:?}") };
    assert_eq!(partitions, [1, 3].map(|index| PartitionId::new(NUMBER, index)));
    assert!(error.to_string().contains("no leader"), "{error}");
    let outcome = fence.commit(vec![entry(0), entry(2)]).await;
    assert!(matches!(outcome, CommitOutcome::Done(_)), "{outcome:?}");
    stub.set_leaderless(&[]);
    let outcome = fence.commit(vec![entry(0), entry(1)]).await;
    assert!(matches!(outcome, CommitOutcome::Done(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_partition_with_too_few_replicas_in_sync_is_named_and_does_not_stop_the_others() {
    let stub = StubCluster::start_with(1, LateMarker::default()).await;
    stub.set_out_of_sync(&[1]);
    let context = context(&stub, 4);
    context.known.get(NUMBER).unwrap().learn_min_insync(2);
    context.cluster.refresh(TOPIC).await;
    let fence = FenceHandle::open(context).await.unwrap();
    let outcome = fence.commit(vec![entry(0), entry(1)]).await;
    let CommitOutcome::Blocked { partitions, error } = outcome else { panic!("{outcome:?}") };
    assert_eq!(partitions, [PartitionId::new(NUMBER, 1)]);
    assert!(error.to_string().contains("min.insync.replicas"), "{error}");
    stub.set_out_of_sync(&[]);
    let outcome = fence.commit(vec![entry(0), entry(1)]).await;
    assert!(matches!(outcome, CommitOutcome::Done(_)), "{outcome:?}");
}

/// Brokers that have lost the topic.
#[derive(Clone, Default)]
struct Deleted {
    requests: Arc<Mutex<usize>>,
}

impl Respond for Deleted {
    fn init_producer_id(&self, _: i32) -> Option<InitProducerIdResponse> {
        Some(InitProducerIdResponse::default().with_producer_id(ProducerId(1)))
    }

    fn describe_producers(&self, _: i32, request: DescribeProducersRequest) -> Option<DescribeProducersResponse> {
        *self.requests.lock().unwrap() += 1;
        let unknown = |index: &i32| {
            let code = Code::UnknownTopicOrPartition.code();
            PartitionResponse::default().with_partition_index(*index).with_error_code(code)
        };
        let topics = request.topics.iter().map(|topic| {
            let parts = topic.partition_indexes.iter().map(unknown).collect();
            TopicResponse::default().with_name(topic.name.clone()).with_partitions(parts)
        });
        Some(DescribeProducersResponse::default().with_topics(topics.collect()))
    }

    fn add_partitions_to_txn(&self, request: AddPartitionsToTxnRequest) -> Option<AddPartitionsToTxnResponse> {
        *self.requests.lock().unwrap() += 1;
        let unknown = |index: &i32| {
            let code = Code::UnknownTopicOrPartition.code();
            AddPartitionsToTxnPartitionResult::default().with_partition_index(*index).with_partition_error_code(code)
        };
        let topics = request.v3_and_below_topics.iter().map(|topic| {
            let parts = topic.partitions.iter().map(unknown).collect();
            AddPartitionsToTxnTopicResult::default().with_name(topic.name.clone()).with_results_by_partition(parts)
        });
        Some(AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics.collect()))
    }

    fn end_txn(&self, _: EndTxnRequest) -> Option<EndTxnResponse> {
        Some(EndTxnResponse::default())
    }
}

#[tokio::test]
async fn a_second_commit_to_a_missing_topic_is_refused_without_a_request() {
    let brokers = Deleted::default();
    let stub = StubCluster::start_with(1, brokers.clone()).await;
    let context = context(&stub, 4);
    context.cluster.refresh(TOPIC).await;
    stub.delete_topic();
    let topic = context.known.get(NUMBER).unwrap();
    let fence = FenceHandle::open(context).await.unwrap();
    // Partition 0 stands for the whole topic, which is missing.
    let missing = CommitOutcome::Refused { index: 0, error: LogError::UnknownPartition(PartitionId::new(NUMBER, 0)) };
    assert_eq!(fence.commit(vec![entry(2)]).await, missing);
    let requests = *brokers.requests.lock().unwrap();
    assert!(requests > 0);
    // The time is that of this moment, however slow the first commit was.
    topic.missing.learn_all_missing(4, Instant::now());
    for index in [2, 3] {
        assert_eq!(fence.commit(vec![entry(index)]).await, missing);
    }
    assert_eq!(*brokers.requests.lock().unwrap(), requests);
}
