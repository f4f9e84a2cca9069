//! The pace of the dials to one broker: the back-off after failed dials, and the time limit of a handshake. Pure: the time and the random
//! number are passed in.

use std::time::{Duration, Instant};

use super::cluster::ANSWER_MAX;

/// The back-off after the first failed dial. It doubles with each round of dials that fails.
const BACK_OFF_MIN: Duration = Duration::from_millis(20);
/// The longest back-off. It delays the recovery after an outage.
const BACK_OFF_MAX: Duration = Duration::from_millis(1000);
/// At most this part of a back-off is random (one half), so that several processes do not dial at the same moment.
const JITTER_SHARE: u32 = 2;
/// The timeout of one step of a handshake (TLS, versions, each message of SASL): the same as for any other request.
pub(super) const STEP_TIMEOUT_MIN: Duration = ANSWER_MAX;
/// The longest time for one step. A step that timed out gets twice the time in the next handshake, up to this.
pub(super) const STEP_TIMEOUT_MAX: Duration = Duration::from_secs(12);

#[derive(Debug)]
pub(super) struct DialPace {
    /// Rounds of dials that failed since the last success. Concurrent dials count as one round.
    failures: u32,
    failed: Option<DialFailure>,
    step_timeout: Duration,
}

#[derive(Debug)]
struct DialFailure {
    at: Instant,
    back_off_until: Instant,
    why: String,
}

impl Default for DialPace {
    fn default() -> Self {
        Self { failures: 0, failed: None, step_timeout: STEP_TIMEOUT_MIN }
    }
}

impl DialPace {
    /// The error of the last dial during its back-off. Callers must not dial during that time.
    pub fn backs_off(&self, now: Instant) -> Option<&str> {
        self.failed.as_ref().filter(|failed| now < failed.back_off_until).map(|failed| failed.why.as_str())
    }

    /// The timeout of one step of the next handshake.
    pub fn step_timeout(&self) -> Duration {
        self.step_timeout
    }

    /// A handshake took `took` and succeeded. The next ones get twice that time for each step.
    pub fn succeeded(&mut self, took: Duration) {
        (self.failures, self.failed) = (0, None);
        self.step_timeout = (took * 2).clamp(STEP_TIMEOUT_MIN, STEP_TIMEOUT_MAX);
    }

    /// A dial that began at `began` failed. `step_timed_out` is the timeout that a step of its handshake has exceeded.
    pub fn failed(&mut self, began: Instant, now: Instant, why: &str, step_timed_out: Option<Duration>, random: u64) {
        if let Some(timeout) = step_timed_out {
            self.step_timeout = self.step_timeout.max(timeout * 2).min(STEP_TIMEOUT_MAX);
        }
        if self.failed.as_ref().is_none_or(|failed| failed.at <= began) {
            self.failures = self.failures.saturating_add(1);
        }
        let doublings = self.failures.saturating_sub(1).min(BACK_OFF_MAX.as_millis().ilog2());
        let longest = (BACK_OFF_MIN * 2_u32.pow(doublings)).min(BACK_OFF_MAX);
        let jitter = u64::try_from((longest / JITTER_SHARE).as_micros()).unwrap_or(u64::MAX).max(1);
        let back_off_until = now + longest - Duration::from_micros(random % jitter);
        self.failed = Some(DialFailure { at: now, back_off_until, why: why.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The back-off after each of `rounds` consecutive failed dials.
    fn back_offs(rounds: usize, random: u64) -> Vec<Duration> {
        let (mut pace, mut now) = (DialPace::default(), Instant::now());
        let mut all = Vec::new();
        for _ in 0..rounds {
            pace.failed(now, now, "refused", None, random);
            let until = pace.failed.as_ref().unwrap().back_off_until;
            all.push(until - now);
            now = until;
        }
        all
    }

    #[test]
    fn the_back_off_doubles_up_to_its_limit() {
        let millis: Vec<u128> = back_offs(8, 0).iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(back_offs(200, 0).last(), Some(&BACK_OFF_MAX));
    }

    #[test]
    fn jitter_makes_a_back_off_shorter_by_half_at_most() {
        for random in [1, 9_999, 123_456_789, u64::MAX] {
            let pairs = back_offs(8, random).into_iter().zip(back_offs(8, 0));
            assert!(pairs.into_iter().all(|(with, without)| with <= without && with * 2 >= without), "{random}");
        }
    }

    #[test]
    fn nothing_is_dialled_during_the_back_off_and_its_error_is_the_last_one() {
        let (mut pace, now) = (DialPace::default(), Instant::now());
        assert_eq!(pace.backs_off(now), None);
        pace.failed(now, now, "refused", None, 0);
        assert_eq!(pace.backs_off(now), Some("refused"));
        assert_eq!(pace.backs_off(now + BACK_OFF_MIN), None);
        pace.succeeded(Duration::ZERO);
        assert_eq!(pace.backs_off(now), None);
    }

    #[test]
    fn dials_that_fail_together_count_once() {
        let (mut pace, now) = (DialPace::default(), Instant::now());
        for _ in 0..4 {
            pace.failed(now, now + Duration::from_millis(1), "refused", None, 0);
        }
        assert_eq!(pace.failures, 1);
        pace.failed(now + Duration::from_millis(30), now + Duration::from_millis(31), "refused", None, 0);
        assert_eq!(pace.failures, 2);
    }

    #[test]
    fn a_handshake_that_timed_out_gets_more_time_up_to_a_limit() {
        let (mut pace, now) = (DialPace::default(), Instant::now());
        // Four handshakes that time out together double the time once.
        for _ in 0..4 {
            pace.failed(now, now, "late", Some(STEP_TIMEOUT_MIN), 0);
        }
        assert_eq!(pace.step_timeout(), STEP_TIMEOUT_MIN * 2);
        for _ in 0..9 {
            pace.failed(now, now, "late", Some(pace.step_timeout()), 0);
        }
        assert_eq!(pace.step_timeout(), STEP_TIMEOUT_MAX);
        pace.succeeded(Duration::from_secs(4));
        assert_eq!(pace.step_timeout(), Duration::from_secs(8), "the broker is slow");
        pace.succeeded(Duration::from_millis(5));
        assert_eq!(pace.step_timeout(), STEP_TIMEOUT_MIN);
    }

    #[test]
    fn a_refused_dial_does_not_change_the_time_of_a_handshake() {
        let (mut pace, now) = (DialPace::default(), Instant::now());
        pace.failed(now, now, "refused", None, 0);
        assert_eq!(pace.step_timeout(), STEP_TIMEOUT_MIN);
    }
}
