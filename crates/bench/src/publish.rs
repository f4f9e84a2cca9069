//! `whimbrel bench publish`: single publishes alternating with `/healthz` at the same concurrency, a steady rate, batches, and one
//! partition compared with a thousand.

use std::process::ExitCode;
use std::time::Duration;

use super::load::{LoadOutcome, LoadPace, Requests};
use super::stage::BenchStage;
use crate::{BenchError, BenchPublishArgs, BenchRound};

const SINGLE_BYTES: usize = 256;
const BATCH_MESSAGES: usize = 1000;
const BATCH_PAYLOAD_BYTES: usize = 100;
const BATCH_CONNECTIONS: usize = 8;
const STEADY_PER_SECOND: f64 = 10_000.0;
const STEADY_CONNECTIONS: usize = 64;
const PARTITIONS_MANY: u32 = 1000;
/// Number of turns of each side of a ratio.
const TURNS: u32 = 2;
const IDLE_BYTES_GOAL: u64 = 60_000_000;
const READY_GOAL: Duration = Duration::from_millis(200);
/// Idle time of a server before its memory is read.
const IDLE_FOR: Duration = Duration::from_secs(1);
/// Topics of the benchmark. It deletes them on a server that was already running.
const TOPIC_SINGLES: &str = "bench-singles";
const TOPIC_ONE: &str = "bench-one-partition";
const TOPIC_MANY: &str = "bench-many-partitions";
const TOPIC_BATCHES: &str = "bench-batches";
const TOPICS: [(&str, Option<u32>); 4] =
    [(TOPIC_SINGLES, None), (TOPIC_BATCHES, None), (TOPIC_ONE, Some(1)), (TOPIC_MANY, Some(PARTITIONS_MANY))];

pub fn publish(args: &BenchPublishArgs) -> Result<ExitCode, BenchError> {
    let mut stage = BenchStage::set(&args.stage)?;
    report_idle(&mut stage);
    let partitions_for =
        args.partition_seconds.filter(|_| !args.stage.quick).map_or(stage.measure_for, Duration::from_secs_f64);
    let mut bench = PublishBench { stage, only: args.only.clone(), partitions_for };
    bench.stage.make_topics(&TOPICS)?;
    let outcome = bench.run_rounds();
    if args.stage.server.is_some() {
        bench.remove_topics()?;
    }
    outcome?;
    bench.stage.show()
}

fn report_idle(stage: &mut BenchStage) {
    let Some(server) = &stage.server else { return };
    let ready_ms = server.ready_after.as_secs_f64() * 1000.0;
    stage.report.below(
        "ready on an empty folder",
        format!("{ready_ms:.0} ms"),
        format!("under {} ms", READY_GOAL.as_millis()),
        server.ready_after < READY_GOAL,
        ("ready_ms", ready_ms),
    );
    std::thread::sleep(if stage.is_quick { IDLE_FOR / 4 } else { IDLE_FOR });
    if let Some(bytes) = server.resident_bytes() {
        let mb = bytes as f64 / 1e6;
        stage.report.below(
            "idle, resident",
            format!("{mb:.1} MB"),
            format!("under {} MB", IDLE_BYTES_GOAL / 1_000_000),
            bytes < IDLE_BYTES_GOAL,
            ("resident_mb", mb),
        );
    }
}

struct PublishBench {
    stage: BenchStage,
    /// The rounds to run; empty means all.
    only: Vec<BenchRound>,
    partitions_for: Duration,
}

impl PublishBench {
    fn remove_topics(&self) -> Result<(), BenchError> {
        self.stage.call(async |client| {
            for (topic, _) in TOPICS {
                client.delete_topic(topic).await?;
            }
            Ok(())
        })
    }

