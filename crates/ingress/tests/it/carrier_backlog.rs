//! The backlog of a carrier in the same process, as the API sees it: the real carrier, over an inbox store that answers on command.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;
use whimbrel_cluster::{PUSH_FAMILY, Resignations, ShardOwner as _, resignations, shard_name};
use whimbrel_ingress::{BacklogLimits, ReceiveSettings};
use whimbrel_model::people::{GatewayId, Uid};
use whimbrel_model::ports::{CarrierMessages, Gateways, LocalCarriers as _, Membership as _};
use whimbrel_model::push::PUSH_TOPIC;
use whimbrel_people::carrier::{Carrier, CarrierPorts, CarrierSettings};

use crate::support::cluster::{TestMembership, empty_cluster};
use crate::support::people::{ScriptedInboxes, StoreMode};
use crate::support::{Answer, TestApi, soon};

/// The allowed backlog of a carrier, in records.
const BEHIND_MAX: u64 = 10;

/// The interval at which the test repeats a request.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

struct NoGateways(watch::Sender<Arc<Vec<GatewayId>>>);

impl Gateways for NoGateways {
    fn tell(&self, _: GatewayId, _: CarrierMessages) -> bool {
        false
    }

    fn live_gateways(&self) -> watch::Receiver<Arc<Vec<GatewayId>>> {
        self.0.subscribe()
    }
}

/// An API, and beside it the carrier of the only user's partition.
struct Scene {
    api: TestApi,
    carrier: Arc<Carrier>,
    inboxes: Arc<ScriptedInboxes>,
    partition: u32,
    _resignations: Resignations,
}

impl Scene {
    /// The carrier serves its partition, and its store does not answer. One push waits for the store.
    async fn stalled() -> Self {
        let settings = ReceiveSettings {
            backlog: BacklogLimits { holds: BEHIND_MAX, push: BEHIND_MAX },
            ..ReceiveSettings::default()
        };
        let api = TestApi::with(settings).await;
        let inboxes = Arc::new(ScriptedInboxes::new(StoreMode::Stalls, 0));
        let (resign, resignations) = resignations();
        let rules = Arc::clone(&api.platforms);
        let ports = CarrierPorts {
            log: api.world.log.clone(),
            inbox: inboxes.clone(),
            gateways: Arc::new(NoGateways(watch::Sender::default())),
            rules: Arc::new(move |platform: &_| rules.get(platform)),
            registry: Arc::clone(&api.registry),
            clock: api.world.clock.clone(),
            events: api.events.sink(),
            resign,
        };
        let carrier = Carrier::start(ports, CarrierSettings::default()).unwrap();
        let push = api.registry.get(PUSH_TOPIC).unwrap();
        let partition = Uid::new("u1").unwrap().partition(push.partitions());
        let scene = Self { api, carrier, inboxes, partition, _resignations: resignations };
        scene.push().await.ok(202);
        let membership = TestMembership::enter(&empty_cluster(), 1);
        let epoch = membership.own(&shard_name(PUSH_FAMILY, partition)).await.unwrap();
        scene.carrier.begin(partition, epoch, membership);
        scene.serves(true).await;
        scene
    }

    async fn push(&self) -> Answer {
        self.api.post("/v1/users/u1/messages", r#"{"payload":"x"}"#).await
    }

    async fn serves(&self, is_serving: bool) {
        let mut serving = self.carrier.serving();
        let partition = self.partition as usize;
        soon(serving.wait_for(|epochs| epochs[partition].is_some() == is_serving)).await.unwrap();
    }

    /// Pushes until the bound is reached. Every push before is accepted.
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

    /// Pushes until a push is accepted.
    async fn until_taken(&self) {
        soon(async {
            while self.push().await.status != StatusCode::ACCEPTED {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn pushes_are_rejected_until_a_carrier_of_the_same_process_has_caught_up() {
    let scene = Scene::stalled().await;
    scene.fill().await;
    scene.inboxes.mode.send_replace(StoreMode::Answers);
    scene.until_taken().await;
    scene.carrier.close().await;
}

#[tokio::test]
async fn a_carrier_that_released_the_partition_limits_no_pushes() {
    let scene = Scene::stalled().await;
    scene.fill().await;
    scene.inboxes.mode.send_replace(StoreMode::Answers);
    scene.carrier.close().await;
    for _ in 0..=2 * BEHIND_MAX {
        scene.push().await.ok(202);
    }
}

#[tokio::test]
async fn a_carrier_that_panicked_limits_no_pushes() {
    let scene = Scene::stalled().await;
    scene.fill().await;
    scene.inboxes.mode.send_replace(StoreMode::Panics);
    scene.serves(false).await;
    scene.until_taken().await;
    scene.carrier.close().await;
}
