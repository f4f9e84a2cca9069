//! A subscription's `rate`: evenly spaced deliveries, with a small burst. Pure.

use whimbrel_model::Timestamp;
use whimbrel_model::subscription::Rate;

/// The burst: the deliveries of 100 ms, at least one.
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

    /// Whether a delivery may start now. It must then be counted with [`Throttle::take`].
    pub fn lets_through(&mut self, now: Timestamp) -> bool {
        self.refill(now);
        self.saved >= 1.0
    }

    pub fn take(&mut self) {
        self.saved -= 1.0;
    }

    /// When the next delivery may start.
    pub fn next_time(&self) -> Option<Timestamp> {
        let at = self.at.filter(|_| self.saved < 1.0)?;
        let wait = ((1.0 - self.saved) / self.per_ms).ceil() as i64;
        Some(Timestamp::from_millis(at.as_millis().saturating_add(wait.max(1))))
    }

    fn refill(&mut self, now: Timestamp) {
        let passed = self.at.map_or(0, |at| now.as_millis() - at.as_millis());
        // While the wall clock is behind the last reading, the budget does not change.
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
    fn deliveries_pass_at_the_rate() {
        assert!((10_000..=10_101).contains(&passed(1_000, 1_000, 10_000)), "1 000 per second");
        assert!((60..=62).contains(&passed(60, 60_000, 60_000)), "60 per minute");
        assert!((2..=3).contains(&passed(2, 3_600_000, 3_600_000)), "2 per hour");
    }

    #[test]
    fn next_time_is_when_the_next_delivery_may_start() {
        let mut throttle = Throttle::new(Rate { count: 1, per_ms: 1_000 });
        assert!(throttle.lets_through(Timestamp::from_millis(0)));
        throttle.take();
        assert!(!throttle.lets_through(Timestamp::from_millis(1)));
        let next = throttle.next_time().unwrap();
        assert!(throttle.lets_through(next), "{next:?}");
    }
}
