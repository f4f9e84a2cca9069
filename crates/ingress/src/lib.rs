//! The roles `receive` and `admin`: HTTP and gRPC endpoints, validation, limits, durable append, the compatible endpoints of older
//! systems, and the pages.
//!
//! One file per endpoint, all with the same structure: the handler with its part of the API document, then its details. A publish is
//! answered only when the log has stored it. This crate uses the ports and never an engine, and keeps nothing that a restart would lose.

mod accept;
pub mod admin;
mod answer;
mod attributes;
mod batch;
mod body;
mod claims;
mod contract;
mod dead_letters;
mod delay_queue;
mod deliveries;
pub mod documents;
pub(crate) mod door;
mod draft;
mod entry;
mod event_stream;
pub mod events;
pub mod grpc;
mod grpc_guard;
mod hold_calls;
mod hold_list;
mod holding;
mod holds;
mod json_fields;
pub(crate) mod keys;
mod load;
mod message_json;
mod messages;
mod metric_names;
mod mqproxy;
pub mod openapi;
mod operating;
mod people;
mod problem;
mod publish;
mod pulling;
mod query;
mod read;
mod routes;
mod scan;
mod search;
pub(crate) mod settings;
mod soraka;
mod split;
mod stats;
mod subscription_body;
pub(crate) mod subscription_calls;
mod subscription_delete;
mod subscription_json;
mod subscription_runs;
pub(crate) mod subscriptions;
mod tail;
mod topic_workers;
pub(crate) mod topics;
mod undisturbed;

use std::sync::Arc;

use axum::Router;
use tokio::task::JoinHandle;
use whimbrel_model::ports::{
    Carriers, Devices, Dispatch, Holds, Inbox, Log, LogTopics, Presence, Progress, Receipts, ReceiptsError,
};
use whimbrel_model::{Clock, EVENTS_TOPIC, StoreHealth};

use crate::events::Events;
use door::Door;
use whimbrel_catalogue::platforms::Platforms;
use whimbrel_catalogue::subscriptions::Subscriptions;
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::{Registry, TopicError};
use whimbrel_cluster::reachability::Reachability;

pub use keys::{ApiKey, Scope, Secret};
pub use metric_names::NAMES as METRIC_NAMES;
pub use operating::readiness;
pub use problem::{Code, Problem};
pub use settings::{PageInfo, ReceiveSettings};
pub use topic_workers::LiveWorkers;

/// Every path that is served over HTTP, with its methods in lower case: for whoever documents or measures them.
pub fn served_paths() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    routes::routes().into_iter().map(|route| (route.path, route.methods))
}

/// What the door works with.
#[derive(Clone)]
pub struct Ports {
    pub log: Arc<dyn Log>,
    pub log_topics: Arc<dyn LogTopics>,
    pub receipts: Arc<dyn Receipts>,
    /// The owners of holds, wherever they run.
    pub holds: Arc<dyn Holds>,
    /// The owners of subscriptions, wherever they run.
    pub dispatch: Arc<dyn Dispatch>,
    /// Only so that a deleted subscription leaves nothing.
    pub progress: Arc<dyn Progress>,
    /// The owners of users, wherever they run.
    pub carriers: Arc<dyn Carriers>,
    /// Where owners elsewhere save, so that it is seen how far they have come; `None` where no other process uses that store.
    pub shared_inboxes: Option<Arc<dyn Inbox>>,
    pub presence: Arc<dyn Presence>,
    pub devices: Arc<dyn Devices>,
    /// Whether people can be reached from this process; `None` where nobody is to be.
    pub reachability: Option<Arc<Reachability>>,
    /// Which stores of this process cannot serve now.
    pub store_health: Arc<StoreHealth>,
    /// Somebody else follows the catalogue with it.
    pub platforms: Arc<Platforms>,
    /// The workers that callbacks can be given to.
    pub workers: LiveWorkers,
    pub clock: Arc<dyn Clock>,
}

/// Why the door could not open: the system's topics are missing, or the receipts could not be used.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum StartError {
    Topics(#[from] TopicError),
    Receipts(#[from] ReceiptsError),
}

/// The open door.
pub struct Receive {
    door: Arc<Door>,
    tasks: Vec<JoinHandle<()>>,
}

impl Receive {
    /// Opens the door over registries that are open already, and starts the writer of events, and whatever finishes deletions that were
    /// cut short, on the runtime that it is called in; they end with `settings.shutdown`. A recorder of metrics must be installed before.
    pub async fn start(
        ports: Ports,
        registry: Arc<Registry>,
        subscriptions: Arc<Subscriptions>,
        stats: Arc<TopicStats>,
        settings: ReceiveSettings,
        events: Arc<Events>,
    ) -> Result<Self, StartError> {
        let shutdown = settings.shutdown.clone();
        let door = Arc::new(Door::open(ports, registry, subscriptions, stats, settings).await?);
        let events_topic = door.registry.get(EVENTS_TOPIC).ok_or(TopicError::Unknown(EVENTS_TOPIC.to_owned()))?;
        let (log, mint, partition) = (Arc::clone(&door.ports.log), Arc::clone(&door.mint), events_topic.partition(0));
        let writer = tokio::spawn(async move { events.run(log, mint, partition, shutdown).await });
        let finisher = tokio::spawn(subscription_delete::finish_left(Arc::clone(&door)));
        let mut tasks = vec![writer, finisher];
        if let Some(inboxes) = door.ports.shared_inboxes.clone() {
            tasks.push(tokio::spawn(people::behind::watch(Arc::clone(&door), inboxes)));
        }
        Ok(Self { door, tasks })
    }

    /// Everything that is served: HTTP, gRPC, the page at `/`, the API document. Add `/metrics` beside it.
    pub fn router(&self) -> Router {
        let mut router = Router::new();
        for route in routes::routes() {
            router = router.route(route.path, route.serve);
        }
        router
            .route(grpc::PATH, grpc_guard::guarded(grpc::service(&self.door)))
            .route(people::grpc::PATH, grpc_guard::guarded(people::grpc::service(&self.door)))
            .fallback(operating::unknown_path)
            .method_not_allowed_fallback(operating::method_not_allowed)
            .with_state(Arc::clone(&self.door))
    }

    /// Waits for the background tasks, after `settings.shutdown` was cancelled.
    pub async fn close(self) {
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a background task of the door ended badly");
            }
        }
    }
}
