//! Tests of the routing of requests about subscriptions. Other nodes are real services on loopback. The tests of the holds' router cover
//! the waits for an owner, which both routers share.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use whimbrel_model::ports::{Dispatch, DispatchError, DispatchReply, DispatchRequest, MinuteRow, PortFuture};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

use super::super::peers::PeerSettings;
use super::super::testing::{self, FakeOwner, ME, OTHER, OWNER_WAIT, RouterScene, stopped_node};
use super::super::{LocalDispatch, LocalDispatchError};
use super::router::DispatchRouter;
use super::service::dispatch_service;

const SHARDS: u32 = 4;
const SUBSCRIPTION: SubscriptionNumber = SubscriptionNumber(5);

type DispatchResult = Result<DispatchReply, LocalDispatchError>;
type FakeLocalDispatch = FakeOwner<DispatchResult>;

impl LocalDispatch for FakeLocalDispatch {
    fn ask(&self, subscription: SubscriptionNumber, _: DispatchRequest) -> PortFuture<'_, DispatchResult> {
        assert_eq!(subscription, SUBSCRIPTION);
        Box::pin(self.reply())
    }

    fn minutes(&self, _: TopicNumber, _: Timestamp, _: Timestamp) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>> {
        Box::pin(std::future::ready(Vec::new()))
    }
}

/// A node that owns no subscription, with the messages that it published in each minute.
struct PublishedMinutes(Vec<(Timestamp, MinuteRow)>);

impl PublishedMinutes {
    fn of(minutes: &[(i64, u64)]) -> Arc<Self> {
        let row = |published| MinuteRow { published, ..MinuteRow::default() };
        Arc::new(Self(minutes.iter().map(|(start, published)| (minute(*start), row(*published))).collect()))
    }
}

impl LocalDispatch for PublishedMinutes {
    fn ask(&self, _: SubscriptionNumber, _: DispatchRequest) -> PortFuture<'_, DispatchResult> {
        Box::pin(std::future::ready(Err(LocalDispatchError::NotHere)))
    }

    fn minutes(&self, _: TopicNumber, from: Timestamp, to: Timestamp) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>> {
        let within = self.0.iter().filter(|(start, _)| (from..to).contains(start)).cloned().collect();
        Box::pin(std::future::ready(within))
    }
}

/// A cluster in which `owner` owns the subscription's shard.
fn owned_by(owner: Option<u16>, other: &str) -> RouterScene {
    RouterScene::owned_by(owner, other, SUBSCRIPTION.shard(SHARDS), SHARDS)
}

fn router(
    scene: &RouterScene,
    local: Arc<dyn LocalDispatch>,
    peers: PeerSettings,
    owner_wait: Duration,
) -> DispatchRouter {
    DispatchRouter { shards: SHARDS, local, owners: scene.owners(peers, owner_wait) }
}

async fn serve(local: Arc<dyn LocalDispatch>, key: Option<&str>) -> (String, JoinHandle<()>) {
    testing::serve(dispatch_service(local, key)).await
}

fn not_owned_here() -> Arc<FakeLocalDispatch> {
    FakeLocalDispatch::answering(Err(LocalDispatchError::NotHere))
}

fn settled() -> DispatchReply {
    DispatchReply::Settled { known: 1, unknown: Vec::new() }
}

fn ack() -> DispatchRequest {
    DispatchRequest::Ack { ack_ids: vec!["a".to_owned()] }
}

fn minute(number: i64) -> Timestamp {
    Timestamp::from_millis(number * 60_000)
}

