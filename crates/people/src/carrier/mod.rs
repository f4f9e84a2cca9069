//! The role `carrier`: owns partitions of `_push` and takes each push of their users, in order, to devices and inboxes.
//!
//! [`partition`] is the pure state machine; `owner` is its shell: one task per partition, on the carrier's own threads. The cluster
//! assigns partitions through [`ShardOwner`]; messages of gateways arrive through [`LocalCarriers`].

mod append;
mod metrics;
mod owner;
mod page_rate;
pub mod partition;
pub mod rows;
pub mod settings;
mod topics;
pub mod user_box;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{
    Gateways, Inbox, LocalCarriers, Log, Membership, PeopleError, PeopleQuery, PeopleReply, PortFuture, ToCarrier,
};
use whimbrel_model::{Clock, Event, EventSink, PUSH_TOPIC, PartitionId, TopicNumber};

use self::metrics::CarrierMetrics;
use owner::{CarrierContext, OwnedPartition, OwnerMessage, run_owner};
use page_rate::PageRateLimit;
use settings::{ANSWER_WITHIN, ASKS_MAX};
use topics::CarrierTopics;
use whimbrel_catalogue::topics::{Registry, Topic};
use whimbrel_cluster::{Resign, ShardOwner};

pub use self::metrics::NAMES as METRIC_NAMES;
pub use settings::CarrierSettings;
pub use user_box::PlatformRules;

/// The family of `_push` in `Coordination`: a partition's name is this and its number.
pub const FAMILY: &str = "push";

pub struct CarrierPorts {
    pub log: Arc<dyn Log>,
    pub inbox: Arc<dyn Inbox>,
    pub gateways: Arc<dyn Gateways>,
    pub rules: Arc<PlatformRules>,
    pub registry: Arc<Registry>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    /// Gives a partition up from within the carrier.
    pub resign: Resign,
}

#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    #[error("a system topic of pushes does not exist")]
    NoTopics,
    #[error("cannot start a carrier thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// The carrier of this node: runs the owners of its partitions.
pub struct Carrier {
    context: Arc<CarrierContext>,
    topic: TopicNumber,
    resign: Resign,
    threads: Vec<Handle>,
    running: Arc<Mutex<HashMap<u32, RunningOwner>>>,
    serving: watch::Sender<Arc<Vec<Option<u64>>>>,
    asks: Arc<Semaphore>,
    shutdown: CancellationToken,
}

struct RunningOwner {
    epoch: u64,
    messages: mpsc::UnboundedSender<OwnerMessage>,
    stop: CancellationToken,
    ended: watch::Receiver<bool>,
}

impl Carrier {
    /// Starts the carrier's threads. It owns no partition yet.
    pub fn start(ports: CarrierPorts, settings: CarrierSettings) -> Result<Arc<Self>, CarrierError> {
        let push = ports.registry.get(PUSH_TOPIC).ok_or(CarrierError::NoTopics)?;
        let topics = CarrierTopics::of(&ports.registry).ok_or(CarrierError::NoTopics)?;
        let shutdown = CancellationToken::new();
        let mut threads = Vec::new();
        for number in 0..settings.threads.max(1) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            threads.push(runtime.handle().clone());
            let ends = shutdown.clone();
            let thread = std::thread::Builder::new().name(format!("carrier-{number}"));
            thread.spawn(move || runtime.block_on(ends.cancelled()))?;
        }
        let context = CarrierContext {
            log: ports.log,
            inbox: ports.inbox,
            gateways: ports.gateways,
            rules: ports.rules,
            topics,
            clock: ports.clock,
            events: ports.events,
            page_rate: PageRateLimit::new(settings.pages_per_second),
            inbox_epoch: inbox_epoch(&push, settings.generation).into(),
            settings: Arc::new(settings),
            metrics: CarrierMetrics::new(),
        };
        let nothing = Arc::new(vec![None; push.partitions() as usize]);
        Ok(Arc::new(Self {
            context: Arc::new(context),
            topic: push.number(),
            resign: ports.resign,
            threads,
            running: Arc::default(),
            serving: watch::Sender::new(nothing),
            asks: Arc::new(Semaphore::new(ASKS_MAX)),
            shutdown,
        }))
    }

    /// The partitions that this node owns.
    pub fn owned(&self) -> Vec<u32> {
        let mut owned: Vec<u32> = self.running().keys().copied().collect();
        owned.sort_unstable();
        owned
    }

    /// Releases every partition and stops the threads.
    pub async fn close(&self) {
        let ending = self.owned().into_iter().map(|partition| self.end(partition));
        futures_util::future::join_all(ending).await;
        self.shutdown.cancel();
    }

    fn running(&self) -> MutexGuard<'_, HashMap<u32, RunningOwner>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Identifies the topic and its history. Sequence numbers of another epoch refer to other messages.
