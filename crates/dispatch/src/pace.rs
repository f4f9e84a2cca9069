//! How many callbacks at one time an endpoint seems to bear: halved where it shows strain, one more with each round of successes. Pure.

use whimbrel_model::Timestamp;

/// Signs of strain closer together than this are one: they were out at the same time.
const STRAIN_PAUSE_MS: i64 = 1_000;

#[derive(Debug)]
pub struct Pace {
    most: u32,
    now: u32,
    successes: u32,
    strained_at: Option<Timestamp>,
}

impl Pace {
    pub fn new(most: u32) -> Self {
        Self { most: most.max(1), now: most.max(1), successes: 0, strained_at: None }
    }

    /// Another bound; what was learned stays as far as it fits.
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

    /// 429, 502, 503, 504, or no answer in time.
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
    fn strain_halves_it_once_a_second_and_successes_bring_it_back() {
        let at = Timestamp::from_millis;
        let mut pace = Pace::new(16);
        (0..16).for_each(|ms| pace.strained(at(ms)));
        assert_eq!(pace.limit(), 8, "all of one moment are one sign");
        pace.strained(at(1_500));
        pace.strained(at(3_000));
        pace.strained(at(4_500));
        pace.strained(at(6_000));
        assert_eq!(pace.limit(), 1, "and never none");
        (0..1 + 2 + 3).for_each(|_| pace.succeeded());
        assert_eq!(pace.limit(), 4);
        (0..1_000).for_each(|_| pace.succeeded());
        assert_eq!(pace.limit(), 16);
    }

    #[test]
    fn another_bound_keeps_what_was_learned() {
        let mut pace = Pace::new(16);
        pace.strained(Timestamp::from_millis(0));
        pace.set_most(32);
        assert_eq!(pace.limit(), 8);
        pace.set_most(4);
        assert_eq!(pace.limit(), 4);
        let mut full = Pace::new(16);
        full.set_most(32);
        assert_eq!(full.limit(), 32);
    }
}
