//! Devices over a WebSocket, including misbehaving ones.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use whimbrel_model::people::{CloseCode, SessionId};
use whimbrel_model::ports::{ToCarrier, ToGateway};
use whimbrel_people::gateway::GatewaySettings;
use whimbrel_people::gateway::tokens::TokenSettings;
use whimbrel_people::gateway::websocket::{Opcode, SocketMessage, encode};

use crate::scene::{ID, Reported, Scene, ephemeral, soon, stored};

#[tokio::test]
async fn a_device_is_admitted_with_its_position() {
    let mut scene = Scene::start().await;
    let mut device = scene.stranger().await;
    let resume = json!({"epoch": "e1", "cursor": 41});
    device.say(json!({"connect": {"uid": "u1", "platform": "web", "device": "d1", "resume": resume}})).await;
    let ToCarrier::Arrive(arrival) = scene.told().await else { panic!("no arrival") };
    assert_eq!((arrival.uid.as_str(), arrival.platform.as_str(), &*arrival.device), ("u1", "web", "d1"));
    assert_eq!(arrival.resume.as_ref().unwrap().cursor, 41);
    scene.admit(arrival.session, 41);
    let session = SessionId { gateway: ID, number: arrival.session };
    let expected = json!({"session": session.to_string(), "epoch": "e1", "head": 42, "resumed": false, "ping": 25000});
    assert_eq!(device.hears().await, json!({ "connected": expected }));
    let Reported::Came(uid, shown) = scene.reported().await else { panic!("no arrival was reported") };
    assert_eq!((uid.as_str(), shown.session), ("u1", session));
    assert_eq!(scene.gateway.sessions().len(), 1);
}

#[tokio::test]
async fn messages_keep_their_order_and_acknowledgements_reach_the_carrier() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    let news = vec![stored(session, 41, 40, b"one"), ephemeral(session, 1, b"now"), stored(session, 44, 41, b"two")];
    scene.say(news);
    let first = device.hears().await;
    assert_eq!((&first["message"]["seq"], &first["message"]["prev"]), (&json!(41), &json!(40)));
    assert_eq!(first["message"]["payload"], "one");
    let now = device.hears().await;
    assert_eq!((&now["message"]["stored"], &now["message"]["seq"]), (&json!(false), &json!(null)));
    assert_eq!(device.hears().await["message"]["seq"], 44);
    device.say(json!({"ack": 44})).await;
    assert!(matches!(scene.told().await, ToCarrier::Ack { upto: 44, session: s, .. } if s == session));
}

#[tokio::test]
async fn a_departure_is_reported_to_carrier_and_presence() {
    let mut scene = Scene::start().await;
    let (device, session) = scene.device("u1").await;
    assert!(matches!(scene.reported().await, Reported::Came(..)));
    drop(device);
    assert!(matches!(scene.told().await, ToCarrier::Gone { session: s, .. } if s == session));
    assert!(matches!(scene.reported().await, Reported::Went(_, s) if s.number == session));
    assert!(scene.gateway.sessions().is_empty());
}

#[tokio::test]
async fn a_close_is_answered_with_the_same_code() {
    let mut scene = Scene::start().await;
    let (mut device, _) = scene.device("u1").await;
    device.0.send(&SocketMessage::Close(Some((1001, "bye".into())))).await.unwrap();
    assert_eq!(device.is_closed().await.0, 1001);
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
    assert_eq!(device.next().await, None);
}

#[tokio::test]
async fn pings_of_the_device_are_answered() {
    let mut scene = Scene::start().await;
    let (mut device, _) = scene.device("u1").await;
    device.say(json!({"ping": {}})).await;
    assert_eq!(device.hears().await, json!({"pong": {}}));
    device.0.send(&SocketMessage::Ping(b"x".to_vec())).await.unwrap();
    assert_eq!(device.next().await, Some(SocketMessage::Pong(b"x".to_vec())));
}

