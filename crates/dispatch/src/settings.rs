//! The settings of the dispatch of subscriptions.

use std::time::Duration;

use super::breaker::BreakerSettings;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchSettings {
    /// The most bytes of bodies in memory, for each line of a subscription.
    pub prefetch_bytes: usize,
    /// The most bytes of parked state, for each partition of a subscription.
    pub parked_bytes: usize,
    /// The most retries of one subscription that wait as holds. Beyond that, it delivers no new messages.
    pub retry_holds: u64,
    /// The most messages lost to retention that become dead letters at once.
    pub lost_at_once: usize,
    pub save_interval: Duration,
    pub breaker: BreakerSettings,
    /// The number of dispatch threads; a subscription is on one of them. Zero: one for each core.
    pub threads: usize,
    /// How long to wait for calls in progress when a subscription is handed over.
    pub handover_wait: Duration,
}

impl Default for DispatchSettings {
    fn default() -> Self {
        Self {
            prefetch_bytes: 4 << 20,
            parked_bytes: 8 << 20,
            retry_holds: 10_000,
            lost_at_once: 500,
            save_interval: Duration::from_secs(1),
            breaker: BreakerSettings::default(),
            threads: 0,
            handover_wait: Duration::from_secs(3),
        }
    }
}
