//! Hanging transactions: the coordinator has completed them, and a partition lacks their marker.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use whimbrel_engines::conformance::log::{entry, new_spec, text_of};
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings};
use whimbrel_engines::needs_servers;
use whimbrel_model::ports::{CommitOutcome, Entry, Fence, Log, LogError, LogTopics, ReadLimits};
use whimbrel_model::{Event, PartitionId, TopicSpec};

use crate::broker::OwnBroker;
use crate::interoperability::new_topic;
use crate::programs::Peer;
use crate::{ADDRESS, kept_events};

/// The timeout of every condition that must become true.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_kafka_left_open_in_both_its_partitions_is_ended_as_a_commit() {
    needs_servers!(ADDRESS);
    let mut broker = OwnBroker::start();
    let (events, kept) = kept_events();
    // A fence confirms a commit after this time. It must not do so before its marker is removed.
    let settings = KafkaSettings { stalled_after: PATIENCE, ..impatient(&broker) };
    let log = KafkaLog::connect(settings, events).await.expect("Kafka can be reached");
    let spec = new_topic(&log, 2).await;
    let partitions = [0, 1].map(|index| PartitionId::new(spec.number, index));
    let fence = log.fence(&spec.name, 1).await.expect("the fence can be opened");
    let both = |text: &str| partitions.map(|partition| entry(partition, text)).to_vec();
    assert!(matches!(log.commit(&fence, both("committed")).await, CommitOutcome::Done(_)));
    for partition in partitions {
        texts_up_to(&log, partition, "committed").await;
    }

    tokio::task::block_in_place(|| {
        Peer::start(&broker.address).wait_until_complete(&transactional_id(&spec.name));
        broker.kill();
        partitions.iter().for_each(|partition| broker.remove_last_transaction_marker(&spec.name, partition.index));
        broker.start_again();
    });
    // The fence of that commit is still open. Its next commit neither aborts the first nor commits it twice.
    commit(&log, &fence, &both("later")).await;
    for partition in partitions {
        let texts = texts_up_to(&log, partition, "later").await;
        assert_eq!(texts, ["committed", "later"], "{partition}");
    }
    assert_eq!(ended(&kept.lock().unwrap()), ["committed by marker", "committed by marker"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_transaction_that_was_left_open_is_ended_by_the_next_fence_and_never_read() {
    needs_servers!(ADDRESS);
    let LeftOpen { log, spec, partition, kept, broker: _broker } = LeftOpen::aborted().await;
    append(&log, partition, "behind it").await;
    let fence = opened(&log, &spec.name).await;
    assert_eq!(texts_up_to(&log, partition, "behind it").await, ["behind it"]);
    commit(&log, &fence, &[entry(partition, "later")]).await;
    assert_eq!(texts_up_to(&log, partition, "later").await, ["behind it", "later"]);
    assert_eq!(ended(&kept.lock().unwrap()), ["aborted by marker"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_transaction_without_a_fence_is_reported() {
    needs_servers!(ADDRESS);
    let LeftOpen { log, spec, partition, kept, broker: _broker } = LeftOpen::aborted().await;
    append(&log, partition, "behind it").await;
    let began = Instant::now();
    while kept.lock().unwrap().is_empty() {
        assert!(began.elapsed() < PATIENCE, "no event is emitted");
        let read = log.read(partition, 0, limits()).await;
        assert!(read.is_ok_and(|batch| batch.records.is_empty()), "no record of it is read");
    }
    let kept = kept.lock().unwrap().clone();
    assert_eq!(kept.iter().map(|event| event.kind).collect::<Vec<_>>(), ["transaction_hanging"]);
    assert!(kept[0].detail.contains(&spec.name) && kept[0].fields.contains(&("offset", "0".to_owned())), "{kept:?}");
}

/// A partition with an aborted transaction that Kafka has left open.
struct LeftOpen {
    log: Arc<KafkaLog>,
    spec: TopicSpec,
    partition: PartitionId,
    kept: Arc<Mutex<Vec<Event>>>,
    broker: OwnBroker,
}

impl LeftOpen {
    async fn aborted() -> Self {
        let mut broker = OwnBroker::start();
        let (events, kept) = kept_events();
        let log = KafkaLog::connect(impatient(&broker), events).await.expect("Kafka can be reached");
        let spec = new_spec(1);
        log.create(&spec).await.expect("the topic can be made");
        tokio::task::block_in_place(|| {
            abort_one(&broker.address, &spec.name);
            broker.kill();
            broker.remove_last_transaction_marker(&spec.name, 0);
            broker.start_again();
        });
        Self { log, partition: PartitionId::new(spec.number, 0), spec, kept, broker }
    }
}

pub fn impatient(broker: &OwnBroker) -> KafkaSettings {
    KafkaSettings {
        message_timeout: Duration::from_secs(3),
        transaction_timeout: Duration::from_secs(3),
        request_timeout: Duration::from_secs(5),
        ..KafkaSettings::new(&broker.address)
    }
}

/// Writes under the transactional id of a fence, and aborts.
fn abort_one(address: &str, topic: &str) {
    let mut peer = Peer::start(address);
    let id = transactional_id(topic);
    peer.begin(&id);
    peer.write(topic, "aborted");
    peer.abort();
    peer.wait_until_complete(&id);
}

/// The id of the fence that has the topic's name.
fn transactional_id(topic: &str) -> String {
    format!("whimbrel/{topic}")
}

/// Opens a fence again, with retries while the broker is unavailable.
pub async fn opened(log: &Arc<KafkaLog>, name: &str) -> Fence {
    let began = Instant::now();
    loop {
        match log.fence(name, 2).await {
            Ok(fence) => return fence,
            Err(LogError::Unavailable(_)) if began.elapsed() < PATIENCE => {}
            Err(error) => panic!("the fence cannot be opened: {error}"),
        }
    }
}

/// Commits, again while the engine cannot take the commit yet.
pub async fn commit(log: &Arc<KafkaLog>, fence: &Fence, entries: &[Entry]) {
    let began = Instant::now();
    loop {
        match log.commit(fence, entries.to_vec()).await {
            CommitOutcome::Done(_) => return,
            CommitOutcome::NotNow(_) if began.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            outcome => panic!("{outcome:?}"),
        }
    }
}

async fn append(log: &Arc<KafkaLog>, partition: PartitionId, text: &str) {
    let began = Instant::now();
    while let Err(error) = log.append(vec![entry(partition, text)]).await.remove(0) {
        assert!(began.elapsed() < PATIENCE && matches!(error, LogError::Unavailable(_)), "{error}");
    }
}

fn limits() -> ReadLimits {
    ReadLimits { max_records: 1000, max_bytes: 1 << 20, wait: Duration::from_millis(200) }
}

/// The texts that can be read up to `last`, once that is there.
async fn texts_up_to(log: &Arc<KafkaLog>, partition: PartitionId, last: &str) -> Vec<String> {
    let (began, mut next, mut found) = (Instant::now(), 0, Vec::new());
    while found.last().is_none_or(|text| text != last) {
        assert!(began.elapsed() < PATIENCE, "`{last}` is not read after {found:?}");
        // The broker may not be back yet.
        let Ok(batch) = log.read(partition, next, limits()).await else { continue };
        next = batch.next;
        found.extend(batch.records.iter().map(text_of));
    }
    found
}

/// How the hanging transactions were ended, such as `committed by marker`.
pub fn ended(events: &[Event]) -> Vec<String> {
    let field = |event: &Event, name| event.fields.iter().find(|(field, _)| *field == name).unwrap().1.clone();
    let ended = events.iter().filter(|event| event.kind == "hanging_transaction_ended");
    ended.map(|event| format!("{} by {}", field(event, "as"), field(event, "by"))).collect()
}
