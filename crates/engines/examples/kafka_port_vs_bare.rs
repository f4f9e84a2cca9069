//! The Kafka engine through the port beside a bare rdkafka producer with the same settings, in one run: throughput and latency
//! of each, and the ratios; beside it reading back, and what a commit takes.
//!
//! `scripts/services up && source target/services/env && cargo run --release -p whimbrel-engines --example kafka_port_vs_bare`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{BaseRecord, DeliveryResult, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio::sync::oneshot;
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings};
use whimbrel_model::ports::{CommitOutcome, Entry, Log, LogTopics, ReadLimits};
use whimbrel_model::{Headers, PartitionId, Record, Retention, Timestamp, TopicNumber, TopicSpec};

const ROUNDS: usize = 9;
const PARTITIONS: u32 = 4;
const BATCHED_RECORDS: usize = 400_000;
const BATCHED_RECORD_BYTES: usize = 100;
const CALL_RECORDS: usize = 1000;
const CALLS_IN_FLIGHT: usize = 64;
const SINGLE_RECORDS: usize = 2000;
const SINGLE_RECORD_BYTES: usize = 256;
const CONNECTIONS: usize = 64;
const CONCURRENT_RECORDS: usize = 40_000;
const COMMITS: usize = 200;
const COMMIT_RECORDS: usize = 2000;

#[tokio::main]
async fn main() {
    let bootstrap = std::env::var("WHIMBREL_TEST_KAFKA").unwrap_or_else(|_| "127.0.0.1:17692".to_owned());
    let settings = KafkaSettings::new(bootstrap);
    let log = KafkaLog::connect(settings.clone(), Arc::new(|_| {})).await.expect("Kafka can be reached");
    let spec = TopicSpec {
        number: TopicNumber(1),
        name: format!("port-vs-bare-{}", now_ms()),
        partitions: PARTITIONS,
        retention: Retention::default(),
        replicas: None,
        min_insync: None,
    };
    log.create(&spec).await.expect("the topic can be made");
    let bare = Bare::new(&settings, &spec.name);

    let mut figures = [(); 3].map(|()| (Vec::new(), Vec::new()));
    for round in 0..=ROUNDS {
        let measured = [
            (bare.batched().await, port_batched(&log).await),
            (bare.singles(1, SINGLE_RECORDS).await, port_singles(&log, 1, SINGLE_RECORDS).await),
            (
                bare.singles(CONNECTIONS, CONCURRENT_RECORDS).await,
                port_singles(&log, CONNECTIONS, CONCURRENT_RECORDS).await,
            ),
        ];
        // The first round warms both up.
        if round > 0 {
            for (kept, (bare, port)) in figures.iter_mut().zip(measured) {
                kept.0.push(bare);
                kept.1.push(port);
            }
        }
    }
    let (bare_read, port_read) = (bare.read(&settings), port_read(&log).await);
    let commits = [port_commits(&log, 1).await, port_commits(&log, COMMIT_RECORDS).await];
    log.delete(spec.number).await.expect("the topic can be deleted");
    println!("{ROUNDS} rounds, medians; bare is rdkafka's ThreadedProducer with the engine's own settings\n");
    println!(
        "{:<38} {:>11} {:>11} {:>6}   {:>9} {:>9}   {:>9} {:>9}",
        "", "bare /s", "port /s", "ratio", "bare p50", "port p50", "bare p99", "port p99"
    );
    let names = [
        format!("{CALL_RECORDS} x {BATCHED_RECORD_BYTES} B per call"),
        format!("one at a time, {SINGLE_RECORD_BYTES} B"),
        format!("{CONNECTIONS} at a time, {SINGLE_RECORD_BYTES} B each"),
    ];
    for (name, (bare, port)) in names.iter().zip(figures) {
        // Each round's own ratio: what else the machine does changes from round to round.
        let ratio = median(bare.iter().zip(&port).map(|(bare, port)| port.rate / bare.rate).collect());
        let (bare, port) = (Figures::median(bare), Figures::median(port));
        println!(
            "{name:<38} {:>11.0} {:>11.0} {:>6.2}   {:>9} {:>9}   {:>9} {:>9}",
            bare.rate,
            port.rate,
            ratio,
            micros(bare.p50),
            micros(port.p50),
            micros(bare.p99),
            micros(port.p99)
        );
    }
    println!(
        "{:<38} {bare_read:>11.0} {port_read:>11.0} {:>6.2}",
        "read back (bare: all defaults)",
        port_read / bare_read
    );
    for (records, figures) in [1, COMMIT_RECORDS].into_iter().zip(commits) {
        let name = format!("commit of {records} in two partitions");
        println!(
            "{name:<38} {:>11} {:>11.0} {:>6}   {:>9} {:>9}   {:>9} {:>9}",
            "",
            figures.rate,
            "",
            "",
            micros(figures.p50),
            "",
            micros(figures.p99)
        );
    }
}

