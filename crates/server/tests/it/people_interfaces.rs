//! Other interfaces of an inbox: the event stream, gRPC and the command line; each property is a function of a site.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use whimbrel_api::protocol::gateway_client::GatewayClient;
use whimbrel_api::protocol::{ClientFrame, client_frame, server_frame};
use whimbrel_client::NewPush;

use super::deliver::Site;
use super::device::{ConnectFrame, Device};
use super::server::{PATIENCE, converse, whimbrel};

pub fn the_command_line_is_a_device_too(site: &Site) {
    let command = |arguments: &[&str]| site.command(arguments);
    let json_of = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    let pushed = json_of(&command(&["push", "cli-user", "hello", "--content-type", "text/plain", "--json"]));
    site.stores("cli-user", 1);
    let mut terminal = whimbrel(site.server.folder())
        .args(["connect", "--uid", "cli-user", "--device", "tty", "--json", "--limit", "2"])
        .args(["--server", &site.server.url])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(terminal.stdout.take().unwrap()).lines().map(|line| json_of(&line.unwrap()));
    assert_eq!(lines.next().unwrap()["connected"]["resumed"], json!(false));
    let message = lines.next().unwrap();
    assert_eq!(message["message"]["id"], pushed["id"], "{message}");
    assert_eq!(message["message"]["content_type"], json!("text/plain"), "{message}");
    site.is_online("cli-user", true);
    let presence = json_of(&command(&["presence", "cli-user", "--json"]));
    assert_eq!(presence["sessions"][0]["device"], json!("tty"));
    command(&["push", "cli-user", "--payload", "again", "--ephemeral"]);
    assert_eq!(lines.next().unwrap()["message"]["payload"], json!("again"));
    assert!(terminal.wait().unwrap().success());
    // It has acknowledged the messages that it showed.
    site.stores("cli-user", 0);
    let mut device = Device::connect(&site.server, &ConnectFrame::of("cli-user", "cli"));
    command(&["kick", "cli-user", "--reason", "bye"]);
    assert_eq!(device.frame("kick")["reason"], json!("bye"));
    assert!(command(&["platform", "set", "tty", "--sessions", "3", "--json"]).contains("\"many\":3"));
    assert!(command(&["platform", "list"]).contains("tty"));
    command(&["platform", "delete", "tty"]);
    assert!(!command(&["platform", "list"]).contains("tty"));
    assert!(command(&["inbox", "cli-user"]).contains("nothing is stored"));
}

pub fn the_command_line_shows_devices_without_complete_tokens(site: &Site) {
    let command = |arguments: &[&str]| site.command(arguments);
    assert!(command(&["device", "list", "owner"]).contains("no devices"));
    for (device, token) in [("phone", "a-long-token-of-some-phone"), ("watch", "short")] {
        command(&["device", "put", "owner", device, "--platform", "android", "--provider", "fcm", "--token", token]);
        for shown in [command(&["device", "list", "owner"]), command(&["device", "show", "owner", device, "--json"])] {
            assert!(shown.contains(device) && shown.contains("android") && !shown.contains(token), "{shown}");
        }
    }
    assert_eq!(command(&["device", "list", "owner", "--json"]).lines().count(), 2);
    command(&["device", "delete", "owner", "watch"]);
    assert!(!command(&["device", "list", "owner"]).contains("watch"));
}

pub fn an_event_stream_is_a_device_too(site: &Site) {
    site.push_texts("streamed", ["stored"]);
    site.stores("streamed", 1);
    let mut stream = TcpStream::connect(site.server.address()).unwrap();
    let path = "/v1/connect/sse?uid=streamed&platform=web&device=d";
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).unwrap();
    let mut frames = BufReader::new(stream).lines().map_while(Result::ok).filter_map(|line| {
        let data = line.strip_prefix("data:")?;
        serde_json::from_str::<Value>(data.trim()).ok()
    });
    let connected = frames.next().unwrap();
    let session = connected["connected"]["session"].as_str().unwrap().to_owned();
    let message = frames.next().unwrap();
    assert_eq!(message["message"]["payload"], json!("stored"), "{message}");
    let seq = message["message"]["seq"].as_u64().unwrap();
    let body = json!({ "session": session, "ack": seq, "uid": "streamed" }).to_string();
    let head = format!("POST /v1/connect/ack HTTP/1.0\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    let answer = site.server.exchange(&format!("{head}{body}"));
    assert!(answer.contains(" 204 "), "{answer}");
    site.stores("streamed", 0);
    site.push_texts("streamed", ["live"]);
    assert_eq!(frames.next().unwrap()["message"]["payload"], json!("live"));
}

