//! What a question about a subscription may rely upon, wherever its owner is. Other nodes are real services on loopback.

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
use whimbrel_model::ports::{Dispatch, DispatchAsk, DispatchError, DispatchTold, MinuteRow, Node, PortFuture};
use whimbrel_model::{SubscriptionNumber, Timestamp, TopicNumber};

use super::super::peers::{PeerSettings, Peers};
use super::super::sight::{Sight, View};
use super::super::testing::{center, identity, view_of};
use super::super::{DispatchDesk, DispatchDeskError};
use super::router::DispatchRouter;
use super::service::dispatch_service;

const ME: u16 = 1;
const OTHER: u16 = 2;
const SHARDS: u32 = 4;
const SUBSCRIPTION: SubscriptionNumber = SubscriptionNumber(5);
/// Long enough for a call over loopback on a busy machine.
const OWNER_WAIT: Duration = Duration::from_secs(20);

type Answer = Result<DispatchTold, DispatchDeskError>;

/// A desk that answers as it is told to, and counts.
struct FakeDesk {
    answer: Mutex<Answer>,
    asked: AtomicU64,
    /// Where that is so, it answers only when it is told to go on.
    hangs: bool,
    go_on: tokio::sync::Notify,
    minutes: Vec<(Timestamp, MinuteRow)>,
}

impl FakeDesk {
    fn new(answer: Answer, hangs: bool, minutes: Vec<(Timestamp, MinuteRow)>) -> Arc<Self> {
        let (answer, asked, go_on) = (Mutex::new(answer), AtomicU64::new(0), tokio::sync::Notify::new());
        Arc::new(Self { answer, asked, hangs, go_on, minutes })
    }

    fn answering(answer: Answer) -> Arc<Self> {
        Self::new(answer, false, Vec::new())
    }

    fn hanging() -> Arc<Self> {
        Self::new(Ok(DispatchTold::CaughtUp), true, Vec::new())
    }

