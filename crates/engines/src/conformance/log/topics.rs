//! Creating, reopening, growing, identifying, deleting and describing topics, and two instances on one store.

use std::time::Duration;

use whimbrel_model::ports::LogError;
use whimbrel_model::{NamedBounds, PartitionId, Retention, TopicNumber, TopicSpec};

use super::LogFactory;
use super::scene::{LogScene, PATIENCE, entry, new_spec, text_of, wide};

pub async fn creating_a_topic_twice_keeps_its_records(factory: &dyn LogFactory) {
    let scene = LogScene::new(factory).await;
    let spec = new_spec(2);
    let partition = PartitionId::new(spec.number, 1);
    assert_eq!(scene.create(&spec).await, 2);
    scene.append_texts(partition, &["a"]).await;
    assert_eq!(scene.create(&spec).await, 2);
    scene.append_texts(partition, &["b"]).await;
    assert_eq!(scene.texts(partition).await, ["a", "b"]);
}

pub async fn a_topic_keeps_its_partitions_if_it_is_created_with_fewer(factory: &dyn LogFactory) {
    let scene = LogScene::new(factory).await;
    let spec = new_spec(3);
    scene.create(&spec).await;
    assert_eq!(scene.create(&TopicSpec { partitions: 1, ..spec.clone() }).await, 3);
    scene.append_texts(PartitionId::new(spec.number, 2), &["in the third"]).await;
}

pub async fn altering_grows_and_new_partitions_begin_at_zero(factory: &dyn LogFactory) {
    let scene = LogScene::new(factory).await;
    let spec = new_spec(1);
    let partition = |index| PartitionId::new(spec.number, index);
    scene.create(&spec).await;
    scene.append_texts(partition(0), &["old"]).await;
    scene.read_now(partition(0), 0).await;
    let retention = Retention { time: Some(Duration::from_secs(86_400)), bytes: Some(1 << 30) };
    let grown = TopicSpec { partitions: 3, retention, ..spec.clone() };
    scene.open.topics.alter(&grown, NamedBounds::ALL).await.expect("the topic can grow");
    for index in 1..3 {
        assert_eq!(scene.bounds(partition(index)).await.next, 0);
        assert_eq!(scene.append_texts(partition(index), &["new"]).await, [0]);
        assert_eq!(scene.texts(partition(index)).await, ["new"]);
    }
    assert_eq!(scene.texts(partition(0)).await, ["old"]);
    let described = scene.open.topics.describe(spec.number).await.expect("the topic can be described");
    assert_eq!(described.partitions.len(), 3);
}

pub async fn altering_never_shrinks(factory: &dyn LogFactory) {
    let scene = LogScene::new(factory).await;
    let spec = new_spec(3);
    scene.create(&spec).await;
    let smaller = TopicSpec { partitions: 1, ..spec.clone() };
    // An engine may reject or ignore this call; it must not remove partitions.
    let _ = scene.open.topics.alter(&smaller, NamedBounds::NONE).await;
    scene.append_texts(PartitionId::new(spec.number, 2), &["kept"]).await;
    let described = scene.open.topics.describe(spec.number).await.expect("the topic can be described");
    assert_eq!(described.partitions.len(), 3);
}

pub async fn deleting_a_missing_topic_is_no_error(factory: &dyn LogFactory) {
    let (scene, spec) = LogScene::with_spec(factory, 1).await;
    let identity = scene.identity(&spec).await;
    for _ in 0..2 {
        scene.delete_exactly(&spec, identity.as_deref()).await;
    }
    scene.delete(&spec).await;
    scene.delete(&TopicSpec { number: TopicNumber(999_999), ..new_spec(1) }).await;
}

pub async fn an_identity_belongs_to_one_topic_and_not_to_a_later_one_of_its_name(factory: &dyn LogFactory) {
    let (scene, old) = LogScene::with_spec(factory, 1).await;
    let identity = scene.identity(&old).await;
    assert!(identity.is_some(), "the engine has the topic");
    scene.create(&old).await;
    assert_eq!(scene.identity(&old).await, identity, "opening it again does not change the identity");
    scene.delete(&old).await;
    assert_eq!(scene.identity(&old).await, None);
    let new = TopicSpec { number: new_spec(1).number, ..old.clone() };
    scene.create(&new).await;
    let later = scene.identity(&new).await;
    assert!(later.is_some() && later != identity, "{later:?} after {identity:?}");
}

pub async fn a_late_deletion_keeps_a_later_topic_of_that_name(factory: &dyn LogFactory) {
    let (scene, old) = LogScene::with_spec(factory, 1).await;
    let identity = scene.identity(&old).await;
    scene.delete(&old).await;
    let new = TopicSpec { number: new_spec(1).number, ..old.clone() };
    scene.create(&new).await;
    let partition = PartitionId::new(new.number, 0);
    scene.append_texts(partition, &["new"]).await;
    scene.delete_exactly(&old, identity.as_deref()).await;
    assert_eq!(scene.texts(partition).await, ["new"]);
}

