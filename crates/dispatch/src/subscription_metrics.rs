//! The metrics of the dispatch.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::runner::{DeliveryCount, RunnerGauges};

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
    delivered: Counter,
    failed: Counter,
    buried: Counter,
    dropped: Counter,
    in_flight: Gauge,
    parked: Gauge,
    prefetched: Gauge,
    delay: Histogram,
    breaker: Gauge,
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

    pub fn count(&self, count: DeliveryCount) {
        match count {
            DeliveryCount::Delivered { delay_ms, .. } => {
                self.delivered.increment(1);
                self.delay.record(delay_ms as f64 / 1e3);
            }
            DeliveryCount::Failed { .. } | DeliveryCount::Gone => self.failed.increment(1),
            DeliveryCount::Buried => self.buried.increment(1),
            DeliveryCount::Dropped => self.dropped.increment(1),
        }
    }

    pub fn set(&self, gauges: RunnerGauges) {
        self.in_flight.set(gauges.in_flight as f64);
        self.parked.set(gauges.parked as f64);
        self.prefetched.set(gauges.prefetched_bytes as f64);
        self.breaker.set(if gauges.is_breaker_closed { 0.0 } else { 1.0 });
    }

    /// Resets the gauges: the subscription no longer runs on this node.
    pub fn clear(&self) {
        for gauge in [&self.in_flight, &self.parked, &self.prefetched, &self.breaker] {
            gauge.set(0.0);
        }
    }
}
