//! `whimbrel bench publish`: rates and latencies of a server beside what its device and its own `/healthz` do in the same minutes.
//!
//! Absolute figures of a shared machine mean little, so each is put beside another of the same run: the device is probed between the
//! rounds, and publishes take turns with `/healthz` at the same concurrency.

mod child;
mod device;
mod histogram;
mod load;
mod report;
mod wire;

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use whimbrel_client::{Client, TopicSettings};

use self::device::{Device, Probe};
use self::load::{Load, Outcome, Pace};
use self::report::Report;
use crate::cli::{BenchPublishArgs, BenchRound, Failure, print_json};

const SINGLE_BYTES: usize = 256;
const BATCH_MESSAGES: usize = 1000;
const BATCH_PAYLOAD_BYTES: usize = 100;
const BATCH_CONNECTIONS: usize = 8;
const STEADY_PER_SECOND: f64 = 10_000.0;
const STEADY_CONNECTIONS: usize = 64;
const PARTITIONS_MANY: u32 = 1000;
/// How often the two sides of a ratio take turns.
const TURNS: u32 = 2;
const IDLE_BYTES_GOAL: u64 = 60_000_000;
const READY_GOAL: Duration = Duration::from_millis(200);
/// How long a server is left alone before its idle memory is read.
const IDLE_FOR: Duration = Duration::from_secs(1);
/// Topics that the bench makes, and removes from a server that was there before.
const TOPIC_SINGLES: &str = "bench-singles";
const TOPIC_ONE: &str = "bench-one-partition";
const TOPIC_MANY: &str = "bench-many-partitions";
const TOPIC_BATCHES: &str = "bench-batches";

/// Measures and prints.
pub fn publish(args: &BenchPublishArgs) -> Result<ExitCode, Failure> {
    let folder = tempfile::Builder::new().prefix("whimbrel-bench-").tempdir_in(&args.data).map_err(|error| {
        Failure::new(format!("no folder can be made in {}: {error}", args.data.display()))
            .with_hint("name a folder on the device to measure with --data")
    })?;
    let mut device = Device::open(folder.path())?;
    let server = match &args.server {
        Some(_) => None,
        None => Some(child::Server::start(folder.path(), &args.set)?),
    };
    let address = match (&args.server, &server) {
        (Some(url), _) => address_of(url)?,
        (None, Some(server)) => server.address,
        (None, None) => return Err(Failure::new("no server to measure")),
    };
    let mut report = Report::default();
    if let Some(server) = &server {
        report_idle(server, args.quick, &mut report);
    }
    let bench = Bench::new(args, address)?;
    bench.make_topics()?;
    let outcome = bench.run_rounds(&mut device, &mut report);
    bench.progress.finish_and_clear();
    if args.server.is_some() {
        bench.remove_topics()?;
    }
    outcome?;
    if args.json {
        print_json(&report.as_json())?;
    } else {
        println!("{}", report.as_table());
    }
    Ok(ExitCode::SUCCESS)
}

fn report_idle(server: &child::Server, quick: bool, report: &mut Report) {
    let ready_ms = server.ready_after.as_secs_f64() * 1000.0;
    report.below(
        "ready on an empty folder",
        format!("{ready_ms:.0} ms"),
        format!("under {} ms", READY_GOAL.as_millis()),
        server.ready_after < READY_GOAL,
        ("ready_ms", ready_ms),
    );
    std::thread::sleep(if quick { IDLE_FOR / 4 } else { IDLE_FOR });
    if let Some(bytes) = server.resident_bytes() {
        let mb = bytes as f64 / 1e6;
        report.below(
            "idle, resident",
            format!("{mb:.1} MB"),
            format!("under {} MB", IDLE_BYTES_GOAL / 1_000_000),
            bytes < IDLE_BYTES_GOAL,
            ("resident_mb", mb),
        );
    }
}

fn address_of(url: &str) -> Result<SocketAddr, Failure> {
    let bad = || Failure::new(format!("`{url}` is not a server's address")).with_hint("write http://host:port");
    let host = url.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/');
    host.to_socket_addrs().ok().and_then(|mut addresses| addresses.next()).ok_or_else(bad)
}

