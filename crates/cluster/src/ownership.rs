//! One session of a node, from its join until the session is lost or left: takes, serves and gives up shards.
//!
//! [`plan`] decides and is pure. The calls run concurrently, one per shard at a time.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use whimbrel_model::Clock;
use whimbrel_model::ports::{CoordinationError, Membership, PortFuture};

use super::ShardOwner;
use super::assign::assign;
use super::clocks::{ClocksApart, PeerClock, check_agreement, read};
use super::cluster_view::ClusterView;
use super::families::{FamilyKind, shard_name};
use super::keeper::{KeeperSettings, Resignations, is_center};

/// How long a shard rests after it could not be taken, or after its owner resigned.
const REST: Duration = Duration::from_millis(200);

pub(super) enum SessionEnd {
    Shutdown,
    Lost(String),
    /// The clock deviates from the others', and did not before.
    Apart(ClocksApart),
    /// The clock deviated, and agrees again.
    Near,
}

pub(super) struct SessionOwnership<'a> {
    pub membership: &'a Arc<dyn Membership>,
    pub settings: &'a KeeperSettings,
    pub families: &'a [FamilyKind],
    /// In the order of `families`.
    pub owners: &'a [Arc<dyn ShardOwner>],
    pub views: watch::Receiver<Arc<ClusterView>>,
    pub clocks: &'a dyn PeerClock,
    pub clock: &'a dyn Clock,
    pub was_apart: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnershipState {
    /// Not served, without a call in progress.
    Idle,
    Taking,
    Serving(u64),
    /// Being given up, or resting. The next step waits for the end of that.
    Busy,
}

/// A shard of one of the families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FamilyShard {
    family: usize,
    shard: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnershipStep {
    Take(FamilyShard),
    GiveUp(FamilyShard),
    /// The coordination service has this node as the owner, but no owner was started: the reply to an earlier call was lost.
    Release(FamilyShard),
}

/// The next steps for the shards of all families.
fn plan(view: &ClusterView, me: u16, families: &[FamilyKind], shards: &OwnershipTable) -> Vec<OwnershipStep> {
    let all = families.iter().zip(&shards.0).enumerate();
    all.flat_map(|(family, (kind, shards))| plan_family(view, me, (family, kind), shards)).collect()
}

fn plan_family(
    view: &ClusterView,
    me: u16,
    (family, kind): (usize, &FamilyKind),
    shards: &[OwnershipState],
) -> Vec<OwnershipStep> {
    let entitled: Vec<u16> = view.with_role(kind.role).map(|node| node.number).collect();
    let present: Vec<Option<u16>> = (0..kind.shards).map(|shard| Some(view.owner(kind.name, shard)?.node)).collect();
    let assigned = assign(&entitled, &present);
    let step = |(shard, state): (u32, &OwnershipState)| {
        let (at, place) = (shard as usize, FamilyShard { family, shard });
        let (is_for_me, is_mine) = (assigned[at] == Some(me), present[at] == Some(me));
        match state {
            OwnershipState::Idle if is_for_me && (is_mine || present[at].is_none()) => Some(OwnershipStep::Take(place)),
            OwnershipState::Idle if is_mine => Some(OwnershipStep::Release(place)),
            OwnershipState::Serving(_) if !is_for_me => Some(OwnershipStep::GiveUp(place)),
            _ => None,
        }
    };
    (0..).zip(shards).filter_map(step).collect()
}

struct OwnershipTable(Vec<Vec<OwnershipState>>);

impl OwnershipTable {
    fn idle(families: &[FamilyKind]) -> Self {
        Self(families.iter().map(|kind| vec![OwnershipState::Idle; kind.shards as usize]).collect())
    }

    /// Panics if the shard does not exist.
    fn set(&mut self, place: FamilyShard, shard: OwnershipState) {
        self.0[place.family][place.shard as usize] = shard;
    }

    /// Whether the shard exists and is served under that epoch.
    fn is_served(&self, place: FamilyShard, epoch: u64) -> bool {
        self.0.get(place.family).and_then(|shards| shards.get(place.shard as usize))
            == Some(&OwnershipState::Serving(epoch))
    }

    fn served(&self) -> impl Iterator<Item = FamilyShard> {
        let all = self.0.iter().enumerate();
        all.flat_map(|(family, shards)| {
            (0..).zip(shards).map(move |(shard, state)| (FamilyShard { family, shard }, state))
        })
        .filter(|(_, state)| matches!(state, OwnershipState::Serving(_)))
        .map(|(place, _)| place)
    }
}

impl SessionOwnership<'_> {
    /// Takes and gives up shards until the session ends. Returns when no shard is served any more.
    pub async fn serve(mut self, resignations: &mut [Resignations], shutdown: &CancellationToken) -> SessionEnd {
        let (membership, me) = (self.membership, self.membership.node());
        let mut calls = OwnershipCalls::new(membership, self.families, self.owners);
        let lost = membership.lost();
        tokio::pin!(lost);
        let mut comparing = compare_clocks(&self);
        let ended = loop {
            let view = self.views.borrow_and_update().clone();
            for step in plan(&view, me, self.families, &calls.shards) {
                calls.begin(step);
            }
            tokio::select! {
                biased;
                reason = &mut lost => break SessionEnd::Lost(reason),
                () = shutdown.cancelled() => break SessionEnd::Shutdown,
                Some((place, taken)) = calls.takings.next() => calls.taken(place, taken),
                Some(place) = calls.endings.next() => calls.shards.set(place, OwnershipState::Idle),
                (place, epoch) = next_resignation(resignations) => calls.resigned(place, epoch),
                Ok(()) = self.views.changed() => {}
                verdict = &mut comparing => match verdict {
                    Err(apart) if !self.was_apart => break SessionEnd::Apart(apart),
                    Ok(()) if self.was_apart => break SessionEnd::Near,
                    _ => comparing = compare_clocks(&self),
                },
            }
        };
        calls.end_all().await;
        ended
    }
}

