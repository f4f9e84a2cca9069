//! The port `Carriers`: what a gateway says finds the owner of the partition, at the desk of this node or up a stream to another.
//!
//! A partition has a *way* while somebody really takes messages for it: the desk of this node says so itself, a node elsewhere says so
//! over its stream. Each new way is a new tenure, and so is one that was gone and is there again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{
    CarrierDesk, Carriers, GatewayDesk, NoCarrier, Node, PeopleAsk, PeopleError, PeopleTold, PortFuture, Tenure,
    ToCarrier,
};

use super::outbox::Outbox;
use super::stream::{Target, keep};
use super::wire::{Served, to_told};
use super::wire_asks::{from_response, to_request};
use whimbrel_cluster::peers::Asked;
use whimbrel_cluster::router::until_answered;
use whimbrel_cluster::wire::protocol::LinkUp;
use whimbrel_cluster::{CARRIER_ROLE, PUSH_FAMILY, Peers, Sight, View};

/// What the ways to carriers are made of.
pub struct CarrierLinkParts {
    /// The partitions of `_push`.
    pub partitions: u32,
    pub sight: Sight,
    /// Of this node's carrier, where it has one.
    pub desk: Option<Arc<dyn CarrierDesk>>,
    pub peers: Arc<Peers>,
    /// How long a question waits for an owner.
    pub owner_wait: Duration,
}

/// The owners of all partitions. Until [`CarrierLinks::run`] no partition has a way.
pub struct CarrierLinks {
    parts: CarrierLinkParts,
    /// By partition.
    ways: ArcSwap<Vec<Option<Way>>>,
    tenures: watch::Sender<Arc<Vec<Option<Tenure>>>>,
    book: Mutex<Book>,
}

/// How messages reach the owner of a partition.
#[derive(Clone)]
enum Way {
    Here { epoch: u64 },
    There { epoch: u64, stream: u64, gateway: GatewayId, outbox: Outbox<LinkUp> },
}

impl Way {
    /// What makes it another way: the owner's epoch, and the stream where there is one.
    fn mark(&self) -> (u64, Option<u64>) {
        match self {
            Self::Here { epoch } => (*epoch, None),
            Self::There { epoch, stream, .. } => (*epoch, Some(*stream)),
        }
    }
}

#[derive(Default)]
struct Book {
    /// By node: to every carrier elsewhere, where this node has a gateway.
    streams: BTreeMap<u16, Kept>,
    last_stream: u64,
    last_tenure: u64,
}

struct Kept {
    target: Target,
    ends: CancellationToken,
    standing: Option<Standing>,
}

struct Standing {
    stream: u64,
    outbox: Outbox<LinkUp>,
    served: Served,
}

impl CarrierLinks {
    pub fn new(parts: CarrierLinkParts) -> Arc<Self> {
        let partitions = parts.partitions as usize;
        let tenures = watch::Sender::new(Arc::new(vec![None; partitions]));
        let ways = ArcSwap::from_pointee(vec![None; partitions]);
        Arc::new(Self { parts, ways, tenures, book: Mutex::default() })
    }

    /// Follows who owns what, and keeps a stream to every carrier elsewhere where this node has a gateway, until it is cancelled.
    pub async fn run(self: Arc<Self>, gateway: Option<Arc<dyn GatewayDesk>>, until: CancellationToken) {
        let (mut views, mut identities) = (self.parts.sight.clone(), self.parts.sight.clone());
        let mut serving = self.parts.desk.as_ref().map(|desk| desk.serving());
        loop {
            self.look(gateway.as_ref());
            tokio::select! {
                () = until.cancelled() => break,
                _ = views.view_changed() => {}
                _ = identities.me_changed() => {}
                () = changed(&mut serving) => {}
            }
        }
        let mut book = self.book();
        std::mem::take(&mut book.streams).into_values().for_each(|kept| kept.ends.cancel());
        self.find_ways(&mut book);
    }

    /// Opens the streams that are wanted now, ends the others, and finds the ways anew.
    fn look(self: &Arc<Self>, gateway: Option<&Arc<dyn GatewayDesk>>) {
        let mut book = self.book();
        let mut wanted = match (gateway, self.parts.sight.identity()) {
            (Some(_), Some(identity)) => targets(&self.parts.sight.view(), identity),
            _ => BTreeMap::new(),
        };
        book.streams.retain(|node, kept| {
            let is_wanted = wanted.get(node) == Some(&kept.target);
            if is_wanted {
                wanted.remove(node);
            } else {
                kept.ends.cancel();
            }
            is_wanted
        });
        for (node, target) in wanted {
            let Some(desk) = gateway.cloned() else { break };
            let ends = CancellationToken::new();
            tokio::spawn(keep(self.clone(), self.parts.peers.clone(), desk, target.clone(), ends.clone()));
            book.streams.insert(node, Kept { target, ends, standing: None });
        }
        self.find_ways(&mut book);
    }

    /// A stream to that carrier stands: its number, or `None` where it is not wanted any more.
    pub(super) fn stands(&self, target: &Target, outbox: &Outbox<LinkUp>) -> Option<u64> {
        let mut book = self.book();
        book.last_stream += 1;
        let stream = book.last_stream;
        let kept = book.streams.get_mut(&target.node).filter(|kept| kept.target == *target)?;
        kept.standing = Some(Standing { stream, outbox: outbox.clone(), served: Served::new() });
        Some(stream)
    }

    /// The carrier says over its stream what it serves.
    pub(super) fn serves(&self, target: &Target, stream: u64, served: Served) {
        let mut book = self.book();
        let kept = book.streams.get_mut(&target.node).and_then(|kept| kept.standing.as_mut());
        if let Some(standing) = kept.filter(|standing| standing.stream == stream) {
            standing.served = served;
            self.find_ways(&mut book);
        }
    }

