//! Tests of the routing of requests about subscriptions. Other nodes are real services on loopback.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{Dispatch, DispatchError, DispatchReply, DispatchRequest, MinuteRow, Node, PortFuture};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

use super::super::cluster_view::{ClusterView, ClusterWatch};
use super::super::peers::{PeerClients, PeerSettings};
use super::super::testing::{center, identity, view_of};
use super::super::{LocalDispatch, LocalDispatchError};
use super::router::DispatchRouter;
use super::service::dispatch_service;

const ME: u16 = 1;
const OTHER: u16 = 2;
const SHARDS: u32 = 4;
const SUBSCRIPTION: SubscriptionNumber = SubscriptionNumber(5);
/// Long enough for a call over loopback on a busy machine.
const OWNER_WAIT: Duration = Duration::from_secs(20);

type DispatchResult = Result<DispatchReply, LocalDispatchError>;

/// An owner with a preset answer that counts its requests.
struct FakeLocalDispatch {
    answer: Mutex<DispatchResult>,
    asked: AtomicU64,
    /// Whether it answers only after a notification.
    hangs: bool,
    go_on: tokio::sync::Notify,
    minutes: Vec<(Timestamp, MinuteRow)>,
}

impl FakeLocalDispatch {
    fn new(answer: DispatchResult, hangs: bool, minutes: Vec<(Timestamp, MinuteRow)>) -> Arc<Self> {
        let (answer, asked, go_on) = (Mutex::new(answer), AtomicU64::new(0), tokio::sync::Notify::new());
        Arc::new(Self { answer, asked, hangs, go_on, minutes })
    }

    fn answering(answer: DispatchResult) -> Arc<Self> {
        Self::new(answer, false, Vec::new())
    }

    fn hanging() -> Arc<Self> {
        Self::new(Ok(DispatchReply::CaughtUp), true, Vec::new())
    }

    fn counting(minutes: &[(i64, u64)]) -> Arc<Self> {
        let row = |published| MinuteRow { published, ..MinuteRow::default() };
        let minutes = minutes.iter().map(|(start, published)| (minute(*start), row(*published))).collect();
        Self::new(Err(LocalDispatchError::NotHere), false, minutes)
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

impl LocalDispatch for FakeLocalDispatch {
    fn ask(&self, subscription: SubscriptionNumber, _: DispatchRequest) -> PortFuture<'_, DispatchResult> {
        assert_eq!(subscription, SUBSCRIPTION);
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.hangs {
                self.go_on.notified().await;
            }
            self.answer.lock().unwrap().clone()
        })
    }

    fn minutes(&self, _: TopicNumber, from: Timestamp, to: Timestamp) -> PortFuture<'_, Vec<(Timestamp, MinuteRow)>> {
        let within = self.minutes.iter().filter(|(start, _)| (from..to).contains(start)).cloned().collect();
        Box::pin(std::future::ready(within))
    }
}

struct DispatchScene {
    views: watch::Sender<Arc<ClusterView>>,
    me: watch::Sender<Option<GatewayId>>,
}

impl DispatchScene {
    /// A cluster of two nodes in which `owner` owns the subscription's shard, and the other shards have no owner.
    fn owned_by(owner: Option<u16>, other: &str) -> Self {
        let scene = Self { views: watch::Sender::default(), me: watch::Sender::new(identity(ME)) };
        scene.give_to(owner, other);
        scene
    }

    fn give_to(&self, owner: Option<u16>, other: &str) {
        let mut nodes = [ME, OTHER].map(|number| Node { number, member: center(number) });
        nodes[1].member.address = other.to_owned();
        let mut owners = vec![None; SHARDS as usize];
        owners[SUBSCRIPTION.shard(SHARDS) as usize] = owner;
        self.views.send_replace(view_of(nodes.into(), owners));
    }

