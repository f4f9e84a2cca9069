//! Extending and withdrawing with very many pending holds: at the highest rate, and at a steady rate.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::super::load::{LoadPace, Requests};
use super::super::report::whole;
use super::{CONNECTIONS, HoldBench};
use crate::{BenchError, HoldRound};

const RATE_GOAL: f64 = 20_000.0;
const STEADY_PER_SECOND: f64 = 5000.0;
const STEADY_QUICK_PER_SECOND: f64 = 500.0;
/// In addition to twice the device's sync.
const STEADY_GOAL: Duration = Duration::from_millis(2);
/// The stride through the ids, so that consecutive requests are not neighbours in time; odd and no divisor of the number of holds.
const STRIDE: usize = 7919;

impl HoldBench {
    pub fn run_commands(&mut self) -> Result<(), BenchError> {
        let ids = self.fill_with_ids(self.pending)?;
        self.come_to_rest()?;
        let pending = whole(ids.len() as f64);
        let id_of = |number: usize| &ids[number.wrapping_mul(STRIDE) % ids.len()];
        if self.runs(HoldRound::Extend) {
            let turn = AtomicUsize::new(0);
            let next = |bench: &Self| {
                let path = format!("/v1/holds/{}/extend", id_of(turn.fetch_add(1, Ordering::Relaxed)));
                Some(bench.stage.request("POST", &path, "application/json", br#"{"by":"1s"}"#))
            };
            self.measure(&format!("extend, {pending} pending"), next)?;
        }
        if self.runs(HoldRound::Withdraw) {
            let turn = AtomicUsize::new(0);
            let next = |bench: &Self| {
                let number = turn.fetch_add(1, Ordering::Relaxed);
                (number < ids.len())
                    .then(|| bench.stage.request("DELETE", &format!("/v1/holds/{}", id_of(number)), "", &[]))
            };
            self.measure(&format!("withdraw, {pending} pending"), next)?;
        }
        Ok(())
    }

    /// The steady rate comes first: the other one uses up the holds to withdraw.
    fn measure(&mut self, name: &str, next: impl Fn(&Self) -> Option<Vec<u8>> + Sync) -> Result<(), BenchError> {
        let measure_for = self.stage.measure_for;
        let per_second = if self.stage.is_quick { STEADY_QUICK_PER_SECOND } else { STEADY_PER_SECOND };
        let before = self.stage.probe()?;
        let bench = &*self;
        let each = |_| next(bench);
        let pace = LoadPace::Steady { per_second };
        let steady = bench.stage.run(Requests::Each(&each), CONNECTIONS, pace, measure_for)?;
        let most = bench.stage.run(Requests::Each(&each), CONNECTIONS, LoadPace::Saturate, measure_for)?;
        let after = self.stage.probe()?;
        let goal = STEADY_GOAL + 2 * before.p99.max(after.p99);
        let steady_name = format!("{name}, a steady {} /s", whole(per_second));
        let report = &mut self.stage.report;
        report.latency(&steady_name, &steady, 0.99, goal, "2 ms + twice the device's p99");
        report.rate_with_goal(&format!("{name}, {CONNECTIONS} connections"), &most, 1.0, RATE_GOAL);
        Ok(())
    }
}
