//! Fences and commits: all or nothing, in order, and never by a zombie.

use std::time::Duration;

use futures_util::future::join_all;
use whimbrel_model::ports::{CommitOutcome, Entry, LogError};
use whimbrel_model::{PartitionId, TopicNumber};

use super::LogFactory;
use super::scene::{LogScene, PATIENCE, assert_growing, entry, entry_of_size, new_fence_name, text_of};

pub async fn a_commit_over_partitions_and_topics_is_all_visible(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 3).await;
    let other = scene.topic(1).await;
    let fence = scene.fence(&new_fence_name()).await;
    let places: Vec<PartitionId> =
        (0..30).map(|n| if n % 4 == 3 { PartitionId::new(other, 0) } else { PartitionId::new(topic, n % 4) }).collect();
    let entries = places.iter().enumerate().map(|(at, place)| entry(*place, &at.to_string())).collect();
    let offsets = scene.commit(&fence, entries).await;
    let mut found = 0;
    for place in places.iter().take(4) {
        let read = scene.read_to_end(*place, 0).await;
        assert_growing(&read.iter().map(|stored| stored.offset).collect::<Vec<_>>());
        for stored in &read {
            let at: usize = text_of(stored).parse().expect("the value is the entry's index");
            assert_eq!((places[at], offsets[at]), (*place, stored.offset), "entry {at}");
        }
        found += read.len();
    }
    assert_eq!(found, places.len());
}

pub async fn commits_of_one_fence_land_in_the_order_of_their_calls(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let fence = scene.fence(&new_fence_name()).await;
    let calls: Vec<_> =
        (0..20).map(|n| scene.open.log.commit(&fence, vec![entry(partition, &n.to_string())])).collect();
    let outcomes = join_all(calls.into_iter().rev()).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, CommitOutcome::Done(_))), "{outcomes:?}");
    assert_eq!(scene.texts(partition).await, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
}

pub async fn an_empty_commit_is_done(factory: &dyn LogFactory) {
    let scene = LogScene::new(factory).await;
    let fence = scene.fence(&new_fence_name()).await;
    assert_eq!(scene.commit(&fence, Vec::new()).await, Vec::<u64>::new());
}

pub async fn a_zombie_is_fenced_and_wrote_nothing(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 2).await;
    let partitions = [PartitionId::new(topic, 0), PartitionId::new(topic, 1)];
    let name = new_fence_name();
    let zombie = scene.fence(&name).await;
    scene.commit(&zombie, vec![entry(partitions[0], "before the takeover")]).await;
    let _newer = scene.fence(&name).await;
    for _ in 0..2 {
        let entries = partitions.iter().map(|partition| entry(*partition, "by the zombie")).collect();
        assert_eq!(scene.open.log.commit(&zombie, entries).await, CommitOutcome::Fenced);
    }
    scene.append(partitions.iter().map(|partition| entry(*partition, "afterwards")).collect()).await;
    assert_eq!(scene.texts(partitions[0]).await, ["before the takeover", "afterwards"]);
    assert_eq!(scene.texts(partitions[1]).await, ["afterwards"]);
}

pub async fn the_newest_fence_commits(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let name = new_fence_name();
    for n in 0..4 {
        let fence = scene.open.log.fence(&name, n).await.expect("the fence can be opened");
        assert_eq!((&*fence.name, fence.epoch), (name.as_str(), n));
        scene.commit(&fence, vec![entry(partition, &n.to_string())]).await;
    }
    assert_eq!(scene.texts(partition).await, ["0", "1", "2", "3"]);
}

pub async fn fences_of_different_names_are_independent(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let fences = [scene.fence(&new_fence_name()).await, scene.fence(&new_fence_name()).await];
    for n in 0..6 {
        scene.commit(&fences[n % 2], vec![entry(partition, &n.to_string())]).await;
    }
    assert_eq!(scene.texts(partition).await, (0..6).map(|n| n.to_string()).collect::<Vec<_>>());
}

pub async fn a_fence_of_another_instance_voids_this_one(factory: &dyn LogFactory) {
    let spec = super::scene::new_spec(1);
    let here = LogScene::new(factory).await;
    let Some(there) = here.beside().await else { return };
    here.create(&spec).await;
    there.create(&spec).await;
    let partition = PartitionId::new(spec.number, 0);
    let name = new_fence_name();
    let old = here.fence(&name).await;
    here.commit(&old, vec![entry(partition, "here")]).await;
    let new = there.fence(&name).await;
    assert_eq!(here.open.log.commit(&old, vec![entry(partition, "zombie")]).await, CommitOutcome::Fenced);
    there.commit(&new, vec![entry(partition, "there")]).await;
    assert_eq!(here.texts(partition).await, ["here", "there"]);
}

