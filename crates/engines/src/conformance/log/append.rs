//! Appending: order, offsets, sizes, errors of single records, durability.

use std::time::Duration;

use whimbrel_model::ports::LogError;
use whimbrel_model::{PartitionId, TopicNumber, TopicSpec};

use super::LogFactory;
use super::scene::{LogScene, assert_growing, entry, entry_of_size, new_spec, text_of};

pub async fn records_of_one_call_keep_their_order_within_a_partition(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 2).await;
    let partition = |index| PartitionId::new(topic, index);
    let written: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    let entries = written.iter().enumerate().map(|(at, text)| entry(partition(at as u32 % 2), text)).collect();
    scene.append(entries).await;
    for index in 0..2 {
        let expected: Vec<&String> = written.iter().skip(index as usize).step_by(2).collect();
        assert_eq!(scene.texts(partition(index)).await.iter().collect::<Vec<_>>(), expected);
    }
}

pub async fn offsets_grow_from_call_to_call(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let mut offsets = Vec::new();
    for _ in 0..5 {
        offsets.extend(scene.append_texts(partition, &["a", "b", "c"]).await);
    }
    assert_growing(&offsets);
    assert_eq!(offsets[0], 0, "a new partition begins at zero");
}

pub async fn a_call_over_several_partitions_is_answered_in_its_own_order(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 3).await;
    let other = scene.topic(1).await;
    let places: Vec<PartitionId> =
        (0..60).map(|n| if n % 4 == 3 { PartitionId::new(other, 0) } else { PartitionId::new(topic, n % 4) }).collect();
    let entries = places.iter().enumerate().map(|(at, place)| entry(*place, &at.to_string())).collect();
    let offsets = scene.append(entries).await;
    for place in places.iter().take(4) {
        for stored in scene.read_to_end(*place, 0).await {
            let at: usize = text_of(&stored).parse().expect("the value is the entry's index");
            assert_eq!((places[at], offsets[at]), (*place, stored.offset), "entry {at}");
        }
    }
}

pub async fn an_empty_append_returns_no_offsets(factory: &dyn LogFactory) {
    let scene = LogScene::new(factory).await;
    assert!(scene.open.log.append(Vec::new()).await.is_empty());
}

pub async fn a_record_of_the_largest_size_is_taken(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let largest = entry_of_size(partition, scene.traits().record_bytes_max);
    scene.append(vec![largest.clone()]).await;
    let read = scene.read_to_end(partition, 0).await;
    assert_eq!(read.len(), 1);
    assert!(read[0].record == largest.record, "the largest record comes back as it was");
}

pub async fn a_record_over_the_limit_is_refused_and_its_neighbours_are_taken(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let limit = scene.traits().record_bytes_max;
    let entries = vec![entry(partition, "before"), entry_of_size(partition, limit + 1), entry(partition, "after")];
    let outcome = scene.open.log.append(entries).await;
    assert_eq!(outcome[1], Err(LogError::TooLarge { size: limit + 1, limit }));
    assert!(outcome[0].is_ok() && outcome[2].is_ok(), "its neighbours are taken: {outcome:?}");
    assert_eq!(scene.texts(partition).await, ["before", "after"]);
}

pub async fn an_unknown_partition_is_the_error_of_its_record_alone(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let unknown = [PartitionId::new(topic, 1), PartitionId::new(TopicNumber(999_999), 0)];
    let entries =
        vec![entry(partition, "before"), entry(unknown[0], "-"), entry(unknown[1], "-"), entry(partition, "after")];
    let outcome = scene.open.log.append(entries).await;
    assert_eq!(outcome[1], Err(LogError::UnknownPartition(unknown[0])));
    assert_eq!(outcome[2], Err(LogError::UnknownPartition(unknown[1])));
    assert!(outcome[0].is_ok() && outcome[3].is_ok(), "its neighbours are taken: {outcome:?}");
    assert_eq!(scene.texts(partition).await, ["before", "after"]);
}

pub async fn a_dropped_append_does_not_affect_others(factory: &dyn LogFactory) {
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    for _ in 0..20 {
        let unawaited = scene.open.log.append(vec![entry(partition, "unawaited")]);
        let _ = tokio::time::timeout(Duration::ZERO, unawaited).await;
        let offset = scene.append_texts(partition, &["awaited"]).await[0];
        assert_eq!(text_of(&scene.read_to_end(partition, offset).await[0]), "awaited");
    }
}

pub async fn acknowledged_records_survive_a_restart(factory: &dyn LogFactory) {
    let scene = LogScene::new(factory).await;
    let spec = new_spec(2);
    scene.create(&spec).await;
    let partition = |index| PartitionId::new(spec.number, index);
    scene.append_texts(partition(0), &["a", "b"]).await;
    scene.append_texts(partition(1), &["c"]).await;
    let ends = [scene.bounds(partition(0)).await, scene.bounds(partition(1)).await];

    let scene = LogScene { factory, open: factory.reopen(scene.open).await };
    assert_eq!(scene.create(&TopicSpec { partitions: 1, ..spec.clone() }).await, 2, "the topic is known again");
    assert_eq!([scene.bounds(partition(0)).await, scene.bounds(partition(1)).await], ends);
    assert_eq!(scene.texts(partition(0)).await, ["a", "b"]);
    assert_eq!(scene.texts(partition(1)).await, ["c"]);
    assert!(scene.append_texts(partition(0), &["d"]).await[0] >= ends[0].next, "offsets go on");
}
