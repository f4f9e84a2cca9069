//! The role `carrier`: owns partitions of `_push`; takes every push of its users in order, to their devices and their inboxes.
//!
//! [`partition`] decides, and is pure; `owner` does what it says, one task per partition, on threads of its own. Which partitions are its
//! own is told to it ([`Duties`]); what gateways say comes through its [`CarrierDesk`].

mod append;
mod figures;
mod letters;
mod owner;
mod pace;
pub mod partition;
pub mod rows;
pub mod settings;
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
    CarrierDesk, Gateways, Inbox, Log, Membership, PeopleAsk, PeopleError, PeopleTold, PortFuture, ToCarrier,
};
use whimbrel_model::{Clock, Event, EventSink, PUSH_TOPIC, PartitionId, TopicNumber};

use figures::CarrierFigures;
use letters::LetterTopics;
use owner::{Post, Said, Tools, own};
use pace::Pace;
use settings::{ANSWER_WITHIN, ASKS_MAX};
use whimbrel_catalogue::topics::{Registry, Topic};
use whimbrel_cluster::{Duties, Resign};

pub use figures::NAMES as METRIC_NAMES;
pub use settings::CarrierSettings;
pub use user_box::PlatformRules;

/// What a partition is called in `Coordination`: this and its number.
pub const FAMILY: &str = "push";

/// What a carrier works with.
pub struct CarrierPorts {
    pub log: Arc<dyn Log>,
    pub inbox: Arc<dyn Inbox>,
    pub gateways: Arc<dyn Gateways>,
    pub rules: Arc<PlatformRules>,
    pub registry: Arc<Registry>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    /// How a partition is given up by the carrier itself.
    pub resign: Resign,
}

#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    #[error("the topics of pushes are not there")]
    NoTopics,
    #[error("a carrier's thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// The owner of partitions.
pub struct Carrier {
    tools: Arc<Tools>,
    topic: TopicNumber,
    resign: Resign,
    threads: Vec<Handle>,
    running: Arc<Mutex<HashMap<u32, Running>>>,
    serving: watch::Sender<Arc<Vec<Option<u64>>>>,
    asks: Arc<Semaphore>,
    shutdown: CancellationToken,
}

struct Running {
    epoch: u64,
    said: mpsc::UnboundedSender<Said>,
    stop: CancellationToken,
    ended: watch::Receiver<bool>,
}

impl Carrier {
    /// Starts the carrier's threads. It owns nothing yet.
    pub fn start(ports: CarrierPorts, settings: CarrierSettings) -> Result<Arc<Self>, CarrierError> {
        let push = ports.registry.get(PUSH_TOPIC).ok_or(CarrierError::NoTopics)?;
        let topics = LetterTopics::of(&ports.registry).ok_or(CarrierError::NoTopics)?;
        let shutdown = CancellationToken::new();
        let mut threads = Vec::new();
        for number in 0..settings.threads.max(1) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            threads.push(runtime.handle().clone());
            let ends = shutdown.clone();
            let thread = std::thread::Builder::new().name(format!("carrier-{number}"));
            thread.spawn(move || runtime.block_on(ends.cancelled()))?;
        }
        let tools = Tools {
            log: ports.log,
            inbox: ports.inbox,
            gateways: ports.gateways,
            rules: ports.rules,
            topics,
            clock: ports.clock,
            events: ports.events,
            pace: Pace::new(settings.pages_per_second),
            inbox_epoch: inbox_epoch(&push, settings.generation).into(),
            settings: Arc::new(settings),
            figures: CarrierFigures::new(),
        };
        let nothing = Arc::new(vec![None; push.partitions() as usize]);
        Ok(Arc::new(Self {
            tools: Arc::new(tools),
            topic: push.number(),
            resign: ports.resign,
            threads,
            running: Arc::default(),
            serving: watch::Sender::new(nothing),
            asks: Arc::new(Semaphore::new(ASKS_MAX)),
            shutdown,
        }))
    }

    /// The partitions that are owned here.
    pub fn owned(&self) -> Vec<u32> {
        let mut owned: Vec<u32> = self.running().keys().copied().collect();
        owned.sort_unstable();
        owned
    }

    /// Gives every partition up and ends the threads.
    pub async fn close(&self) {
        let ending = self.owned().into_iter().map(|partition| self.end(partition));
        futures_util::future::join_all(ending).await;
        self.shutdown.cancel();
    }

    fn running(&self) -> MutexGuard<'_, HashMap<u32, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The identity of the topic and of its history: numbers of another one are other numbers.
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

impl Duties for Carrier {
    fn begin(&self, shard: u32, epoch: u64, membership: Arc<dyn Membership>) {
        let (said, hears) = mpsc::unbounded_channel();
        let (ended_sender, ended) = watch::channel(false);
        let stop = CancellationToken::new();
        let (tools, ends) = (Arc::clone(&self.tools), stop.clone());
        let partition = PartitionId::new(self.topic, shard);
        let post = Post { number: shard, partition, name: format!("{FAMILY}/{shard}"), epoch, membership };
        let (resign, shared) = (self.resign.clone(), Arc::clone(&self.tools));
        let (running, serving) = (Arc::clone(&self.running), self.serving.clone());
        self.running().insert(shard, Running { epoch, said, stop, ended });
        let thread = &self.threads[shard as usize % self.threads.len()];
        thread.spawn(async move {
            let serves = |is_serving: bool| set_serving(&serving, shard, is_serving.then_some(epoch));
            // An owner that panics must not leave a partition that is owned and carries nothing: it is taken anew from store and log.
            let owning = AssertUnwindSafe(own(tools, post, hears, serves, ends)).catch_unwind();
            let why = owning.await.unwrap_or_else(|_| Some("its owner panicked".to_owned()));
            serves(false);
            // However it ended: doors would otherwise wait for an owner here that is none any more.
            shared.topics.push().running.folding.left(shard);
            shared.figures.present(shard, None);
            if let Some(why) = why {
                let detail = format!("partition {shard} of the pushes was given up: {why}");
                tracing::warn!(partition = shard, epoch, %why, "a partition of the pushes was given up");
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
                // An error says that the task is gone, which is as good.
                let _ = running.ended.wait_for(|ended| *ended).await;
            }
        })
    }
}

impl CarrierDesk for Carrier {
    fn take(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> bool {
        let running = self.running();
        running.get(&partition).is_some_and(|running| running.said.send(Said::From(from, messages)).is_ok())
    }

    fn afresh(&self, from: GatewayId) {
        // Those that have ended have no sessions.
        self.running().values().for_each(|running| drop(running.said.send(Said::Afresh(from))));
    }

    fn ask(&self, partition: u32, ask: PeopleAsk) -> PortFuture<'_, Option<Result<PeopleTold, PeopleError>>> {
        let said = self.running().get(&partition).map(|running| running.said.clone());
        Box::pin(async move {
            let said = said?;
            let Ok(_place) = self.asks.try_acquire() else {
                return Some(Err(PeopleError::Overloaded(partition)));
            };
            let (reply, answer) = oneshot::channel();
            said.send(Said::Ask(ask, reply)).ok()?;
            match tokio::time::timeout(ANSWER_WITHIN, answer).await {
                Ok(answer) => answer.ok(),
                Err(_) => Some(Err(PeopleError::Unavailable("the log cannot be read to its end".to_owned()))),
            }
        })
    }

    fn serving(&self) -> watch::Receiver<Arc<Vec<Option<u64>>>> {
        self.serving.subscribe()
    }
}
