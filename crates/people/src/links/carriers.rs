//! The port `Carriers`: delivers messages of gateways to the owner of the partition, on this node or over a stream to another.
//!
//! A partition has a route while an owner accepts messages for it: a local carrier reports that directly, a remote one over its stream.
//! Each new route is a new owner link, and so is a route that was interrupted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{
    Carriers, LocalCarriers, LocalGateway, NoCarrier, Node, OwnerLink, PeopleError, PeopleQuery, PeopleReply,
    PortFuture, ToCarrier,
};

use super::outbox::Outbox;
use super::service::AskCarrier;
use super::stream::{CarrierTarget, keep_stream};
use super::wire::{ServedPartitions, to_told};
use whimbrel_cluster::protocol::LinkUp;
use whimbrel_cluster::router::{OwnerRouter, ShardCall};
use whimbrel_cluster::{CARRIER_ROLE, ClusterView, ClusterWatch, PUSH_FAMILY, PeerClients};

pub struct CarrierLinkParts {
    /// The partitions of `_push`.
    pub partitions: u32,
    pub sight: ClusterWatch,
    /// This node's carrier, if it has one.
    pub desk: Option<Arc<dyn LocalCarriers>>,
    pub peers: Arc<PeerClients>,
    /// How long a query waits for an owner.
    pub owner_wait: Duration,
}

/// Routes to the owners of all partitions. Until [`CarrierLinks::run`] no partition has a route.
pub struct CarrierLinks {
    parts: CarrierLinkParts,
    /// By partition.
    routes: ArcSwap<Vec<Option<OwnerRoute>>>,
    owner_links: watch::Sender<Arc<Vec<Option<OwnerLink>>>>,
    state: Mutex<CarrierStreams>,
}

/// The route to the owner of a partition.
#[derive(Clone)]
enum OwnerRoute {
    Here { epoch: u64 },
    There { epoch: u64, stream: u64, gateway: GatewayId, outbox: Outbox<LinkUp> },
}

impl OwnerRoute {
    /// The identity of a route: the owner's epoch, and the stream of a remote owner.
    fn identity(&self) -> (u64, Option<u64>) {
        match self {
            Self::Here { epoch } => (*epoch, None),
            Self::There { epoch, stream, .. } => (*epoch, Some(*stream)),
        }
    }
}

#[derive(Default)]
struct CarrierStreams {
    /// By node: one for every remote carrier, if this node has a gateway.
    streams: BTreeMap<u16, StreamEntry>,
    last_stream: u64,
    last_tenure: u64,
}

struct StreamEntry {
    target: CarrierTarget,
    ends: CancellationToken,
    open: Option<OpenStream>,
}

struct OpenStream {
    stream: u64,
    outbox: Outbox<LinkUp>,
    served: ServedPartitions,
}

impl CarrierLinks {
    pub fn new(parts: CarrierLinkParts) -> Arc<Self> {
        let partitions = parts.partitions as usize;
        let owner_links = watch::Sender::new(Arc::new(vec![None; partitions]));
        let routes = ArcSwap::from_pointee(vec![None; partitions]);
        Arc::new(Self { parts, routes, owner_links, state: Mutex::default() })
    }

    /// Follows the cluster view until `until` is cancelled. If this node has a gateway, keeps a stream to every remote carrier.
    pub async fn run(self: Arc<Self>, gateway: Option<Arc<dyn LocalGateway>>, until: CancellationToken) {
        let (mut views, mut identities) = (self.parts.sight.clone(), self.parts.sight.clone());
        let mut serving = self.parts.desk.as_ref().map(|desk| desk.serving());
        loop {
            self.sync_streams(gateway.as_ref());
            tokio::select! {
                () = until.cancelled() => break,
                _ = views.view_changed() => {}
                _ = identities.me_changed() => {}
                () = changed(&mut serving) => {}
            }
        }
        let mut state = self.state();
        std::mem::take(&mut state.streams).into_values().for_each(|entry| entry.ends.cancel());
        self.update_routes(&mut state);
    }

