//! The roles `receive` and `admin`: HTTP and gRPC endpoints, validation, limits, durable append, the compatible endpoints of older
//! systems, and the pages.
//!
//! `endpoints/` and `people/` have one file per endpoint, all with the same structure: the handler with its part of the API document, then
//! its details. `accept/` is the path of a message from the request to the log, and `compat/` has the endpoints of older systems. A publish
//! is answered only when the log has stored it. This crate uses the ports and never an engine, and keeps nothing that a restart would lose.

mod accept;
pub mod admin;
mod answer;
pub(crate) mod api_state;
mod attributes;
mod body;
mod compat;
mod contract;
mod endpoints;
pub mod events;
pub mod grpc;
mod grpc_guard;
mod json_fields;
pub(crate) mod keys;
mod load;
mod message_json;
mod metric_names;
pub mod openapi;
mod people;
mod problem;
mod query;
mod routes;
mod scan;
pub(crate) mod settings;

use std::sync::Arc;

use axum::Router;
use tokio::task::JoinHandle;
use whimbrel_model::ports::{
    Carriers, Devices, Dispatch, Holds, Inbox, Log, LogTopics, Presence, Progress, Receipts, ReceiptsError,
};
use whimbrel_model::{Clock, EVENTS_TOPIC, StoreHealth};

use crate::events::EventWriter;
use api_state::ApiState;
use whimbrel_catalogue::platforms::Platforms;
use whimbrel_catalogue::subscriptions::SubscriptionRegistry;
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::{Registry, TopicError};
use whimbrel_cluster::reachability::Reachability;

pub use endpoints::health::readiness;
pub use endpoints::topic_workers::LiveWorkers;
pub use keys::{ApiKey, KeySecret, Scope};
pub use metric_names::NAMES as METRIC_NAMES;
pub use problem::{ApiProblem, Code};
pub use settings::{BacklogLimits, DestinationGuards, PageInfo, ReceiveSettings};

/// All paths that are served over HTTP, with their methods in lower case, for documents and metrics.
pub fn served_paths() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    routes::routes().into_iter().map(|route| (route.path, route.methods))
}

/// The storage and owner interfaces that the API uses.
#[derive(Clone)]
pub struct Ports {
    pub log: Arc<dyn Log>,
    pub log_topics: Arc<dyn LogTopics>,
    pub receipts: Arc<dyn Receipts>,
    /// The owners of holds, on any node.
    pub holds: Arc<dyn Holds>,
    /// The owners of subscriptions, on any node.
    pub dispatch: Arc<dyn Dispatch>,
    /// Used only to delete the progress of a deleted subscription.
    pub progress: Arc<dyn Progress>,
    /// The owners of users, on any node.
    pub carriers: Arc<dyn Carriers>,
    /// The inbox store of the owners on other nodes, to read their lag. `None` if no other process uses that store.
    pub shared_inboxes: Option<Arc<dyn Inbox>>,
    pub presence: Arc<dyn Presence>,
    pub devices: Arc<dyn Devices>,
    /// Whether this process can reach users; `None` if it is not configured to.
    pub reachability: Option<Arc<Reachability>>,
    /// The stores of this process that cannot serve now.
    pub store_health: Arc<StoreHealth>,
    /// Follows the catalogue. Another component keeps it up to date.
    pub platforms: Arc<Platforms>,
    /// The live workers, to validate worker pools.
    pub workers: LiveWorkers,
    pub clock: Arc<dyn Clock>,
}

/// Why the API cannot start: the system topics are missing, or the receipts are not usable.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum StartError {
    Topics(#[from] TopicError),
    Receipts(#[from] ReceiptsError),
}

/// The running API.
pub struct Receive {
    api: Arc<ApiState>,
    tasks: Vec<JoinHandle<()>>,
}

impl Receive {
    /// Starts the API over open registries. Spawns the event writer and the task that finishes interrupted deletions on the current
    /// runtime; they end with `settings.shutdown`. A metrics recorder must be installed before.
    pub async fn start(
        ports: Ports,
        registry: Arc<Registry>,
        subscriptions: Arc<SubscriptionRegistry>,
        stats: Arc<TopicStats>,
        settings: ReceiveSettings,
        events: Arc<EventWriter>,
    ) -> Result<Self, StartError> {
        let shutdown = settings.shutdown.clone();
        let api = Arc::new(ApiState::open(ports, registry, subscriptions, stats, settings).await?);
        let events_topic = api.registry.get(EVENTS_TOPIC).ok_or(TopicError::Unknown(EVENTS_TOPIC.to_owned()))?;
        let (log, mint, partition) = (Arc::clone(&api.ports.log), Arc::clone(&api.mint), events_topic.partition(0));
        let writer = tokio::spawn(async move { events.run(log, mint, partition, shutdown).await });
        let finisher = tokio::spawn(endpoints::subscription_delete::finish_left(Arc::clone(&api)));
        let mut tasks = vec![writer, finisher];
        if let Some(inboxes) = api.ports.shared_inboxes.clone() {
            tasks.push(tokio::spawn(people::carrier_backlog::watch(Arc::clone(&api), inboxes)));
        }
        Ok(Self { api, tasks })
    }

    /// The router of everything that is served: HTTP, gRPC, the page at `/`, the API document. The caller adds `/metrics`.
    pub fn router(&self) -> Router {
        let mut router = Router::new();
        for route in routes::routes() {
            router = router.route(route.path, route.serve);
        }
        router
            .route(grpc::PATH, grpc_guard::guarded(grpc::service(&self.api)))
            .route(people::grpc::PATH, grpc_guard::guarded(people::grpc::service(&self.api)))
            .fallback(endpoints::health::unknown_path)
            .method_not_allowed_fallback(endpoints::health::method_not_allowed)
            .with_state(Arc::clone(&self.api))
    }

    /// Waits for the background tasks, after `settings.shutdown` was cancelled.
    pub async fn close(self) {
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a background task of the API failed");
            }
        }
    }
}
