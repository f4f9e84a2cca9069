//! The port `Dispatch`: passes each request to the owner of its subscription, on this node or another. Without an owner it fails.
//!
//! Retries follow the rules for holds: a request that was certainly not delivered, or that changes nothing, is retried.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use whimbrel_model::ports::{Dispatch, DispatchError, DispatchReply, DispatchRequest, MinuteRow, PortFuture};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

use super::super::cluster_view::ClusterWatch;
use super::super::families::HOLDS_FAMILY;
use super::super::peers::{PeerClients, PeerReply};
use super::super::router::until_answered;
use super::super::{LocalDispatch, LocalDispatchError};

/// The most nodes that are queried for statistics at the same time.
const NODES_ASKED_AT_ONCE: usize = 32;

pub struct DispatchRouter {
    shards: u32,
    cluster: ClusterWatch,
    local: Arc<dyn LocalDispatch>,
    peers: Arc<PeerClients>,
    owner_wait: Duration,
}

/// A final answer; `Err` with the reason if nothing was done and a retry makes sense.
type DispatchAttempt = Result<Result<DispatchReply, DispatchError>, Option<String>>;

impl DispatchRouter {
    /// `shards` is the number of shards of the holds: a subscription is owned with its shard.
    pub fn new(
        shards: u32,
        cluster: ClusterWatch,
        local: Arc<dyn LocalDispatch>,
        peers: Arc<PeerClients>,
        owner_wait: Duration,
    ) -> Self {
        Self { shards, cluster, local, peers, owner_wait }
    }

    /// Makes one attempt at the present owner of the subscription.
    async fn ask_once(&self, subscription: SubscriptionNumber, ask: &DispatchRequest) -> DispatchAttempt {
        let view = self.cluster.view();
        let owner = view.owner(HOLDS_FAMILY, subscription.shard(self.shards)).ok_or(None)?.node;
        if self.cluster.me() == Some(owner) {
            return answered(self.local.ask(subscription, ask.clone()).await);
        }
        let address = view.address_of(owner).ok_or(None)?;
        match self.peers.ask_dispatch(address, subscription, ask).await {
            PeerReply::Answered(answer) => answered(answer),
            PeerReply::NotDelivered(reason) => Err(Some(reason)),
            PeerReply::Unknown(reason) if changes_nothing(ask) => Err(Some(reason)),
            PeerReply::Unknown(reason) => Ok(Err(DispatchError::OutcomeUnknown(reason))),
            PeerReply::Refused(reason) => {
                tracing::error!(node = owner, reason, "another node rejected a request of this node");
                Ok(Err(DispatchError::Unavailable(format!("peer {owner} rejected the request: {reason}"))))
            }
        }
    }

    /// Sums the statistics of all nodes, and counts the nodes that did not answer.
    async fn gather(&self, topic: TopicNumber, from: Timestamp, to: Timestamp) -> (Vec<(Timestamp, MinuteRow)>, usize) {
        let (view, me) = (self.cluster.view(), self.cluster.me());
        let mut minutes = BTreeMap::<Timestamp, MinuteRow>::new();
        let mut add = |rows: Vec<(Timestamp, MinuteRow)>| {
            rows.iter().for_each(|(minute, row)| minutes.entry(*minute).or_default().add(row));
        };
        let mut missing = 0;
        match me {
            Some(_) => add(self.local.minutes(topic, from, to).await),
            // The view may still have this node under its earlier number. Then it is queried as another node.
            None => missing += 1,
        }
        let others = view.nodes.iter().filter(|node| Some(node.number) != me);
        let others: Vec<_> = others.map(|node| (node.number, node.member.address.clone())).collect();
        let asked = others
            .into_iter()
            .map(|(node, address)| async move { (node, self.peers.minutes(&address, topic, from, to).await) });
        let mut answers = std::pin::pin!(stream::iter(asked).buffer_unordered(NODES_ASKED_AT_ONCE));
        while let Some((node, answer)) = answers.next().await {
            match answer {
                Ok(rows) => add(rows),
                Err(reason) => {
                    tracing::debug!(node, reason, "the statistics of a node are missing");
                    missing += 1;
                }
            }
        }
        (minutes.into_iter().collect(), missing)
    }
}

fn answered(answer: Result<DispatchReply, LocalDispatchError>) -> DispatchAttempt {
    match answer {
        Ok(told) => Ok(Ok(told)),
        Err(LocalDispatchError::NotHere) => Err(None),
        Err(LocalDispatchError::Dispatch(error)) => Ok(Err(error)),
    }
}

/// Whether a repeat is harmless. A pull is not: it leases messages that no consumer has until the lease expires.
fn changes_nothing(ask: &DispatchRequest) -> bool {
    match ask {
        DispatchRequest::Status
        | DispatchRequest::CaughtUp { .. }
        | DispatchRequest::Message { .. }
        | DispatchRequest::DeadLetters { .. } => true,
        DispatchRequest::Pull { .. }
        | DispatchRequest::Ack { .. }
        | DispatchRequest::Nack { .. }
        | DispatchRequest::Extend { .. }
        | DispatchRequest::Redrive { .. } => false,
    }
}

impl Dispatch for DispatchRouter {
    fn ask(
        &self,
        subscription: SubscriptionNumber,
        ask: DispatchRequest,
    ) -> PortFuture<'_, Result<DispatchReply, DispatchError>> {
        Box::pin(async move {
            let shard = subscription.shard(self.shards);
            let ask_once = || self.ask_once(subscription, &ask);
            let answer = until_answered(&self.cluster, self.owner_wait, shard, ask_once).await;
            answer.unwrap_or(Err(DispatchError::NoOwner))
        })
    }

    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, (Vec<(Timestamp, MinuteRow)>, usize)> {
        Box::pin(self.gather(topic, from, to))
    }
}
