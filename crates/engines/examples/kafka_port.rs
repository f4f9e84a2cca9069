//! Measures throughput and latency of the Kafka engine through the port: appends, reads, commits. Beside them are the figures of Kafka's
//! own programs for the same work in the same run: ProducerPerformance (`acks=all`, idempotent) and ConsumerPerformance.
//!
//! `scripts/services up && source target/services/env && cargo run --release -p whimbrel-engines --example kafka_port`

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::join_all;
use whimbrel_engines::conformance::log::new_spec;
use whimbrel_engines::kafka::{KafkaLog, KafkaSettings};
use whimbrel_model::ports::{CommitOutcome, Entry, ExactTopic, Fence, Log, LogTopics, ReadLimits};
use whimbrel_model::{Headers, PartitionId, Record, Timestamp, TopicNumber, TopicSpec};

/// The number of measured rounds. One round before them warms up.
const ROUNDS_DEFAULT: usize = 9;
const PARTITIONS: u32 = 4;
const BATCHED_RECORDS: usize = 400_000;
const BATCHED_RECORD_BYTES: usize = 100;
const CALL_RECORDS: usize = 1000;
const CALLS_IN_FLIGHT: usize = 64;
const SINGLE_RECORDS: usize = 2000;
const SINGLE_RECORD_BYTES: usize = 256;
const CONNECTIONS: usize = 64;
const CONCURRENT_RECORDS: usize = 40_000;
const COMMITS: usize = 100;
const COMMIT_RECORDS: usize = 2000;
const FENCES: usize = 32;
const FENCE_COMMITS: usize = 20;
const FENCE_COMMIT_RECORDS: usize = 100;
const FENCE_RECORD_BYTES: usize = 200;
/// Records of the topic that the benchmark reads, in one partition.
const READ_RECORDS: usize = 1_000_000;

/// The topic of the port's appends and commits, and the topic that is read.
const WRITTEN: TopicNumber = TopicNumber(1);
const READ: TopicNumber = TopicNumber(2);

#[tokio::main]
async fn main() {
    let bootstrap = std::env::var("WHIMBREL_TEST_KAFKA").unwrap_or_else(|_| "127.0.0.1:17692".to_owned());
    let rounds = std::env::args().nth(1).map_or(ROUNDS_DEFAULT, |rounds| rounds.parse().expect("a number of rounds"));
    let log = KafkaLog::connect(KafkaSettings::new(&bootstrap), Arc::new(|_| {})).await.expect("Kafka can be reached");
    let prefix = format!("kafka-port-{}", now_ms());
    let spec =
        |number, name: &str, partitions| TopicSpec { number, name: format!("{prefix}-{name}"), ..new_spec(partitions) };
    let specs = [spec(WRITTEN, "written", PARTITIONS), spec(READ, "read", 1), spec(TopicNumber(3), "bare", PARTITIONS)];
    for spec in &specs {
        log.create(spec).await.expect("the topic can be created");
    }
    fill(&log).await;
    let bare = KafkaTools::new(bootstrap);
    let fences = join_all((0..FENCES).map(|n| open(&log, format!("{prefix}-{n}")))).await;

    let mut rows = [
        Row::new(format!("{CALL_RECORDS} x {BATCHED_RECORD_BYTES} B per call"), "records"),
        Row::new(format!("one at a time, {SINGLE_RECORD_BYTES} B"), "records"),
        Row::new(format!("{CONNECTIONS} at a time, {SINGLE_RECORD_BYTES} B each"), "records"),
        Row::new("read back, one partition".to_owned(), "records"),
        Row::new("commit of 1 in one partition".to_owned(), "records"),
        Row::new(format!("commit of {COMMIT_RECORDS} in two partitions"), "records"),
        Row::new(format!("{FENCES} fences, {FENCE_COMMIT_RECORDS} x {FENCE_RECORD_BYTES} B each"), "commits"),
    ];
    for round in 0..=rounds {
        eprintln!("round {round} of {rounds}");
        let measured = [
            (bare.as_ref().map(|bare| bare.produce(&specs[2].name)), port_batched(&log).await),
            (None, port_singles(&log, 1, SINGLE_RECORDS).await),
            (None, port_singles(&log, CONNECTIONS, CONCURRENT_RECORDS).await),
            (bare.as_ref().map(|bare| bare.consume(&specs[1].name)), port_read(&log).await),
            (None, port_commits(&log, &fences[0], 1).await),
            (None, port_commits(&log, &fences[0], COMMIT_RECORDS).await),
            (None, port_fences(&log, &fences).await),
        ];
        if round > 0 {
            for (row, (bare, port)) in rows.iter_mut().zip(measured) {
                row.bare.extend(bare);
                row.port.push(port);
            }
        }
    }
    for spec in &specs {
        let identity = log.identity(spec.number, &spec.name).await.expect("the topic can be identified");
        let topic = ExactTopic { number: spec.number, name: &spec.name, identity: identity.as_deref() };
        log.delete(topic).await.expect("the topic can be deleted");
    }
    match &bare {
        Some(_) => println!(
            "{rounds} rounds, medians; bare is Kafka's own Java client, its latencies are those of single records\n"
        ),
        None => println!("{rounds} rounds, medians; no bare client: WHIMBREL_TEST_KAFKA_LIBS is not set\n"),
    }
    println!(
        "{:<36} {:<8} {:>11} {:>11} {:>6}   {:>10} {:>10}   {:>10} {:>10}",
        "", "", "bare /s", "port /s", "ratio", "bare p50", "port p50", "bare p99", "port p99"
    );
    rows.iter().for_each(Row::print);
}

