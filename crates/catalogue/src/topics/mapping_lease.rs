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

/// A session under which the catalogue has been read.
pub struct MappingSession(Arc<dyn Membership>);

impl fmt::Debug for MappingSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappingSession(node {})", self.0.node())
    }
}

#[derive(Debug, Clone)]
pub(crate) enum PublishLease {
    /// No session is needed: no other node changes the mapping, or the publish does not use it.
    Alone,
    Session(Arc<MappingSession>),
}

impl PublishLease {
    /// Whether the lease is still valid, by this node's own clock. Once false, it stays false.
    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Self::Alone => true,
            Self::Session(session) => session.0.is_valid(),
        }
    }
}

pub(super) struct MappingLease {
    is_shared: bool,
    session: ArcSwapOption<MappingSession>,
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
        self.session.store(Some(Arc::new(MappingSession(membership))));
        self.granted.send_replace(());
    }

    /// The current lease; `None` while there is no session.
    pub(super) fn take(&self) -> Option<PublishLease> {
        if !self.is_shared {
            return Some(PublishLease::Alone);
        }
        let session = self.session.load_full()?;
        Some(PublishLease::Session(session)).filter(PublishLease::is_valid)
    }

    /// The present lease; waits for a session, for at most `within`.
    pub(super) async fn wait(&self, within: Duration) -> Option<PublishLease> {
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
