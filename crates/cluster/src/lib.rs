//! The cluster: membership, ownership of shards, and the routing of requests to owners.
//!
//! [`keeper`] joins the cluster, claims the shards that [`assign`] gives to this node, and releases shards that it must give up, for each of
//! the [`families`] of this node. [`router`] implements the port `Holds`: it passes a request to the local owner of a shard ([`Desk`]) or to
//! another node over gRPC, where [`service`] answers it. [`dispatch`] does the same for the port `Dispatch`. [`clocks`] keeps nodes whose
//! clocks differ too much from owning shards, and [`key_check`] rejects nodes with another internal key.
//!
//! This crate does not know the work of an owner: that is behind [`Duties`] and [`Desk`].

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
pub mod line_limit;
pub mod owner_clock;
pub mod peers;
pub mod presence_shards;
pub mod reachability;
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
