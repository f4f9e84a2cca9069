//! The port `Callbacks` over all workers there are: the one of this process and those of others.
//!
//! Where this process has the only worker a call goes straight to it. Otherwise one is picked for each call, by the strategy of the
//! subscription or its topic; a call whose worker cannot be reached, or goes away with it, is handed to another: a subscriber may then see
//! it twice, as at-least-once allows, and never not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use whimbrel_model::ports::{Call, CallFailure, CallOutcome, Callbacks, Called, Node, PortFuture};

use super::Worker;
use super::handing::{Silence, hand_over};
use super::limits::{HANDING_GRACE, HANDS_MAX, LOAD_EVERY};
use super::team::{Colleague, Team};
use super::wire::from_load;
use whimbrel_cluster::wire::protocol::LoadRequest;
use whimbrel_cluster::wire::protocol::workers_client::WorkersClient;
use whimbrel_cluster::{Peers, Sight};

/// What the numbers for picking at random grow by: the golden ratio, so that they spread.
const RANDOM_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// What a pool is made of.
pub struct PoolParts {
    /// The worker of this process, where it has that role.
    pub local: Option<Worker>,
    /// What this process is called among the members.
    pub name: String,
    pub peers: Arc<Peers>,
}

/// All workers.
pub struct WorkerPool {
    local: Option<Worker>,
    name: String,
    peers: Arc<Peers>,
    team: ArcSwap<Team>,
    random: AtomicU64,
}

impl WorkerPool {
    /// A pool that knows the worker of this process only, until it sees others.
    pub fn new(parts: PoolParts) -> Self {
        let PoolParts { local, name, peers } = parts;
        let team = Team::new(None, local.as_ref().map(|_| &*name), None, &[]);
        let seed = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
        let random = AtomicU64::new(seed.subsec_nanos().into());
        Self { local, name, peers, team: ArcSwap::from_pointee(team), random }
    }

    /// Follows who is there and how much they have to do, until it is cancelled.
    pub async fn run(&self, mut sight: Sight, until: CancellationToken) {
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

    /// These nodes are there, and this process is `me` among them.
    pub fn see(&self, me: Option<u16>, nodes: &[Node]) {
        let here = self.local.as_ref().map(|_| &*self.name);
        let team = Team::new(Some(&self.team.load()), here, me, nodes);
        self.team.store(Arc::new(team));
    }

    /// Asks all workers how much they have to do. One that does not answer is asked for calls after the others.
    pub async fn ask_loads(&self) {
        let team = self.team.load_full();
        if team.colleagues.len() < 2 {
            return;
        }
        let asking = team.colleagues.iter().map(|colleague| async {
            let load = match (&colleague.address, &self.local) {
                (Some(address), _) => self.load_of(address).await,
                (None, Some(local)) => Some(local.load()),
                (None, None) => None,
            };
            match load {
                Some(load) => colleague.told(load),
                None => self.set_aside(colleague, "it does not say how much it has to do"),
            }
        });
        join_all(asking).await;
    }

    /// Others are asked before it for a while. That is told once, and not for every call.
    fn set_aside(&self, colleague: &Colleague, reason: &str) {
        if colleague.set_aside() {
            tracing::warn!(worker = colleague.name, reason, "a worker did not answer: others are asked before it");
        }
    }

    async fn load_of(&self, address: &str) -> Option<super::strategy::Load> {
        let mut client = WorkersClient::new(self.peers.channel(address).ok()?);
        let answer = timeout(LOAD_EVERY, client.load(self.peers.request(LoadRequest {}))).await;
        Some(from_load(answer.ok()?.ok()?.get_ref()))
    }

    /// Hands the call to one worker after the other, until one says how it went.
    async fn hand_around(&self, team: &Team, call: Call) -> Called {
        let began = Instant::now();
        let group = team.group(&call);
        let mut tried: Vec<Arc<Colleague>> = Vec::new();
        let mut lost = None;
        while tried.len() < HANDS_MAX {
            let random = self.random.fetch_add(RANDOM_STEP, Ordering::Relaxed);
            let Some(colleague) = group.pick(&tried, random) else { break };
            let given = colleague.give();
            let silence = match (&colleague.address, &self.local) {
                (Some(address), _) => {
                    match hand_over(&self.peers, address, &call, group.target_bytes.clone(), HANDING_GRACE).await {
                        Ok(called) => return called,
                        Err(silence) => silence,
                    }
                }
                (None, Some(local)) => return local.call(call).await,
                (None, None) => break,
            };
            drop(given);
            let Silence { may_have_called, reason } = silence;
            self.set_aside(&colleague, &reason);
            if may_have_called {
                lost = Some(format!("the worker {} went away with the call: {reason}", colleague.name));
            }
            tried.push(colleague);
        }
        let (why, detail) = match lost {
            Some(detail) => (CallFailure::Broken, detail),
            None if tried.is_empty() => (CallFailure::NoWorker, "there is no worker for this subscription".to_owned()),
            None => (CallFailure::NoWorker, "no worker of this subscription can be reached".to_owned()),
        };
        Called { outcome: CallOutcome::Failed { why, detail }, took: began.elapsed() }
    }
}

impl Callbacks for WorkerPool {
    fn call(&self, call: Call) -> PortFuture<'_, Called> {
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
