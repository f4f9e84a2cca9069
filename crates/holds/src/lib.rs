//! Holds: messages with a due time. A node with the role `center` owns shards of holds. It applies their records, fires them when due,
//! and answers requests about them.
//!
//! [`shard`] decides: it is a machine. [`owner`] is its edge: it reads and commits to the log, reads and writes the store, and answers.
//! `docs/internals/holds-rules.md` lists the rules and their tests.
//! The center has a thread of its own with one task per shard. The cluster assigns shards to it through [`ShardOwner`].

pub mod aside;
mod blocked;
mod commit;
pub mod hold_metrics;
mod log_calls;
pub mod owner;
pub mod settings;
pub mod shard;
#[cfg(test)]
mod testing;
pub mod timing_wheel;
pub mod unsaved_holds;
pub mod window;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use whimbrel_model::ports::{CountQuery, HoldReply, HoldRequest, HoldsError, Log, Membership, PortFuture, Timers};
use whimbrel_model::{Clock, Event, EventSink, HOLDS_TOPIC, HoldId, PartitionId};

use hold_metrics::HoldMetrics;
use owner::{CenterContext, HoldEdge, OwnedShard, QueuedRequest};
use shard::HoldShard;
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::Registry;
use whimbrel_cluster::{LocalHolds, LocalHoldsError, Resign, ShardOwner, Supervisor, shell};

pub use hold_metrics::NAMES as METRIC_NAMES;
pub use settings::HoldsSettings;

/// A map by the id of a hold. Each fold and each decision reads it several times. The hash has a random seed, so that callers cannot
/// choose ids that collide.
pub(crate) type IdMap<V> = HashMap<HoldId, V, foldhash::fast::RandomState>;

/// How often the center counts the pending holds for its metric.
const COUNT_EVERY: Duration = Duration::from_secs(10);
/// A bucket width that makes the reply to a count query one number, or few.
const ONE_BUCKET: Duration = Duration::from_secs(366 * 86_400);

pub struct CenterPorts {
    pub log: Arc<dyn Log>,
    pub timers: Arc<dyn Timers>,
    pub registry: Arc<Registry>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub stats: Arc<TopicStats>,
    /// Gives up a shard on the center's own initiative.
    pub resign: Resign,
}

#[derive(Debug, thiserror::Error)]
pub enum CenterError {
    #[error("the topic `{HOLDS_TOPIC}` does not exist")]
    NoHolds,
    #[error("cannot start the center's thread: {0}")]
    Thread(#[from] std::io::Error),
}

pub struct Center {
    context: Arc<CenterContext>,
    topic: whimbrel_model::TopicNumber,
    owners: Supervisor<mpsc::Sender<QueuedRequest>>,
}

impl Center {
    /// Starts the center's thread. The center owns no shard yet.
    pub fn start(ports: CenterPorts, settings: HoldsSettings) -> Result<Arc<Self>, CenterError> {
        let topic = ports.registry.get(HOLDS_TOPIC).ok_or(CenterError::NoHolds)?;
        let owners = Supervisor::start(["center".to_owned()], Some(ports.resign))?;
        let context = CenterContext {
            log: ports.log,
            timers: ports.timers,
            registry: ports.registry,
            clock: ports.clock,
            events: ports.events,
            settings: Arc::new(settings),
            shards: topic.partitions(),
            metrics: HoldMetrics::new(ports.stats),
            began: Instant::now(),
        };
        let center = Arc::new(Self { context: Arc::new(context), topic: topic.number(), owners });
        center.owners.thread_of(0).spawn(update_metrics(Arc::downgrade(&center)));
        Ok(center)
    }

    pub fn shards(&self) -> u32 {
        self.context.shards
    }

    pub fn owned(&self) -> Vec<u32> {
        self.owners.owned()
    }

    /// Gives up all shards and ends the thread.
    pub async fn close(&self) {
        self.owners.close().await;
    }
}

impl ShardOwner for Center {
    fn begin(&self, shard: u32, epoch: u64, membership: Arc<dyn Membership>) {
        let (door, requests) = mpsc::channel(self.context.settings.commands_waiting.max(1));
        let context = Arc::clone(&self.context);
        let owned = OwnedShard { number: shard, partition: PartitionId::new(self.topic, shard), epoch, membership };
        let own = |stop| async move {
            let machine = HoldShard::new(Arc::clone(&context.settings), context.shards, epoch, context.reading());
            shell::run(HoldEdge::new(context, owned, requests), machine, stop).await
        };
        let context = Arc::clone(&self.context);
        self.owners.begin((shard, epoch), door, own, move |why| {
            // Always: publishers would otherwise wait for the progress of an owner that has ended.
            if let Some(holds) = context.registry.get(HOLDS_TOPIC) {
                holds.counters.fold_backlog.owner_left(shard);
            }
            context.metrics.forget_shard(shard);
            if let Some(why) = why {
                let detail = format!("shard {shard} of the holds was given up: {why}");
                tracing::warn!(shard, epoch, %why, "a shard of the holds was given up");
                (context.events)(Event::warning("holds_shard_failed", detail).with("shard", shard));
            }
        });
    }

    fn end(&self, shard: u32) -> PortFuture<'_, ()> {
        self.owners.end(shard)
    }
}

impl LocalHolds for Center {
    fn ask(&self, shard: u32, ask: HoldRequest) -> PortFuture<'_, Result<HoldReply, LocalHoldsError>> {
        let requests = self.owners.door(shard);
        Box::pin(async move {
            let requests = requests.ok_or(LocalHoldsError::NotHere)?;
            let (reply, answer) = oneshot::channel();
            match requests.try_send(QueuedRequest { ask, reply }) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(_)) => return Err(HoldsError::Overloaded(shard).into()),
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(LocalHoldsError::NotHere),
            }
            answer.await.unwrap_or_else(|_| {
                Err(HoldsError::OutcomeUnknown("the owner of the hold stopped before it answered".to_owned()).into())
            })
        })
    }
}

async fn update_metrics(center: std::sync::Weak<Center>) {
    loop {
        let Some(center) = center.upgrade() else { return };
        center.context.metrics.sum_up();
        let mut pending = 0;
        for shard in center.owned() {
            let query = CountQuery { topic: None, from: None, to: None, bucket: ONE_BUCKET };
            if let Ok(HoldReply::Counted(buckets)) = center.ask(shard, HoldRequest::Count(query)).await {
                pending += buckets.iter().map(|(_, count)| count).sum::<u64>();
            }
        }
        center.context.metrics.pending.set(pending as f64);
        drop(center);
        tokio::time::sleep(COUNT_EVERY).await;
    }
}
