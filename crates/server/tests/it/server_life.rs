//! The life of a server: its answers, the state after a restart, and its shutdown.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use whimbrel_client::{Accepted, NewMessage, Published, ReadFrom};

use super::server::{PATIENCE, Server, converse, eventually};

fn published(accepted: Accepted) -> Published {
    match accepted {
        Accepted::Published(place) => place,
        Accepted::Held(held) => panic!("{held:?}"),
    }
}

pub fn get(server: &Server, path: &str) -> String {
    server.exchange(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
}

#[test]
fn the_example_commands_of_the_banner_work() {
    let server = Server::fresh(&[]);
    let line = server.banner.lines().find_map(|line| line.trim().strip_prefix("try")).unwrap();
    let tried = Command::new("sh").args(["-c", &format!("{} -sS", line.trim())]).output().unwrap();
    let answer: Published = serde_json::from_slice(&tried.stdout).expect("curl is needed for this test");
    assert_eq!((answer.topic.as_str(), answer.offset), ("greetings", 0));
}

#[test]
fn the_push_of_the_banner_reaches_the_device_of_the_banner() {
    let mut server = Server::fresh(&[]);
    server.read_banner_until("\n  keys ");
    let line = |name: &str| server.banner.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap().to_owned();
    let mut device = Command::new("sh");
    let mut device =
        device.args(["-c", &format!("exec {} -sS", line("a device").trim())]).stdout(Stdio::piped()).spawn();
    let device = device.as_mut().expect("curl is needed for this test");
    let mut frames = BufReader::new(device.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(frames.any(|line| line.contains("\"connected\"")));
    let pushed = Command::new("sh").args(["-c", &format!("{} -sS", line("a push").trim())]).output().unwrap();
    assert!(pushed.status.success(), "{pushed:?}");
    assert!(frames.any(|line| line.contains("\"payload\":\"hello\"")));
    device.kill().unwrap();
    device.wait().unwrap();
}

#[test]
fn health_and_metrics_and_the_page_are_served() {
    let server = Server::fresh(&[]);
    converse(async { server.client().publish("orders", &NewMessage::text("x")).await.unwrap() });
    eventually("it is ready", || get(&server, "/readyz").starts_with("HTTP/1.1 200"));
    for (path, word) in [
        ("/healthz", "ok"),
        ("/readyz", "{\"ready\":true}"),
        ("/metrics", "whimbrel_published_messages_total{topic=\"orders\"} 1"),
        ("/openapi.json", "\"openapi\""),
        ("/", "<html"),
        ("/", "<dt>Devices connected here</dt><dd>0</dd>"),
        ("/", "fresh as of 20"),
    ] {
        let answer = get(&server, path);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(word), "{path}: {answer}");
    }
}

#[test]
fn a_restart_keeps_published_messages() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let message = NewMessage::text("kept").key("k").header("color", "blue").id("my-own-id");
    let place = converse(async { published(server.client().publish("orders", &message).await.unwrap()) });
    assert!(server.end().success());

    let server = Server::start(folder.path(), &[]);
    converse(async {
        let client = server.client();
        let page =
            client.read("orders", &ReadFrom { partition: place.partition, ..ReadFrom::default() }).await.unwrap();
        let read = &page.messages[0];
        assert_eq!((read.offset, read.bytes(), read.key.as_deref()), (place.offset, Some(b"kept".into()), Some("k")));
        assert_eq!(read.headers["color"], "blue");
        assert_eq!(client.message("my-own-id").await.unwrap().message.offset, place.offset);
        // A repeat under the same id gets the first answer, also after a restart.
        assert_eq!(published(client.publish("orders", &message).await.unwrap()), place);
    });
}

/// Sends a request as a page's browser does, and returns the answer.
fn asked_by_page(server: &Server, method: &str, path: &str, origin: &str) -> String {
    let host = origin.split_once("://").map_or("x", |(_, host)| host);
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\nconnection: close\r\n");
    server.exchange(&format!("{head}content-type: text/plain\r\ncontent-length: 15\r\n\r\n{{\"payload\":\"x\"}}"))
}

const CHANGES: [(&str, &str); 5] = [
    ("POST", "/v1/topics/orders/messages"),
    ("POST", "/v1/users/alice/messages"),
    ("POST", "/v1/users/alice/kick"),
    ("DELETE", "/v1/users/alice/inbox"),
    ("POST", "/produce?format=json"),
];

#[test]
fn without_keys_a_foreign_page_cannot_change_anything() {
    let server = Server::fresh(&[]);
    for (method, path) in CHANGES {
        // The name of the second page resolves to this machine: its `Host` is the same.
        for origin in ["https://evil.example", "http://evil.example:7600", "null"] {
            let answer = asked_by_page(&server, method, path, origin);
            assert!(answer.starts_with("HTTP/1.1 403"), "{method} {path} of {origin}: {answer}");
            assert!(answer.contains("origin_not_allowed") && answer.contains("gateway.origins"), "{answer}");
        }
    }
    let answer = asked_by_page(&server, "GET", "/v1/topics", "null");
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("access-control"), "{answer}");
    let answer = asked_by_page(&server, "POST", "/v1/users/alice/messages", "http://localhost:8000");
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    assert!(!answer.contains("access-control"), "the answer is for pages of this server only: {answer}");
}