pub async fn an_instance_deletes_a_topic_that_it_does_not_know(factory: &dyn LogFactory) {
    let (here, spec) = LogScene::with_spec(factory, 1).await;
    let Some(there) = here.beside().await else { return };
    let identity = here.identity(&spec).await;
    assert_eq!(there.identity(&spec).await, identity);
    there.delete_exactly(&spec, identity.as_deref()).await;
    assert_eq!(here.identity(&spec).await, None);
}

pub async fn a_deleted_topic_rejects_reads_and_writes(factory: &dyn LogFactory) {
    let (scene, spec) = LogScene::with_spec(factory, 1).await;
    let partition = PartitionId::new(spec.number, 0);
    scene.append_texts(partition, &["a"]).await;
    scene.read_now(partition, 0).await;
    scene.delete(&spec).await;
    let gone = LogError::UnknownPartition(partition);
    let log = &scene.open.log;
    assert_eq!(log.append(vec![entry(partition, "b")]).await, [Err(gone.clone())]);
    assert_eq!(log.read(partition, 0, wide()).await, Err(gone.clone()));
    assert_eq!(log.bounds(partition).await, Err(gone));
}

pub async fn a_waiting_reader_gets_an_error_when_its_topic_is_deleted(factory: &dyn LogFactory) {
    let (scene, spec) = LogScene::with_spec(factory, 1).await;
    let partition = PartitionId::new(spec.number, 0);
    let log = scene.open.log.clone();
    let waiting = tokio::spawn(async move { log.read(partition, 0, wide()).await });
    // The reader may wait already, or start after the deletion: it gets the same answer.
    scene.try_read(partition, 0, Duration::from_millis(20)).await.expect("the end can be waited at");
    scene.delete(&spec).await;
    let told = tokio::time::timeout(PATIENCE / 2, waiting).await.expect("the reader does not time out");
    assert_eq!(told.expect("the reader ends by itself"), Err(LogError::UnknownPartition(partition)));
}

pub async fn a_topic_made_again_under_an_old_name_inherits_nothing(factory: &dyn LogFactory) {
    let scene = LogScene::new(factory).await;
    let old = new_spec(2);
    scene.create(&old).await;
    let old_partition = PartitionId::new(old.number, 0);
    scene.append_texts(old_partition, &["old 1", "old 2"]).await;
    scene.read_now(old_partition, 0).await;
    // A reader has waited at the end of the old topic: that offset must not be taken for one of the new topic.
    let old_end = scene.bounds(old_partition).await.next;
    scene.try_read(old_partition, old_end, Duration::from_millis(20)).await.expect("the end can be waited at");
    scene.delete(&old).await;
    let new = TopicSpec { number: new_spec(1).number, partitions: 1, ..old.clone() };
    assert_eq!(scene.create(&new).await, 1, "the new topic does not inherit the number of partitions");
    let partition = PartitionId::new(new.number, 0);
    assert_eq!(scene.bounds(partition).await.next, 0);
    assert!(scene.read_now(partition, 0).await.records.is_empty());
    let (woken, offsets) =
        tokio::join!(scene.try_read(partition, 0, PATIENCE), scene.append_texts(partition, &["new"]));
    assert_eq!(offsets, [0]);
    assert_eq!(woken.expect("the new topic can be waited at").records.iter().map(text_of).collect::<Vec<_>>(), ["new"]);
    assert_eq!(scene.texts(partition).await, ["new"]);
    assert_eq!(
        scene.open.log.append(vec![entry(old_partition, "late")]).await,
        [Err(LogError::UnknownPartition(old_partition))],
        "the old number is unknown"
    );
}

pub async fn a_topic_is_described_partition_by_partition(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 3).await;
    let status = scene.open.topics.describe(topic).await.expect("the topic can be described");
    assert_eq!(status.partitions.iter().map(|partition| partition.index).collect::<Vec<_>>(), [0, 1, 2]);
}

pub async fn an_unknown_topic_cannot_be_described(factory: &dyn LogFactory) {
    let scene = LogScene::new(factory).await;
    assert!(scene.open.topics.describe(TopicNumber(999_999)).await.is_err());
}

pub async fn another_instance_reads_the_records_of_this_one(factory: &dyn LogFactory) {
    let here = LogScene::new(factory).await;
    let Some(there) = here.beside().await else { return };
    let spec = new_spec(1);
    let partition = PartitionId::new(spec.number, 0);
    here.create(&spec).await;
    assert_eq!(there.create(&spec).await, 1);
    here.append_texts(partition, &["a", "b"]).await;
    assert_eq!(there.texts(partition).await, ["a", "b"]);
    there.append_texts(partition, &["c"]).await;
    assert_eq!(here.texts(partition).await, ["a", "b", "c"]);
}

pub async fn another_instance_wakes_a_reader_of_this_one(factory: &dyn LogFactory) {
    let here = LogScene::new(factory).await;
    let Some(there) = here.beside().await else { return };
    let spec = new_spec(1);
    let partition = PartitionId::new(spec.number, 0);
    here.create(&spec).await;
    there.create(&spec).await;
    let (batch, _) = tokio::join!(here.try_read(partition, 0, PATIENCE), there.append_texts(partition, &["woken"]));
    let batch = batch.expect("the reader is answered");
    assert_eq!(batch.records.iter().map(text_of).collect::<Vec<_>>(), ["woken"]);
}
