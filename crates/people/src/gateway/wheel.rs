//! The timing wheel for checks of connections: one per thread.
//!
//! Pure: the time is passed in. A time beyond one turn goes to the turn's last slot and comes up early; the session then reschedules its
//! check. An entry is the number of a session, so a closed connection leaves only that number behind.

use std::time::Duration;

pub(super) const TICK: Duration = Duration::from_millis(125);
/// Ticks of one turn: 32 s.
const SLOTS: usize = 256;

/// Ticks since the gateway started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Tick(pub u32);

impl Tick {
    pub const NEVER: Self = Self(u32::MAX);

    /// The tick after that wait, rounded up: never too early.
    pub(super) fn after(self, wait: Duration) -> Self {
        let ticks = wait.as_millis().div_ceil(TICK.as_millis());
        Self(self.0.saturating_add(u32::try_from(ticks).unwrap_or(u32::MAX)))
    }
}

#[derive(Debug)]
pub(super) struct CheckWheel {
    slots: Vec<Vec<u64>>,
    /// All earlier ticks have been taken.
    next: Tick,
}

impl CheckWheel {
    pub(super) fn new(now: Tick) -> Self {
        Self { slots: vec![Vec::new(); SLOTS], next: now }
    }

    pub(super) fn put(&mut self, number: u64, at: Tick) {
        let last = self.next.0.saturating_add(SLOTS as u32 - 1);
        let at = at.0.clamp(self.next.0, last);
        self.slots[at as usize % SLOTS].push(number);
    }

    /// Takes all numbers that are due, this tick included.
    pub(super) fn take_due(&mut self, now: Tick) -> Vec<u64> {
        let mut due = Vec::new();
        let turns = now.0.saturating_add(1).saturating_sub(self.next.0).min(SLOTS as u32);
        for tick in 0..turns {
            due.append(&mut self.slots[(self.next.0.wrapping_add(tick)) as usize % SLOTS]);
        }
        self.next = self.next.max(Tick(now.0.saturating_add(1)));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_up_once_at_its_time() {
        let mut wheel = CheckWheel::new(Tick(0));
        wheel.put(1, Tick(3));
        wheel.put(2, Tick(5));
        assert!(wheel.take_due(Tick(2)).is_empty());
        assert_eq!(wheel.take_due(Tick(4)), [1]);
        assert_eq!(wheel.take_due(Tick(9)), [2]);
        assert!(wheel.take_due(Tick(1000)).is_empty());
    }

    #[test]
    fn a_past_time_comes_up_next_and_a_distant_one_within_a_turn() {
        let mut wheel = CheckWheel::new(Tick(100));
        wheel.put(1, Tick(3));
        wheel.put(2, Tick::NEVER);
        assert_eq!(wheel.take_due(Tick(100)), [1]);
        assert_eq!(wheel.take_due(Tick(100 + SLOTS as u32)), [2]);
    }

    #[test]
    fn a_long_pause_loses_nothing() {
        let mut wheel = CheckWheel::new(Tick(0));
        (0..1000).for_each(|number| wheel.put(number, Tick(number as u32)));
        let mut due = wheel.take_due(Tick(1_000_000));
        due.sort_unstable();
        assert_eq!(due, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_wait_is_rounded_up() {
        assert_eq!(Tick(1).after(Duration::from_millis(126)), Tick(3));
        assert_eq!(Tick(1).after(Duration::MAX), Tick::NEVER);
    }
}
