//! A cluster in memory for the tests of this crate: sessions that a test can end, shard owners that record their shards, and clocks that
//! a test sets. The time is tokio's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{
    ClusterSnapshot, Coordination, CoordinationError, HoldReply, HoldRequest, Member, Membership, Node, Owner,
    PortFuture,
};
use whimbrel_model::{Clock, Timestamp};

use super::clocks::PeerClock;
use super::cluster_view::{ClusterView, ClusterWatch};
use super::families::{CENTER_ROLE, HOLDS_FAMILY};
use super::peers::{PeerClients, PeerSettings};
use super::router::OwnerRouter;
use super::rpc::InternalService;
use super::{LocalHolds, LocalHoldsError, ShardOwner};

/// Timeout for the condition that a test waits for, in the test's own time.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct FakeCluster {
    state: Mutex<FakeClusterState>,
    revision: watch::Sender<u64>,
}

#[derive(Default)]
struct FakeClusterState {
    last_epoch: u64,
    last_session: u64,
    nodes: BTreeMap<u16, (u64, Member)>,
    owners: BTreeMap<String, (u64, Owner)>,
    sessions: BTreeMap<u64, watch::Sender<Option<String>>>,
}

impl FakeCluster {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), revision: watch::Sender::new(1) })
    }

    pub fn for_node(self: &Arc<Self>) -> Arc<dyn Coordination> {
        Arc::new(FakeCoordination { cluster: self.clone() })
    }

    /// Signals the loss of the node's session. Its entries remain until [`FakeCluster::let_go`] is called with the returned session.
    pub fn tell_lost(&self, node: u16) -> u64 {
        let state = self.state.lock().unwrap();
        let session = state.nodes[&node].0;
        state.sessions[&session].send_replace(Some("connection lost".to_owned()));
        session
    }

    pub fn let_go(&self, session: u64) {
        let mut state = self.state.lock().unwrap();
        state.nodes.retain(|_, (of, _)| *of != session);
        state.owners.retain(|_, (of, _)| *of != session);
        drop(state);
        self.revision.send_modify(|revision| *revision += 1);
    }

    pub fn owners(&self) -> BTreeMap<String, u16> {
        self.state.lock().unwrap().owners.iter().map(|(name, (_, owner))| (name.clone(), owner.node)).collect()
    }

    pub fn shares(&self, family: &str) -> Vec<(u16, usize)> {
        let mut owners = self.owners();
        owners.retain(|name, _| name.split_once('/').is_some_and(|(of, _)| of == family));
        let nodes: Vec<u16> = self.state.lock().unwrap().nodes.keys().copied().collect();
        nodes.into_iter().map(|node| (node, owners.values().filter(|owner| **owner == node).count())).collect()
    }

    pub fn member(&self, node: u16) -> Option<Member> {
        self.state.lock().unwrap().nodes.get(&node).map(|(_, member)| member.clone())
    }

    fn snapshot(&self, revision: u64) -> ClusterSnapshot {
        let state = self.state.lock().unwrap();
        let nodes = state.nodes.iter().map(|(number, (_, member))| Node { number: *number, member: member.clone() });
        let owners = state.owners.iter().map(|(name, (_, owner))| (name.clone(), *owner));
        ClusterSnapshot { revision, nodes: nodes.collect(), owners: owners.collect() }
    }

    pub async fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let mut revisions = self.revision.subscribe();
        let waiting = async {
            while !is_so(self) {
                revisions.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("timed out before {what}: {:?}", self.owners());
        }
    }

    pub async fn wait_for_shares(&self, shares: &[(u16, usize)]) {
        self.wait_for_shares_of(HOLDS_FAMILY, shares).await;
    }

    pub async fn wait_for_shares_of(&self, family: &str, shares: &[(u16, usize)]) {
        self.wait_until(&format!("the shares are {shares:?}"), |cluster| cluster.shares(family) == shares).await;
    }
}

struct FakeCoordination {
    cluster: Arc<FakeCluster>,
}

impl Coordination for FakeCoordination {
    fn join(
        &self,
        member: Member,
        wanted: Option<u16>,
    ) -> PortFuture<'_, Result<Arc<dyn Membership>, CoordinationError>> {
        Box::pin(async move {
            let mut state = self.cluster.state.lock().unwrap();
            if state.nodes.values().any(|(_, other)| other.name == member.name) {
                return Err(CoordinationError::Refused("the name is taken".to_owned()));
            }
            let is_free = |number: &u16| !state.nodes.contains_key(number);
            let node = wanted.filter(is_free).or_else(|| (0..).find(is_free)).unwrap();
            state.last_session += 1;
            let session = state.last_session;
            let lost = watch::Sender::new(None);
            state.sessions.insert(session, lost.clone());
            state.nodes.insert(node, (session, member));
            drop(state);
            self.cluster.revision.send_modify(|revision| *revision += 1);
            let membership = FakeMembership { cluster: self.cluster.clone(), node, session, lost };
            Ok(Arc::new(membership) as Arc<dyn Membership>)
        })
    }

    fn snapshot(&self, seen: u64) -> PortFuture<'_, Result<ClusterSnapshot, CoordinationError>> {
        let mut revisions = self.cluster.revision.subscribe();
        Box::pin(async move {
            let revision = *revisions.wait_for(|revision| *revision > seen).await.unwrap();
            let picture = self.cluster.snapshot(revision);
            // Other nodes may join between this read and its use.
            tokio::task::yield_now().await;
            Ok(picture)
        })
    }
}

