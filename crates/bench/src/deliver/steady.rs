//! The latency from publish to callback, at a steady rate.

use std::time::{Duration, Instant};

use super::super::load::{LoadPace, Requests};
use super::sink::stamped_payload;
use super::{DeliverBench, LOOK_INTERVAL, PAYLOAD_BYTES};
use crate::BenchError;

const PER_SECOND: f64 = 2000.0;
const QUICK_PER_SECOND: f64 = 200.0;
const CONNECTIONS: usize = 16;
const KEYS: u64 = 1000;
const PATH: &str = "/stamp";
const P50_GOAL: Duration = Duration::from_millis(2);
const P99_GOAL: Duration = Duration::from_millis(10);
const END_WAIT: Duration = Duration::from_secs(10);

impl DeliverBench {
    pub(super) fn run_steady(&mut self) -> Result<(), BenchError> {
        let topic = self.make_topic("steady")?;
        let settings = self.settings(&topic, PATH, "key");
        let subscription = self.subscribe("steady", &settings)?;
        let per_second = if self.stage.is_quick { QUICK_PER_SECOND } else { PER_SECOND };
        let before = self.stage.probe()?;
        let each = |number: u64| {
            let path = format!("/v1/topics/{topic}/messages?key=k{}", number % KEYS);
            let payload = stamped_payload(PAYLOAD_BYTES);
            Some(self.stage.request("POST", &path, "application/octet-stream", &payload))
        };
        let pace = LoadPace::Steady { per_second };
        let published = self.stage.run(Requests::Each(&each), CONNECTIONS, pace, self.stage.measure_for)?;
        let told = self.wait_for_the_last(published.latency.count())?;
        let after = self.stage.probe()?;
        self.unsubscribe(&subscription)?;
        let device = before.p99.max(after.p99);
        let report = &mut self.stage.report;
        report.rate(&format!("publish, a steady {per_second} /s"), &published, 1.0);
        report.lateness(
            &format!("publish to callback at a steady {per_second} /s"),
            told.answered,
            &[(0.5, told.p50), (0.99, told.p99), (1.0, told.max)],
            &[(0.5, P50_GOAL + device), (0.99, P99_GOAL + device)],
            "2 ms and 10 ms + the device's p99",
        );
        Ok(())
    }

    /// The sink's counts after all messages are delivered, or after deliveries stopped.
    fn wait_for_the_last(&self, published: u64) -> Result<super::sink::SinkFigures, BenchError> {
        let began = Instant::now();
        loop {
            let told = self.sink.figures(PATH)?;
            if told.answered >= published || began.elapsed() > END_WAIT {
                return Ok(told);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}
