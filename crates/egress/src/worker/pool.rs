//! The port `Callbacks` over all workers: the one of this process and those of other nodes.
//!
//! If this process has the only worker, calls go straight to it. Otherwise the strategy of the subscription or its topic selects a worker
//! for each call. A call whose worker is not reachable or fails during the call goes to another worker. So a subscriber may receive the
//! call twice, as at-least-once delivery allows, but never misses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Call, CallFailure, CallOutcome, CallReport, Callbacks, Node, PortFuture};

use super::Worker;
use super::limits::{HANDING_GRACE, HANDS_MAX, LOAD_EVERY};
use super::remote_call::{NoOutcome, ReadLoad, call_remote};
use super::worker_set::{PoolWorker, WorkerSet};
use whimbrel_cluster::{ClusterWatch, PeerClients};

/// The step between random numbers: the golden ratio, which spreads them.
const RANDOM_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

pub struct PoolParts {
    /// The worker of this process, if it has the role.
    pub local: Option<Worker>,
    /// The name of this process in the cluster.
    pub name: String,
    pub peers: Arc<PeerClients>,
}

pub struct WorkerPool {
    local: Option<Worker>,
    name: String,
    peers: Arc<PeerClients>,
    team: ArcSwap<WorkerSet>,
    random: AtomicU64,
}

impl WorkerPool {
    /// A pool with only the worker of this process, until [`Self::see`] adds others.
    pub fn new(parts: PoolParts) -> Self {
        let PoolParts { local, name, peers } = parts;
        let team = WorkerSet::new(None, local.as_ref().map(|_| &*name), None, &[]);
        let seed = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
        let random = AtomicU64::new(seed.subsec_nanos().into());
        Self { local, name, peers, team: ArcSwap::from_pointee(team), random }
    }

    /// Follows the cluster view and the load of all workers, until it is cancelled.
    pub async fn run(&self, mut sight: ClusterWatch, until: CancellationToken) {
        let mut ticks = interval(LOAD_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.see(sight.me(), &sight.view().nodes);
        loop {
            tokio::select! {
                () = until.cancelled() => return,
                view = sight.view_changed() => self.see(sight.me(), &view.nodes),
                _ = ticks.tick() => self.ask_loads().await,
            }
        }
    }

    /// Replaces the known nodes. `me` is the node number of this process.
    pub fn see(&self, me: Option<u16>, nodes: &[Node]) {
        let here = self.local.as_ref().map(|_| &*self.name);
        let team = WorkerSet::new(Some(&self.team.load()), here, me, nodes);
        self.team.store(Arc::new(team));
    }

    /// Requests the load of all workers. A worker that does not reply is selected after the others for a while.
    pub async fn ask_loads(&self) {
        let team = self.team.load_full();
        if team.workers.len() < 2 {
            return;
        }
        let asking = team.workers.iter().map(|worker| async {
            let load = match (&worker.address, &self.local) {
                (Some(address), _) => self.load_of(address).await,
                (None, Some(local)) => Some(local.load()),
                (None, None) => None,
            };
            match load {
                Some(load) => worker.told(load),
                None => self.set_aside(worker, "no reply to a request for its load"),
            }
        });
        join_all(asking).await;
    }

    /// Selects other workers first for a while. Logs this once, not for each call.
    fn set_aside(&self, worker: &PoolWorker, reason: &str) {
        if worker.set_aside() {
            tracing::warn!(worker = worker.name, reason, "a worker did not reply: others are preferred");
        }
    }

    async fn load_of(&self, address: &str) -> Option<super::strategy::WorkerLoad> {
        self.peers.call::<ReadLoad>(address, (), LOAD_EVERY).await.answered().ok()
    }

    /// Passes the call to one worker after the other, until one returns an outcome.
    async fn hand_around(&self, team: &WorkerSet, call: Call) -> CallReport {
        let began = Instant::now();
        let group = team.group(&call);
        let mut tried: Vec<Arc<PoolWorker>> = Vec::new();
        let mut lost = None;
        while tried.len() < HANDS_MAX {
            let random = self.random.fetch_add(RANDOM_STEP, Ordering::Relaxed);
            let Some(worker) = group.pick(&tried, random) else { break };
            let given = worker.give();
            let silence = match (&worker.address, &self.local) {
                (Some(address), _) => {
                    match call_remote(&self.peers, address, &call, group.target_bytes.clone(), HANDING_GRACE).await {
                        // The worker cannot make this call: another one may.
                        Ok(CallReport {
                            outcome: CallOutcome::Failed { why: CallFailure::NoWorker, detail: reason },
                            ..
                        }) => NoOutcome { may_have_called: false, reason },
                        Ok(called) => return called,
                        Err(silence) => silence,
                    }
                }
                (None, Some(local)) => return local.call(call).await,
                (None, None) => break,
            };
            drop(given);
            let NoOutcome { may_have_called, reason } = silence;
            self.set_aside(&worker, &reason);
            if may_have_called {
                lost = Some(format!("the worker {} did not complete the call: {reason}", worker.name));
            }
            tried.push(worker);
        }
        let (why, detail) = match lost {
            Some(detail) => (CallFailure::Broken, detail),
            None if tried.is_empty() => (CallFailure::NoWorker, "the subscription's pool has no worker".to_owned()),
            None => (CallFailure::NoWorker, "no worker of the subscription's pool is reachable".to_owned()),
        };
        CallReport { outcome: CallOutcome::Failed { why, detail }, took: began.elapsed() }
    }
}

impl Callbacks for WorkerPool {
    fn call(&self, call: Call) -> PortFuture<'_, CallReport> {
        let team = self.team.load();
        match &self.local {
            Some(local) if team.is_alone_for(&call.target) => local.call(call),
            _ => {
                let team = Arc::clone(&team);
                Box::pin(async move { self.hand_around(&team, call).await })
            }
        }
    }
}
