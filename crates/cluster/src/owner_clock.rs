//! The owner's clock: the process's clock made to not run backwards by a little.
//!
//! Where the process's clock falls behind by no more than clocks may be apart, this one runs at half speed until they meet, so that
//! nothing stalls and nothing repeats. Where it falls behind by more, the wall clock was set back and has stayed there: this clock is
//! set back with it, and its owner begins again with what it had planned. A step forwards is followed at once; the process's clock
//! does not show those that do not last. "Early" and "late" are meant by this clock.

use whimbrel_model::Timestamp;

/// What two readings of one time may differ by beside the skew of clocks, in milliseconds.
const SLACK_MS: i64 = 20;

/// One reading of the process's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub wall: Timestamp,
    /// The time that expiry goes by: the wall's, standing still while a step of the wall clock is in doubt.
    pub expiry: Timestamp,
    /// Milliseconds of a clock that only runs forwards, from any beginning.
    pub steady_ms: u64,
}

#[derive(Debug, Clone)]
pub struct OwnerClock {
    now: Timestamp,
    /// When it was last read, and the half milliseconds that are still owed from then.
    read_at_ms: u64,
    half_owed: u64,
    /// How far ahead of this node's wall clock another node's may have been.
    skew_ms: i64,
}

impl OwnerClock {
    pub fn new(reading: Reading, skew_ms: i64) -> Self {
        Self { now: reading.wall, read_at_ms: reading.steady_ms, half_owed: 0, skew_ms }
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// How far the wall may fall behind before this clock is set back. A predecessor may have been ahead by the skew, and a step
    /// back within the skew is followed at once.
    fn behind_max_ms(&self) -> i64 {
        self.skew_ms.saturating_mul(2).saturating_add(SLACK_MS)
    }

    /// Answers with the step that the clock made, where it made one: in milliseconds, negative where it was set back.
    pub fn read(&mut self, reading: Reading) -> Option<i64> {
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

    /// A predecessor decided something at that time: this clock goes on from no lower, within the allowed skew of clocks.
    pub fn no_lower_than(&mut self, decided_at: Timestamp, wall: Timestamp) {
        let bound = Timestamp::from_millis(wall.as_millis().saturating_add(self.skew_ms));
        self.now = self.now.max(decided_at.min(bound));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(wall: i64, steady_ms: u64) -> Reading {
        let wall = Timestamp::from_millis(wall);
        Reading { wall, expiry: wall, steady_ms }
    }

    fn read(clock: &mut OwnerClock, wall: i64, steady_ms: u64) -> i64 {
        clock.read(reading(wall, steady_ms));
        clock.now().as_millis()
    }

    #[test]
    fn it_follows_the_wall_and_its_jumps_forwards() {
        let mut clock = OwnerClock::new(reading(1_000, 0), 500);
        assert_eq!(read(&mut clock, 1_010, 10), 1_010);
        assert_eq!(read(&mut clock, 9_999, 11), 9_999);
    }

    #[test]
    fn behind_it_the_wall_catches_up_at_twice_its_speed() {
        let mut clock = OwnerClock::new(reading(1_000, 0), 500);
        assert_eq!(read(&mut clock, 900, 0), 1_000);
        assert_eq!(read(&mut clock, 901, 1), 1_000);
        assert_eq!(read(&mut clock, 902, 2), 1_001, "half milliseconds add up");
        assert_eq!(read(&mut clock, 1_100, 200), 1_100, "they met");
        assert_eq!(read(&mut clock, 1_150, 250), 1_150);
    }

    #[test]
    fn it_goes_on_from_what_a_predecessor_decided_within_the_skew() {
        let mut clock = OwnerClock::new(reading(1_000, 0), 500);
        clock.no_lower_than(Timestamp::from_millis(1_200), Timestamp::from_millis(1_000));
        assert_eq!(clock.now().as_millis(), 1_200);
        clock.no_lower_than(Timestamp::from_millis(900_000), Timestamp::from_millis(1_000));
        assert_eq!(clock.now().as_millis(), 1_500, "a clock that was wrong by hours does not bind its successor");
    }

    #[test]
    fn a_wall_that_was_set_back_by_much_sets_it_back_too() {
        let mut clock = OwnerClock::new(reading(100_000, 0), 500);
        assert_eq!(clock.read(reading(98_000, 10)), Some(-2_000));
        assert_eq!(clock.now().as_millis(), 98_000);
        assert_eq!(clock.read(reading(98_100, 110)), None);
        assert_eq!(clock.read(reading(198_110, 120)), Some(100_000));
    }

    proptest! {
        #[test]
        fn it_never_runs_backwards_by_a_little_and_never_stands_still_for_long(steps in proptest::collection::vec((-5_000i64..5_000, 0u64..100), 1..60)) {
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