/// Reads one partition from its beginning to its end.
async fn port_read(log: &Arc<KafkaLog>) -> f64 {
    let partition = PartitionId::new(TopicNumber(1), 0);
    let end = log.bounds(partition).await.expect("the partition has bounds").next;
    let limits = ReadLimits { max_records: 10_000, max_bytes: 4 << 20, wait: Duration::from_secs(1) };
    let (began, mut next, mut records) = (Instant::now(), 0, 0);
    while next < end {
        let batch = log.read(partition, next, limits).await.expect("the partition can be read");
        records += batch.records.len();
        next = batch.next;
    }
    records as f64 / began.elapsed().as_secs_f64()
}

/// Commits one after the other, of so many records each.
async fn port_commits(log: &Arc<KafkaLog>, records: usize) -> Figures {
    let fence = log.fence("port-vs-bare", 1).await.expect("the fence can be opened");
    let (began, mut latencies) = (Instant::now(), Vec::new());
    for _ in 0..COMMITS {
        let entries = (0..records).map(|n| entry(n % 2, Bytes::from_static(&[b'x'; BATCHED_RECORD_BYTES]))).collect();
        let sent_at = Instant::now();
        let outcome = log.commit(&fence, entries).await;
        latencies.push(sent_at.elapsed());
        assert!(matches!(outcome, CommitOutcome::Done(_)), "{outcome:?}");
    }
    Figures::of(COMMITS * records, began.elapsed(), latencies)
}

#[derive(Clone, Copy)]
struct Figures {
    rate: f64,
    p50: Duration,
    p99: Duration,
}

impl Figures {
    fn of(records: usize, took: Duration, mut latencies: Vec<Duration>) -> Self {
        latencies.sort();
        let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
        Self { rate: records as f64 / took.as_secs_f64(), p50: at(0.5), p99: at(0.99) }
    }

    fn median(rounds: Vec<Self>) -> Self {
        let middle = |of: fn(&Self) -> f64| median(rounds.iter().map(of).collect());
        Self {
            rate: middle(|each| each.rate),
            p50: Duration::from_secs_f64(middle(|each| each.p50.as_secs_f64())),
            p99: Duration::from_secs_f64(middle(|each| each.p99.as_secs_f64())),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The producer that somebody would write without the engine.
struct Bare {
    producer: ThreadedProducer<Reports>,
    topic: String,
    payload: Vec<u8>,
}

/// What a bare producer needs of a delivery report: a latency and a wake-up per record, or a count.
enum Wanted {
    Call(Arc<BareCall>),
    Record(oneshot::Sender<()>),
}

struct BareCall {
    left: AtomicUsize,
    done: std::sync::Mutex<Option<oneshot::Sender<()>>>,
}

struct Reports;

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Wanted>;

    fn delivery(&self, result: &DeliveryResult<'_>, wanted: Box<Wanted>) {
        assert!(result.is_ok(), "the broker takes everything");
        match *wanted {
            Wanted::Record(done) => drop(done.send(())),
            Wanted::Call(call) => {
                if call.left.fetch_sub(1, Ordering::AcqRel) == 1
                    && let Some(done) = call.done.lock().expect("nobody panics").take()
                {
                    let _ = done.send(());
                }
            }
        }
    }
}

impl Bare {
    fn new(settings: &KafkaSettings, topic: &str) -> Self {
        let producer = ThreadedProducer::from_config_and_context(&settings.append_producer(), Reports);
        let payload = vec![b'x'; BATCHED_RECORD_BYTES.max(SINGLE_RECORD_BYTES)];
        Self { producer: producer.expect("a producer can be made"), topic: topic.to_owned(), payload }
    }

    fn send(&self, number: usize, bytes: usize, mut wanted: Box<Wanted>) {
        loop {
            let record = BaseRecord::<(), [u8], _>::with_opaque_to(&self.topic, wanted)
                .partition((number as u32 % PARTITIONS) as i32)
                .payload(&self.payload[..bytes])
                .timestamp(now_ms());
            match self.producer.send(record) {
                Ok(()) => return,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), record)) => {
                    wanted = record.delivery_opaque;
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err((error, _)) => panic!("the record is not taken: {error}"),
            }
        }
    }

