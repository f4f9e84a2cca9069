//! Reading: waits at the end, limits, offsets, times.

use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::ports::{Entry, LogError, ReadLimits};
use whimbrel_model::{PartitionId, Record, Timestamp, TopicNumber};

use super::LogFactory;
use super::scene::{LogScene, PATIENCE, assert_growing, entry, new_fence_name, record, text_of, wide};

pub async fn a_reader_at_the_end_is_woken_by_an_append(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    scene.append_texts(partition, &["before"]).await;
    let end = scene.bounds(partition).await.next;
    let reading = scene.try_read(partition, end, PATIENCE);
    let (batch, _) = tokio::join!(reading, scene.append_texts(partition, &["woken"]));
    let batch = batch.expect("the reader is answered");
    assert_eq!(batch.records.iter().map(text_of).collect::<Vec<_>>(), ["woken"]);
}

pub async fn a_reader_at_the_end_is_woken_by_a_commit(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let fence = scene.fence(&new_fence_name()).await;
    let reading = scene.try_read(partition, 0, PATIENCE);
    let (batch, _) = tokio::join!(reading, scene.commit(&fence, vec![entry(partition, "woken")]));
    let batch = batch.expect("the reader is answered");
    assert_eq!(batch.records.iter().map(text_of).collect::<Vec<_>>(), ["woken"]);
}

pub async fn a_read_without_waiting_is_empty_at_the_end(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let empty = scene.read_now(partition, 0).await;
    assert_eq!((empty.records.len(), empty.next), (0, 0));
    scene.append_texts(partition, &["a", "b"]).await;
    let end = scene.bounds(partition).await.next;
    let at_end = scene.read_now(partition, end).await;
    assert_eq!((at_end.records.len(), at_end.next), (0, end));
}

pub async fn a_read_that_times_out_is_empty(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let wait = Duration::from_millis(300);
    let began = std::time::Instant::now();
    let batch = scene.try_read(partition, 0, wait).await.expect("a timeout is no error");
    assert_eq!((batch.records.len(), batch.next), (0, 0));
    assert!(began.elapsed() >= wait, "it did wait");
}

pub async fn a_read_returns_a_record_acknowledged_just_before(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    for n in 0..50 {
        let offset = scene.append_texts(partition, &[&n.to_string()]).await[0];
        let batch = scene.read_now(partition, offset).await;
        assert_eq!(batch.records.iter().map(text_of).collect::<Vec<_>>(), [n.to_string()], "round {n}");
        let at_end = scene.read_now(partition, batch.next).await;
        assert!(at_end.records.is_empty(), "round {n} has no further records");
    }
}

pub async fn an_offset_beyond_the_end_is_rejected_with_the_end(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let beyond = |asked, next| Err(LogError::BeyondEnd { asked, next });
    assert_eq!(scene.try_read(partition, 1, PATIENCE).await, beyond(1, 0));
    scene.append_texts(partition, &["a", "b"]).await;
    let end = scene.bounds(partition).await.next;
    assert_eq!(scene.try_read(partition, end + 1, PATIENCE).await, beyond(end + 1, end));
    assert_eq!(scene.try_read(partition, end + 1000, Duration::ZERO).await, beyond(end + 1000, end));
}

pub async fn a_read_returns_no_more_records_than_asked(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    scene.append((0..10).map(|n| entry(partition, &n.to_string())).collect()).await;
    let limits = ReadLimits { max_records: 3, ..wide() };
    let batch = scene.open.log.read(partition, 0, limits).await.expect("the partition can be read");
    assert_eq!(batch.records.iter().map(text_of).collect::<Vec<_>>(), ["0", "1", "2"]);
    let batch = scene.open.log.read(partition, batch.next, limits).await.expect("the partition can be read");
    assert_eq!(batch.records.iter().map(text_of).collect::<Vec<_>>(), ["3", "4", "5"]);
}