async fn open(log: &Arc<KafkaLog>, name: String) -> Fence {
    log.fence(&name, 1).await.expect("the fence can be opened")
}

/// Writes the records that are read later.
async fn fill(log: &Arc<KafkaLog>) {
    let payload = Bytes::from(vec![b'x'; BATCHED_RECORD_BYTES]);
    for _ in 0..READ_RECORDS / (CALL_RECORDS * 10) {
        let entries = (0..CALL_RECORDS * 10).map(|_| entry(READ, 0, payload.clone())).collect();
        assert!(log.append(entries).await.iter().all(Result::is_ok), "the broker acknowledges every record");
    }
}

/// Reads one partition from its beginning to its end.
async fn port_read(log: &Arc<KafkaLog>) -> Figures {
    let partition = PartitionId::new(READ, 0);
    let end = log.bounds(partition).await.expect("the partition has bounds").next;
    let limits = ReadLimits { max_records: 10_000, max_bytes: 4 << 20, wait: Duration::from_secs(1) };
    let (began, mut next, mut records) = (Instant::now(), 0, 0);
    while next < end {
        let batch = log.read(partition, next, limits).await.expect("the partition can be read");
        records += batch.records.len();
        next = batch.next;
    }
    Figures { rate: records as f64 / began.elapsed().as_secs_f64(), latency: None }
}

/// Commits one after the other, with this many records each.
async fn port_commits(log: &Arc<KafkaLog>, fence: &Fence, records: usize) -> Figures {
    let (began, mut latencies) = (Instant::now(), Vec::new());
    for _ in 0..COMMITS {
        let payload = Bytes::from_static(&[b'x'; BATCHED_RECORD_BYTES]);
        let entries = (0..records).map(|n| entry(WRITTEN, n % 2, payload.clone())).collect();
        latencies.push(commit(log, fence, entries).await);
    }
    Figures::of(COMMITS * records, began.elapsed(), latencies)
}

