//! Passes each call about a shard to its owner, on this node or another. Without an owner it fails. [`HoldsRouter`] is the port `Holds`.
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
use super::rpc::InternalCall;
use super::service::AskHolds;
use super::{LocalHolds, LocalHoldsError};

/// How long a request waits for an owner, unless configured otherwise.
pub const OWNER_WAIT_DEFAULT: Duration = Duration::from_secs(5);
/// The retry pause for an owner that was not ready: the cluster view may be ahead of it, or behind.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// A call that the owner of a shard answers.
pub trait ShardCall: InternalCall {
    type Answer;
    type Error;
    /// The family of the shards.
    const FAMILY: &'static str;

    /// The owner's answer. `None`: the node does not own the shard, and nothing was done.
    fn answer(reply: Self::Reply) -> Option<Result<Self::Answer, Self::Error>>;

    /// Whether a repeat is harmless.
    fn changes_nothing(request: &Self::Request) -> bool;

    /// The timeout of the request; `default` is the one of most requests.
    fn answer_within(_request: &Self::Request, default: Duration) -> Duration {
        default
    }

    fn outcome_unknown(reason: String) -> Self::Error;

    fn unavailable(reason: String) -> Self::Error;
}

/// Finds the owners of shards.
#[derive(Clone)]
pub struct OwnerRouter {
    pub cluster: ClusterWatch,
    pub peers: Arc<PeerClients>,
    /// How long a request waits for an owner.
    pub owner_wait: Duration,
}

impl OwnerRouter {
    /// Makes the call at the owner of the shard; `local` asks this node. `None` if no owner answered in time.
    pub async fn ask<C: ShardCall, F>(
        &self,
        shard: u32,
        request: &C::Request,
        local: impl Fn() -> F,
    ) -> Option<Result<C::Answer, C::Error>>
    where
        F: Future<Output = C::Reply>,
    {
        let deadline = Instant::now() + self.owner_wait;
        let mut views = self.cluster.views.clone();
        loop {
            views.mark_unchanged();
            let reason = match self.ask_once::<C, F>(shard, request, &local).await {
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

    /// Makes one attempt at the present owner of the shard. `Err` with the reason if nothing was done and a retry makes sense.
    async fn ask_once<C: ShardCall, F>(
        &self,
        shard: u32,
        request: &C::Request,
        local: impl Fn() -> F,
    ) -> Result<Result<C::Answer, C::Error>, Option<String>>
    where
        F: Future<Output = C::Reply>,
    {
        let view = self.cluster.view();
        let owner = view.owner(C::FAMILY, shard).ok_or(None)?.node;
        if self.cluster.me() == Some(owner) {
            return C::answer(local().await).ok_or(None);
        }
        let address = view.address_of(owner).ok_or(None)?;
        let within = C::answer_within(request, self.peers.answer_within());
        match self.peers.call::<C>(address, request.clone(), within).await {
            PeerReply::Answered(reply) => C::answer(reply).ok_or(None),
            PeerReply::NotDelivered(reason) => Err(Some(reason)),
            PeerReply::Unknown(reason) if C::changes_nothing(request) => Err(Some(reason)),
            PeerReply::Unknown(reason) => Ok(Err(C::outcome_unknown(reason))),
            PeerReply::Refused(reason) => {
                tracing::error!(node = owner, reason, "another node rejected a request of this node");
                Ok(Err(C::unavailable(format!("peer {owner} rejected the request: {reason}"))))
            }
        }
    }
}

impl ShardCall for AskHolds {
    type Answer = HoldReply;
    type Error = HoldsError;
    const FAMILY: &'static str = HOLDS_FAMILY;

    fn answer(reply: Self::Reply) -> Option<Result<HoldReply, HoldsError>> {
        LocalHoldsError::owner_answer(reply)
    }

    fn changes_nothing((_, request): &Self::Request) -> bool {
        match request {
            HoldRequest::Look { .. } | HoldRequest::List(_) | HoldRequest::Dead(_) | HoldRequest::Count(_) => true,
            HoldRequest::Accept(_)
            | HoldRequest::Extend { .. }
            | HoldRequest::Withdraw { .. }
            | HoldRequest::Fire { .. }
            | HoldRequest::WithdrawTopic { .. } => false,
        }
    }

    fn outcome_unknown(reason: String) -> HoldsError {
        HoldsError::OutcomeUnknown(reason)
    }

    fn unavailable(reason: String) -> HoldsError {
        HoldsError::Unavailable(reason)
    }
}

pub struct HoldsRouter {
    pub shards: u32,
    pub local: Arc<dyn LocalHolds>,
    pub owners: OwnerRouter,
}

impl Holds for HoldsRouter {
    fn shards(&self) -> u32 {
        self.shards
    }

    fn ask(&self, shard: u32, ask: HoldRequest) -> PortFuture<'_, Result<HoldReply, HoldsError>> {
        Box::pin(async move {
            let request = (shard, ask);
            let local = || self.local.ask(shard, request.1.clone());
            self.owners.ask::<AskHolds, _>(shard, &request, local).await.unwrap_or(Err(HoldsError::NoOwner(shard)))
        })
    }
}
