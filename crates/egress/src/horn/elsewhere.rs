//! The horns of other processes, for one that has none: each user's notices go to the same one as long as it is there, since it remembers
//! which devices have them.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Call, CallFailure, CallOutcome, Callbacks, Called, Node, PortFuture};

use super::calls::nobody;
use super::limits::{HANDING_GRACE, HANDS_MAX};
use crate::worker::{Silence, hand_over, target_bytes};
use whimbrel_cluster::{Peers, Sight};

/// The role of members that wake devices.
pub const HORN_ROLE: &str = "horn";

/// Those members, as last seen.
pub struct HornsElsewhere {
    peers: Arc<Peers>,
    horns: ArcSwap<Vec<OtherHorn>>,
}

#[derive(Clone, PartialEq, Eq)]
struct OtherHorn {
    name: String,
    address: String,
}

impl HornsElsewhere {
    pub fn new(peers: Arc<Peers>) -> Self {
        Self { peers, horns: ArcSwap::default() }
    }

    /// Follows who is there until it is cancelled.
    pub async fn run(&self, mut sight: Sight, until: CancellationToken) {
        self.see(&sight.view().nodes);
        loop {
            tokio::select! {
                () = until.cancelled() => return,
                view = sight.view_changed() => self.see(&view.nodes),
            }
        }
    }

    /// These nodes are there.
    pub fn see(&self, nodes: &[Node]) {
        let has_horn = |node: &&Node| node.member.roles.iter().any(|role| role == HORN_ROLE);
        let horns = nodes.iter().filter(has_horn).map(|node| {
            let (name, address) = (node.member.name.clone(), node.member.address.clone());
            OtherHorn { name, address }
        });
        self.horns.store(Arc::new(horns.collect()));
    }

    async fn hand_around(&self, call: Call) -> Called {
        let began = Instant::now();
        let horns = self.horns.load_full();
        let mut order: Vec<&OtherHorn> = horns.iter().collect();
        let user = call.record.key.as_deref().unwrap_or_default();
        order.sort_by_cached_key(|horn| std::cmp::Reverse(weight(user, &horn.name)));
        let target = target_bytes(&call.target);
        for horn in order.into_iter().take(HANDS_MAX) {
            match hand_over(&self.peers, &horn.address, &call, target.clone(), HANDING_GRACE).await {
                Ok(Called { outcome: CallOutcome::Failed { why: CallFailure::NoWorker, .. }, .. }) => {}
                Ok(called) => return called,
                // Another does not know which devices have it by now: the next attempt asks the same one first.
                Err(Silence { may_have_called: true, reason }) => {
                    let detail = format!("the horn of {} went away with the notice: {reason}", horn.name);
                    let outcome = CallOutcome::Failed { why: CallFailure::Broken, detail };
                    return Called { outcome, took: began.elapsed() };
                }
                Err(Silence { reason, .. }) => {
                    tracing::warn!(horn = horn.name, reason, "a horn did not answer: another is asked");
                }
            }
        }
        Called { took: began.elapsed(), ..nobody() }
    }
}

impl Callbacks for HornsElsewhere {
    fn call(&self, call: Call) -> PortFuture<'_, Called> {
        Box::pin(self.hand_around(call))
    }
}

/// Who has the highest for a user is the user's: when another comes or goes, only those move that are its own.
fn weight(user: &[u8], horn: &str) -> u64 {
    let mut hasher = FixedState::with_seed(0).build_hasher();
    user.hash(&mut hasher);
    horn.hash(&mut hasher);
    hasher.finish()
}
