//! A node's view of the cluster: the members, the owner of each shard, and the node's own number.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{ClusterSnapshot, Node, Owner};

use super::families::{CENTER_ROLE, FamilyKind, shard_name};

/// The cluster as of a revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterView {
    pub revision: u64,
    /// In the order of their numbers.
    pub nodes: Vec<Node>,
    /// The owners of each family's shards, by family name; the index is the shard's number.
    pub owners: BTreeMap<&'static str, Vec<Option<Owner>>>,
}

impl ClusterView {
    pub(super) fn of(picture: ClusterSnapshot, kinds: &[FamilyKind]) -> Self {
        let unowned = |kind: &FamilyKind| (kind.name, vec![None; kind.shards as usize]);
        let mut owners: BTreeMap<&'static str, Vec<Option<Owner>>> = kinds.iter().map(unowned).collect();
        for (name, owner) in picture.owners {
            let Some((family, shard)) = name.split_once('/') else { continue };
            let (Some(shards), Ok(shard)) = (owners.get_mut(family), shard.parse::<u32>()) else { continue };
            if let Some(place) = shards.get_mut(shard as usize)
                && shard_name(family, shard) == name
            {
                *place = Some(owner);
            }
        }
        Self { revision: picture.revision, nodes: picture.nodes, owners }
    }

    pub fn owners_of(&self, family: &str) -> &[Option<Owner>] {
        self.owners.get(family).map_or(&[], Vec::as_slice)
    }

    pub fn owner(&self, family: &str, shard: u32) -> Option<Owner> {
        self.owners_of(family).get(shard as usize).copied().flatten()
    }

    pub fn node(&self, number: u16) -> Option<&Node> {
        self.nodes.iter().find(|each| each.number == number)
    }

    pub fn address_of(&self, node: u16) -> Option<&str> {
        self.node(node).map(|each| &*each.member.address)
    }

    pub fn with_role<'a>(&'a self, role: &'a str) -> impl Iterator<Item = &'a Node> {
        self.nodes.iter().filter(move |node| node.member.roles.iter().any(|each| each == role))
    }

    /// The nodes that may own shards of the holds.
    pub fn centers(&self) -> impl Iterator<Item = &Node> {
        self.with_role(CENTER_ROLE)
    }
}

/// The latest view, and this node's number while it is a member. Clones share the channels.
#[derive(Clone)]
pub struct ClusterWatch {
    pub(super) views: watch::Receiver<Arc<ClusterView>>,
    pub(super) me: watch::Receiver<Option<GatewayId>>,
}

impl ClusterWatch {
    pub fn new(views: watch::Receiver<Arc<ClusterView>>, me: watch::Receiver<Option<GatewayId>>) -> Self {
        Self { views, me }
    }

    pub fn view(&self) -> Arc<ClusterView> {
        self.views.borrow().clone()
    }

    /// Returns when the view has changed since the last call of this handle.
    pub async fn view_changed(&mut self) -> Arc<ClusterView> {
        // The sending keeper has ended with the node: nothing changes any more.
        if self.views.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.views.borrow_and_update().clone()
    }

    /// This node's number; `None` while its session is lost. It may change when the node joins again.
    pub fn me(&self) -> Option<u16> {
        self.identity().map(|identity| identity.node)
    }

    /// Returns when this node's number has changed, or it has joined again, since the last call of this handle.
    pub async fn me_changed(&mut self) -> Option<u16> {
        // The sending keeper has ended with the node: nothing changes any more.
        if self.me.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.me.borrow_and_update().map(|identity| identity.node)
    }

    /// This node's number with its present incarnation, which identifies its gateway. `None` while its session is lost.
    pub fn identity(&self) -> Option<GatewayId> {
        *self.me.borrow()
    }

    pub fn identities(&self) -> watch::Receiver<Option<GatewayId>> {
        self.me.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_has_the_owners_of_each_family_and_skips_unknown_shards() {
        let owner = |node| Owner { node, epoch: u64::from(node) * 10 };
        let owners =
            [("holds/1", 3), ("push/0", 4), ("push/2", 5), ("push/01", 6), ("push/x", 6), ("other/0", 6), ("push", 6)];
        let owners = owners.map(|(name, node)| (name.to_owned(), owner(node))).into();
        let kinds = [
            FamilyKind { name: "holds", role: "center", shards: 2 },
            FamilyKind { name: "push", role: "carrier", shards: 2 },
        ];
        let view = ClusterView::of(ClusterSnapshot { revision: 9, nodes: Vec::new(), owners }, &kinds);
        assert_eq!(view.owners_of("holds"), [None, Some(owner(3))]);
        assert_eq!(view.owners_of("push"), [Some(owner(4)), None]);
        assert_eq!(view.owners_of("other"), []);
        assert_eq!(view.owner("push", 7), None);
    }
}
