//! The port `Gateways`: what an owner says goes to this node's own gateway, or down the stream that a gateway elsewhere opened.
//!
//! It never waits. A gateway is known by its incarnation: what is for an earlier one goes nowhere, and an earlier one opens nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{FromCarrier, GatewayDesk, Gateways, Node};

use super::down::DownBox;
use whimbrel_cluster::{GATEWAY_ROLE, Sight, View};

/// All gateways. It is made before the node joins, since owners need it; until [`GatewayLinks::run`] it knows streams only.
#[derive(Default)]
pub struct GatewayLinks {
    sight: OnceLock<Sight>,
    desk: OnceLock<Arc<dyn GatewayDesk>>,
    book: Mutex<Book>,
    living: watch::Sender<Arc<Vec<GatewayId>>>,
}

#[derive(Default)]
struct Book {
    /// By node.
    streams: BTreeMap<u16, Down>,
    last_stream: u64,
    is_closed: bool,
}

/// A stream that a gateway elsewhere opened.
struct Down {
    gateway: GatewayId,
    stream: u64,
    outbox: DownBox,
    /// A view had it: when a later one has not, it is gone.
    was_seen: bool,
}

/// Why a stream is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("a newer incarnation of that gateway is known")]
    Older,
    #[error("that is this node's own number")]
    Mine,
    #[error("this node is going away")]
    Closed,
}

impl GatewayLinks {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Follows who lives until it is cancelled; then all streams end. `desk` is of this node's gateway, where it has one.
    pub async fn run(&self, sight: Sight, desk: Option<Arc<dyn GatewayDesk>>, until: CancellationToken) {
        if let Some(desk) = desk {
            // A second run is with the same desk.
            let _ = self.desk.set(desk);
        }
        let _ = self.sight.set(sight.clone());
        let mut watched = sight.clone();
        self.see(&sight.view());
        loop {
            tokio::select! {
                () = until.cancelled() => break,
                view = watched.view_changed() => self.see(&view),
            }
        }
        let mut book = self.book();
        book.is_closed = true;
        std::mem::take(&mut book.streams).into_values().for_each(|down| down.outbox.end());
    }

    fn see(&self, view: &View) {
        let living: Vec<GatewayId> = view.with_role(GATEWAY_ROLE).map(incarnation_of).collect();
        self.living.send_if_modified(|known| {
            let is_new = **known != living;
            if is_new {
                *known = Arc::new(living.clone());
            }
            is_new
        });
        self.book().streams.retain(|node, down| {
            let lives = match view.node(*node) {
                Some(present) => present.member.incarnation <= down.gateway.incarnation,
                None => !down.was_seen,
            };
            down.was_seen |= living.contains(&down.gateway);
            if !lives {
                down.outbox.end();
            }
            lives
        });
    }

    /// A gateway elsewhere has opened a stream; whatever it or an earlier incarnation had open ends.
    pub(super) fn open(&self, gateway: GatewayId, outbox: &DownBox) -> Result<u64, Refused> {
        let mut book = self.book();
        if book.is_closed {
            return Err(Refused::Closed);
        }
        let (mut was_seen, mut newest) = (false, 0);
        if let Some(sight) = self.sight.get() {
            if sight.me() == Some(gateway.node) {
                return Err(Refused::Mine);
            }
            newest = sight.view().node(gateway.node).map_or(0, |node| node.member.incarnation);
            was_seen = newest == gateway.incarnation;
        }
        let known = book.streams.get(&gateway.node).map_or(0, |down| down.gateway.incarnation);
        if newest.max(known) > gateway.incarnation {
            return Err(Refused::Older);
        }
        book.last_stream += 1;
        let stream = book.last_stream;
        let down = Down { gateway, stream, outbox: outbox.clone(), was_seen };
        if let Some(earlier) = book.streams.insert(gateway.node, down) {
            earlier.outbox.end();
        }
        Ok(stream)
    }

    /// That stream has ended.
    pub(super) fn close(&self, gateway: GatewayId, stream: u64) {
        let mut book = self.book();
        if book.streams.get(&gateway.node).is_some_and(|down| down.stream == stream) {
            book.streams.remove(&gateway.node);
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn incarnation_of(node: &Node) -> GatewayId {
    GatewayId { node: node.number, incarnation: node.member.incarnation }
}

impl Gateways for GatewayLinks {
    fn tell(&self, gateway: GatewayId, news: FromCarrier) -> bool {
        if self.sight.get().and_then(Sight::identity) == Some(gateway) {
            return self.desk.get().is_some_and(|desk| desk.take(gateway, news));
        }
        let outbox = {
            let book = self.book();
            let down = book.streams.get(&gateway.node).filter(|down| down.gateway == gateway);
            down.map(|down| down.outbox.clone())
        };
        outbox.is_some_and(|outbox| outbox.tell(news))
    }

    fn living(&self) -> watch::Receiver<Arc<Vec<GatewayId>>> {
        self.living.subscribe()
    }
}
