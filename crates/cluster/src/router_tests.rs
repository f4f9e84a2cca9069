//! Tests of the routing of requests about holds. Other nodes are real services on loopback.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use whimbrel_model::ports::{HoldReply, HoldRequest, Holds, HoldsError};
use whimbrel_model::{HoldId, Timestamp, TopicNumber};

use super::clocks::PeerClock;
use super::dispatch::service::ReadMinutes;
use super::peers::{PeerClients, PeerReply, PeerSettings};
use super::router::HoldsRouter;
use super::service::{AskHolds, service};
use super::testing::{FakeClock, FakeLocalHolds, ME, OTHER, OWNER_WAIT, RouterScene, stopped_node};
use super::{LocalHolds, LocalHoldsError, testing};

/// A cluster in which `owner` owns the only shard.
fn owned_by(owner: Option<u16>, other: &str) -> RouterScene {
    RouterScene::owned_by(owner, other, 0, 1)
}

fn router(scene: &RouterScene, local: Arc<dyn LocalHolds>, peers: PeerSettings, owner_wait: Duration) -> HoldsRouter {
    HoldsRouter { shards: 1, local, owners: scene.owners(peers, owner_wait) }
}

async fn serve(local: Arc<dyn LocalHolds>, key: Option<&str>) -> (String, JoinHandle<()>) {
    testing::serve(service(local, FakeClock::new(0), key)).await
}

fn not_owned_here() -> Arc<FakeLocalHolds> {
    FakeLocalHolds::answering(Err(LocalHoldsError::NotHere))
}

fn withdraw() -> HoldRequest {
    HoldRequest::Withdraw { id: HoldId::new("order-1") }
}

fn look() -> HoldRequest {
    HoldRequest::Look { id: HoldId::new("order-1") }
}

