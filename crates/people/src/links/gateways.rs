//! The port `Gateways`: delivers messages of owners to this node's gateway, or over the stream that a remote gateway opened.
//!
//! Nothing here waits. Each gateway has an incarnation: messages for an earlier one are dropped, and an earlier one cannot open a stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{CarrierMessages, Gateways, LocalGateway, Node};

use super::gateway_outbox::GatewayOutbox;
use whimbrel_cluster::{ClusterView, ClusterWatch, GATEWAY_ROLE};

/// All gateways. Created before the node joins, because owners need it; until [`GatewayLinks::run`] it has streams only.
#[derive(Default)]
pub struct GatewayLinks {
    sight: OnceLock<ClusterWatch>,
    desk: OnceLock<Arc<dyn LocalGateway>>,
    streams: Mutex<GatewayStreams>,
    living: watch::Sender<Arc<Vec<GatewayId>>>,
}

#[derive(Default)]
struct GatewayStreams {
    /// By node.
    streams: BTreeMap<u16, GatewayStream>,
    last_stream: u64,
    is_closed: bool,
}

/// A stream that a remote gateway opened.
struct GatewayStream {
    gateway: GatewayId,
    stream: u64,
    outbox: GatewayOutbox,
    /// A cluster view contained the gateway. If a later view does not, it is gone.
    was_seen: bool,
}

/// Why a stream is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum StreamOpenError {
    #[error("the stream was opened by an older incarnation of the gateway; a newer one is connected")]
    Older,
    #[error("a remote gateway sent the node number of this node; give each node its own number")]
    Mine,
    #[error("this node is shutting down")]
    Closed,
}

impl GatewayLinks {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Follows the cluster view until it is cancelled; then ends all streams. `desk` is this node's gateway, if it has one.
    pub async fn run(&self, sight: ClusterWatch, desk: Option<Arc<dyn LocalGateway>>, until: CancellationToken) {
        if let Some(desk) = desk {
            // A second run has the same gateway.
            let _ = self.desk.set(desk);
        }
        let _ = self.sight.set(sight.clone());
        let mut watched = sight.clone();
        self.apply_view(&sight.view());
        loop {
            tokio::select! {
                () = until.cancelled() => break,
                view = watched.view_changed() => self.apply_view(&view),
            }
        }
        let mut streams = self.streams();
        streams.is_closed = true;
        std::mem::take(&mut streams.streams).into_values().for_each(|stream_to| stream_to.outbox.end());
    }

    fn apply_view(&self, view: &ClusterView) {
        let living: Vec<GatewayId> = view.with_role(GATEWAY_ROLE).map(incarnation_of).collect();
        self.living.send_if_modified(|known| {
            let is_new = **known != living;
            if is_new {
                *known = Arc::new(living.clone());
            }
            is_new
        });
        self.streams().streams.retain(|node, stream_to| {
            let lives = match view.node(*node) {
                Some(present) => present.member.incarnation <= stream_to.gateway.incarnation,
                None => !stream_to.was_seen,
            };
            stream_to.was_seen |= living.contains(&stream_to.gateway);
            if !lives {
                stream_to.outbox.end();
            }
            lives
        });
    }

    /// A remote gateway has opened a stream. Ends its earlier stream, also one of an earlier incarnation.
    pub(super) fn open(&self, gateway: GatewayId, outbox: &GatewayOutbox) -> Result<u64, StreamOpenError> {
        let mut streams = self.streams();
        if streams.is_closed {
            return Err(StreamOpenError::Closed);
        }
        let (mut was_seen, mut newest) = (false, 0);
        if let Some(sight) = self.sight.get() {
            if sight.me() == Some(gateway.node) {
                return Err(StreamOpenError::Mine);
            }
            newest = sight.view().node(gateway.node).map_or(0, |node| node.member.incarnation);
            was_seen = newest == gateway.incarnation;
        }
        let known = streams.streams.get(&gateway.node).map_or(0, |stream_to| stream_to.gateway.incarnation);
        if newest.max(known) > gateway.incarnation {
            return Err(StreamOpenError::Older);
        }
        streams.last_stream += 1;
        let stream = streams.last_stream;
        let stream_to = GatewayStream { gateway, stream, outbox: outbox.clone(), was_seen };
        if let Some(earlier) = streams.streams.insert(gateway.node, stream_to) {
            earlier.outbox.end();
        }
        Ok(stream)
    }

    pub(super) fn close(&self, gateway: GatewayId, stream: u64) {
        let mut streams = self.streams();
        if streams.streams.get(&gateway.node).is_some_and(|stream_to| stream_to.stream == stream) {
            streams.streams.remove(&gateway.node);
        }
    }

    fn streams(&self) -> MutexGuard<'_, GatewayStreams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn incarnation_of(node: &Node) -> GatewayId {
    GatewayId { node: node.number, incarnation: node.member.incarnation }
}

impl Gateways for GatewayLinks {
    fn tell(&self, gateway: GatewayId, news: CarrierMessages) -> bool {
        if self.sight.get().and_then(ClusterWatch::identity) == Some(gateway) {
            return self.desk.get().is_some_and(|desk| desk.take(gateway, news));
        }
        let outbox = {
            let streams = self.streams();
            let stream_to = streams.streams.get(&gateway.node).filter(|stream_to| stream_to.gateway == gateway);
            stream_to.map(|stream_to| stream_to.outbox.clone())
        };
        outbox.is_some_and(|outbox| outbox.tell(news))
    }

    fn live_gateways(&self) -> watch::Receiver<Arc<Vec<GatewayId>>> {
        self.living.subscribe()
    }
}
