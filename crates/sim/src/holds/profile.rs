//! The faults of a run of holds, and its settings. The seed determines both.

use std::time::Duration;

use whimbrel_holds::HoldsSettings;

use crate::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum HoldsProfile {
    /// Nodes that crash, and commits with unknown outcomes.
    Crashes,
    /// Ownership that moves without the old owner noticing, and records that are durable but not visible yet.
    Zombies,
    /// A store that falls back, fails, or is damaged.
    Store,
    /// Wall clocks that jump.
    Clock,
    /// All of the above together.
    Mixed,
}

/// The frequency of each fault: one in this many steps, or never if zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct HoldsFaults {
    pub crash: u64,
    pub stop: u64,
    pub unknown: u64,
    pub not_now: u64,
    pub take_over: u64,
    pub stall: u64,
    pub fall_back: u64,
    pub away: u64,
    pub damage: u64,
    pub lost_answer: u64,
    pub clock_jump: u64,
    pub topic: u64,
    pub empty_read: u64,
}

impl HoldsProfile {
    pub(super) fn faults(self, rng: &mut Rng) -> HoldsFaults {
        let is_mixed = self == Self::Mixed;
        let rate = *rng.pick(&[1, 2, 4]);
        let mut some = |is_on: bool, steps: u64| if is_on && !rng.one_in(3) { steps * rate } else { 0 };
        let (crashes, zombies) = (self == Self::Crashes || is_mixed, self == Self::Zombies || is_mixed);
        let (store, clock) = (self == Self::Store || is_mixed, self == Self::Clock || is_mixed);
        HoldsFaults {
            crash: some(crashes, 60),
            stop: some(crashes || zombies, 150),
            unknown: some(crashes || zombies, 6),
            not_now: some(crashes, 10),
            take_over: some(zombies || crashes, 80),
            stall: some(zombies, 60),
            fall_back: some(store, 80),
            away: some(store, 60),
            damage: some(store, 200),
            lost_answer: some(store, 5),
            clock_jump: some(clock, 40),
            topic: some(true, 100),
            empty_read: some(true, 20),
        }
    }

    /// Small limits, so that a short run reaches each of them.
    pub(super) fn settings(rng: &mut Rng) -> HoldsSettings {
        let ms = |rng: &mut Rng, of: &[u64]| Duration::from_millis(*rng.pick(of));
        HoldsSettings {
            window: ms(rng, &[200, 1_000, 5_000]),
            window_bytes: *rng.pick(&[2_400, 4_000, 100_000]),
            checkpoint_interval: ms(rng, &[20, 100, 400]),
            checkpoint_changes: *rng.pick(&[1, 3, 10]),
            checkpoint_bytes: *rng.pick(&[600, 100_000]),
            unsaved_bytes: *rng.pick(&[600, 2_000, 100_000]),
            commit_holds: *rng.pick(&[1, 2, 3, 4, 100]),
            commit_bytes: *rng.pick(&[300, 1_000, 100_000]),
            commands_waiting: *rng.pick(&[4, 100, 100, 100]),
            answer_within: ms(rng, &[300, 5_000]),
            keep_log: ms(rng, &[10, 100, 1_000]),
            trim_interval: ms(rng, &[60, 300, 1_000]),
            remember: Duration::from_secs(86_400),
            clock_skew: Duration::from_millis(500),
        }
    }
}
