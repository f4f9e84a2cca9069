//! One session of a node: which shards it takes, serves and gives up, from joining until it is lost or left.
//!
//! What to do is decided by [`plan`], which is pure; what takes time runs beside, one thing per shard at a time.

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

use super::Duties;
use super::assign::assign;
use super::clocks::{AskClock, ClocksApart, judge, read};
use super::families::{Kind, shard_name};
use super::keeper::{KeeperSettings, Resignations, is_center};
use super::sight::View;

/// How long a shard that could not be taken, or whose owner resigned, is left alone.
const REST: Duration = Duration::from_millis(200);

/// How a tenure ended.
pub(super) enum Ended {
    Shutdown,
    Lost(String),
    /// The clock is apart from the others', and was not before.
    Apart(ClocksApart),
    /// The clock was apart and is not any more.
    Near,
}

/// What one session works with.
pub(super) struct Tenure<'a> {
    pub membership: &'a Arc<dyn Membership>,
    pub settings: &'a KeeperSettings,
    pub families: &'a [Kind],
    /// By family, as `families` are.
    pub duties: &'a [Arc<dyn Duties>],
    pub views: watch::Receiver<Arc<View>>,
    pub clocks: &'a dyn AskClock,
    pub clock: &'a dyn Clock,
    pub was_apart: bool,
}

/// What this session does with a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shard {
    /// Nothing.
    Idle,
    Taking,
    Serving(u64),
    /// Something that must be over before anything else: it is being given up, or left alone for a while.
    Busy,
}

/// A shard of one of the families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// By its place among the families.
    family: usize,
    shard: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Take(Place),
    GiveUp(Place),
    /// The engine has it as ours though nothing was begun: the answer to an earlier taking was lost.
    Release(Place),
}

/// What to do now with the shards of all families.
fn plan(view: &View, me: u16, families: &[Kind], shards: &Shards) -> Vec<Step> {
    let all = families.iter().zip(&shards.0).enumerate();
    all.flat_map(|(family, (kind, shards))| plan_family(view, me, (family, kind), shards)).collect()
}

fn plan_family(view: &View, me: u16, (family, kind): (usize, &Kind), shards: &[Shard]) -> Vec<Step> {
    let entitled: Vec<u16> = view.with_role(kind.role).map(|node| node.number).collect();
    let present: Vec<Option<u16>> = (0..kind.shards).map(|shard| Some(view.owner(kind.name, shard)?.node)).collect();
    let assigned = assign(&entitled, &present);
    let step = |(shard, state): (u32, &Shard)| {
        let (at, place) = (shard as usize, Place { family, shard });
        let (is_for_me, is_mine) = (assigned[at] == Some(me), present[at] == Some(me));
        match state {
            Shard::Idle if is_for_me && (is_mine || present[at].is_none()) => Some(Step::Take(place)),
            Shard::Idle if is_mine => Some(Step::Release(place)),
            Shard::Serving(_) if !is_for_me => Some(Step::GiveUp(place)),
            _ => None,
        }
    };
    (0..).zip(shards).filter_map(step).collect()
}

/// What this session does with all shards, by family and number.
struct Shards(Vec<Vec<Shard>>);

impl Shards {
    fn idle(families: &[Kind]) -> Self {
        Self(families.iter().map(|kind| vec![Shard::Idle; kind.shards as usize]).collect())
    }

    /// Whoever is asked for is one of the families' own.
    fn set(&mut self, place: Place, shard: Shard) {
        self.0[place.family][place.shard as usize] = shard;
    }

    /// Whether it is served under that epoch; what is no shard is not.
    fn is_served(&self, place: Place, epoch: u64) -> bool {
        self.0.get(place.family).and_then(|shards| shards.get(place.shard as usize)) == Some(&Shard::Serving(epoch))
    }

    fn served(&self) -> impl Iterator<Item = Place> {
        let all = self.0.iter().enumerate();
        all.flat_map(|(family, shards)| (0..).zip(shards).map(move |(shard, state)| (Place { family, shard }, state)))
            .filter(|(_, state)| matches!(state, Shard::Serving(_)))
            .map(|(place, _)| place)
    }
}

