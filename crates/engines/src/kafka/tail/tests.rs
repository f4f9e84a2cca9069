//! Tests of the tails: starved partitions, the bound of all windows together.

use super::*;
use crate::kafka::stub_cluster::{self, StubCluster, batch_at};
use bytes::Bytes;
use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_response::PartitionData;
use std::sync::atomic::AtomicU64;
use whimbrel_model::{Headers, Record, Timestamp};

const TOPIC: TopicNumber = TopicNumber(1);
const SOON: Duration = Duration::from_secs(5);
const ALL: ReadLimits = ReadLimits { max_records: usize::MAX, max_bytes: usize::MAX, wait: Duration::ZERO };

fn partition(index: u32) -> PartitionId {
    PartitionId::new(TOPIC, index)
}

/// Answers like Kafka: the first partition with records gets one batch of any size, the others get no bytes if their next batch exceeds the
/// limit of the partition. `batch_of` is the batch at an offset of a partition.
fn respond(request: &FetchRequest, batch_of: impl Fn(i32, i64) -> Option<Bytes>) -> FetchResponse {
    let mut is_first = true;
    stub_cluster::fetched(request, |query| {
        let batch = batch_of(query.partition, query.fetch_offset);
        let end = query.fetch_offset + i64::from(batch.is_some());
        let batch = batch.filter(|batch| is_first || batch.len() <= query.partition_max_bytes as usize);
        is_first &= batch.is_none();
        PartitionData::default().with_high_watermark(end).with_last_stable_offset(end).with_records(batch)
    })
}

async fn tails(brokers: &StubCluster, bytes_max: usize) -> (Arc<PartitionTails>, Arc<KnownTopic>) {
    let hanging = Arc::new(StalledPartitions::new(SOON, Arc::new(|_| {})));
    let partitions = stub_cluster::PARTITIONS as u32;
    let topic = KnownTopic::new(TOPIC, stub_cluster::TOPIC.to_owned(), partitions, 1 << 20);
    let cluster = brokers.connect();
    cluster.refresh(stub_cluster::TOPIC).await;
    (PartitionTails::start_within(bytes_max, cluster, hanging), Arc::new(topic))
}

#[tokio::test]
async fn a_large_batch_is_not_starved_by_busy_partitions_of_the_same_fetch() {
    const BUSY: i32 = 4;
    let brokers = StubCluster::start(1, |_, request| {
        let batch_of = |index: i32, offset: i64| match index {
            ..BUSY => Some(batch_at(offset, vec![0; 100])),
            _ => (offset == 0).then(|| batch_at(0, vec![0; PARTITION_BYTES + 1])),
        };
        Some(respond(&request, batch_of))
    });
    let (tails, topic) = tails(&brokers.await, WINDOW_BYTES_MAX).await;
    let partitions = || (0..stub_cluster::PARTITIONS as u32).map(partition);
    partitions().for_each(|each| tails.follow(&topic, each, 0));
    let began = Instant::now();
    let is_there = |each: PartitionId| tails.get(each).is_some_and(|tail| tail.state().window.next() > 0);
    while !partitions().all(is_there) {
        let starved: Vec<PartitionId> = partitions().filter(|each| !is_there(*each)).collect();
        assert!(began.elapsed() < SOON, "{starved:?} got nothing");
        // The readers of the busy partitions read every record.
        for tail in partitions().filter_map(|each| tails.get(each)) {
            let from = tail.state().window.start();
            let _ = tail.read(&tails, from, &ALL);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn kept_records_do_not_keep_their_answer_in_memory() {
    let answer = Bytes::from(vec![0; 1000]);
    let record = Record {
        key: Some(answer.slice(..5)),
        value: answer.slice(5..10),
        headers: Headers::EMPTY,
        timestamp: Timestamp::from_millis(1),
    };
    let records = vec![StoredRecord { offset: 0, record: record.clone() }];
    let fetched = fetch::FetchPage { records, next: 1, visible_end: 1, written_end: 1, bytes: 10 };
    let query = FetchQuery { topic: stub_cluster::topic_name(), index: 0, from: 0, bytes_max: 1000 };
    let mut state = TailState::at(0);
    assert!(state.take_in(&query, fetched, 1));
    assert_eq!(state.window.read(0, &ALL).unwrap().records[0].record, record);
    drop(record);
    assert!(answer.is_unique());
}

#[tokio::test]
async fn all_windows_together_are_bounded_and_continue_after_their_readers_have_read() {
    const BATCH_BYTES: usize = 100 << 10;
    const BYTES_MAX: usize = 4 * BATCH_BYTES;
    const QUIET: u32 = 7;
    let quiet_end = Arc::new(AtomicU64::new(0));
    let end = quiet_end.clone();
    let brokers = StubCluster::start(1, move |_, request| {
        let is_there = |index, offset| index != QUIET as i32 || offset < end.load(Ordering::Acquire) as i64;
        let batch_of = |index, offset| is_there(index, offset).then(|| batch_at(offset, vec![0; BATCH_BYTES]));
        Some(respond(&request, batch_of))
    });
    let (tails, topic) = tails(&brokers.await, BYTES_MAX).await;
    let partitions = || (0..stub_cluster::PARTITIONS as u32).map(partition);
    partitions().for_each(|each| tails.follow(&topic, each, 0));
    let window_next = |index| tails.get(partition(index)).unwrap().state().window.next();
    let bytes = || partitions().map(|each| tails.get(each).unwrap().state().window.bytes()).sum::<usize>();

    // Without the bound, every busy partition would be fetched up to its own limit.
    wait_until("a window is full", || tails.is_full.load(Ordering::Acquire)).await;
    let busy_next = window_next(0);
    quiet_end.store(1, Ordering::Release);
    wait_until("the quiet partition is still fetched", || window_next(QUIET) == 1).await;
    assert_eq!(window_next(0), busy_next, "a partition with unread records is not fetched");
    let answer_bytes = stub_cluster::PARTITIONS as usize * (BATCH_BYTES + 1000);
    assert!(bytes() <= BYTES_MAX + answer_bytes, "{} bytes", bytes());

    for tail in partitions().map(|each| tails.get(each).unwrap()) {
        let from = tail.state().window.start();
        tail.read(&tails, from, &ALL).unwrap();
    }
    wait_until("fetching goes on", || window_next(0) > busy_next).await;
    assert!(bytes() <= BYTES_MAX + answer_bytes, "{} bytes", bytes());
}

async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