/// Concurrent commits under many fences. The records of a fence are in one partition.
async fn port_fences(log: &Arc<KafkaLog>, fences: &[Fence]) -> Figures {
    let payload = Bytes::from(vec![b'x'; FENCE_RECORD_BYTES]);
    let began = Instant::now();
    let each = |(number, fence): (usize, &Fence)| {
        let (log, fence, payload) = (log.clone(), fence.clone(), payload.clone());
        async move {
            let mut latencies = Vec::new();
            for _ in 0..FENCE_COMMITS {
                let entries = (0..FENCE_COMMIT_RECORDS).map(|_| entry(WRITTEN, number, payload.clone())).collect();
                latencies.push(commit(&log, &fence, entries).await);
            }
            latencies
        }
    };
    let latencies = join_all(fences.iter().enumerate().map(each)).await.concat();
    Figures::of(FENCES * FENCE_COMMITS, began.elapsed(), latencies)
}

async fn commit(log: &Arc<KafkaLog>, fence: &Fence, entries: Vec<Entry>) -> Duration {
    let sent_at = Instant::now();
    let outcome = log.commit(fence, entries).await;
    assert!(matches!(outcome, CommitOutcome::Done(_)), "{outcome:?}");
    sent_at.elapsed()
}

/// The figures of one measurement, one per round.
struct Row {
    name: String,
    /// The unit that the rates count.
    unit: &'static str,
    bare: Vec<Figures>,
    port: Vec<Figures>,
}

impl Row {
    fn new(name: String, unit: &'static str) -> Self {
        Self { name, unit, bare: Vec::new(), port: Vec::new() }
    }

    fn print(&self) {
        let rate = |figures: &Option<Figures>| figures.map_or(String::new(), |figures| format!("{:.0}", figures.rate));
        let time = |figures: &Option<Figures>, of: fn(Latency) -> Duration| {
            figures.and_then(|figures| figures.latency).map_or(String::new(), |latency| millis(of(latency)))
        };
        // The ratio of each round: other load on the machine varies between rounds.
        let ratios: Vec<f64> = self.bare.iter().zip(&self.port).map(|(bare, port)| port.rate / bare.rate).collect();
        let ratio = median(ratios).map_or(String::new(), |ratio| format!("{ratio:.2}"));
        let (bare, port) = (Figures::median(&self.bare), Figures::median(&self.port));
        println!(
            "{:<36} {:<8} {:>11} {:>11} {ratio:>6}   {:>10} {:>10}   {:>10} {:>10}",
            self.name,
            self.unit,
            rate(&bare),
            rate(&port),
            time(&bare, |latency| latency.p50),
            time(&port, |latency| latency.p50),
            time(&bare, |latency| latency.p99),
            time(&port, |latency| latency.p99)
        );
    }
}

#[derive(Clone, Copy)]
struct Figures {
    /// Per second.
    rate: f64,
    latency: Option<Latency>,
}

#[derive(Clone, Copy)]
struct Latency {
    p50: Duration,
    p99: Duration,
}

impl Figures {
    fn of(count: usize, took: Duration, mut latencies: Vec<Duration>) -> Self {
        latencies.sort();
        let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
        Self { rate: count as f64 / took.as_secs_f64(), latency: Some(Latency { p50: at(0.5), p99: at(0.99) }) }
    }