pub async fn a_read_returns_no_more_bytes_than_asked_but_one_record_at_least(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    const RECORD_BYTES: usize = 1000;
    scene.append((0..10).map(|_| Entry { partition, record: record(vec![b'x'; RECORD_BYTES]) }).collect()).await;
    for (max_bytes, at_most) in [(1, 1), (RECORD_BYTES, 1), (3 * RECORD_BYTES + 1, 3)] {
        let limits = ReadLimits { max_bytes, ..wide() };
        let batch = scene.open.log.read(partition, 0, limits).await.expect("the partition can be read");
        assert!((1..=at_most).contains(&batch.records.len()), "{} records for {max_bytes} bytes", batch.records.len());
    }
}

pub async fn reading_on_from_next_misses_and_repeats_nothing(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let offsets = scene.append((0..1000).map(|n| entry(partition, &n.to_string())).collect()).await;
    let (mut next, mut read) = (0, Vec::new());
    for max_records in [1, 2, 7, 100].into_iter().cycle() {
        let limits = ReadLimits { max_records, wait: Duration::ZERO, ..wide() };
        let batch = scene.open.log.read(partition, next, limits).await.expect("the partition can be read");
        if batch.records.is_empty() {
            break;
        }
        next = batch.next;
        read.extend(batch.records);
    }
    assert_eq!(read.iter().map(|stored| stored.offset).collect::<Vec<_>>(), offsets);
    assert_eq!(read.iter().map(text_of).collect::<Vec<_>>(), (0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
}

pub async fn reading_back_begins_at_the_requested_offset(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let offsets = scene.append((0..200).map(|n| entry(partition, &n.to_string())).collect()).await;
    let fence = scene.fence(&new_fence_name()).await;
    scene.commit(&fence, vec![entry(partition, "200")]).await;
    for (at, from) in offsets.iter().enumerate().rev().step_by(37) {
        let end = scene.bounds(partition).await.next;
        scene.read_now(partition, end).await;
        let batch = scene.read_now(partition, *from).await;
        assert_eq!(batch.records.first().map(text_of), Some(at.to_string()), "from offset {from}");
        assert_growing(&batch.records.iter().map(|stored| stored.offset).collect::<Vec<_>>());
    }
}

pub async fn a_time_leads_to_the_first_record_at_or_after_it(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let base = crate::conformance::now().as_millis() - 100_000;
    let at = |ms: i64| Record { timestamp: Timestamp::from_millis(base + ms), ..record(Bytes::from_static(b"x")) };
    let entries = [1000, 2000, 2000, 3000].map(|ms| Entry { partition, record: at(ms) });
    let mut offsets = Vec::new();
    for each in entries {
        offsets.extend(scene.append(vec![each]).await);
    }
    let end = scene.bounds(partition).await.next;
    for (asked, expected) in
        [(1000, offsets[0]), (0, offsets[0]), (1500, offsets[1]), (2000, offsets[1]), (3000, offsets[3]), (3001, end)]
    {
        let found = scene.open.log.offset_at(partition, Timestamp::from_millis(base + asked)).await;
        assert_eq!(found, Ok(expected), "the time {asked}");
    }
}

pub async fn a_time_in_an_empty_partition_leads_to_its_end(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let found = scene.open.log.offset_at(PartitionId::new(topic, 0), Timestamp::from_millis(1)).await;
    assert_eq!(found, Ok(0));
}

pub async fn an_unknown_partition_cannot_be_read(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    for unknown in [PartitionId::new(topic, 1), PartitionId::new(TopicNumber(999_999), 0)] {
        let error = LogError::UnknownPartition(unknown);
        let log = &scene.open.log;
        assert_eq!(log.read(unknown, 0, wide()).await, Err(error.clone()));
        assert_eq!(log.bounds(unknown).await, Err(error.clone()));
        assert_eq!(log.offset_at(unknown, Timestamp::from_millis(1)).await, Err(error.clone()));
        assert_eq!(log.trim(unknown, 0).await, Err(error));
    }
}
