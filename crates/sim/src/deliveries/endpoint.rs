//! A simulated endpoint: it fails by key, by time and at random, answers late, twice, or never, and may have taken what it did not
//! confirm.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::ports::{CallFailure, CallOutcome};

use crate::Rng;

#[derive(Debug, Clone, Default)]
pub struct Endpoint {
    /// Keys that it does not like, until then.
    pub bad_keys: BTreeMap<Vec<u8>, i64>,
    /// It is down until then.
    pub down_until: i64,
    /// Once in so many calls it answers with an error.
    pub fails: u64,
    /// Once in so many it answers after the time is over, or never; what it took it took.
    pub late: u64,
    pub never: u64,
    /// Once in so many its answer arrives twice.
    pub twice: u64,
    /// Once in so many nobody could call it.
    pub no_worker: u64,
    /// Milliseconds that an answer takes at most.
    pub slowest_ms: u64,
}

/// What comes of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// What the caller hears, and after how long.
    pub heard: CallOutcome,
    pub after_ms: i64,
    /// When the endpoint has taken the message, if it does.
    pub taken_after_ms: Option<i64>,
    pub is_heard_twice: bool,
}

impl Endpoint {
    pub fn call(&self, key: Option<&[u8]>, now: i64, timeout_ms: i64, rng: &mut Rng) -> Planned {
        let took = rng.below(self.slowest_ms + 1) as i64;
        let planned =
            |heard, after_ms, taken_after_ms| Planned { heard, after_ms, taken_after_ms, is_heard_twice: false };
        if rng.one_in(self.no_worker) {
            return planned(failed(CallFailure::NoWorker), took, None);
        }
        let is_bad = key.and_then(|key| self.bad_keys.get(key)).is_some_and(|until| now < *until);
        let fails = rng.one_in(self.fails);
        if is_bad || fails || now < self.down_until {
            let refused = failed(CallFailure::Connect);
            let heard = if rng.one_in(4) { refused } else { answered(*rng.pick(&[500, 503, 429, 422]), rng) };
            return Planned { is_heard_twice: rng.one_in(self.twice), ..planned(heard, took, None) };
        }
        if rng.one_in(self.never) {
            return planned(failed(CallFailure::Timeout), timeout_ms, None);
        }
        if rng.one_in(self.late) {
            let late = timeout_ms + rng.below(3 * timeout_ms as u64) as i64;
            return planned(failed(CallFailure::Timeout), timeout_ms, Some(late));
        }
        let is_heard_twice = rng.one_in(self.twice);
        Planned { is_heard_twice, ..planned(answered(200, rng), took, Some(took)) }
    }
}

fn failed(why: CallFailure) -> CallOutcome {
    CallOutcome::Failed { why, detail: "simulated".to_owned() }
}

fn answered(status: u16, rng: &mut Rng) -> CallOutcome {
    let retry_after = (status == 429 && rng.one_in(2)).then(|| Duration::from_secs(rng.below(30)));
    CallOutcome::Answered { status, retry_after, answer: Bytes::new() }
}
