//! Transactions that Kafka has left open: the coordinator takes them for finished, and a partition has no end of them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings};
use whimbrel_model::ports::{CommitOutcome, Entry, Fence, Log, LogError, LogTopics, ReadLimits};
use whimbrel_model::{Clock as _, Event, Headers, PartitionId, Record, SystemClock, TopicSpec};

use crate::broker::{OwnBroker, new_spec};
use crate::{kept_events, needs_kafka};

/// How long anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(120);
/// Who reads nothing for so long after a broker's restart is not waited for.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_kafka_left_open_in_both_its_partitions_is_ended_as_a_commit() {
    needs_kafka!();
    let mut broker = OwnBroker::start();
    let (events, kept) = kept_events();
    let log = KafkaLog::connect(impatient(&broker), events).await.expect("Kafka can be reached");
    let spec = new_spec(2);
    log.create(&spec).await.expect("the topic can be made");
    let partitions = [0, 1].map(|index| PartitionId::new(spec.number, index));
    let fence = log.fence(&spec.name, 1).await.expect("the fence can be opened");
    let both = |text: &str| partitions.map(|partition| entry(partition, text)).to_vec();
    assert!(matches!(log.commit(&fence, both("committed")).await, CommitOutcome::Done(_)));
    for partition in partitions {
        texts_up_to(&log, partition, "committed").await;
    }

    tokio::task::block_in_place(|| {
        wait_until_finished(&broker.address, &spec.name);
        broker.kill();
        partitions.iter().for_each(|partition| broker.take_last_end_away(&spec.name, partition.index));
        broker.start_again();
    });
    // The fence that made it still stands, and makes nothing of it visible or void by accident.
    commit(&log, &fence, &both("later")).await;
    for partition in partitions {
        let texts = texts_after_restart(&log, &broker, &spec, partition, "later").await;
        assert_eq!(texts, ["committed", "later"], "{partition}");
    }
    // Where the later commit comes before anybody has noticed, its own end is the end of both.
    let ended = ended_as(&kept.lock().unwrap());
    assert!(ended.iter().all(|how| *how == "committed"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_aborted_and_left_open_is_ended_by_the_next_fence_and_never_seen() {
    needs_kafka!();
    let LeftOpen { log, spec, partition, kept, broker } = LeftOpen::aborted().await;
    append(&log, partition, "behind it").await;
    let fence = opened(&log, &spec.name).await;
    assert_eq!(texts_after_restart(&log, &broker, &spec, partition, "behind it").await, ["behind it"]);
    commit(&log, &fence, &[entry(partition, "later")]).await;
    assert_eq!(texts_after_restart(&log, &broker, &spec, partition, "later").await, ["behind it", "later"]);
    assert_eq!(ended_as(&kept.lock().unwrap()), ["aborted"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hangs_and_is_nobodys_is_told() {
    needs_kafka!();
    let LeftOpen { log, spec, partition, kept, broker: _broker } = LeftOpen::aborted().await;
    append(&log, partition, "behind it").await;
    let began = Instant::now();
    while kept.lock().unwrap().is_empty() {
        assert!(began.elapsed() < PATIENCE, "nobody tells");
        let read = log.read(partition, 0, limits()).await;
        assert!(read.is_ok_and(|batch| batch.records.is_empty()), "nothing of it is seen");
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
            broker.take_last_end_away(&spec.name, 0);
            broker.start_again();
        });
        Self { log, partition: PartitionId::new(spec.number, 0), spec, kept, broker }
    }
}

fn impatient(broker: &OwnBroker) -> KafkaSettings {
    KafkaSettings {
        message_timeout: Duration::from_secs(3),
        transaction_timeout: Duration::from_secs(3),
        request_timeout: Duration::from_secs(5),
        ..KafkaSettings::new(&broker.address)
    }
}

/// Writes under the transactional id of a fence, and aborts.
fn abort_one(address: &str, topic: &str) {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", address)
        .set("transactional.id", format!("whimbrel/{topic}"))
        .create()
        .expect("a producer can be made");
    producer.init_transactions(PATIENCE).expect("transactions can be begun");
    producer.begin_transaction().expect("one is begun");
    let record = BaseRecord::<str, str>::to(topic).partition(0).payload("aborted");
    producer.send(record).map_err(|(error, _)| error).expect("a record is taken");
    producer.flush(PATIENCE).expect("it is written");
    producer.abort_transaction(PATIENCE).expect("it is aborted");
    wait_until_finished(address, topic);
}

/// Waits until the coordinator has noted that a fence's transaction is over, which it does after the ends are written. One that had
/// only decided would write the ends again when it is back.
fn wait_until_finished(address: &str, topic: &str) {
    const STATUS_AT: usize = 16;
    const COMPLETE_COMMIT: u8 = 4;
    const COMPLETE_ABORT: u8 = 5;
    let id = format!("whimbrel/{topic}");
    let reader: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", address)
        .set("group.id", "the-test-itself")
        .create()
        .expect("a reader can be made");
    let of_coordinator = "__transaction_state";
    let metadata = reader.fetch_metadata(Some(of_coordinator), PATIENCE).expect("the coordinator has a log");
    let mut partitions = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        partitions.add_partition_offset(of_coordinator, partition.id(), Offset::Beginning).expect("it can be read");
    }
    reader.assign(&partitions).expect("it can be read");
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "the coordinator does not finish the transaction of {id}");
        let Some(Ok(record)) = reader.poll(Duration::from_millis(100)) else { continue };
        let is_its = record.key().is_some_and(|key| key.ends_with(id.as_bytes()));
        let status = record.payload().and_then(|state| state.get(STATUS_AT)).copied();
        if is_its && matches!(status, Some(COMPLETE_COMMIT | COMPLETE_ABORT)) {
            return;
        }
    }
}

