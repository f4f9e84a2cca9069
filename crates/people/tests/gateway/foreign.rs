//! A third-party client, and a transport that is not a socket.

use futures_util::{SinkExt as _, StreamExt as _};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{Message, handshake::client::Request};
use whimbrel_api::protocol::{ClientFrame, ServerFrame, client_frame, server_frame};
use whimbrel_model::ports::ToCarrier;

use crate::scene::{Scene, soon, stored};

fn request(scene: &Scene, subprotocol: Option<&str>) -> Request {
    let mut request = format!("ws://{}/v1/connect", scene.address).into_client_request().unwrap();
    if let Some(subprotocol) = subprotocol {
        request.headers_mut().insert("sec-websocket-protocol", subprotocol.parse().unwrap());
    }
    request
}

async fn connect(scene: &Scene, subprotocol: Option<&str>) -> WebSocketStream<TcpStream> {
    let stream = TcpStream::connect(scene.address).await.unwrap();
    soon(tokio_tungstenite::client_async(request(scene, subprotocol), stream)).await.unwrap().0
}

fn hello() -> String {
    json!({"connect": {"uid": "u1", "platform": "web"}}).to_string()
}

async fn frame<S>(socket: &mut WebSocketStream<S>) -> Value
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let Some(Ok(Message::Text(text))) = soon(socket.next()).await else { panic!("no text") };
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn tungstenite_works_with_json_in_fragments_with_pings_between() {
    let mut scene = Scene::start().await;
    let mut socket = connect(&scene, Some("whimbrel.v1.json")).await;
    let hello = hello();
    let (first, second) = hello.split_at(20);
    let fragment =
        |text: &str, code, is_final| Message::Frame(Frame::message(text.to_owned(), OpCode::Data(code), is_final));
    socket.send(fragment(first, Data::Text, false)).await.unwrap();
    socket.send(Message::Ping(b"between".to_vec().into())).await.unwrap();
    socket.send(fragment(second, Data::Continue, true)).await.unwrap();
    let session = scene.admit_next(40).await;
    assert_eq!(soon(socket.next()).await.unwrap().unwrap(), Message::Pong(b"between".to_vec().into()));
    assert_eq!(frame(&mut socket).await["connected"]["head"], 42);
    for size in [1, 125, 126, 65_000, 70_000] {
        let seq = 41 + size as u64;
        scene.say(vec![stored(session, seq, 0, &vec![b'x'; size])]);
        assert_eq!(frame(&mut socket).await["message"]["payload"].as_str().unwrap().len(), size);
    }
    soon(socket.close(None)).await.unwrap();
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
    while let Some(Ok(_)) = soon(socket.next()).await {}
}

#[tokio::test]
async fn tungstenite_works_with_protobuf() {
    let mut scene = Scene::start().await;
    let mut socket = connect(&scene, Some("whimbrel.v1.proto")).await;
    let connect = client_frame::Connect { uid: Some("u1".into()), platform: Some("web".into()), ..Default::default() };
    let hello = ClientFrame { frame: Some(client_frame::Frame::Connect(connect)) };
    socket.send(Message::binary(hello.encode_to_vec())).await.unwrap();
    let session = scene.admit_next(40).await;
    scene.say(vec![stored(session, 41, 40, b"\xff\x00")]);
    let mut frames = Vec::new();
    while frames.len() < 2 {
        let Some(Ok(Message::Binary(bytes))) = soon(socket.next()).await else { panic!("no binary") };
        frames.push(ServerFrame::decode(bytes).unwrap().frame.unwrap());
    }
    assert!(matches!(&frames[0], server_frame::Frame::Connected(_)));
    assert!(
        matches!(&frames[1], server_frame::Frame::Message(m) if m.seq == Some(41) && &m.payload[..] == b"\xff\x00")
    );
    socket.send(Message::text("{}")).await.unwrap();
    let Some(Ok(Message::Close(Some(close)))) = soon(socket.next()).await else { panic!("not closed") };
    assert_eq!(u16::from(close.code), 4000);
}

#[tokio::test]
async fn a_stream_that_is_not_a_socket_runs_the_same_session() {
    let mut scene = Scene::start().await;
    let (ours, theirs) = tokio::io::duplex(256);
    let service = TowerToHyperService::new(scene.gateway.router());
    tokio::spawn(async move {
        let builder = auto::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection_with_upgrades(TokioIo::new(theirs), service).await;
    });
    let (mut socket, _) = soon(tokio_tungstenite::client_async(request(&scene, None), ours)).await.unwrap();
    // Without a peer address the device never counts as local.
    socket.send(Message::text(hello())).await.unwrap();
    let Some(Ok(Message::Close(Some(close)))) = soon(socket.next()).await else { panic!("not closed") };
    assert_eq!(u16::from(close.code), 4300);
    let _ = soon(socket.next()).await;
    drop(socket);
    while scene.gateway.connections() > 0 {
        tokio::task::yield_now().await;
    }
    let (_device, _) = scene.device("u2").await;
}
