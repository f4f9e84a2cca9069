//! Changes of partition owners, and a gateway with a new incarnation.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use whimbrel_model::people::{CloseCode, GatewayId};
use whimbrel_model::ports::{OwnerLink, ToCarrier, ToGateway};
use whimbrel_people::gateway::GatewaySettings;
use whimbrel_people::gateway::tokens::TokenSettings;

use crate::scene::{FIRST_LINK, ID, OwnerLinks, PARTITIONS, Scene, stored};

/// The owner of the second owner link.
const SECOND_LINK: OwnerLink = OwnerLink { number: 2, epoch: 2 };

fn owner_links(owner_link: Option<OwnerLink>) -> Arc<OwnerLinks> {
    Arc::new(vec![owner_link; PARTITIONS as usize])
}

#[tokio::test]
async fn an_arrival_waits_until_there_is_an_owner() {
    let mut scene = Scene::start().await;
    scene.owners_are_away(true);
    scene.owner_links.send_replace(owner_links(None));
    let mut device = scene.stranger().await;
    device.say(json!({"connect": {"uid": "u1", "platform": "web"}})).await;
    scene.owners_are_away(false);
    scene.owner_links.send_replace(owner_links(Some(OwnerLink { number: 2, ..FIRST_LINK })));
    scene.admit_next(0).await;
    assert_eq!(device.hears().await["connected"]["epoch"], "e1");
}

#[tokio::test]
async fn a_device_that_waits_too_long_for_an_owner_gets_a_reconnect_delay() {
    let settings = GatewaySettings { owner_wait: Duration::from_millis(250), ..GatewaySettings::default() };
    let scene = Scene::with(settings, &TokenSettings::default()).await;
    scene.owners_are_away(true);
    let mut device = scene.stranger().await;
    device.say(json!({"connect": {"uid": "u1", "platform": "web"}})).await;
    let (code, reason) = device.is_closed().await;
    assert_eq!(code, 4201);
    assert!(serde_json::from_str::<serde_json::Value>(&reason).unwrap()["after_ms"].as_u64().unwrap() >= 1000);
}

#[tokio::test]
async fn every_session_is_announced_to_a_new_owner_with_its_position() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    scene.say(vec![stored(session, 41, 40, b"x"), stored(session, 43, 41, b"y")]);
    device.hears().await;
    device.hears().await;
    device.say(json!({"ack": 41})).await;
    assert!(matches!(scene.told().await, ToCarrier::Ack { upto: 41, .. }));
    scene.owner_links.send_replace(owner_links(Some(SECOND_LINK)));
    let ToCarrier::Announce(announced) = scene.told().await else { panic!("not announced") };
    assert_eq!((announced.arrival.session, announced.sent, announced.acked), (session, 43, 41));
    assert_eq!(&*announced.epoch, "e1");
}

#[tokio::test]
async fn an_unchanged_owner_gets_no_announcement() {
    let mut scene = Scene::start().await;
    let (mut device, _) = scene.device("u1").await;
    scene.owner_links.send_replace(owner_links(Some(FIRST_LINK)));
    // The next message must be the departure, not an announcement.
    device.say(json!({"ping": {}})).await;
    device.hears().await;
    drop(device);
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
}

#[tokio::test]
async fn a_new_incarnation_announces_all_sessions_and_rejects_messages_for_the_old_one() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    let again = GatewayId { incarnation: 2, ..ID };
    scene.gateway.reincarnate(again);
    let (by, told) = scene.told_by().await;
    assert_eq!(by, again);
    assert!(matches!(told, ToCarrier::Announce(_)));
    assert!(!scene.say_as(ID, 1, vec![stored(session, 41, 40, b"old")]));
    assert!(scene.say_as(again, 1, vec![stored(session, 41, 40, b"new")]));
    assert_eq!(device.hears().await["message"]["payload"], "new");
    assert_eq!(scene.gateway.sessions()[0].1.session.gateway, again);
}

#[tokio::test]
async fn messages_of_an_owner_with_an_older_epoch_are_ignored() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    assert!(scene.say_as(ID, 5, vec![stored(session, 41, 40, b"five")]));
    assert!(scene.say_as(ID, 4, vec![stored(session, 42, 41, b"four")]));
    assert!(scene.say_as(ID, 5, vec![stored(session, 43, 41, b"five again")]));
    assert_eq!(device.hears().await["message"]["payload"], "five");
    assert_eq!(device.hears().await["message"]["payload"], "five again");
}

#[tokio::test]
async fn a_replaced_owner_is_ignored_before_the_new_one_sends_anything() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    scene.owner_links.send_replace(owner_links(Some(SECOND_LINK)));
    assert!(matches!(scene.told().await, ToCarrier::Announce(_)), "announced to the new owner");
    let kick = ToGateway::Kick { session, code: CloseCode::NoAck, reason: "not acknowledged".into() };
    assert!(scene.say_as(ID, FIRST_LINK.epoch, vec![kick]));
    assert!(scene.say_as(ID, SECOND_LINK.epoch, vec![stored(session, 41, 40, b"from the new one")]));
    assert_eq!(device.hears().await["message"]["payload"], "from the new one");
}

#[tokio::test]
async fn an_owner_that_sends_before_the_view_shows_it_stays_the_valid_one() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    assert!(scene.say_as(ID, 5, vec![stored(session, 41, 40, b"five")]));
    // The cluster view may lag behind the owners' messages.
    scene.owner_links.send_replace(owner_links(Some(SECOND_LINK)));
    assert!(matches!(scene.told().await, ToCarrier::Announce(_)));
    assert!(scene.say_as(ID, SECOND_LINK.epoch, vec![stored(session, 42, 41, b"two")]));
    assert!(scene.say_as(ID, 5, vec![stored(session, 43, 41, b"five again")]));
    assert_eq!(device.hears().await["message"]["payload"], "five");
    assert_eq!(device.hears().await["message"]["payload"], "five again");
}

#[tokio::test]
async fn an_owner_that_came_and_went_leaves_earlier_ones_ignored() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    scene.owner_links.send_replace(owner_links(Some(SECOND_LINK)));
    assert!(matches!(scene.told().await, ToCarrier::Announce(_)));
    scene.owner_links.send_replace(owner_links(None));
    assert!(scene.say_as(ID, FIRST_LINK.epoch, vec![stored(session, 41, 40, b"of the first")]));
    assert!(scene.say_as(ID, 3, vec![stored(session, 41, 40, b"of the third")]));
    assert_eq!(device.hears().await["message"]["payload"], "of the third");
}
