//! Devices that do not read.

use std::time::Duration;

use serde_json::json;
use whimbrel_model::ports::{ToCarrier, ToGateway};
use whimbrel_people::gateway::GatewaySettings;
use whimbrel_people::gateway::tokens::TokenSettings;

use crate::scene::{Scene, ephemeral, stored};

/// More than the kernel buffers for a connection without a reader, on both sides together.
const MORE_THAN_SOCKETS_TAKE: u64 = 32 << 20;
const PAYLOAD: usize = 32 << 10;

#[tokio::test]
async fn the_number_of_lost_ephemeral_messages_is_reported_to_a_slow_device() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    let payload = vec![b'x'; PAYLOAD];
    let sent = MORE_THAN_SOCKETS_TAKE / PAYLOAD as u64;
    for place in 1..=sent {
        scene.say(vec![ephemeral(session, place, &payload)]);
    }
    let (mut got, mut lost) = (0, 0);
    while got + lost < sent {
        let frame = device.hears().await;
        match frame["lost"]["count"].as_u64() {
            Some(count) => lost += count,
            None => got += 1,
        }
    }
    assert!(lost > 0 && got > 0, "{got} received, {lost} lost");
    scene.say(vec![ephemeral(session, sent + 1, b"on we go")]);
    assert_eq!(device.hears().await["message"]["payload"], "on we go");
}

#[tokio::test]
async fn losses_between_carrier_and_gateway_are_reported_at_once() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    scene.say(vec![ToGateway::Lost { session, count: 3 }]);
    assert_eq!(device.hears().await, json!({"lost": {"count": 3}}));
}

#[tokio::test]
async fn a_slow_device_gets_every_stored_message() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    let payload = vec![b'x'; PAYLOAD];
    let last = 40 + MORE_THAN_SOCKETS_TAKE / PAYLOAD as u64;
    let say_from = |scene: &Scene, sent: u64| {
        scene.say((sent + 1..=last).map(|seq| stored(session, seq, seq - 1, &payload)).collect());
    };
    say_from(&scene, 40);
    let (mut expected, mut asked) = (41, 0);
    while expected <= last {
        tokio::select! {
            frame = device.hears() => {
                assert_eq!(frame["message"]["seq"], expected);
                expected += 1;
            }
            told = scene.told() => {
                let ToCarrier::Announce(announced) = told else { panic!("not an announcement: {told:?}") };
                asked += 1;
                say_from(&scene, announced.sent);
            }
        }
    }
    assert!(asked > 0, "the queue was never full");
}

#[tokio::test]
async fn a_message_larger_than_the_queue_is_delivered() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    let payload = vec![b'y'; 8 << 20];
    scene.say(vec![stored(session, 41, 40, &payload), stored(session, 42, 41, b"after")]);
    assert_eq!(device.hears().await["message"]["payload"].as_str().unwrap().len(), payload.len());
}

#[tokio::test]
async fn a_device_that_reads_nothing_is_closed() {
    let settings = GatewaySettings {
        stuck_wait: Duration::from_millis(250),
        ping_interval: Duration::from_millis(500),
        pong_wait: Duration::from_secs(600),
        ..GatewaySettings::default()
    };
    let mut scene = Scene::with(settings, &TokenSettings::default()).await;
    let (_device, session) = scene.device("u1").await;
    scene.say(vec![ephemeral(session, 1, &vec![b'x'; MORE_THAN_SOCKETS_TAKE as usize])]);
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
}

#[tokio::test]
async fn a_device_that_does_not_read_answers_is_closed() {
    let settings = GatewaySettings { queue_bytes_max: 1024, ..GatewaySettings::default() };
    let mut scene = Scene::with(settings, &TokenSettings::default()).await;
    let (mut device, _) = scene.device("u1").await;
    let ping = whimbrel_people::gateway::websocket::SocketMessage::Ping(vec![b'x'; 125]);
    let asking = async {
        // The gateway closes the connection before this loop could end.
        while device.0.send(&ping).await.is_ok() {}
    };
    tokio::select! {
        () = asking => {}
        told = scene.told() => assert!(matches!(told, ToCarrier::Gone { .. })),
    }
    let _ = device.0.send_text(json!({}).to_string()).await;
}
