//! What this node sees of the cluster: who is there, who owns which shard, and which node it is itself.

use std::sync::Arc;

use tokio::sync::watch;
use whimbrel_model::ports::{Node, Picture};

use super::{CENTER_ROLE, shard_name};

/// The cluster as of a revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    pub revision: u64,
    /// By number.
    pub nodes: Vec<Node>,
    /// The owner of each shard by its number.
    pub owners: Vec<Option<u16>>,
}

impl View {
    pub(super) fn of(picture: Picture, shards: u32) -> Self {
        let mut owners = vec![None; shards as usize];
        let names: Vec<String> = (0..shards).map(shard_name).collect();
        for (name, owner) in picture.owners {
            if let Some(shard) = names.iter().position(|each| *each == name) {
                owners[shard] = Some(owner.node);
            }
        }
        Self { revision: picture.revision, nodes: picture.nodes, owners }
    }

    pub fn owner(&self, shard: u32) -> Option<u16> {
        self.owners.get(shard as usize).copied().flatten()
    }

    pub fn address_of(&self, node: u16) -> Option<&str> {
        self.nodes.iter().find(|each| each.number == node).map(|each| &*each.member.address)
    }

    /// The nodes that own shards, or would.
    pub fn centers(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.member.roles.iter().any(|role| role == CENTER_ROLE))
    }
}

/// The latest view, and this node's number while it is a member. Cloning shares it.
#[derive(Clone)]
pub struct Sight {
    pub(super) views: watch::Receiver<Arc<View>>,
    pub(super) me: watch::Receiver<Option<u16>>,
}

impl Sight {
    pub fn view(&self) -> Arc<View> {
        self.views.borrow().clone()
    }

    /// Returns when the view has changed since the last call of this handle.
    pub async fn view_changed(&mut self) -> Arc<View> {
        // The keeper that sends has ended with the node: then nothing changes any more.
        if self.views.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.views.borrow_and_update().clone()
    }

    /// This node's number; `None` while its session is lost. It may change when the node joins again.
    pub fn me(&self) -> Option<u16> {
        *self.me.borrow()
    }

    /// Returns when this node's number has changed since the last call of this handle.
    pub async fn me_changed(&mut self) -> Option<u16> {
        // The keeper that sends has ended with the node: then nothing changes any more.
        if self.me.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        *self.me.borrow_and_update()
    }
}
