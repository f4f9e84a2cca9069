//! The ways between owners and gateways: what is on one keeps its order, and is lost with it. A new way is a new tenure. Where too much waits
//! for one, stored messages stay out of it and a gap is told in their place.

use std::sync::Arc;

use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{Delivery, DeliveryPlace, ToCarrier, ToGateway};
use whimbrel_people::carrier::partition::Input;

use super::world::{Event, World};

/// How long a message is under way at most.
const WAY_MS_MAX: u64 = 60;
/// How long a gateway takes to see that a partition has another owner.
const ROUTE_MS_MAX: u64 = 300;
/// How long an owner takes to hear that the way from a gateway was made anew.
const AFRESH_MS_MAX: u64 = 30;
/// How long a way is gone at most.
const BROKEN_MS_MAX: u64 = 1_500;
const LEASE_MS: (u64, u64) = (500, 3_000);
/// How often a stream has no room for what is stored, where ways are not what they should be.
const CROWDED_ONE_IN: u64 = 25;

/// What a stream that has no room for it says in the place of a stored message: that there is a gap.
fn without_stored(news: ToGateway) -> ToGateway {
    match news {
        ToGateway::Deliver(Delivery { session, place: DeliveryPlace::Stored { .. }, .. }) => {
            ToGateway::Truncated { session, from: 0, to: 0, prev: u64::MAX }
        }
        other => other,
    }
}

impl World {
    /// A stream stands between the owner and the gateway, and the gateway will see it.
    pub(super) fn open_stream(&mut self, gateway: usize, epoch: u64) {
        self.open_after(gateway, epoch, 0);
    }

    /// The same, where the gateway sees it only after so many milliseconds.
    fn open_after(&mut self, gateway: usize, epoch: u64, after: u64) {
        if self.gateways[gateway].id.is_none() || !self.owners.contains_key(&epoch) {
            return;
        }
        self.last_stream += 1;
        let stream = self.last_stream;
        self.streams.insert((epoch, gateway), stream);
        let seen = after + self.rng.between(1, ROUTE_MS_MAX);
        self.later(seen, Event::Route { gateway, epoch, stream });
    }

    pub(super) fn reconnect(&mut self, gateway: usize, epoch: u64) {
        if !self.streams.contains_key(&(epoch, gateway)) {
            self.open_anew(gateway, epoch);
        }
    }

    /// A stream in the place of one that broke. Something may have been lost with that: of the gateway's sessions the owner counts only
    /// those that are announced over the new one. It learns that before anything comes over it, and after it has said something itself.
    fn open_anew(&mut self, gateway: usize, epoch: u64) {
        let Some(id) = self.gateways[gateway].id else { return };
        let afresh = self.rng.between(1, AFRESH_MS_MAX);
        self.later(afresh, Event::Answer { epoch, input: Box::new(Input::GatewayGone(id)) });
        self.open_after(gateway, epoch, afresh);
    }

    /// The way between the present owner and a gateway breaks, with what is on it.
    pub fn break_link(&mut self, gateway: usize) {
        let Some(epoch) = self.owner else { return };
        let Some(stream) = self.streams.remove(&(epoch, gateway)) else { return };
        self.report.breaks += 1;
        self.note(|| format!("the way between owner {epoch} and gateway {gateway} breaks"));
        if self.rng.one_in(2) {
            // It is there again before anybody has seen that it was gone.
            self.open_anew(gateway, epoch);
        } else {
            let seen = self.rng.between(1, BROKEN_MS_MAX);
            self.later(seen, Event::Unroute { gateway, epoch, stream: Some(stream) });
            let again = self.rng.between(1, BROKEN_MS_MAX);
            self.later(again, Event::Reconnect { gateway, epoch });
        }
    }

    /// When the next message on a stream arrives.
    fn arrival(&mut self, stream: u64, is_up: bool) -> u64 {
        let at = self.now + self.rng.between(1, WAY_MS_MAX);
        let last = self.last_on.entry((stream, is_up)).or_default();
        *last = at.max(*last);
        *last
    }

