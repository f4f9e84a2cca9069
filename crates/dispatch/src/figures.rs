//! The figures of the dispatch.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// Deliveries that succeeded.
pub const DELIVERED: &str = "whimbrel_deliveries_total";
/// Attempts that failed.
pub const FAILED: &str = "whimbrel_delivery_failures_total";
/// Messages that became dead letters.
pub const BURIED: &str = "whimbrel_dead_letters_total";
/// Messages that were given up without a dead letter, as their subscription says.
pub const DROPPED: &str = "whimbrel_deliveries_dropped_total";
/// Deliveries under way.
pub const IN_FLIGHT: &str = "whimbrel_deliveries_in_flight";
/// Messages that are parked.
pub const PARKED: &str = "whimbrel_deliveries_parked";
/// Bytes of bodies in memory.
pub const PREFETCHED: &str = "whimbrel_deliveries_prefetched_bytes";
/// From a message's publish, or its due time, until it was delivered, in seconds.
pub const DELAY: &str = "whimbrel_delivery_delay_seconds";
/// Whether a subscription's breaker is open.
pub const BREAKER: &str = "whimbrel_breaker_open";

/// Every name above with what it means.
pub const NAMES: &[(&str, &str)] = &[
    (DELIVERED, "Deliveries that succeeded, by subscription"),
    (FAILED, "Attempts to deliver that failed, by subscription"),
    (BURIED, "Messages that became dead letters, by subscription"),
    (DROPPED, "Messages that were given up without a dead letter, by subscription"),
    (IN_FLIGHT, "Deliveries under way, by subscription"),
    (PARKED, "Messages that wait for a retry in place, by subscription"),
    (PREFETCHED, "Bytes of messages in memory, by subscription"),
    (DELAY, "Seconds from a message's publish, or its due time, until it was delivered"),
    (BREAKER, "1 while the subscription's circuit breaker is not closed"),
];

/// The figures of one subscription.
pub(super) struct SubscriptionFigures {
    pub delivered: Counter,
    pub failed: Counter,
    pub buried: Counter,
    pub dropped: Counter,
    pub in_flight: Gauge,
    pub parked: Gauge,
    pub prefetched: Gauge,
    pub delay: Histogram,
    pub breaker: Gauge,
}

impl SubscriptionFigures {
    pub fn of(name: &str) -> Self {
        let name = name.to_owned();
        Self {
            delivered: counter!(DELIVERED, "subscription" => name.clone()),
            failed: counter!(FAILED, "subscription" => name.clone()),
            buried: counter!(BURIED, "subscription" => name.clone()),
            dropped: counter!(DROPPED, "subscription" => name.clone()),
            in_flight: gauge!(IN_FLIGHT, "subscription" => name.clone()),
            parked: gauge!(PARKED, "subscription" => name.clone()),
            prefetched: gauge!(PREFETCHED, "subscription" => name.clone()),
            delay: histogram!(DELAY),
            breaker: gauge!(BREAKER, "subscription" => name),
        }
    }

    /// The subscription is no longer run here.
    pub fn clear(&self) {
        for gauge in [&self.in_flight, &self.parked, &self.prefetched, &self.breaker] {
            gauge.set(0.0);
        }
    }
}
