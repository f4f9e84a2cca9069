//! The circuit breaker of a subscription. Many failures in a row open it, and no calls are made for a while. Then one trial delivery
//! decides. While the breaker is open, no attempt is spent. Pure.

use std::time::Duration;

use whimbrel_model::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// The number of failures in a row that opens the breaker.
    pub failures: u32,
    /// How long the breaker stays open at first. The pause doubles each time a trial fails, up to `pause_max`.
    pub pause: Duration,
    pub pause_max: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures: 20, pause: Duration::from_secs(5), pause_max: Duration::from_secs(60) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    Open { until: Timestamp },
    HalfOpen,
}

#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    state: BreakerState,
    failures: u32,
    pause: Duration,
}

impl Breaker {
    pub fn new(settings: BreakerSettings) -> Self {
        Self { settings, state: BreakerState::Closed, failures: 0, pause: settings.pause }
    }

    pub fn state(&self) -> BreakerState {
        self.state
    }

    pub fn word(&self) -> &'static str {
        match self.state {
            BreakerState::Closed => "closed",
            BreakerState::Open { .. } => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }

    /// Whether a delivery may start now.
    pub fn lets_through(&self, now: Timestamp) -> bool {
        match self.state {
            BreakerState::Closed => true,
            BreakerState::Open { until } => until <= now,
            BreakerState::HalfOpen => false,
        }
    }

    /// When the next delivery may start, if the breaker is open.
    pub fn next_time(&self) -> Option<Timestamp> {
        match self.state {
            BreakerState::Open { until } => Some(until),
            _ => None,
        }
    }

    pub fn started(&mut self) {
        if let BreakerState::Open { .. } = self.state {
            self.state = BreakerState::HalfOpen;
        }
    }

    /// Records that the endpoint works. Returns true if the breaker was not closed.
    pub fn succeeded(&mut self) -> bool {
        self.failures = 0;
        self.pause = self.settings.pause;
        std::mem::replace(&mut self.state, BreakerState::Closed) != BreakerState::Closed
    }

    /// Records that the endpoint does not work. Returns true if the breaker opened.
    pub fn failed(&mut self, now: Timestamp) -> bool {
        self.failures = self.failures.saturating_add(1);
        match self.state {
            BreakerState::HalfOpen => {
                self.pause = (self.pause * 2).min(self.settings.pause_max);
                self.open(now);
                false
            }
            BreakerState::Closed if self.failures >= self.settings.failures => {
                self.open(now);
                true
            }
            // A delivery that was in flight when the breaker opened is no new evidence.
            _ => false,
        }
    }

    /// Records that the trial delivery was not made: another one may start.
    pub fn not_tried(&mut self, now: Timestamp) {
        if self.state == BreakerState::HalfOpen {
            self.state = BreakerState::Open { until: now };
        }
    }

    /// Moves the times after the clock was set back by `by`.
    pub fn set_back(&mut self, by: Duration) {
        if let BreakerState::Open { until } = &mut self.state {
            *until = until.saturating_sub(by);
        }
    }

    fn open(&mut self, now: Timestamp) {
        let until = now.as_millis().saturating_add(self.pause.as_millis() as i64);
        self.state = BreakerState::Open { until: Timestamp::from_millis(until) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn failures_in_a_row_open_the_breaker_and_a_success_resets_the_count() {
        let mut breaker = Breaker::new(BreakerSettings { failures: 3, ..BreakerSettings::default() });
        breaker.failed(at(0));
        breaker.failed(at(0));
        breaker.succeeded();
        breaker.failed(at(0));
        assert!(!breaker.failed(at(0)));
        assert!(breaker.lets_through(at(0)));
        assert!(breaker.failed(at(0)));
        assert!(!breaker.lets_through(at(4_999)));
        assert!(breaker.lets_through(at(5_000)));
    }

    #[test]
    fn one_trial_delivery_decides() {
        let settings = BreakerSettings { failures: 1, ..BreakerSettings::default() };
        let mut breaker = Breaker::new(settings);
        breaker.failed(at(0));
        breaker.started();
        assert!(!breaker.lets_through(at(5_000)), "a trial is in flight");
        breaker.failed(at(5_000));
        assert_eq!(breaker.next_time(), Some(at(15_000)), "the pause doubles");
        for _ in 0..10 {
            breaker.started();
            breaker.failed(at(20_000));
        }
        assert_eq!(breaker.next_time(), Some(at(80_000)), "up to `pause_max`");
        breaker.started();
        assert!(breaker.succeeded());
        assert!(breaker.lets_through(at(20_000)));
        breaker.failed(at(20_000));
        assert_eq!(breaker.next_time(), Some(at(25_000)), "the pause starts at its first value again");
    }

    #[test]
    fn a_trial_that_was_not_made_is_repeated() {
        let mut breaker = Breaker::new(BreakerSettings { failures: 1, ..BreakerSettings::default() });
        breaker.failed(at(0));
        breaker.started();
        breaker.not_tried(at(6_000));
        assert!(breaker.lets_through(at(6_000)));
    }
}
