//! The gateways of a partition's sessions, and the messages of the current step to each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{CloseCode, GatewayId};
use whimbrel_model::ports::ToGateway;
use whimbrel_model::push::expiry;

use super::fold::millis;
use super::{CarrierEffect, LiveSession};

#[derive(Default)]
pub(super) struct KnownGateways {
    known: HashMap<GatewayId, KnownGateway>,
    news: HashMap<GatewayId, Vec<ToGateway>, RandomState>,
}

#[derive(Clone, Copy)]
struct KnownGateway {
    heard_at: Timestamp,
    /// A list of live gateways contained it. If a later list does not, it is gone.
    was_seen: bool,
}

impl KnownGateways {
    pub fn tell(&mut self, gateway: GatewayId, news: ToGateway) {
        self.tell_all(gateway, [news]);
    }

    pub fn tell_all(&mut self, gateway: GatewayId, news: impl IntoIterator<Item = ToGateway>) {
        self.news.entry(gateway).or_default().extend(news);
    }

    pub fn kick(&mut self, live: &LiveSession, code: CloseCode, reason: impl Into<Arc<str>>) {
        self.tell(live.gateway, ToGateway::Kick { session: live.session, code, reason: reason.into() });
    }

    pub fn take_news(&mut self) -> impl Iterator<Item = CarrierEffect> {
        self.news.drain().map(|(gateway, news)| CarrierEffect::Tell { gateway, news })
    }

    /// Notes a message of a gateway. Returns its earlier incarnations, which have ended whatever the list contains.
    pub fn heard(&mut self, gateway: GatewayId, now: Timestamp) -> Vec<GatewayId> {
        self.known.entry(gateway).or_insert(KnownGateway { heard_at: now, was_seen: false });
        let is_earlier = |id: &&GatewayId| id.node == gateway.node && id.incarnation < gateway.incarnation;
        self.known.keys().filter(is_earlier).copied().collect()
    }

    /// Notes the list of live gateways, and returns the dead ones.
    ///
    /// A gateway may send before a list contains it. It counts as dead only after `announce_wait` without appearing in a list.
    pub fn living(&mut self, living: &[GatewayId], announce_wait: Duration, now: Timestamp) -> Vec<GatewayId> {
        let wait = millis(announce_wait);
        let is_dead = |(id, known): &(&GatewayId, &KnownGateway)| {
            !living.contains(id) && (known.was_seen || expiry(known.heard_at, wait) <= now)
        };
        let dead = self.known.iter().filter(is_dead).map(|(id, _)| *id).collect();
        for id in living {
            self.known.entry(*id).or_insert(KnownGateway { heard_at: now, was_seen: true }).was_seen = true;
        }
        dead
    }

    pub fn forget(&mut self, dead: &[GatewayId]) {
        self.known.retain(|id, _| !dead.contains(id));
    }

    /// The clock went back: waits restart from the new time.
    pub fn restart_waits(&mut self, now: Timestamp) {
        self.known.values_mut().for_each(|known| known.heard_at = known.heard_at.min(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(5);

    fn id(node: u16, incarnation: u64) -> GatewayId {
        GatewayId { node, incarnation }
    }

    #[test]
    fn a_gateway_is_dead_when_it_leaves_the_list_or_never_appears_in_it() {
        let at = Timestamp::from_millis;
        let mut gateways = KnownGateways::default();
        assert!(gateways.heard(id(1, 1), at(0)).is_empty());
        assert!(gateways.living(&[id(2, 1)], WAIT, at(4_999)).is_empty());
        assert_eq!(gateways.living(&[id(2, 1)], WAIT, at(5_000)), [id(1, 1)]);
        gateways.forget(&[id(1, 1)]);
        assert_eq!(gateways.living(&[], WAIT, at(5_000)), [id(2, 1)]);
    }

    #[test]
    fn a_message_ends_earlier_incarnations_of_its_gateway() {
        let at = Timestamp::from_millis;
        let mut gateways = KnownGateways::default();
        gateways.living(&[id(1, 1), id(2, 1)], WAIT, at(0));
        assert_eq!(gateways.heard(id(1, 2), at(0)), [id(1, 1)]);
    }
}
