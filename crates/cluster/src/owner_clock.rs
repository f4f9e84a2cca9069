//! The clock of a shard's owner. It follows the process's clock, but does not run backwards for small differences.
//!
//! If the process's clock is behind by no more than the limit, this clock runs at half speed until they meet. So neither stalls nor
//! repeats occur. If the process's clock is further behind, the wall clock was set back and has stayed there. This clock is then set back
//! too, and its owner discards its plans. Steps forwards are followed at once: the process's clock hides steps that do not last. "Early"
//! and "late" refer to this clock.

use whimbrel_model::Timestamp;

/// The tolerated difference between two readings of the same time, in addition to the clock skew, in milliseconds.
const SLACK_MS: i64 = 20;

/// One reading of the process's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    pub wall: Timestamp,
    /// The time for expiry: the wall time, but it stands still while a step of the wall clock is in doubt.
    pub expiry: Timestamp,
    /// A monotonic clock in milliseconds, from any origin.
    pub steady_ms: u64,
}

impl ClockReading {
    /// A reading of clocks that agree.
    pub fn exact(wall: Timestamp) -> Self {
        Self { wall, expiry: wall, steady_ms: u64::try_from(wall.as_millis()).unwrap_or(0) }
    }
}

#[derive(Debug, Clone)]
pub struct OwnerClock {
    now: Timestamp,
    /// The time of the last reading, and the half milliseconds left over from it.
    read_at_ms: u64,
    half_owed: u64,
    /// How far another node's wall clock may be ahead of this node's.
    skew_ms: i64,
}

impl OwnerClock {
    pub fn new(reading: ClockReading, skew_ms: i64) -> Self {
        Self { now: reading.wall, read_at_ms: reading.steady_ms, half_owed: 0, skew_ms }
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// How far the wall clock may be behind before this clock is set back. A predecessor may have been ahead by the skew, and a step back
    /// within the skew is followed at once.
    fn behind_max_ms(&self) -> i64 {
        self.skew_ms.saturating_mul(2).saturating_add(SLACK_MS)
    }

    /// Updates the clock. Returns its step in milliseconds, if any; negative if the clock was set back.
    pub fn read(&mut self, reading: ClockReading) -> Option<i64> {
        let elapsed = reading.steady_ms.saturating_sub(self.read_at_ms);
        self.read_at_ms = reading.steady_ms.max(self.read_at_ms);
        let behind_ms = self.now.as_millis().saturating_sub(reading.wall.as_millis());
        if behind_ms <= 0 {
            (self.now, self.half_owed) = (reading.wall, 0);
            let ahead_ms = behind_ms.saturating_neg().saturating_sub_unsigned(elapsed);
            return (ahead_ms > self.behind_max_ms()).then_some(ahead_ms);
        } else if behind_ms > self.behind_max_ms() {
            (self.now, self.half_owed) = (reading.wall, 0);
            return Some(-behind_ms);
        } else {
            let halves = elapsed + self.half_owed;
            self.half_owed = halves % 2;
            let slow = self.now.as_millis().saturating_add_unsigned(halves / 2);
            self.now = Timestamp::from_millis(slow);
        }
        None
    }

    /// Continues from the time of a predecessor's decision at least, within the clock skew.
    pub fn no_lower_than(&mut self, decided_at: Timestamp, wall: Timestamp) {
        let bound = Timestamp::from_millis(wall.as_millis().saturating_add(self.skew_ms));
        self.now = self.now.max(decided_at.min(bound));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(wall: i64, steady_ms: u64) -> ClockReading {
        let wall = Timestamp::from_millis(wall);
        ClockReading { wall, expiry: wall, steady_ms }
    }

    fn read(clock: &mut OwnerClock, wall: i64, steady_ms: u64) -> i64 {
        clock.read(reading(wall, steady_ms));
        clock.now().as_millis()
    }

    #[test]
    fn it_follows_the_wall_clock_and_its_forward_steps() {
        let mut clock = OwnerClock::new(reading(1_000, 0), 500);
        assert_eq!(read(&mut clock, 1_010, 10), 1_010);
        assert_eq!(read(&mut clock, 9_999, 11), 9_999);
    }

    #[test]
    fn it_runs_at_half_speed_while_the_wall_clock_is_behind() {
        let mut clock = OwnerClock::new(reading(1_000, 0), 500);
        assert_eq!(read(&mut clock, 900, 0), 1_000);
        assert_eq!(read(&mut clock, 901, 1), 1_000);
        assert_eq!(read(&mut clock, 902, 2), 1_001, "half milliseconds add up");
        assert_eq!(read(&mut clock, 1_100, 200), 1_100, "the clocks met");
        assert_eq!(read(&mut clock, 1_150, 250), 1_150);
    }

    #[test]
    fn it_starts_at_a_predecessors_decision_within_the_skew() {
        let mut clock = OwnerClock::new(reading(1_000, 0), 500);
        clock.no_lower_than(Timestamp::from_millis(1_200), Timestamp::from_millis(1_000));
        assert_eq!(clock.now().as_millis(), 1_200);
        clock.no_lower_than(Timestamp::from_millis(900_000), Timestamp::from_millis(1_000));
        assert_eq!(clock.now().as_millis(), 1_500, "the decision of a clock that was wrong by hours is ignored");
    }

    #[test]
    fn a_large_step_back_of_the_wall_clock_sets_it_back_too() {
        let mut clock = OwnerClock::new(reading(100_000, 0), 500);
        assert_eq!(clock.read(reading(98_000, 10)), Some(-2_000));
        assert_eq!(clock.now().as_millis(), 98_000);
        assert_eq!(clock.read(reading(98_100, 110)), None);
        assert_eq!(clock.read(reading(198_110, 120)), Some(100_000));
    }

    proptest! {
        #[test]
        fn it_makes_no_small_step_back_and_never_stalls(steps in proptest::collection::vec((-5_000i64..5_000, 0u64..100), 1..60)) {
            let mut clock = OwnerClock::new(reading(10_000, 0), 500);
            let (mut wall, mut steady, mut before) = (10_000, 0, clock.now());
            for (jump, elapsed) in steps {
                (wall, steady) = (wall + jump + elapsed as i64, steady + elapsed);
                let step = clock.read(reading(wall, steady));
                let now = clock.now();
                if let Some(by) = step {
                    prop_assert!(by.abs() > 1_000, "{by}");
                    prop_assert_eq!(now.as_millis(), wall);
                } else {
                    prop_assert!(now >= before);
                    let is_half_speed = now.as_millis() - before.as_millis() >= (elapsed / 2) as i64;
                    prop_assert!(now.as_millis() == wall || is_half_speed, "with the wall, or at half speed");
                }
                prop_assert!(now.as_millis() >= wall);
                prop_assert!(now.as_millis() - wall <= 1_020 + 50);
                before = now;
            }
        }
    }
}