/// The behaviour of an `EventSource`: it requests the same address again, with the last id that it received.
struct EventSource<'a> {
    site: &'a Site,
    path: &'a str,
    last_id: String,
    lines: Box<dyn Iterator<Item = String>>,
}

impl<'a> EventSource<'a> {
    fn open(site: &'a Site, path: &'a str, last_id: &str) -> Self {
        let mut stream = TcpStream::connect(site.server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let header = if last_id.is_empty() { String::new() } else { format!("last-event-id: {last_id}\r\n") };
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n{header}\r\n").as_bytes()).unwrap();
        let lines = Box::new(BufReader::new(stream).lines().map_while(Result::ok));
        Self { site, path, last_id: last_id.to_owned(), lines }
    }

    fn reconnect(self) -> Self {
        let (site, path, last_id) = (self.site, self.path, self.last_id.clone());
        drop(self);
        Self::open(site, path, &last_id)
    }

    fn frame(&mut self) -> Value {
        loop {
            let line = self.lines.next().expect("the stream ended");
            if let Some(id) = line.strip_prefix("id: ") {
                self.last_id = id.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }

    fn payloads(&mut self, count: usize) -> Vec<String> {
        let mut payload = || self.frame()["message"]["payload"].as_str().unwrap().to_owned();
        (0..count).map(|_| payload()).collect()
    }
}

pub fn a_browser_that_reconnects_an_event_stream_gets_neither_a_gap_nor_a_repeat(site: &Site) {
    let path = "/v1/connect/sse?uid=reconnecting&platform=web&device=d";
    let mut browser = EventSource::open(site, path, "");
    assert_eq!(browser.frame()["connected"]["resumed"], json!(false));
    // The stream breaks before the server sends anything, and resumes all the same.
    let mut browser = browser.reconnect();
    assert_eq!(browser.frame()["connected"]["resumed"], json!(true));
    site.push_texts("reconnecting", ["one", "two", "three"]);
    assert_eq!(browser.payloads(2), ["one", "two"]);
    let mut browser = browser.reconnect();
    let connected = browser.frame();
    assert_eq!(connected["connected"]["resumed"], json!(true), "{connected}");
    site.push_texts("reconnecting", ["four"]);
    assert_eq!(browser.payloads(2), ["three", "four"]);
}

/// Sends a request as the browser of that page, and reads the head of the answer.
fn asked_by_page(site: &Site, origin: &str, request: &str, body: &str) -> (String, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(site.server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
    let headers = if headers.is_empty() { String::new() } else { format!("{headers}\r\n") };
    let length = body.len();
    write!(stream, "{line} HTTP/1.1\r\nhost: {}\r\norigin: {origin}\r\n", site.server.address()).unwrap();
    write!(stream, "{headers}content-length: {length}\r\n\r\n{body}").unwrap();
    let (mut reader, mut head) = (BufReader::new(stream), String::new());
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    (head, reader)
}

pub fn a_permitted_page_of_another_origin_streams_and_acknowledges(site: &Site) {
    let (near, elsewhere) = ("http://localhost:8000", "https://evil.example");
    let may_read = format!("access-control-allow-origin: {near}\r\n");
    let stream = "/v1/connect/sse?uid=page&platform=web";
    for (path, method) in [(stream, "GET"), ("/v1/connect/ack", "POST")] {
        let ahead = format!("OPTIONS {path}\naccess-control-request-method: {method}");
        let (head, _) = asked_by_page(site, near, &ahead, "");
        assert!(head.starts_with("HTTP/1.1 204") && head.contains(&may_read), "{head}");
        assert!(head.contains(&format!("access-control-allow-methods: {method}\r\n")), "{head}");
        for request in [ahead, format!("{method} {path}")] {
            let (head, _) = asked_by_page(site, elsewhere, &request, "");
            assert!(head.starts_with("HTTP/1.1 403") && !head.contains("access-control"), "{request}: {head}");
        }
    }
    site.push_texts("page", ["stored"]);
    let (head, events) = asked_by_page(site, near, &format!("GET {stream}"), "");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains(&may_read) && head.contains("vary: origin"), "{head}");
    let mut frames = events.lines().map_while(Result::ok).filter_map(|line| {
        let data = line.strip_prefix("data:")?;
        serde_json::from_str::<Value>(data.trim()).ok()
    });
    let session = frames.next().unwrap()["connected"]["session"].clone();
    let seq = frames.next().unwrap()["message"]["seq"].clone();
    let body = json!({ "session": session, "ack": seq, "uid": "page" }).to_string();
    let (head, _) = asked_by_page(site, near, "POST /v1/connect/ack\ncontent-type: application/json", &body);
    assert!(head.starts_with("HTTP/1.1 204") && head.contains(&may_read), "{head}");
    site.stores("page", 0);
}

pub fn an_unknown_event_id_is_not_resumed_and_the_reason_is_reported(site: &Site) {
    site.push_texts("strange-id", ["kept"]);
    for id in ["17", "another:17", "nonsense"] {
        let mut browser = EventSource::open(site, "/v1/connect/sse?uid=strange-id&platform=web", id);
        let connected = browser.frame();
        assert_eq!(connected["connected"]["resumed"], json!(false), "{connected}");
        assert_eq!(connected["connected"]["why"], json!("other_epoch"), "{connected}");
        assert_eq!(browser.payloads(1), ["kept"], "{id}");
    }
}

pub fn grpc_is_a_device_too(site: &Site) {
    let url = site.server.url.clone();
    site.push_texts("over-grpc", ["stored"]);
    converse(async {
        let channel = tonic::transport::Endpoint::new(url).unwrap().connect().await.unwrap();
        let (says, said) = tokio::sync::mpsc::unbounded_channel::<ClientFrame>();
        let outgoing =
            futures_util::stream::unfold(said, |mut said| async { said.recv().await.map(|frame| (frame, said)) });
        let say = |frame: client_frame::Frame| says.send(ClientFrame { frame: Some(frame) }).unwrap();
        say(client_frame::Frame::Connect(client_frame::Connect {
            uid: Some("over-grpc".into()),
            platform: Some("web".into()),
            ..client_frame::Connect::default()
        }));
        let mut frames = GatewayClient::new(channel).connect(outgoing).await.unwrap().into_inner();
        let first = frames.message().await.unwrap().unwrap().frame;
        assert!(matches!(first, Some(server_frame::Frame::Connected(_))), "{first:?}");
        let Some(server_frame::Frame::Message(message)) = frames.message().await.unwrap().unwrap().frame else {
            panic!("expected a message")
        };
        assert_eq!(&message.payload[..], b"stored");
        say(client_frame::Frame::Ack(message.seq.unwrap()));
        site.client().push("over-grpc", &NewPush::new(vec![0, 255])).await.unwrap();
        let Some(server_frame::Frame::Message(message)) = frames.message().await.unwrap().unwrap().frame else {
            panic!("expected a message")
        };
        assert_eq!(&message.payload[..], [0, 255]);
        say(client_frame::Frame::Ack(message.seq.unwrap()));
        // The stream ends with this call, so the acknowledgements must arrive before.
        let until = tokio::time::Instant::now() + PATIENCE;
        while !site.client().inbox("over-grpc", None).await.unwrap().messages.is_empty() {
            assert!(tokio::time::Instant::now() < until, "the acknowledgements did not arrive");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}
