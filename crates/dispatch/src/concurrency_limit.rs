//! An adaptive limit on concurrent callbacks to an endpoint: halved at a sign of overload, raised by one per round of successes. Pure.

use whimbrel_model::Timestamp;

/// Signs of overload within this time count once: their calls were in flight together.
const STRAIN_PAUSE_MS: i64 = 1_000;

#[derive(Debug)]
pub struct ConcurrencyLimit {
    most: u32,
    now: u32,
    successes: u32,
    strained_at: Option<Timestamp>,
}

impl ConcurrencyLimit {
    pub fn new(most: u32) -> Self {
        Self { most: most.max(1), now: most.max(1), successes: 0, strained_at: None }
    }

    /// Sets another maximum; the present limit stays as far as it fits.
    pub fn set_most(&mut self, most: u32) {
        let was_full = self.now == self.most;
        self.most = most.max(1);
        self.now = if was_full { self.most } else { self.now.min(self.most) };
    }

    pub fn limit(&self) -> u32 {
        self.now
    }

    pub fn succeeded(&mut self) {
        if self.now == self.most {
            return;
        }
        self.successes += 1;
        if self.successes >= self.now {
            self.successes = 0;
            self.now += 1;
        }
    }

    /// Records a sign of overload: status 429, 502, 503 or 504, or no answer in time.
    pub fn strained(&mut self, at: Timestamp) {
        self.successes = 0;
        let is_new = self.strained_at.is_none_or(|last| at.as_millis() - last.as_millis() >= STRAIN_PAUSE_MS);
        if is_new {
            self.strained_at = Some(at);
            self.now = (self.now / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overload_halves_the_limit_once_a_second_and_successes_raise_it() {
        let at = Timestamp::from_millis;
        let mut pace = ConcurrencyLimit::new(16);
        (0..16).for_each(|ms| pace.strained(at(ms)));
        assert_eq!(pace.limit(), 8, "simultaneous signs count once");
        pace.strained(at(1_500));
        pace.strained(at(3_000));
        pace.strained(at(4_500));
        pace.strained(at(6_000));
        assert_eq!(pace.limit(), 1, "the limit stays at least 1");
        (0..1 + 2 + 3).for_each(|_| pace.succeeded());
        assert_eq!(pace.limit(), 4);
        (0..1_000).for_each(|_| pace.succeeded());
        assert_eq!(pace.limit(), 16);
    }

    #[test]
    fn another_maximum_keeps_the_present_limit() {
        let mut pace = ConcurrencyLimit::new(16);
        pace.strained(Timestamp::from_millis(0));
        pace.set_most(32);
        assert_eq!(pace.limit(), 8);
        pace.set_most(4);
        assert_eq!(pace.limit(), 4);
        let mut full = ConcurrencyLimit::new(16);
        full.set_most(32);
        assert_eq!(full.limit(), 32);
    }
}
