//! The horns of other nodes, for a process without a horn. All notices of a user go to the same horn while it is present, because it
//! remembers which devices received them.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Call, CallFailure, CallOutcome, CallReport, Callbacks, Node, PortFuture};

use super::horn_callbacks::no_horn;
use super::limits::{HANDING_GRACE, HANDS_MAX};
use crate::worker::{NoOutcome, call_remote, target_bytes};
use whimbrel_cluster::{ClusterWatch, PeerClients};

/// The role of members that notify devices.
pub const HORN_ROLE: &str = "horn";

/// The present members with that role.
pub struct RemoteHorns {
    peers: Arc<PeerClients>,
    horns: ArcSwap<Vec<RemoteHorn>>,
}

#[derive(Clone, PartialEq, Eq)]
struct RemoteHorn {
    name: String,
    address: String,
}

impl RemoteHorns {
    pub fn new(peers: Arc<PeerClients>) -> Self {
        Self { peers, horns: ArcSwap::default() }
    }

    /// Follows the cluster view until it is cancelled.
    pub async fn run(&self, mut sight: ClusterWatch, until: CancellationToken) {
        self.see(&sight.view().nodes);
        loop {
            tokio::select! {
                () = until.cancelled() => return,
                view = sight.view_changed() => self.see(&view.nodes),
            }
        }
    }

    /// Replaces the known nodes.
    pub fn see(&self, nodes: &[Node]) {
        let has_horn = |node: &&Node| node.member.roles.iter().any(|role| role == HORN_ROLE);
        let horns = nodes.iter().filter(has_horn).map(|node| {
            let (name, address) = (node.member.name.clone(), node.member.address.clone());
            RemoteHorn { name, address }
        });
        self.horns.store(Arc::new(horns.collect()));
    }

    async fn hand_around(&self, call: Call) -> CallReport {
        let began = Instant::now();
        let horns = self.horns.load_full();
        let mut order: Vec<&RemoteHorn> = horns.iter().collect();
        let user = call.record.key.as_deref().unwrap_or_default();
        order.sort_by_cached_key(|horn| std::cmp::Reverse(weight(user, &horn.name)));
        let target = target_bytes(&call.target);
        for horn in order.into_iter().take(HANDS_MAX) {
            match call_remote(&self.peers, &horn.address, &call, target.clone(), HANDING_GRACE).await {
                Ok(CallReport { outcome: CallOutcome::Failed { why: CallFailure::NoWorker, .. }, .. }) => {}
                Ok(called) => return called,
                // Another horn does not know which devices were notified. The next attempt tries the same horn first.
                Err(NoOutcome { may_have_called: true, reason }) => {
                    let detail = format!("the horn of {} did not complete the notice: {reason}", horn.name);
                    let outcome = CallOutcome::Failed { why: CallFailure::Broken, detail };
                    return CallReport { outcome, took: began.elapsed() };
                }
                Err(NoOutcome { reason, .. }) => {
                    tracing::warn!(horn = horn.name, reason, "a horn is not available: trying another one");
                }
            }
        }
        CallReport { took: began.elapsed(), ..no_horn() }
    }
}

impl Callbacks for RemoteHorns {
    fn call(&self, call: Call) -> PortFuture<'_, CallReport> {
        Box::pin(self.hand_around(call))
    }
}

/// Rendezvous hashing: the horn with the highest weight serves the user. When a horn joins or leaves, only its own users move.
fn weight(user: &[u8], horn: &str) -> u64 {
    let mut hasher = FixedState::with_seed(0).build_hasher();
    user.hash(&mut hasher);
    horn.hash(&mut hasher);
    hasher.finish()
}
