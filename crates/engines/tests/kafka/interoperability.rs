//! Whimbrel and other Kafka programs on the same topics: they read the records of Whimbrel byte by byte, and Whimbrel reads theirs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_engines::conformance::log::new_spec;
use whimbrel_engines::kafka::KafkaLog;
use whimbrel_engines::needs_servers;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::ports::{CommitOutcome, Entry, Log, LogTopics, ReadLimits};
use whimbrel_model::{Headers, PartitionId, Record, StoredRecord, Timestamp, TopicSpec};

use crate::programs::{Peer, Seen, assert_others_read, java_writes, kcat_writes};
use crate::{ADDRESS, bootstrap, connect, settings};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn other_clients_read_keys_headers_times_and_bytes_as_they_were_appended() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let mut headers = Headers::builder();
    let every_byte: Vec<u8> = (0..=255).collect();
    let records = vec![
        Record {
            key: Some("order-7".into()),
            value: "paid, with a comma and ümlauts".into(),
            headers: headers.push("content-type", b"text/plain").push("trace", b"1").push("trace", b"2").take(),
            timestamp: Timestamp::from_millis(1_700_000_000_123),
        },
        Record {
            headers: headers.push("void", b"").push("void", b"").push("x", b"y").take(),
            ..plain("empty headers")
        },
        Record { key: Some(every_byte.clone().into()), value: every_byte.into(), ..plain("") },
        Record { key: Some("".into()), ..plain("an empty key") },
        plain("neither key nor headers"),
        plain(""),
        Record { timestamp: Timestamp::from_millis(1), ..plain("the earliest time") },
    ];
    for record in &records {
        append(&log, &spec, 0, record.clone()).await;
    }
    let written: Vec<Seen> = records.iter().map(Seen::from).collect();
    let read: Vec<Seen> = read_all(&log, &spec, 0, written.len()).await.iter().map(Seen::from).collect();
    assert_eq!(read, written, "Whimbrel reads its own records");
    assert_others_read(&mut Peer::start(&bootstrap()), &spec.name, &written);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_records_of_other_clients_are_read_with_their_keys_headers_and_bytes() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let pairs =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    let with_all = Seen {
        key: Some(b"order-7".to_vec()),
        headers: pairs(&[("a", "1"), ("b", ""), ("a", "3")]),
        ..Seen::text("with all")
    };
    let bare = Seen::text("bare");
    let every_byte: Vec<u8> = (0..=255).collect();
    let binary = Seen { key: Some(every_byte.clone()), value: Some(every_byte), ..Seen::text("") };
    tokio::task::block_in_place(|| {
        let full = ["-p", "0", "-k", "order-7", "-H", "a=1", "-H", "b=", "-H", "a=3"];
        kcat_writes(&bootstrap(), &spec.name, &full, "with all");
        kcat_writes(&bootstrap(), &spec.name, &["-p", "0"], "bare");
        java_writes(&bootstrap(), &spec.name, "none", "a:1,b:,a:3\torder-7\twith all\n<null>\t<null>\tbare\n");
    });
    let mut peer = Peer::start(&bootstrap());
    peer.writes(&spec.name, Some(0), "none", &[with_all.clone(), bare.clone(), binary.clone()]);
    let read: Vec<Seen> = read_all(&log, &spec, 0, 7).await.iter().map(Seen::from).collect();
    assert!(read.iter().all(|record| record.timestamp_ms >= 1_700_000_000_000), "the times of the writers: {read:?}");
    assert_eq!(read[4..], [with_all.clone(), bare.clone(), binary], "confluent-kafka writes the time too");
    let read: Vec<Seen> = read[..4].iter().map(Seen::without_time).collect();
    let (with_all, bare) = (with_all.without_time(), bare.without_time());
    assert_eq!(read, [with_all.clone(), bare.clone(), with_all, bare]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_null_value_or_header_of_other_clients_is_read_as_empty() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let key = |key: &str| Seen { key: Some(key.into()), value: None, ..Seen::text("") };
    tokio::task::block_in_place(|| {
        // An empty line is a null value with -Z.
        kcat_writes(&bootstrap(), &spec.name, &["-p", "0", "-K", ":", "-Z"], "kcat:\n");
        java_writes(&bootstrap(), &spec.name, "none", "header:<null>\tjava\t<null>\n");
    });
    let mut peer = Peer::start(&bootstrap());
    peer.writes(&spec.name, Some(0), "none", &[key("confluent")]);
    let others: Vec<Option<Vec<u8>>> = peer.reads(&spec.name, 3).into_iter().map(|record| record.value).collect();
    assert_eq!(others, [None, None, None], "the values are null in Kafka");
    let read = read_all(&log, &spec, 0, 3).await;
    for (stored, key) in read.iter().zip(["kcat", "java", "confluent"]) {
        let (found, value) = (stored.record.key.as_deref(), &stored.record.value[..]);
        assert_eq!((found, value), (Some(key.as_bytes()), &b""[..]));
    }
    assert_eq!(read[1].record.headers.iter().collect::<Vec<_>>(), [("header", &b""[..])]);
    assert_eq!(read.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_go_to_the_partitions_that_the_partitioners_of_other_clients_give_them() {
    needs_servers!(ADDRESS);
    const PARTITIONS: u32 = 7;
    const KEYS: usize = 300;
    let log = connect(settings()).await;
    let spec = new_topic(&log, PARTITIONS).await;
    let keys: Vec<String> = (0..KEYS).map(|n| format!("key-{n}-{}ü", "x".repeat(n % 11))).collect();
    let records: Vec<Seen> =
        keys.iter().map(|key| Seen { key: Some(key.as_bytes().into()), ..Seen::text("confluent") }).collect();
    let placed = Peer::start(&bootstrap()).writes(&spec.name, None, "none", &records);
    for (key, partition) in keys.iter().zip(placed) {
        assert_eq!(partition_of(key.as_bytes(), PARTITIONS), partition, "confluent-kafka and `{key}`");
    }
    tokio::task::block_in_place(|| {
        let kcat: String = keys.iter().map(|key| format!("{key}\tkcat\n")).collect();
        let java: String = keys.iter().map(|key| format!("<null>\t{key}\tjava\n")).collect();
        kcat_writes(&bootstrap(), &spec.name, &["-K", "\t", "-X", "topic.partitioner=murmur2_random"], &kcat);
        java_writes(&bootstrap(), &spec.name, "none", &java);
    });
    let mut writers: HashMap<Vec<u8>, usize> = HashMap::new();
    for index in 0..PARTITIONS {
        for StoredRecord { record, .. } in read_all(&log, &spec, index, 0).await {
            let (key, writer) = (record.key.expect("every record has a key"), String::from_utf8_lossy(&record.value));
            assert_eq!(partition_of(&key, PARTITIONS), index, "{writer} and `{}`", key.escape_ascii());
            *writers.entry(record.value.to_vec()).or_default() += 1;
        }
    }
    let all = ["confluent", "kcat", "java"].map(|writer| (writer.into(), KEYS));
    assert_eq!(writers, HashMap::from(all));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_clients_read_commits_and_nothing_of_a_fence_that_was_taken_over() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let partition = PartitionId::new(spec.number, 0);
    let entry = |text: &str| vec![Entry { partition, record: plain(text) }];
    let zombie = log.fence(&spec.name, 1).await.unwrap();
    assert!(matches!(log.commit(&zombie, entry("committed")).await, CommitOutcome::Done(_)));
    let newest = log.fence(&spec.name, 2).await.unwrap();
    assert_eq!(log.commit(&zombie, entry("by the zombie")).await, CommitOutcome::Fenced);
    assert!(matches!(log.commit(&newest, entry("committed too")).await, CommitOutcome::Done(_)));
    let mut peer = Peer::start(&bootstrap());
    assert_others_read(&mut peer, &spec.name, &[Seen::text("committed"), Seen::text("committed too")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_in_progress_during_a_takeover_is_whole_or_absent() {
    needs_servers!(ADDRESS);
    /// Takeovers that are tried until one meets a commit whose records Kafka has and must hide.
    const TAKEOVERS_MAX: u64 = 40;
    const RECORDS: usize = 2000;
    let (first, second) = (connect(settings()).await, connect(settings()).await);
    let spec = new_topic(&first, 1).await;
    second.create(&spec).await.expect("the topic is there");
    let mut peer = Peer::start(&bootstrap());
    let partition = PartitionId::new(spec.number, 0);
    let entries = |text: &str, count| vec![Entry { partition, record: plain(text) }; count];
    let (mut done, mut unknown) = (Vec::new(), Vec::new());
    for takeover in 0..TAKEOVERS_MAX {
        let zombie = first.fence(&spec.name, 2 * takeover).await.expect("the fence can be opened");
        let text = format!("commit {takeover}");
        let commit = tokio::spawn({
            let (log, entries) = (first.clone(), entries(&text, RECORDS));
            async move { log.commit(&zombie, entries).await }
        });
        // Each takeover happens a little later in the commit.
        tokio::time::sleep(Duration::from_micros(500 * takeover)).await;
        let newest = second.fence(&spec.name, 2 * takeover + 1).await.expect("the fence can be opened");
        match commit.await.expect("the commit is answered") {
            CommitOutcome::Done(_) => done.push(text),
            CommitOutcome::Unknown(_) => unknown.push(text),
            CommitOutcome::Fenced | CommitOutcome::NotNow(_) | CommitOutcome::Blocked { .. } => {}
            refused @ CommitOutcome::Refused { .. } => panic!("{refused:?}"),
        }
        let marker = format!("takeover {takeover}");
        assert!(matches!(second.commit(&newest, entries(&marker, 1)).await, CommitOutcome::Done(_)));
        done.push(marker);
        let in_kafka = peer.reads_uncommitted(&spec.name);
        let hidden = |record: &Seen| !done.iter().chain(&unknown).any(|text| record.value == Seen::text(text).value);
        if in_kafka.iter().any(hidden) {
            break;
        }
        assert!(takeover + 1 < TAKEOVERS_MAX, "no takeover met a commit under way");
    }
    let read: Vec<Seen> = read_all(&first, &spec, 0, 1).await.iter().map(Seen::from).collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for record in &read {
        *counts.entry(String::from_utf8(record.value.clone().unwrap()).unwrap()).or_default() += 1;
    }
    for (text, count) in &counts {
        assert!(done.contains(text) || unknown.contains(text), "`{text}` was not committed and is read");
        let whole = if text.starts_with("commit") { RECORDS } else { 1 };
        assert_eq!(*count, whole, "records of `{text}`");
    }
    assert!(done.iter().all(|text| counts.contains_key(text)), "{done:?} were committed, {counts:?} are read");
    assert_others_read(&mut peer, &spec.name, &read);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_aborts_the_transaction_that_its_predecessor_left_open() {
    needs_servers!(ADDRESS);
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let partition = PartitionId::new(spec.number, 0);
    // Stands in for an owner that stopped in the middle of a commit.
    let mut predecessor = Peer::start(&bootstrap());
    predecessor.begin(&format!("{}{}", settings().transactional_prefix, spec.name));
    predecessor.write(&spec.name, "left open");
    let fence = log.fence(&spec.name, 1).await.expect("the fence can be opened");
    let entries = vec![Entry { partition, record: plain("committed") }];
    assert!(matches!(log.commit(&fence, entries).await, CommitOutcome::Done(_)));
    let read = read_all(&log, &spec, 0, 1).await;
    assert_eq!(read.iter().map(Seen::from).collect::<Vec<_>>(), [Seen::text("committed")]);
    let mut peer = Peer::start(&bootstrap());
    assert_others_read(&mut peer, &spec.name, &[Seen::text("committed")]);
    assert_eq!(peer.reads_uncommitted(&spec.name).len(), 2, "the aborted record is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_transaction_of_other_clients_is_read_when_it_is_committed() {
    needs_servers!(ADDRESS);
    let (log, spec, mut peer) = open_transaction().await;
    peer.write(&spec.name, "first");
    peer.write(&spec.name, "second");
    let limits = ReadLimits { max_records: 10, max_bytes: 1 << 20, wait: Duration::ZERO };
    let open = log.read(PartitionId::new(spec.number, 0), 0, limits).await.expect("the partition can be read");
    assert_eq!(open.records, [], "the transaction is open");
    peer.commit();
    let read = read_all(&log, &spec, 0, 2).await;
    let read: Vec<Seen> = read.iter().map(|stored| Seen::from(stored).without_time()).collect();
    assert_eq!(read, [Seen::text("first").without_time(), Seen::text("second").without_time()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_behind_an_open_transaction_is_counted_and_not_yet_visible() {
    needs_servers!(ADDRESS);
    let (log, spec, mut peer) = open_transaction().await;
    let partition = PartitionId::new(spec.number, 0);
    peer.write(&spec.name, "aborted");
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
    peer.abort();
    let shown = waiting.await.expect("the reader ends by itself").expect("the partition can be read");
    assert_eq!(shown.records.iter().map(|each| &each.record.value[..]).collect::<Vec<_>>(), [b"behind it"]);
    assert_eq!(shown.records[0].offset, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_records_of_aborted_transactions_are_skipped_to_the_end() {
    needs_servers!(ADDRESS);
    let (log, spec, mut peer) = open_transaction().await;
    (0..10).for_each(|_| peer.write(&spec.name, "aborted"));
    peer.abort();
    append(&log, &spec, 0, plain("seen")).await;
    begin(&mut peer, &spec);
    peer.write(&spec.name, "aborted");
    peer.abort();
    let read = read_all(&log, &spec, 0, 1).await;
    assert_eq!(read.iter().map(|each| &each.record.value[..]).collect::<Vec<_>>(), [b"seen"]);
    // Kafka writes the marker moments after it has answered, on a cluster perhaps behind the record that follows.
    assert!(read[0].offset >= 10, "ten aborted records lie before it");
    assert_others_read(&mut peer, &spec.name, &[Seen::text("seen")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_read_returns_at_once_when_the_open_transaction_is_aborted() {
    needs_servers!(ADDRESS);
    let (log, spec, mut peer) = open_transaction().await;
    let partition = PartitionId::new(spec.number, 0);
    peer.write(&spec.name, "aborted");
    let waiting = tokio::spawn({
        let log = log.clone();
        let limits = ReadLimits { max_records: 10, max_bytes: 1000, wait: PATIENCE };
        async move { log.read(partition, 0, limits).await }
    });
    peer.abort();
    let aborted_at = Instant::now();
    let passed = waiting.await.expect("the reader ends by itself").expect("the partition can be read");
    assert_eq!((passed.records.len(), passed.next), (0, log.bounds(partition).await.expect("it has an end").next));
    assert!(aborted_at.elapsed() < PATIENCE / 2, "the read waited for a visible record");
}

/// A topic of one partition, and a client that is not Whimbrel with an open transaction.
async fn open_transaction() -> (Arc<KafkaLog>, TopicSpec, Peer) {
    let log = connect(settings()).await;
    let spec = new_topic(&log, 1).await;
    let mut peer = Peer::start(&bootstrap());
    begin(&mut peer, &spec);
    (log, spec, peer)
}

/// Opens a transaction that is not Whimbrel's.
fn begin(peer: &mut Peer, spec: &TopicSpec) {
    peer.begin(&format!("stranger-{}", spec.name));
}

pub async fn new_topic(log: &Arc<KafkaLog>, partitions: u32) -> TopicSpec {
    let spec = new_spec(partitions);
    log.create(&spec).await.expect("the topic can be created");
    spec
}

fn plain(text: &str) -> Record {
    let timestamp = Timestamp::from_millis(1_700_000_000_000);
    Record { key: None, value: text.to_owned().into(), headers: Headers::EMPTY, timestamp }
}

async fn append(log: &Arc<KafkaLog>, spec: &TopicSpec, index: u32, record: Record) {
    let entry = Entry { partition: PartitionId::new(spec.number, index), record };
    log.append(vec![entry]).await.remove(0).expect("the record is acknowledged");
}

/// Reads a partition to its end, which holds at least that many records.
pub async fn read_all(log: &Arc<KafkaLog>, spec: &TopicSpec, index: u32, at_least: usize) -> Vec<StoredRecord> {
    let limits = ReadLimits { max_records: 1000, max_bytes: 1 << 20, wait: PATIENCE };
    let partition = PartitionId::new(spec.number, index);
    let end = log.bounds(partition).await.expect("the partition has bounds").next;
    let (mut next, mut records) = (0, Vec::new());
    while next < end || records.len() < at_least {
        let batch = log.read(partition, next, limits).await.expect("the partition can be read");
        assert!(batch.next > next, "the read stalls at {next} of {end}, after {} records", records.len());
        next = batch.next;
        records.extend(batch.records);
    }
    records
}
