//! What the dispatch of subscriptions takes from the configuration.

use std::time::Duration;

use super::breaker::BreakerSettings;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchSettings {
    /// Bytes of bodies in memory, of each line of a subscription.
    pub prefetch_bytes: usize,
    /// Bytes of what is parked, of each partition of a subscription.
    pub parked_bytes: usize,
    /// Retries of one subscription that wait as holds at most; beyond, it delivers nothing new.
    pub retry_holds: u64,
    /// How often progress is saved.
    pub save_interval: Duration,
    pub breaker: BreakerSettings,
    /// Threads that dispatch; a subscription is on one of them. Zero: as many as there are cores.
    pub threads: usize,
    /// How long calls under way are waited for when a subscription is handed over.
    pub handover_wait: Duration,
}

impl Default for DispatchSettings {
    fn default() -> Self {
        Self {
            prefetch_bytes: 4 << 20,
            parked_bytes: 8 << 20,
            retry_holds: 10_000,
            save_interval: Duration::from_secs(1),
            breaker: BreakerSettings::default(),
            threads: 0,
            handover_wait: Duration::from_secs(3),
        }
    }
}
