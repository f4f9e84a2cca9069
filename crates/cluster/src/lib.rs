//! The cluster: membership, ownership of shards, and the routing of requests to owners.
//!
//! [`keeper`] joins the cluster, claims the shards that [`assign`] gives to this node, and releases shards that it must give up, for each
//! of the [`families`] of this node. [`router`] implements the port `Holds`: it passes a request to the local owner of a shard
//! ([`LocalHolds`]) or to another node where [`service`] answers it. [`dispatch`] does the same for the port `Dispatch`. [`rpc`] has the
//! calls between nodes.
//! [`clocks`] keeps nodes whose clocks differ too much from owning shards, and [`key_check`] rejects nodes with another internal key.
//! Owners are [`machine`]s: a [`shell`] runs each, and a [`Supervisor`] runs the shells of a role.
//!
//! This crate does not depend on the work of an owner: that is behind [`ShardOwner`] and [`LocalHolds`].

use std::sync::Arc;

use whimbrel_model::ports::{
    DispatchError, DispatchReply, DispatchRequest, HoldReply, HoldRequest, HoldsError, Membership, MinuteRow,
    PortFuture,
};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

pub mod admission;
mod alarm;
pub mod assign;
pub mod clocks;
pub mod cluster_view;
pub mod dispatch;
pub mod families;
pub mod keeper;
#[cfg(test)]
mod keeper_tests;
pub mod key_check;
pub mod line_limit;
pub mod machine;
pub mod owner_clock;
mod ownership;
pub mod peers;
pub mod presence_shards;
pub mod reachability;
pub mod protocol {
    //! The messages of the streams between gateways and carriers.
    tonic::include_proto!("whimbrel.internal.v1");
}
pub mod router;
#[cfg(test)]
mod router_tests;
pub mod rpc;
pub mod service;
mod shard_owners;
pub mod shell;
pub mod supervisor;
#[cfg(test)]
mod testing;

pub use admission::{Admission, KEY_METADATA};
pub use clocks::{ClocksApart, PeerClock};
pub use cluster_view::{ClusterView, ClusterWatch};
pub use dispatch::{DispatchRouter, dispatch_service};
pub use families::{CARRIER_ROLE, CENTER_ROLE, Family, GATEWAY_ROLE, HOLDS_FAMILY, PUSH_FAMILY, shard_name};
pub use keeper::{ClusterKeeper, JoinError, KeeperParts, KeeperSettings, Resign, Resignations, resignations};
pub use key_check::{InternalKeyMismatch, KeyCheck};
pub use machine::Machine;
pub use peers::{BadInternalKey, PeerClients, PeerSettings};
pub use router::{HoldsRouter, OWNER_WAIT_DEFAULT, OwnerRouter};
pub use rpc::{InternalService, Wire};
pub use service::service;
pub use shard_owners::ShardOwners;
pub use supervisor::Supervisor;

/// The work of this node for the shards that it owns.
pub trait ShardOwner: Send + Sync {
    /// Starts the owner of the shard under that epoch. Returns at once.
    fn begin(&self, shard: u32, epoch: u64, membership: Arc<dyn Membership>);

    /// Stops the owner of the shard. Returns when it decides and commits nothing more.
    fn end(&self, shard: u32) -> PortFuture<'_, ()>;
}

/// Takes requests for the owners of shards on this node.
pub trait LocalHolds: Send + Sync {
    fn ask(&self, shard: u32, ask: HoldRequest) -> PortFuture<'_, Result<HoldReply, LocalHoldsError>>;
}

/// The error of a request to an owner on this node. `E` is the error of the owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocalError<E> {
    /// This node does not own the shard. Nothing was done.
    #[error("the shard is not owned here")]
    NotHere,
    #[error(transparent)]
    Owner(#[from] E),
}

pub type LocalHoldsError = LocalError<HoldsError>;
pub type LocalDispatchError = LocalError<DispatchError>;

impl<E> LocalError<E> {
    /// The owner's answer. `None`: this node does not own the shard.
    pub fn owner_answer<T>(reply: Result<T, Self>) -> Option<Result<T, E>> {
        match reply {
            Ok(answer) => Some(Ok(answer)),
            Err(Self::NotHere) => None,
            Err(Self::Owner(error)) => Some(Err(error)),
        }
    }
}

/// Takes requests for the owners of subscriptions on this node. The owner of a shard owns the subscriptions of that shard.
pub trait LocalDispatch: Send + Sync {
    fn ask(
        &self,
        subscription: SubscriptionNumber,
        ask: DispatchRequest,
    ) -> PortFuture<'_, Result<DispatchReply, LocalDispatchError>>;

    /// This node's statistics of a topic by the minute, from `from` to before `to`, in order.
    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>>;
}
