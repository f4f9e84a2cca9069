//! What Whimbrel wrote, others read as it is; what others wrote, Whimbrel reads. Others are `kcat`, and librdkafka's own
//! partitioner.

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, FutureProducer, FutureRecord, Producer};
use whimbrel_engines::kafka::KafkaLog;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::ports::{Entry, Log, LogTopics, ReadLimits};
use whimbrel_model::{Headers, PartitionId, Record, StoredRecord, Timestamp, TopicSpec};

use crate::{bootstrap, connect, needs_kafka, settings};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn kcat_reads_key_headers_and_payload_as_they_were_published() {
    needs_kafka!();
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let mut headers = Headers::builder();
    headers.push("content-type", b"text/plain").push("trace", b"1").push("trace", b"2");
    let record = Record {
        key: Some("order-7".into()),
        value: "paid, with a comma and ümlauts".into(),
        headers: headers.take(),
        timestamp: Timestamp::from_millis(1_700_000_000_123),
    };
    append(&log, &spec, 0, record).await;
    let seen = kcat_reads(&spec.name, "%k|%h|%T|%s");
    assert_eq!(seen, ["order-7|content-type=text/plain,trace=1,trace=2|1700000000123|paid, with a comma and ümlauts"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn kcat_reads_a_commit_and_nothing_of_a_zombie() {
    needs_kafka!();
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let partition = PartitionId::new(spec.number, 0);
    let entry = |text: &str| vec![Entry { partition, record: plain(text) }];
    let zombie = log.fence(&spec.name, 1).await.unwrap();
    log.commit(&zombie, entry("committed")).await;
    let newest = log.fence(&spec.name, 2).await.unwrap();
    log.commit(&zombie, entry("by the zombie")).await;
    log.commit(&newest, entry("committed too")).await;
    assert_eq!(kcat_reads(&spec.name, "%s"), ["committed", "committed too"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kcat_wrote_is_read_with_key_and_headers_and_without_them() {
    needs_kafka!();
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    kcat_writes(&spec.name, &["-k", "order-7", "-H", "a=1", "-H", "b=2", "-H", "a=3"], "with all");
    kcat_writes(&spec.name, &[], "bare");
    let read = read_all(&log, &spec, 0, 2).await;
    assert_eq!(read[0].record.key.as_deref(), Some(&b"order-7"[..]));
    let pairs: Vec<(&str, &[u8])> = read[0].record.headers.iter().collect();
    assert_eq!(pairs, [("a", &b"1"[..]), ("b", b"2"), ("a", b"3")]);
    assert_eq!(&read[0].record.value[..], b"with all");
    assert!(read[0].record.timestamp.as_millis() > 1_700_000_000_000, "Kafka's own time");
    assert_eq!((&read[1].record.key, &read[1].record.value[..]), (&None, &b"bare"[..]));
    assert!(read[1].record.headers.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kcat_wrote_compressed_is_read() {
    needs_kafka!();
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let codecs = ["gzip", "snappy", "lz4", "zstd"];
    for codec in codecs {
        kcat_writes(&spec.name, &["-z", codec], &codec.repeat(100));
    }
    let read = read_all(&log, &spec, 0, codecs.len()).await;
    for (codec, stored) in codecs.iter().zip(&read) {
        assert_eq!(&stored.record.value[..], codec.repeat(100).as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_null_value_of_others_is_read_as_empty() {
    needs_kafka!();
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    kcat_writes(&spec.name, &["-k", "k", "-Z"], "");
    let producer: FutureProducer = bare_producer();
    let tombstone = FutureRecord::<str, [u8]>::to(&spec.name).key("gone").partition(0);
    producer.send(tombstone, PATIENCE).await.expect("the record is taken");
    let read = read_all(&log, &spec, 0, 1).await;
    let last = read.last().expect("a record is there");
    assert_eq!((last.record.key.as_deref(), &last.record.value[..]), (Some(&b"gone"[..]), &b""[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_go_to_the_partitions_that_kafkas_own_partitioner_gives_them() {
    needs_kafka!();
    const PARTITIONS: u32 = 7;
    const KEYS: usize = 300;
    let log = connect(settings()).await;
    let spec = new_topic(&log, PARTITIONS).await;
    let producer: FutureProducer = bare_producer();
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|n| format!("key-{n}-{}", "x".repeat(n % 11)).into_bytes()).collect();
    let mut placed = HashMap::new();
    for key in &keys {
        let record = FutureRecord::to(&spec.name).key(key).payload("v");
        let delivery = producer.send(record, PATIENCE).await.expect("the record is taken");
        placed.insert(key.clone(), delivery.partition as u32);
    }
    for key in keys {
        assert_eq!(partition_of(&key, PARTITIONS), placed[&key], "{}", String::from_utf8_lossy(&key));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_behind_an_open_transaction_is_counted_and_not_yet_visible() {
    needs_kafka!();
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let partition = PartitionId::new(spec.number, 0);
    let stranger = Stranger::begin(&spec.name);
    stranger.write("never to be seen");
    append(&log, &spec, 0, plain("behind it")).await;
    assert_eq!(log.bounds(partition).await.expect("the partition has bounds").next, 2);
    let limits = ReadLimits { max_records: 10, max_bytes: 1 << 20, wait: Duration::ZERO };
    let hidden = log.read(partition, 0, limits).await.expect("the partition can be read");
    assert_eq!((hidden.records.len(), hidden.next), (0, 0));
    let beyond_the_visible = log.read(partition, 2, limits).await.expect("the end as it is counted can be read from");
    assert_eq!((beyond_the_visible.records.len(), beyond_the_visible.next), (0, 2));

    let waiting = tokio::spawn({
        let log = log.clone();
        async move { log.read(partition, 0, ReadLimits { wait: PATIENCE, ..limits }).await }
    });
    tokio::task::block_in_place(|| stranger.abort());
    let shown = waiting.await.expect("the reader ends by itself").expect("the partition can be read");
    assert_eq!(shown.records.iter().map(|each| &each.record.value[..]).collect::<Vec<_>>(), [b"behind it"]);
    assert_eq!(shown.records[0].offset, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_aborted_transaction_wrote_is_passed_over_to_the_end() {
    needs_kafka!();
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let stranger = Stranger::begin(&spec.name);
    (0..10).for_each(|_| stranger.write("never to be seen"));
    tokio::task::block_in_place(|| stranger.abort());
    append(&log, &spec, 0, plain("seen")).await;
    let stranger = Stranger::begin(&spec.name);
    stranger.write("never to be seen");
    tokio::task::block_in_place(|| stranger.abort());
    let read = read_all(&log, &spec, 0, 1).await;
    assert_eq!(read.iter().map(|each| &each.record.value[..]).collect::<Vec<_>>(), [b"seen"]);
    // The marker comes moments after the answer, on a cluster perhaps behind the record that follows.
    assert!(read[0].offset >= 10, "ten records lie before it, which nobody sees");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_waits_is_told_at_once_that_what_was_open_will_never_be_seen() {
    needs_kafka!();
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let partition = PartitionId::new(spec.number, 0);
    let stranger = Stranger::begin(&spec.name);
    stranger.write("never to be seen");
    let waiting = tokio::spawn({
        let log = log.clone();
        let limits = ReadLimits { max_records: 10, max_bytes: 1000, wait: PATIENCE };
        async move { log.read(partition, 0, limits).await }
    });
    tokio::task::block_in_place(|| stranger.abort());
    let aborted_at = Instant::now();
    let passed = waiting.await.expect("the reader ends by itself").expect("the partition can be read");
    assert_eq!((passed.records.len(), passed.next), (0, log.bounds(partition).await.expect("it has an end").next));
    assert!(aborted_at.elapsed() < PATIENCE / 2, "it waited for something to see");
}

/// Somebody else's transaction.
struct Stranger {
    producer: BaseProducer,
    topic: String,
}

impl Stranger {
    fn begin(topic: &str) -> Self {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap())
            .set("transactional.id", format!("stranger-{topic}"))
            .create()
            .expect("a producer can be made");
        producer.init_transactions(PATIENCE).expect("transactions can be begun");
        producer.begin_transaction().expect("a transaction can be begun");
        Self { producer, topic: topic.to_owned() }
    }

    fn write(&self, text: &str) {
        let record = BaseRecord::<(), str>::to(&self.topic).partition(0).payload(text);
        self.producer.send(record).map_err(|(error, _)| error).expect("the record is taken");
        self.producer.flush(PATIENCE).expect("the record is written");
    }

    fn abort(&self) {
        self.producer.abort_transaction(PATIENCE).expect("the transaction can be aborted");
    }
}

/// A producer of somebody else, who lets Kafka's default partitioner choose.
fn bare_producer() -> FutureProducer {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap())
        .set("partitioner", "murmur2_random")
        .set("linger.ms", "0")
        .create()
        .expect("a producer can be made")
}

async fn new_topic(log: &Arc<KafkaLog>, partitions: u32) -> TopicSpec {
    let spec = crate::broker::new_spec(partitions);
    log.create(&spec).await.expect("the topic can be made");
    spec
}

fn plain(text: &str) -> Record {
    let timestamp = Timestamp::from_millis(1_700_000_000_000);
    Record { key: None, value: text.to_owned().into(), headers: Headers::EMPTY, timestamp }
}

async fn append(log: &Arc<KafkaLog>, spec: &TopicSpec, index: u32, record: Record) {
    let entry = Entry { partition: PartitionId::new(spec.number, index), record };
    log.append(vec![entry]).await.remove(0).expect("the record is taken");
}

/// Reads until that many records are there, at least.
async fn read_all(log: &Arc<KafkaLog>, spec: &TopicSpec, index: u32, at_least: usize) -> Vec<StoredRecord> {
    let limits = ReadLimits { max_records: 1000, max_bytes: 1 << 20, wait: PATIENCE };
    let partition = PartitionId::new(spec.number, index);
    let end = log.bounds(partition).await.expect("the partition has bounds").next;
    let (mut next, mut records) = (0, Vec::new());
    while next < end || records.len() < at_least {
        let batch = log.read(partition, next, limits).await.expect("the partition can be read");
        assert!(batch.next > next, "reading stands still at {next}");
        next = batch.next;
        records.extend(batch.records);
    }
    records
}

/// What kcat prints of a topic, one line per record.
fn kcat_reads(topic: &str, format: &str) -> Vec<String> {
    let format = format!("{format}\n");
    let output = Command::new("kcat")
        .args(["-b", &bootstrap(), "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", &format])
        .args(["-X", "isolation.level=read_committed"])
        .output()
        .expect("kcat runs: scripts/services installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("kcat prints text").lines().map(str::to_owned).collect()
}

fn kcat_writes(topic: &str, arguments: &[&str], value: &str) {
    let mut kcat = Command::new("kcat")
        .args(["-b", &bootstrap(), "-P", "-t", topic, "-p", "0"])
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .expect("kcat runs: scripts/services installs it");
    kcat.stdin.take().expect("kcat has an input").write_all(value.as_bytes()).expect("kcat reads its input");
    assert!(kcat.wait().expect("kcat ends").success());
}
