//! Reports why a shard is stale: live gateways whose state is too old, in the log and in a metric. It decides nothing.

use std::collections::BTreeSet;

use whimbrel_model::people::GatewayId;

use super::gateway_tracker::GatewayTracker;
use super::metrics::stale_gauge;
use super::settings::PresenceSettings;

pub(super) struct StalenessMonitor {
    shard: u32,
    stale_after_ms: u64,
    draw_within_ms: u64,
    /// The stale gateways that the metric currently counts.
    stale_gateways: BTreeSet<GatewayId>,
    since_ms: Option<u64>,
    is_reported: bool,
}

impl StalenessMonitor {
    pub(super) fn new(shard: u32, settings: &PresenceSettings) -> Self {
        Self {
            shard,
            stale_after_ms: settings.stale_after.as_millis() as u64,
            draw_within_ms: settings.snapshot_timeout.as_millis() as u64,
            stale_gateways: BTreeSet::new(),
            since_ms: None,
            is_reported: false,
        }
    }

    pub(super) fn update(&mut self, tracker: &GatewayTracker, now_ms: u64) {
        let stale_gateways: BTreeSet<GatewayId> =
            tracker.stale_gateways(now_ms.saturating_sub(self.stale_after_ms)).collect();
        self.count(&stale_gateways);
        if stale_gateways.is_empty() {
            if std::mem::take(&mut self.is_reported) {
                tracing::info!(
                    shard = self.shard,
                    "presence shard is fresh again: packets from every live gateway arrive"
                );
            }
            self.since_ms = None;
            return;
        }
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        // A first snapshot may still be on its way. A gateway that had one and is stale now did not answer its queries either.
        let was_heard = tracker.without_snapshot().count() < stale_gateways.len();
        let is_long = was_heard || now_ms >= since_ms + self.draw_within_ms;
        if is_long && !std::mem::replace(&mut self.is_reported, true) {
            let gateways: Vec<String> = stale_gateways.iter().map(ToString::to_string).collect();
            let (shard, gateways) = (self.shard, gateways.join(", "));
            tracing::warn!(shard, gateways, "presence shard is stale: no current packets from live gateways");
        }
    }

    fn count(&mut self, stale_gateways: &BTreeSet<GatewayId>) {
        if self.stale_gateways != *stale_gateways {
            stale_gateways.difference(&self.stale_gateways).for_each(|gateway| stale_gauge(*gateway).increment(1.0));
            self.stale_gateways.difference(stale_gateways).for_each(|gateway| stale_gauge(*gateway).decrement(1.0));
            self.stale_gateways.clone_from(stale_gateways);
        }
    }
}

impl Drop for StalenessMonitor {
    /// A writer that has ended is not stale.
    fn drop(&mut self) {
        self.count(&BTreeSet::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::gateway_tracker::TrackerEffect;
    use crate::presence::packet::{GatewayReply, Packet};

    const GATEWAY: GatewayId = GatewayId { node: 1, incarnation: 10 };

    #[test]
    fn a_stale_gateway_is_reported_until_its_next_packet() {
        let settings = PresenceSettings::default();
        let (mut tracker, mut monitor) = (GatewayTracker::new(settings.tracker), StalenessMonitor::new(0, &settings));
        let todo = tracker.living(&[(GATEWAY, "g".into())], 0);
        monitor.update(&tracker, 50);
        assert!(monitor.stale_gateways.contains(&GATEWAY) && !monitor.is_reported, "its snapshot may be on its way");
        let [TrackerEffect::Ask(question)] = &todo[..] else { panic!("{todo:?}") };
        tracker.answered(question.ask, GATEWAY, GatewayReply::Snapshot { as_of: 1, sessions: Vec::new() }, 100);
        monitor.update(&tracker, 3_000);
        assert!(monitor.stale_gateways.is_empty() && !monitor.is_reported);
        monitor.update(&tracker, 3_001);
        assert!(monitor.stale_gateways.contains(&GATEWAY) && monitor.is_reported);
        tracker.packet(Packet { gateway: GATEWAY, address: "g".into(), number: 2, news: Vec::new() }, 4_000);
        monitor.update(&tracker, 4_000);
        assert!(monitor.stale_gateways.is_empty() && !monitor.is_reported);
    }

    #[test]
    fn a_missing_snapshot_is_reported_after_a_while() {
        let settings = PresenceSettings::default();
        let (mut tracker, mut monitor) = (GatewayTracker::new(settings.tracker), StalenessMonitor::new(0, &settings));
        tracker.living(&[(GATEWAY, "g".into())], 0);
        monitor.update(&tracker, 0);
        monitor.update(&tracker, 9_999);
        assert!(!monitor.is_reported);
        monitor.update(&tracker, 10_000);
        assert!(monitor.is_reported);
    }
}
