//! The time of a partition: when its owner started, when it was stepped last, and up to when messages may expire.

use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::push::expiry;

use super::fold::millis;

/// Smaller backward steps of the wall clock are ignored: they delay nothing for long.
const CLOCK_BACK_MS: i64 = 1_000;

pub(super) struct PartitionClock {
    began: Timestamp,
    /// The time of the last step.
    last: Timestamp,
    /// Nothing with a later expiry expires: since then the wall clock is in doubt after a step.
    expiry_max: Option<Timestamp>,
}

impl PartitionClock {
    pub fn new(now: Timestamp) -> Self {
        Self { began: now, last: now, expiry_max: None }
    }

    /// The time of the last step.
    pub fn now(&self) -> Timestamp {
        self.last
    }

    /// The owner starts now.
    pub fn start(&mut self, now: Timestamp) {
        self.began = now;
    }

    pub fn limit_expiry(&mut self, max: Timestamp) {
        self.expiry_max = Some(max);
    }

    /// The time by which messages expire.
    pub fn expiry_now(&self, now: Timestamp) -> Timestamp {
        self.expiry_max.map_or(now, |max| now.min(max))
    }

    /// Whether every gateway had `announce_wait` to announce its sessions to this owner.
    pub fn has_waited(&self, announce_wait: Duration, now: Timestamp) -> bool {
        now >= expiry(self.began, millis(announce_wait))
    }

    /// Notes the time of a step. `true` if the wall clock went back far: waits must restart from the new time.
    pub fn goes_back(&mut self, now: Timestamp) -> bool {
        let last = std::mem::replace(&mut self.last, now);
        let is_far = last.as_millis().saturating_sub(now.as_millis()) >= CLOCK_BACK_MS;
        if is_far {
            self.began = self.began.min(now);
        }
        is_far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_far_step_back_the_wait_for_announcements_restarts() {
        let at = Timestamp::from_millis;
        let mut clock = PartitionClock::new(at(10_000));
        assert!(!clock.goes_back(at(9_500)), "a small step is ignored");
        assert!(!clock.has_waited(Duration::from_secs(1), at(9_500)));
        assert!(clock.goes_back(at(2_000)));
        assert!(clock.has_waited(Duration::from_secs(1), at(3_000)));
    }
}
