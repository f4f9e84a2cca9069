//! The links between owners and gateways. A link delivers messages in order; a break loses those in transit. A new link is a new tenure. If
//! a link is crowded, a gap replaces stored messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{Delivery, DeliveryPosition, ToCarrier, ToGateway};
use whimbrel_people::carrier::partition::CarrierInput;

use super::world::{PeopleWorld, ScheduledEvent};

/// The maximum time of a message in transit.
const WAY_MS_MAX: u64 = 60;
/// The maximum time until a gateway sees a new owner of the partition.
const ROUTE_MS_MAX: u64 = 300;
/// The maximum time until an owner learns that a gateway's link was replaced.
const AFRESH_MS_MAX: u64 = 30;
/// The maximum time for which a link is broken.
const BROKEN_MS_MAX: u64 = 1_500;
const LEASE_MS: (u64, u64) = (500, 3_000);
/// The frequency at which a stream has no space for stored messages, if links are faulty.
const CROWDED_ONE_IN: u64 = 25;

/// The streams between owners and gateways.
#[derive(Default)]
pub(super) struct SimLinks {
    /// The open streams, by owner and gateway.
    pub streams: BTreeMap<(u64, usize), u64>,
    last: u64,
    /// The arrival time of the last message in transit on each stream and direction: messages do not overtake.
    arrivals: BTreeMap<(u64, bool), u64>,
}

/// The gateways of the cluster, as owners see them.
pub(super) struct LiveViews {
    /// All views of the live gateways so far.
    pub views: Vec<Arc<Vec<GatewayId>>>,
    pub incarnations: u64,
}

/// Replaces a stored message by a gap, like a stream without space.
fn without_stored(news: ToGateway) -> ToGateway {
    match news {
        ToGateway::Deliver(Delivery { session, place: DeliveryPosition::Stored { .. }, .. }) => {
            ToGateway::Truncated { session, from: 0, to: 0, prev: u64::MAX }
        }
        other => other,
    }
}

impl PeopleWorld {
    /// Opens a stream between the owner and the gateway. The gateway sees it later.
    pub(super) fn open_stream(&mut self, gateway: usize, epoch: u64) {
        self.open_after(gateway, epoch, 0);
    }

    /// The same, but the gateway sees it only after this many milliseconds.
    fn open_after(&mut self, gateway: usize, epoch: u64, after: u64) {
        if self.gateways[gateway].id.is_none() || !self.owners.all.contains_key(&epoch) {
            return;
        }
        self.links.last += 1;
        let stream = self.links.last;
        self.links.streams.insert((epoch, gateway), stream);
        let seen = after + self.rng.between(1, ROUTE_MS_MAX);
        self.later(seen, ScheduledEvent::Route { gateway, epoch, stream });
    }

    pub(super) fn reconnect(&mut self, gateway: usize, epoch: u64) {
        if !self.links.streams.contains_key(&(epoch, gateway)) {
            self.replace_stream(gateway, epoch);
        }
    }

    /// Replaces a broken stream. Messages may have been lost, so the owner then counts only sessions that are announced over the new
    /// stream. It learns of the replacement before anything arrives over the new stream, but possibly after it has sent something itself.
    fn replace_stream(&mut self, gateway: usize, epoch: u64) {
        let Some(id) = self.gateways[gateway].id else { return };
        let afresh = self.rng.between(1, AFRESH_MS_MAX);
        self.later(afresh, ScheduledEvent::Answer { epoch, input: Box::new(CarrierInput::GatewayGone(id)) });
        self.open_after(gateway, epoch, afresh);
    }

    /// Breaks the link between the current owner and a gateway. Messages in transit are lost.
    pub fn break_link(&mut self, gateway: usize) {
        let Some(epoch) = self.owners.current else { return };
        let Some(stream) = self.links.streams.remove(&(epoch, gateway)) else { return };
        self.counts.faults.breaks += 1;
        self.note(|| format!("the way between owner {epoch} and gateway {gateway} breaks"));
        if self.rng.one_in(2) {
            // The link is replaced before any side notices the break.
            self.replace_stream(gateway, epoch);
        } else {
            let seen = self.rng.between(1, BROKEN_MS_MAX);
            self.later(seen, ScheduledEvent::Unroute { gateway, epoch, stream: Some(stream) });
            let again = self.rng.between(1, BROKEN_MS_MAX);
            self.later(again, ScheduledEvent::Reconnect { gateway, epoch });
        }
    }