    /// The stream to that carrier has ended.
    pub(super) fn fell(&self, target: &Target) {
        let mut book = self.book();
        if let Some(kept) = book.streams.get_mut(&target.node).filter(|kept| kept.target == *target) {
            kept.standing = None;
            self.find_ways(&mut book);
        }
    }

    /// Finds the way of every partition anew. A tenure stays where the way is the same as before.
    fn find_ways(&self, book: &mut Book) {
        let (view, me) = (self.parts.sight.view(), self.parts.sight.me());
        let here: Option<Arc<Vec<Option<u64>>>> = self.parts.desk.as_ref().map(|desk| desk.serving().borrow().clone());
        let here = here.unwrap_or_default();
        let (before, tenures) = (self.ways.load(), self.tenures.borrow().clone());
        let way = |partition: u32| way_of(partition, &view, me, &here, &book.streams);
        let after: Vec<Option<Way>> = (0..self.parts.partitions).map(way).collect();
        let mut last_tenure = book.last_tenure;
        let tenure = |(way, (earlier, tenure)): (&Option<Way>, (&Option<Way>, &Option<Tenure>))| {
            let mark = way.as_ref()?.mark();
            if earlier.as_ref().map(Way::mark) == Some(mark) {
                return *tenure;
            }
            last_tenure += 1;
            Some(Tenure { number: last_tenure, epoch: mark.0 })
        };
        let found: Vec<Option<Tenure>> = after.iter().zip(before.iter().zip(tenures.iter())).map(tenure).collect();
        book.last_tenure = last_tenure;
        // The way first: who sees the tenure finds it.
        self.ways.store(Arc::new(after));
        if found != *tenures {
            self.tenures.send_replace(Arc::new(found));
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks whoever owns the partition now; `Err` where nothing was done and another try makes sense, with the reason.
    async fn ask_once(
        &self,
        partition: u32,
        ask: &PeopleAsk,
    ) -> Result<Result<PeopleTold, PeopleError>, Option<String>> {
        let view = self.parts.sight.view();
        let owner = view.owner(PUSH_FAMILY, partition).ok_or(None)?.node;
        if self.parts.sight.me() == Some(owner) {
            let desk = self.parts.desk.as_ref().ok_or(None)?;
            return desk.ask(partition, ask.clone()).await.ok_or(None);
        }
        let address = view.address_of(owner).ok_or(None)?;
        let asked = self
            .parts
            .peers
            .ask_carrier(address, to_request(partition, ask), |response| from_response(partition, response));
        match asked.await {
            Asked::Answered(answer) => answer.ok_or(None),
            // No question about people changes anything.
            Asked::NotDelivered(reason) | Asked::Unknown(reason) => Err(Some(reason)),
            Asked::Refused(reason) => {
                tracing::error!(node = owner, reason, "another node refuses what this one asks");
                Ok(Err(PeopleError::Unavailable(format!("node {owner} refused the question: {reason}"))))
            }
        }
    }
}

/// The carriers elsewhere.
fn targets(view: &View, gateway: GatewayId) -> BTreeMap<u16, Target> {
    let others = view.with_role(CARRIER_ROLE).filter(|node| node.number != gateway.node);
    let target = |node: &Node| {
        let (incarnation, address) = (node.member.incarnation, node.member.address.clone());
        (node.number, Target { node: node.number, incarnation, address, gateway })
    };
    others.map(target).collect()
}

fn way_of(
    partition: u32,
    view: &View,
    me: Option<u16>,
    here: &[Option<u64>],
    streams: &BTreeMap<u16, Kept>,
) -> Option<Way> {
    let owner = view.owner(PUSH_FAMILY, partition);
    let served_here = here.get(partition as usize).copied().flatten();
    // This node knows what it serves before any picture shows it. Only a later owner elsewhere is believed over that.
    let is_taken_over = |epoch: u64| owner.is_some_and(|owner| Some(owner.node) != me && owner.epoch > epoch);
    if let Some(epoch) = served_here.filter(|epoch| !is_taken_over(*epoch)) {
        return Some(Way::Here { epoch });
    }
    let kept = streams.get(&owner?.node)?;
    let Standing { stream, outbox, served } = kept.standing.as_ref()?;
    let epoch = served.get(partition as usize).copied().flatten()?;
    Some(Way::There { epoch, stream: *stream, gateway: kept.target.gateway, outbox: outbox.clone() })
}

/// Returns when what the desk serves has changed; never where there is no desk.
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
        let ways = self.ways.load();
        let taken = match ways.get(partition as usize) {
            Some(Some(Way::Here { .. })) => {
                self.parts.desk.as_ref().is_some_and(|desk| desk.take(partition, from, messages))
            }
            // The stream speaks for the incarnation that opened it.
            Some(Some(Way::There { gateway, outbox, .. })) if *gateway == from => {
                to_told(partition, messages).into_iter().all(|told| outbox.push(told))
            }
            _ => false,
        };
        if taken { Ok(()) } else { Err(NoCarrier(partition)) }
    }

    fn tenures(&self) -> watch::Receiver<Arc<Vec<Option<Tenure>>>> {
        self.tenures.subscribe()
    }

    fn ask(&self, partition: u32, ask: PeopleAsk) -> PortFuture<'_, Result<PeopleTold, PeopleError>> {
        Box::pin(async move {
            let ask_once = || self.ask_once(partition, &ask);
            let asked = until_answered(&self.parts.sight, self.parts.owner_wait, partition, ask_once).await;
            asked.unwrap_or(Err(PeopleError::NoOwner(partition)))
        })
    }
}