    fn median(rounds: &[Self]) -> Option<Self> {
        let time = |of: fn(Latency) -> Duration| {
            let times = rounds.iter().filter_map(|each| each.latency).map(|latency| of(latency).as_secs_f64());
            median(times.collect()).map(Duration::from_secs_f64)
        };
        let rate = median(rounds.iter().map(|each| each.rate).collect())?;
        let latency = time(|latency| latency.p50).zip(time(|latency| latency.p99));
        Some(Self { rate, latency: latency.map(|(p50, p99)| Latency { p50, p99 }) })
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Kafka's own client, run by its performance tools.
struct KafkaTools {
    bootstrap: String,
    jars: String,
}

impl KafkaTools {
    /// `None` if the folder of the jars is not set.
    fn new(bootstrap: String) -> Option<Self> {
        let jars = std::env::var("WHIMBREL_TEST_KAFKA_LIBS").ok()?;
        Some(Self { bootstrap, jars })
    }

    /// Writes as many records as the port. The same number before them warms the program up and does not count.
    fn produce(&self, topic: &str) -> Figures {
        let printed = self.run(
            "org.apache.kafka.tools.ProducerPerformance",
            &[
                "--topic",
                topic,
                "--num-records",
                &(2 * BATCHED_RECORDS).to_string(),
                "--warmup-records",
                &BATCHED_RECORDS.to_string(),
                "--record-size",
                &BATCHED_RECORD_BYTES.to_string(),
                "--throughput",
                "-1",
                "--command-property",
                "acks=all",
                "enable.idempotence=true",
            ],
        );
        // "400000 steady state records sent, 100000.0 records/sec (9.54 MB/sec), …, 11 ms 50th, 14 ms 95th, 15 ms 99th, …".
        let line = printed.lines().find(|line| line.contains("steady state records sent")).expect("a summary");
        let figure = |unit: &str| -> f64 {
            let part = line.split(", ").find_map(|part| part.split_once(unit)).expect("the summary has the figure");
            part.0.trim().parse().expect("a number")
        };
        let millis = |unit| Duration::from_secs_f64(figure(unit) / 1000.0);
        Figures {
            rate: figure(" records/sec"),
            latency: Some(Latency { p50: millis(" ms 50th"), p99: millis(" ms 99th") }),
        }
    }

    /// Reads the topic that the port reads. The start of the consumer group does not count.
    fn consume(&self, topic: &str) -> Figures {
        let printed = self.run(
            "org.apache.kafka.tools.ConsumerPerformance",
            &[
                "--topic",
                topic,
                "--num-records",
                &READ_RECORDS.to_string(),
                "--hide-header",
                "--timeout",
                "60000",
                "--command-property",
                "isolation.level=read_committed",
            ],
        );
        // The last column is the records per second of the fetches.
        let rate = printed.trim().lines().last().and_then(|line| line.rsplit(", ").next()?.parse().ok());
        Figures { rate: rate.unwrap_or_else(|| panic!("no rate in {printed}")), latency: None }
    }

    fn run(&self, class: &str, arguments: &[&str]) -> String {
        let run = || {
            Command::new("java")
                .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", &format!("{}/*", self.jars), class])
                .args(["--bootstrap-server", &self.bootstrap])
                .args(arguments)
                .stdin(Stdio::null())
                .stderr(Stdio::inherit())
                .output()
        };
        let output = tokio::task::block_in_place(run).expect("java runs");
        assert!(output.status.success(), "{class} failed: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stdout).expect("the figures are text")
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
                let entries = (0..CALL_RECORDS).map(|n| entry(WRITTEN, n, payload.clone())).collect();
                let sent_at = Instant::now();
                let outcome = log.append(entries).await;
                latencies.push(sent_at.elapsed());
                assert!(outcome.iter().all(Result::is_ok), "the broker acknowledges every record");
            }
            latencies
        }
    };
    let latencies = join_all((0..CALLS_IN_FLIGHT).map(each)).await.concat();
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
                let outcome = log.append(vec![entry(WRITTEN, worker + n, payload.clone())]).await;
                latencies.push(sent_at.elapsed());
                assert!(outcome[0].is_ok(), "the broker acknowledges every record");
            }
            latencies
        }
    };
    let latencies = join_all((0..at_a_time).map(each)).await.concat();
    Figures::of(records, began.elapsed(), latencies)
}

fn entry(topic: TopicNumber, number: usize, value: Bytes) -> Entry {
    let record = Record { key: None, value, headers: Headers::EMPTY, timestamp: Timestamp::from_millis(now_ms()) };
    Entry { partition: PartitionId::new(topic, number as u32 % PARTITIONS), record }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}
