//! The ladder of retries: when a delivery that failed is tried again, and when it is enough. Pure.

use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::subscription::{OnExhausted, RETRY_AFTER_MAX, RetryPolicy};

/// How much later than the schedule says a retry may be, in parts of a thousand: what failed together does not come back together.
const JITTER_PER_MILLE: u64 = 100;

/// What comes after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    RetryAt(Timestamp),
    DeadLetter,
    Drop,
}

/// What a ladder is made of.
#[derive(Debug, Clone, Copy)]
pub struct Ladder<'a> {
    pub policy: &'a RetryPolicy,
    pub on_exhausted: OnExhausted,
    pub blocked_sleep: Duration,
}

impl Ladder<'_> {
    /// After so many attempts, the failed one included. `random` is any number; `retry_after` is what the endpoint asked for.
    pub fn after(&self, attempts: u32, now: Timestamp, retry_after: Option<Duration>, random: u64) -> Step {
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        if attempts <= self.policy.times {
            let at = (attempts.saturating_sub(1) as usize).min(self.policy.schedule_ms.len().saturating_sub(1));
            let wait = self.policy.schedule_ms.get(at).copied().unwrap_or(0);
            let jitter = (wait / 1000).saturating_mul(JITTER_PER_MILLE).max(1);
            let wait = wait.saturating_add(random % jitter);
            return Step::RetryAt(later(now, Duration::from_millis(wait).max(asked)));
        }
        self.end(now, retry_after)
    }

    /// What comes when no retry is left, or none can mend it.
    pub fn end(&self, now: Timestamp, retry_after: Option<Duration>) -> Step {
        match self.on_exhausted {
            OnExhausted::DeadLetter => Step::DeadLetter,
            OnExhausted::Block => {
                let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
                Step::RetryAt(later(now, self.blocked_sleep.max(asked)))
            }
            OnExhausted::Drop => Step::Drop,
        }
    }
}

fn later(now: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_millis(now.as_millis().saturating_add(by.as_millis() as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn wait(ladder: Ladder<'_>, attempts: u32, retry_after: Option<Duration>, random: u64) -> i64 {
        match ladder.after(attempts, NOW, retry_after, random) {
            Step::RetryAt(at) => at.as_millis() - NOW.as_millis(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn five_retries_are_six_attempts() {
        let policy = RetryPolicy::default();
        let ladder =
            Ladder { policy: &policy, on_exhausted: OnExhausted::DeadLetter, blocked_sleep: Duration::from_secs(2) };
        let waits: Vec<i64> = (1..=5).map(|attempts| wait(ladder, attempts, None, 0)).collect();
        assert_eq!(waits, [1_000, 10_000, 60_000, 300_000, 3_000_000]);
        assert_eq!(ladder.after(6, NOW, None, 0), Step::DeadLetter);
    }

    #[test]
    fn past_its_end_the_last_entry_repeats_and_a_blocked_one_tries_on() {
        let policy = RetryPolicy { times: 3, schedule_ms: vec![100, 200] };
        let ladder =
            Ladder { policy: &policy, on_exhausted: OnExhausted::Block, blocked_sleep: Duration::from_secs(2) };
        assert_eq!(wait(ladder, 3, None, 0), 200);
        assert_eq!(wait(ladder, 4, None, 0), 2_000);
        assert_eq!(wait(ladder, 1_000, None, 0), 2_000);
        let dropping = Ladder { on_exhausted: OnExhausted::Drop, ..ladder };
        assert_eq!(dropping.after(4, NOW, None, 0), Step::Drop);
    }

    #[test]
    fn jitter_makes_a_retry_later_and_never_earlier() {
        let policy = RetryPolicy::default();
        let ladder =
            Ladder { policy: &policy, on_exhausted: OnExhausted::DeadLetter, blocked_sleep: Duration::from_secs(2) };
        for random in 0..5_000 {
            let wait = wait(ladder, 2, None, random);
            assert!((10_000..11_000).contains(&wait), "{wait}");
        }
    }

    #[test]
    fn what_the_endpoint_asks_for_is_obeyed_up_to_an_hour() {
        let policy = RetryPolicy { times: 5, schedule_ms: vec![1_000] };
        let ladder =
            Ladder { policy: &policy, on_exhausted: OnExhausted::DeadLetter, blocked_sleep: Duration::from_secs(2) };
        assert_eq!(wait(ladder, 1, Some(Duration::from_secs(30)), 0), 30_000);
        assert_eq!(wait(ladder, 1, Some(Duration::from_millis(10)), 0), 1_000);
        assert_eq!(wait(ladder, 1, Some(Duration::from_secs(90_000)), 0), 3_600_000);
    }
}