struct Bench {
    address: SocketAddr,
    client: Client,
    runtime: tokio::runtime::Runtime,
    /// Lines that every request has.
    headers: Vec<String>,
    threads: usize,
    /// The rounds that run; all of them where it is empty.
    only: Vec<BenchRound>,
    measure_for: Duration,
    partitions_for: Duration,
    warmup: Duration,
    probe_for: Duration,
    progress: ProgressBar,
}

impl Bench {
    fn new(args: &BenchPublishArgs, address: SocketAddr) -> Result<Self, Failure> {
        let seconds = if args.quick { 0.3 } else { args.seconds };
        let measure_for = Duration::from_secs_f64(seconds);
        let partitions_for =
            args.partition_seconds.filter(|_| !args.quick).map_or(measure_for, Duration::from_secs_f64);
        let mut client = Client::new(&format!("http://{address}"))?;
        if let Some(key) = &args.key {
            client = client.with_api_key(key)?;
        }
        Ok(Self {
            address,
            client,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            headers: args.key.iter().map(|key| format!("authorization: Bearer {key}")).collect(),
            threads: args.threads.into(),
            only: args.only.clone(),
            measure_for,
            partitions_for,
            warmup: (measure_for / 10).min(Duration::from_millis(500)),
            probe_for: (measure_for / 4).min(Duration::from_secs(1)),
            progress: ProgressBar::new_spinner(),
        })
    }

    fn make_topics(&self) -> Result<(), Failure> {
        let topics =
            [(TOPIC_SINGLES, None), (TOPIC_BATCHES, None), (TOPIC_ONE, Some(1)), (TOPIC_MANY, Some(PARTITIONS_MANY))];
        self.runtime.block_on(async {
            for (topic, partitions) in topics {
                self.client.put_topic(topic, &TopicSettings { partitions, ..TopicSettings::default() }).await?;
            }
            Ok(())
        })
    }

    fn remove_topics(&self) -> Result<(), Failure> {
        self.runtime.block_on(async {
            for topic in [TOPIC_SINGLES, TOPIC_BATCHES, TOPIC_ONE, TOPIC_MANY] {
                self.client.delete_topic(topic).await?;
            }
            Ok(())
        })
    }

    fn run_rounds(&self, device: &mut Device, report: &mut Report) -> Result<(), Failure> {
        let singles = [
            (BenchRound::Singles1, 1, None),
            (BenchRound::Singles64, 64, Some(0.6)),
            (BenchRound::Singles256, 256, Some(0.75)),
        ];
        for (round, connections, goal) in singles {
            if self.runs(round) {
                self.run_singles(device, report, connections, goal)?;
            }
        }
        if self.runs(BenchRound::Steady) {
            self.run_steady(device, report)?;
        }
        if self.runs(BenchRound::Partitions) {
            let (one, many) = (self.single(TOPIC_ONE), self.single(TOPIC_MANY));
            let (one, many) = self.in_turns(&one, &many, 64, self.partitions_for)?;
            report.rate("publish, 1 partition, 64 connections", &one, 1.0);
            report.ratio("publish, 1000 partitions", &many, 1.0, ("1 partition", &one), 0.8);
            self.probe(device, report)?;
        }
        let messages = BATCH_MESSAGES as f64;
        if self.runs(BenchRound::Batches) {
            let batches = self.run(&self.batch(TOPIC_BATCHES), BATCH_CONNECTIONS, Pace::Saturate, self.measure_for)?;
            let name = format!("batches of {BATCH_MESSAGES} × {BATCH_PAYLOAD_BYTES} B, messages");
            report.rate_with_goal(&name, &batches, messages, 400_000.0);
        }
        if self.runs(BenchRound::Partitions) {
            let (one, many) = (self.batch(TOPIC_ONE), self.batch(TOPIC_MANY));
            let (one, many) = self.in_turns(&one, &many, BATCH_CONNECTIONS, self.partitions_for)?;
            report.rate("batches, 1 partition, messages", &one, messages);
            report.ratio("batches, 1000 partitions, messages", &many, messages, ("1 partition", &one), 0.8);
        }
        self.probe(device, report)?;
        Ok(())
    }