    /// Opens missing streams, ends those that are no longer needed, and updates the routes.
    fn sync_streams(self: &Arc<Self>, gateway: Option<&Arc<dyn LocalGateway>>) {
        let mut state = self.state();
        let mut wanted = match (gateway, self.parts.sight.identity()) {
            (Some(_), Some(identity)) => targets(&self.parts.sight.view(), identity),
            _ => BTreeMap::new(),
        };
        state.streams.retain(|node, entry| {
            let is_wanted = wanted.get(node) == Some(&entry.target);
            if is_wanted {
                wanted.remove(node);
            } else {
                entry.ends.cancel();
            }
            is_wanted
        });
        for (node, target) in wanted {
            let Some(desk) = gateway.cloned() else { break };
            let ends = CancellationToken::new();
            tokio::spawn(keep_stream(self.clone(), self.parts.peers.clone(), desk, target.clone(), ends.clone()));
            state.streams.insert(node, StreamEntry { target, ends, open: None });
        }
        self.update_routes(&mut state);
    }

    /// The stream to that carrier is open. Returns its number, or `None` if the stream is no longer needed.
    pub(super) fn stream_opened(&self, target: &CarrierTarget, outbox: &Outbox<LinkUp>) -> Option<u64> {
        let mut state = self.state();
        state.last_stream += 1;
        let stream = state.last_stream;
        let entry = state.streams.get_mut(&target.node).filter(|entry| entry.target == *target)?;
        entry.open = Some(OpenStream { stream, outbox: outbox.clone(), served: ServedPartitions::new() });
        Some(stream)
    }

    /// The carrier reported over its stream which partitions it serves.
    pub(super) fn stream_serves(&self, target: &CarrierTarget, stream: u64, served: ServedPartitions) {
        let mut state = self.state();
        let entry = state.streams.get_mut(&target.node).and_then(|entry| entry.open.as_mut());
        if let Some(open) = entry.filter(|open| open.stream == stream) {
            open.served = served;
            self.update_routes(&mut state);
        }
    }

    /// The stream to that carrier has ended.
    pub(super) fn stream_ended(&self, target: &CarrierTarget) {
        let mut state = self.state();
        if let Some(entry) = state.streams.get_mut(&target.node).filter(|entry| entry.target == *target) {
            entry.open = None;
            self.update_routes(&mut state);
        }
    }

    /// Updates the route of every partition. The owner link stays if the route is unchanged.
    fn update_routes(&self, state: &mut CarrierStreams) {
        let (view, me) = (self.parts.sight.view(), self.parts.sight.me());
        let here: Option<Arc<Vec<Option<u64>>>> = self.parts.desk.as_ref().map(|desk| desk.serving().borrow().clone());
        let here = here.unwrap_or_default();
        let (before, owner_links) = (self.routes.load(), self.owner_links.borrow().clone());
        let route = |partition: u32| route_of(partition, &view, me, &here, &state.streams);
        let after: Vec<Option<OwnerRoute>> = (0..self.parts.partitions).map(route).collect();
        let mut last_tenure = state.last_tenure;
        let owner_link =
            |(route, (earlier, owner_link)): (&Option<OwnerRoute>, (&Option<OwnerRoute>, &Option<OwnerLink>))| {
                let identity = route.as_ref()?.identity();
                if earlier.as_ref().map(OwnerRoute::identity) == Some(identity) {
                    return *owner_link;
                }
                last_tenure += 1;
                Some(OwnerLink { number: last_tenure, epoch: identity.0 })
            };
        let found: Vec<Option<OwnerLink>> =
            after.iter().zip(before.iter().zip(owner_links.iter())).map(owner_link).collect();
        state.last_tenure = last_tenure;
        // The routes first: when a subscriber sees an owner link, its route must exist.
        self.routes.store(Arc::new(after));
        if found != *owner_links {
            self.owner_links.send_replace(Arc::new(found));
        }
    }

    fn state(&self) -> MutexGuard<'_, CarrierStreams> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShardCall for AskCarrier {
    type Answer = PeopleReply;
    type Error = PeopleError;
    const FAMILY: &'static str = PUSH_FAMILY;

