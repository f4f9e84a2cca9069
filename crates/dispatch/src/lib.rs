//! Dispatch: delivers the messages of topics to subscriptions, in order, and retries failed deliveries.
//!
//! [`runner`] is the state machine of one subscription, and is pure like its parts: [`window`], [`delivery_line`], [`endpoint_health`] and
//! the other modules beside it. The shell performs its effects. The [`Dispatcher`] runs the subscriptions of the shards that this node
//! owns. Each subscription stays on one thread, so that its calls need no synchronization.

pub mod attempt_history;
pub mod breaker;
pub mod call_verdict;
mod catalogue_changes;
pub mod concurrency_limit;
pub mod delivery_line;
pub mod endpoint_health;
pub mod incidents;
pub mod line_set;
pub mod message_filter;
pub mod outbound_message;
pub mod pending_appends;
pub mod progress_format;
pub mod redriven_letters;
pub mod retry_hold_count;
pub mod retry_schedule;
pub mod runner;
pub mod runner_clock;
pub mod saved_progress;
pub mod settings;
mod shell;
pub mod source_topics;
mod subscription_metrics;
pub mod throttle;
pub mod window;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{
    AttemptStore, Callbacks, DispatchError, DispatchReply, DispatchRequest, Holds, Log, Membership, MinuteRow,
    PortFuture, Progress,
};
use whimbrel_model::{Clock, EventSink, HOLDS_TOPIC, SubscriptionNumber, Timestamp, TopicNumber};

use runner::RunEnd;
use shell::{DispatchContext, JoinedPorts, SubscriptionRequest, run};
use whimbrel_catalogue::subscriptions::SubscriptionRegistry;
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::Registry;
use whimbrel_cluster::{LocalDispatch, LocalDispatchError, ShardOwner, Supervisor};

pub use settings::DispatchSettings;
pub use subscription_metrics::NAMES as METRIC_NAMES;

/// The most requests to one subscription that wait.
const REQUESTS_WAITING_MAX: usize = 1024;
/// The pause before a failed subscription is restarted.
const REST: Duration = Duration::from_secs(1);

pub struct DispatchPorts {
    pub log: Arc<dyn Log>,
    pub registry: Arc<Registry>,
    pub subscriptions: Arc<SubscriptionRegistry>,
    pub progress: Arc<dyn Progress>,
    pub notebook: Arc<dyn AttemptStore>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub stats: Arc<TopicStats>,
}

#[derive(Debug, thiserror::Error)]
pub enum DispatcherError {
    #[error("the topic `{HOLDS_TOPIC}` does not exist")]
    NoHolds,
    #[error("cannot start a thread of the dispatcher: {0}")]
    Thread(#[from] std::io::Error),
}

/// Runs the subscriptions of the shards that this node owns.
pub struct Dispatcher {
    context: Arc<DispatchContext>,
    shards: u32,
    joined: watch::Sender<Option<JoinedPorts>>,
    keepers: Supervisor<()>,
    running: Arc<Mutex<HashMap<SubscriptionNumber, RunningSubscription>>>,
}

struct RunningSubscription {
    epoch: u64,
    requests: mpsc::Sender<SubscriptionRequest>,
}

impl Dispatcher {
    /// Starts the threads. Deliveries begin when this node owns a shard and [`Dispatcher::connect`] was called.
    pub fn start(ports: DispatchPorts, settings: DispatchSettings) -> Result<Arc<Self>, DispatcherError> {
        let shards = ports.registry.get(HOLDS_TOPIC).ok_or(DispatcherError::NoHolds)?.partitions();
        let count = match settings.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let keepers = Supervisor::start((0..count).map(|number| format!("dispatch-{number}")), None)?;
        Ok(Arc::new(Self {
            context: Arc::new(DispatchContext { ports, settings, began: Instant::now() }),
            shards,
            joined: watch::Sender::new(None),
            keepers,
            running: Arc::default(),
        }))
    }

    /// Provides the owners of holds and the workers, once the node has joined the cluster.
    pub fn connect(&self, holds: Arc<dyn Holds>, callbacks: Arc<dyn Callbacks>) {
        self.joined.send_replace(Some(JoinedPorts { holds, callbacks }));
    }

    /// Stops all subscriptions after saving their progress, and ends the threads.
    pub async fn close(&self) {
        self.keepers.close().await;
    }

