//! Tests of readers in a partition with an open transaction, and of the records that are kept ahead.

use std::sync::atomic::{AtomicUsize, Ordering};

use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{FetchRequest, FetchResponse};

use super::*;
use crate::conformance::log::record;
use crate::kafka::stub_cluster::{self, StubCluster};

const PARTITION: PartitionId = PartitionId { topic: TopicNumber(1), index: 0 };
const VISIBLE_END: u64 = 5;
const WRITTEN_END: u64 = 9;
const FETCH_PAUSE: Duration = Duration::from_millis(2);

/// An answer without records, like that of a partition with an open transaction at its visible end.
fn nothing_visible(request: &FetchRequest) -> FetchResponse {
    stub_cluster::fetched(request, |_| {
        let part = PartitionData::default().with_high_watermark(WRITTEN_END as i64);
        part.with_last_stable_offset(VISIBLE_END as i64)
    })
}

async fn reader(brokers: &StubCluster) -> PartitionReader {
    let cluster = brokers.connect();
    cluster.refresh(stub_cluster::TOPIC).await;
    let hanging = Arc::new(StalledPartitions::new(Duration::from_secs(60), Arc::new(|_| {})));
    let known = Arc::new(KnownTopics::default());
    known.put(KnownTopic::new(PARTITION.topic, stub_cluster::TOPIC.to_owned(), 1, 1 << 20));
    PartitionReader {
        known,
        queries: Arc::new(Queries::new(cluster.clone(), Duration::from_secs(1), Arc::new(|_| {}))),
        fetcher: Arc::new(Fetcher::new(cluster.clone(), 4)),
        tails: PartitionTails::start(cluster, hanging.clone()),
        hanging,
        request_timeout: Duration::from_secs(1),
        ahead: ReadAhead::default(),
    }
}

#[tokio::test]
async fn a_reader_at_the_written_end_hides_no_stalled_partition_and_leaves_the_tail_alone() {
    let fetches = Arc::new(AtomicUsize::new(0));
    let counted = fetches.clone();
    let brokers = StubCluster::start(1, move |_, request| {
        counted.fetch_add(1, Ordering::Relaxed);
        // A broker waits longer.
        std::thread::sleep(FETCH_PAUSE);
        Some(nothing_visible(&request))
    });
    let reader = reader(&brokers.await).await;
    let wait = Duration::from_secs(1);
    let limits = ReadLimits { max_records: 10, max_bytes: 1 << 20, wait };
    let read = |from| reader.read(PARTITION, from, limits);
    let (at_end, beyond, beyond_too) = tokio::join!(read(VISIBLE_END), read(WRITTEN_END), read(WRITTEN_END - 1));
    assert_eq!(at_end.unwrap().next, VISIBLE_END);
    assert_eq!((beyond.unwrap().next, beyond_too.unwrap().next), (WRITTEN_END, WRITTEN_END - 1));
    assert_eq!(reader.hanging.overdue(wait / 2), [(PARTITION, VISIBLE_END)]);
    let replaced =
        reader.tails.get(PARTITION).is_none_or(|tail| tail.read(&reader.tails, VISIBLE_END, &limits).is_none());
    assert!(!replaced, "the tail is at the visible end");
}

#[test]
fn records_that_are_kept_ahead_count_with_the_answers_that_they_keep_in_memory() {
    let ahead = ReadAhead::default();
    let one = ReadLimits { max_records: 1, max_bytes: 1000, wait: Duration::ZERO };
    let partition = |index| PartitionId::new(TopicNumber(1), index);
    let take = |index, bytes| {
        let records = (0..3).map(|offset| StoredRecord { offset, record: record("x") }).collect();
        let fetched = FetchPage { records, next: 3, visible_end: 3, written_end: 3, bytes };
        ahead.take(partition(index), 0, fetched, &one)
    };
    let is_kept = |index| ahead.read(partition(index), 1, &one).is_some();
    take(0, AHEAD_BYTES_MAX / 2);
    take(1, AHEAD_BYTES_MAX / 2);
    assert_eq!(take(2, AHEAD_BYTES_MAX / 2).next, 1);
    assert_eq!([0, 1, 2].map(is_kept), [false, true, true]);
    take(3, AHEAD_BYTES_MAX * 2);
    assert_eq!([1, 2, 3].map(is_kept), [false, false, true], "the newest is kept whatever its size");
}
