//! The port `Dispatch`: every question finds the owner of its subscription, on this node or another, or says that there is none.
//!
//! What may be asked again, and when, is as for holds: what was certainly not delivered, and what changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use whimbrel_model::ports::{Dispatch, DispatchAsk, DispatchError, DispatchTold, MinuteRow, PortFuture};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

use super::super::families::HOLDS_FAMILY;
use super::super::peers::{Asked, Peers};
use super::super::router::until_answered;
use super::super::sight::Sight;
use super::super::{DispatchDesk, DispatchDeskError};

/// Nodes that are asked for their figures at the same time.
const NODES_ASKED_AT_ONCE: usize = 32;

/// Questions to the owners of all subscriptions.
pub struct DispatchRouter {
    shards: u32,
    sight: Sight,
    desk: Arc<dyn DispatchDesk>,
    peers: Arc<Peers>,
    owner_wait: Duration,
}

/// An answer that stands; `Err` where nothing was done and another try makes sense, with the reason.
type Tried = Result<Result<DispatchTold, DispatchError>, Option<String>>;

impl DispatchRouter {
    /// As many shards as the holds have: a subscription is owned with its shard.
    pub fn new(
        shards: u32,
        sight: Sight,
        desk: Arc<dyn DispatchDesk>,
        peers: Arc<Peers>,
        owner_wait: Duration,
    ) -> Self {
        Self { shards, sight, desk, peers, owner_wait }
    }

    /// Asks whoever owns the subscription now.
    async fn ask_once(&self, subscription: SubscriptionNumber, ask: &DispatchAsk) -> Tried {
        let view = self.sight.view();
        let owner = view.owner(HOLDS_FAMILY, subscription.shard(self.shards)).ok_or(None)?.node;
        if self.sight.me() == Some(owner) {
            return answered(self.desk.ask(subscription, ask.clone()).await);
        }
        let address = view.address_of(owner).ok_or(None)?;
        match self.peers.ask_dispatch(address, subscription, ask).await {
            Asked::Answered(answer) => answered(answer),
            Asked::NotDelivered(reason) => Err(Some(reason)),
            Asked::Unknown(reason) if changes_nothing(ask) => Err(Some(reason)),
            Asked::Unknown(reason) => Ok(Err(DispatchError::OutcomeUnknown(reason))),
            Asked::Refused(reason) => {
                tracing::error!(node = owner, reason, "another node refuses what this one asks");
                Ok(Err(DispatchError::Unavailable(format!("node {owner} refused the question: {reason}"))))
            }
        }
    }

    /// The figures of all nodes, and how many did not answer.
    async fn gather(&self, topic: TopicNumber, from: Timestamp, to: Timestamp) -> (Vec<(Timestamp, MinuteRow)>, usize) {
        let (view, me) = (self.sight.view(), self.sight.me());
        let mut minutes = BTreeMap::<Timestamp, MinuteRow>::new();
        let mut add = |rows: Vec<(Timestamp, MinuteRow)>| {
            rows.iter().for_each(|(minute, row)| minutes.entry(*minute).or_default().add(row));
        };
        let mut silent = 0;
        match me {
            Some(_) => add(self.desk.minutes(topic, from, to).await),
            // The view may still have this node under the number that it had, and it is asked as others are.
            None => silent += 1,
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
                    tracing::debug!(node, reason, "a node's figures are missing");
                    silent += 1;
                }
            }
        }
        (minutes.into_iter().collect(), silent)
    }
}

fn answered(answer: Result<DispatchTold, DispatchDeskError>) -> Tried {
    match answer {
        Ok(told) => Ok(Ok(told)),
        Err(DispatchDeskError::NotHere) => Err(None),
        Err(DispatchDeskError::Dispatch(error)) => Ok(Err(error)),
    }
}

/// Whether asking twice is as good as once. A pull hands messages out, which then nobody has until their lease is over.
fn changes_nothing(ask: &DispatchAsk) -> bool {
    match ask {
        DispatchAsk::Status
        | DispatchAsk::CaughtUp { .. }
        | DispatchAsk::Message { .. }
        | DispatchAsk::DeadLetters { .. } => true,
        DispatchAsk::Pull { .. }
        | DispatchAsk::Ack { .. }
        | DispatchAsk::Nack { .. }
        | DispatchAsk::Extend { .. }
        | DispatchAsk::Redrive { .. } => false,
    }
}

impl Dispatch for DispatchRouter {
    fn ask(
        &self,
        subscription: SubscriptionNumber,
        ask: DispatchAsk,
    ) -> PortFuture<'_, Result<DispatchTold, DispatchError>> {
        Box::pin(async move {
            let shard = subscription.shard(self.shards);
            let ask_once = || self.ask_once(subscription, &ask);
            let answer = until_answered(&self.sight, self.owner_wait, shard, ask_once).await;
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
