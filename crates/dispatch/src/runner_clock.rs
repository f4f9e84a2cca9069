//! The time of one subscription: its owner's clock, and when its periodic work is due. Pure: readings of the clocks are passed in.

use std::time::Duration;

use whimbrel_cluster::owner_clock::{ClockReading, OwnerClock};
use whimbrel_model::Timestamp;

/// How far the process's clock may be behind before times are planned again. Up to that, the owner's clock runs at half speed.
const CLOCK_SLACK_MS: i64 = 500;
/// How often topics are checked and metrics are updated.
const HOUSEKEEPING: Duration = Duration::from_millis(500);
/// The shortest wait for a save that is due. It starts when the save in progress has ended.
const SAVE_WAIT_MIN: Duration = Duration::from_millis(1);

pub struct RunnerClock {
    clock: OwnerClock,
    /// The steady time of the last reading. The due times below are of the steady clock too.
    steady: Duration,
    housekeeping_due: Duration,
    save_due: Duration,
    is_saving: bool,
}

impl RunnerClock {
    pub fn new(reading: ClockReading, save_interval: Duration) -> Self {
        let steady = Duration::from_millis(reading.steady_ms);
        let clock = OwnerClock::new(reading, CLOCK_SLACK_MS);
        Self { clock, steady, housekeeping_due: steady, save_due: steady + save_interval, is_saving: false }
    }

    /// Updates the clock. Returns by how much it was set back, if it was. After a forward step, waiting work is due at once, as after the
    /// machine was suspended.
    pub fn read(&mut self, reading: ClockReading) -> Option<Duration> {
        self.steady = self.steady.max(Duration::from_millis(reading.steady_ms));
        let step_ms = self.clock.read(reading).filter(|step_ms| *step_ms < 0)?;
        Some(Duration::from_millis(step_ms.unsigned_abs()))
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn steady(&self) -> Duration {
        self.steady
    }

    /// Whether the housekeeping is due. Then the next one is planned.
    pub fn takes_housekeeping(&mut self) -> bool {
        let is_due = self.steady >= self.housekeeping_due;
        if is_due {
            self.housekeeping_due = self.steady + HOUSEKEEPING;
        }
        is_due
    }

    /// Whether a save is due, and none is in progress. Then the next one is planned.
    pub fn takes_save(&mut self, interval: Duration) -> bool {
        let is_due = !self.is_saving && self.steady >= self.save_due;
        if is_due {
            self.save_due = self.steady + interval;
        }
        is_due
    }

    pub fn set_saving(&mut self, is_saving: bool) {
        self.is_saving = is_saving;
    }

    /// The first of these times and of the periodic work. A time that has passed had its chance.
    pub fn next_time(&self, times: impl Iterator<Item = Timestamp>) -> Timestamp {
        let now = self.now();
        let housekeeping = self.housekeeping_due.saturating_sub(self.steady);
        let save = self.save_due.saturating_sub(self.steady).max(SAVE_WAIT_MIN);
        let periodic = later(now, housekeeping.min(save));
        times.filter(|time| *time > now).fold(periodic, Timestamp::min)
    }
}

pub fn later(now: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_millis(now.as_millis().saturating_add(by.as_millis() as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(wall_ms: i64, steady_ms: u64) -> ClockReading {
        let wall = Timestamp::from_millis(wall_ms);
        ClockReading { wall, expiry: wall, steady_ms }
    }

    #[test]
    fn the_next_time_is_the_first_of_the_housekeeping_the_save_and_the_times_ahead() {
        let at = Timestamp::from_millis;
        let mut clock = RunnerClock::new(reading(10_000, 50), Duration::from_millis(200));
        assert!(clock.takes_housekeeping() && !clock.takes_housekeeping());
        assert_eq!(clock.next_time(std::iter::empty()), at(10_200), "the save");
        assert_eq!(clock.next_time([at(9_000), at(10_000), at(10_100)].into_iter()), at(10_100));
        clock.read(reading(10_300, 350));
        assert_eq!(clock.next_time(std::iter::empty()), at(10_301), "a save that waits for another one");
        clock.set_saving(true);
        assert!(!clock.takes_save(Duration::from_secs(60)));
        clock.set_saving(false);
        assert!(clock.takes_save(Duration::from_secs(60)) && !clock.takes_save(Duration::from_secs(60)));
        assert_eq!(clock.next_time(std::iter::empty()), at(10_500), "the housekeeping");
    }

    #[test]
    fn only_a_large_step_back_is_reported() {
        let mut clock = RunnerClock::new(reading(100_000, 0), Duration::from_secs(1));
        assert_eq!(clock.read(reading(99_900, 10)), None);
        assert_eq!(clock.read(reading(500_000, 20)), None);
        assert_eq!(clock.read(reading(400_000, 30)), Some(Duration::from_secs(100)));
        assert_eq!(clock.now(), Timestamp::from_millis(400_000));
    }
}
