//! Dispatch: every subscription gets every message of its topics, in order, at its own pace.
//!
//! [`window`], [`line`], [`ladder`], [`breaker`], [`pace`], [`throttle`], [`filter`], [`judge`] and [`letters`] decide, and are pure.
//! [`runner`] is the shell around one subscription. The [`Dispatcher`] runs those of the shards that this node owns, each on one of its
//! threads, so that no call of a subscription crosses from one thread to another.

pub mod breaker;
mod figures;
pub mod filter;
pub mod judge;
pub mod ladder;
pub mod letters;
pub mod line;
pub mod pace;
mod runner;
pub mod saved;
pub mod settings;
pub mod throttle;
pub mod window;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{
    Callbacks, DispatchAsk, DispatchError, DispatchTold, Holds, Log, Membership, MinuteRow, Notebook, PortFuture,
    Progress,
};
use whimbrel_model::{Clock, EventSink, HOLDS_TOPIC, SubscriptionNumber, Timestamp, TopicNumber};

use runner::{Ended, Question, Reach, Tools, run};
use whimbrel_catalogue::subscriptions::Subscriptions;
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::Registry;
use whimbrel_cluster::{DispatchDesk, DispatchDeskError, Duties};

pub use figures::NAMES as METRIC_NAMES;
pub use settings::DispatchSettings;

/// Questions to one subscription that wait at most.
const QUESTIONS_WAITING: usize = 1024;
/// How long a subscription that ended badly is left alone.
const REST: Duration = Duration::from_secs(1);

/// What the dispatcher works with.
pub struct DispatchPorts {
    pub log: Arc<dyn Log>,
    pub registry: Arc<Registry>,
    pub subscriptions: Arc<Subscriptions>,
    pub progress: Arc<dyn Progress>,
    pub notebook: Arc<dyn Notebook>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub stats: Arc<TopicStats>,
}

/// The reason why a dispatcher could not start.
#[derive(Debug, thiserror::Error)]
pub enum DispatcherError {
    #[error("the topic `{HOLDS_TOPIC}` does not exist")]
    NoHolds,
    #[error("cannot start a thread of the dispatcher: {0}")]
    Thread(#[from] std::io::Error),
}

/// Runs the subscriptions of the shards that are owned here.
pub struct Dispatcher {
    tools: Arc<Tools>,
    shards: u32,
    threads: Vec<Handle>,
    reach: watch::Sender<Option<Reach>>,
    owned: Mutex<HashMap<u32, OwnedShard>>,
    running: Arc<Mutex<HashMap<SubscriptionNumber, Running>>>,
    shutdown: CancellationToken,
}

struct OwnedShard {
    stop: CancellationToken,
    ended: watch::Receiver<bool>,
}

struct Running {
    epoch: u64,
    questions: mpsc::Sender<Question>,
}

impl Dispatcher {
    /// Starts the threads. Nothing is dispatched before a shard is owned and [`Dispatcher::reach`] was called.
    pub fn start(ports: DispatchPorts, settings: DispatchSettings) -> Result<Arc<Self>, DispatcherError> {
        let shards = ports.registry.get(HOLDS_TOPIC).ok_or(DispatcherError::NoHolds)?.partitions();
        let count = match settings.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let shutdown = CancellationToken::new();
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            threads.push(runtime.handle().clone());
            let ends = shutdown.clone();
            let thread = std::thread::Builder::new().name(format!("dispatch-{number}"));
            thread.spawn(move || runtime.block_on(ends.cancelled()))?;
        }
        let tools = Tools {
            log: ports.log,
            registry: ports.registry,
            subscriptions: ports.subscriptions,
            progress: ports.progress,
            notebook: ports.notebook,
            clock: ports.clock,
            events: ports.events,
            stats: ports.stats,
            settings,
            began: Instant::now(),
        };
        Ok(Arc::new(Self {
            tools: Arc::new(tools),
            shards,
            threads,
            reach: watch::Sender::new(None),
            owned: Mutex::default(),
            running: Arc::default(),
            shutdown,
        }))
    }

    /// What is there once the node has joined the others: the owners of holds, and the workers.
    pub fn reach(&self, holds: Arc<dyn Holds>, callbacks: Arc<dyn Callbacks>) {
        self.reach.send_replace(Some(Reach { holds, callbacks }));
    }

    /// Gives every subscription up, each behind its last progress, and ends the threads.
    pub async fn close(&self) {
        let owned: Vec<u32> = self.owned().keys().copied().collect();
        join_all(owned.into_iter().map(|shard| self.end(shard))).await;
        self.shutdown.cancel();
    }

    fn owned(&self) -> MutexGuard<'_, HashMap<u32, OwnedShard>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a subscription does not run here: one that is being deleted never will, and nobody need wait for it.
    fn not_running(&self, number: SubscriptionNumber) -> DispatchDeskError {
        let is_deleted = self.tools.subscriptions.by_number(number).is_some_and(|known| known.stored.deleting);
        let is_ours = self.owned().contains_key(&number.shard(self.shards));
        if is_deleted && is_ours { DispatchError::Unknown.into() } else { DispatchDeskError::NotHere }
    }

