//! A large backlog: the memory of catching up, and its rate compared with live delivery.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::load::{LoadPace, Requests};
use super::super::report::whole;
use super::super::stage;
use super::{CountedKeys, DeliverBench, FIRST_WAIT, bare_loop};
use crate::BenchError;

const KEYS: usize = 1000;
/// Messages of a batch during live delivery: one batch every few milliseconds.
const LIVE_BATCH: usize = 100;
const LIVE_CONNECTIONS: usize = 4;
const CATCH_UP_GOAL: f64 = 0.8;
/// Memory of one subscription for messages: the server's default.
const PREFETCH_BOUND: u64 = 4 << 20;
/// The same plus other growth: buffers of the log, connections, slack of the allocator.
const GROWTH_GOAL: u64 = PREFETCH_BOUND + (28 << 20);
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
const CATCH_UP_WAIT: Duration = Duration::from_secs(900);

#[derive(Default)]
struct BacklogMaxima {
    resident: u64,
    prefetched: u64,
}

impl DeliverBench {
    pub(super) fn run_backlog(&mut self) -> Result<(), BenchError> {
        let before_it = self.live_per_second()?;
        let topic = self.make_topic("backlog")?;
        let mut settings = self.settings(&topic, "/backlog", "key");
        settings.start = Some("latest".into());
        let subscription = self.subscribe("backlog", &settings)?;
        self.pause(&subscription)?;
        let messages = self.fill(&topic, self.backlog.into(), KEYS)?;
        let before = self.stage.server.as_ref().and_then(|server| server.resident_bytes());
        self.stage.say("catching up");
        let began = Instant::now();
        self.resume(&subscription)?;
        let most = self.watch_until(&subscription, messages)?;
        let rate = messages as f64 / began.elapsed().as_secs_f64();
        self.unsubscribe(&subscription)?;
        // Before and after, so that other activity of the machine affects both sides.
        let live = (before_it + self.live_per_second()?) / 2.0;
        let report = &mut self.stage.report;
        report.plain_rate("deliver as messages come", live);
        let name = format!("catch up with {} messages", whole(messages as f64));
        report.share(&name, rate, ("as they come", live), CATCH_UP_GOAL);
        report.below(
            "catching up, messages in memory",
            format!("{:.1} MiB at most", most.prefetched as f64 / f64::from(1 << 20)),
            format!("at most {} MiB", PREFETCH_BOUND >> 20),
            most.prefetched <= PREFETCH_BOUND,
            ("prefetched_bytes", most.prefetched as f64),
        );
        if let Some(before) = before {
            let growth = most.resident.saturating_sub(before);
            report.below(
                "catching up, growth of resident memory",
                format!("{:.1} MB at most", growth as f64 / 1e6),
                format!("at most {:.0} MB", GROWTH_GOAL as f64 / 1e6),
                growth <= GROWTH_GOAL,
                ("growth_mb", growth as f64 / 1e6),
            );
        }
        Ok(())
    }

    /// The rate of delivery while messages are published at a higher rate.
    fn live_per_second(&mut self) -> Result<f64, BenchError> {
        let topic = self.make_topic("live")?;
        let mut settings = self.settings(&topic, "/live", "key");
        settings.start = Some("latest".into());
        let subscription = self.subscribe("live", &settings)?;
        self.stage.say("deliveries as messages come");
        let bare = bare_loop::calls_per_second(self.sink.address, self.stage.measure_for / 4)?;
        let pace = LoadPace::Steady { per_second: bare / LIVE_BATCH as f64 };
        let batch = self.batch(&topic, LIVE_BATCH, KEYS);
        let stop = AtomicBool::new(false);
        let mut load =
            self.stage.load(Requests::Same(&batch), LIVE_CONNECTIONS, pace, FIRST_WAIT + self.stage.measure_for * 2);
        load.stop = Some(&stop);
        let rate = std::thread::scope(|scope| {
            let published = scope.spawn(move || stage::run(load));
            let rate = self.delivered_per_second("/live", self.stage.measure_for, CountedKeys::All);
            stop.store(true, Ordering::Relaxed);
            published.join().map_err(|_| BenchError::new("the load ended early"))??;
            rate
        })?;
        self.unsubscribe(&subscription)?;
        Ok(rate)
    }

    /// Polls the server until everything is delivered.
    fn watch_until(&self, subscription: &str, messages: u64) -> Result<BacklogMaxima, BenchError> {
        let client = self.stage.client()?;
        let began = Instant::now();
        let mut most = BacklogMaxima::default();
        while self.sink.figures("/backlog")?.answered < messages {
            if began.elapsed() > CATCH_UP_WAIT {
                let limit = CATCH_UP_WAIT.as_secs();
                return Err(BenchError::new(format!("{messages} messages were not delivered within {limit} s")));
            }
            let resident = self.stage.server.as_ref().and_then(|server| server.resident_bytes()).unwrap_or(0);
            let shown = self.stage.runtime.block_on(client.subscription(subscription))?;
            let prefetched = shown.status.prefetched_bytes.unwrap_or(0);
            most = BacklogMaxima { resident: most.resident.max(resident), prefetched: most.prefetched.max(prefetched) };
            std::thread::sleep(if self.stage.is_quick { LOOK_INTERVAL / 20 } else { LOOK_INTERVAL });
        }
        Ok(most)
    }
}
