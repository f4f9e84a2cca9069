//! `whimbrel bench deliver`: how fast subscriptions deliver beside a bare client loop, how soon a message reaches its subscriber, and
//! what one failing subscriber costs the others.
//!
//! Every rate is what a sink counted: a process of this same binary that answers callbacks. The bare loop calls the same sink with the
//! same concurrency in turns with the deliveries, so that what the machine does meanwhile meets both.

mod backlog;
mod bare;
mod disturbed;
mod rates;
pub mod sink;
mod sink_process;
mod steady;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use whimbrel_client::{RetrySettings, SubscriptionSettings, TopicSettings};

use self::sink_process::SinkProcess;
use super::load::{Pace, Requests};
use super::stage::{self, Stage};
use crate::cli::{BenchDeliverArgs, DeliverRound, Failure};

/// Bytes of a delivered payload.
const PAYLOAD_BYTES: usize = 256;
/// Callbacks at the same time, of a subscription and of the bare loop.
const CONCURRENCY: u32 = 64;
/// Messages of one batch that a topic is filled with; each has a key of its own.
const BATCH_MESSAGES: usize = 1000;
const BATCH_CONNECTIONS: usize = 4;
/// Messages that a topic is filled with at least: pausing and resuming take their time too, however short a measurement is.
const FILL_MESSAGES_MIN: u64 = 30_000;
/// How long filling a topic may take.
const FILL_WAIT: Duration = Duration::from_secs(600);
/// How long a subscription may take to deliver its first message.
const FIRST_WAIT: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// How often the two sides of a ratio take turns: short ones, so that what others do on the machine meets both.
const TURNS: u32 = 5;
const QUICK_TURNS: u32 = 2;
/// Messages of a quick run's backlog, instead of a million.
const QUICK_BACKLOG: u32 = 5000;
/// What every callback is signed with.
const SECRET: &str = "whsec_d2hpbWJyZWwtYmVuY2gtc2VjcmV0LTAxMjM0NQ==";
/// What the topics and subscriptions of the bench begin with.
const NAME_PREFIX: &str = "bench-deliver-";

/// Measures and prints.
pub fn deliver(args: &BenchDeliverArgs) -> Result<ExitCode, Failure> {
    let stage = Stage::set(&args.stage)?;
    let sink = SinkProcess::start()?;
    let backlog = if args.stage.quick { args.backlog.min(QUICK_BACKLOG) } else { args.backlog };
    let mut bench =
        Bench { stage, sink, only: args.only.clone(), backlog, topics: Vec::new(), subscriptions: Vec::new() };
    bench.stage.report.head(format!(
        "payloads of {PAYLOAD_BYTES} B, signed, {CONCURRENCY} callbacks at the same time; a delivery counts when the sink answers it"
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

struct Bench {
    stage: Stage,
    sink: SinkProcess,
    /// The rounds that run; all of them where it is empty.
    only: Vec<DeliverRound>,
    /// Messages of the backlog.
    backlog: u32,
    /// What was made on the server.
    topics: Vec<String>,
    subscriptions: Vec<String>,
}

impl Bench {
    fn run_rounds(&mut self) -> Result<(), Failure> {
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

    /// Makes a topic of the bench's own.
    fn make_topic(&mut self, name: &str) -> Result<String, Failure> {
        let topic = format!("{NAME_PREFIX}{name}");
        let client = self.stage.client()?;
        self.stage.runtime.block_on(client.put_topic(&topic, &TopicSettings::default()))?;
        if !self.topics.contains(&topic) {
            self.topics.push(topic.clone());
        }
        Ok(topic)
    }

    /// What a subscription of the bench is: signed, from the beginning of its topic on, to that path of the sink.
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

    fn subscribe(&mut self, name: &str, settings: &SubscriptionSettings) -> Result<String, Failure> {
        let name = format!("{NAME_PREFIX}{name}");
        let client = self.stage.client()?;
        self.stage.runtime.block_on(client.put_subscription(&name, settings))?;
        self.subscriptions.push(name.clone());
        Ok(name)
    }

    fn pause(&self, subscription: &str) -> Result<(), Failure> {
        let client = self.stage.client()?;
        self.stage.runtime.block_on(client.pause(subscription))?;
        Ok(())
    }

    fn resume(&self, subscription: &str) -> Result<(), Failure> {
        let client = self.stage.client()?;
        self.stage.runtime.block_on(client.resume(subscription))?;
        Ok(())
    }

    /// Ends a subscription whose round is over, so that it costs the next ones nothing.
    fn unsubscribe(&mut self, subscription: &str) -> Result<(), Failure> {
        let client = self.stage.client()?;
        self.stage.runtime.block_on(client.delete_subscription(subscription))?;
        self.subscriptions.retain(|other| other != subscription);
        Ok(())
    }

    /// Publishes so many messages, in whole batches, with as many keys in turn. Returns how many it were.
    fn fill(&self, topic: &str, messages: u64, keys: usize) -> Result<u64, Failure> {
        let batches = messages.div_ceil(BATCH_MESSAGES as u64);
        self.stage.say(format!("publishing {} messages", batches * BATCH_MESSAGES as u64));
        let batch = self.batch(topic, BATCH_MESSAGES, keys);
        let each = move |number: u64| (number < batches).then(|| batch.clone());
        let mut load = self.stage.load(Requests::Each(&each), BATCH_CONNECTIONS, Pace::Saturate, FILL_WAIT);
        load.warmup = Duration::ZERO;
        let outcome = stage::run(load)?;
        if outcome.refused > 0 || outcome.latency.count() < batches {
            let (answered, refused) = (outcome.latency.count(), outcome.refused);
            let first = outcome.first_refusal.unwrap_or_default();
            return Err(Failure::new(format!(
                "of {batches} batches {answered} were accepted and {refused} refused, the first with: {first}"
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

    /// What the sink counts on that path per second, for so long, once it has counted anything new.
    fn delivered_per_second(&self, path: &str, duration: Duration, of: Counted) -> Result<f64, Failure> {
        let count = |bench: &Self| -> Result<(u64, Duration), Failure> {
            let figures = bench.sink.figures(path)?;
            let count = match of {
                Counted::All => figures.answered,
                Counted::OtherKeys => figures.of_other_keys,
            };
            Ok((count, figures.at))
        };
        let (before, _) = count(self)?;
        let began = Instant::now();
        while count(self)?.0 == before {
            if began.elapsed() > FIRST_WAIT {
                return Err(Failure::new(format!("nothing was delivered to {path} within {} s", FIRST_WAIT.as_secs())));
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
        // What cannot be removed is there to be seen; the figures are worth more than a failure at the end.
        for subscription in self.subscriptions.clone() {
            let _ = self.unsubscribe(&subscription);
        }
        let Ok(client) = self.stage.client() else { return };
        for topic in std::mem::take(&mut self.topics) {
            let _ = self.stage.runtime.block_on(client.delete_topic_and_holds(&topic));
        }
    }
}

/// Which callbacks a rate counts.
#[derive(Debug, Clone, Copy)]
enum Counted {
    All,
    /// Those whose key is not the one that fails.
    OtherKeys,
}