    /// The arrival time of the next message on a stream.
    fn arrival(&mut self, stream: u64, is_up: bool) -> u64 {
        let at = self.now + self.rng.between(1, WAY_MS_MAX);
        let last = self.links.arrivals.entry((stream, is_up)).or_default();
        *last = at.max(*last);
        *last
    }

    /// Returns `false` if there is no link.
    pub(super) fn send_down(&mut self, epoch: u64, id: GatewayId, news: Vec<ToGateway>) -> bool {
        let Some(gateway) = self.gateways.iter().position(|gateway| gateway.id == Some(id)) else { return false };
        let Some(stream) = self.links.streams.get(&(epoch, gateway)).copied() else { return false };
        let is_crowded = self.faults.link > 0 && self.rng.one_in(CROWDED_ONE_IN);
        let news = if is_crowded { news.into_iter().map(without_stored).collect() } else { news };
        let at = self.arrival(stream, false);
        self.at(at, ScheduledEvent::Down { gateway, id, epoch, stream, news });
        true
    }

    /// Returns `false` if the gateway has no route. Messages on a broken link are lost.
    pub(super) fn send_up(&mut self, gateway: usize, messages: Vec<ToCarrier>) -> bool {
        let Some(id) = self.gateways[gateway].id else { return false };
        let Some((epoch, stream)) = self.gateways[gateway].route else { return false };
        let at = self.arrival(stream, true);
        self.at(at, ScheduledEvent::Up { gateway, id, epoch, stream, messages });
        true
    }

    /// Joins the cluster under a new id.
    pub(super) fn join(&mut self, gateway: usize) {
        self.cluster.incarnations += 1;
        let id = GatewayId { node: gateway as u16, incarnation: self.cluster.incarnations };
        self.note(|| format!("gateway {gateway} is {id}"));
        self.gateways[gateway].id = Some(id);
        self.gateways[gateway].route = None;
        // A node is in the picture once: its earlier incarnation is removed, no matter how its lease ended.
        let mut living = self.living();
        living.retain(|earlier| earlier.node != id.node);
        living.push(id);
        self.new_view(living);
        let epochs: Vec<u64> = self.owners.all.keys().copied().collect();
        for epoch in epochs {
            self.open_stream(gateway, epoch);
        }
        self.introduce_all(gateway);
    }

    fn living(&self) -> Vec<GatewayId> {
        self.cluster.views.last().map(|living| living.to_vec()).unwrap_or_default()
    }

    fn new_view(&mut self, living: Vec<GatewayId>) {
        self.cluster.views.push(Arc::new(living));
        let version = self.cluster.views.len() - 1;
        let epochs: Vec<u64> = self.owners.all.keys().copied().collect();
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

    /// Kills the process of a gateway with all connections. Its lease lasts for a while.
    pub fn kill_gateway(&mut self, gateway: usize) {
        let Some(id) = self.gateways[gateway].id.take() else { return };
        self.counts.faults.deaths += 1;
        self.note(|| format!("gateway {gateway} dies"));
        self.links.streams.retain(|(_, of), _| *of != gateway);
        let sessions = std::mem::take(&mut self.gateways[gateway].sessions);
        self.gateways[gateway] = Default::default();
        for session in sessions.into_keys() {
            self.drop_connection(session);
        }
        let lapse = self.rng.between(LEASE_MS.0, LEASE_MS.1);
        self.later(lapse, ScheduledEvent::Lapse { id });
        let back = lapse + self.rng.below(1_000);
        self.later(back, ScheduledEvent::Rejoin { gateway });
    }

    /// Takes the lease of a running gateway, which rejoins under a new id.
    pub fn lose_lease(&mut self, gateway: usize) {
        let Some(id) = self.gateways[gateway].id else { return };
        if !self.living().contains(&id) {
            return;
        }
        self.counts.faults.leases += 1;
        self.note(|| format!("gateway {gateway} loses its lease"));
        self.lapse(id);
        self.links.streams.retain(|(_, of), _| *of != gateway);
        self.soon(1_000, ScheduledEvent::Rejoin { gateway });
    }
}