pub async fn a_commit_with_a_record_too_large_is_refused_by_its_index_and_writes_nothing(factory: &dyn LogFactory) {
    let limit = factory.traits().record_bytes_max;
    let error = |_| LogError::TooLarge { size: limit + 1, limit };
    assert_refused(factory, |partition| entry_of_size(partition, limit + 1), error).await;
}

pub async fn a_commit_to_an_unknown_partition_is_refused_by_its_index_and_writes_nothing(factory: &dyn LogFactory) {
    let unknown = |partition: PartitionId| PartitionId::new(partition.topic, 77);
    let error = |partition| LogError::UnknownPartition(unknown(partition));
    assert_refused(factory, |partition| entry(unknown(partition), "-"), error).await;
    let nowhere = PartitionId::new(TopicNumber(999_999), 0);
    assert_refused(factory, |_| entry(nowhere, "-"), |_| LogError::UnknownPartition(nowhere)).await;
}

async fn assert_refused(
    factory: &dyn LogFactory,
    bad: impl Fn(PartitionId) -> Entry,
    error: impl Fn(PartitionId) -> LogError,
) {
    let (scene, topic) = LogScene::with_topic(factory, 2).await;
    let partitions = [PartitionId::new(topic, 0), PartitionId::new(topic, 1)];
    let fence = scene.fence(&new_fence_name()).await;
    let entries = vec![entry(partitions[0], "a"), entry(partitions[1], "b"), bad(partitions[0])];
    let outcome = scene.open.log.commit(&fence, entries).await;
    assert_eq!(outcome, CommitOutcome::Refused { index: 2, error: error(partitions[0]) });
    for partition in partitions {
        assert!(scene.texts(partition).await.is_empty(), "nothing was written");
    }
}

pub async fn a_fence_remains_valid_after_a_rejected_commit(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let fence = scene.fence(&new_fence_name()).await;
    let bad = vec![entry(partition, "not this"), entry(PartitionId::new(topic, 1), "nor this")];
    assert!(matches!(scene.open.log.commit(&fence, bad).await, CommitOutcome::Refused { index: 1, .. }));
    scene.commit(&fence, vec![entry(partition, "this")]).await;
    assert_eq!(scene.texts(partition).await, ["this"]);
}

pub async fn reading_passes_what_commits_leave_behind_and_reaches_the_end(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let fence = scene.fence(&new_fence_name()).await;
    let (mut next, mut texts) = (0, Vec::new());
    for n in 0..8 {
        scene.commit(&fence, vec![entry(partition, &n.to_string())]).await;
        // Kafka writes the markers of a commit moments after its answer: the test waits for the end of the partition, which must be
        // reached.
        let end = scene.bounds(partition).await.next;
        while next < end {
            let batch = scene.try_read(partition, next, Duration::from_millis(50)).await.expect("it can be read");
            assert!(batch.next >= next);
            next = batch.next;
            texts.extend(batch.records.iter().map(text_of));
        }
    }
    assert_eq!(texts, (0..8).map(|n| n.to_string()).collect::<Vec<_>>());
    let at_end = scene.try_read(partition, next, Duration::ZERO).await.expect("the end can be read");
    assert!(at_end.records.is_empty());
}

pub async fn a_dropped_commit_is_whole_or_absent(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 2).await;
    let partitions = [PartitionId::new(topic, 0), PartitionId::new(topic, 1)];
    let name = new_fence_name();
    for n in 0..5 {
        let fence = scene.fence(&name).await;
        let entries = partitions.iter().map(|partition| entry(*partition, &n.to_string())).collect();
        let unawaited = scene.open.log.commit(&fence, entries);
        let _ = tokio::time::timeout(Duration::from_millis(n), unawaited).await;
    }
    // Opening the fence again ends every commit in progress.
    let fence = scene.fence(&name).await;
    let last = partitions.iter().map(|partition| entry(*partition, "last")).collect();
    tokio::time::timeout(PATIENCE, scene.commit(&fence, last)).await.expect("the newest fence commits");
    let texts = [scene.texts(partitions[0]).await, scene.texts(partitions[1]).await];
    assert_eq!(texts[0], texts[1], "each commit is in both partitions or in none");
    assert_eq!(texts[0].last().map(String::as_str), Some("last"));
}