    fn thread_of(&self, number: SubscriptionNumber) -> &Handle {
        &self.threads[number.0 as usize % self.threads.len()]
    }
}

impl Duties for Dispatcher {
    fn begin(&self, shard: u32, epoch: u64, _: Arc<dyn Membership>) {
        let stop = CancellationToken::new();
        let (ended_sender, ended) = watch::channel(false);
        self.owned().insert(shard, OwnedShard { stop: stop.clone(), ended });
        let keeper = ShardKeeper {
            tools: Arc::clone(&self.tools),
            reach: self.reach.subscribe(),
            threads: self.threads.clone(),
            running: Arc::clone(&self.running),
            shard,
            shards: self.shards,
            epoch,
            stop,
        };
        let thread = self.thread_of(SubscriptionNumber(shard)).clone();
        thread.spawn(async move {
            keeper.keep().await;
            ended_sender.send_replace(true);
        });
    }

    fn end(&self, shard: u32) -> PortFuture<'_, ()> {
        let owned = self.owned().remove(&shard);
        Box::pin(async move {
            if let Some(mut owned) = owned {
                owned.stop.cancel();
                // An error says that the task is gone, which is as good.
                let _ = owned.ended.wait_for(|ended| *ended).await;
            }
        })
    }
}

impl DispatchDesk for Dispatcher {
    fn ask(
        &self,
        subscription: SubscriptionNumber,
        ask: DispatchAsk,
    ) -> PortFuture<'_, Result<DispatchTold, DispatchDeskError>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let questions = running.get(&subscription).map(|running| running.questions.clone());
        drop(running);
        let questions = questions.ok_or_else(|| self.not_running(subscription));
        Box::pin(async move {
            let questions = questions?;
            let (reply, answer) = oneshot::channel();
            match questions.try_send(Question { ask, reply }) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(_)) => {
                    let why = format!("{QUESTIONS_WAITING} questions wait for it already");
                    return Err(DispatchError::Unavailable(why).into());
                }
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(DispatchDeskError::NotHere),
            }
            let gone = || DispatchError::OutcomeUnknown("its owner ended without an answer".to_owned());
            Ok(answer.await.unwrap_or_else(|_| Err(gone()))?)
        })
    }

    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>> {
        Box::pin(self.tools.stats.minutes(topic, from, to))
    }
}

/// Runs whatever subscriptions a shard has, for as long as the shard is owned.
struct ShardKeeper {
    tools: Arc<Tools>,
    reach: watch::Receiver<Option<Reach>>,
    threads: Vec<Handle>,
    running: Arc<Mutex<HashMap<SubscriptionNumber, Running>>>,
    shard: u32,
    shards: u32,
    epoch: u64,
    stop: CancellationToken,
}

impl ShardKeeper {
    async fn keep(self) {
        let mut changes = self.tools.subscriptions.changes();
        let (ended_sender, mut ended) = mpsc::unbounded_channel::<(SubscriptionNumber, Ended)>();
        let mut begun: HashMap<SubscriptionNumber, ()> = HashMap::new();
        loop {
            changes.mark_unchanged();
            for subscription in self.tools.subscriptions.all() {
                let number = subscription.number();
                let is_ours = number.shard(self.shards) == self.shard && !subscription.stored.deleting;
                if is_ours && begun.insert(number, ()).is_none() {
                    self.begin(number, ended_sender.clone());
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => break,
                changed = changes.changed() => if changed.is_err() { break },
                Some((number, how)) = ended.recv() => {
                    if let Ended::Failed(why) = &how {
                        tracing::warn!(subscription = number.0, why, "a subscription ended badly and is begun again");
                        tokio::select! {
                            () = tokio::time::sleep(REST) => {}
                            () = self.stop.cancelled() => {}
                        }
                    }
                    begun.remove(&number);
                }
            }
        }
        self.stop.cancel();
        while !begun.is_empty() {
            let Some((number, _)) = ended.recv().await else { break };
            begun.remove(&number);
        }
    }

    fn begin(&self, number: SubscriptionNumber, ended: mpsc::UnboundedSender<(SubscriptionNumber, Ended)>) {
        let (questions, asked) = mpsc::channel(QUESTIONS_WAITING);
        let lock = || self.running.lock().unwrap_or_else(PoisonError::into_inner);
        lock().insert(number, Running { epoch: self.epoch, questions });
        let (running, epoch) = (Arc::clone(&self.running), self.epoch);
        let running_it = run(Arc::clone(&self.tools), self.reach.clone(), number, epoch, asked, self.stop.clone());
        let thread = &self.threads[number.0 as usize % self.threads.len()];
        thread.spawn(async move {
            // One that panics must not leave a subscription that is owned and delivers nothing: it begins again from its progress.
            let how = AssertUnwindSafe(running_it).catch_unwind().await;
            let how = how.unwrap_or_else(|_| Ended::Failed("it panicked".to_owned()));
            let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
            if running.get(&number).is_some_and(|each| each.epoch == epoch) {
                running.remove(&number);
            }
            drop(running);
            // Without a keeper nobody waits for it.
            let _ = ended.send((number, how));
        });
    }
}
