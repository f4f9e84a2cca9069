//! The role `gateway`: holds the connections of devices and passes on what the carriers of their users send.
//!
//! A connection comes over WebSocket, as an event stream or over gRPC; each becomes a [`session::DeviceSession`]. An idle connection costs
//! a small task that waits for its socket, and no buffers. A gateway decides nothing about messages: carriers admit devices and determine
//! content and order. A gateway never blocks a carrier, and never loses a stored message silently. Messages without room in a device's
//! queue are requested again when the device has read. A device that does not read is closed, and resumes.

mod connect;
mod event_stream;
mod frames;
mod gap_requests;
mod grpc;
mod lane;
mod metrics;
mod output_queue;
mod refusal;
mod session;
mod settings;
mod shared;
mod state;
#[cfg(test)]
mod state_tests;
pub mod tokens;
pub mod websocket;
mod wheel;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::routing::{any, get, post};
use tokio_util::sync::CancellationToken;
use whimbrel_model::Clock;
use whimbrel_model::people::{GatewayId, OnlineSession, Uid};
use whimbrel_model::ports::presence::Reporter;
use whimbrel_model::ports::{CarrierMessages, Carriers, LocalGateway, OwnerLink};

use lane::{GatewayLane, LANES_MAX, Reannouncement, lane_of};
use session::DeviceSession;
use shared::GatewayContext;
use tokens::TokenVerifier;

use whimbrel_cluster::reachability::GatewayStatus;

pub(crate) use self::metrics::DROPPED;
pub use self::metrics::NAMES as METRIC_NAMES;
pub use connect::is_public_name;
pub use frames::Format;
pub use settings::GatewaySettings;
pub use state::{DeliveryOutcome, DeviceIdentity, SessionPhase, SessionState};
pub use wheel::Tick;

/// How often shutdown checks whether all connections have closed.
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Every path that the gateway serves over HTTP, with its methods in lower case.
pub const PATHS: [(&str, &[&str]); 3] =
    [("/v1/connect", &["get"]), ("/v1/connect/sse", &["get"]), ("/v1/connect/ack", &["post"])];

/// Whether the gateway serves that path, over HTTP or gRPC.
pub fn is_served(path: &str) -> bool {
    path.starts_with(grpc::PATH_START) || PATHS.iter().any(|(served, _)| *served == path)
}

/// The gateway of this process.
pub struct Gateway {
    shared: Arc<GatewayContext>,
    lanes: Mutex<Arc<Vec<Arc<GatewayLane>>>>,
    /// For each partition, one more than the highest epoch of an owner in the cluster view or in a message.
    epochs: Vec<AtomicU64>,
}

impl Gateway {
    /// A gateway without an incarnation: devices wait until [`Gateway::reincarnate`]. Requires an installed metrics recorder.
    pub fn new(
        settings: GatewaySettings,
        tokens: TokenVerifier,
        carriers: Arc<dyn Carriers>,
        reporter: Arc<dyn Reporter>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let epochs = (0..carriers.partitions()).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(GatewayContext::new(settings, tokens, carriers, reporter, clock));
        Arc::new(Self { shared, lanes: Mutex::default(), epochs })
    }

    /// Announces the sessions of each partition to every new owner. Runs until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut owner_links = self.shared.owner_links.clone();
        loop {
            let seen = owner_links.borrow_and_update().clone();
            // Before the announcements: a replaced owner no longer gets acknowledgements, so its decisions are outdated.
            self.reject_replaced_owners(&seen);
            self.lanes().iter().for_each(|lane| lane.introduce_again(Reannouncement::NewTenures));
            let changed = tokio::select! {
                () = shutdown.cancelled() => return,
                changed = owner_links.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Rejects messages of owners that the cluster view shows as replaced. The view may be older than the messages, and an owner in the
    /// view may end without sending. The next one has a higher epoch in any case.
    fn reject_replaced_owners(&self, seen: &[Option<OwnerLink>]) {
        for (highest, owner_link) in self.epochs.iter().zip(seen) {
            if let Some(owner_link) = owner_link {
                highest.fetch_max(owner_link.epoch.saturating_add(1), Ordering::AcqRel);
            }
        }
    }

    /// The gateway has joined under that id, for the first time or after a lost lease. Announces all its sessions under it.
    pub fn reincarnate(&self, id: GatewayId) {
        self.shared.set_id(id);
        self.lanes().iter().for_each(|lane| lane.introduce_again(Reannouncement::All));
    }

    pub fn sessions(&self) -> Vec<(Uid, OnlineSession)> {
        self.lanes().iter().flat_map(|lane| lane.sessions()).collect()
    }

    /// The number of open connections, including unidentified ones.
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// Rejects new connections, closes all others with a reconnect delay each, and waits up to `wait` until they have closed. The threads
    /// that serve connections must live until this returns.
    pub async fn go_away(&self, wait: Duration) {
        self.shared.end();
        self.lanes().iter().for_each(|lane| lane.go_away());
        let all_gone = async {
            while self.shared.connections() > 0 {
                tokio::time::sleep(SHUTDOWN_POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(wait, all_gone).await.is_err() {
            tracing::debug!(connections = self.shared.connections(), "timeout while closing connections");
        }
    }

    /// The three endpoints of connections. The server must add each peer as `ConnectInfo<SocketAddr>`; without it only a plain WebSocket
    /// can count as local.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/v1/connect", get(connect::connect))
            .route("/v1/connect/sse", get(event_stream::connect))
            .route("/v1/connect/ack", post(event_stream::ack))
            .route(grpc::PATH, any(grpc::serve))
            .with_state(Arc::clone(self))
    }

    fn lanes(&self) -> Arc<Vec<Arc<GatewayLane>>> {
        Arc::clone(&self.lanes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lane of this thread. `None` if the process has had more threads than there can be lanes.
    fn lane_here(&self) -> Option<Arc<GatewayLane>> {
        GatewayLane::here(&self.shared, |make| {
            let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            let index = Some(lanes.len()).filter(|index| *index < LANES_MAX)?;
            let lane = make(index);
            Arc::make_mut(&mut lanes).push(Arc::clone(&lane));
            Some(lane)
        })
    }

    fn session(&self, number: u64) -> Option<Arc<DeviceSession>> {
        self.lanes().get(lane_of(number))?.get(number)
    }
}

impl GatewayStatus for Gateway {
    fn has_joined(&self) -> bool {
        self.shared.id().is_some()
    }

    fn connections(&self) -> usize {
        self.shared.connections()
    }
}

impl LocalGateway for Gateway {
    fn take(&self, gateway: GatewayId, news: CarrierMessages) -> bool {
        if self.shared.id() != Some(gateway) {
            return false;
        }
        let Some(highest) = self.epochs.get(news.partition as usize) else { return true };
        let epoch = news.epoch.saturating_add(1);
        if highest.fetch_max(epoch, Ordering::AcqRel) > epoch {
            // A replaced owner that has not noticed its replacement.
            return true;
        }
        let lanes = self.lanes();
        if let [lane] = lanes.as_slice() {
            lane.take(news.news);
            return true;
        }
        let mut by_lane: Vec<Vec<_>> = Vec::new();
        by_lane.resize_with(lanes.len(), Vec::new);
        for one in news.news {
            if let Some(of_lane) = by_lane.get_mut(lane_of(one.session())) {
                of_lane.push(one);
            }
        }
        for (lane, news) in lanes.iter().zip(by_lane).filter(|(_, news)| !news.is_empty()) {
            lane.take(news);
        }
        true
    }
}
