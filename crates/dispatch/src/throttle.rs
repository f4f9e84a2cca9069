//! A subscription's `rate`: so many deliveries in so long, evenly, with a little saved up. Pure.

use whimbrel_model::Timestamp;
use whimbrel_model::subscription::Rate;

/// What may be saved up: the deliveries of a tenth of a second, at least one.
const BURST_MS: f64 = 100.0;

#[derive(Debug)]
pub struct Throttle {
    per_ms: f64,
    most: f64,
    saved: f64,
    at: Option<Timestamp>,
}

impl Throttle {
    pub fn new(rate: Rate) -> Self {
        let per_ms = f64::from(rate.count) / rate.per_ms.max(1) as f64;
        let most = (per_ms * BURST_MS).max(1.0);
        Self { per_ms, most, saved: most, at: None }
    }

    /// Whether one may go now; it must then be [`Throttle::take`]n.
    pub fn lets_through(&mut self, now: Timestamp) -> bool {
        self.refill(now);
        self.saved >= 1.0
    }

    pub fn take(&mut self) {
        self.saved -= 1.0;
    }

    /// When the next may go.
    pub fn next_time(&self) -> Option<Timestamp> {
        let at = self.at.filter(|_| self.saved < 1.0)?;
        let wait = ((1.0 - self.saved) / self.per_ms).ceil() as i64;
        Some(Timestamp::from_millis(at.as_millis().saturating_add(wait.max(1))))
    }

    fn refill(&mut self, now: Timestamp) {
        let passed = self.at.map_or(0, |at| now.as_millis() - at.as_millis());
        // A wall clock that was set back gives nothing, and takes nothing.
        self.saved = (self.saved + passed.max(0) as f64 * self.per_ms).min(self.most);
        self.at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(count: u32, per_ms: u64, for_ms: i64) -> u64 {
        let mut throttle = Throttle::new(Rate { count, per_ms });
        let mut passed = 0;
        for ms in 0..for_ms {
            while throttle.lets_through(Timestamp::from_millis(ms)) {
                throttle.take();
                passed += 1;
            }
        }
        passed
    }

    #[test]
    fn so_many_pass_and_no_more() {
        assert!((10_000..=10_101).contains(&passed(1_000, 1_000, 10_000)), "a thousand a second");
        assert!((60..=62).contains(&passed(60, 60_000, 60_000)), "sixty a minute");
        assert!((2..=3).contains(&passed(2, 3_600_000, 3_600_000)), "two an hour");
    }

    #[test]
    fn it_says_when_the_next_may_go() {
        let mut throttle = Throttle::new(Rate { count: 1, per_ms: 1_000 });
        assert!(throttle.lets_through(Timestamp::from_millis(0)));
        throttle.take();
        assert!(!throttle.lets_through(Timestamp::from_millis(1)));
        let next = throttle.next_time().unwrap();
        assert!(throttle.lets_through(next), "{next:?}");
    }
}
