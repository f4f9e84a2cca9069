//! The owner's clock: the wall clock made to never run backwards.
//!
//! Where the wall clock has fallen behind, this one runs at half speed until they meet, so that nothing stalls and nothing
//! repeats. A jump forwards is followed at once. "Early" and "late" are meant by this clock.

use whimbrel_model::Timestamp;

/// One reading of the machine's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub wall: Timestamp,
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

    pub fn read(&mut self, reading: Reading) -> Timestamp {
        let elapsed = reading.steady_ms.saturating_sub(self.read_at_ms);
        self.read_at_ms = reading.steady_ms.max(self.read_at_ms);
        if reading.wall >= self.now {
            (self.now, self.half_owed) = (reading.wall, 0);
        } else {
            let halves = elapsed + self.half_owed;
            self.half_owed = halves % 2;
            let slow = self.now.as_millis().saturating_add_unsigned(halves / 2);
            self.now = Timestamp::from_millis(slow);
        }
        self.now
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
        Reading { wall: Timestamp::from_millis(wall), steady_ms }
    }

    #[test]
    fn it_follows_the_wall_and_its_jumps_forwards() {
        let mut clock = OwnerClock::new(reading(1_000, 0), 500);
        assert_eq!(clock.read(reading(1_010, 10)).as_millis(), 1_010);
        assert_eq!(clock.read(reading(9_999, 11)).as_millis(), 9_999);
    }

    #[test]
    fn behind_it_the_wall_catches_up_at_twice_its_speed() {
        let mut clock = OwnerClock::new(reading(1_000, 0), 500);
        assert_eq!(clock.read(reading(900, 0)).as_millis(), 1_000);
        assert_eq!(clock.read(reading(901, 1)).as_millis(), 1_000);
        assert_eq!(clock.read(reading(902, 2)).as_millis(), 1_001, "half milliseconds add up");
        assert_eq!(clock.read(reading(1_100, 200)).as_millis(), 1_100, "they met");
        assert_eq!(clock.read(reading(1_150, 250)).as_millis(), 1_150);
    }

    #[test]
    fn it_goes_on_from_what_a_predecessor_decided_within_the_skew() {
        let mut clock = OwnerClock::new(reading(1_000, 0), 500);
        clock.no_lower_than(Timestamp::from_millis(1_200), Timestamp::from_millis(1_000));
        assert_eq!(clock.now().as_millis(), 1_200);
        clock.no_lower_than(Timestamp::from_millis(900_000), Timestamp::from_millis(1_000));
        assert_eq!(clock.now().as_millis(), 1_500, "a clock that was wrong by hours does not bind its successor");
    }

    proptest! {
        #[test]
        fn it_never_runs_backwards_and_never_stands_still_for_long(steps in proptest::collection::vec((-5_000i64..5_000, 0u64..100), 1..60)) {
            let mut clock = OwnerClock::new(reading(10_000, 0), 500);
            let (mut wall, mut steady, mut before) = (10_000, 0, clock.now());
            for (jump, elapsed) in steps {
                (wall, steady) = (wall + jump + elapsed as i64, steady + elapsed);
                let now = clock.read(reading(wall, steady));
                prop_assert!(now >= before);
                let is_half_speed = now.as_millis() - before.as_millis() >= (elapsed / 2) as i64;
                prop_assert!(now.as_millis() == wall || is_half_speed, "with the wall, or at half speed");
                prop_assert!(now.as_millis() >= wall);
                before = now;
            }
        }
    }
}