async fn opened(log: &Arc<KafkaLog>, name: &str) -> Fence {
    let began = Instant::now();
    loop {
        match log.fence(name, 2).await {
            Ok(fence) => return fence,
            Err(LogError::Unavailable(_)) if began.elapsed() < PATIENCE => {}
            Err(error) => panic!("the fence cannot be opened: {error}"),
        }
    }
}

/// Commits; what is not taken now is tried again.
async fn commit(log: &Arc<KafkaLog>, fence: &Fence, entries: &[Entry]) {
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

fn entry(partition: PartitionId, text: &str) -> Entry {
    // Of now: a segment is not continued after a record that is old.
    let timestamp = SystemClock.now();
    Entry { partition, record: Record { key: None, value: text.to_owned().into(), headers: Headers::EMPTY, timestamp } }
}

fn limits() -> ReadLimits {
    ReadLimits { max_records: 1000, max_bytes: 1 << 20, wait: Duration::from_millis(200) }
}

/// Everything that can be read up to `last`, which is waited for.
async fn texts_up_to(log: &Arc<KafkaLog>, partition: PartitionId, last: &str) -> Vec<String> {
    let texts = texts_within(log, partition, last, PATIENCE).await;
    texts.unwrap_or_else(|found| panic!("{last} does not come after {found:?}"))
}

/// The same of a broker that was started again. Kafka's client library may then never read a partition again, and a new start mends it
/// (docs/operating/kafka.md): so a reader of its own looks where this one sees nothing. What hangs in the broker hangs for that one too.
async fn texts_after_restart(
    log: &Arc<KafkaLog>,
    broker: &OwnBroker,
    spec: &TopicSpec,
    partition: PartitionId,
    last: &str,
) -> Vec<String> {
    if let Ok(texts) = texts_within(log, partition, last, READ_AGAIN_AFTER).await {
        return texts;
    }
    println!("{partition} is not read on; a new reader looks");
    let (events, _) = kept_events();
    let anew = KafkaLog::connect(impatient(broker), events).await.expect("Kafka can be reached");
    anew.create(spec).await.expect("the topic is there");
    texts_up_to(&anew, partition, last).await
}

/// What was found by then, where `last` is not among it.
async fn texts_within(
    log: &Arc<KafkaLog>,
    partition: PartitionId,
    last: &str,
    wait: Duration,
) -> Result<Vec<String>, Vec<String>> {
    let (began, mut next, mut found) = (Instant::now(), 0, Vec::new());
    while found.last().is_none_or(|text| text != last) {
        if began.elapsed() >= wait {
            return Err(found);
        }
        // Kafka may be away for a moment.
        let Ok(batch) = log.read(partition, next, limits()).await else { continue };
        next = batch.next;
        found.extend(batch.records.iter().map(|stored| String::from_utf8_lossy(&stored.record.value).into_owned()));
    }
    Ok(found)
}

fn ended_as(events: &[Event]) -> Vec<String> {
    let ended = events.iter().filter(|event| event.kind == "hanging_transaction_ended");
    ended
        .flat_map(|event| event.fields.iter().filter(|(name, _)| *name == "as").map(|(_, value)| value.clone()))
        .collect()
}