#[tokio::test]
async fn a_malformed_frame_closes_the_connection_with_a_reason() {
    let scene = Scene::start().await;
    let cases = [
        ("{", 4000),
        (r#"{"dance":{}}"#, 4000),
        (r#"{"ack":1}"#, 4000),
        (r#"{"connect":{}}"#, 4000),
        (r#"{"connect":{"uid":"u1"}}"#, 4000),
        (r#"{"connect":{"uid":"u1","platform":"No Such"}}"#, 4000),
        (r#"{"connect":{"uid":"","platform":"web"}}"#, 4000),
        (r#"{"connect":{"token":"x","platform":"web"}}"#, 4300),
    ];
    for (frame, code) in cases {
        let mut device = scene.stranger().await;
        device.0.send_text(frame).await.unwrap();
        let (closed, reason) = device.is_closed().await;
        assert_eq!(closed, code, "{frame}");
        assert!(!reason.is_empty(), "{frame}");
    }
}

#[tokio::test]
async fn frames_out_of_turn_close_the_connection() {
    let mut scene = Scene::start().await;
    for frame in [json!({"ack": 41}), json!({"connect": {"uid": "u1", "platform": "web"}})] {
        let (mut device, _) = scene.device("u1").await;
        device.say(frame.clone()).await;
        assert_eq!(device.is_closed().await.0, 4000, "{frame}");
        assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
    }
    let (mut device, _) = scene.device("u1").await;
    device.0.send(&SocketMessage::Binary(b"{}".to_vec())).await.unwrap();
    assert_eq!(device.is_closed().await.0, 4000);
}

#[tokio::test]
async fn too_large_frames_and_protocol_violations_have_different_close_codes() {
    let mut scene = Scene::start().await;
    let (mut device, _) = scene.device("u1").await;
    device.0.send_text("x".repeat((64 << 10) + 1)).await.unwrap();
    assert_eq!(device.is_closed().await.0, 4004);
    let mut raw = shaken_hands(&scene).await;
    raw.write_all(&[0x81, 0x01, b'x']).await.unwrap();
    let mut said = Vec::new();
    soon(raw.read_to_end(&mut said)).await.unwrap();
    assert_eq!(said[2..4], 1002_u16.to_be_bytes());
}

#[tokio::test]
async fn a_kick_has_a_code_and_a_reason() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    let (code, reason) = (CloseCode::Replaced, "another phone".into());
    scene.say(vec![ToGateway::Kick { session, code, reason }]);
    assert_eq!(device.hears().await, json!({"kick": {"code": "replaced", "reason": "another phone"}}));
    assert_eq!(device.is_closed().await, (4001, "another phone".to_owned()));
}

#[tokio::test]
async fn a_rejection_has_a_code_and_a_reason() {
    let mut scene = Scene::start().await;
    let mut device = scene.stranger().await;
    device.say(json!({"connect": {"uid": "u1", "platform": "web"}})).await;
    let session = scene.arrived().await;
    scene.say(vec![ToGateway::Rejected { session, code: CloseCode::Rejected, reason: "one is enough".into() }]);
    assert_eq!(device.is_closed().await, (4003, "one is enough".to_owned()));
}

#[tokio::test]
async fn a_loss_from_the_inbox_is_reported_and_can_be_acknowledged() {
    let mut scene = Scene::start().await;
    let (mut device, session) = scene.device("u1").await;
    scene.say(vec![ToGateway::Truncated { session, from: 41, to: 57, prev: 0 }]);
    assert_eq!(device.hears().await, json!({"truncated": {"from": 41, "to": 57}}));
    device.say(json!({"ack": 57})).await;
    assert!(matches!(scene.told().await, ToCarrier::Ack { upto: 57, .. }));
}

#[tokio::test]
async fn a_gateway_that_shuts_down_gives_each_device_a_reconnect_delay() {
    let mut scene = Scene::start().await;
    let (mut device, _) = scene.device("u1").await;
    let gateway = scene.gateway.clone();
    let ending = tokio::spawn(async move { gateway.go_away(std::time::Duration::from_secs(20)).await });
    let after_ms = device.hears().await["goaway"]["after_ms"].as_u64().unwrap();
    assert!(after_ms < 10_000);
    assert_eq!(device.is_closed().await, (4200, format!(r#"{{"after_ms":{after_ms}}}"#)));
    drop(device);
    soon(ending).await.unwrap();
    assert_eq!(scene.gateway.connections(), 0);
    assert!(shake(&scene, "").await.starts_with("HTTP/1.1 503"));
}

#[tokio::test]
async fn a_device_that_does_not_answer_a_ping_is_closed() {
    let quick = std::time::Duration::from_millis(250);
    let settings = GatewaySettings { ping_interval: quick, pong_wait: quick, ..GatewaySettings::default() };
    let mut scene = Scene::with(settings, &TokenSettings::default()).await;
    let mut raw = shaken_hands(&scene).await;
    let mut hello = Vec::new();
    let text = br#"{"connect":{"uid":"u1","platform":"web"}}"#;
    encode(&mut hello, Opcode::Text, text, Some([0; 4]));
    raw.write_all(&hello).await.unwrap();
    scene.admit_next(0).await;
    let mut said = Vec::new();
    soon(raw.read_to_end(&mut said)).await.unwrap();
    assert!(said.windows(2).any(|pair| pair == 4102_u16.to_be_bytes()));
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
}

#[tokio::test]
async fn a_device_that_answers_pings_stays_connected() {
    let quick = std::time::Duration::from_millis(250);
    let settings = GatewaySettings { ping_interval: quick, pong_wait: quick * 8, ..GatewaySettings::default() };
    let mut scene = Scene::with(settings, &TokenSettings::default()).await;
    let (mut device, _) = scene.device("u1").await;
    for _ in 0..3 {
        assert_eq!(device.next().await, Some(SocketMessage::Ping(Vec::new())));
    }
}

#[tokio::test]
async fn invalid_handshakes_are_rejected_with_a_problem() {
    let scene = Scene::start().await;
    let answer = scene.exchange("GET /v1/connect HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 426") && answer.contains("upgrade_required"), "{answer}");
    let bad_key = "GET /v1/connect HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-version: 13\r\nsec-websocket-key: x\r\n\r\n";
    let answer = shake_with(&scene, bad_key).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let answer = shake(&scene, "sec-websocket-protocol: chat\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(scene.gateway.connections(), 0);
}

#[tokio::test]
async fn open_connections_and_new_ones_per_second_are_bounded() {
    let settings = GatewaySettings { connections_max: 1, ..GatewaySettings::default() };
    let scene = Scene::with(settings, &TokenSettings::default()).await;
    let _one = scene.stranger().await;
    assert!(shake(&scene, "").await.starts_with("HTTP/1.1 503"));
    let settings = GatewaySettings { accepts_per_second: 1, ..GatewaySettings::default() };
    let scene = Scene::with(settings, &TokenSettings::default()).await;
    let mut refused = 0;
    for _ in 0..50 {
        refused += usize::from(shake(&scene, "").await.starts_with("HTTP/1.1 503"));
    }
    assert!(refused > 0);
}

const HANDSHAKE: &str = "GET /v1/connect HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// The start of the answer to a handshake.
async fn shake(scene: &Scene, more: &str) -> String {
    shake_with(scene, &format!("{HANDSHAKE}{more}\r\n")).await
}

async fn shake_with(scene: &Scene, request: &str) -> String {
    let mut answer = vec![0; 4096];
    let count = soon(scene.request(request).await.read(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

/// A raw socket after its handshake.
async fn shaken_hands(scene: &Scene) -> TcpStream {
    let mut stream = scene.request(&format!("{HANDSHAKE}\r\n")).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(soon(stream.read_u8()).await.unwrap());
    }
    stream
}
