//! The `Coordination` port: who is there, who owns what. The catalogue that all nodes share is a port of its own beside it,
//! served by the same engine.
//!
//! Ownership is a lease: it ends when the owner gives it up or its session is lost, and **the owner learns of the loss before
//! anyone else can own the same**, by its own clock. Epochs of one name only grow, across restarts too: what an earlier owner
//! still writes is told from what the present one does.

use std::sync::Arc;

use super::PortFuture;

/// A process that takes part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Member {
    /// What people call it; unique among the living.
    pub name: String,
    /// The roles that it runs: `receive`, `center`, …
    pub roles: Vec<String>,
    /// Where others reach it: the internal port.
    pub address: String,
    /// Greater each time that it joins; zero where an older binary joined, which did not say.
    pub incarnation: u64,
    /// By which members notice that their internal keys differ; empty where an older binary joined, which had none.
    pub key_check: String,
    /// The check value of the second internal key that the member accepts; empty if there is none.
    pub key_check_previous: String,
}

/// A member with its node number, which no other living member has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub number: u16,
    pub member: Member,
}

/// Who owns a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub node: u16,
    pub epoch: u64,
}

/// Who is there and who owns what, as of a revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Picture {
    pub revision: u64,
    /// By number.
    pub nodes: Vec<Node>,
    /// By name, such as `holds/3`.
    pub owners: Vec<(String, Owner)>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoordinationError {
    #[error("`{0}` is owned by another node")]
    Owned(String),
    /// Another living member has that name, or all node numbers are taken.
    #[error("cannot join: {0}")]
    Refused(String),
    /// The session is over: what it owned is no longer its own.
    #[error("the session was lost: {0}")]
    Lost(String),
    #[error("the coordination is not available: {0}")]
    Unavailable(String),
}

/// Membership in the cluster, until it is left or lost.
pub trait Membership: Send + Sync {
    fn node(&self) -> u16;

    /// Whether the session stands, by the member's own clock: `false` before anyone else can have taken over.
    fn stands(&self) -> bool;

    /// Returns when the session is lost, with the reason. A membership that was left is lost too.
    fn lost(&self) -> PortFuture<'_, String>;

    /// Takes a name that nobody owns, and answers with its epoch. Taking what this session owns already answers with the same
    /// epoch.
    fn own<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<u64, CoordinationError>>;

    /// Whether this session owns the name with that epoch, asked of the engine and not of memory.
    fn owns<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<bool, CoordinationError>>;

    /// Gives the name up. What is not owned is no error.
    fn release<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<(), CoordinationError>>;

    /// Ends the session: everything it owned is free at once.
    fn leave(&self) -> PortFuture<'_, ()>;
}

/// Members with node numbers, ownership with a growing epoch, watched.
pub trait Coordination: Send + Sync {
    /// Joins under a node number that no living member has; `wanted` where that is free.
    fn join(
        &self,
        member: Member,
        wanted: Option<u16>,
    ) -> PortFuture<'_, Result<Arc<dyn Membership>, CoordinationError>>;

    /// The present picture, once its revision is above `seen`. Begin with zero, which is answered at once.
    fn picture(&self, seen: u64) -> PortFuture<'_, Result<Picture, CoordinationError>>;
}
