//! Several nodes over one world: the `Coordination` port in memory, and a node's own, faulty view of the catalogue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;
use whimbrel_catalogue::topics::TopicDefaults;
use whimbrel_ingress::ReceiveSettings;
use whimbrel_model::ports::{
    Catalogue, CatalogueError, ClusterSnapshot, Coordination, CoordinationError, Member, Membership, Node, Owner,
    PortFuture, Versioned,
};

use super::catalogue::MemoryCatalogue;
use super::{TestApi, World};

#[derive(Default)]
pub struct MemoryCoordination {
    cluster: Mutex<Cluster>,
    revision: watch::Sender<u64>,
}

#[derive(Default)]
struct Cluster {
    sessions: BTreeMap<u16, Member>,
    owners: BTreeMap<String, Owner>,
}

impl MemoryCoordination {
    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap()
    }

    fn tell(&self) {
        self.revision.send_modify(|revision| *revision += 1);
    }

    pub fn enter(self: &Arc<Self>, number: u16) -> Arc<MemoryMembership> {
        let member = Member { name: format!("node-{number}"), ..Member::default() };
        self.cluster().sessions.insert(number, member);
        self.tell();
        Arc::new(MemoryMembership { cluster: Arc::clone(self), number, lost: watch::Sender::new(false) })
    }

    pub fn owned(&self) -> Vec<String> {
        self.cluster().owners.keys().cloned().collect()
    }
}

impl Coordination for MemoryCoordination {
    fn join(&self, _: Member, _: Option<u16>) -> PortFuture<'_, Result<Arc<dyn Membership>, CoordinationError>> {
        Box::pin(async { Err(CoordinationError::Refused("tests enter by number".to_owned())) })
    }

    fn snapshot(&self, seen: u64) -> PortFuture<'_, Result<ClusterSnapshot, CoordinationError>> {
        let mut revisions = self.revision.subscribe();
        Box::pin(async move {
            let revision = *revisions.wait_for(|revision| *revision > seen).await.expect("the sender exists");
            let cluster = self.cluster();
            let nodes = cluster.sessions.iter();
            let nodes = nodes.map(|(number, member)| Node { number: *number, member: member.clone() }).collect();
            let owners = cluster.owners.iter().map(|(name, owner)| (name.clone(), *owner)).collect();
            Ok(ClusterSnapshot { revision, nodes, owners })
        })
    }
}

pub struct MemoryMembership {
    cluster: Arc<MemoryCoordination>,
    number: u16,
    lost: watch::Sender<bool>,
}

impl MemoryMembership {
    /// The session has expired by the node's own clock. Other nodes still see the member.
    pub fn lose(&self) {
        self.lost.send_replace(true);
    }

    /// The coordination ends the session too.
    pub fn expire(&self) {
        self.lose();
        let mut cluster = self.cluster.cluster();
        cluster.sessions.remove(&self.number);
        cluster.owners.retain(|_, owner| owner.node != self.number);
        drop(cluster);
        self.cluster.tell();
    }
}

impl Membership for MemoryMembership {
    fn node(&self) -> u16 {
        self.number
    }

    fn is_valid(&self) -> bool {
        !*self.lost.borrow()
    }

    fn lost(&self) -> PortFuture<'_, String> {
        Box::pin(async {
            let mut lost = self.lost.subscribe();
            lost.wait_for(|lost| *lost).await.expect("the sender exists");
            "the test ended it".to_owned()
        })
    }

    fn own<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<u64, CoordinationError>> {
        Box::pin(async move {
            if !self.is_valid() {
                return Err(CoordinationError::Lost("it is over".to_owned()));
            }
            self.cluster.cluster().owners.insert(name.to_owned(), Owner { node: self.number, epoch: 1 });
            self.cluster.tell();
            Ok(1)
        })
    }

    fn owns<'a>(&'a self, name: &'a str, _: u64) -> PortFuture<'a, Result<bool, CoordinationError>> {
        Box::pin(async move { Ok(self.cluster.cluster().owners.contains_key(name)) })
    }

    fn release<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<(), CoordinationError>> {
        Box::pin(async move {
            self.cluster.cluster().owners.remove(name);
            self.cluster.tell();
            Ok(())
        })
    }

    fn leave(&self) -> PortFuture<'_, ()> {
        Box::pin(async move { self.expire() })
    }
}

