//! The port `Holds`: passes each request to the owner of its shard, on this node or another. Without an owner it fails.
//!
//! A request that was certainly not delivered is retried, at the present owner of the shard. A request that may have arrived and got no
//! answer is retried only if it changes nothing. Otherwise its outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use whimbrel_model::ports::{HoldReply, HoldRequest, Holds, HoldsError, PortFuture};

use super::cluster_view::ClusterWatch;
use super::families::HOLDS_FAMILY;
use super::peers::{PeerClients, PeerReply};
use super::{LocalHolds, LocalHoldsError};

/// How long a request waits for an owner, unless configured otherwise.
pub const OWNER_WAIT_DEFAULT: Duration = Duration::from_secs(5);
/// The retry pause for an owner that was not ready: the cluster view may be ahead of it, or behind.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

pub struct HoldsRouter {
    shards: u32,
    cluster: ClusterWatch,
    local: Arc<dyn LocalHolds>,
    peers: Arc<PeerClients>,
    owner_wait: Duration,
}

impl HoldsRouter {
    pub fn new(
        shards: u32,
        cluster: ClusterWatch,
        local: Arc<dyn LocalHolds>,
        peers: Arc<PeerClients>,
        owner_wait: Duration,
    ) -> Self {
        Self { shards, cluster, local, peers, owner_wait }
    }

    /// Makes one attempt at the present owner of the shard. `Err` with the reason if nothing was done and a retry makes sense.
    async fn ask_once(&self, shard: u32, ask: &HoldRequest) -> Result<Result<HoldReply, HoldsError>, Option<String>> {
        let view = self.cluster.view();
        let owner = view.owner(HOLDS_FAMILY, shard).ok_or(None)?.node;
        if self.cluster.me() == Some(owner) {
            return match self.local.ask(shard, ask.clone()).await {
                Err(LocalHoldsError::NotHere) => Err(None),
                Err(LocalHoldsError::Holds(error)) => Ok(Err(error)),
                Ok(told) => Ok(Ok(told)),
            };
        }
        let address = view.address_of(owner).ok_or(None)?;
        match self.peers.ask(address, shard, ask).await {
            PeerReply::Answered(Err(LocalHoldsError::NotHere)) => Err(None),
            PeerReply::Answered(Err(LocalHoldsError::Holds(error))) => Ok(Err(error)),
            PeerReply::Answered(Ok(told)) => Ok(Ok(told)),
            PeerReply::NotDelivered(reason) => Err(Some(reason)),
            PeerReply::Unknown(reason) if changes_nothing(ask) => Err(Some(reason)),
            PeerReply::Unknown(reason) => Ok(Err(HoldsError::OutcomeUnknown(reason))),
            PeerReply::Refused(reason) => {
                tracing::error!(node = owner, reason, "another node rejected a request of this node");
                Ok(Err(HoldsError::Unavailable(format!("peer {owner} rejected the request: {reason}"))))
            }
        }
    }
}

fn changes_nothing(ask: &HoldRequest) -> bool {
    match ask {
        HoldRequest::Look { .. } | HoldRequest::List(_) | HoldRequest::Dead(_) | HoldRequest::Count(_) => true,
        HoldRequest::Accept(_)
        | HoldRequest::Extend { .. }
        | HoldRequest::Withdraw { .. }
        | HoldRequest::Fire { .. }
        | HoldRequest::WithdrawTopic { .. } => false,
    }
}

impl Holds for HoldsRouter {
    fn shards(&self) -> u32 {
        self.shards
    }

    fn ask(&self, shard: u32, ask: HoldRequest) -> PortFuture<'_, Result<HoldReply, HoldsError>> {
        Box::pin(async move {
            let asked = until_answered(&self.cluster, self.owner_wait, shard, || self.ask_once(shard, &ask)).await;
            asked.unwrap_or(Err(HoldsError::NoOwner(shard)))
        })
    }
}

/// Retries while that makes sense. `None` if no owner answered in time.
pub async fn until_answered<A, F>(
    cluster: &ClusterWatch,
    owner_wait: Duration,
    shard: u32,
    ask_once: impl Fn() -> F,
) -> Option<A>
where
    F: Future<Output = Result<A, Option<String>>>,
{
    let deadline = Instant::now() + owner_wait;
    let mut views = cluster.views.clone();
    loop {
        views.mark_unchanged();
        let reason = match ask_once().await {
            Ok(answer) => return Some(answer),
            Err(reason) => reason,
        };
        let now = Instant::now();
        if now >= deadline {
            if let Some(reason) = reason {
                tracing::warn!(shard, reason, "no owner of the shard answered in time");
            }
            return None;
        }
        // A new cluster view may have another owner. The present owner may become ready without a new view.
        let _ = timeout_at(deadline.min(now + AGAIN_AFTER), views.changed()).await;
    }
}
