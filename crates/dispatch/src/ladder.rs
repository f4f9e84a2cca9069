//! The ladder of retries: when a delivery that failed is tried again, and when it is enough. Pure.

use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::subscription::{OnExhausted, RETRY_AFTER_MAX, RetryPolicy};

/// How much later than the schedule says a retry may be, in parts of a thousand: what failed together does not come back together.
const JITTER_PER_MILLE: u64 = 100;

/// The tolerated clock difference, with a margin, between the owner that saved a retry time and the owner that checks it.
const SAVED_SLACK: Duration = Duration::from_secs(60);

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

    /// A time that was saved for a retry after so many attempts, when it is taken up again. One that lies beyond all that the ladder
    /// or the endpoint can have asked for comes of a clock that was wrong when it was saved: the retry then waits its step from now,
    /// so that it does not block its key.
    pub fn resume(&self, attempts: u32, saved: Timestamp, now: Timestamp) -> Timestamp {
        let step = match self.after(attempts.max(1), now, None, 0) {
            Step::RetryAt(at) => at,
            Step::DeadLetter | Step::Drop => now,
        };
        let wait_ms = step.as_millis().saturating_sub(now.as_millis()).max(0) as u64;
        let jitter = Duration::from_millis((wait_ms / 1000).saturating_mul(JITTER_PER_MILLE).max(1));
        let latest = later(later(step, jitter).max(later(now, RETRY_AFTER_MAX)), SAVED_SLACK);
        if saved <= latest { saved } else { step }
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
    fn a_saved_time_that_nothing_can_have_asked_for_waits_its_step_from_now() {
        let policy = RetryPolicy { times: 3, schedule_ms: vec![1_000, 7_200_000] };
        let ladder =
            Ladder { policy: &policy, on_exhausted: OnExhausted::Block, blocked_sleep: Duration::from_secs(2) };
        let resumed = |attempts, ahead_ms: i64| {
            let saved = Timestamp::from_millis(NOW.as_millis() + ahead_ms);
            ladder.resume(attempts, saved, NOW).as_millis() - NOW.as_millis()
        };
        assert_eq!(resumed(1, 86_400_000), 1_000, "a day ahead");
        assert_eq!(resumed(1, 3_600_000), 3_600_000, "the endpoint may have asked for an hour");
        assert_eq!(resumed(1, 3_600_500), 3_600_500, "and the earlier owner's clock may have been ahead");
        assert_eq!(resumed(1, -5_000), -5_000, "what is over is over");
        assert_eq!(resumed(2, 7_900_000), 7_900_000, "its step, with jitter");
        assert_eq!(resumed(2, 8_000_000), 7_200_000);
        assert_eq!(resumed(9, 86_400_000), 2_000, "blocked ones too");
        assert_eq!(resumed(0, 86_400_000), 1_000, "not tried yet");
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