#[tokio::test]
async fn a_request_about_an_own_subscription_stays_on_this_node() {
    let local = FakeLocalDispatch::answering(Ok(settled()));
    let scene = owned_by(Some(ME), "127.0.0.1:9");
    let router = router(&scene, local.clone(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Ok(settled()));
    assert_eq!(local.asked(), 1);
}

#[tokio::test]
async fn a_request_about_a_subscription_of_another_node_goes_to_that_node() {
    let local = FakeLocalDispatch::answering(Ok(settled()));
    let (address, _server) = serve(local.clone(), None).await;
    let scene = owned_by(Some(OTHER), &address);
    let router = router(&scene, not_owned_here(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Ok(settled()));
    assert_eq!(local.asked(), 1);
}

#[tokio::test]
async fn an_error_of_the_owner_is_returned() {
    let (address, _server) = serve(FakeLocalDispatch::answering(Err(DispatchError::Unknown.into())), None).await;
    let scene = owned_by(Some(OTHER), &address);
    let router = router(&scene, not_owned_here(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Err(DispatchError::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_an_owner_and_then_fails() {
    let scene = owned_by(None, "");
    let router = router(&scene, not_owned_here(), PeerSettings::default(), Duration::from_secs(5));
    let began = tokio::time::Instant::now();
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Err(DispatchError::NoOwner));
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn a_command_without_an_answer_has_an_unknown_outcome_and_is_not_repeated() {
    let commands = [ack(), DispatchRequest::Pull { max: 1, wait_ms: 0 }];
    for command in commands {
        let local = FakeLocalDispatch::hanging(Ok(DispatchReply::CaughtUp));
        let (address, _server) = serve(local.clone(), None).await;
        let scene = owned_by(Some(OTHER), &address);
        let peers = PeerSettings { answer_within: Duration::from_millis(500), ..PeerSettings::default() };
        let told = router(&scene, not_owned_here(), peers, OWNER_WAIT).ask(SUBSCRIPTION, command).await;
        assert!(matches!(told, Err(DispatchError::OutcomeUnknown(_))), "{told:?}");
        assert_eq!(local.asked(), 1);
    }
}

#[tokio::test]
async fn a_pull_may_wait_longer_than_the_usual_timeout() {
    let local = FakeLocalDispatch::hanging(Ok(DispatchReply::Pulled(Vec::new())));
    let (address, _server) = serve(local.clone(), None).await;
    let scene = owned_by(Some(OTHER), &address);
    let answer_within = Duration::from_millis(1);
    let router =
        router(&scene, not_owned_here(), PeerSettings { answer_within, ..PeerSettings::default() }, OWNER_WAIT);
    let pull = DispatchRequest::Pull { max: 1, wait_ms: OWNER_WAIT.as_millis() as u64 };
    let asked = tokio::spawn(async move { router.ask(SUBSCRIPTION, pull).await });
    local.until_asked().await;
    // Any other request would have timed out by now.
    tokio::time::sleep(answer_within * 20).await;
    local.go_on.notify_one();
    assert_eq!(asked.await.unwrap(), Ok(DispatchReply::Pulled(Vec::new())));
}

#[tokio::test]
async fn a_query_without_an_answer_is_retried() {
    let local = FakeLocalDispatch::hanging(Ok(DispatchReply::CaughtUp));
    let (address, _server) = serve(local.clone(), None).await;
    let scene = owned_by(Some(OTHER), &address);
    let peers = PeerSettings { answer_within: Duration::from_millis(300), ..PeerSettings::default() };
    let told = Ok(DispatchReply::Status(Box::default()));
    let router = router(&scene, FakeLocalDispatch::answering(told.clone()), peers, OWNER_WAIT);
    let asked = tokio::spawn(async move { router.ask(SUBSCRIPTION, DispatchRequest::Status).await });
    local.until_asked().await;
    scene.give_to(Some(ME), "");
    assert_eq!(asked.await.unwrap().map_err(LocalDispatchError::from), told);
}

#[tokio::test]
async fn calls_without_the_internal_key_are_rejected() {
    let local = FakeLocalDispatch::answering(Ok(settled()));
    let (address, _server) = serve(local.clone(), Some("shared secret")).await;
    let scene = owned_by(Some(OTHER), &address);
    let router = |key: Option<&str>| {
        let peers = PeerSettings { internal_key: key.map(str::to_owned), ..PeerSettings::default() };
        router(&scene, not_owned_here(), peers, OWNER_WAIT)
    };
    for key in [None, Some("another")] {
        let told = router(key).ask(SUBSCRIPTION, ack()).await;
        assert!(matches!(told, Err(DispatchError::Unavailable(_))), "{told:?}");
        assert_eq!(router(key).minutes(TopicNumber(1), minute(0), minute(1)).await.1, 1);
    }
    assert_eq!(local.asked(), 0);
    assert_eq!(router(Some("shared secret")).ask(SUBSCRIPTION, ack()).await, Ok(settled()));
    assert_eq!(router(Some("shared secret")).minutes(TopicNumber(1), minute(0), minute(1)).await.1, 0);
}

#[tokio::test]
async fn statistics_of_all_nodes_add_up() {
    let (address, _server) = serve(PublishedMinutes::of(&[(1, 10), (2, 20), (9, 1)]), None).await;
    let scene = owned_by(None, &address);
    let router = router(&scene, PublishedMinutes::of(&[(0, 7), (2, 3), (3, 4)]), PeerSettings::default(), OWNER_WAIT);
    let (minutes, missing) = router.minutes(TopicNumber(1), minute(1), minute(9)).await;
    let published: Vec<_> = minutes.iter().map(|(start, row)| (*start, row.published)).collect();
    assert_eq!((published, missing), (vec![(minute(1), 10), (minute(2), 23), (minute(3), 4)], 0));
}

#[tokio::test]
async fn statistics_count_the_nodes_that_did_not_answer() {
    let scene = owned_by(None, &stopped_node().await);
    let router = router(&scene, PublishedMinutes::of(&[(1, 7)]), PeerSettings::default(), OWNER_WAIT);
    let (minutes, missing) = router.minutes(TopicNumber(1), minute(0), minute(9)).await;
    assert_eq!((minutes.len(), missing), (1, 1));
}
