//! Holds: messages with a due time. The role `center` owns shards of them, applies their records, fires them when due, and answers
//! requests about them.
//!
//! [`shard`] decides and is pure: it takes what happened, with the time, and returns effects. [`owner`] performs them: it reads and commits
//! to the log, reads and writes the store, and answers. `docs/internals/holds-rules.md` lists the rules and their tests.
//! The center has a thread of its own with one task per shard. The cluster assigns shards to it through [`Duties`].

mod alarm;
pub mod aside;
mod blocked;
mod commit;
pub mod figures;
mod log_calls;
pub mod owner;
pub mod settings;
pub mod shard;
#[cfg(test)]
mod testing;
pub mod unsaved;
pub mod wheel;
pub mod window;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Ask, CountQuery, HoldsError, Log, Membership, PortFuture, Timers, Told};
use whimbrel_model::{Clock, Event, EventSink, HOLDS_TOPIC, HoldId, PartitionId};

use figures::HoldFigures;
use owner::{Question, Tools, own};
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::Registry;
use whimbrel_cluster::{Desk, DeskError, Duties, Resign};

pub use figures::NAMES as METRIC_NAMES;
pub use settings::HoldsSettings;

/// A map by the id of a hold. Each fold and each decision reads it several times. The hash is seeded at random, so that callers cannot
/// choose ids that collide.
pub(crate) type IdMap<V> = HashMap<HoldId, V, foldhash::fast::RandomState>;

/// How often the pending holds are counted for the figures.
const COUNT_EVERY: Duration = Duration::from_secs(10);
/// Buckets so wide that a count is one number, or few.
const ONE_BUCKET: Duration = Duration::from_secs(366 * 86_400);

/// What the center works with.
pub struct CenterPorts {
    pub log: Arc<dyn Log>,
    pub timers: Arc<dyn Timers>,
    pub registry: Arc<Registry>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub stats: Arc<TopicStats>,
    /// How a shard is given up by the center itself.
    pub resign: Resign,
}

#[derive(Debug, thiserror::Error)]
pub enum CenterError {
    #[error("the topic `{HOLDS_TOPIC}` is not there")]
    NoHolds,
    #[error("the center's thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// The owner of shards.
pub struct Center {
    tools: Arc<Tools>,
    topic: whimbrel_model::TopicNumber,
    resign: Resign,
    runtime: Handle,
    running: Arc<Mutex<HashMap<u32, Running>>>,
    shutdown: CancellationToken,
}

struct Running {
    epoch: u64,
    questions: mpsc::Sender<Question>,
    stop: CancellationToken,
    ended: watch::Receiver<bool>,
}

impl Center {
    /// Starts the center's thread. It owns nothing yet.
    pub fn start(ports: CenterPorts, settings: HoldsSettings) -> Result<Arc<Self>, CenterError> {
        let topic = ports.registry.get(HOLDS_TOPIC).ok_or(CenterError::NoHolds)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let shutdown = CancellationToken::new();
        let ends = shutdown.clone();
        std::thread::Builder::new().name("center".to_owned()).spawn(move || runtime.block_on(ends.cancelled()))?;
        let tools = Tools {
            log: ports.log,
            timers: ports.timers,
            registry: ports.registry,
            clock: ports.clock,
            events: ports.events,
            settings: Arc::new(settings),
            shards: topic.partitions(),
            figures: HoldFigures::new(ports.stats),
            began: Instant::now(),
        };
        let center = Arc::new(Self {
            tools: Arc::new(tools),
            topic: topic.number(),
            resign: ports.resign,
            runtime: handle,
            running: Arc::default(),
            shutdown,
        });
        center.runtime.spawn(keep_figures(Arc::downgrade(&center)));
        Ok(center)
    }

    pub fn shards(&self) -> u32 {
        self.tools.shards
    }

    /// The shards that are owned here.
    pub fn owned(&self) -> Vec<u32> {
        let mut owned: Vec<u32> = self.running().keys().copied().collect();
        owned.sort_unstable();
        owned
    }

    /// Gives every shard up and ends the thread.
    pub async fn close(&self) {
        for shard in self.owned() {
            self.end(shard).await;
        }
        self.shutdown.cancel();
    }

    fn running(&self) -> MutexGuard<'_, HashMap<u32, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Duties for Center {
    fn begin(&self, shard: u32, epoch: u64, membership: Arc<dyn Membership>) {
        let (questions, asked) = mpsc::channel(self.tools.settings.commands_waiting.max(1));
        let (ended_sender, ended) = watch::channel(false);
        let stop = CancellationToken::new();
        let (tools, ends) = (Arc::clone(&self.tools), stop.clone());
        let partition = PartitionId::new(self.topic, shard);
        let (resign, shared) = (self.resign.clone(), Arc::clone(&self.tools));
        let running = Arc::clone(&self.running);
        self.running().insert(shard, Running { epoch, questions, stop, ended });
        self.runtime.spawn(async move {
            // An owner that panics must not leave a shard that is owned and answers nobody: it is taken anew from store and log.
            let owning = AssertUnwindSafe(own(tools, shard, partition, epoch, membership, asked, ends)).catch_unwind();
            let why = owning.await.unwrap_or_else(|_| Some("its owner panicked".to_owned()));
            // However it ended: doors would otherwise wait for an owner here that is none any more.
            if let Some(holds) = shared.registry.get(HOLDS_TOPIC) {
                holds.running.folding.left(shard);
            }
            shared.figures.forget_shard(shard);
            if let Some(why) = why {
                let detail = format!("shard {shard} of the holds was given up: {why}");
                tracing::warn!(shard, epoch, %why, "a shard of the holds was given up");
                (shared.events)(Event::warning("holds_shard_given_up", detail).with("shard", shard));
                let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
                if running.get(&shard).is_some_and(|entry| entry.epoch == epoch) {
                    running.remove(&shard);
                }
                drop(running);
                resign.resign(shard, epoch);
            }
            ended_sender.send_replace(true);
        });
    }

    fn end(&self, shard: u32) -> PortFuture<'_, ()> {
        let running = self.running().remove(&shard);
        Box::pin(async move {
            if let Some(mut running) = running {
                running.stop.cancel();
                // An error says that the task is gone, which is as good.
                let _ = running.ended.wait_for(|ended| *ended).await;
            }
        })
    }
}

impl Desk for Center {
    fn ask(&self, shard: u32, ask: Ask) -> PortFuture<'_, Result<Told, DeskError>> {
        let questions = self.running().get(&shard).map(|running| running.questions.clone());
        Box::pin(async move {
            let questions = questions.ok_or(DeskError::NotHere)?;
            let (reply, answer) = oneshot::channel();
            match questions.try_send(Question { ask, reply }) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(_)) => return Err(HoldsError::Overloaded(shard).into()),
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(DeskError::NotHere),
            }
            answer.await.unwrap_or_else(|_| {
                Err(HoldsError::OutcomeUnknown("the owner of the hold ended without an answer".to_owned()).into())
            })
        })
    }
}

async fn keep_figures(center: std::sync::Weak<Center>) {
    loop {
        let Some(center) = center.upgrade() else { return };
        center.tools.figures.sum_up();
        let mut pending = 0;
        for shard in center.owned() {
            let query = CountQuery { topic: None, from: None, to: None, bucket: ONE_BUCKET };
            if let Ok(Told::Counted(buckets)) = center.ask(shard, Ask::Count(query)).await {
                pending += buckets.iter().map(|(_, count)| count).sum::<u64>();
            }
        }
        center.tools.figures.pending.set(pending as f64);
        drop(center);
        tokio::time::sleep(COUNT_EVERY).await;
    }
}
