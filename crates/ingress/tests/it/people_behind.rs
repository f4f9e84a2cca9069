//! How far a carrier of the same process is behind, as the door sees it: the real carrier, over a store of inboxes that answers when it is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::watch;
use whimbrel_cluster::{Duties as _, Resignations, resignations};
use whimbrel_ingress::ReceiveSettings;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_model::ports::{
    Applied, At, CarrierDesk as _, CoordinationError, FromCarrier, Gateways, Inbox, InboxError, InboxRead, InboxWrite,
    Membership, PortFuture, RowKey,
};
use whimbrel_model::push::PUSH_TOPIC;
use whimbrel_people::carrier::{Carrier, CarrierPorts, CarrierSettings};

use crate::support::{Answer, House, soon};

/// Records that a carrier may be behind.
const BEHIND_MAX: u64 = 10;

/// How soon the door is asked again.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What the store does when a carrier asks for boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Answers,
    Stalls,
    /// It takes the carrier down with it.
    Panics,
}

struct MoodyInboxes {
    mood: watch::Sender<Mood>,
    applied: AtomicU64,
}

impl MoodyInboxes {
    fn read<T: Send + 'static>(&self, found: T) -> InboxRead<'_, T> {
        let mut mood = self.mood.subscribe();
        Box::pin(async move {
            let mood = *mood.wait_for(|mood| *mood != Mood::Stalls).await.expect("the store lives");
            assert_ne!(mood, Mood::Panics, "the store was to take its carrier down");
            Ok(At { applied: self.applied.load(Ordering::SeqCst), found })
        })
    }
}

impl Inbox for MoodyInboxes {
    fn open(&self, _: u32, _: u64) -> PortFuture<'_, Result<Option<u64>, InboxError>> {
        Box::pin(async { Ok(Some(self.applied.load(Ordering::SeqCst))) })
    }

    fn apply(&self, _: u32, write: InboxWrite) -> PortFuture<'_, Result<Applied, InboxError>> {
        self.applied.store(write.applied, Ordering::SeqCst);
        Box::pin(async { Ok(Applied::Done) })
    }

    fn boxes(&self, _: u32, uids: Vec<Uid>) -> InboxRead<'_, Vec<Option<Bytes>>> {
        self.read(vec![None; uids.len()])
    }

    fn rows(&self, _: u32, keys: Vec<RowKey>) -> InboxRead<'_, Vec<Option<Bytes>>> {
        self.read(vec![None; keys.len()])
    }

    fn reclaimable(&self, _: u32, _: Timestamp, _: usize) -> InboxRead<'_, Vec<Uid>> {
        self.read(Vec::new())
    }
}

struct NoGateways(watch::Sender<Arc<Vec<GatewayId>>>);

impl Gateways for NoGateways {
    fn tell(&self, _: GatewayId, _: FromCarrier) -> bool {
        false
    }

    fn living(&self) -> watch::Receiver<Arc<Vec<GatewayId>>> {
        self.0.subscribe()
    }
}

/// A session that stands and owns whatever is asked about.
struct Stands;

impl Membership for Stands {
    fn node(&self) -> u16 {
        1
    }

    fn stands(&self) -> bool {
        true
    }

    fn lost(&self) -> PortFuture<'_, String> {
        Box::pin(std::future::pending())
    }

    fn own<'a>(&'a self, _: &'a str) -> PortFuture<'a, Result<u64, CoordinationError>> {
        Box::pin(async { Ok(1) })
    }

    fn owns<'a>(&'a self, _: &'a str, _: u64) -> PortFuture<'a, Result<bool, CoordinationError>> {
        Box::pin(async { Ok(true) })
    }

    fn release<'a>(&'a self, _: &'a str) -> PortFuture<'a, Result<(), CoordinationError>> {
        Box::pin(async { Ok(()) })
    }

    fn leave(&self) -> PortFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// A door, and beside it the carrier of the only user's partition.
struct Scene {
    house: House,
    carrier: Arc<Carrier>,
    inboxes: Arc<MoodyInboxes>,
    partition: u32,
    _resignations: Resignations,
}

impl Scene {
    /// The carrier serves its partition, and its store does not answer. One push waits for it.
    async fn stalled() -> Self {
        let settings = ReceiveSettings { push_behind_max: BEHIND_MAX, ..ReceiveSettings::default() };
        let house = House::with(settings).await;
        let inboxes = Arc::new(MoodyInboxes { mood: watch::Sender::new(Mood::Stalls), applied: AtomicU64::new(0) });
        let (resign, resignations) = resignations();
        let rules = Arc::clone(&house.platforms);
        let ports = CarrierPorts {
            log: house.world.log.clone(),
            inbox: inboxes.clone(),
            gateways: Arc::new(NoGateways(watch::Sender::default())),
            rules: Arc::new(move |platform: &_| rules.get(platform)),
            registry: Arc::clone(&house.registry),
            clock: house.world.clock.clone(),
            events: house.events.sink(),
            resign,
        };
        let carrier = Carrier::start(ports, CarrierSettings::default()).unwrap();
        let push = house.registry.get(PUSH_TOPIC).unwrap();
        let partition = Uid::new("u1").unwrap().partition(push.partitions());
        let scene = Self { house, carrier, inboxes, partition, _resignations: resignations };
        scene.push().await.ok(202);
        scene.carrier.begin(partition, 1, Arc::new(Stands));
        scene.serves(true).await;
        scene
    }

    async fn push(&self) -> Answer {
        self.house.post("/v1/users/u1/messages", r#"{"payload":"x"}"#).await
    }

    async fn serves(&self, is_serving: bool) {
        let mut serving = self.carrier.serving();
        let partition = self.partition as usize;
        soon(serving.wait_for(|epochs| epochs[partition].is_some() == is_serving)).await.unwrap();
    }

    /// Pushes until the bound is reached: before that everything is taken.
    async fn fill(&self) {
        let mut taken = 1;
        let refused = soon(async {
            loop {
                let answer = self.push().await;
                if answer.status != StatusCode::ACCEPTED {
                    return answer;
                }
                taken += 1;
            }
        });
        let refused = refused.await;
        assert!(refused.headers.contains_key("retry-after"));
        refused.problem(429, "overloaded");
        assert!(taken > BEHIND_MAX, "{taken}");
    }

    /// Pushes until something is taken.
    async fn until_taken(&self) {
        soon(async {
            while self.push().await.status != StatusCode::ACCEPTED {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn pushes_wait_for_a_carrier_of_the_same_process_and_go_on_when_it_has_caught_up() {
    let scene = Scene::stalled().await;
    scene.fill().await;
    scene.inboxes.mood.send_replace(Mood::Answers);
    scene.until_taken().await;
    scene.carrier.close().await;
}

#[tokio::test]
async fn a_carrier_that_gave_the_partition_up_bounds_nothing_any_more() {
    let scene = Scene::stalled().await;
    scene.fill().await;
    scene.inboxes.mood.send_replace(Mood::Answers);
    scene.carrier.close().await;
    for _ in 0..=2 * BEHIND_MAX {
        scene.push().await.ok(202);
    }
}

#[tokio::test]
async fn a_carrier_that_panicked_bounds_nothing_any_more() {
    let scene = Scene::stalled().await;
    scene.fill().await;
    scene.inboxes.mood.send_replace(Mood::Panics);
    scene.serves(false).await;
    scene.until_taken().await;
    scene.carrier.close().await;
}
