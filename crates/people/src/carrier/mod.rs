//! The role `carrier`: owns partitions of `_push` and takes each push of their users, in order, to devices and inboxes.
//!
//! [`partition`] is the machine, `owner` its edge: one task per partition, on the carrier's own threads. The cluster assigns partitions
//! through [`ShardOwner`]; messages of gateways arrive through [`LocalCarriers`].

mod append;
mod metrics;
mod owner;
mod page_rate;
pub mod partition;
pub mod rows;
pub mod settings;
mod topics;
pub mod user_box;

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{
    Gateways, Inbox, LocalCarriers, Log, Membership, PeopleError, PeopleQuery, PeopleReply, PortFuture, ToCarrier,
};
use whimbrel_model::{Clock, Event, EventSink, PUSH_TOPIC, PartitionId, TopicNumber};

use self::metrics::CarrierMetrics;
use owner::{CarrierContext, CarrierEdge, OwnedPartition, OwnerMessage};
use page_rate::PageRateLimit;
use settings::{ANSWER_WITHIN, ASKS_MAX};
use topics::CarrierTopics;
use whimbrel_catalogue::topics::{Registry, Topic};
use whimbrel_cluster::{Resign, ShardOwner, Supervisor, shell};

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
    owners: Supervisor<mpsc::UnboundedSender<OwnerMessage>>,
    serving: watch::Sender<Arc<Vec<Option<u64>>>>,
    asks: Arc<Semaphore>,
}

impl Carrier {
    /// Starts the carrier's threads. It owns no partition yet.
    pub fn start(ports: CarrierPorts, settings: CarrierSettings) -> Result<Arc<Self>, CarrierError> {
        let push = ports.registry.get(PUSH_TOPIC).ok_or(CarrierError::NoTopics)?;
        let topics = CarrierTopics::of(&ports.registry).ok_or(CarrierError::NoTopics)?;
        let names = (0..settings.threads.max(1)).map(|number| format!("carrier-{number}"));
        let owners = Supervisor::start(names, Some(ports.resign))?;
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
            owners,
            serving: watch::Sender::new(nothing),
            asks: Arc::new(Semaphore::new(ASKS_MAX)),
        }))
    }

    /// The partitions that this node owns.
    pub fn owned(&self) -> Vec<u32> {
        self.owners.owned()
    }

    /// Releases every partition and stops the threads.
    pub async fn close(&self) {
        self.owners.close().await;
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
        let (door, messages) = mpsc::unbounded_channel();
        let partition = PartitionId::new(self.topic, shard);
        let owned = OwnedPartition { number: shard, partition, name: format!("{FAMILY}/{shard}"), epoch, membership };
        let serving = self.serving.clone();
        let serves = move |is_serving: bool| set_serving(&serving, shard, is_serving.then_some(epoch));
        let (context, stops_serving) = (Arc::clone(&self.context), serves.clone());
        let own = |stop| async move {
            let edge = CarrierEdge::new(context, owned, messages, serves);
            let machine = edge.machine();
            shell::run(edge, machine, stop).await
        };
        let context = Arc::clone(&self.context);
        self.owners.begin((shard, epoch), door, own, move |why| {
            stops_serving(false);
            // Also after an error: otherwise `receive` would still wait for this owner's progress.
            context.topics.push().counters.fold_backlog.owner_left(shard);
            context.metrics.present(shard, None);
            if let Some(why) = why {
                let detail = format!("the owner released push partition {shard}: {why}");
                tracing::warn!(partition = shard, epoch, %why, "the owner released a push partition");
                (context.events)(Event::warning("push_partition_failed", detail).with("partition", shard));
            }
        });
    }

    fn end(&self, shard: u32) -> PortFuture<'_, ()> {
        self.owners.end(shard)
    }
}

impl LocalCarriers for Carrier {
    fn take(&self, partition: u32, from: GatewayId, messages: Vec<ToCarrier>) -> bool {
        let door = self.owners.door(partition);
        door.is_some_and(|door| door.send(OwnerMessage::FromGateway(from, messages)).is_ok())
    }

    fn link_reset(&self, from: GatewayId) {
        // An owner that has ended has no sessions.
        for door in self.owners.doors() {
            let _ = door.send(OwnerMessage::GatewayReconnected(from));
        }
    }

    fn ask(&self, partition: u32, ask: PeopleQuery) -> PortFuture<'_, Option<Result<PeopleReply, PeopleError>>> {
        let messages = self.owners.door(partition);
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
