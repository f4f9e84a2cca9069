//! The number of a subscription's retries that wait as holds, and when to count and to check them. Pure; times are of a steady clock.
//!
//! The count is approximate: it drifts between two counts when holds are withdrawn.

use std::time::Duration;

/// The interval between two counts of the retries that wait as holds, and the pause after a failed check.
pub const COUNT_EVERY: Duration = Duration::from_secs(15);

pub struct RetryHoldCount {
    count: u64,
    /// At this count, no new messages are delivered.
    most: u64,
    counted_at: Option<Duration>,
    /// When to check the due times of the holds: once after the takeover, and after each backward step of the clock.
    check_at: Option<Duration>,
}

impl RetryHoldCount {
    pub fn new(most: u64, now: Duration) -> Self {
        Self { count: 0, most, counted_at: None, check_at: Some(now) }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn is_full(&self) -> bool {
        self.count >= self.most
    }

    pub fn held(&mut self) {
        self.count += 1;
    }

    /// Records retries that fired: they were read from the retry topic.
    pub fn fired(&mut self, count: u64) {
        self.count = self.count.saturating_sub(count);
    }

    pub fn counted(&mut self, count: u64) {
        self.count = count;
    }

    /// Whether to count now.
    pub fn is_count_due(&self, now: Duration) -> bool {
        self.counted_at.is_none_or(|at| now.saturating_sub(at) >= COUNT_EVERY)
    }

    pub fn count_began(&mut self, now: Duration) {
        self.counted_at = Some(now);
    }

    /// Whether to check the due times now.
    pub fn is_check_due(&self, now: Duration) -> bool {
        self.check_at.is_some_and(|at| at <= now)
    }

    pub fn check_began(&mut self) {
        self.check_at = None;
    }

    /// Plans a check of the due times.
    pub fn check_at(&mut self, at: Duration) {
        self.check_at = Some(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_messages_wait_at_the_limit_until_retries_fire() {
        let mut holds = RetryHoldCount::new(2, Duration::ZERO);
        holds.held();
        holds.held();
        assert!(holds.is_full());
        holds.fired(1);
        assert!(!holds.is_full());
        holds.fired(5);
        assert_eq!(holds.count(), 0, "the count may have been too low");
    }

    #[test]
    fn holds_are_counted_at_once_and_then_every_15_s_and_checked_once() {
        let at = Duration::from_secs;
        let mut holds = RetryHoldCount::new(2, at(5));
        assert!(holds.is_count_due(at(5)) && holds.is_check_due(at(5)));
        holds.count_began(at(5));
        holds.check_began();
        assert!(!holds.is_count_due(at(19)) && holds.is_count_due(at(20)));
        assert!(!holds.is_check_due(at(100)));
        holds.check_at(at(101));
        assert!(!holds.is_check_due(at(100)) && holds.is_check_due(at(101)));
    }
}
