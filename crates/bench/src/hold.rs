//! `whimbrel bench hold`: the rates of accepting, extending, withdrawing and firing holds, their lateness, and the cost of many of them.
//!
//! Lateness is measured twice: by the server's own histogram, and by a reader of the topic with the same machine's clock.

mod burst;
mod commands;
mod fill;
mod fire;
mod pending;
mod reader;

use std::process::ExitCode;

use super::load::{LoadPace, Requests};
use super::stage::BenchStage;
use crate::{BenchError, BenchHoldArgs, HoldRound};

const PAYLOAD_BYTES: usize = 200;
/// Connections of single requests.
const CONNECTIONS: usize = 64;
const BATCH_CONNECTIONS: usize = 8;
/// Holds of one batch for the highest rate.
const BATCH_HOLDS: usize = 1000;
/// A delay that ends long after the benchmark.
const FAR: &str = "1d";
/// Holds of a quick run, instead of one million and ten million.
const QUICK_PENDING: u32 = 2000;
const QUICK_RATE: u32 = 500;
/// Topics of the benchmark. It deletes them on a server that was already running.
const TOPIC_FAR: &str = "bench-held-far";
const TOPIC_NEAR: &str = "bench-held-near";
const TOPIC_ALONE: &str = "bench-held-alone";
const TOPIC_BURST: &str = "bench-held-burst";
const TOPIC_BESIDE: &str = "bench-beside";
const TOPICS: [(&str, Option<u32>); 5] = [
    (TOPIC_FAR, None),
    (TOPIC_NEAR, Some(reader::PARTITIONS)),
    (TOPIC_ALONE, Some(1)),
    (TOPIC_BURST, None),
    (TOPIC_BESIDE, None),
];

pub fn hold(args: &BenchHoldArgs) -> Result<ExitCode, BenchError> {
    let stage = BenchStage::set(&args.stage)?;
    let quick = |given: u32, quick: u32| if args.stage.quick { given.min(quick) } else { given };
    let mut bench = HoldBench {
        stage,
        only: args.only.clone(),
        rate: quick(args.rate, QUICK_RATE),
        pending: quick(args.pending, QUICK_PENDING),
        pending_many: quick(args.pending_many, 2 * QUICK_PENDING),
        is_on_kafka: args.stage.set.iter().any(|given| given.replace(' ', "") == "log.engine=kafka"),
    };
    bench.describe(&args.stage.set);
    bench.stage.make_topics(&TOPICS)?;
    let outcome = bench.run_rounds();
    if args.stage.server.is_some() {
        bench.remove_topics()?;
    }
    outcome?;
    bench.stage.show()
}

struct HoldBench {
    stage: BenchStage,
    /// The rounds to run; empty means all.
    only: Vec<HoldRound>,
    rate: u32,
    pending: u32,
    pending_many: u32,
    /// Whether the log of the fresh server is Kafka, which has other goals.
    is_on_kafka: bool,
}

impl HoldBench {
    fn describe(&mut self, settings: &[String]) {
        let log = if self.is_on_kafka {
            "acknowledged by all in-sync replicas of Kafka; the brokers decide when to sync"
        } else if self.stage.server.is_some() {
            "synced to the device"
        } else {
            "durable in the log of the measured server"
        };
        let report = &mut self.stage.report;
        report.head(format!(
            "holds of {PAYLOAD_BYTES} B; every counted answer comes after its record was {log}, and a hold has fired when \
             its message can be read"
        ));
        if !settings.is_empty() {
            report.head(format!("settings: {}", settings.join(", ")));
        }
    }

    fn remove_topics(&self) -> Result<(), BenchError> {
        self.stage.call(async |client| {
            for (topic, _) in TOPICS {
                client.delete_topic_and_holds(topic).await?;
            }
            Ok(())
        })
    }

    /// The idle round first, while the server has no pending holds; rounds with many pending holds come last.
    fn run_rounds(&mut self) -> Result<(), BenchError> {
        self.stage.probe()?;
        if self.runs(HoldRound::Idle) {
            self.run_idle()?;
        }
        if self.runs(HoldRound::Fire) {
            self.run_fire()?;
        }
        if self.runs(HoldRound::Accept) {
            self.run_accept()?;
        }
        if self.runs(HoldRound::Burst) {
            self.run_burst()?;
        }
        if self.runs(HoldRound::Extend) || self.runs(HoldRound::Withdraw) {
            self.run_commands()?;
        }
        if self.runs(HoldRound::Pending) {
            self.run_pending()?;
        }
        Ok(())
    }

    fn runs(&self, round: HoldRound) -> bool {
        self.only.is_empty() || self.only.contains(&round)
    }

    fn run_accept(&mut self) -> Result<(), BenchError> {
        let measure_for = self.stage.measure_for;
        let single = self.single(TOPIC_FAR, FAR);
        let singles = self.stage.run(Requests::Same(&single), CONNECTIONS, LoadPace::Saturate, measure_for)?;
        self.stage.report.rate(&format!("accept, {CONNECTIONS} connections"), &singles, 1.0);
        let batch = self.batch(TOPIC_FAR, BATCH_HOLDS, |_| format!("\"delay\":\"{FAR}\""));
        let batches = self.stage.run(Requests::Same(&batch), BATCH_CONNECTIONS, LoadPace::Saturate, measure_for)?;
        let name = format!("accept, batches of {BATCH_HOLDS}, {BATCH_CONNECTIONS} connections, holds");
        self.stage.report.rate(&name, &batches, BATCH_HOLDS as f64);
        self.stage.probe()?;
        Ok(())
    }

    fn single(&self, topic: &str, delay: &str) -> Vec<u8> {
        let path = format!("/v1/topics/{topic}/messages?delay={delay}");
        self.stage.request("POST", &path, "application/octet-stream", &[b'x'; PAYLOAD_BYTES])
    }

    /// A batch; `when` returns the delay or due time of each entry.
    fn batch(&self, topic: &str, holds: usize, when: impl Fn(usize) -> String) -> Vec<u8> {
        let path = format!("/v1/topics/{topic}/batch");
        self.stage.request("POST", &path, "application/x-ndjson", lines(holds, when).as_bytes())
    }
}

fn lines(holds: usize, when: impl Fn(usize) -> String) -> String {
    let payload = "x".repeat(PAYLOAD_BYTES);
    (0..holds).map(|index| format!("{{\"payload\":\"{payload}\",{}}}\n", when(index))).collect()
}
