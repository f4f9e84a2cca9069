//! This process among those that share the work: it joins them, owns its share of the shards, answers what others ask, and leaves in
//! order. Where it is alone the same happens within the process, and nothing listens.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::Memberships;
use whimbrel_cluster::{
    Admission, CENTER_ROLE, Desk, DeskError, DispatchDesk, DispatchDeskError, DispatchRouter, Duties, Family,
    HOLDS_FAMILY, JoinError, Keeper, KeeperParts, KeeperSettings, KeyCheck, OWNER_WAIT_DEFAULT, PeerSettings, Peers,
    Resignations, Router, Sight, dispatch_service, service,
};
use whimbrel_egress::worker::{CallDesks, workers_service};
use whimbrel_model::ports::{
    Ask, Coordination, Dispatch, DispatchAsk, DispatchTold, Holds, Member, Membership, MinuteRow, PortFuture, Told,
};
use whimbrel_model::{Clock, EventSink, SubscriptionNumber, Timestamp, TopicNumber};

use super::descriptors::Descriptors;
use super::guard::Guard;
use super::listen::{self, ListenSettings};
use crate::cli::Failure;
use crate::config::Config;

/// Threads that serve the internal port: what is asked there is decided on the center's own.
const INTERNAL_WORKERS: usize = 1;

/// What joining takes.
pub struct Parts {
    pub coordination: Arc<dyn Coordination>,
    pub duties: Arc<dyn Duties>,
    pub desk: Arc<dyn Desk>,
    pub dispatch_desk: Arc<dyn DispatchDesk>,
    /// Who makes calls in this process, which others may ask.
    pub call_desks: CallDesks,
    pub resignations: Resignations,
    /// The partitions of pushes.
    pub push: Option<Family>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub descriptors: Arc<Descriptors>,
    pub shards: u32,
    /// Adds what else others ask of this process.
    pub add_services: AddServices,
}

/// Adds services to the internal port. They serve only admitted callers.
pub type AddServices = Box<dyn FnOnce(Routes, &Admission) -> Routes + Send>;

/// What a process stands on before it joins: what it is called, where it is reached, and how it reaches others.
pub struct Ground {
    pub name: String,
    /// Where other processes reach this one; of one that is alone, where clients connect.
    pub address: String,
    pub peers: Arc<Peers>,
    admission: Admission,
    key_check: KeyCheck,
    internal: Option<TcpListener>,
    internal_address: Option<SocketAddr>,
}

impl Ground {
    /// `internal` is the internal port, where several processes share the work; `listen` is where clients connect.
    pub fn of(config: &Config, internal: Option<TcpListener>, listen: SocketAddr) -> Result<Self, Failure> {
        let set = |key: &str| Some(key.to_owned()).filter(|key| !key.is_empty());
        let (internal_key, previous) = (set(&config.internal_key.0), set(&config.internal_key_previous.0));
        let admission = Admission::new(internal_key.as_deref(), previous.as_deref());
        let key_check = KeyCheck::new(internal_key.as_deref()).accepting(previous.as_deref());
        let internal_address = internal.as_ref().map(TcpListener::local_addr).transpose()?;
        let peers = PeerSettings { internal_key, ..PeerSettings::default() };
        let peers = Arc::new(Peers::new(peers).map_err(|error| Failure::new(error.to_string()))?);
        let name = config.name.clone().unwrap_or_else(|| name_of(listen));
        let address = config.advertise.clone().unwrap_or_else(|| internal_address.unwrap_or(listen).to_string());
        Ok(Self { name, address, peers, admission, key_check, internal, internal_address })
    }
}

/// A process that has joined.
pub struct Cluster {
    pub holds: Arc<dyn Holds>,
    pub dispatch: Arc<dyn Dispatch>,
    pub peers: Arc<Peers>,
    pub sight: Sight,
    /// The sessions of this process with the coordination.
    pub memberships: Memberships,
    /// What this process is called among the others.
    pub name: String,
    pub node: u16,
    /// Where the internal port is, where there is one.
    pub internal_address: Option<SocketAddr>,
    keeping: JoinHandle<()>,
    leaving: CancellationToken,
    internal: Option<JoinHandle<std::io::Result<()>>>,
    internal_ends: CancellationToken,
}

