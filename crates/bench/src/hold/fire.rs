//! The lateness of holds: a few on an idle server, and a steady rate that is accepted and fired at the same time.

use std::time::Duration;

use whimbrel_model::{Clock as _, SystemClock, Timestamp};

use super::super::exposition::{self, Buckets};
use super::super::load::{LoadOutcome, LoadPace, Requests};
use super::reader::{HoldReadResult, HoldReader};
use super::{CONNECTIONS, HoldBench, TOPIC_ALONE, TOPIC_NEAR};
use crate::BenchError;

const LATENESS: &str = "whimbrel_holds_lateness_seconds";
/// Holds of one batch at a steady rate: a batch every few milliseconds, so that due times are spread.
const STEADY_BATCH: u32 = 100;
/// The delay of the steady rate: a hold is accepted, folded, and waits for its due time.
const NEAR: Duration = Duration::from_secs(2);
const NEAR_QUICK: Duration = Duration::from_millis(300);
const IDLE_PER_SECOND: f64 = 20.0;
const IDLE_DELAY: Duration = Duration::from_millis(300);
/// Time after the last due time by which all holds have fired.
const SETTLE: Duration = Duration::from_millis(500);

const FIRE_P50_GOAL: Duration = Duration::from_millis(2);
const FIRE_P99_GOAL: Duration = Duration::from_millis(10);
/// On Kafka a commit is a transaction over the network.
const KAFKA_P99_GOAL: Duration = Duration::from_millis(100);
const IDLE_GOAL: Duration = Duration::from_millis(2);

/// A steady load of holds, with their lateness.
struct FiredLoad {
    accepted: LoadOutcome,
    /// By the server's own histogram.
    told: Buckets,
    seen: HoldReadResult,
}

impl HoldBench {
    pub fn run_idle(&mut self) -> Result<(), BenchError> {
        let delay = IDLE_DELAY;
        let request = self.single(TOPIC_ALONE, &format!("{}ms", delay.as_millis()));
        let pace = LoadPace::Steady { per_second: IDLE_PER_SECOND };
        let before = self.stage.probe()?;
        let fired = self.fire(&request, TOPIC_ALONE, 1, pace, delay)?;
        let after = self.stage.probe()?;
        let goals = [(0.99, IDLE_GOAL + before.p99.max(after.p99))];
        // The benchmark cannot measure a broker's device.
        let goals = if self.is_on_kafka { &[] } else { &goals[..] };
        self.report_lateness("idle, lateness", &fired, goals, "2 ms + the device's p99");
        Ok(())
    }

    pub fn run_fire(&mut self) -> Result<(), BenchError> {
        let delay = if self.stage.is_quick { NEAR_QUICK } else { NEAR };
        let batches_per_second = f64::from(self.rate) / f64::from(STEADY_BATCH);
        let apart_ms = 1000.0 / batches_per_second;
        // The holds of a batch are due at even distances until those of the next batch.
        let request = self.batch(TOPIC_NEAR, STEADY_BATCH as usize, |index| {
            let within = apart_ms * index as f64 / f64::from(STEADY_BATCH);
            format!("\"delay\":\"{}ms\"", delay.as_millis() + within as u128)
        });
        let pace = LoadPace::Steady { per_second: batches_per_second };
        let fired = self.fire(&request, TOPIC_NEAR, CONNECTIONS, pace, delay)?;
        let name = format!("accept {} /s in batches of {STEADY_BATCH}, while as many fire", self.rate);
        self.stage.report.rate(&name, &fired.accepted, f64::from(STEADY_BATCH));
        let (on_disk, on_kafka) = ([(0.5, FIRE_P50_GOAL), (0.99, FIRE_P99_GOAL)], [(0.99, KAFKA_P99_GOAL)]);
        let goals = if self.is_on_kafka { &on_kafka[..] } else { &on_disk[..] };
        self.report_lateness(&format!("fire {} /s, lateness", self.rate), &fired, goals, "");
        self.stage.probe()?;
        Ok(())
    }

    /// Holds messages at a steady rate, and measures when they arrive.
    fn fire(
        &mut self,
        request: &[u8],
        topic: &'static str,
        connections: usize,
        pace: LoadPace,
        delay: Duration,
    ) -> Result<FiredLoad, BenchError> {
        let figures =
            |bench: &Self| Ok::<_, BenchError>(Buckets::of(&exposition::fetch(bench.stage.address)?, LATENESS));
        // Long enough that holds are accepted and fired at the same time for the whole measurement.
        let duration = self.stage.measure_for + delay;
        let from = Timestamp::from_millis(SystemClock.now().as_millis() + delay.as_millis() as i64);
        let before = figures(self)?;
        let reader = HoldReader::start(self.stage.client()?, topic, from);
        let accepted = self.stage.run(Requests::Same(request), connections, pace, duration)?;
        std::thread::sleep(delay + SETTLE);
        let seen = reader.end()?;
        let told = figures(self)?.since(&before);
        Ok(FiredLoad { accepted, told, seen })
    }

    fn report_lateness(&mut self, name: &str, fired: &FiredLoad, goals: &[(f64, Duration)], because: &str) {
        let report = &mut self.stage.report;
        let told = [0.5, 0.99, 1.0].map(|share| (share, fired.told.quantile(share)));
        report.lateness(&format!("{name} by the server's histogram"), fired.told.count(), &told, goals, because);
        let lateness = &fired.seen.lateness;
        let seen = [0.5, 0.99, 1.0].map(|share| (share, lateness.quantile(share)));
        report.lateness(&format!("{name} as a reader sees it"), lateness.count(), &seen, goals, because);
        if fired.told.count() == 0 {
            report.remark(format!("{name}: the server has no histogram {LATENESS}"));
        }
        if fired.seen.early > 0 {
            report.remark(format!("{name}: {} MESSAGES CAME EARLY", fired.seen.early));
        }
    }
}