    /// The error for a subscription that does not run here. A subscription that is being deleted never will, so callers need not retry.
    fn not_running(&self, number: SubscriptionNumber) -> LocalDispatchError {
        let is_deleted = self.context.ports.subscriptions.by_number(number).is_some_and(|known| known.stored.deleting);
        let is_ours = self.keepers.door(number.shard(self.shards)).is_some();
        if is_deleted && is_ours { DispatchError::Unknown.into() } else { LocalDispatchError::NotHere }
    }
}

impl ShardOwner for Dispatcher {
    fn begin(&self, shard: u32, epoch: u64, _: Arc<dyn Membership>) {
        let (context, running) = (Arc::clone(&self.context), Arc::clone(&self.running));
        let (joined, threads, shards) = (self.joined.subscribe(), self.keepers.threads().to_vec(), self.shards);
        let own = |stop| async move {
            ShardKeeper { context, joined, threads, running, shard, shards, epoch, stop }.keep().await;
            None
        };
        self.keepers.begin((shard, epoch), (), own, move |why| {
            if let Some(why) = why {
                tracing::error!(shard, why, "the subscriptions of a shard are not run any more");
            }
        });
    }

    fn end(&self, shard: u32) -> PortFuture<'_, ()> {
        self.keepers.end(shard)
    }
}

impl LocalDispatch for Dispatcher {
    fn ask(
        &self,
        subscription: SubscriptionNumber,
        ask: DispatchRequest,
    ) -> PortFuture<'_, Result<DispatchReply, LocalDispatchError>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = running.get(&subscription).map(|running| running.requests.clone());
        drop(running);
        let requests = requests.ok_or_else(|| self.not_running(subscription));
        Box::pin(async move {
            let requests = requests?;
            let (reply, answer) = oneshot::channel();
            match requests.try_send(SubscriptionRequest { ask, reply }) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(_)) => {
                    let why = format!("{REQUESTS_WAITING_MAX} requests wait for the subscription already");
                    return Err(DispatchError::Unavailable(why).into());
                }
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(LocalDispatchError::NotHere),
            }
            let gone =
                || DispatchError::OutcomeUnknown("the owner of the subscription stopped before it answered".to_owned());
            Ok(answer.await.unwrap_or_else(|_| Err(gone()))?)
        })
    }

    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>> {
        Box::pin(self.context.ports.stats.minutes(topic, from, to))
    }
}

/// Runs the subscriptions of a shard while the shard is owned.
struct ShardKeeper {
    context: Arc<DispatchContext>,
    joined: watch::Receiver<Option<JoinedPorts>>,
    threads: Vec<Handle>,
    running: Arc<Mutex<HashMap<SubscriptionNumber, RunningSubscription>>>,
    shard: u32,
    shards: u32,
    epoch: u64,
    stop: CancellationToken,
}

impl ShardKeeper {
    async fn keep(self) {
        let mut changes = self.context.ports.subscriptions.changes();
        let (ended_sender, mut ended) = mpsc::unbounded_channel::<(SubscriptionNumber, RunEnd)>();
        let mut begun: HashMap<SubscriptionNumber, ()> = HashMap::new();
        loop {
            changes.mark_unchanged();
            for subscription in self.context.ports.subscriptions.all() {
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
                    if let RunEnd::Failed(why) = &how {
                        tracing::warn!(subscription = number.0, why, "a subscription failed and is restarted");
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

    fn begin(&self, number: SubscriptionNumber, ended: mpsc::UnboundedSender<(SubscriptionNumber, RunEnd)>) {
        let (requests, asked) = mpsc::channel(REQUESTS_WAITING_MAX);
        let lock = || self.running.lock().unwrap_or_else(PoisonError::into_inner);
        lock().insert(number, RunningSubscription { epoch: self.epoch, requests });
        let (running, epoch) = (Arc::clone(&self.running), self.epoch);
        let running_it = run(Arc::clone(&self.context), self.joined.clone(), number, epoch, asked, self.stop.clone());
        let thread = &self.threads[number.0 as usize % self.threads.len()];
        thread.spawn(async move {
            // A panic must not leave an owned subscription that delivers nothing. It restarts from its saved progress.
            let how = AssertUnwindSafe(running_it).catch_unwind().await;
            let how = how.unwrap_or_else(|_| RunEnd::Failed("the runner panicked".to_owned()));
            let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
            if running.get(&number).is_some_and(|each| each.epoch == epoch) {
                running.remove(&number);
            }
            drop(running);
            // An error means that the shard was given up.
            let _ = ended.send((number, how));
        });
    }
}
