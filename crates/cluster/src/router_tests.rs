//! What a question may rely upon, wherever the owner of its shard is. Other nodes are real services on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use whimbrel_model::HoldId;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{Ask, Holds, HoldsError, Node, Told};

use super::clocks::AskClock;
use super::peers::{Asked, PeerSettings, Peers};
use super::router::Router;
use super::service::service;
use super::sight::{Sight, View};
use super::testing::{FakeClock, FakeDesk, center, identity, view_of};
use super::{Desk, DeskError};

const ME: u16 = 1;
const OTHER: u16 = 2;
/// Long enough for a call over loopback on a busy machine.
const OWNER_WAIT: Duration = Duration::from_secs(20);

struct Scene {
    views: watch::Sender<Arc<View>>,
    me: watch::Sender<Option<GatewayId>>,
}

impl Scene {
    /// A cluster of two, where that node owns the only shard.
    fn owned_by(owner: Option<u16>, other: &str) -> Self {
        let scene = Self { views: watch::Sender::default(), me: watch::Sender::new(identity(ME)) };
        scene.give_to(owner, other);
        scene
    }

    fn give_to(&self, owner: Option<u16>, other: &str) {
        let mut nodes = [ME, OTHER].map(|number| Node { number, member: center(number) });
        nodes[1].member.address = other.to_owned();
        self.views.send_replace(view_of(nodes.into(), vec![owner]));
    }

    fn router(&self, desk: Arc<dyn Desk>, peers: PeerSettings, owner_wait: Duration) -> Router {
        let sight = Sight::new(self.views.subscribe(), self.me.subscribe());
        Router::new(1, sight, desk, Arc::new(Peers::new(peers).unwrap()), owner_wait)
    }
}

/// Serves a desk on a port of its own, which is closed when the value is dropped.
async fn serve(desk: Arc<dyn Desk>, key: Option<&str>) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::builder().add_service(service(desk, FakeClock::new(0), key));
    let incoming = TcpIncoming::from(listener);
    (address, tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() }))
}

fn nobody_here() -> Arc<FakeDesk> {
    FakeDesk::answering(Err(DeskError::NotHere))
}

fn withdraw() -> Ask {
    Ask::Withdraw { id: HoldId::new("order-1") }
}

fn look() -> Ask {
    Ask::Look { id: HoldId::new("order-1") }
}

