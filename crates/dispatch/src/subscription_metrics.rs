//! The metrics of the dispatch.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

pub const DELIVERED: &str = "whimbrel_deliveries_total";
pub const FAILED: &str = "whimbrel_delivery_failures_total";
pub const BURIED: &str = "whimbrel_dead_letters_total";
pub const DROPPED: &str = "whimbrel_deliveries_dropped_total";
pub const IN_FLIGHT: &str = "whimbrel_deliveries_in_flight";
pub const PARKED: &str = "whimbrel_deliveries_parked";
pub const PREFETCHED: &str = "whimbrel_deliveries_prefetched_bytes";
pub const DELAY: &str = "whimbrel_delivery_delay_seconds";
pub const BREAKER: &str = "whimbrel_breaker_open";

pub const NAMES: &[(&str, &str)] = &[
    (DELIVERED, "Deliveries that succeeded, by subscription"),
    (FAILED, "Attempts to deliver that failed, by subscription"),
    (BURIED, "Messages that became dead letters, by subscription"),
    (DROPPED, "Messages that were dropped after their last attempt, without a dead letter, by subscription"),
    (IN_FLIGHT, "Deliveries in flight, by subscription"),
    (PARKED, "Messages that wait for a retry, or behind one, in the window, by subscription"),
    (PREFETCHED, "Bytes of messages in memory, by subscription"),
    (DELAY, "Seconds from a message's publish, or its due time, until it was delivered"),
    (BREAKER, "1 while the subscription's circuit breaker is not closed"),
];

pub(super) struct SubscriptionMetrics {
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

impl SubscriptionMetrics {
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

    /// Resets the gauges: the subscription no longer runs on this node.
    pub fn clear(&self) {
        for gauge in [&self.in_flight, &self.parked, &self.prefetched, &self.breaker] {
            gauge.set(0.0);
        }
    }
}
