//! Bounds, and trimming of old records.

use std::time::{Duration, Instant};

use futures_util::future::FutureExt as _;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{Entry, LogError};

use super::LogFactory;
use super::scene::{LogScene, PATIENCE, entry, new_fence_name, record, text_of, wide};

pub async fn an_empty_partition_begins_and_ends_at_zero(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let bounds = scene.bounds(PartitionId::new(topic, 0)).await;
    assert_eq!((bounds.first, bounds.next), (0, 0));
}

pub async fn bounds_count_everything_acknowledged(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let fence = scene.fence(&new_fence_name()).await;
    for _ in 0..10 {
        let appended = scene.append_texts(partition, &["a", "b"]).await[1];
        assert!(scene.bounds(partition).await.next > appended);
        let committed = scene.commit(&fence, vec![entry(partition, "c")]).await[0];
        assert!(scene.bounds(partition).await.next > committed);
    }
    assert_eq!(scene.bounds(partition).await.first, 0);
}

pub async fn trimming_never_removes_more_than_requested(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 2).await;
    let (partition, other) = (PartitionId::new(topic, 0), PartitionId::new(topic, 1));
    let offsets = scene.append((0..100).map(|n| entry(partition, &n.to_string())).collect()).await;
    scene.append_texts(other, &["untouched"]).await;
    for asked in [offsets[10], offsets[3], offsets[50]] {
        scene.open.log.trim(partition, asked).await.expect("the partition can be trimmed");
        assert!(scene.bounds(partition).await.first <= offsets[50]);
    }
    let first = scene.bounds(partition).await.first;
    let kept = scene.read_to_end(partition, first).await;
    assert_eq!(kept.last().map(text_of), Some("99".to_owned()));
    assert!(kept.len() >= 50, "records after the requested offset are kept");
    assert_eq!(scene.texts(other).await, ["untouched"]);
}

pub async fn a_trimmed_offset_is_rejected_with_the_first_kept_one(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let first = trim_until_the_first_moves(&scene, partition).await;
    for asked in [0, first - 1] {
        let read = scene.try_read(partition, asked, Duration::ZERO).await;
        assert_eq!(read, Err(LogError::Trimmed { asked, first }));
    }
    assert_eq!(scene.read_now(partition, first).await.records.first().map(|stored| stored.offset), Some(first));
}

pub async fn records_kept_by_a_trim_are_readable(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let first = trim_until_the_first_moves(&scene, partition).await;
    scene.append_texts(partition, &["after"]).await;
    let kept = scene.read_to_end(partition, first).await;
    assert_eq!(kept.last().map(text_of), Some("after".to_owned()));
    assert_eq!(kept.len() as u64, scene.bounds(partition).await.next - first, "every kept offset has its record");
    let found = scene.open.log.offset_at(partition, whimbrel_model::Timestamp::from_millis(1)).await;
    assert_eq!(found, Ok(first), "the earliest time leads to the first kept record");
}

pub async fn trimming_does_not_move_the_end(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    scene.append_texts(partition, &["a", "b", "c"]).await;
    let end = scene.bounds(partition).await.next;
    scene.open.log.trim(partition, end).await.expect("everything can be trimmed");
    let bounds = scene.bounds(partition).await;
    assert_eq!(bounds.next, end);
    assert!(bounds.first <= end);
    assert!(scene.append_texts(partition, &["d"]).await[0] >= end, "offsets are never used twice");
}

pub async fn a_waiting_reader_gets_an_error_when_a_trim_passes_its_offset(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    // An earlier reader has waited at the same offset, so that an engine with memory that readers share uses it here.
    let (first, _) = tokio::join!(scene.try_read(partition, 0, PATIENCE), scene.append_texts(partition, &["first"]));
    let asked = first.expect("the partition can be read").next;
    let mut sleeping = scene.open.log.read(partition, asked, wide());
    assert!((&mut sleeping).now_or_never().is_none(), "there is nothing to read yet");
    let first = trim_until_the_first_moves(&scene, partition).await;
    assert!(first > asked, "the trim has passed the reader's offset");
    assert_eq!(sleeping.await, Err(LogError::Trimmed { asked, first }));
}

/// Appends and trims until records were dropped. Returns the first kept offset. Engines drop whole pieces, and may finish that in the
/// background: the loop waits for the first offset itself.
async fn trim_until_the_first_moves(scene: &LogScene<'_>, partition: PartitionId) -> u64 {
    const RECORD_BYTES: usize = 1000;
    let began = Instant::now();
    loop {
        let piece = (0..10).map(|_| Entry { partition, record: record(vec![b'x'; RECORD_BYTES]) }).collect();
        let last = *scene.append(piece).await.last().expect("a piece has records");
        // The engine must not return records from memory after they are trimmed, so a reader reads them first.
        scene.read_now(partition, 0).await;
        scene.open.log.trim(partition, last - 2).await.expect("the partition can be trimmed");
        let first = scene.bounds(partition).await.first;
        assert!(first <= last - 2, "a trim goes no further than asked");
        if first > 1 {
            return first;
        }
        assert!(began.elapsed() < PATIENCE, "nothing was dropped by trimming up to {last}");
    }
}