fn inbox_epoch(push: &Topic, generation: u64) -> String {
    let topic = format!("{:x}-{:x}", push.number().0, push.stored.created_at_ms);
    if generation == 0 { topic } else { format!("{topic}-{generation:x}") }
}

fn set_serving(serving: &watch::Sender<Arc<Vec<Option<u64>>>>, partition: u32, epoch: Option<u64>) {
    serving.send_modify(|present| {
        let mut next = Vec::clone(present);
        if let Some(place) = next.get_mut(partition as usize) {
            *place = epoch;
        }
        *present = Arc::new(next);
    });
}

impl ShardOwner for Carrier {
    fn begin(&self, shard: u32, epoch: u64, membership: Arc<dyn Membership>) {
        let (messages, receiver) = mpsc::unbounded_channel();
        let (ended_sender, ended) = watch::channel(false);
        let stop = CancellationToken::new();
        let (context, ends) = (Arc::clone(&self.context), stop.clone());
        let partition = PartitionId::new(self.topic, shard);
        let owned = OwnedPartition { number: shard, partition, name: format!("{FAMILY}/{shard}"), epoch, membership };
        let (resign, shared) = (self.resign.clone(), Arc::clone(&self.context));
        let (running, serving) = (Arc::clone(&self.running), self.serving.clone());
        self.running().insert(shard, RunningOwner { epoch, messages, stop, ended });
        let thread = &self.threads[shard as usize % self.threads.len()];
        thread.spawn(async move {
            let serves = |is_serving: bool| set_serving(&serving, shard, is_serving.then_some(epoch));
            // After a panic the partition must not stay owned and idle: the next owner starts from store and log.
            let owning = AssertUnwindSafe(run_owner(context, owned, receiver, serves, ends)).catch_unwind();
            let why = owning.await.unwrap_or_else(|_| Some("its owner panicked".to_owned()));
            serves(false);
            // Also after an error: otherwise `receive` would still wait for this owner's progress.
            shared.topics.push().counters.fold_backlog.owner_left(shard);
            shared.metrics.present(shard, None);
            if let Some(why) = why {
                let detail = format!("the owner released push partition {shard}: {why}");
                tracing::warn!(partition = shard, epoch, %why, "the owner released a push partition");
                (shared.events)(Event::warning("push_partition_given_up", detail).with("partition", shard));
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
                // An error means that the task has already ended.
                let _ = running.ended.wait_for(|ended| *ended).await;
            }
        })
    }
}

impl LocalCarriers for Carrier {
    fn take(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> bool {
        let running = self.running();
        running
            .get(&partition)
            .is_some_and(|running| running.messages.send(OwnerMessage::FromGateway(from, messages)).is_ok())
    }

    fn link_reset(&self, from: GatewayId) {
        // An owner that has ended has no sessions.
        self.running().values().for_each(|running| drop(running.messages.send(OwnerMessage::GatewayReconnected(from))));
    }

    fn ask(&self, partition: u32, ask: PeopleQuery) -> PortFuture<'_, Option<Result<PeopleReply, PeopleError>>> {
        let messages = self.running().get(&partition).map(|running| running.messages.clone());
        Box::pin(async move {
            let messages = messages?;
            let Ok(_place) = self.asks.try_acquire() else {
                return Some(Err(PeopleError::Overloaded(partition)));
            };
            let (reply, answer) = oneshot::channel();
            messages.send(OwnerMessage::Query(ask, reply)).ok()?;
            match tokio::time::timeout(ANSWER_WITHIN, answer).await {
                Ok(answer) => answer.ok(),
                Err(_) => {
                    Some(Err(PeopleError::Unavailable("timeout while the owner reads the log to its end".to_owned())))
                }
            }
        })
    }

    fn serving(&self) -> watch::Receiver<Arc<Vec<Option<u64>>>> {
        self.serving.subscribe()
    }
}