#[tokio::test]
async fn a_shard_of_this_node_is_asked_at_its_own_desk() {
    let desk = FakeDesk::answering(Ok(Told::Withdrawn));
    let scene = Scene::owned_by(Some(ME), "127.0.0.1:9");
    let router = scene.router(desk.clone(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(0, withdraw()).await, Ok(Told::Withdrawn));
    assert_eq!(desk.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_shard_of_another_node_is_asked_there() {
    let desk = FakeDesk::answering(Ok(Told::WithdrawnMany(3)));
    let (address, _server) = serve(desk.clone(), None).await;
    let scene = Scene::owned_by(Some(OTHER), &address);
    let router = scene.router(nobody_here(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(0, withdraw()).await, Ok(Told::WithdrawnMany(3)));
    assert_eq!(desk.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_the_owner_refuses_is_refused() {
    let (address, _server) = serve(FakeDesk::answering(Err(HoldsError::Overloaded(0).into())), None).await;
    let scene = Scene::owned_by(Some(OTHER), &address);
    let router = scene.router(nobody_here(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(0, withdraw()).await, Err(HoldsError::Overloaded(0)));
}

#[tokio::test(start_paused = true)]
async fn a_shard_without_an_owner_is_waited_for_and_then_told() {
    let scene = Scene::owned_by(None, "");
    let router = scene.router(nobody_here(), PeerSettings::default(), Duration::from_secs(5));
    let began = tokio::time::Instant::now();
    assert_eq!(router.ask(0, withdraw()).await, Err(HoldsError::NoOwner(0)));
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_comes_in_time_answers() {
    let scene = Scene::owned_by(None, "");
    let router =
        scene.router(FakeDesk::answering(Ok(Told::Withdrawn)), PeerSettings::default(), Duration::from_secs(5));
    let comes = async {
        tokio::time::sleep(Duration::from_millis(4990)).await;
        scene.give_to(Some(ME), "");
    };
    let (told, ()) = tokio::join!(router.ask(0, withdraw()), comes);
    assert_eq!(told, Ok(Told::Withdrawn));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_the_picture_names_before_it_is_ready_is_asked_again() {
    let desk = nobody_here();
    let scene = Scene::owned_by(Some(ME), "");
    let router = scene.router(desk.clone(), PeerSettings::default(), Duration::from_secs(5));
    let becomes_ready = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        *desk.answer.lock().unwrap() = Ok(Told::Withdrawn);
    };
    let (told, ()) = tokio::join!(router.ask(0, withdraw()), becomes_ready);
    assert_eq!(told, Ok(Told::Withdrawn));
}

/// An address at which a node was and is no more.
async fn abandoned() -> String {
    let (address, server) = serve(nobody_here(), None).await;
    server.abort();
    assert!(server.await.is_err(), "the node is gone");
    address
}

#[tokio::test]
async fn a_question_to_a_node_that_is_gone_is_known_not_to_have_arrived() {
    let peers = Peers::new(PeerSettings::default()).unwrap();
    let asked = peers.ask(&abandoned().await, 0, &withdraw()).await;
    assert!(matches!(asked, Asked::NotDelivered(_)), "{asked:?}");
}

#[tokio::test]
async fn a_question_to_a_node_that_ended_after_an_answer_is_known_not_to_have_arrived() {
    let peers = Peers::new(PeerSettings::default()).unwrap();
    let node = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let serving = node.spawn(serve(FakeDesk::answering(Ok(Told::Withdrawn)), None));
    let (address, _server) = serving.await.unwrap();
    assert_eq!(peers.ask(&address, 0, &withdraw()).await, Asked::Answered(Ok(Told::Withdrawn)));
    node.shutdown_background();
    let ends = async {
        // Its connections end one by one; a question on one of them may or may not have arrived.
        while !matches!(peers.ask(&address, 0, &withdraw()).await, Asked::NotDelivered(_)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(OWNER_WAIT, ends).await.expect("a node that is gone is known to be gone");
}

#[tokio::test]
async fn a_question_that_was_not_delivered_finds_the_next_owner() {
    let scene = Scene::owned_by(Some(OTHER), &abandoned().await);
    let router = scene.router(FakeDesk::answering(Ok(Told::Withdrawn)), PeerSettings::default(), OWNER_WAIT);
    // The question is polled first, and so finds the owner that is gone before there is another.
    let (told, ()) = tokio::join!(router.ask(0, withdraw()), async { scene.give_to(Some(ME), "") });
    assert_eq!(told, Ok(Told::Withdrawn));
}

#[tokio::test]
async fn a_command_that_got_no_answer_has_an_unknown_outcome_and_is_not_repeated() {
    let desk = FakeDesk::hanging();
    let (address, _server) = serve(desk.clone(), None).await;
    let scene = Scene::owned_by(Some(OTHER), &address);
    let peers = PeerSettings { answer_within: Duration::from_millis(500), ..PeerSettings::default() };
    let router = scene.router(nobody_here(), peers, OWNER_WAIT);
    let told = router.ask(0, withdraw()).await;
    assert!(matches!(told, Err(HoldsError::OutcomeUnknown(_))), "{told:?}");
    assert_eq!(desk.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_question_that_got_no_answer_and_changes_nothing_is_asked_again() {
    let desk = FakeDesk::hanging();
    let (address, _server) = serve(desk.clone(), None).await;
    let scene = Scene::owned_by(Some(OTHER), &address);
    let peers = PeerSettings { answer_within: Duration::from_millis(300), ..PeerSettings::default() };
    let router = scene.router(FakeDesk::answering(Ok(Told::Unknown)), peers, OWNER_WAIT);
    let asked = tokio::spawn(async move { router.ask(0, look()).await });
    while desk.asked.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    scene.give_to(Some(ME), "");
    assert_eq!(asked.await.unwrap(), Ok(Told::Unknown));
}

#[tokio::test]
async fn without_the_internal_key_nothing_is_asked() {
    let desk = FakeDesk::answering(Ok(Told::Withdrawn));
    let (address, _server) = serve(desk.clone(), Some("shared secret")).await;
    let scene = Scene::owned_by(Some(OTHER), &address);
    for key in [None, Some("another".to_owned())] {
        let peers = PeerSettings { internal_key: key, ..PeerSettings::default() };
        let told = scene.router(nobody_here(), peers.clone(), OWNER_WAIT).ask(0, withdraw()).await;
        assert!(matches!(told, Err(HoldsError::Unavailable(_))), "{told:?}");
        assert!(Peers::new(peers).unwrap().ask_clock(&address).await.is_err());
    }
    assert_eq!(desk.asked.load(Ordering::SeqCst), 0);
    let peers = PeerSettings { internal_key: Some("shared secret".to_owned()), ..PeerSettings::default() };
    assert_eq!(scene.router(nobody_here(), peers.clone(), OWNER_WAIT).ask(0, withdraw()).await, Ok(Told::Withdrawn));
    assert!(Peers::new(peers).unwrap().ask_clock(&address).await.is_ok());
}
