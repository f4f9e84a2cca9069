//! `whimbrel bench deliver`: the delivery rate of subscriptions compared with a bare client loop, the latency of a delivery, and the cost
//! of a failing endpoint for other subscriptions.
//!
//! A sink counts every rate: a process of this binary that answers callbacks. The bare loop calls the same sink with the same concurrency,
//! alternating with the deliveries, so that other activity of the machine affects both.

mod backlog;
mod bare_loop;
mod disturbance;
mod rates;
pub mod sink;
mod sink_process;
mod steady;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use whimbrel_client::{RetrySettings, SubscriptionSettings};

use self::sink_process::SinkProcess;
use super::load::{LoadPace, Requests};
use super::stage::{self, BenchStage};
use crate::{BenchDeliverArgs, BenchError, DeliverRound};

const PAYLOAD_BYTES: usize = 256;
/// Concurrent callbacks, of a subscription and of the bare loop.
const CONCURRENCY: u32 = 64;
/// Messages of one batch that fills a topic; each has a key of its own.
const BATCH_MESSAGES: usize = 1000;
const BATCH_CONNECTIONS: usize = 4;
/// Minimum number of messages in a topic: pausing and resuming take time too, however short a measurement is.
const FILL_MESSAGES_MIN: u64 = 30_000;
const FILL_WAIT: Duration = Duration::from_secs(600);
/// Timeout for the first delivery of a subscription.
const FIRST_WAIT: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Number of turns of each side of a ratio: short ones, so that other activity of the machine affects both.
const TURNS: u32 = 5;
const QUICK_TURNS: u32 = 2;
/// Backlog of a quick run, instead of a million messages.
const QUICK_BACKLOG: u32 = 5000;
/// The secret that signs every callback.
const SECRET: &str = "whsec_d2hpbWJyZWwtYmVuY2gtc2VjcmV0LTAxMjM0NQ==";
/// Prefix of the topics and subscriptions of the benchmark.
const NAME_PREFIX: &str = "bench-deliver-";

pub fn deliver(args: &BenchDeliverArgs) -> Result<ExitCode, BenchError> {
    let stage = BenchStage::set(&args.stage)?;
    let sink = SinkProcess::start()?;
    let backlog = if args.stage.quick { args.backlog.min(QUICK_BACKLOG) } else { args.backlog };
    let mut bench =
        DeliverBench { stage, sink, only: args.only.clone(), backlog, topics: Vec::new(), subscriptions: Vec::new() };
    bench.stage.report.head(format!(
        "payloads of {PAYLOAD_BYTES} B, signed, {CONCURRENCY} concurrent callbacks; a delivery counts when the sink answers it"
    ));
    if !args.stage.set.is_empty() {
        bench.stage.report.head(format!("settings: {}", args.stage.set.join(", ")));
    }
    let outcome = bench.run_rounds();
    if args.stage.server.is_some() {
        bench.remove_all();
    }
    outcome?;
    bench.stage.show()
}

struct DeliverBench {
    stage: BenchStage,
    sink: SinkProcess,
    /// The rounds to run; empty means all.
    only: Vec<DeliverRound>,
    backlog: u32,
    /// The topics that the benchmark created on the server.
    topics: Vec<String>,
    subscriptions: Vec<String>,
}

impl DeliverBench {
    fn run_rounds(&mut self) -> Result<(), BenchError> {
        self.stage.probe()?;
        if self.runs(DeliverRound::Steady) {
            self.run_steady()?;
        }
        if self.runs(DeliverRound::None) || self.runs(DeliverRound::Key) {
            self.run_rates()?;
        }
        if self.runs(DeliverRound::Hang) {
            self.run_hang()?;
        }
        if self.runs(DeliverRound::Badkey) {
            self.run_badkey()?;
        }
        if self.runs(DeliverRound::Backlog) {
            self.run_backlog()?;
        }
        self.stage.probe()?;
        Ok(())
    }

    fn runs(&self, round: DeliverRound) -> bool {
        self.only.is_empty() || self.only.contains(&round)
    }

    fn turns(&self) -> u32 {
        if self.stage.is_quick { QUICK_TURNS } else { TURNS }
    }

    fn make_topic(&mut self, name: &str) -> Result<String, BenchError> {
        let topic = format!("{NAME_PREFIX}{name}");
        self.stage.make_topics(&[(&topic, None)])?;
        if !self.topics.contains(&topic) {
            self.topics.push(topic.clone());
        }
        Ok(topic)
    }