    /// `false` where there is no way.
    pub(super) fn send_down(&mut self, epoch: u64, id: GatewayId, news: Vec<ToGateway>) -> bool {
        let Some(gateway) = self.gateways.iter().position(|gateway| gateway.id == Some(id)) else { return false };
        let Some(stream) = self.streams.get(&(epoch, gateway)).copied() else { return false };
        let is_crowded = self.trouble.link > 0 && self.rng.one_in(CROWDED_ONE_IN);
        let news = if is_crowded { news.into_iter().map(without_stored).collect() } else { news };
        let at = self.arrival(stream, false);
        self.at(at, Event::Down { gateway, id, epoch, stream, news });
        true
    }

    /// `false` where the gateway knows of no way; what is put on one that is broken is lost.
    pub(super) fn send_up(&mut self, gateway: usize, messages: Vec<ToCarrier>) -> bool {
        let Some(id) = self.gateways[gateway].id else { return false };
        let Some((epoch, stream)) = self.gateways[gateway].route else { return false };
        let at = self.arrival(stream, true);
        self.at(at, Event::Up { gateway, id, epoch, stream, messages });
        true
    }

    /// The gateway lives under a new id.
    pub(super) fn join(&mut self, gateway: usize) {
        self.incarnations += 1;
        let id = GatewayId { node: gateway as u16, incarnation: self.incarnations };
        self.note(|| format!("gateway {gateway} is {id}"));
        self.gateways[gateway].id = Some(id);
        self.gateways[gateway].route = None;
        // A node has one place in the picture: what it was before is not there any more, however its lease ended.
        let mut living = self.living();
        living.retain(|earlier| earlier.node != id.node);
        living.push(id);
        self.new_view(living);
        let epochs: Vec<u64> = self.owners.keys().copied().collect();
        for epoch in epochs {
            self.open_stream(gateway, epoch);
        }
        self.introduce_all(gateway);
    }

    fn living(&self) -> Vec<GatewayId> {
        self.views.last().map(|living| living.to_vec()).unwrap_or_default()
    }

    fn new_view(&mut self, living: Vec<GatewayId>) {
        self.views.push(Arc::new(living));
        let version = self.views.len() - 1;
        let epochs: Vec<u64> = self.owners.keys().copied().collect();
        for epoch in epochs {
            self.show(epoch, version);
        }
    }

    pub(super) fn lapse(&mut self, id: GatewayId) {
        self.note(|| format!("the lease of {id} is over"));
        let mut living = self.living();
        living.retain(|living| *living != id);
        self.new_view(living);
    }

    /// A gateway's process is gone, with all connections; its lease lasts for a while.
    pub fn kill_gateway(&mut self, gateway: usize) {
        let Some(id) = self.gateways[gateway].id.take() else { return };
        self.report.deaths += 1;
        self.note(|| format!("gateway {gateway} dies"));
        self.streams.retain(|(_, of), _| *of != gateway);
        let sessions = std::mem::take(&mut self.gateways[gateway].sessions);
        self.gateways[gateway] = Default::default();
        for session in sessions.into_keys() {
            self.connection_is_gone(session);
        }
        let lapse = self.rng.between(LEASE_MS.0, LEASE_MS.1);
        self.later(lapse, Event::Lapse { id });
        let back = lapse + self.rng.below(1_000);
        self.later(back, Event::Rejoin { gateway });
    }

    /// A gateway lives on and its lease is lost: it comes back as another.
    pub fn lose_lease(&mut self, gateway: usize) {
        let Some(id) = self.gateways[gateway].id else { return };
        if !self.living().contains(&id) {
            return;
        }
        self.report.leases += 1;
        self.note(|| format!("gateway {gateway} loses its lease"));
        self.lapse(id);
        self.streams.retain(|(_, of), _| *of != gateway);
        self.soon(1_000, Event::Rejoin { gateway });
    }
}
