//! Event streams and gRPC: the same sessions over other transports.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use whimbrel_api::protocol::gateway_client::GatewayClient;
use whimbrel_api::protocol::{ClientFrame, ServerFrame, client_frame, server_frame};
use whimbrel_model::people::{CloseCode, GatewayId, SessionId};
use whimbrel_model::ports::{ToCarrier, ToGateway};
use whimbrel_people::gateway::GatewaySettings;

use crate::scene::{ID, Scene, ephemeral, soon, stored};
use crate::tokens::{bound_token, token, with_secret};

/// An open event stream.
struct Events(TcpStream, String);

impl Events {
    async fn open(scene: &Scene, query: &str, headers: &str) -> Self {
        let request = format!("GET /v1/connect/sse?{query} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        Self(scene.request(&request).await, String::new())
    }

    /// The stream of an admitted device, with its session number.
    async fn admitted(scene: &mut Scene, query: &str, headers: &str, cursor: u64) -> (Self, u64) {
        let events = Self::open(scene, query, headers).await;
        (events, scene.admit_next(cursor).await)
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

/// Posts an acknowledgement, whose answer must have this status.
async fn post_ack(scene: &Scene, body: Value, status: u16) -> String {
    let (body, head) = (body.to_string(), "POST /v1/connect/ack HTTP/1.1\r\nhost: x\r\nconnection: close");
    let answer = scene.exchange(&format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{body}: {answer}");
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
    post_ack(&scene, json!({"session": name, "ack": 41, "uid": "u1"}), 204).await;
    assert!(matches!(scene.told().await, ToCarrier::Ack { upto: 41, .. }));
    let answer = post_ack(&scene, json!({"session": name, "ack": 99, "uid": "u1"}), 422).await;
    assert!(answer.contains("bad_ack"), "{answer}");
    for (session, uid) in [("7-1-ffff", "u1"), ("nonsense", "u1"), (&*name, "u2")] {
        post_ack(&scene, json!({"session": session, "ack": 41, "uid": uid}), 404).await;
    }
    drop(events);
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
}

#[tokio::test]
async fn a_device_that_reads_is_not_closed_for_a_window_that_grows_when_encoded() {
    let mut scene = Scene::start().await;
    let (mut events, session) = Events::admitted(&mut scene, "uid=u1&platform=web", "", 0).await;
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
    let (mut events, session) = Events::admitted(&mut scene, "uid=u1&platform=web", "", 40).await;
    scene.say(vec![stored(session, 41, 40, b"hi")]);
    events.until("\"payload\":\"hi\"").await;
    let ack = |gateway| json!({"session": SessionId { gateway, number: session }.to_string(), "ack": 41, "uid": "u1"});
    let elsewhere = [GatewayId { node: ID.node + 1, ..ID }, GatewayId { incarnation: ID.incarnation + 1, ..ID }];
    for gateway in elsewhere {
        let answer = post_ack(&scene, ack(gateway), 404).await;
        assert!(answer.contains("unknown_session"), "{gateway}: {answer}");
    }
    // A session keeps its id when its gateway gets a new incarnation.
    scene.gateway.reincarnate(elsewhere[1]);
    assert!(matches!(scene.told().await, ToCarrier::Announce(_)));
    post_ack(&scene, ack(ID), 204).await;
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
    let (mut events, session) = Events::admitted(&mut scene, "uid=u1&platform=web", "", 40).await;
    events.until("id: e1:40\n").await;
    scene.say(vec![ToGateway::Truncated { session, from: 41, to: 43, prev: 40 }]);
    assert!(events.until("{\"truncated\"").await.ends_with("id: e1:43\ndata: {\"truncated\""));
}

#[tokio::test]
async fn an_event_stream_ends_with_a_close_frame() {
    let mut scene = Scene::start().await;
    let (mut events, session) = Events::admitted(&mut scene, "uid=u1&platform=web", "connection: close\r\n", 0).await;
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
    let by_query = format!("token={}&platform=web", token("u1", 60.0));
    let (_by_query, number) = Events::admitted(&mut scene, &by_query, "", 40).await;
    let header = format!("authorization: Bearer {}\r\n", token("u2", 60.0));
    let _by_header = Events::open(&scene, "platform=web", &header).await;
    scene.arrived().await;
    let session = SessionId { gateway: ID, number }.to_string();
    post_ack(&scene, json!({"session": session, "ack": 40, "token": token("u1", 60.0)}), 204).await;
    post_ack(&scene, json!({"session": session, "ack": 40, "token": token("u2", 60.0)}), 404).await;
    post_ack(&scene, json!({"session": session, "ack": 40, "uid": "u1"}), 401).await;
}

#[tokio::test]
async fn a_token_for_one_platform_cannot_acknowledge_for_another_one() {
    let mut scene = Scene::with(GatewaySettings::default(), &with_secret()).await;
    let query = format!("token={}&platform=web", token("u1", 60.0));
    let (_events, number) = Events::admitted(&mut scene, &query, "", 40).await;
    let session = SessionId { gateway: ID, number }.to_string();
    let ack = |token: String| json!({"session": session, "ack": 40, "token": token});
    let answer = post_ack(&scene, ack(bound_token("u1", "ios")), 404).await;
    assert!(answer.contains("unknown_session"), "{answer}");
    post_ack(&scene, ack(bound_token("u1", "web")), 204).await;
}

/// An admitted device over gRPC.
struct GrpcDevice {
    say: mpsc::UnboundedSender<ClientFrame>,
    frames: tonic::Streaming<ServerFrame>,
    session: u64,
}

impl GrpcDevice {
    async fn admitted(scene: &mut Scene) -> Self {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", scene.address)).unwrap();
        let mut client = GatewayClient::new(soon(endpoint.connect()).await.unwrap());
        let (say, mut said) = mpsc::unbounded_channel();
        let (uid, platform) = (Some("u1".into()), Some("desk".into()));
        let connect = client_frame::Connect { uid, platform, device: "d".into(), ..Default::default() };
        say.send(ClientFrame { frame: Some(client_frame::Frame::Connect(connect)) }).unwrap();
        let said = futures_util::stream::poll_fn(move |context| said.poll_recv(context));
        let frames = soon(client.connect(said)).await.unwrap().into_inner();
        let session = scene.admit_next(40).await;
        let mut device = Self { say, frames, session };
        let first = device.next().await;
        assert!(matches!(first, Some(server_frame::Frame::Connected(ref said)) if said.head == 42), "{first:?}");
        device
    }

    fn ack(&self, upto: u64) {
        self.say.send(ClientFrame { frame: Some(client_frame::Frame::Ack(upto)) }).unwrap();
    }

    async fn next(&mut self) -> Option<server_frame::Frame> {
        soon(self.frames.message()).await.unwrap().and_then(|frame| frame.frame)
    }

    /// The last frame has this close code, and the carrier learns of the departure.
    async fn assert_closed(mut self, scene: &mut Scene, code: u32) {
        let last = self.next().await;
        assert!(matches!(last, Some(server_frame::Frame::Close(ref close)) if close.code == code), "{last:?}");
        assert_eq!(soon(self.frames.message()).await.unwrap(), None);
        assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
    }
}

#[tokio::test]
async fn a_grpc_stream_has_the_same_frames() {
    let mut scene = Scene::start().await;
    let mut device = GrpcDevice::admitted(&mut scene).await;
    scene.say(vec![stored(device.session, 41, 40, b"\xff"), stored(device.session, 42, 41, b"two")]);
    for expected in [41, 42] {
        let next = device.next().await;
        assert!(matches!(&next, Some(server_frame::Frame::Message(m)) if m.seq == Some(expected)), "{next:?}");
    }
    device.ack(42);
    assert!(matches!(scene.told().await, ToCarrier::Ack { upto: 42, .. }));
    device.ack(43);
    device.assert_closed(&mut scene, 4000).await;
}

#[tokio::test]
async fn a_grpc_device_that_ends_its_side_gets_close_as_last_frame() {
    let mut scene = Scene::start().await;
    let mut device = GrpcDevice::admitted(&mut scene).await;
    // The old sender is dropped, which ends the device's side.
    device.say = mpsc::unbounded_channel().0;
    device.assert_closed(&mut scene, 1000).await;
}
