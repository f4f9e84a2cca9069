//! Several nodes over one world: sessions that a test can end, and a node's own, faulty view of the catalogue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use tokio::sync::watch;
use whimbrel_catalogue::topics::TopicDefaults;
use whimbrel_engines::embedded::InProcessCoordination;
use whimbrel_ingress::ReceiveSettings;
use whimbrel_model::ports::{
    Catalogue, CatalogueError, Coordination, CoordinationError, Member, Membership, PortFuture, Versioned,
};

use super::catalogue::MemoryCatalogue;
use super::{TestApi, World};

/// A cluster without members.
pub fn empty_cluster() -> Arc<InProcessCoordination> {
    Arc::new(InProcessCoordination::new(Arc::new(MemoryCatalogue::default())))
}

/// The session of a node, which a test can end.
pub struct TestMembership {
    session: Arc<dyn Membership>,
    lost: watch::Sender<bool>,
}

impl TestMembership {
    pub fn enter(cluster: &InProcessCoordination, number: u16) -> Arc<Self> {
        let member = Member { name: format!("node-{number}"), ..Member::default() };
        let joined = cluster.join(member, Some(number)).now_or_never().expect("nothing is waited for");
        Arc::new(Self { session: joined.unwrap(), lost: watch::Sender::new(false) })
    }

    /// The session has expired by the node's own clock. Other nodes still see the member.
    pub fn lose(&self) {
        self.lost.send_replace(true);
    }

    /// The coordination ends the session too.
    pub fn expire(&self) {
        self.lose();
        self.session.leave().now_or_never().expect("nothing is waited for");
    }
}

impl Membership for TestMembership {
    fn node(&self) -> u16 {
        self.session.node()
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
        if self.is_valid() {
            return self.session.own(name);
        }
        Box::pin(async { Err(CoordinationError::Lost("it is over".to_owned())) })
    }

    fn owns<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<bool, CoordinationError>> {
        self.session.owns(name, epoch)
    }

    fn release<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<(), CoordinationError>> {
        self.session.release(name)
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
    pub membership: Arc<TestMembership>,
    memberships: watch::Sender<Option<Arc<dyn Membership>>>,
    number: u16,
    cluster: Arc<InProcessCoordination>,
}

impl ClusterNode {
    pub async fn open(world: &Arc<World>, cluster: &Arc<InProcessCoordination>, number: u16) -> Self {
        let coordination: Arc<dyn Coordination> = cluster.clone();
        Self::open_as(world, cluster, number, Some(coordination)).await
    }

    /// A node that shares nothing.
    pub async fn open_alone(world: &Arc<World>) -> Self {
        Self::open_as(world, &empty_cluster(), 0, None).await
    }

    async fn open_as(
        world: &Arc<World>,
        cluster: &Arc<InProcessCoordination>,
        number: u16,
        coordination: Option<Arc<dyn Coordination>>,
    ) -> Self {
        let catalogue = Arc::new(NodeCatalogue {
            inner: world.catalogue.clone(),
            is_stale: watch::Sender::new(false),
            is_away: AtomicBool::new(false),
            loses_next_answer: AtomicBool::new(false),
        });
        let membership = TestMembership::enter(cluster, number);
        let memberships = watch::Sender::new(Some(Arc::clone(&membership) as Arc<dyn Membership>));
        let (topics, settings) = (TopicDefaults::default(), ReceiveSettings::default());
        let api =
            world.try_open_among(topics, settings, catalogue.clone(), coordination, memberships.subscribe()).await;
        let (api, cluster) = (api.unwrap(), Arc::clone(cluster));
        Self { api, catalogue, membership, memberships, number, cluster }
    }

    /// The node joins again after it has lost its session and the others have seen its end: the coordination refuses a name in use.
    pub fn join_again(&mut self) {
        self.membership.expire();
        self.membership = TestMembership::enter(&self.cluster, self.number);
        self.memberships.send_replace(Some(Arc::clone(&self.membership) as Arc<dyn Membership>));
    }
}
