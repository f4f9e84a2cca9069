//! The lease under which this node uses its registry's mapping from keys to partitions.
//!
//! A node that shares its topics with others uses a mapping only under a session with the coordination, and only after it has read
//! the catalogue under that session. A growth waits for every node with a session, so it cannot replace a mapping before this node has
//! confirmed. A node without a session must reject publishes by key. A single node needs no session.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use whimbrel_model::ports::Membership;

/// A session under which the catalogue was read.
pub struct Session(Arc<dyn Membership>);

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session(node {})", self.0.node())
    }
}

/// The lease of one publish.
#[derive(Debug, Clone)]
pub(crate) enum Lease {
    /// No session is needed: no other node changes the mapping, or the publish does not use it.
    Alone,
    Session(Arc<Session>),
}

impl Lease {
    /// Whether the lease is still valid, by this node's own clock. Once false, it stays false.
    pub(crate) fn stands(&self) -> bool {
        match self {
            Self::Alone => true,
            Self::Session(session) => session.0.stands(),
        }
    }
}

/// The current lease of a registry.
pub(super) struct MappingLease {
    is_shared: bool,
    session: ArcSwapOption<Session>,
    granted: watch::Sender<()>,
}

impl MappingLease {
    pub(super) fn new(is_shared: bool) -> Self {
        Self { is_shared, session: ArcSwapOption::empty(), granted: watch::Sender::new(()) }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Grants the lease. The caller has read the catalogue under this session.
    pub(super) fn grant(&self, membership: Arc<dyn Membership>) {
        self.session.store(Some(Arc::new(Session(membership))));
        self.granted.send_replace(());
    }

    /// The current lease; `None` while there is no session.
    pub(super) fn take(&self) -> Option<Lease> {
        if !self.is_shared {
            return Some(Lease::Alone);
        }
        let session = self.session.load_full()?;
        Some(Lease::Session(session)).filter(Lease::stands)
    }

    /// The current lease; waits for a session, at most for the given time.
    pub(super) async fn wait(&self, within: Duration) -> Option<Lease> {
        if let Some(lease) = self.take() {
            return Some(lease);
        }
        let mut granted = self.granted.subscribe();
        let waiting = async {
            loop {
                granted.borrow_and_update();
                if let Some(lease) = self.take() {
                    return Some(lease);
                }
                granted.changed().await.ok()?;
            }
        };
        tokio::time::timeout(within, waiting).await.ok().flatten()
    }
}