impl Tenure<'_> {
    /// Takes and gives up shards until the session is over, and returns when nothing is served any more.
    pub async fn serve(mut self, resignations: &mut [Resignations], shutdown: &CancellationToken) -> Ended {
        let me = self.membership.node();
        let mut shards = Shards::idle(self.families);
        let mut takings: FuturesUnordered<PortFuture<'_, (Place, Result<u64, CoordinationError>)>> =
            FuturesUnordered::new();
        let mut endings: FuturesUnordered<PortFuture<'_, Place>> = FuturesUnordered::new();
        let (membership, families, duties) = (self.membership, self.families, self.duties);
        let name_of = |place: Place| shard_name(families[place.family].name, place.shard);
        let ending = |place: Place| -> PortFuture<'_, ()> { duties[place.family].end(place.shard) };
        let lost = membership.lost();
        tokio::pin!(lost);
        let mut comparing = compare_clocks(&self);
        let ended = loop {
            let view = self.views.borrow_and_update().clone();
            for step in plan(&view, me, families, &shards) {
                match step {
                    Step::Take(place) => {
                        shards.set(place, Shard::Taking);
                        let name = name_of(place);
                        takings.push(Box::pin(async move { (place, membership.own(&name).await) }));
                    }
                    Step::GiveUp(place) => {
                        shards.set(place, Shard::Busy);
                        let (name, ending) = (name_of(place), ending(place));
                        endings.push(Box::pin(async move {
                            ending.await;
                            let_go(&name, membership).await;
                            place
                        }));
                    }
                    Step::Release(place) => {
                        shards.set(place, Shard::Busy);
                        let name = name_of(place);
                        endings.push(Box::pin(async move {
                            let_go(&name, membership).await;
                            // The view may only be behind: it gets the time to catch up.
                            sleep(REST).await;
                            place
                        }));
                    }
                }
            }
            tokio::select! {
                biased;
                reason = &mut lost => break Ended::Lost(reason),
                () = shutdown.cancelled() => break Ended::Shutdown,
                Some((place, taken)) = takings.next() => match taken {
                    Ok(epoch) if membership.stands() => {
                        shards.set(place, Shard::Serving(epoch));
                        duties[place.family].begin(place.shard, epoch, membership.clone());
                    }
                    taken => {
                        if let Err(error) = taken {
                            tracing::debug!(shard = name_of(place), %error, "the shard could not be taken");
                        }
                        shards.set(place, Shard::Busy);
                        endings.push(Box::pin(async move {
                            sleep(REST).await;
                            place
                        }));
                    }
                },
                Some(place) = endings.next() => shards.set(place, Shard::Idle),
                (place, epoch) = next_resignation(resignations) => {
                    if shards.is_served(place, epoch) {
                        shards.set(place, Shard::Busy);
                        let (name, ending) = (name_of(place), ending(place));
                        endings.push(Box::pin(async move {
                            ending.await;
                            let_go(&name, membership).await;
                            sleep(REST).await;
                            place
                        }));
                    }
                }
                Ok(()) = self.views.changed() => {}
                verdict = &mut comparing => match verdict {
                    Err(apart) if !self.was_apart => break Ended::Apart(apart),
                    Ok(()) if self.was_apart => break Ended::Near,
                    _ => comparing = compare_clocks(&self),
                },
            }
        };
        // What is being taken is dropped: it ends with the session. What is being ended must have ended, all at once.
        drop(takings);
        let serving = shards.served().map(ending);
        let ending = async { while endings.next().await.is_some() {} };
        tokio::join!(join_all(serving), ending);
        ended
    }
}

/// Lets a shard go of which nothing is served any more.
async fn let_go(name: &str, membership: &Arc<dyn Membership>) {
    // While the engine does not answer, the shard stays ours and idle; when the session is lost, it is nobody's.
    while membership.stands() && membership.release(name).await.is_err() {
        sleep(REST).await;
    }
}

/// The next owner of any family that resigns. A family whose owners are all gone resigns no more.
async fn next_resignation(resignations: &mut [Resignations]) -> (Place, u64) {
    poll_fn(|context| {
        for (family, each) in resignations.iter_mut().enumerate() {
            if let Poll::Ready(Some((shard, epoch))) = each.receiver.poll_recv(context) {
                return Poll::Ready((Place { family, shard }, epoch));
            }
        }
        Poll::Pending
    })
    .await
}

/// Whether the clocks are near, the next time that they are compared. Who owns nothing need not know.
fn compare_clocks<'a>(tenure: &Tenure<'a>) -> PortFuture<'a, Result<(), ClocksApart>> {
    let Tenure { membership, settings, clocks, clock, was_apart, .. } = *tenure;
    let views = tenure.views.clone();
    Box::pin(async move {
        if !is_center(&settings.member) {
            std::future::pending::<()>().await;
        }
        sleep(settings.clocks_every).await;
        let (view, me) = (views.borrow().clone(), membership.node());
        // One that is no center at the moment stands behind those that are.
        let rank = (!was_apart).then_some(me);
        judge(rank, &read(&view, Some(me), clocks, clock).await, settings.clocks_apart_max)
    })
}