    fn counting(minutes: &[(i64, u64)]) -> Arc<Self> {
        let row = |published| MinuteRow { published, ..MinuteRow::default() };
        let minutes = minutes.iter().map(|(start, published)| (minute(*start), row(*published))).collect();
        Self::new(Err(DispatchDeskError::NotHere), false, minutes)
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

impl DispatchDesk for FakeDesk {
    fn ask(&self, subscription: SubscriptionNumber, _: DispatchAsk) -> PortFuture<'_, Answer> {
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

struct Scene {
    views: watch::Sender<Arc<View>>,
    me: watch::Sender<Option<GatewayId>>,
}

impl Scene {
    /// A cluster of two, where that node owns the subscription's shard and nobody the others.
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

    fn router(&self, desk: Arc<FakeDesk>, peers: PeerSettings, owner_wait: Duration) -> DispatchRouter {
        let sight = Sight::new(self.views.subscribe(), self.me.subscribe());
        DispatchRouter::new(SHARDS, sight, desk, Arc::new(Peers::new(peers).unwrap()), owner_wait)
    }
}

/// Serves a desk on a port of its own.
async fn serve(desk: Arc<FakeDesk>, key: Option<&str>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::builder().add_service(dispatch_service(desk, key));
    let incoming = TcpIncoming::from(listener);
    (address, tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() }))
}

/// An address at which a node was and is no more.
async fn abandoned() -> String {
    let (address, server) = serve(nobody_here(), None).await;
    server.abort();
    assert!(server.await.is_err(), "the node is gone");
    address
}

fn nobody_here() -> Arc<FakeDesk> {
    FakeDesk::answering(Err(DispatchDeskError::NotHere))
}

fn settled() -> DispatchTold {
    DispatchTold::Settled { known: 1, unknown: Vec::new() }
}

fn ack() -> DispatchAsk {
    DispatchAsk::Ack { ack_ids: vec!["a".to_owned()] }
}

fn minute(number: i64) -> Timestamp {
    Timestamp::from_millis(number * 60_000)
}

#[tokio::test]
async fn a_subscription_of_this_node_is_asked_at_its_own_desk() {
    let desk = FakeDesk::answering(Ok(settled()));
    let scene = Scene::owned_by(Some(ME), "127.0.0.1:9");
    let router = scene.router(desk.clone(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Ok(settled()));
    assert_eq!(desk.asked(), 1);
}

#[tokio::test]
async fn a_subscription_of_another_node_is_asked_there() {
    let desk = FakeDesk::answering(Ok(settled()));
    let (address, _server) = serve(desk.clone(), None).await;
    let scene = Scene::owned_by(Some(OTHER), &address);
    let router = scene.router(nobody_here(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Ok(settled()));
    assert_eq!(desk.asked(), 1);
}

#[tokio::test]
async fn what_the_owner_refuses_is_refused() {
    let (address, _server) = serve(FakeDesk::answering(Err(DispatchError::Unknown.into())), None).await;
    let scene = Scene::owned_by(Some(OTHER), &address);
    let router = scene.router(nobody_here(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Err(DispatchError::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_subscription_without_an_owner_is_waited_for_and_then_told() {
    let scene = Scene::owned_by(None, "");
    let router = scene.router(nobody_here(), PeerSettings::default(), Duration::from_secs(5));
    let began = tokio::time::Instant::now();
    assert_eq!(router.ask(SUBSCRIPTION, ack()).await, Err(DispatchError::NoOwner));
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_comes_in_time_answers() {
    let scene = Scene::owned_by(None, "");
    let desk = FakeDesk::answering(Ok(settled()));
    let router = scene.router(desk, PeerSettings::default(), Duration::from_secs(5));
    let comes = async {
        tokio::time::sleep(Duration::from_millis(4990)).await;
        scene.give_to(Some(ME), "");
    };
    let (told, ()) = tokio::join!(router.ask(SUBSCRIPTION, ack()), comes);
    assert_eq!(told, Ok(settled()));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_the_picture_names_before_it_is_ready_is_asked_again() {
    let desk = nobody_here();
    let scene = Scene::owned_by(Some(ME), "");
    let router = scene.router(desk.clone(), PeerSettings::default(), Duration::from_secs(5));
    let becomes_ready = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        *desk.answer.lock().unwrap() = Ok(settled());
    };
    let (told, ()) = tokio::join!(router.ask(SUBSCRIPTION, ack()), becomes_ready);
    assert_eq!(told, Ok(settled()));
}

#[tokio::test]
async fn a_question_that_was_not_delivered_finds_the_next_owner() {
    let scene = Scene::owned_by(Some(OTHER), &abandoned().await);
    let router = scene.router(FakeDesk::answering(Ok(settled())), PeerSettings::default(), OWNER_WAIT);
    // The question is polled first, and so finds the owner that is gone before there is another.
    let (told, ()) = tokio::join!(router.ask(SUBSCRIPTION, ack()), async { scene.give_to(Some(ME), "") });
    assert_eq!(told, Ok(settled()));
}

#[tokio::test]
async fn what_changes_something_and_got_no_answer_has_an_unknown_outcome_and_is_not_repeated() {
    let commands = [ack(), DispatchAsk::Pull { max: 1, wait_ms: 0 }];
    for command in commands {
        let desk = FakeDesk::hanging();
        let (address, _server) = serve(desk.clone(), None).await;
        let scene = Scene::owned_by(Some(OTHER), &address);
        let peers = PeerSettings { answer_within: Duration::from_millis(500), ..PeerSettings::default() };
        let told = scene.router(nobody_here(), peers, OWNER_WAIT).ask(SUBSCRIPTION, command).await;
        assert!(matches!(told, Err(DispatchError::OutcomeUnknown(_))), "{told:?}");
        assert_eq!(desk.asked(), 1);
    }
}

#[tokio::test]
async fn a_pull_that_waits_for_messages_is_waited_for() {
    let desk = FakeDesk::hanging();
    *desk.answer.lock().unwrap() = Ok(DispatchTold::Pulled(Vec::new()));
    let (address, _server) = serve(desk.clone(), None).await;
    let scene = Scene::owned_by(Some(OTHER), &address);
    let answer_within = Duration::from_millis(1);
    let router = scene.router(nobody_here(), PeerSettings { answer_within, ..PeerSettings::default() }, OWNER_WAIT);
    let pull = DispatchAsk::Pull { max: 1, wait_ms: OWNER_WAIT.as_millis() as u64 };
    let asked = tokio::spawn(async move { router.ask(SUBSCRIPTION, pull).await });
    while desk.asked() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Any other question would have been given up by now.
    tokio::time::sleep(answer_within * 20).await;
    desk.go_on.notify_one();
    assert_eq!(asked.await.unwrap(), Ok(DispatchTold::Pulled(Vec::new())));
}

#[tokio::test]
async fn a_question_that_got_no_answer_and_changes_nothing_is_asked_again() {
    let desk = FakeDesk::hanging();
    let (address, _server) = serve(desk.clone(), None).await;
    let scene = Scene::owned_by(Some(OTHER), &address);
    let peers = PeerSettings { answer_within: Duration::from_millis(300), ..PeerSettings::default() };
    let told = Ok(DispatchTold::Status(Box::default()));
    let router = scene.router(FakeDesk::answering(told.clone()), peers, OWNER_WAIT);
    let asked = tokio::spawn(async move { router.ask(SUBSCRIPTION, DispatchAsk::Status).await });
    while desk.asked() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    scene.give_to(Some(ME), "");
    assert_eq!(asked.await.unwrap().map_err(DispatchDeskError::from), told);
}

#[tokio::test]
async fn without_the_internal_key_nothing_is_asked() {
    let desk = FakeDesk::answering(Ok(settled()));
    let (address, _server) = serve(desk.clone(), Some("shared secret")).await;
    let scene = Scene::owned_by(Some(OTHER), &address);
    let router = |key: Option<&str>| {
        let peers = PeerSettings { internal_key: key.map(str::to_owned), ..PeerSettings::default() };
        scene.router(nobody_here(), peers, OWNER_WAIT)
    };
    for key in [None, Some("another")] {
        let told = router(key).ask(SUBSCRIPTION, ack()).await;
        assert!(matches!(told, Err(DispatchError::Unavailable(_))), "{told:?}");
        assert_eq!(router(key).minutes(TopicNumber(1), minute(0), minute(1)).await.1, 1);
    }
    assert_eq!(desk.asked(), 0);
    assert_eq!(router(Some("shared secret")).ask(SUBSCRIPTION, ack()).await, Ok(settled()));
    assert_eq!(router(Some("shared secret")).minutes(TopicNumber(1), minute(0), minute(1)).await.1, 0);
}

#[tokio::test]
async fn figures_of_all_nodes_add_up() {
    let (address, _server) = serve(FakeDesk::counting(&[(1, 10), (2, 20), (9, 1)]), None).await;
    let scene = Scene::owned_by(None, &address);
    let router = scene.router(FakeDesk::counting(&[(0, 7), (2, 3), (3, 4)]), PeerSettings::default(), OWNER_WAIT);
    let (minutes, silent) = router.minutes(TopicNumber(1), minute(1), minute(9)).await;
    let published: Vec<_> = minutes.iter().map(|(start, row)| (*start, row.published)).collect();
    assert_eq!((published, silent), (vec![(minute(1), 10), (minute(2), 23), (minute(3), 4)], 0));
}

#[tokio::test]
async fn a_node_that_does_not_answer_is_counted_and_the_others_figures_are_there() {
    let scene = Scene::owned_by(None, &abandoned().await);
    let router = scene.router(FakeDesk::counting(&[(1, 7)]), PeerSettings::default(), OWNER_WAIT);
    let (minutes, silent) = router.minutes(TopicNumber(1), minute(0), minute(9)).await;
    assert_eq!((minutes.len(), silent), (1, 1));
}
