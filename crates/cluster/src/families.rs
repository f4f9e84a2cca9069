//! Families of shards: what is owned, by members of which role, and who does the work.
//!
//! All families of a node share one membership and one keeper. Which member owns which shard is decided for each family alone.

use std::sync::Arc;

use super::Duties;
use super::keeper::Resignations;

/// The role of members that own shards of the holds.
pub const CENTER_ROLE: &str = "center";
/// The role of members that own partitions of `_push`.
pub const CARRIER_ROLE: &str = "carrier";
/// The role of members that hold connections of devices. They own nothing.
pub const GATEWAY_ROLE: &str = "gateway";

/// The holds, and the subscriptions with them.
pub const HOLDS_FAMILY: &str = "holds";
/// The partitions of `_push`.
pub const PUSH_FAMILY: &str = "push";

/// What a shard is called in `Coordination`, and its fence in the log.
pub fn shard_name(family: &str, shard: u32) -> String {
    format!("{family}/{shard}")
}

/// Shards of one kind. A node without the role knows the family all the same: it sees who owns what.
pub struct Family {
    /// What the names of its shards begin with.
    pub name: &'static str,
    /// The role of members that own its shards.
    pub role: &'static str,
    pub shards: u32,
    pub duties: Arc<dyn Duties>,
    pub resignations: Resignations,
}

/// A family without who does the work: what deciding takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub name: &'static str,
    pub role: &'static str,
    pub shards: u32,
}

impl Family {
    pub(super) fn kind(&self) -> Kind {
        Kind { name: self.name, role: self.role, shards: self.shards }
    }
}
