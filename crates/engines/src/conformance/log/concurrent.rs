//! Many concurrent appenders, committers and readers.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, FutureExt as _, join_all, select};
use whimbrel_model::ports::{Entry, ReadLimits};
use whimbrel_model::{PartitionId, Record, Timestamp};

use super::LogFactory;
use super::scene::{LogScene, PATIENCE, assert_growing, entry, new_fence_name, record, text_of, wide};

pub async fn many_appenders_at_once_lose_nothing_and_share_no_offset(factory: &dyn LogFactory) {
    const APPENDERS: u32 = 32;
    const CALLS: u32 = 20;
    const PARTITIONS: u32 = 4;
    let (scene, topic) = LogScene::with_topic(factory, PARTITIONS).await;
    let acknowledged = join_all((0..APPENDERS).map(|appender| {
        let scene = &scene;
        async move {
            let mut places = Vec::new();
            for call in 0..CALLS {
                let partition = |n| PartitionId::new(topic, (appender + call + n) % PARTITIONS);
                let texts: Vec<String> = (0..3).map(|n| format!("{appender}/{call}/{n}")).collect();
                let entries = texts.iter().zip(0..).map(|(text, n)| entry(partition(n), text)).collect();
                let offsets = scene.append(entries).await;
                places.extend(texts.into_iter().zip(0..).zip(offsets).map(|((t, n), o)| ((partition(n), o), t)));
            }
            places
        }
    }))
    .await;
    let by_place: HashMap<_, _> = acknowledged.into_iter().flatten().collect();
    assert_eq!(by_place.len() as u32, APPENDERS * CALLS * 3, "no two records share an offset");
    let mut found = HashMap::new();
    for index in 0..PARTITIONS {
        let partition = PartitionId::new(topic, index);
        let read = scene.read_to_end(partition, 0).await;
        found.extend(read.iter().map(|stored| ((partition, stored.offset), text_of(stored))));
    }
    assert_eq!(found, by_place);
}

pub async fn appends_beside_commits_lose_nothing(factory: &dyn LogFactory) {
    const ROUNDS: u32 = 15;
    let (scene, topic) = LogScene::with_topic(factory, 2).await;
    let partitions = [PartitionId::new(topic, 0), PartitionId::new(topic, 1)];
    let fence = scene.fence(&new_fence_name()).await;
    let appending = async {
        for round in 0..ROUNDS * 4 {
            let text = format!("appended {round}");
            scene.append(partitions.iter().map(|partition| entry(*partition, &text)).collect()).await;
        }
    };
    let committing = async {
        for round in 0..ROUNDS {
            let text = format!("committed {round}");
            scene.commit(&fence, partitions.iter().map(|partition| entry(*partition, &text)).collect()).await;
        }
    };
    tokio::join!(appending, committing);
    for partition in partitions {
        let texts = scene.texts(partition).await;
        let of = |word: &str| texts.iter().filter(|text| text.starts_with(word)).cloned().collect::<Vec<_>>();
        assert_eq!(of("appended"), (0..ROUNDS * 4).map(|n| format!("appended {n}")).collect::<Vec<_>>());
        assert_eq!(of("committed"), (0..ROUNDS).map(|n| format!("committed {n}")).collect::<Vec<_>>());
    }
}

/// A reader that starts at a time must get every record of that time, also a record that is appended during the look-up.
pub async fn a_time_lookup_does_not_skip_a_record_that_is_being_appended(factory: &dyn LogFactory) {
    const ROUNDS: i64 = 100;
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let base = crate::conformance::now().as_millis() - ROUNDS;
    for round in 0..ROUNDS {
        let time = Timestamp::from_millis(base + round);
        let entry = Entry { partition, record: Record { timestamp: time, ..record(Bytes::from_static(b"x")) } };
        let mut append = pin!(scene.append(vec![entry]));
        let mut found = Vec::new();
        let offset = loop {
            let search = scene.open.log.offset_at(partition, time);
            match select(append, search).await {
                Either::Left((offsets, search)) => {
                    found.push(search.await.unwrap());
                    break offsets[0];
                }
                Either::Right((offset, still_appending)) => {
                    found.push(offset.unwrap());
                    append = still_appending;
                }
            }
        };
        assert!(found.iter().all(|found| *found <= offset), "round {round}: {found:?}, the record is at {offset}");
    }
}

pub async fn readers_at_different_places_do_not_disturb_each_other(factory: &dyn LogFactory) {
    const READERS: usize = 12;
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let offsets = scene.append((0..2000).map(|n| entry(partition, &n.to_string())).collect()).await;
    join_all((0..READERS).map(|reader| {
        let (scene, offsets) = (&scene, &offsets);
        async move {
            let begin = reader * 150;
            let (mut next, mut texts) = (offsets[begin], Vec::new());
            while next <= offsets[offsets.len() - 1] {
                let limits = ReadLimits { max_records: 50 + reader, ..wide() };
                let batch = scene.open.log.read(partition, next, limits).await.expect("the partition can be read");
                assert_growing(&batch.records.iter().map(|stored| stored.offset).collect::<Vec<_>>());
                next = batch.next;
                texts.extend(batch.records.iter().map(text_of));
            }
            assert_eq!(texts, (begin..2000).map(|n| n.to_string()).collect::<Vec<_>>(), "reader {reader}");
        }
    }))
    .await;
}