#[tokio::test]
async fn a_request_about_an_own_shard_stays_on_this_node() {
    let local = FakeLocalHolds::answering(Ok(HoldReply::Withdrawn));
    let scene = owned_by(Some(ME), "127.0.0.1:9");
    let router = router(&scene, local.clone(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(0, withdraw()).await, Ok(HoldReply::Withdrawn));
    assert_eq!(local.asked(), 1);
}

#[tokio::test]
async fn a_request_about_a_shard_of_another_node_goes_to_that_node() {
    let local = FakeLocalHolds::answering(Ok(HoldReply::WithdrawnMany(3)));
    let (address, _server) = serve(local.clone(), None).await;
    let scene = owned_by(Some(OTHER), &address);
    let router = router(&scene, not_owned_here(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(0, withdraw()).await, Ok(HoldReply::WithdrawnMany(3)));
    assert_eq!(local.asked(), 1);
}

#[tokio::test]
async fn an_error_of_the_owner_is_returned() {
    let (address, _server) = serve(FakeLocalHolds::answering(Err(HoldsError::Overloaded(0).into())), None).await;
    let scene = owned_by(Some(OTHER), &address);
    let router = router(&scene, not_owned_here(), PeerSettings::default(), OWNER_WAIT);
    assert_eq!(router.ask(0, withdraw()).await, Err(HoldsError::Overloaded(0)));
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_an_owner_and_then_fails() {
    let scene = owned_by(None, "");
    let router = router(&scene, not_owned_here(), PeerSettings::default(), Duration::from_secs(5));
    let began = tokio::time::Instant::now();
    assert_eq!(router.ask(0, withdraw()).await, Err(HoldsError::NoOwner(0)));
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_appears_in_time_answers() {
    let scene = owned_by(None, "");
    let router = router(
        &scene,
        FakeLocalHolds::answering(Ok(HoldReply::Withdrawn)),
        PeerSettings::default(),
        Duration::from_secs(5),
    );
    let appears = async {
        tokio::time::sleep(Duration::from_millis(4990)).await;
        scene.give_to(Some(ME), "");
    };
    let (told, ()) = tokio::join!(router.ask(0, withdraw()), appears);
    assert_eq!(told, Ok(HoldReply::Withdrawn));
}

#[tokio::test(start_paused = true)]
async fn a_request_to_an_owner_that_is_not_ready_yet_is_retried() {
    let local = not_owned_here();
    let scene = owned_by(Some(ME), "");
    let router = router(&scene, local.clone(), PeerSettings::default(), Duration::from_secs(5));
    let becomes_ready = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        *local.answer.lock().unwrap() = Ok(HoldReply::Withdrawn);
    };
    let (told, ()) = tokio::join!(router.ask(0, withdraw()), becomes_ready);
    assert_eq!(told, Ok(HoldReply::Withdrawn));
}

#[tokio::test]
async fn a_call_that_a_node_does_not_serve_is_rejected_with_the_reason() {
    let (address, _server) = serve(not_owned_here(), None).await;
    let peers = PeerClients::new(PeerSettings::default()).unwrap();
    let minutes = (TopicNumber(1), Timestamp::from_millis(0), Timestamp::from_millis(60_000));
    let asked = peers.call::<ReadMinutes>(&address, minutes, OWNER_WAIT).await;
    let PeerReply::Refused(reason) = asked else { panic!("{asked:?}") };
    assert!(reason.contains("ReadMinutes"), "{reason}");
}

#[tokio::test]
async fn a_request_to_a_stopped_node_is_not_delivered() {
    let peers = PeerClients::new(PeerSettings::default()).unwrap();
    let asked = peers.call::<AskHolds>(&stopped_node().await, (0, withdraw()), OWNER_WAIT).await;
    assert!(matches!(asked, PeerReply::NotDelivered(_)), "{asked:?}");
}

#[tokio::test]
async fn a_request_to_a_node_that_stopped_after_an_answer_is_not_delivered() {
    let peers = PeerClients::new(PeerSettings::default()).unwrap();
    let node = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let serving = node.spawn(serve(FakeLocalHolds::answering(Ok(HoldReply::Withdrawn)), None));
    let (address, _server) = serving.await.unwrap();
    assert_eq!(
        peers.call::<AskHolds>(&address, (0, withdraw()), OWNER_WAIT).await,
        PeerReply::Answered(Ok(HoldReply::Withdrawn))
    );
    node.shutdown_background();
    let ends = async {
        // The node's connections close one by one. A request on one of them may or may not have arrived.
        while !matches!(peers.call::<AskHolds>(&address, (0, withdraw()), OWNER_WAIT).await, PeerReply::NotDelivered(_))
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(OWNER_WAIT, ends).await.expect("the node is detected as stopped");
}

#[tokio::test]
async fn a_request_that_was_not_delivered_goes_to_the_next_owner() {
    let scene = owned_by(Some(OTHER), &stopped_node().await);
    let router =
        router(&scene, FakeLocalHolds::answering(Ok(HoldReply::Withdrawn)), PeerSettings::default(), OWNER_WAIT);
    // The request is polled first, so it finds the stopped owner before there is another.
    let (told, ()) = tokio::join!(router.ask(0, withdraw()), async { scene.give_to(Some(ME), "") });
    assert_eq!(told, Ok(HoldReply::Withdrawn));
}

#[tokio::test]
async fn a_command_without_an_answer_has_an_unknown_outcome_and_is_not_repeated() {
    let local = FakeLocalHolds::hanging(Ok(HoldReply::Unknown));
    let (address, _server) = serve(local.clone(), None).await;
    let scene = owned_by(Some(OTHER), &address);
    let peers = PeerSettings { answer_within: Duration::from_millis(500), ..PeerSettings::default() };
    let router = router(&scene, not_owned_here(), peers, OWNER_WAIT);
    let told = router.ask(0, withdraw()).await;
    assert!(matches!(told, Err(HoldsError::OutcomeUnknown(_))), "{told:?}");
    assert_eq!(local.asked(), 1);
}

#[tokio::test]
async fn a_query_without_an_answer_is_retried() {
    let local = FakeLocalHolds::hanging(Ok(HoldReply::Unknown));
    let (address, _server) = serve(local.clone(), None).await;
    let scene = owned_by(Some(OTHER), &address);
    let peers = PeerSettings { answer_within: Duration::from_millis(300), ..PeerSettings::default() };
    let router = router(&scene, FakeLocalHolds::answering(Ok(HoldReply::Unknown)), peers, OWNER_WAIT);
    let asked = tokio::spawn(async move { router.ask(0, look()).await });
    local.until_asked().await;
    scene.give_to(Some(ME), "");
    assert_eq!(asked.await.unwrap(), Ok(HoldReply::Unknown));
}

#[tokio::test]
async fn calls_without_the_internal_key_are_rejected() {
    let local = FakeLocalHolds::answering(Ok(HoldReply::Withdrawn));
    let (address, _server) = serve(local.clone(), Some("shared secret")).await;
    let scene = owned_by(Some(OTHER), &address);
    for key in [None, Some("another".to_owned())] {
        let peers = PeerSettings { internal_key: key, ..PeerSettings::default() };
        let told = router(&scene, not_owned_here(), peers.clone(), OWNER_WAIT).ask(0, withdraw()).await;
        assert!(matches!(told, Err(HoldsError::Unavailable(_))), "{told:?}");
        assert!(PeerClients::new(peers).unwrap().read_clock(&address).await.is_err());
    }
    assert_eq!(local.asked(), 0);
    let peers = PeerSettings { internal_key: Some("shared secret".to_owned()), ..PeerSettings::default() };
    assert_eq!(
        router(&scene, not_owned_here(), peers.clone(), OWNER_WAIT).ask(0, withdraw()).await,
        Ok(HoldReply::Withdrawn)
    );
    assert!(PeerClients::new(peers).unwrap().read_clock(&address).await.is_ok());
}