    fn run_rounds(&mut self) -> Result<(), BenchError> {
        let singles = [
            (BenchRound::Singles1, 1, None),
            (BenchRound::Singles64, 64, Some(0.6)),
            (BenchRound::Singles256, 256, Some(0.75)),
        ];
        for (round, connections, goal) in singles {
            if self.runs(round) {
                self.run_singles(connections, goal)?;
            }
        }
        if self.runs(BenchRound::Steady) {
            self.run_steady()?;
        }
        if self.runs(BenchRound::Partitions) {
            let (one, many) = (self.single(TOPIC_ONE), self.single(TOPIC_MANY));
            let (one, many) = self.in_turns(&one, &many, 64, self.partitions_for)?;
            self.stage.report.rate("publish, 1 partition, 64 connections", &one, 1.0);
            self.stage.report.ratio("publish, 1000 partitions", &many, 1.0, ("1 partition", &one), 0.8);
            self.stage.probe()?;
        }
        let messages = BATCH_MESSAGES as f64;
        if self.runs(BenchRound::Batches) {
            let batches =
                self.run(&self.batch(TOPIC_BATCHES), BATCH_CONNECTIONS, LoadPace::Saturate, self.stage.measure_for)?;
            let name = format!("batches of {BATCH_MESSAGES} × {BATCH_PAYLOAD_BYTES} B, messages");
            self.stage.report.rate_with_goal(&name, &batches, messages, 400_000.0);
        }
        if self.runs(BenchRound::Partitions) {
            let (one, many) = (self.batch(TOPIC_ONE), self.batch(TOPIC_MANY));
            let (one, many) = self.in_turns(&one, &many, BATCH_CONNECTIONS, self.partitions_for)?;
            self.stage.report.rate("batches, 1 partition, messages", &one, messages);
            self.stage.report.ratio("batches, 1000 partitions, messages", &many, messages, ("1 partition", &one), 0.8);
        }
        self.stage.probe()?;
        Ok(())
    }

    fn runs(&self, round: BenchRound) -> bool {
        self.only.is_empty() || self.only.contains(&round)
    }

    fn run_singles(&mut self, connections: usize, goal: Option<f64>) -> Result<(), BenchError> {
        let healthz = self.stage.request("GET", "/healthz", "", &[]);
        let single = self.single(TOPIC_SINGLES);
        let probe = self.stage.probe()?;
        let (health, published) = self.in_turns(&healthz, &single, connections, self.stage.measure_for)?;
        self.stage.report.rate(&format!("GET /healthz, {connections} connections"), &health, 1.0);
        let name = format!("publish {SINGLE_BYTES} B, {connections} connections");
        match goal {
            Some(goal) => self.stage.report.ratio(&name, &published, 1.0, ("/healthz", &health), goal),
            None => {
                let sum = health.latency.quantile(0.5) + probe.p50 + Duration::from_micros(100);
                let because = "/healthz + device + 0.1 ms, under 1 ms";
                self.stage.report.latency(&name, &published, 0.5, sum.min(Duration::from_millis(1)), because);
            }
        }
        Ok(())
    }

    fn run_steady(&mut self) -> Result<(), BenchError> {
        let single = self.single(TOPIC_SINGLES);
        let before = self.stage.probe()?;
        let pace = LoadPace::Steady { per_second: STEADY_PER_SECOND };
        let steady = self.run(&single, STEADY_CONNECTIONS, pace, self.stage.measure_for)?;
        let after = self.stage.probe()?;
        let goal = Duration::from_millis(1) + 2 * before.p99.max(after.p99);
        self.stage.report.latency("publish, a steady 10 000 /s", &steady, 0.99, goal, "1 ms + twice the device's p99");
        Ok(())
    }

    /// Two loads in alternation, so that other activity of the machine affects both.
    fn in_turns(
        &self,
        one: &[u8],
        other: &[u8],
        connections: usize,
        each: Duration,
    ) -> Result<(LoadOutcome, LoadOutcome), BenchError> {
        let mut totals = (LoadOutcome::default(), LoadOutcome::default());
        for _ in 0..TURNS {
            totals.0 = totals.0.then(self.run(one, connections, LoadPace::Saturate, each / TURNS)?);
            totals.1 = totals.1.then(self.run(other, connections, LoadPace::Saturate, each / TURNS)?);
        }
        Ok(totals)
    }

    fn run(
        &self,
        request: &[u8],
        connections: usize,
        pace: LoadPace,
        duration: Duration,
    ) -> Result<LoadOutcome, BenchError> {
        self.stage.run(Requests::Same(request), connections, pace, duration)
    }

    fn single(&self, topic: &str) -> Vec<u8> {
        let path = format!("/v1/topics/{topic}/messages");
        self.stage.request("POST", &path, "application/octet-stream", &[b'x'; SINGLE_BYTES])
    }

    fn batch(&self, topic: &str) -> Vec<u8> {
        let line = format!("{{\"payload\":\"{}\"}}\n", "x".repeat(BATCH_PAYLOAD_BYTES));
        let path = format!("/v1/topics/{topic}/batch");
        self.stage.request("POST", &path, "application/x-ndjson", line.repeat(BATCH_MESSAGES).as_bytes())
    }
}
