//! Who owns which shard of which family, and how questions about holds and subscriptions find the owner.
//!
//! [`keeper`] joins the cluster, takes the shards that [`assign`] gives to this node and ends what it must give up, for each of the
//! [`families`] that the node knows. [`router`]
//! is the port `Holds`: a shard of this node is asked at its [`Desk`], another node's over gRPC, which [`service`] answers
//! there. [`dispatch`] is the same for the port `Dispatch`: a subscription is owned with its shard. [`clocks`] keeps nodes whose
//! clocks are apart from owning anything, and [`key_check`] keeps nodes with another internal key out.
//!
//! It knows what a shard is and nothing of what its owner does: the work is behind [`Duties`] and [`Desk`].

use std::sync::Arc;

use whimbrel_model::ports::{
    Ask, DispatchAsk, DispatchError, DispatchTold, HoldsError, Membership, MinuteRow, PortFuture, Told,
};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

pub mod admission;
pub mod assign;
pub mod clocks;
pub mod dispatch;
pub mod families;
pub mod keeper;
#[cfg(test)]
mod keeper_tests;
pub mod key_check;
pub mod peers;
pub mod router;
#[cfg(test)]
mod router_tests;
pub mod service;
pub mod sight;
mod tenure;
#[cfg(test)]
mod testing;
mod together;
pub mod wire;

pub use admission::{Admission, KEY_METADATA};
pub use clocks::{AskClock, ClocksApart};
pub use dispatch::{DispatchDoor, DispatchRouter, dispatch_service};
pub use families::{CARRIER_ROLE, CENTER_ROLE, Family, GATEWAY_ROLE, HOLDS_FAMILY, PUSH_FAMILY, shard_name};
pub use keeper::{JoinError, Keeper, KeeperParts, KeeperSettings, Resign, Resignations, resignations};
pub use key_check::{KeyCheck, OtherKey};
pub use peers::{BadInternalKey, PeerSettings, Peers};
pub use router::{OWNER_WAIT_DEFAULT, Router};
pub use service::{OwnersDoor, service};
pub use sight::{Sight, View};
pub use together::Together;

/// What a node does for the shards that it owns.
pub trait Duties: Send + Sync {
    /// The shard is this node's from now on, under that epoch. Returns at once.
    fn begin(&self, shard: u32, epoch: u64, membership: Arc<dyn Membership>);

    /// The shard is to be given up. Returns when nothing of it will be decided or committed any more.
    fn end(&self, shard: u32) -> PortFuture<'_, ()>;
}

/// Where the owner of a shard on this node takes questions.
pub trait Desk: Send + Sync {
    fn ask(&self, shard: u32, ask: Ask) -> PortFuture<'_, Result<Told, DeskError>>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeskError {
    /// The shard is not this node's. Nothing was done.
    #[error("the shard is not owned here")]
    NotHere,
    #[error(transparent)]
    Holds(#[from] HoldsError),
}

/// Where the owner of a subscription on this node takes questions. The owner of a shard owns the subscriptions of that shard.
pub trait DispatchDesk: Send + Sync {
    fn ask(
        &self,
        subscription: SubscriptionNumber,
        ask: DispatchAsk,
    ) -> PortFuture<'_, Result<DispatchTold, DispatchDeskError>>;

    /// What this node counted of a topic, from a minute on to before another, in order.
    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DispatchDeskError {
    /// The subscription's shard is not this node's. Nothing was done.
    #[error("the subscription is not owned here")]
    NotHere,
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
}
