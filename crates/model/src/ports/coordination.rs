//! The `Coordination` port: the members of a cluster, and the ownership of names. The shared catalogue is a separate port of the same
//! engine.
//!
//! Ownership is a lease. It ends when the owner releases it or loses its session. **The owner learns of the loss, by its own clock, before
//! another member can own the name.** Epochs of a name only increase, also across restarts, so writes of an earlier owner can be rejected.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::PortFuture;

/// A member as engines store it. The format is persisted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Member {
    /// The node's name, unique among present members.
    pub name: String,
    /// The roles of the node: `receive`, `center`, …
    pub roles: Vec<String>,
    /// The address of the internal port, for other nodes.
    pub address: String,
    /// Increases with each join. Zero: an older binary joined, which has no incarnation.
    #[serde(default)]
    pub incarnation: u64,
    /// A check value of the internal key, by which nodes detect that their keys differ. Empty: an older binary joined, which has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key_check: String,
    /// The check value of the second accepted internal key. Empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key_check_previous: String,
}

/// A member with its node number, unique among present members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub number: u16,
    pub member: Member,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub node: u16,
    pub epoch: u64,
}

/// The members and owners at a revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterSnapshot {
    pub revision: u64,
    /// Sorted by number.
    pub nodes: Vec<Node>,
    /// Sorted by name; names are such as `holds/3`.
    pub owners: Vec<(String, Owner)>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoordinationError {
    #[error("`{0}` is owned by another node")]
    Owned(String),
    /// Another present member has the name, or all node numbers are in use.
    #[error("cannot join: {0}")]
    Refused(String),
    /// The session has ended, and with it all its ownership.
    #[error("the session was lost: {0}")]
    Lost(String),
    #[error("the coordination service is not available: {0}")]
    Unavailable(String),
}

/// A member's session with the coordination service, until `leave` or loss.
///
/// *Atomicity*: each call is one step. *Durability*: ownership lasts as long as the session; an epoch is never assigned twice, even after a
/// restart. *Cancellation*: a dropped `own`, `release` or `leave` may or may not have happened, and can be repeated.
pub trait Membership: Send + Sync {
    fn node(&self) -> u16;

    /// Whether the session is valid, by the member's own clock. It returns `false` before another member can take over.
    fn is_valid(&self) -> bool;

    /// Returns when the session has ended, with the reason. `leave` ends it too.
    fn lost(&self) -> PortFuture<'_, String>;

    /// Takes ownership of a free name, and returns the epoch. If this session already owns the name, returns the same epoch.
    fn own<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<u64, CoordinationError>>;

    /// Whether this session owns the name with this epoch. The call reads from the engine, not from local memory.
    fn owns<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<bool, CoordinationError>>;

    /// Releases the name. A name that the session does not own is no error.
    fn release<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<(), CoordinationError>>;

    /// Ends the session. All its names are free at once.
    fn leave(&self) -> PortFuture<'_, ()>;
}

/// Members with node numbers, and ownership with increasing epochs.
pub trait Coordination: Send + Sync {
    /// Joins with a free node number: `wanted` if it is free.
    fn join(
        &self,
        member: Member,
        wanted: Option<u16>,
    ) -> PortFuture<'_, Result<Arc<dyn Membership>, CoordinationError>>;

    /// Returns the members and owners when their revision is above `seen`. Start with zero, which returns at once.
    fn snapshot(&self, seen: u64) -> PortFuture<'_, Result<ClusterSnapshot, CoordinationError>>;
}