    fn read(&self, settings: &KafkaSettings) -> f64 {
        let consumer: BaseConsumer = rdkafka::ClientConfig::new()
            .set("bootstrap.servers", &settings.bootstrap)
            .set("group.id", "port-vs-bare")
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .create()
            .expect("a consumer can be made");
        let (_, end) = consumer.fetch_watermarks(&self.topic, 0, Duration::from_secs(5)).expect("the topic is there");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, 0, Offset::Beginning).expect("the list takes it");
        consumer.assign(&list).expect("the partition can be assigned");
        let (began, mut records) = (Instant::now(), 0);
        loop {
            let message = consumer.poll(Duration::from_secs(5)).expect("a record comes").expect("it can be read");
            let copied = message.payload().map(Bytes::copy_from_slice);
            assert!(copied.is_some());
            records += 1;
            if message.offset() + 1 >= end {
                return records as f64 / began.elapsed().as_secs_f64();
            }
        }
    }

    async fn batched(&self) -> Figures {
        let began = Instant::now();
        let mut latencies = Vec::new();
        let mut waiting = std::collections::VecDeque::new();
        for _ in 0..BATCHED_RECORDS / CALL_RECORDS {
            if waiting.len() == CALLS_IN_FLIGHT {
                finish(&mut waiting, &mut latencies).await;
            }
            let (done, finished) = oneshot::channel();
            let call =
                Arc::new(BareCall { left: AtomicUsize::new(CALL_RECORDS), done: std::sync::Mutex::new(Some(done)) });
            let sent_at = Instant::now();
            (0..CALL_RECORDS).for_each(|n| self.send(n, BATCHED_RECORD_BYTES, Box::new(Wanted::Call(call.clone()))));
            waiting.push_back((sent_at, finished));
        }
        while !waiting.is_empty() {
            finish(&mut waiting, &mut latencies).await;
        }
        Figures::of(BATCHED_RECORDS, began.elapsed(), latencies)
    }

    async fn singles(&self, at_a_time: usize, records: usize) -> Figures {
        let began = Instant::now();
        let each = |worker: usize| async move {
            let mut latencies = Vec::new();
            for n in 0..records / at_a_time {
                let (done, finished) = oneshot::channel();
                let sent_at = Instant::now();
                self.send(worker + n, SINGLE_RECORD_BYTES, Box::new(Wanted::Record(done)));
                finished.await.expect("the delivery is reported");
                latencies.push(sent_at.elapsed());
            }
            latencies
        };
        let latencies = futures_util::future::join_all((0..at_a_time).map(each)).await.concat();
        Figures::of(records, began.elapsed(), latencies)
    }
}

async fn finish(
    waiting: &mut std::collections::VecDeque<(Instant, oneshot::Receiver<()>)>,
    latencies: &mut Vec<Duration>,
) {
    if let Some((sent_at, finished)) = waiting.pop_front() {
        finished.await.expect("the delivery is reported");
        latencies.push(sent_at.elapsed());
    }
}

async fn port_batched(log: &Arc<KafkaLog>) -> Figures {
    let payload = Bytes::from(vec![b'x'; BATCHED_RECORD_BYTES]);
    let began = Instant::now();
    let calls = Arc::new(AtomicUsize::new(BATCHED_RECORDS / CALL_RECORDS));
    let each = |_| {
        let (log, payload, calls) = (log.clone(), payload.clone(), calls.clone());
        async move {
            let mut latencies = Vec::new();
            while calls.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok() {
                let entries = (0..CALL_RECORDS).map(|n| entry(n, payload.clone())).collect();
                let sent_at = Instant::now();
                let outcome = log.append(entries).await;
                latencies.push(sent_at.elapsed());
                assert!(outcome.iter().all(Result::is_ok), "the broker takes everything");
            }
            latencies
        }
    };
    let latencies = futures_util::future::join_all((0..CALLS_IN_FLIGHT).map(each)).await.concat();
    Figures::of(BATCHED_RECORDS, began.elapsed(), latencies)
}

async fn port_singles(log: &Arc<KafkaLog>, at_a_time: usize, records: usize) -> Figures {
    let payload = Bytes::from(vec![b'x'; SINGLE_RECORD_BYTES]);
    let began = Instant::now();
    let each = |worker: usize| {
        let payload = payload.clone();
        async move {
            let mut latencies = Vec::new();
            for n in 0..records / at_a_time {
                let sent_at = Instant::now();
                let outcome = log.append(vec![entry(worker + n, payload.clone())]).await;
                latencies.push(sent_at.elapsed());
                assert!(outcome[0].is_ok(), "the broker takes everything");
            }
            latencies
        }
    };
    let latencies = futures_util::future::join_all((0..at_a_time).map(each)).await.concat();
    Figures::of(records, began.elapsed(), latencies)
}

fn entry(number: usize, value: Bytes) -> Entry {
    let record = Record { key: None, value, headers: Headers::EMPTY, timestamp: Timestamp::from_millis(now_ms()) };
    Entry { partition: PartitionId::new(TopicNumber(1), number as u32 % PARTITIONS), record }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

fn micros(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}
