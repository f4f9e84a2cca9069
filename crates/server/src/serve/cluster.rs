//! Membership of this node in the cluster: it joins, owns its share of the shards, answers internal calls, and leaves in order. With the
//! engine `process` the same happens within the process, and no internal port is open.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use whimbrel_catalogue::topic_stats::TopicStats;
use whimbrel_catalogue::topics::Memberships;
use whimbrel_cluster::{
    Admission, CENTER_ROLE, ClusterKeeper, ClusterWatch, DispatchRouter, Family, HOLDS_FAMILY, HoldsRouter,
    InternalService, JoinError, KeeperParts, KeeperSettings, KeyCheck, LocalDispatch, LocalDispatchError, LocalHolds,
    LocalHoldsError, OWNER_WAIT_DEFAULT, OwnerRouter, PeerClients, PeerSettings, Resignations, ShardOwner,
    dispatch_service, service,
};
use whimbrel_egress::worker::{LocalCallbacks, workers_service};
use whimbrel_model::ports::{
    Coordination, Dispatch, DispatchReply, DispatchRequest, HoldReply, HoldRequest, Holds, Member, Membership,
    MinuteRow, PortFuture,
};
use whimbrel_model::{Clock, EventSink, SubscriptionNumber, Timestamp, TopicNumber};

use super::descriptors::Descriptors;
use super::guard::Guard;
use super::listen::{self, ListenSettings};
use crate::cli::CliError;
use crate::config::Config;

/// Threads that serve the internal port. The center decides on its own threads.
const INTERNAL_WORKERS: usize = 1;

pub struct ClusterParts {
    pub coordination: Arc<dyn Coordination>,
    pub duties: Arc<dyn ShardOwner>,
    pub desk: Arc<dyn LocalHolds>,
    pub dispatch_desk: Arc<dyn LocalDispatch>,
    /// The local workers, which other nodes may call.
    pub call_desks: LocalCallbacks,
    pub resignations: Resignations,
    pub push: Option<Family>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
    pub descriptors: Arc<Descriptors>,
    pub shards: u32,
    /// Adds the calls and streams of further roles to the internal port.
    pub add_services: AddServices,
}

/// Adds calls and streams to those of the internal port. They serve only admitted callers.
pub type AddServices = Box<dyn FnOnce(InternalService, &Admission) -> Routes + Send>;

/// The identity of a node before it joins: its name, its address, and its connections to other nodes.
pub struct NodeIdentity {
    pub name: String,
    /// The address at which other nodes reach this one; of a single node, the address for clients.
    pub address: String,
    pub peers: Arc<PeerClients>,
    admission: Admission,
    key_check: KeyCheck,
    internal: Option<TcpListener>,
    internal_address: Option<SocketAddr>,
}

impl NodeIdentity {
    /// `internal` is the listener of the internal port, if the node is in a cluster; `listen` is the address for clients.
    pub fn of(config: &Config, internal: Option<TcpListener>, listen: SocketAddr) -> Result<Self, CliError> {
        let set = |key: &str| Some(key.to_owned()).filter(|key| !key.is_empty());
        let (internal_key, previous) =
            (set(&config.process.internal_key.0), set(&config.process.internal_key_previous.0));
        let admission = Admission::new(internal_key.as_deref(), previous.as_deref());
        let key_check = KeyCheck::new(internal_key.as_deref()).accepting(previous.as_deref());
        let internal_address = internal.as_ref().map(TcpListener::local_addr).transpose()?;
        let peers = PeerSettings { internal_key, ..PeerSettings::default() };
        let peers = Arc::new(PeerClients::new(peers).map_err(|error| CliError::new(error.to_string()))?);
        let name = config.process.name.clone().unwrap_or_else(|| name_of(listen));
        let address =
            config.process.advertise.clone().unwrap_or_else(|| internal_address.unwrap_or(listen).to_string());
        Ok(Self { name, address, peers, admission, key_check, internal, internal_address })
    }
}

/// A node that has joined.
pub struct ClusterNode {
    pub holds: Arc<dyn Holds>,
    pub dispatch: Arc<dyn Dispatch>,
    pub peers: Arc<PeerClients>,
    pub sight: ClusterWatch,
    /// The sessions of this node with the coordination service.
    pub memberships: Memberships,
    pub name: String,
    pub node: u16,
    /// The address of the internal port, if it is open.
    pub internal_address: Option<SocketAddr>,
    keeping: JoinHandle<()>,
    leaving: CancellationToken,
    internal: Option<JoinHandle<std::io::Result<()>>>,
    internal_ends: CancellationToken,
}