    fn router(&self, local: Arc<FakeLocalDispatch>, peers: PeerSettings, owner_wait: Duration) -> DispatchRouter {
        let cluster = ClusterWatch::new(self.views.subscribe(), self.me.subscribe());
        DispatchRouter::new(SHARDS, cluster, local, Arc::new(PeerClients::new(peers).unwrap()), owner_wait)
    }
}

async fn serve(local: Arc<FakeLocalDispatch>, key: Option<&str>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::builder().add_service(dispatch_service(local, key));
    let incoming = TcpIncoming::from(listener);
    (address, tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() }))
}

async fn stopped_node() -> String {
    let (address, server) = serve(not_owned_here(), None).await;
    server.abort();
    assert!(server.await.is_err(), "the node has stopped");
    address
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
    let scene = DispatchScene::owned_by(Some(ME), "127.0.0.1:9");
    let router = scene.router(local.clone(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Ok(settled()));
    assert_eq!(local.asked(), 1);
}

#[tokio::test]
async fn a_request_about_a_subscription_of_another_node_goes_to_that_node() {
    let local = FakeLocalDispatch::answering(Ok(settled()));
    let (address, _server) = serve(local.clone(), None).await;
    let scene = DispatchScene::owned_by(Some(OTHER), &address);
    let router = scene.router(not_owned_here(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Ok(settled()));
    assert_eq!(local.asked(), 1);
}

#[tokio::test]
async fn an_error_of_the_owner_is_returned() {
    let (address, _server) = serve(FakeLocalDispatch::answering(Err(DispatchError::Unknown.into())), None).await;
    let scene = DispatchScene::owned_by(Some(OTHER), &address);
    let router = scene.router(not_owned_here(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Err(DispatchError::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_an_owner_and_then_fails() {
    let scene = DispatchScene::owned_by(None, "");
    let router = scene.router(not_owned_here(), PeerSettings::default(), Duration::from_secs(5));
    let began = tokio::time::Instant::now();
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Err(DispatchError::NoOwner));
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_appears_in_time_answers() {
    let scene = DispatchScene::owned_by(None, "");
    let local = FakeLocalDispatch::answering(Ok(settled()));
    let router = scene.router(local, PeerSettings::default(), Duration::from_secs(5));
    let appears = async {
        tokio::time::sleep(Duration::from_millis(4990)).await;
        scene.give_to(Some(ME), "");
    };
    let (told, ()) = tokio::join!(router.ask(SUBSCRIPTION, ack()), appears);
    assert_eq!(told, Ok(settled()));
}

#[tokio::test(start_paused = true)]
async fn a_request_to_an_owner_that_is_not_ready_yet_is_retried() {
    let local = not_owned_here();
    let scene = DispatchScene::owned_by(Some(ME), "");
    let router = scene.router(local.clone(), PeerSettings::default(), Duration::from_secs(5));
    let becomes_ready = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        *local.answer.lock().unwrap() = Ok(settled());
    };
    let (told, ()) = tokio::join!(router.ask(SUBSCRIPTION, ack()), becomes_ready);
    assert_eq!(told, Ok(settled()));
}

#[tokio::test]
async fn a_request_that_was_not_delivered_goes_to_the_next_owner() {
    let scene = DispatchScene::owned_by(Some(OTHER), &stopped_node().await);
    let router = scene.router(FakeLocalDispatch::answering(Ok(settled())), PeerSettings::default(), OWNER_WAIT);
    // The request is polled first, so it finds the stopped owner before there is another.
    let (told, ()) = tokio::join!(router.ask(SUBSCRIPTION, ack()), async { scene.give_to(Some(ME), "") });
    assert_eq!(told, Ok(settled()));
}

#[tokio::test]
async fn a_command_without_an_answer_has_an_unknown_outcome_and_is_not_repeated() {
    let commands = [ack(), DispatchRequest::Pull { max: 1, wait_ms: 0 }];
    for command in commands {
        let local = FakeLocalDispatch::hanging();
        let (address, _server) = serve(local.clone(), None).await;
        let scene = DispatchScene::owned_by(Some(OTHER), &address);
        let peers = PeerSettings { answer_within: Duration::from_millis(500), ..PeerSettings::default() };
        let told = scene.router(not_owned_here(), peers, OWNER_WAIT).ask(SUBSCRIPTION, command).await;
        assert!(matches!(told, Err(DispatchError::OutcomeUnknown(_))), "{told:?}");
        assert_eq!(local.asked(), 1);
    }
}

#[tokio::test]
async fn a_pull_may_wait_longer_than_the_usual_timeout() {
    let local = FakeLocalDispatch::hanging();
    *local.answer.lock().unwrap() = Ok(DispatchReply::Pulled(Vec::new()));
    let (address, _server) = serve(local.clone(), None).await;
    let scene = DispatchScene::owned_by(Some(OTHER), &address);
    let answer_within = Duration::from_millis(1);
    let router = scene.router(not_owned_here(), PeerSettings { answer_within, ..PeerSettings::default() }, OWNER_WAIT);
    let pull = DispatchRequest::Pull { max: 1, wait_ms: OWNER_WAIT.as_millis() as u64 };
    let asked = tokio::spawn(async move { router.ask(SUBSCRIPTION, pull).await });
    while local.asked() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Any other request would have timed out by now.
    tokio::time::sleep(answer_within * 20).await;
    local.go_on.notify_one();
    assert_eq!(asked.await.unwrap(), Ok(DispatchReply::Pulled(Vec::new())));
}

#[tokio::test]
async fn a_query_without_an_answer_is_retried() {
    let local = FakeLocalDispatch::hanging();
    let (address, _server) = serve(local.clone(), None).await;
    let scene = DispatchScene::owned_by(Some(OTHER), &address);
    let peers = PeerSettings { answer_within: Duration::from_millis(300), ..PeerSettings::default() };
    let told = Ok(DispatchReply::Status(Box::default()));
    let router = scene.router(FakeLocalDispatch::answering(told.clone()), peers, OWNER_WAIT);
    let asked = tokio::spawn(async move { router.ask(SUBSCRIPTION, DispatchRequest::Status).await });
    while local.asked() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    scene.give_to(Some(ME), "");
    assert_eq!(asked.await.unwrap().map_err(LocalDispatchError::from), told);
}

#[tokio::test]
async fn calls_without_the_internal_key_are_rejected() {
    let local = FakeLocalDispatch::answering(Ok(settled()));
    let (address, _server) = serve(local.clone(), Some("shared secret")).await;
    let scene = DispatchScene::owned_by(Some(OTHER), &address);
    let router = |key: Option<&str>| {
        let peers = PeerSettings { internal_key: key.map(str::to_owned), ..PeerSettings::default() };
        scene.router(not_owned_here(), peers, OWNER_WAIT)
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
    let (address, _server) = serve(FakeLocalDispatch::counting(&[(1, 10), (2, 20), (9, 1)]), None).await;
    let scene = DispatchScene::owned_by(None, &address);
    let router =
        scene.router(FakeLocalDispatch::counting(&[(0, 7), (2, 3), (3, 4)]), PeerSettings::default(), OWNER_WAIT);
    let (minutes, missing) = router.minutes(TopicNumber(1), minute(1), minute(9)).await;
    let published: Vec<_> = minutes.iter().map(|(start, row)| (*start, row.published)).collect();
    assert_eq!((published, missing), (vec![(minute(1), 10), (minute(2), 23), (minute(3), 4)], 0));
}

#[tokio::test]
async fn statistics_count_the_nodes_that_did_not_answer() {
    let scene = DispatchScene::owned_by(None, &stopped_node().await);
    let router = scene.router(FakeLocalDispatch::counting(&[(1, 7)]), PeerSettings::default(), OWNER_WAIT);
    let (minutes, missing) = router.minutes(TopicNumber(1), minute(0), minute(9)).await;
    assert_eq!((minutes.len(), missing), (1, 1));
}
