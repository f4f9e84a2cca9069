//! Families of shards. A family has shards of one kind, which members with one role own.
//!
//! All families of a node share one membership and one keeper. Shards are assigned for each family separately.

use std::sync::Arc;

use super::ShardOwner;
use super::keeper::Resignations;

/// The role of members that own shards of the holds.
pub const CENTER_ROLE: &str = "center";
/// The role of members that own partitions of `_push`.
pub const CARRIER_ROLE: &str = "carrier";
/// The role of members that hold connections of devices. They own no shards.
pub const GATEWAY_ROLE: &str = "gateway";

/// The holds, and the subscriptions with them.
pub const HOLDS_FAMILY: &str = "holds";
pub const PUSH_FAMILY: &str = "push";

/// The name of a shard in `Coordination`, and of its fence in the log.
pub fn shard_name(family: &str, shard: u32) -> String {
    format!("{family}/{shard}")
}

/// Shards of one kind. A node without the role has the family too, to see its owners.
pub struct Family {
    pub name: &'static str,
    pub role: &'static str,
    pub shards: u32,
    pub owner: Arc<dyn ShardOwner>,
    pub resignations: Resignations,
}

/// A family without its owner on this node: the input of the assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FamilyKind {
    pub name: &'static str,
    pub role: &'static str,
    pub shards: u32,
}

impl Family {
    pub(super) fn kind(&self) -> FamilyKind {
        FamilyKind { name: self.name, role: self.role, shards: self.shards }
    }
}