/// The shards with the calls that take them and give them up: at most one call for each shard.
struct OwnershipCalls<'a> {
    membership: &'a Arc<dyn Membership>,
    families: &'a [FamilyKind],
    owners: &'a [Arc<dyn ShardOwner>],
    shards: OwnershipTable,
    takings: FuturesUnordered<PortFuture<'a, (FamilyShard, Result<u64, CoordinationError>)>>,
    /// Each ends when the shard is idle again.
    endings: FuturesUnordered<PortFuture<'a, FamilyShard>>,
}

impl<'a> OwnershipCalls<'a> {
    fn new(membership: &'a Arc<dyn Membership>, families: &'a [FamilyKind], owners: &'a [Arc<dyn ShardOwner>]) -> Self {
        let (takings, endings) = (FuturesUnordered::new(), FuturesUnordered::new());
        Self { membership, families, owners, shards: OwnershipTable::idle(families), takings, endings }
    }

    fn name_of(&self, place: FamilyShard) -> String {
        shard_name(self.families[place.family].name, place.shard)
    }

    fn begin(&mut self, step: OwnershipStep) {
        match step {
            OwnershipStep::Take(place) => {
                self.shards.set(place, OwnershipState::Taking);
                let (name, membership) = (self.name_of(place), self.membership);
                self.takings.push(Box::pin(async move { (place, membership.own(&name).await) }));
            }
            OwnershipStep::GiveUp(place) => self.let_go(place, true, Duration::ZERO),
            // The view may be behind: the rest gives it time to catch up.
            OwnershipStep::Release(place) => self.let_go(place, false, REST),
        }
    }

    fn taken(&mut self, place: FamilyShard, taken: Result<u64, CoordinationError>) {
        match taken {
            Ok(epoch) if self.membership.is_valid() => {
                self.shards.set(place, OwnershipState::Serving(epoch));
                self.owners[place.family].begin(place.shard, epoch, self.membership.clone());
            }
            taken => {
                if let Err(error) = taken {
                    tracing::debug!(shard = self.name_of(place), %error, "cannot take the shard");
                }
                self.shards.set(place, OwnershipState::Busy);
                self.endings.push(Box::pin(async move {
                    sleep(REST).await;
                    place
                }));
            }
        }
    }

    fn resigned(&mut self, place: FamilyShard, epoch: u64) {
        if self.shards.is_served(place, epoch) {
            self.let_go(place, true, REST);
        }
    }

    /// Ends the owner if there is one, releases the shard, and lets it rest.
    fn let_go(&mut self, place: FamilyShard, has_owner: bool, rest: Duration) {
        self.shards.set(place, OwnershipState::Busy);
        let (name, membership) = (self.name_of(place), self.membership);
        let ending = has_owner.then(|| self.owners[place.family].end(place.shard));
        self.endings.push(Box::pin(async move {
            if let Some(ending) = ending {
                ending.await;
            }
            // While the service does not answer, the shard stays with this node, idle. When the session is lost, it has no owner.
            while membership.is_valid() && membership.release(&name).await.is_err() {
                sleep(REST).await;
            }
            sleep(rest).await;
            place
        }));
    }

    /// Ends the owners of all served shards concurrently. Drops the calls that take shards: they end with the session.
    async fn end_all(mut self) {
        drop(self.takings);
        let serving = self.shards.served().map(|place| self.owners[place.family].end(place.shard));
        let ending = async { while self.endings.next().await.is_some() {} };
        tokio::join!(join_all(serving), ending);
    }
}

/// The next resignation in any family. A family whose owners have all ended sends no more.
async fn next_resignation(resignations: &mut [Resignations]) -> (FamilyShard, u64) {
    poll_fn(|context| {
        for (family, each) in resignations.iter_mut().enumerate() {
            if let Poll::Ready(Some((shard, epoch))) = each.receiver.poll_recv(context) {
                return Poll::Ready((FamilyShard { family, shard }, epoch));
            }
        }
        Poll::Pending
    })
    .await
}

/// Compares the clocks once, after the interval. Nodes that are not centers never compare them.
fn compare_clocks<'a>(ownership: &SessionOwnership<'a>) -> PortFuture<'a, Result<(), ClocksApart>> {
    let SessionOwnership { membership, settings, clocks, clock, was_apart, .. } = *ownership;
    let views = ownership.views.clone();
    Box::pin(async move {
        if !is_center(&settings.member) {
            std::future::pending::<()>().await;
        }
        sleep(settings.clocks_every).await;
        let (view, me) = (views.borrow().clone(), membership.node());
        // A node that is not a center at the moment ranks behind those that are.
        let rank = (!was_apart).then_some(me);
        check_agreement(rank, &read(&view, Some(me), clocks, clock).await, settings.clocks_apart_max)
    })
}