pub struct NodeCatalogue {
    inner: Arc<MemoryCatalogue>,
    is_stale: watch::Sender<bool>,
    is_away: AtomicBool,
    /// The next write succeeds, and its answer is an unknown outcome.
    loses_next_answer: AtomicBool,
}

impl NodeCatalogue {
    pub fn set_stale(&self, is_stale: bool) {
        self.is_stale.send_replace(is_stale);
    }

    pub fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    pub fn lose_next_answer(&self) {
        self.loses_next_answer.store(true, Ordering::SeqCst);
    }

    pub fn has_lost_the_answer(&self) -> bool {
        !self.loses_next_answer.load(Ordering::SeqCst)
    }

    fn reach(&self) -> Result<(), CatalogueError> {
        let is_away = self.is_away.load(Ordering::SeqCst);
        if is_away { Err(CatalogueError::Unavailable("away".to_owned())) } else { Ok(()) }
    }
}

impl Catalogue for NodeCatalogue {
    fn get<'a>(&'a self, key: &'a str) -> PortFuture<'a, Result<Option<Versioned>, CatalogueError>> {
        Box::pin(async move {
            self.reach()?;
            self.inner.get(key).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> PortFuture<'a, Result<Vec<(String, Versioned)>, CatalogueError>> {
        Box::pin(async move {
            self.reach()?;
            self.inner.list(prefix).await
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> PortFuture<'a, Result<u64, CatalogueError>> {
        Box::pin(async move {
            let written = self.inner.put(key, value, expected).await;
            if self.loses_next_answer.swap(false, Ordering::SeqCst) {
                self.set_away(true);
                return Err(CatalogueError::OutcomeUnknown("the answer was lost".to_owned()));
            }
            written
        })
    }

    fn remove<'a>(&'a self, key: &'a str, expected: u64) -> PortFuture<'a, Result<(), CatalogueError>> {
        self.inner.remove(key, expected)
    }

    fn changed(&self, seen: u64) -> PortFuture<'_, Result<u64, CatalogueError>> {
        Box::pin(async move {
            let mut is_stale = self.is_stale.subscribe();
            loop {
                let revision = self.inner.changed(seen).await?;
                if !*is_stale.borrow_and_update() {
                    return Ok(revision);
                }
                is_stale.changed().await.expect("the sender exists");
            }
        })
    }
}

pub struct ClusterNode {
    pub api: TestApi,
    pub catalogue: Arc<NodeCatalogue>,
    pub membership: Arc<MemoryMembership>,
    memberships: watch::Sender<Option<Arc<dyn Membership>>>,
    number: u16,
    cluster: Arc<MemoryCoordination>,
}

impl ClusterNode {
    pub async fn open(world: &Arc<World>, cluster: &Arc<MemoryCoordination>, number: u16) -> Self {
        let coordination: Arc<dyn Coordination> = cluster.clone();
        Self::open_as(world, cluster, number, Some(coordination)).await
    }

    /// A node that shares nothing.
    pub async fn open_alone(world: &Arc<World>) -> Self {
        Self::open_as(world, &Arc::default(), 0, None).await
    }

    async fn open_as(
        world: &Arc<World>,
        cluster: &Arc<MemoryCoordination>,
        number: u16,
        coordination: Option<Arc<dyn Coordination>>,
    ) -> Self {
        let catalogue = Arc::new(NodeCatalogue {
            inner: world.catalogue.clone(),
            is_stale: watch::Sender::new(false),
            is_away: AtomicBool::new(false),
            loses_next_answer: AtomicBool::new(false),
        });
        let membership = cluster.enter(number);
        let memberships = watch::Sender::new(Some(Arc::clone(&membership) as Arc<dyn Membership>));
        let (topics, settings) = (TopicDefaults::default(), ReceiveSettings::default());
        let api =
            world.try_open_among(topics, settings, catalogue.clone(), coordination, memberships.subscribe()).await;
        let (api, cluster) = (api.unwrap(), Arc::clone(cluster));
        Self { api, catalogue, membership, memberships, number, cluster }
    }

    /// The node joins again after it has lost its session.
    pub fn join_again(&mut self) {
        self.membership = self.cluster.enter(self.number);
        self.memberships.send_replace(Some(Arc::clone(&self.membership) as Arc<dyn Membership>));
    }
}