    fn answer(reply: Self::Reply) -> Self::Reply {
        reply
    }

    fn changes_nothing((_, query): &Self::Request) -> bool {
        match query {
            PeopleQuery::Inbox { .. } => true,
        }
    }

    fn outcome_unknown(reason: String) -> PeopleError {
        PeopleError::Unavailable(reason)
    }

    fn unavailable(reason: String) -> PeopleError {
        PeopleError::Unavailable(reason)
    }
}

/// The remote carriers.
fn targets(view: &ClusterView, gateway: GatewayId) -> BTreeMap<u16, CarrierTarget> {
    let others = view.with_role(CARRIER_ROLE).filter(|node| node.number != gateway.node);
    let target = |node: &Node| {
        let (incarnation, address) = (node.member.incarnation, node.member.address.clone());
        (node.number, CarrierTarget { node: node.number, incarnation, address, gateway })
    };
    others.map(target).collect()
}

fn route_of(
    partition: u32,
    view: &ClusterView,
    me: Option<u16>,
    here: &[Option<u64>],
    streams: &BTreeMap<u16, StreamEntry>,
) -> Option<OwnerRoute> {
    let owner = view.owner(PUSH_FAMILY, partition);
    let served_here = here.get(partition as usize).copied().flatten();
    // The local carrier is ahead of the cluster view. Only a later owner elsewhere takes precedence.
    let is_taken_over = |epoch: u64| owner.is_some_and(|owner| Some(owner.node) != me && owner.epoch > epoch);
    if let Some(epoch) = served_here.filter(|epoch| !is_taken_over(*epoch)) {
        return Some(OwnerRoute::Here { epoch });
    }
    let entry = streams.get(&owner?.node)?;
    let OpenStream { stream, outbox, served } = entry.open.as_ref()?;
    let epoch = served.get(partition as usize).copied().flatten()?;
    Some(OwnerRoute::There { epoch, stream: *stream, gateway: entry.target.gateway, outbox: outbox.clone() })
}

/// Returns when the partitions that the local carrier serves have changed. Without a local carrier it never returns.
async fn changed(serving: &mut Option<watch::Receiver<Arc<Vec<Option<u64>>>>>) {
    if let Some(serving) = serving
        && serving.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl Carriers for CarrierLinks {
    fn partitions(&self) -> u32 {
        self.parts.partitions
    }

    fn tell(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> Result<(), NoCarrier> {
        let routes = self.routes.load();
        let taken = match routes.get(partition as usize) {
            Some(Some(OwnerRoute::Here { .. })) => {
                self.parts.desk.as_ref().is_some_and(|desk| desk.take(partition, from, messages))
            }
            // The stream was opened by one incarnation of the gateway and is valid only for that one.
            Some(Some(OwnerRoute::There { gateway, outbox, .. })) if *gateway == from => {
                to_told(partition, messages).into_iter().all(|told| outbox.push(told))
            }
            _ => false,
        };
        if taken { Ok(()) } else { Err(NoCarrier(partition)) }
    }

    fn owner_links(&self) -> watch::Receiver<Arc<Vec<Option<OwnerLink>>>> {
        self.owner_links.subscribe()
    }

    fn ask(&self, partition: u32, ask: PeopleQuery) -> PortFuture<'_, Result<PeopleReply, PeopleError>> {
        Box::pin(async move {
            let CarrierLinkParts { sight: cluster, desk, peers, owner_wait, .. } = &self.parts;
            let owners = OwnerRouter { cluster: cluster.clone(), peers: peers.clone(), owner_wait: *owner_wait };
            let request = (partition, ask);
            let local = || async {
                match desk {
                    Some(desk) => desk.ask(partition, request.1.clone()).await,
                    None => None,
                }
            };
            let asked = owners.ask::<AskCarrier, _>(partition, &request, local).await;
            asked.unwrap_or(Err(PeopleError::NoOwner(partition)))
        })
    }
}
