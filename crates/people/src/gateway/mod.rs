//! The role `gateway`: holds the connections of devices, and passes on what the carriers of their users say.
//!
//! A connection comes over WebSocket, as an event stream or over gRPC; all three are a [`session::Session`] afterwards. It costs a small task that
//! waits for its socket, and no buffers while nothing is under way. A gateway decides nothing about messages: which device may be there,
//! what it is sent and in what order is the carriers' business. It never blocks whoever brings news, and never loses a stored message
//! silently: what has no room in a device's queue is asked for again when the device has read, and one that does not read is closed, and
//! resumes.

mod connect;
mod event_stream;
mod figures;
mod frames;
mod grpc;
mod lane;
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
use whimbrel_model::ports::{Carriers, FromCarrier, GatewayDesk, Tenure};

use lane::{Again, LANES_MAX, Lane, lane_of, session_of};
use session::Session;
use shared::Shared;
use tokens::Tokens;

use whimbrel_cluster::reachability::Entrance;

pub use connect::is_public_name;
pub(crate) use figures::DROPPED;
pub use figures::NAMES as METRIC_NAMES;
pub use frames::Format;
pub use settings::GatewaySettings;
pub use state::{Delivered, Phase, State, Who};
pub use wheel::Tick;

/// How often the end looks whether everybody has gone.
const ENDING_LOOK: Duration = Duration::from_millis(20);

/// Every path that the gateway serves over HTTP, with its methods in lower case.
pub const PATHS: [(&str, &[&str]); 3] =
    [("/v1/connect", &["get"]), ("/v1/connect/sse", &["get"]), ("/v1/connect/ack", &["post"])];

/// Whether the gateway serves that path, over HTTP or gRPC.
pub fn is_served(path: &str) -> bool {
    path.starts_with(grpc::PATH_START) || PATHS.iter().any(|(served, _)| *served == path)
}

/// The gateway of this process.
pub struct Gateway {
    shared: Arc<Shared>,
    lanes: Mutex<Arc<Vec<Arc<Lane>>>>,
    /// By partition, the highest epoch of an owner that was seen or heard from, and one.
    epochs: Vec<AtomicU64>,
}

impl Gateway {
    /// A gateway that nobody knows yet: devices wait until it has an incarnation ([`Gateway::reincarnate`]). A recorder of metrics must be
    /// installed before.
    pub fn new(
        settings: GatewaySettings,
        tokens: Tokens,
        carriers: Arc<dyn Carriers>,
        reporter: Arc<dyn Reporter>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let epochs = (0..carriers.partitions()).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared::new(settings, tokens, carriers, reporter, clock));
        Arc::new(Self { shared, lanes: Mutex::default(), epochs })
    }

    /// Introduces the sessions of each partition to its new owner, whenever it has one. Runs until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut tenures = self.shared.tenures.clone();
        loop {
            let seen = tenures.borrow_and_update().clone();
            // Before anybody is introduced: whoever was replaced is not told any more what devices say, and judges by what it was told.
            self.believe_no_older(&seen);
            self.lanes().iter().for_each(|lane| lane.introduce_again(Again::NewTenures));
            let changed = tokio::select! {
                () = shutdown.cancelled() => return,
                changed = tenures.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Owners that were replaced by those that are seen are not believed any more. What is seen may be older than what was heard, and who is
    /// seen may be gone before it has said a word: the next one has a higher epoch in any case.
    fn believe_no_older(&self, seen: &[Option<Tenure>]) {
        for (highest, tenure) in self.epochs.iter().zip(seen) {
            if let Some(tenure) = tenure {
                highest.fetch_max(tenure.epoch.saturating_add(1), Ordering::AcqRel);
            }
        }
    }

    /// It has joined under that id: for the first time, or again after its lease was lost. All its sessions are announced under it.
    pub fn reincarnate(&self, id: GatewayId) {
        self.shared.set_id(id);
        self.lanes().iter().for_each(|lane| lane.introduce_again(Again::All));
    }

    /// Everybody who is connected and was let in.
    pub fn picture(&self) -> Vec<(Uid, OnlineSession)> {
        self.lanes().iter().flat_map(|lane| lane.picture()).collect()
    }

    /// Connections that are open, those that have not said who they are included.
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// Lets nobody in any more, tells everybody to come back after a delay of their own, and waits until they have gone, up to `wait`.
    /// The threads that serve connections have to live until this returns.
    pub async fn go_away(&self, wait: Duration) {
        self.shared.end();
        self.lanes().iter().for_each(|lane| lane.go_away());
        let all_gone = async {
            while self.shared.connections() > 0 {
                tokio::time::sleep(ENDING_LOOK).await;
            }
        };
        if tokio::time::timeout(wait, all_gone).await.is_err() {
            tracing::debug!(connections = self.shared.connections(), "some devices did not take their leave in time");
        }
    }

    /// What is served: the three ways to connect. The server adds each connection's peer as `ConnectInfo<SocketAddr>`; without it nobody counts
    /// as on this machine but over a plain WebSocket.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/v1/connect", get(connect::connect))
            .route("/v1/connect/sse", get(event_stream::connect))
            .route("/v1/connect/ack", post(event_stream::ack))
            .route(grpc::PATH, any(grpc::serve))
            .with_state(Arc::clone(self))
    }

    fn lanes(&self) -> Arc<Vec<Arc<Lane>>> {
        Arc::clone(&self.lanes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lane of this thread. `None` where a process has had more threads than there can be lanes.
    fn lane_here(&self) -> Option<Arc<Lane>> {
        Lane::here(&self.shared, |make| {
            let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            let index = Some(lanes.len()).filter(|index| *index < LANES_MAX)?;
            let lane = make(index);
            Arc::make_mut(&mut lanes).push(Arc::clone(&lane));
            Some(lane)
        })
    }

    fn session(&self, number: u64) -> Option<Arc<Session>> {
        self.lanes().get(lane_of(number))?.get(number)
    }
}

impl Entrance for Gateway {
    fn has_joined(&self) -> bool {
        self.shared.id().is_some()
    }

    fn connections(&self) -> usize {
        self.shared.connections()
    }
}

impl GatewayDesk for Gateway {
    fn take(&self, gateway: GatewayId, news: FromCarrier) -> bool {
        if self.shared.id() != Some(gateway) {
            return false;
        }
        let Some(highest) = self.epochs.get(news.partition as usize) else { return true };
        let epoch = news.epoch.saturating_add(1);
        if highest.fetch_max(epoch, Ordering::AcqRel) > epoch {
            // An owner that does not know yet that it is none any more.
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
            if let Some(of_lane) = by_lane.get_mut(lane_of(session_of(&one))) {
                of_lane.push(one);
            }
        }
        for (lane, news) in lanes.iter().zip(by_lane).filter(|(_, news)| !news.is_empty()) {
            lane.take(news);
        }
        true
    }
}