pub async fn waiting_readers_do_not_keep_others_from_reading(factory: &dyn LogFactory) {
    const WAITING: usize = 20;
    let (scene, topic) = LogScene::with_topic(factory, 2).await;
    let partitions = [PartitionId::new(topic, 0), PartitionId::new(topic, 1)];
    for partition in partitions {
        scene.append_texts(partition, &["a", "b", "c"]).await;
    }
    let end = scene.bounds(partitions[0]).await.next;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..WAITING {
        let log = scene.open.log.clone();
        waiting.spawn(async move { log.read(partitions[0], end, wide()).await });
    }
    for partition in partitions {
        for from in 0..3 {
            let reading = scene.try_read(partition, from, Duration::ZERO);
            let batch = tokio::time::timeout(PATIENCE / 2, reading).await.expect("the read does not wait for others");
            assert!(!batch.expect("the partition can be read").records.is_empty());
        }
    }
    scene.append_texts(partitions[0], &["end"]).await;
    while let Some(batch) = waiting.join_next().await {
        let batch = batch.expect("the reader ends by itself").expect("the partition can be read");
        assert_eq!(batch.records.iter().map(text_of).collect::<Vec<_>>(), ["end"]);
    }
}

pub async fn many_waiting_readers_are_all_woken(factory: &dyn LogFactory) {
    const READERS: usize = 50;
    const RECORDS: usize = 40;
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let follow = || async {
        let (mut next, mut seen) = (0, BTreeSet::new());
        while seen.len() < RECORDS {
            let batch = scene.try_read(partition, next, PATIENCE).await.expect("the partition can be read");
            assert!(!batch.records.is_empty(), "a reader timed out at {next} with {} records", seen.len());
            next = batch.next;
            seen.extend(batch.records.iter().map(text_of));
        }
        seen
    };
    let appending = async {
        for n in 0..RECORDS {
            scene.append_texts(partition, &[&n.to_string()]).await;
        }
    };
    let (followed, ()) = tokio::join!(join_all((0..READERS).map(|_| follow())), appending);
    let all: BTreeSet<String> = (0..RECORDS).map(|n| n.to_string()).collect();
    assert!(followed.iter().all(|seen| *seen == all));
}

pub async fn a_burst_reaches_every_reader_at_the_tail_whole_and_in_order(factory: &dyn LogFactory) {
    const ROUNDS: usize = 5;
    const RECORD_BYTES: usize = 8 << 10;
    const BURST: usize = 160;
    const { assert!(BURST * RECORD_BYTES > 1 << 20, "a burst exceeds the records that an engine keeps for late readers") };
    /// The maximum records per read of each reader: fast readers are at the end while slow ones have just begun.
    const AT_ONCE: [usize; 8] = [10_000, 10_000, 50, 7, 10_000, 3, 20, 10_000];
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    let mut places = [0; AT_ONCE.len()];
    for round in 0..ROUNDS {
        let numbers = round * BURST..(round + 1) * BURST;
        let text = |n: usize| format!("{n:0>RECORD_BYTES$}");
        // All readers wait before the burst is sent: joined futures are polled in order.
        let following = join_all(places.iter_mut().zip(AT_ONCE).map(|(next, max_records)| {
            let (scene, mut expected) = (&scene, numbers.clone());
            async move {
                while !expected.is_empty() {
                    let limits = ReadLimits { max_records, ..wide() };
                    let batch = scene.open.log.read(partition, *next, limits).await.expect("the partition can be read");
                    assert!(!batch.records.is_empty(), "a reader timed out at {next}");
                    for stored in &batch.records {
                        let (found, number) = (text_of(stored), expected.next());
                        let found = found.trim_start_matches('0').parse().unwrap_or(0);
                        assert_eq!(Some(found), number, "a reader of {max_records} at once that stood at {next}");
                    }
                    *next = batch.next;
                }
            }
        }));
        let burst = numbers.clone().map(|n| Entry { partition, record: record(text(n)) }).collect();
        tokio::join!(following, scene.append(burst));
    }
}

pub async fn a_reader_that_is_not_polled_while_others_read_misses_nothing(factory: &dyn LogFactory) {
    const RECORD_BYTES: usize = 16 << 10;
    const BURST: usize = 40;
    const BURSTS: usize = 10;
    let (scene, topic) = LogScene::with_topic(factory, 1).await;
    let partition = PartitionId::new(topic, 0);
    // An earlier reader has waited at the same offset, so that an engine with memory that readers share uses it here.
    let (first, _) = tokio::join!(scene.try_read(partition, 0, PATIENCE), scene.append_texts(partition, &["first"]));
    let begin = first.expect("the partition can be read").next;
    let mut sleeping = scene.open.log.read(partition, begin, wide());
    assert!((&mut sleeping).now_or_never().is_none(), "there is nothing to read yet");
    let (mut next, mut offsets) = (begin, Vec::new());
    for _ in 0..BURSTS {
        let burst = (0..BURST).map(|_| Entry { partition, record: record(vec![b'x'; RECORD_BYTES]) }).collect();
        offsets.extend(scene.append(burst).await);
        while offsets.last().is_some_and(|last| next <= *last) {
            next = scene.try_read(partition, next, PATIENCE).await.expect("the partition can be read").next;
        }
    }
    let woken = sleeping.await.expect("the partition can be read");
    let mut read: Vec<u64> = woken.records.iter().map(|stored| stored.offset).collect();
    read.extend(scene.read_to_end(partition, woken.next).await.iter().map(|stored| stored.offset));
    assert_eq!(read, offsets);
}
