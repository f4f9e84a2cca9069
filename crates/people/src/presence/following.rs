//! Presence follows what the node sees of the cluster: which gateways and proxies live, and which incarnation its own gateway is.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::Node;

use super::living::Living;
use super::reporter::GatewayReporter;
use super::station::Station;
use whimbrel_cluster::{GATEWAY_ROLE, Sight};

/// The role of members that spread packets and write shards.
pub const PRESENCE_ROLE: &str = "presence";

impl Living {
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

impl Station {
    /// Reports, writes and spreads until the shutdown, following what the node sees of the cluster. Once.
    pub async fn run(&self, sight: Sight) {
        let (living, seen) = watch::channel(Arc::new(Living::of(&sight.view().nodes)));
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

async fn follow_view(mut sight: Sight, living: watch::Sender<Arc<Living>>) {
    loop {
        let seen = Living::of(&sight.view_changed().await.nodes);
        living.send_if_modified(|living| {
            let is_other = **living != seen;
            *living = Arc::new(seen);
            is_other
        });
    }
}

async fn follow_identity(sight: Sight, reporter: Arc<GatewayReporter>) {
    let mut identities = sight.identities();
    loop {
        // While the lease is lost, the gateway goes on under the incarnation that is void; it gets a new one when it has joined again.
        if let Some(gateway) = *identities.borrow_and_update() {
            reporter.reincarnate(gateway);
        }
        if identities.changed().await.is_err() {
            return;
        }
    }
}