    /// A subscription of the benchmark: signed, from the start of its topic, to that path of the sink.
    fn settings(&self, topic: &str, path: &str, ordering: &str) -> SubscriptionSettings {
        SubscriptionSettings {
            ordering: Some(ordering.into()),
            concurrency: Some(CONCURRENCY),
            start: Some("earliest".into()),
            secret: Some(SECRET.into()),
            retry: Some(RetrySettings { times: Some(1000), schedule: vec!["100ms".into()] }),
            ..SubscriptionSettings::push([topic], format!("http://{}{path}", self.sink.address))
        }
    }

    fn subscribe(&mut self, name: &str, settings: &SubscriptionSettings) -> Result<String, BenchError> {
        let name = format!("{NAME_PREFIX}{name}");
        self.stage.call(async |client| client.put_subscription(&name, settings).await)?;
        self.subscriptions.push(name.clone());
        Ok(name)
    }

    fn pause(&self, subscription: &str) -> Result<(), BenchError> {
        self.stage.call(async |client| client.pause(subscription).await).map(drop)
    }

    fn resume(&self, subscription: &str) -> Result<(), BenchError> {
        self.stage.call(async |client| client.resume(subscription).await).map(drop)
    }

    /// Deletes the subscription of a finished round, so that it does not affect the next rounds.
    fn unsubscribe(&mut self, subscription: &str) -> Result<(), BenchError> {
        self.stage.call(async |client| client.delete_subscription(subscription).await)?;
        self.subscriptions.retain(|other| other != subscription);
        Ok(())
    }

    /// Publishes this many messages, in whole batches, with this many keys in turn. Returns the number of messages.
    fn fill(&self, topic: &str, messages: u64, keys: usize) -> Result<u64, BenchError> {
        let batches = messages.div_ceil(BATCH_MESSAGES as u64);
        self.stage.say(format!("publishing {} messages", batches * BATCH_MESSAGES as u64));
        let batch = self.batch(topic, BATCH_MESSAGES, keys);
        let each = move |number: u64| (number < batches).then(|| batch.clone());
        let mut load = self.stage.load(Requests::Each(&each), BATCH_CONNECTIONS, LoadPace::Saturate, FILL_WAIT);
        load.warmup = Duration::ZERO;
        let outcome = stage::run(load)?;
        if outcome.refused > 0 || outcome.latency.count() < batches {
            let (answered, refused) = (outcome.latency.count(), outcome.refused);
            let first = outcome.first_refusal.unwrap_or_default();
            return Err(BenchError::new(format!(
                "of {batches} batches {answered} were accepted and {refused} rejected, the first with: {first}"
            )));
        }
        Ok(batches * BATCH_MESSAGES as u64)
    }

    fn batch(&self, topic: &str, messages: usize, keys: usize) -> Vec<u8> {
        let payload = "x".repeat(PAYLOAD_BYTES);
        let entry = |index: usize| format!("{{\"payload\":\"{payload}\",\"key\":\"k{}\"}}\n", index % keys);
        let lines: String = (0..messages).map(entry).collect();
        self.stage.request("POST", &format!("/v1/topics/{topic}/batch"), "application/x-ndjson", lines.as_bytes())
    }

    /// The rate per second that the sink counts on that path over the duration, from its next callback on.
    fn delivered_per_second(&self, path: &str, duration: Duration, of: CountedKeys) -> Result<f64, BenchError> {
        let count = |bench: &Self| -> Result<(u64, Duration), BenchError> {
            let figures = bench.sink.figures(path)?;
            let count = match of {
                CountedKeys::All => figures.answered,
                CountedKeys::OtherKeys => figures.of_other_keys,
            };
            Ok((count, figures.at))
        };
        let (before, _) = count(self)?;
        let began = Instant::now();
        while count(self)?.0 == before {
            if began.elapsed() > FIRST_WAIT {
                return Err(BenchError::new(format!(
                    "nothing was delivered to {path} within {} s",
                    FIRST_WAIT.as_secs()
                )));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        std::thread::sleep((duration / 10).min(Duration::from_millis(300)));
        let (first, from) = count(self)?;
        std::thread::sleep(duration);
        let (last, to) = count(self)?;
        Ok((last - first) as f64 / to.saturating_sub(from).as_secs_f64().max(1e-9))
    }

    fn remove_all(&mut self) {
        // A failed removal is no error: the results are worth more, and the leftovers are visible on the server.
        for subscription in self.subscriptions.clone() {
            let _ = self.unsubscribe(&subscription);
        }
        for topic in std::mem::take(&mut self.topics) {
            let _ = self.stage.call(async |client| client.delete_topic_and_holds(&topic).await);
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum CountedKeys {
    All,
    /// Callbacks with a key other than the failing one.
    OtherKeys,
}
