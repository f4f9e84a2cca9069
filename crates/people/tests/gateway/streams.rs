//! Event streams and gRPC: the same sessions over other transports.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use whimbrel_api::protocol::gateway_client::GatewayClient;
use whimbrel_api::protocol::{ClientFrame, client_frame, server_frame};
use whimbrel_model::people::{CloseCode, GatewayId, SessionId};
use whimbrel_model::ports::{ToCarrier, ToGateway};
use whimbrel_people::gateway::GatewaySettings;

use crate::scene::{ID, Scene, ephemeral, soon, stored};
use crate::tokens::{bound_token, token, with_secret};

/// An open event stream.
struct Events(TcpStream, String);

impl Events {
    async fn open(scene: &Scene, query: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(scene.address).await.unwrap();
        let request = format!("GET /v1/connect/sse?{query} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        Self(stream, String::new())
    }

    /// Reads until the text has arrived, and returns everything up to its end.
    async fn until(&mut self, wanted: &str) -> String {
        loop {
            if let Some(at) = self.1.find(wanted) {
                let rest = self.1.split_off(at + wanted.len());
                return std::mem::replace(&mut self.1, rest);
            }
            let mut bytes = [0; 4096];
            let count = soon(self.0.read(&mut bytes)).await.unwrap();
            assert!(count > 0, "the stream ended after {}", self.1);
            self.1.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }
}

async fn post_ack(scene: &Scene, body: serde_json::Value) -> String {
    let body = body.to_string();
    let mut stream = TcpStream::connect(scene.address).await.unwrap();
    let request = format!(
        "POST /v1/connect/ack HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn an_event_stream_has_the_same_frames_and_acknowledgements_by_post() {
    let mut scene = Scene::start().await;
    let mut events = Events::open(&scene, "uid=u1&platform=web&device=d1&epoch=e1&cursor=7", "").await;
    let ToCarrier::Arrive(arrival) = scene.told().await else { panic!("no arrival") };
    assert_eq!(arrival.resume.as_ref().unwrap().cursor, 7);
    let session = arrival.session;
    scene.admit(session, 40);
    let greeting = events.until("{\"connected\":").await;
    assert!(
        greeting.contains("content-type: text/event-stream") && greeting.contains("id: e1:40\ndata: "),
        "{greeting}"
    );
    scene.say(vec![stored(session, 41, 40, b"hi"), ephemeral(session, 1, b"now")]);
    assert!(events.until("\"payload\":\"hi\"").await.contains("id: e1:41\ndata: {\"message\""));
    events.until("\"payload\":\"now\"").await;
    let name = SessionId { gateway: ID, number: session }.to_string();
    let answer = post_ack(&scene, json!({"session": name, "ack": 41, "uid": "u1"})).await;
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert!(matches!(scene.told().await, ToCarrier::Ack { upto: 41, .. }));
    let answer = post_ack(&scene, json!({"session": name, "ack": 99, "uid": "u1"})).await;
    assert!(answer.starts_with("HTTP/1.1 422") && answer.contains("bad_ack"), "{answer}");
    for (session, uid) in [("7-1-ffff", "u1"), ("nonsense", "u1"), (&*name, "u2")] {
        let answer = post_ack(&scene, json!({"session": session, "ack": 41, "uid": uid})).await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{session}, {uid}: {answer}");
    }
    drop(events);
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
}

#[tokio::test]
async fn a_device_that_reads_is_not_closed_for_a_window_that_grows_when_encoded() {
    let mut scene = Scene::start().await;
    let mut events = Events::open(&scene, "uid=u1&platform=web", "").await;
    let session = scene.arrived().await;
    scene.admit(session, 0);
    // A full window whose base64 is a third larger than the carrier's count.
    let (window, binary) = (64, vec![0xff; 4 << 10]);
    let say_from = |scene: &Scene, sent: u64| {
        scene.say((sent + 1..=window).map(|seq| stored(session, seq, seq - 1, &binary)).collect())
    };
    say_from(&scene, 0);
    let ToCarrier::Announce(announced) = scene.told().await else {
        panic!("the gateway did not request the messages without room")
    };
    assert!(announced.sent > 0 && announced.sent < window, "{}", announced.sent);
    say_from(&scene, announced.sent);
    for seq in 1..=window {
        let frames = events.until(&format!("id: e1:{seq}\n")).await;
        assert!(!frames.contains("close"), "{frames}");
    }
}

#[tokio::test]
async fn an_acknowledgement_for_a_session_of_another_gateway_is_rejected() {
    let mut scene = Scene::start().await;
    let mut events = Events::open(&scene, "uid=u1&platform=web", "").await;
    let session = scene.arrived().await;
    scene.admit(session, 40);
    scene.say(vec![stored(session, 41, 40, b"hi")]);
    events.until("\"payload\":\"hi\"").await;
    let ack = |gateway| json!({"session": SessionId { gateway, number: session }.to_string(), "ack": 41, "uid": "u1"});
    let elsewhere = [GatewayId { node: ID.node + 1, ..ID }, GatewayId { incarnation: ID.incarnation + 1, ..ID }];
    for gateway in elsewhere {
        let answer = post_ack(&scene, ack(gateway)).await;
        assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("unknown_session"), "{gateway}: {answer}");
    }
    // A session keeps its id when its gateway gets a new incarnation.
    scene.gateway.reincarnate(elsewhere[1]);
    assert!(matches!(scene.told().await, ToCarrier::Announce(_)));
    let answer = post_ack(&scene, ack(ID)).await;
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert!(matches!(scene.told().await, ToCarrier::Ack { upto: 41, .. }));
}

#[tokio::test]
async fn a_browser_resumes_from_its_last_event_id() {
    let mut scene = Scene::start().await;
    for (query, last, expected) in [
        ("", "e1:12", ("e1", 12)),
        ("&epoch=e0&cursor=7", "e1:12", ("e1", 12)),
        ("&epoch=e0&cursor=7", "", ("e0", 7)),
        ("&epoch=e1&cursor=7", "12", ("", 0)),
        ("", "nonsense", ("", 0)),
    ] {
        let query = format!("uid=u1&platform=web{query}");
        let events = Events::open(&scene, &query, &format!("last-event-id: {last}\r\n")).await;
        let ToCarrier::Arrive(arrival) = scene.told().await else { panic!("no arrival") };
        let resume = arrival.resume.as_ref().unwrap();
        assert_eq!((&*resume.epoch, resume.cursor), expected, "{query} {last}");
        drop(events);
        assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
    }
}

#[tokio::test]
async fn a_report_of_a_loss_moves_the_event_id_behind_it() {
    let mut scene = Scene::start().await;
    let mut events = Events::open(&scene, "uid=u1&platform=web", "").await;
    let session = scene.arrived().await;
    scene.admit(session, 40);
    events.until("id: e1:40\n").await;
    scene.say(vec![ToGateway::Truncated { session, from: 41, to: 43, prev: 40 }]);
    assert!(events.until("{\"truncated\"").await.ends_with("id: e1:43\ndata: {\"truncated\""));
}

#[tokio::test]
async fn an_event_stream_ends_with_a_close_frame() {
    let mut scene = Scene::start().await;
    let mut events = Events::open(&scene, "uid=u1&platform=web", "connection: close\r\n").await;
    let session = scene.arrived().await;
    scene.admit(session, 0);
    scene.say(vec![ToGateway::Kick { session, code: CloseCode::Kicked, reason: "enough".into() }]);
    events.until(r#"{"close":{"code":4002,"reason":"enough"}}"#).await;
    let mut rest = Vec::new();
    soon(events.0.read_to_end(&mut rest)).await.unwrap();
}

#[tokio::test]
async fn an_event_stream_needs_a_token_if_there_are_keys() {
    let mut scene = Scene::with(GatewaySettings::default(), &with_secret()).await;
    let mut refused = Events::open(&scene, "uid=u1&platform=web", "").await;
    assert!(refused.until("bad_token").await.starts_with("HTTP/1.1 401"));
    let _by_query = Events::open(&scene, &format!("token={}&platform=web", token("u1", 60.0)), "").await;
    let number = scene.arrived().await;
    scene.admit(number, 40);
    let header = format!("authorization: Bearer {}\r\n", token("u2", 60.0));
    let _by_header = Events::open(&scene, "platform=web", &header).await;
    scene.arrived().await;
    let session = SessionId { gateway: ID, number }.to_string();
    let answer = post_ack(&scene, json!({"session": session, "ack": 40, "token": token("u1", 60.0)})).await;
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    let answer = post_ack(&scene, json!({"session": session, "ack": 40, "token": token("u2", 60.0)})).await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    let answer = post_ack(&scene, json!({"session": session, "ack": 40, "uid": "u1"})).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[tokio::test]
async fn a_token_for_one_platform_cannot_acknowledge_for_another_one() {
    let mut scene = Scene::with(GatewaySettings::default(), &with_secret()).await;
    let _events = Events::open(&scene, &format!("token={}&platform=web", token("u1", 60.0)), "").await;
    let number = scene.arrived().await;
    scene.admit(number, 40);
    let session = SessionId { gateway: ID, number }.to_string();
    let ack = |token: String| json!({"session": session, "ack": 40, "token": token});
    let answer = post_ack(&scene, ack(bound_token("u1", "ios"))).await;
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("unknown_session"), "{answer}");
    let answer = post_ack(&scene, ack(bound_token("u1", "web"))).await;
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
}

fn frame(frame: client_frame::Frame) -> ClientFrame {
    ClientFrame { frame: Some(frame) }
}

#[tokio::test]
async fn a_grpc_stream_has_the_same_frames() {
    let mut scene = Scene::start().await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", scene.address)).unwrap();
    let mut client = GatewayClient::new(soon(endpoint.connect()).await.unwrap());
    let (say, said) = mpsc::unbounded_channel();
    let said = futures_util::stream::unfold(said, |mut said: mpsc::UnboundedReceiver<ClientFrame>| async move {
        said.recv().await.map(|frame| (frame, said))
    });
    let connect = client_frame::Connect {
        uid: Some("u1".into()),
        platform: Some("desk".into()),
        device: "d".into(),
        ..Default::default()
    };
    say.send(frame(client_frame::Frame::Connect(connect))).unwrap();
    let mut frames = soon(client.connect(said)).await.unwrap().into_inner();
    let session = scene.arrived().await;
    scene.admit(session, 40);
    let next = soon(frames.message()).await.unwrap().unwrap();
    assert!(matches!(next.frame, Some(server_frame::Frame::Connected(ref said)) if said.head == 42), "{next:?}");
    scene.say(vec![stored(session, 41, 40, b"\xff"), stored(session, 42, 41, b"two")]);
    for expected in [41, 42] {
        let next = soon(frames.message()).await.unwrap().unwrap();
        let Some(server_frame::Frame::Message(message)) = next.frame else { panic!("{next:?}") };
        assert_eq!(message.seq, Some(expected));
    }
    say.send(frame(client_frame::Frame::Ack(42))).unwrap();
    assert!(matches!(scene.told().await, ToCarrier::Ack { upto: 42, .. }));
    say.send(frame(client_frame::Frame::Ack(43))).unwrap();
    let next = soon(frames.message()).await.unwrap().unwrap();
    assert!(matches!(next.frame, Some(server_frame::Frame::Close(ref close)) if close.code == 4000), "{next:?}");
    assert_eq!(soon(frames.message()).await.unwrap(), None);
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
}

#[tokio::test]
async fn a_grpc_device_that_ends_its_side_gets_close_as_last_frame() {
    let mut scene = Scene::start().await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", scene.address)).unwrap();
    let mut client = GatewayClient::new(soon(endpoint.connect()).await.unwrap());
    let (say, said) = mpsc::unbounded_channel();
    let said = futures_util::stream::unfold(said, |mut said: mpsc::UnboundedReceiver<ClientFrame>| async move {
        said.recv().await.map(|frame| (frame, said))
    });
    let connect = client_frame::Connect { uid: Some("u1".into()), platform: Some("desk".into()), ..Default::default() };
    say.send(frame(client_frame::Frame::Connect(connect))).unwrap();
    let mut frames = soon(client.connect(said)).await.unwrap().into_inner();
    let session = scene.arrived().await;
    scene.admit(session, 40);
    soon(frames.message()).await.unwrap().unwrap();
    drop(say);
    let last = soon(frames.message()).await.unwrap();
    let last = last.and_then(|last| last.frame);
    assert!(matches!(last, Some(server_frame::Frame::Close(ref close)) if close.code == 1000), "{last:?}");
    assert_eq!(soon(frames.message()).await.unwrap(), None);
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
}
