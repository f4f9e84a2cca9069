//! Owners that come and go, and a gateway that comes back as another incarnation.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use whimbrel_model::people::{CloseCode, GatewayId};
use whimbrel_model::ports::{Tenure, ToCarrier, ToGateway};
use whimbrel_people::gateway::GatewaySettings;
use whimbrel_people::gateway::tokens::TokenSettings;

use crate::scene::{FIRST_TENURE, ID, PARTITIONS, Scene, Tenures, stored};

/// The owner of the second tenure.
const SECOND_TENURE: Tenure = Tenure { number: 2, epoch: 2 };

fn tenures(tenure: Option<Tenure>) -> Arc<Tenures> {
    Arc::new(vec![tenure; PARTITIONS as usize])
}

#[tokio::test]
async fn an_arrival_waits_until_there_is_an_owner() {
    let mut scene = Scene::start().await;
    scene.owners_are_away(true);
    scene.tenures.send_replace(tenures(None));
    let mut device = scene.stranger().await;
    device.say(json!({"connect": {"uid": "u1", "platform": "web"}})).await;
    scene.owners_are_away(false);
    scene.tenures.send_replace(tenures(Some(Tenure { number: 2, ..FIRST_TENURE })));
    let session = scene.arrived().await;
    scene.admit(session, 0);
    assert_eq!(device.hears().await["connected"]["epoch"], "e1");
}

#[tokio::test]
async fn who_waits_too_long_for_an_owner_is_told_when_to_come_back() {
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
async fn a_new_owner_is_told_where_every_session_stands() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    scene.say(vec![stored(session, 41, 40, b"x"), stored(session, 43, 41, b"y")]);
    device.hears().await;
    device.hears().await;
    device.say(json!({"ack": 41})).await;
    assert!(matches!(scene.told().await, ToCarrier::Ack { upto: 41, .. }));
    scene.tenures.send_replace(tenures(Some(SECOND_TENURE)));
    let ToCarrier::Announce(announced) = scene.told().await else { panic!("not announced") };
    assert_eq!((announced.arrival.session, announced.sent, announced.acked), (session, 43, 41));
    assert_eq!(&*announced.epoch, "e1");
}

#[tokio::test]
async fn an_owner_that_did_not_change_is_told_nothing() {
    let mut scene = Scene::start().await;
    let (mut device, _) = scene.device("u1").await;
    scene.tenures.send_replace(tenures(Some(FIRST_TENURE)));
    // What comes next is the acknowledgement, and not an announcement.
    device.say(json!({"ping": {}})).await;
    device.hears().await;
    drop(device);
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
}

#[tokio::test]
async fn another_incarnation_announces_everybody_and_takes_only_what_is_for_it() {
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
    assert_eq!(scene.gateway.picture()[0].1.session.gateway, again);
}

#[tokio::test]
async fn an_owner_of_an_older_epoch_is_not_listened_to() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    assert!(scene.say_as(ID, 5, vec![stored(session, 41, 40, b"five")]));
    assert!(scene.say_as(ID, 4, vec![stored(session, 42, 41, b"four")]));
    assert!(scene.say_as(ID, 5, vec![stored(session, 43, 41, b"five again")]));
    assert_eq!(device.hears().await["message"]["payload"], "five");
    assert_eq!(device.hears().await["message"]["payload"], "five again");
}

#[tokio::test]
async fn an_owner_that_was_replaced_is_not_believed_although_the_new_one_has_said_nothing() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    scene.tenures.send_replace(tenures(Some(SECOND_TENURE)));
    assert!(matches!(scene.told().await, ToCarrier::Announce(_)), "the new owner is seen");
    let kick = ToGateway::Kick { session, code: CloseCode::NoAck, reason: "not acknowledged".into() };
    assert!(scene.say_as(ID, FIRST_TENURE.epoch, vec![kick]));
    assert!(scene.say_as(ID, SECOND_TENURE.epoch, vec![stored(session, 41, 40, b"from the new one")]));
    assert_eq!(device.hears().await["message"]["payload"], "from the new one");
}

#[tokio::test]
async fn an_owner_that_was_heard_before_it_is_seen_stays_the_one_that_is_believed() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    assert!(scene.say_as(ID, 5, vec![stored(session, 41, 40, b"five")]));
    // What is seen of owners comes later than what they say.
    scene.tenures.send_replace(tenures(Some(SECOND_TENURE)));
    assert!(matches!(scene.told().await, ToCarrier::Announce(_)));
    assert!(scene.say_as(ID, SECOND_TENURE.epoch, vec![stored(session, 42, 41, b"two")]));
    assert!(scene.say_as(ID, 5, vec![stored(session, 43, 41, b"five again")]));
    assert_eq!(device.hears().await["message"]["payload"], "five");
    assert_eq!(device.hears().await["message"]["payload"], "five again");
}

#[tokio::test]
async fn an_owner_that_was_seen_and_is_gone_again_makes_no_earlier_one_be_believed() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    scene.tenures.send_replace(tenures(Some(SECOND_TENURE)));
    assert!(matches!(scene.told().await, ToCarrier::Announce(_)));
    scene.tenures.send_replace(tenures(None));
    assert!(scene.say_as(ID, FIRST_TENURE.epoch, vec![stored(session, 41, 40, b"of the first")]));
    assert!(scene.say_as(ID, 3, vec![stored(session, 41, 40, b"of the third")]));
    assert_eq!(device.hears().await["message"]["payload"], "of the third");
}
