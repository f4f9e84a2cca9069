//! One session of a node: which shards it takes, serves and gives up, from joining until it is lost or left.
//!
//! What to do is decided by [`plan`], which is pure; what takes time runs beside, one thing per shard at a time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use whimbrel_model::Clock;
use whimbrel_model::ports::{CoordinationError, Membership, PortFuture};

use super::assign::assign;
use super::clocks::{AskClock, ClocksApart, judge, read};
use super::keeper::{KeeperSettings, Resignations, is_center};
use super::sight::View;
use super::{Duties, shard_name};

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
    pub duties: &'a dyn Duties,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Take(u32),
    GiveUp(u32),
    /// The engine has it as ours though nothing was begun: the answer to an earlier taking was lost.
    Release(u32),
}

/// What to do now.
fn plan(view: &View, me: u16, shards: &[Shard]) -> Vec<Step> {
    let centers: Vec<u16> = view.centers().map(|node| node.number).collect();
    let assigned = assign(&centers, &view.owners);
    let step = |number: u32| {
        let at = number as usize;
        let (is_for_me, is_mine) = (assigned[at] == Some(me), view.owners[at] == Some(me));
        match shards[at] {
            Shard::Idle if is_for_me && (is_mine || view.owners[at].is_none()) => Some(Step::Take(number)),
            Shard::Idle if is_mine => Some(Step::Release(number)),
            Shard::Serving(_) if !is_for_me => Some(Step::GiveUp(number)),
            _ => None,
        }
    };
    (0..).take(shards.len()).filter_map(step).collect()
}

impl Tenure<'_> {
    /// Takes and gives up shards until the session is over, and returns when nothing is served any more.
    pub async fn serve(mut self, resignations: &mut Resignations, shutdown: &CancellationToken) -> Ended {
        let me = self.membership.node();
        let mut shards = vec![Shard::Idle; self.settings.shards as usize];
        let mut takings: FuturesUnordered<PortFuture<'_, (u32, Result<u64, CoordinationError>)>> =
            FuturesUnordered::new();
        let mut endings: FuturesUnordered<PortFuture<'_, u32>> = FuturesUnordered::new();
        let (membership, duties) = (self.membership, self.duties);
        let lost = membership.lost();
        tokio::pin!(lost);
        let mut comparing = compare_clocks(&self);
        let ended = loop {
            let view = self.views.borrow_and_update().clone();
            for step in plan(&view, me, &shards) {
                match step {
                    Step::Take(shard) => {
                        shards[shard as usize] = Shard::Taking;
                        takings.push(Box::pin(async move { (shard, membership.own(&shard_name(shard)).await) }));
                    }
                    Step::GiveUp(shard) => {
                        shards[shard as usize] = Shard::Busy;
                        endings.push(Box::pin(give_up(shard, Some(duties), membership)));
                    }
                    Step::Release(shard) => {
                        shards[shard as usize] = Shard::Busy;
                        endings.push(Box::pin(async move {
                            give_up(shard, None, membership).await;
                            // The view may only be behind: it gets the time to catch up.
                            rest(shard).await
                        }));
                    }
                }
            }
            tokio::select! {
                biased;
                reason = &mut lost => break Ended::Lost(reason),
                () = shutdown.cancelled() => break Ended::Shutdown,
                Some((shard, taken)) = takings.next() => match taken {
                    Ok(epoch) if membership.stands() => {
                        shards[shard as usize] = Shard::Serving(epoch);
                        duties.begin(shard, epoch, membership.clone());
                    }
                    taken => {
                        if let Err(error) = taken {
                            tracing::debug!(shard, %error, "the shard could not be taken");
                        }
                        shards[shard as usize] = Shard::Busy;
                        endings.push(Box::pin(rest(shard)));
                    }
                },
                Some(shard) = endings.next() => shards[shard as usize] = Shard::Idle,
                Some((shard, epoch)) = resignations.receiver.recv() => {
                    if shards.get(shard as usize) == Some(&Shard::Serving(epoch)) {
                        shards[shard as usize] = Shard::Busy;
                        endings.push(Box::pin(async move {
                            give_up(shard, Some(duties), membership).await;
                            rest(shard).await
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
        let serving = (0..).zip(&shards).filter(|(_, shard)| matches!(shard, Shard::Serving(_)));
        let serving = serving.map(|(shard, _)| duties.end(shard));
        let ending = async { while endings.next().await.is_some() {} };
        tokio::join!(join_all(serving), ending);
        ended
    }
}

/// Ends what is served of the shard, then lets it go.
async fn give_up(shard: u32, duties: Option<&dyn Duties>, membership: &Arc<dyn Membership>) -> u32 {
    if let Some(duties) = duties {
        duties.end(shard).await;
    }
    // While the engine does not answer, the shard stays ours and idle; when the session is lost, it is nobody's.
    while membership.stands() && membership.release(&shard_name(shard)).await.is_err() {
        sleep(REST).await;
    }
    shard
}

async fn rest(shard: u32) -> u32 {
    sleep(REST).await;
    shard
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