struct FakeMembership {
    cluster: Arc<FakeCluster>,
    node: u16,
    session: u64,
    lost: watch::Sender<Option<String>>,
}

impl Membership for FakeMembership {
    fn node(&self) -> u16 {
        self.node
    }

    fn is_valid(&self) -> bool {
        self.lost.borrow().is_none()
    }

    fn lost(&self) -> PortFuture<'_, String> {
        let mut lost = self.lost.subscribe();
        Box::pin(async move { lost.wait_for(Option::is_some).await.unwrap().clone().unwrap() })
    }

    fn own<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<u64, CoordinationError>> {
        Box::pin(async move {
            if let Some(reason) = &*self.lost.borrow() {
                return Err(CoordinationError::Lost(reason.clone()));
            }
            let mut state = self.cluster.state.lock().unwrap();
            match state.owners.get(name) {
                Some((session, owner)) if *session == self.session => return Ok(owner.epoch),
                Some(_) => return Err(CoordinationError::Owned(name.to_owned())),
                None => {}
            }
            state.last_epoch += 1;
            let epoch = state.last_epoch;
            state.owners.insert(name.to_owned(), (self.session, Owner { node: self.node, epoch }));
            drop(state);
            self.cluster.revision.send_modify(|revision| *revision += 1);
            Ok(epoch)
        })
    }

    fn owns<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<bool, CoordinationError>> {
        Box::pin(async move {
            let state = self.cluster.state.lock().unwrap();
            Ok(state.owners.get(name).is_some_and(|(of, owner)| *of == self.session && owner.epoch == epoch))
        })
    }

    fn release<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<(), CoordinationError>> {
        Box::pin(async move {
            let mut state = self.cluster.state.lock().unwrap();
            if state.owners.get(name).is_some_and(|(of, _)| *of == self.session) {
                state.owners.remove(name);
                drop(state);
                self.cluster.revision.send_modify(|revision| *revision += 1);
            }
            Ok(())
        })
    }

    fn leave(&self) -> PortFuture<'_, ()> {
        Box::pin(async {
            self.lost.send_replace(Some("left".to_owned()));
            self.cluster.let_go(self.session);
        })
    }
}

/// The node and epoch that serve each shard, over all nodes. Serving a shard twice panics.
#[derive(Default)]
pub struct ServedShards {
    serving: Mutex<BTreeMap<u32, (u16, u64)>>,
    highest: Mutex<BTreeMap<u32, u64>>,
    changed: Notify,
}

impl ServedShards {
    pub fn serving(&self) -> BTreeMap<u32, (u16, u64)> {
        self.serving.lock().unwrap().clone()
    }

    pub async fn wait_until(&self, what: &str, is_so: impl Fn(&BTreeMap<u32, (u16, u64)>) -> bool) {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                if is_so(&self.serving()) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("timed out before {what}: {:?}", self.serving());
        }
    }
}

/// A shard owner that only records its shards. Ending a shard takes `ending_takes`.
pub struct FakeShardOwner {
    pub node_name: u16,
    pub ledger: Arc<ServedShards>,
    pub ending_takes: Duration,
}

impl ShardOwner for FakeShardOwner {
    fn begin(&self, shard: u32, epoch: u64, _: Arc<dyn Membership>) {
        let before = self.ledger.serving.lock().unwrap().insert(shard, (self.node_name, epoch));
        assert_eq!(before, None, "shard {shard} is served twice");
        let earlier = self.ledger.highest.lock().unwrap().insert(shard, epoch).unwrap_or(0);
        assert!(epoch > earlier, "the epoch of shard {shard} has not grown");
        self.ledger.changed.notify_waiters();
    }

    fn end(&self, shard: u32) -> PortFuture<'_, ()> {
        Box::pin(async move {
            tokio::time::sleep(self.ending_takes).await;
            let mut serving = self.ledger.serving.lock().unwrap();
            assert_eq!(
                serving.remove(&shard).map(|(node, _)| node),
                Some(self.node_name),
                "the shard was served by this node"
            );
            drop(serving);
            self.ledger.changed.notify_waiters();
        })
    }
}

/// A wall clock that runs with the test's time and deviates by a settable number of milliseconds.
pub struct FakeClock {
    began: Instant,
    off_ms: AtomicI64,
}

