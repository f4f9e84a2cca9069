//! Connects presence to the cluster view: live gateways and proxies, and the incarnation of this node's gateway.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::Node;

use super::live_members::LiveMembers;
use super::node::PresenceNode;
use super::reporter::GatewayReporter;
use whimbrel_cluster::{ClusterWatch, GATEWAY_ROLE};

/// The role of members that act as proxies and write shards.
pub const PRESENCE_ROLE: &str = "presence";

impl LiveMembers {
    pub fn of(nodes: &[Node]) -> Self {
        let with =
            |role: &'static str| nodes.iter().filter(move |node| node.member.roles.iter().any(|each| each == role));
        let gateways = with(GATEWAY_ROLE).map(|node| {
            let id = GatewayId { node: node.number, incarnation: node.member.incarnation };
            (id, node.member.address.as_str().into())
        });
        let mut proxies: Vec<String> = with(PRESENCE_ROLE).map(|node| node.member.address.clone()).collect();
        proxies.sort();
        Self { gateways: gateways.collect(), proxies }
    }
}

impl PresenceNode {
    /// Runs reporter, proxy and writers until the shutdown, with the node's cluster view. Call it once.
    pub async fn run(&self, sight: ClusterWatch) {
        let (living, seen) = watch::channel(Arc::new(LiveMembers::of(&sight.view().nodes)));
        let mut tasks = JoinSet::new();
        tasks.spawn(follow_view(sight.clone(), living));
        if self.reports() {
            tasks.spawn(follow_identity(sight, self.reporter()));
        }
        tokio::select! {
            () = self.run_with(seen) => {}
            () = self.shutdown().cancelled() => {}
        }
    }
}

async fn follow_view(mut sight: ClusterWatch, living: watch::Sender<Arc<LiveMembers>>) {
    loop {
        let seen = LiveMembers::of(&sight.view_changed().await.nodes);
        living.send_if_modified(|living| {
            let is_other = **living != seen;
            *living = Arc::new(seen);
            is_other
        });
    }
}

async fn follow_identity(sight: ClusterWatch, reporter: Arc<GatewayReporter>) {
    let mut identities = sight.identities();
    loop {
        // After a lost lease, the gateway keeps its void incarnation until it has joined again.
        if let Some(gateway) = *identities.borrow_and_update() {
            reporter.reincarnate(gateway);
        }
        if identities.changed().await.is_err() {
            return;
        }
    }
}
