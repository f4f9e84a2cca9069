//! The retry schedule: when a failed delivery is retried, and when it is given up. Pure.

use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::subscription::{OnExhausted, RETRY_AFTER_MAX, RetryPolicy};

/// The largest jitter, in thousandths of the wait. It spreads retries of messages that failed together.
const JITTER_PER_MILLE: u64 = 100;

/// The tolerated clock difference, with a margin, between the owner that saved a retry time and the owner that checks it.
const SAVED_SLACK: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryStep {
    RetryAt(Timestamp),
    DeadLetter,
    Drop,
}

#[derive(Debug, Clone, Copy)]
pub struct RetrySchedule<'a> {
    pub policy: &'a RetryPolicy,
    pub on_exhausted: OnExhausted,
    pub blocked_sleep: Duration,
}

impl RetrySchedule<'_> {
    /// The step after `attempts` attempts, the failed one included. `random` is any number; `retry_after` is the endpoint's request.
    pub fn after(&self, attempts: u32, now: Timestamp, retry_after: Option<Duration>, random: u64) -> RetryStep {
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        if attempts <= self.policy.times {
            let at = (attempts.saturating_sub(1) as usize).min(self.policy.schedule_ms.len().saturating_sub(1));
            let wait = self.policy.schedule_ms.get(at).copied().unwrap_or(0);
            let jitter = (wait / 1000).saturating_mul(JITTER_PER_MILLE).max(1);
            let wait = wait.saturating_add(random % jitter);
            return RetryStep::RetryAt(later(now, Duration::from_millis(wait).max(asked)));
        }
        self.end(now, retry_after)
    }

    /// The step when no retry is left, or none can succeed.
    pub fn end(&self, now: Timestamp, retry_after: Option<Duration>) -> RetryStep {
        match self.on_exhausted {
            OnExhausted::DeadLetter => RetryStep::DeadLetter,
            OnExhausted::Block => {
                let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
                RetryStep::RetryAt(later(now, self.blocked_sleep.max(asked)))
            }
            OnExhausted::Drop => RetryStep::Drop,
        }
    }

    /// Checks the saved time of a retry after `attempts` attempts, when an owner resumes it. A time beyond the schedule's and the
    /// endpoint's maximum was saved by a wrong clock. Such a retry waits its step from now, so that it does not block its key.
    pub fn resume(&self, attempts: u32, saved: Timestamp, now: Timestamp) -> Timestamp {
        let step = match self.after(attempts.max(1), now, None, 0) {
            RetryStep::RetryAt(at) => at,
            RetryStep::DeadLetter | RetryStep::Drop => now,
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

    fn wait(retry_schedule: RetrySchedule<'_>, attempts: u32, retry_after: Option<Duration>, random: u64) -> i64 {
        match retry_schedule.after(attempts, NOW, retry_after, random) {
            RetryStep::RetryAt(at) => at.as_millis() - NOW.as_millis(),
            other => panic!("{other:?}"),
        }
    }

    fn schedule(policy: &RetryPolicy, on_exhausted: OnExhausted) -> RetrySchedule<'_> {
        RetrySchedule { policy, on_exhausted, blocked_sleep: Duration::from_secs(2) }
    }

    #[test]
    fn five_retries_make_six_attempts() {
        let policy = RetryPolicy::default();
        let retry_schedule = schedule(&policy, OnExhausted::DeadLetter);
        let waits: Vec<i64> = (1..=5).map(|attempts| wait(retry_schedule, attempts, None, 0)).collect();
        assert_eq!(waits, [1_000, 10_000, 60_000, 300_000, 3_000_000]);
        assert_eq!(retry_schedule.after(6, NOW, None, 0), RetryStep::DeadLetter);
    }

    #[test]
    fn the_last_entry_repeats_and_a_blocked_message_is_retried_forever() {
        let policy = RetryPolicy { times: 3, schedule_ms: vec![100, 200] };
        let retry_schedule = schedule(&policy, OnExhausted::Block);
        assert_eq!(wait(retry_schedule, 3, None, 0), 200);
        assert_eq!(wait(retry_schedule, 4, None, 0), 2_000);
        assert_eq!(wait(retry_schedule, 1_000, None, 0), 2_000);
        let dropping = RetrySchedule { on_exhausted: OnExhausted::Drop, ..retry_schedule };
        assert_eq!(dropping.after(4, NOW, None, 0), RetryStep::Drop);
    }

    #[test]
    fn jitter_makes_a_retry_later_and_never_earlier() {
        let policy = RetryPolicy::default();
        let retry_schedule = schedule(&policy, OnExhausted::DeadLetter);
        for random in 0..5_000 {
            let wait = wait(retry_schedule, 2, None, random);
            assert!((10_000..11_000).contains(&wait), "{wait}");
        }
    }

    #[test]
    fn a_saved_time_beyond_every_maximum_waits_its_step_from_now() {
        let policy = RetryPolicy { times: 3, schedule_ms: vec![1_000, 7_200_000] };
        let retry_schedule = schedule(&policy, OnExhausted::Block);
        let resumed = |attempts, ahead_ms: i64| {
            let saved = Timestamp::from_millis(NOW.as_millis() + ahead_ms);
            retry_schedule.resume(attempts, saved, NOW).as_millis() - NOW.as_millis()
        };
        assert_eq!(resumed(1, 86_400_000), 1_000, "a day ahead");
        assert_eq!(resumed(1, 3_600_000), 3_600_000, "the endpoint may have requested 1 h");
        assert_eq!(resumed(1, 3_600_500), 3_600_500, "the earlier owner's clock may have been ahead");
        assert_eq!(resumed(1, -5_000), -5_000, "a past time stays");
        assert_eq!(resumed(2, 7_900_000), 7_900_000, "the step, with jitter");
        assert_eq!(resumed(2, 8_000_000), 7_200_000);
        assert_eq!(resumed(9, 86_400_000), 2_000, "also if blocked");
        assert_eq!(resumed(0, 86_400_000), 1_000, "not attempted yet");
    }

    #[test]
    fn retry_after_is_obeyed_up_to_one_hour() {
        let policy = RetryPolicy { times: 5, schedule_ms: vec![1_000] };
        let retry_schedule = schedule(&policy, OnExhausted::DeadLetter);
        assert_eq!(wait(retry_schedule, 1, Some(Duration::from_secs(30)), 0), 30_000);
        assert_eq!(wait(retry_schedule, 1, Some(Duration::from_millis(10)), 0), 1_000);
        assert_eq!(wait(retry_schedule, 1, Some(Duration::from_secs(90_000)), 0), 3_600_000);
    }
}