impl FakeClock {
    pub fn new(off_ms: i64) -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), off_ms: AtomicI64::new(off_ms) })
    }

    pub fn set(&self, off_ms: i64) {
        self.off_ms.store(off_ms, Ordering::SeqCst);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.began.elapsed().as_millis()).unwrap();
        Timestamp::from_millis(1_800_000_000_000 + elapsed + self.off_ms.load(Ordering::SeqCst))
    }
}

#[derive(Default)]
pub struct FakeClocks {
    pub clocks: Mutex<BTreeMap<String, Arc<FakeClock>>>,
}

impl PeerClock for FakeClocks {
    fn read_clock<'a>(&'a self, address: &'a str) -> PortFuture<'a, Result<Timestamp, String>> {
        Box::pin(async move {
            let clock = self.clocks.lock().unwrap().get(address).cloned();
            clock.map(|clock| clock.now()).ok_or_else(|| "no node has this address".to_owned())
        })
    }
}

/// An owner with a preset answer that counts its requests.
pub struct FakeOwner<A> {
    pub answer: Mutex<A>,
    asked: AtomicU64,
    /// Whether it answers only after a notification.
    hangs: bool,
    pub go_on: Notify,
}

pub type FakeLocalHolds = FakeOwner<Result<HoldReply, LocalHoldsError>>;

impl<A: Clone> FakeOwner<A> {
    pub fn answering(answer: A) -> Arc<Self> {
        Arc::new(Self { answer: Mutex::new(answer), asked: AtomicU64::new(0), hangs: false, go_on: Notify::new() })
    }

    pub fn hanging(answer: A) -> Arc<Self> {
        Arc::new(Self { answer: Mutex::new(answer), asked: AtomicU64::new(0), hangs: true, go_on: Notify::new() })
    }

    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    pub async fn until_asked(&self) {
        while self.asked() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn reply(&self) -> A {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            self.go_on.notified().await;
        }
        self.answer.lock().unwrap().clone()
    }
}

impl LocalHolds for FakeLocalHolds {
    fn ask(&self, _: u32, _: HoldRequest) -> PortFuture<'_, Result<HoldReply, LocalHoldsError>> {
        Box::pin(self.reply())
    }
}

/// This node, whose router is under test.
pub const ME: u16 = 1;
/// The other node of a [`RouterScene`].
pub const OTHER: u16 = 2;
/// Long enough for a call over loopback on a busy machine.
pub const OWNER_WAIT: Duration = Duration::from_secs(20);

/// A cluster of two nodes in which only one shard has an owner.
pub struct RouterScene {
    views: watch::Sender<Arc<ClusterView>>,
    me: watch::Sender<Option<GatewayId>>,
    shards: u32,
    shard: u32,
}

impl RouterScene {
    /// `owner` owns the shard `shard` of `shards`. The address of the other node is `other`.
    pub fn owned_by(owner: Option<u16>, other: &str, shard: u32, shards: u32) -> Self {
        let scene = Self { views: watch::Sender::default(), me: watch::Sender::new(identity(ME)), shards, shard };
        scene.give_to(owner, other);
        scene
    }

    pub fn give_to(&self, owner: Option<u16>, other: &str) {
        let mut nodes = [ME, OTHER].map(|number| Node { number, member: center(number) });
        nodes[1].member.address = other.to_owned();
        let mut owners = vec![None; self.shards as usize];
        owners[self.shard as usize] = owner;
        self.views.send_replace(view_of(nodes.into(), owners));
    }

    /// The routing of this node.
    pub fn owners(&self, peers: PeerSettings, owner_wait: Duration) -> OwnerRouter {
        let cluster = ClusterWatch::new(self.views.subscribe(), self.me.subscribe());
        OwnerRouter { cluster, peers: Arc::new(PeerClients::new(peers).unwrap()), owner_wait }
    }
}

/// Serves on a port of its own, which is closed when the task is aborted.
pub async fn serve(service: InternalService) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::builder().add_service(service);
    let incoming = TcpIncoming::from(listener);
    (address, tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() }))
}

/// The address of a node that has stopped.
pub async fn stopped_node() -> String {
    let (address, server) = serve(InternalService::new(None)).await;
    server.abort();
    assert!(server.await.is_err(), "the node has stopped");
    address
}

pub fn center(number: u16) -> Member {
    let roles = vec![CENTER_ROLE.to_owned()];
    Member { name: format!("n{number}"), roles, address: format!("n{number}:1"), ..Member::default() }
}

fn view_of(nodes: Vec<Node>, owners: Vec<Option<u16>>) -> Arc<ClusterView> {
    let owners = owners.into_iter().map(|owner| Some(Owner { node: owner?, epoch: 1 })).collect();
    Arc::new(ClusterView { revision: 1, nodes, owners: BTreeMap::from([(HOLDS_FAMILY, owners)]) })
}

fn identity(node: u16) -> Option<GatewayId> {
    Some(GatewayId { node, incarnation: 1 })
}