impl ClusterNode {
    /// Opens the internal port, then joins: the node must answer as soon as other nodes can see it.
    pub async fn join(config: &Config, identity: NodeIdentity, parts: ClusterParts) -> Result<Self, CliError> {
        let NodeIdentity { name, address, peers, admission, key_check, internal, internal_address } = identity;
        let internal_ends = CancellationToken::new();
        let (add_services, call_desks) = (parts.add_services, parts.call_desks);
        let internal = internal.map(|listener| {
            let mut calls = service(Arc::clone(&parts.desk), Arc::clone(&parts.clock), &admission)
                .and(&dispatch_service(Arc::clone(&parts.dispatch_desk), &admission));
            if call_desks.worker.is_some() || call_desks.horn.is_some() {
                calls = calls.and(&workers_service(call_desks, &admission));
            }
            let router = add_services(calls, &admission).into_axum_router();
            let settings = ListenSettings { workers: INTERNAL_WORKERS, ..super::listen_settings(config) };
            // Only nodes call this port, no browsers: the internal key guards it.
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
            roles: config.process.roles.names().into_iter().map(str::to_owned).collect(),
            address,
            ..Member::default()
        };
        let settings = KeeperSettings {
            key_check,
            wanted: Some(config.process.node),
            clocks_apart_max: config.coordination.clock_skew,
            ..KeeperSettings::new(member)
        };
        let holds = Family {
            name: HOLDS_FAMILY,
            role: CENTER_ROLE,
            shards: parts.shards,
            owner: parts.duties,
            resignations: parts.resignations,
        };
        let keeper_parts = KeeperParts {
            coordination: parts.coordination,
            families: std::iter::once(holds).chain(parts.push).collect(),
            clocks: peers.clone(),
            clock: parts.clock,
            events: parts.events,
        };
        let keeper = match ClusterKeeper::join(settings, keeper_parts).await {
            Ok(keeper) => keeper,
            Err(error) => {
                internal_ends.cancel();
                return Err(cannot_join(&error));
            }
        };
        let (shards, sight) = (parts.shards, keeper.cluster());
        let owners = OwnerRouter { cluster: sight.clone(), peers: peers.clone(), owner_wait: OWNER_WAIT_DEFAULT };
        let holds = HoldsRouter { shards, local: parts.desk, owners: owners.clone() };
        let dispatch = DispatchRouter { shards, local: parts.dispatch_desk, owners };
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

    /// Releases the owned shards, each after its last checkpoint, and leaves. Until then the internal port answers calls for a shard with
    /// the reply that this node does not own it.
    pub async fn leave(self) {
        self.leaving.cancel();
        if let Err(error) = self.keeping.await {
            tracing::error!(%error, "the shard owners did not end cleanly");
        }
        self.internal_ends.cancel();
        if let Some(internal) = self.internal
            && let Ok(Err(error)) = internal.await
        {
            tracing::error!(%error, "the internal port did not close cleanly");
        }
    }
}

fn cannot_join(error: &JoinError) -> CliError {
    let failure = CliError::new(format!("the server cannot start: {error}"));
    match error {
        JoinError::ClocksApart(_) => {
            failure.with_hint("coordination.clock_skew is the permitted difference; set the same value on every node")
        }
        JoinError::KeyMismatch(_) => failure.with_hint(
            "to change the key node by node, set `internal_key_previous`: docs/operating/cluster.md describes the rounds",
        ),
        JoinError::Coordination(_) => failure.with_hint("is etcd running, and is the `name` of this node unique?"),
    }
}

/// A name that is unique where host names are: host and port.
fn name_of(listen: SocketAddr) -> String {
    let machine = rustix::system::uname();
    format!("{}:{}", machine.nodename().to_string_lossy(), listen.port())
}

/// Stands in for the center on a node without the role `center`: owns no shards. It reports only the statistics of this node.
pub struct NoCenter {
    pub stats: Arc<TopicStats>,
}

/// Stands in for the owner of a shard family on a node without that role.
pub struct NoOwner;

impl ShardOwner for NoOwner {
    fn begin(&self, shard: u32, _: u64, _: Arc<dyn Membership>) {
        tracing::error!(shard, "this node was assigned a shard without having the role for it");
    }

    fn end(&self, _: u32) -> PortFuture<'_, ()> {
        Box::pin(async {})
    }
}

impl LocalHolds for NoCenter {
    fn ask(&self, _: u32, _: HoldRequest) -> PortFuture<'_, Result<HoldReply, LocalHoldsError>> {
        Box::pin(async { Err(LocalHoldsError::NotHere) })
    }
}

impl LocalDispatch for NoCenter {
    fn ask(
        &self,
        _: SubscriptionNumber,
        _: DispatchRequest,
    ) -> PortFuture<'_, Result<DispatchReply, LocalDispatchError>> {
        Box::pin(async { Err(LocalDispatchError::NotHere) })
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
