//! The faults of a run of deliveries, and its settings. The seed determines both.

use whimbrel_dispatch::window::WindowLimits;
use whimbrel_model::subscription::{OnExhausted, Ordering, RetryPolicy};

use super::endpoint::SimEndpoint;
use super::world::RunSettings;
use crate::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DeliveriesProfile {
    /// An endpoint that fails by key, by time and at random, and answers late, twice or never.
    Endpoint,
    /// Owners that crash, and appends that fail or have unknown outcomes.
    Crashes,
    /// Ownership that moves without the old owner noticing.
    Zombies,
    /// A store of progress that loses its last saves, or is unavailable.
    Store,
    /// Seeks while deliveries are in flight. Owners follow them late.
    Seeks,
    /// A topic that grows and is trimmed.
    Topics,
    /// All of the above together.
    Mixed,
}

/// The frequency of each fault: one in this many steps, or never if zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeliveryFaults {
    pub crash: u64,
    pub take_over: u64,
    pub append_fails: u64,
    pub append_answer_lost: u64,
    pub read_fails: u64,
    pub save_answer_lost: u64,
    pub fall_back: u64,
    pub away: u64,
    pub seek: u64,
    pub grow: u64,
    pub trim: u64,
    pub bad_key: u64,
    pub down: u64,
}

impl DeliveriesProfile {
    fn has(self, other: Self) -> bool {
        self == other || self == Self::Mixed
    }

    pub(super) fn faults(self, rng: &mut Rng) -> DeliveryFaults {
        let rate = *rng.pick(&[1, 2, 4]);
        let mut some = |is_on: bool, steps: u64| if is_on && !rng.one_in(4) { steps * rate } else { 0 };
        let crashes = self.has(Self::Crashes);
        DeliveryFaults {
            crash: some(crashes || self.has(Self::Store), 100),
            take_over: some(self.has(Self::Zombies), 80),
            append_fails: some(crashes, 4),
            append_answer_lost: some(crashes || self.has(Self::Zombies), 4),
            read_fails: some(true, 20),
            save_answer_lost: some(self.has(Self::Store), 5),
            fall_back: some(self.has(Self::Store), 100),
            away: some(self.has(Self::Store), 80),
            seek: some(self.has(Self::Seeks), 120),
            grow: some(self.has(Self::Topics), 200),
            trim: some(self.has(Self::Topics), 100),
            bad_key: some(true, 60),
            down: some(self.has(Self::Endpoint), 150),
        }
    }

    pub(super) fn endpoint(self, rng: &mut Rng) -> SimEndpoint {
        let is_bad = self.has(Self::Endpoint);
        let mut some = |is_on: bool, times: u64| if is_on && !rng.one_in(3) { times } else { 0 };
        SimEndpoint {
            fails: some(true, 6),
            late: some(is_bad, 10),
            never: some(is_bad, 15),
            twice: some(true, 8),
            no_worker: some(is_bad, 15),
            slowest_ms: *rng.pick(&[0, 10, 200]),
            ..SimEndpoint::default()
        }
    }

    /// Small limits, so that a short run reaches each of them.
    pub(super) fn settings(rng: &mut Rng) -> RunSettings {
        let ordering = *rng.pick(&[Ordering::Key, Ordering::Key, Ordering::Partition, Ordering::None]);
        RunSettings {
            ordering,
            retry: RetryPolicy {
                times: rng.below(5) as u32,
                schedule_ms: rng.pick(&[vec![100], vec![1_000, 10_000], vec![50, 500, 5_000, 3_000_000]]).clone(),
            },
            on_exhausted: *rng.pick(&[
                OnExhausted::DeadLetter,
                OnExhausted::DeadLetter,
                OnExhausted::Block,
                OnExhausted::Drop,
            ]),
            blocked_sleep_ms: 2_000,
            concurrency: *rng.pick(&[1, 3, 16]),
            limits: WindowLimits {
                body_bytes: *rng.pick(&[500, 2_000, 1_000_000]),
                parked_bytes: *rng.pick(&[600, 2_000, 1_000_000]),
            },
            save_every_ms: *rng.pick(&[20, 200, 1_000]),
            timeout_ms: *rng.pick(&[50, 500]),
            retry_holds: *rng.pick(&[2, 10, 1_000]),
        }
    }
}