    fn runs(&self, round: BenchRound) -> bool {
        self.only.is_empty() || self.only.contains(&round)
    }

    fn run_singles(
        &self,
        device: &mut Device,
        report: &mut Report,
        connections: usize,
        goal: Option<f64>,
    ) -> Result<(), Failure> {
        let healthz = wire::request("GET", "/healthz", &self.address.to_string(), &[], &[]);
        let single = self.single(TOPIC_SINGLES);
        let probe = self.probe(device, report)?;
        let (health, published) = self.in_turns(&healthz, &single, connections, self.measure_for)?;
        report.rate(&format!("GET /healthz, {connections} connections"), &health, 1.0);
        let name = format!("publish {SINGLE_BYTES} B, {connections} connections");
        match goal {
            Some(goal) => report.ratio(&name, &published, 1.0, ("/healthz", &health), goal),
            None => {
                let sum = health.latency.quantile(0.5) + probe.p50 + Duration::from_micros(100);
                let because = "/healthz + device + 0.1 ms, under 1 ms";
                report.latency(&name, &published, 0.5, sum.min(Duration::from_millis(1)), because);
            }
        }
        Ok(())
    }

    fn run_steady(&self, device: &mut Device, report: &mut Report) -> Result<(), Failure> {
        let single = self.single(TOPIC_SINGLES);
        let before = self.probe(device, report)?;
        let pace = Pace::Steady { per_second: STEADY_PER_SECOND };
        let steady = self.run(&single, STEADY_CONNECTIONS, pace, self.measure_for)?;
        let after = self.probe(device, report)?;
        let goal = Duration::from_millis(1) + 2 * before.p99.max(after.p99);
        report.latency("publish, a steady 10 000 /s", &steady, 0.99, goal, "1 ms + twice the device's p99");
        Ok(())
    }

    /// Two loads in alternation, so that what the machine does meanwhile meets both.
    fn in_turns(
        &self,
        one: &[u8],
        other: &[u8],
        connections: usize,
        each: Duration,
    ) -> Result<(Outcome, Outcome), Failure> {
        let mut totals = (Outcome::default(), Outcome::default());
        for _ in 0..TURNS {
            totals.0 = totals.0.then(self.run(one, connections, Pace::Saturate, each / TURNS)?);
            totals.1 = totals.1.then(self.run(other, connections, Pace::Saturate, each / TURNS)?);
        }
        Ok(totals)
    }

    fn run(&self, request: &[u8], connections: usize, pace: Pace, duration: Duration) -> Result<Outcome, Failure> {
        self.progress.set_message(format!("{connections} connections"));
        self.progress.tick();
        let threads = if pace == Pace::Saturate { self.threads } else { 1 };
        let load = Load { address: self.address, request, connections, threads, pace, warmup: self.warmup, duration };
        load::run(load).map_err(|error| Failure::new(error.to_string()))
    }

    fn probe(&self, device: &mut Device, report: &mut Report) -> Result<Probe, Failure> {
        self.progress.set_message("the device");
        self.progress.tick();
        let probe = device.probe(self.probe_for)?;
        report.device(probe);
        Ok(probe)
    }

    fn single(&self, topic: &str) -> Vec<u8> {
        let mut headers = self.headers.clone();
        headers.push("content-type: application/octet-stream".into());
        let path = format!("/v1/topics/{topic}/messages");
        wire::request("POST", &path, &self.address.to_string(), &headers, &[b'x'; SINGLE_BYTES])
    }

    fn batch(&self, topic: &str) -> Vec<u8> {
        let mut headers = self.headers.clone();
        headers.push("content-type: application/x-ndjson".into());
        let line = format!("{{\"payload\":\"{}\"}}\n", "x".repeat(BATCH_PAYLOAD_BYTES));
        let path = format!("/v1/topics/{topic}/batch");
        wire::request("POST", &path, &self.address.to_string(), &headers, line.repeat(BATCH_MESSAGES).as_bytes())
    }
}