#[test]
fn without_keys_a_foreign_name_of_this_machine_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    // For the browser, such a page belongs to the server, so its requests have no origin.
    let ask = |server: &Server, host: &str| {
        server.exchange(&format!("GET /v1/users/alice/inbox HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"))
    };
    let server = Server::start(folder.path(), &[]);
    let answer = ask(&server, "evil.example:7600");
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("gateway.origins"), "{answer}");
    for host in ["localhost:7600", "127.0.0.1", "[::1]:7600", "whimbrel:7600", "box.local"] {
        assert!(ask(&server, host).starts_with("HTTP/1.1 200"), "{host}");
    }
    drop(server);
    let server = Server::start(folder.path(), &["--set", "gateway.origins=https://shop.example"]);
    assert!(ask(&server, "shop.example:7600").starts_with("HTTP/1.1 200"));
    drop(server);
    std::fs::write(folder.path().join("keys.toml"), KEYS).unwrap();
    let server = Server::start(folder.path(), &["--config", "keys.toml"]);
    assert!(ask(&server, "shop.example:7600").starts_with("HTTP/1.1 401"), "with keys the key decides");
}

#[test]
fn a_foreign_page_cannot_connect() {
    let server = Server::fresh(&[]);
    let ask = |headers: &str| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let path = "/v1/connect/sse?uid=alice&platform=web";
        write!(stream, "GET {path} HTTP/1.1\r\n{headers}\r\n\r\n").unwrap();
        let mut status = String::new();
        BufReader::new(stream).read_line(&mut status).unwrap();
        status
    };
    let address = server.address();
    for (headers, status) in [
        (format!("host: {address}\r\norigin: https://evil.example"), "403"),
        // An image of a page: the request has no origin.
        (format!("host: {address}\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors"), "403"),
        // A page whose name resolves to this machine reads from it without an origin.
        ("host: evil.example:7600".to_owned(), "401"),
        (format!("host: {address}"), "200"),
        (format!("host: {address}\r\nsec-fetch-site: none"), "200"),
        (format!("host: {address}\r\norigin: http://localhost:8000\r\nsec-fetch-site: cross-site"), "200"),
    ] {
        let answered = ask(&headers);
        assert!(answered.contains(status), "{headers}: {answered}");
    }
}

#[test]
fn a_permitted_page_may_push_and_with_keys_the_key_decides() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--set", "gateway.origins=null,https://shop.example"]);
    for (origin, status) in [("null", 202), ("https://shop.example", 202), ("http://localhost:8000", 403)] {
        let answer = asked_by_page(&server, "POST", "/v1/users/alice/messages", origin);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{origin}: {answer}");
    }
    drop(server);
    std::fs::write(folder.path().join("keys.toml"), KEYS).unwrap();
    let server = Server::start(folder.path(), &["--config", "keys.toml"]);
    let answer = asked_by_page(&server, "POST", "/v1/users/alice/messages", "https://shop.example");
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

const KEYS: &str = r#"
[[keys]]
name = "shop"
secret = "a-secret-of-twenty-characters"
scopes = ["push"]
"#;

/// A publish with half of its body sent, after the handler has started.
fn half_sent_publish(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head =
        "POST /v1/topics/orders/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\nexpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").unwrap();
    stream
}

#[test]
fn ctrl_c_finishes_requests_in_progress_and_exits_with_success() {
    let mut server = Server::fresh(&[]);
    let mut stream = half_sent_publish(&server);
    server.interrupt();
    eventually("refusing new connections", || TcpStream::connect(server.address()).is_err());
    assert!(server.is_running());
    stream.write_all(b"world").unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 201");
    assert!(server.wait().success());
}

#[test]
fn a_second_ctrl_c_exits_at_once() {
    let mut server = Server::fresh(&["--set", "shutdown_timeout=10m"]);
    let _stream = half_sent_publish(&server);
    server.interrupt();
    eventually("refusing new connections", || TcpStream::connect(server.address()).is_err());
    server.interrupt();
    assert_eq!(server.wait().code(), Some(130));
}

#[test]
fn an_open_tail_does_not_block_a_shutdown() {
    let server = Server::fresh(&["--set", "shutdown_timeout=10m"]);
    converse(async {
        let client = server.client();
        client.publish("orders", &NewMessage::text("x")).await.unwrap();
        let _tail = client.tail("orders", &whimbrel_client::TailFrom::default()).await.unwrap();
        assert!(server.end().success());
    });
}

#[test]
fn configured_keys_are_required() {
    let folder = tempfile::tempdir().unwrap();
    let keys =
        "[[keys]]\nname = \"shop\"\nsecret = \"0123456789abcdef\"\nscopes = [\"publish\"]\ntopics = [\"orders\"]\n";
    std::fs::write(folder.path().join("whimbrel.toml"), keys).unwrap();
    let server = Server::start(folder.path(), &[]);
    converse(async {
        let message = NewMessage::text("x");
        let stranger = server.client();
        let refused = stranger.publish("orders", &message).await.unwrap_err();
        assert!(
            matches!(&refused, whimbrel_client::ClientError::Problem(problem) if problem.status == 401),
            "{refused:?}"
        );
        let shop = server.client().with_api_key("0123456789abcdef").unwrap();
        shop.publish("orders", &message).await.unwrap();
        let refused = shop.publish("secrets", &message).await.unwrap_err();
        assert!(
            matches!(&refused, whimbrel_client::ClientError::Problem(problem) if problem.status == 403),
            "{refused:?}"
        );
    });
}
