//! The port `Dispatch`: passes each request to the owner of its subscription, on this node or another. Without an owner it fails.
//!
//! Retries follow the rules for holds: a request that was certainly not delivered, or that changes nothing, is retried.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use whimbrel_model::ports::{Dispatch, DispatchError, DispatchReply, DispatchRequest, MinuteRow, PortFuture};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

use super::super::families::HOLDS_FAMILY;
use super::super::router::{OwnerRouter, ShardCall};
use super::super::{LocalDispatch, LocalDispatchError};
use super::service::{AskSubscription, ReadMinutes};

/// The most nodes that are queried for statistics at the same time.
const NODES_ASKED_AT_ONCE: usize = 32;

/// The timeout of a query for statistics, so that a hanging node does not delay a page.
const MINUTES_WITHIN: Duration = Duration::from_secs(3);
/// The timeout for an owner that redrives all dead letters of a subscription.
const REDRIVEN_WITHIN: Duration = Duration::from_secs(60);

pub struct DispatchRouter {
    /// The number of shards of the holds: a subscription is owned with its shard.
    pub shards: u32,
    pub local: Arc<dyn LocalDispatch>,
    pub owners: OwnerRouter,
}

impl ShardCall for AskSubscription {
    type Answer = DispatchReply;
    type Error = DispatchError;
    const FAMILY: &'static str = HOLDS_FAMILY;

    fn answer(reply: Self::Reply) -> Option<Result<DispatchReply, DispatchError>> {
        LocalDispatchError::owner_answer(reply)
    }

    /// A repeated pull is not harmless: it leases messages that no consumer has until the lease expires.
    fn changes_nothing((_, request): &Self::Request) -> bool {
        match request {
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

    fn answer_within((_, request): &Self::Request, default: Duration) -> Duration {
        match request {
            DispatchRequest::Pull { wait_ms, .. } => default + Duration::from_millis(*wait_ms),
            DispatchRequest::Redrive { .. } => default.max(REDRIVEN_WITHIN),
            _ => default,
        }
    }

    fn outcome_unknown(reason: String) -> DispatchError {
        DispatchError::OutcomeUnknown(reason)
    }

    fn unavailable(reason: String) -> DispatchError {
        DispatchError::Unavailable(reason)
    }
}

impl DispatchRouter {
    /// Sums the statistics of all nodes, and counts the nodes that did not answer.
    async fn gather(&self, topic: TopicNumber, from: Timestamp, to: Timestamp) -> (Vec<(Timestamp, MinuteRow)>, usize) {
        let (cluster, peers) = (&self.owners.cluster, &self.owners.peers);
        let (view, me) = (cluster.view(), cluster.me());
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
        let asked = others.into_iter().map(|(node, address)| async move {
            (node, peers.call::<ReadMinutes>(&address, (topic, from, to), MINUTES_WITHIN).await.answered())
        });
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

impl Dispatch for DispatchRouter {
    fn ask(
        &self,
        subscription: SubscriptionNumber,
        ask: DispatchRequest,
    ) -> PortFuture<'_, Result<DispatchReply, DispatchError>> {
        Box::pin(async move {
            let (shard, request) = (subscription.shard(self.shards), (subscription, ask));
            let local = || self.local.ask(subscription, request.1.clone());
            let answer = self.owners.ask::<AskSubscription, _>(shard, &request, local).await;
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