impl Cluster {
    /// Opens the internal port, then joins, so that nobody who sees this process finds it deaf.
    pub async fn join(config: &Config, ground: Ground, parts: Parts) -> Result<Self, Failure> {
        let Ground { name, address, peers, admission, key_check, internal, internal_address } = ground;
        let internal_ends = CancellationToken::new();
        let (add_services, call_desks) = (parts.add_services, parts.call_desks);
        let internal = internal.map(|listener| {
            let owners = service(Arc::clone(&parts.desk), Arc::clone(&parts.clock), &admission);
            let mut routes = Routes::new(owners);
            routes = routes.add_service(dispatch_service(Arc::clone(&parts.dispatch_desk), &admission));
            if call_desks.worker.is_some() || call_desks.horn.is_some() {
                routes = routes.add_service(workers_service(call_desks, &admission));
            }
            let router = add_services(routes, &admission).into_axum_router();
            let settings = ListenSettings { workers: INTERNAL_WORKERS, ..super::listen_settings(config) };
            // Other nodes ask here, and no browser: the internal key guards it.
            let descriptors = Arc::new(parts.descriptors.of_nodes());
            tokio::spawn(listen::serve(
                listener,
                router,
                Guard::default(),
                settings,
                descriptors,
                internal_ends.clone(),
            ))
        });
        let member = Member {
            name: name.clone(),
            roles: config.roles.names().into_iter().map(str::to_owned).collect(),
            address,
            ..Member::default()
        };
        let settings = KeeperSettings {
            key_check,
            wanted: Some(config.node),
            clocks_apart_max: config.clock_skew,
            ..KeeperSettings::new(member)
        };
        let holds = Family {
            name: HOLDS_FAMILY,
            role: CENTER_ROLE,
            shards: parts.shards,
            duties: parts.duties,
            resignations: parts.resignations,
        };
        let keeper_parts = KeeperParts {
            coordination: parts.coordination,
            families: std::iter::once(holds).chain(parts.push).collect(),
            clocks: peers.clone(),
            clock: parts.clock,
            events: parts.events,
        };
        let keeper = match Keeper::join(settings, keeper_parts).await {
            Ok(keeper) => keeper,
            Err(error) => {
                internal_ends.cancel();
                return Err(cannot_join(&error));
            }
        };
        let (shards, sight) = (parts.shards, keeper.sight());
        let holds = Router::new(shards, sight.clone(), parts.desk, peers.clone(), OWNER_WAIT_DEFAULT);
        let dispatch =
            DispatchRouter::new(shards, sight.clone(), parts.dispatch_desk, peers.clone(), OWNER_WAIT_DEFAULT);
        let (node, memberships, leaving) = (keeper.node(), keeper.memberships(), CancellationToken::new());
        let keeping = tokio::spawn(keeper.run(leaving.clone()));
        Ok(Self {
            holds: Arc::new(holds),
            dispatch: Arc::new(dispatch),
            peers,
            sight,
            memberships,
            name,
            node,
            internal_address,
            keeping,
            leaving,
            internal,
            internal_ends,
        })
    }

    /// Gives up what is owned here, each shard behind its last checkpoint, and leaves. The internal port is open until then: who asks
    /// for a shard meanwhile is told that it is not here any more.
    pub async fn leave(self) {
        self.leaving.cancel();
        if let Err(error) = self.keeping.await {
            tracing::error!(%error, "owning shards ended badly");
        }
        self.internal_ends.cancel();
        if let Some(internal) = self.internal
            && let Ok(Err(error)) = internal.await
        {
            tracing::error!(%error, "the internal port ended badly");
        }
    }
}

fn cannot_join(error: &JoinError) -> Failure {
    let failure = Failure::new(format!("the server cannot start: {error}"));
    match error {
        JoinError::ClocksApart(_) => {
            failure.with_hint("coordination.clock_skew says how far apart they may be, the same in every process")
        }
        JoinError::OtherKey(_) => failure.with_hint(
            "to change the key node by node, set `internal_key_previous`: docs/operating/cluster.md describes the rounds",
        ),
        JoinError::Coordination(_) => failure.with_hint("is etcd running, and has no other process this one's `name`?"),
    }
}

/// A name that is this process's alone on any machine where names of machines are.
fn name_of(listen: SocketAddr) -> String {
    let machine = rustix::system::uname();
    format!("{}:{}", machine.nodename().to_string_lossy(), listen.port())
}

/// A process without the role `center`: it owns nothing, and has no desk. What it counted itself it tells.
pub struct NoCenter {
    pub stats: Arc<TopicStats>,
}

/// A process without the role that owns a family of shards.
pub struct NobodyHere;

impl Duties for NobodyHere {
    fn begin(&self, shard: u32, _: u64, _: Arc<dyn Membership>) {
        tracing::error!(shard, "a shard was given to a process that has not the role for it");
    }

    fn end(&self, _: u32) -> PortFuture<'_, ()> {
        Box::pin(async {})
    }
}

impl Desk for NoCenter {
    fn ask(&self, _: u32, _: Ask) -> PortFuture<'_, Result<Told, DeskError>> {
        Box::pin(async { Err(DeskError::NotHere) })
    }
}

impl DispatchDesk for NoCenter {
    fn ask(&self, _: SubscriptionNumber, _: DispatchAsk) -> PortFuture<'_, Result<DispatchTold, DispatchDeskError>> {
        Box::pin(async { Err(DispatchDeskError::NotHere) })
    }

    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>> {
        Box::pin(self.stats.minutes(topic, from, to))
    }
}
