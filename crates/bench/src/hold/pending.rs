//! The cost of pending holds: resident memory with many and with very many of them, and the time of a restart.

use std::time::{Duration, Instant};

use whimbrel_client::HoldFilter;

use super::super::report::whole;
use super::{FAR, HoldBench, TOPIC_FAR, TOPICS};
use crate::BenchError;

/// Maximum difference of memory between many and very many.
const DIFFERENCE_GOAL: u64 = 64_000_000;
const READY_GOAL: Duration = Duration::from_secs(2);
/// Memory is read after it has changed by less than this share for `SETTLED_FOR`…
const SETTLED_SHARE: f64 = 0.01;
const SETTLED_FOR: Duration = Duration::from_secs(3);
/// …or after this time.
const SETTLE_WAIT: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

impl HoldBench {
    pub fn run_pending(&mut self) -> Result<(), BenchError> {
        if self.stage.server.is_none() {
            self.stage.report.remark("pending: skipped, because memory and a restart need a fresh server");
            return Ok(());
        }
        self.stage.start_anew()?;
        self.stage.make_topics(&TOPICS)?;
        let many = self.fill_and_look(0, self.pending)?;
        let very_many = self.fill_and_look(self.pending, self.pending_many)?;
        if let (Some(many), Some(very_many)) = (many, very_many) {
            let difference = very_many.abs_diff(many);
            self.stage.report.below(
                "resident, difference",
                format!("{:.1} MB", difference as f64 / 1e6),
                format!("at most {} MB", DIFFERENCE_GOAL / 1_000_000),
                difference <= DIFFERENCE_GOAL,
                ("difference_mb", difference as f64 / 1e6),
            );
        }
        self.report_restart()
    }

    /// Adds holds up to this number, and reads the memory after it has settled.
    fn fill_and_look(&mut self, present: u32, wanted: u32) -> Result<Option<u64>, BenchError> {
        let (held, took) = self.fill(TOPIC_FAR, wanted.saturating_sub(present), &format!("\"delay\":\"{FAR}\""))?;
        let per_second = held as f64 / took.as_secs_f64().max(1e-9);
        let bytes = self.come_to_rest()?;
        if let Some(bytes) = bytes {
            let mb = bytes as f64 / 1e6;
            let name = format!("resident, {} pending", whole(f64::from(wanted)));
            let shown = format!("{mb:.1} MB; held at {} /s", whole(per_second));
            self.stage.report.figures(&name, shown, &[("resident_mb", mb), ("held_per_second", per_second)]);
        }
        Ok(bytes)
    }

    pub(super) fn settled_bytes(&self) -> Option<u64> {
        let server = self.stage.server.as_ref()?;
        let settled_for = if self.stage.is_quick { LOOK_INTERVAL } else { SETTLED_FOR };
        let began = Instant::now();
        let (mut rested, mut since) = (server.resident_bytes()?, began);
        while since.elapsed() < settled_for && began.elapsed() < SETTLE_WAIT {
            std::thread::sleep(LOOK_INTERVAL);
            let bytes = server.resident_bytes()?;
            if bytes.abs_diff(rested) as f64 > rested as f64 * SETTLED_SHARE {
                (rested, since) = (bytes, Instant::now());
            }
        }
        server.resident_bytes()
    }

    fn report_restart(&mut self) -> Result<(), BenchError> {
        self.stage.say("restarting");
        self.stage.restart()?;
        let Some(ready_after) = self.stage.server.as_ref().map(|server| server.ready_after) else { return Ok(()) };
        let asked = Instant::now();
        let counts = self.stage.runtime.block_on(self.stage.client()?.count_holds(&HoldFilter::default()))?;
        let answered_after = ready_after + asked.elapsed();
        let ready_ms = ready_after.as_secs_f64() * 1000.0;
        let answered_ms = answered_after.as_secs_f64() * 1000.0;
        self.stage.report.below(
            &format!("restart with {} pending", whole(counts.count as f64)),
            format!("ready after {ready_ms:.0} ms; every shard has answered after {answered_ms:.0} ms"),
            format!("under {} s", READY_GOAL.as_secs()),
            answered_after < READY_GOAL,
            ("ready_ms", answered_ms),
        );
        Ok(())
    }
}
