//! Very many holds due at the same moment: the time until all are in their topic, and the latency of publishes at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use whimbrel_model::{Clock as _, SystemClock, Timestamp};

use super::super::load::{LoadPace, Requests};
use super::super::report::{time, whole};
use super::super::stage;
use super::{HoldBench, TOPIC_BESIDE, TOPIC_BURST};
use crate::BenchError;

const BESIDE_PER_SECOND: f64 = 1000.0;
const BESIDE_CONNECTIONS: usize = 16;
const BESIDE_BYTES: usize = 256;
/// A rate of holds per second that filling always reaches. It determines the due time.
const FILL_PER_SECOND: u64 = 20_000;
/// Minimum time between the end of filling and the due time.
const LEAD: Duration = Duration::from_secs(3);
const GIVE_UP: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const APPENDED_GOAL: Duration = Duration::from_secs(5);
const BESIDE_GOAL: Duration = Duration::from_millis(10);

impl HoldBench {
    pub fn run_burst(&mut self) -> Result<(), BenchError> {
        let expected = Duration::from_secs(u64::from(self.pending) / FILL_PER_SECOND) + LEAD;
        let moment = Timestamp::from_millis(SystemClock.now().as_millis() + expected.as_millis() as i64);
        let (held, _) = self.fill(TOPIC_BURST, self.pending, &format!("\"deliver_at\":\"{moment}\""))?;
        let left = moment.as_millis() - SystemClock.now().as_millis();
        if left <= 0 {
            self.stage
                .report
                .remark("burst: filling took longer than expected, and some were due before all were held");
        }
        self.stage.say("waiting for the due time");
        std::thread::sleep(Duration::from_millis(left.max(0).unsigned_abs()));

        let beside = self.stage.request(
            "POST",
            &format!("/v1/topics/{TOPIC_BESIDE}/messages"),
            "application/octet-stream",
            &[b'x'; BESIDE_BYTES],
        );
        let stop = AtomicBool::new(false);
        let pace = LoadPace::Steady { per_second: BESIDE_PER_SECOND };
        let mut load = self.stage.load(Requests::Same(&beside), BESIDE_CONNECTIONS, pace, GIVE_UP);
        load.warmup = Duration::ZERO;
        load.stop = Some(&stop);
        let began = Instant::now();
        let (appended, published) = std::thread::scope(|scope| {
            let publishing = scope.spawn(|| stage::run(load));
            let appended = self.wait_for_messages(TOPIC_BURST, held, began);
            stop.store(true, Ordering::Relaxed);
            let published = publishing.join().map_err(|_| BenchError::new("the load generator ended early"));
            Ok::<_, BenchError>((appended?, published??))
        })?;
        let report = &mut self.stage.report;
        let seconds = appended.as_secs_f64();
        report.below(
            &format!("burst: {} holds due at the same moment", whole(held as f64)),
            format!("all in the topic after {}, {} /s", time(appended), whole(held as f64 / seconds.max(1e-9))),
            format!("within {} s", APPENDED_GOAL.as_secs()),
            appended <= APPENDED_GOAL,
            ("appended_ms", seconds * 1000.0),
        );
        let name = format!("burst: publishes beside it, a steady {} /s", whole(BESIDE_PER_SECOND));
        report.latency(&name, &published, 0.99, BESIDE_GOAL, "while the burst lasts");
        self.stage.probe()?;
        Ok(())
    }

    /// Waits until the topic has this many messages. Returns the time since `began`.
    fn wait_for_messages(&self, topic: &str, messages: u64, began: Instant) -> Result<Duration, BenchError> {
        let client = self.stage.client()?;
        loop {
            let found = self.stage.runtime.block_on(client.topic(topic))?.messages.unwrap_or_default();
            if found >= messages {
                return Ok(began.elapsed());
            }
            if began.elapsed() > GIVE_UP {
                return Err(BenchError::new(format!(
                    "only {found} of {messages} holds have fired {} s after they were due",
                    GIVE_UP.as_secs()
                )));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
