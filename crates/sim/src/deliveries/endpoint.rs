//! A simulated endpoint. It fails by key, by time and at random. It answers late, twice or never, and may receive a message without
//! confirming it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::ports::{CallFailure, CallOutcome};

use crate::Rng;

#[derive(Debug, Clone, Default)]
pub struct SimEndpoint {
    /// Keys that it rejects, and until when.
    pub bad_keys: BTreeMap<Vec<u8>, i64>,
    /// Unavailable until this time.
    pub down_until: i64,
    /// Answers one in this many calls with an error. The fields below are frequencies too.
    pub fails: u64,
    /// Answers after the timeout, or never, although it may receive the message.
    pub late: u64,
    pub never: u64,
    /// The answer arrives twice.
    pub twice: u64,
    /// No worker can call it.
    pub no_worker: u64,
    /// The maximum time to an answer, in milliseconds.
    pub slowest_ms: u64,
}

/// The planned result of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCall {
    /// The outcome that the caller receives, and after how long.
    pub outcome: CallOutcome,
    pub after_ms: i64,
    /// The time until the endpoint receives the message, if it does.
    pub taken_after_ms: Option<i64>,
    pub is_twice: bool,
}

impl SimEndpoint {
    pub fn call(&self, key: Option<&[u8]>, now: i64, timeout_ms: i64, rng: &mut Rng) -> PlannedCall {
        let took = rng.below(self.slowest_ms + 1) as i64;
        let planned =
            |outcome, after_ms, taken_after_ms| PlannedCall { outcome, after_ms, taken_after_ms, is_twice: false };
        if rng.one_in(self.no_worker) {
            return planned(failed(CallFailure::NoWorker), took, None);
        }
        let is_bad = key.and_then(|key| self.bad_keys.get(key)).is_some_and(|until| now < *until);
        let fails = rng.one_in(self.fails);
        if is_bad || fails || now < self.down_until {
            let refused = failed(CallFailure::Connect);
            let outcome = if rng.one_in(4) { refused } else { answered(*rng.pick(&[500, 503, 429, 422]), rng) };
            return PlannedCall { is_twice: rng.one_in(self.twice), ..planned(outcome, took, None) };
        }
        if rng.one_in(self.never) {
            return planned(failed(CallFailure::Timeout), timeout_ms, None);
        }
        if rng.one_in(self.late) {
            let late = timeout_ms + rng.below(3 * timeout_ms as u64) as i64;
            return planned(failed(CallFailure::Timeout), timeout_ms, Some(late));
        }
        let is_twice = rng.one_in(self.twice);
        PlannedCall { is_twice, ..planned(answered(200, rng), took, Some(took)) }
    }
}

fn failed(why: CallFailure) -> CallOutcome {
    CallOutcome::Failed { why, detail: "simulated".to_owned() }
}

fn answered(status: u16, rng: &mut Rng) -> CallOutcome {
    let retry_after = (status == 429 && rng.one_in(2)).then(|| Duration::from_secs(rng.below(30)));
    CallOutcome::Answered { status, retry_after, answer: Bytes::new() }
}
