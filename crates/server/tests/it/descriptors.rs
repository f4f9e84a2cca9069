//! The real binary with few file descriptors: connections wait, and the log keeps the descriptors that it needs.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use whimbrel_client::NewMessage;

use super::server::{PATIENCE, Server, converse, eventually, read_all};

/// More connections than the server may have open.
const CONNECTIONS: usize = 700;
const DESCRIPTORS: u64 = 500;
/// Connections that are closed and replaced while others wait.
const REPLACED: usize = 50;
/// Long enough for many checkpoints.
const PUBLISHING: Duration = Duration::from_secs(3);

/// A connection that stays open.
struct Connection(TcpStream);

impl Connection {
    fn open(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Sends a request and returns the head and body of the answer.
    fn ask(&mut self, method: &str, path: &str, body: &str) -> String {
        let length = body.len();
        write!(self.0, "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = Vec::new();
        loop {
            let mut byte = [0];
            assert_eq!(self.0.read(&mut byte).unwrap(), 1, "the server closed the connection");
            answer.push(byte[0]);
            let text = String::from_utf8_lossy(&answer).to_lowercase();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
            if length.is_some_and(|length| body.len() >= length.parse().unwrap()) {
                return text;
            }
        }
    }
}

#[test]
fn few_descriptors_do_not_stop_publishes_while_many_connections_are_idle() {
    let folder = tempfile::tempdir().unwrap();
    // Many new segments, so that each checkpoint opens files.
    let settings = ["--set", "log.checkpoint_interval=100ms", "--set", "log.segment_bytes=65536"];
    let server = Server::start_limited(folder.path(), &settings, DESCRIPTORS, DESCRIPTORS);
    let mut connection = Connection::open(&server);
    let payload = "x".repeat(2000);
    let mut publish = || {
        let answer = connection.ask("POST", "/v1/topics/orders/messages", &payload);
        assert!(answer.starts_with("http/1.1 201"), "{answer}");
    };
    publish();
    let idle: Vec<TcpStream> = (0..CONNECTIONS).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let (began, mut published) = (Instant::now(), 1);
    while began.elapsed() < PUBLISHING {
        publish();
        published += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    let ready = connection.ask("GET", "/readyz", "");
    assert!(ready.starts_with("http/1.1 200"), "{ready}");
    drop(idle);
    let client = server.client();
    converse(client.publish("orders", &NewMessage::text("from another connection"))).unwrap();
    let mut stored = 0;
    for partition in 0..converse(client.topic("orders")).unwrap().partitions {
        stored += converse(read_all(&client, "orders", partition, 0)).0.len();
    }
    assert_eq!(stored, published + 1);
    eventually("the shortage is reported", || {
        let (events, _) = converse(read_all(&client, "_events", 0, 0));
        let texts = events.iter().map(|event| String::from_utf8(event.bytes().unwrap()).unwrap());
        texts.into_iter().any(|text| text.contains("\"descriptors_short\"") && text.contains(&DESCRIPTORS.to_string()))
    });
}

#[test]
fn connections_that_replace_closed_ones_leave_the_reserve_free() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_limited(folder.path(), &[], DESCRIPTORS, DESCRIPTORS);
    let connect = || TcpStream::connect(server.address()).unwrap();
    let mut idle: VecDeque<TcpStream> = (0..CONNECTIONS).map(|_| connect()).collect();
    let count = || std::fs::read_dir(format!("/proc/{}/fd", server.process_id())).unwrap().count();
    // Half of a small limit is reserved.
    let unreserved = usize::try_from(DESCRIPTORS / 2).unwrap();
    eventually("the connections have all descriptors but the reserve", || count() >= unreserved);
    for _ in 0..REPLACED {
        drop(idle.pop_front());
        idle.push_back(connect());
        // The server looks for room every 50 ms.
        std::thread::sleep(Duration::from_millis(60));
    }
    // One connection waits, and the server opens files of its own.
    assert!(count() <= unreserved + REPLACED / 2, "{} descriptors are in use", count());
}

#[test]
fn the_soft_limit_of_descriptors_is_raised_to_the_hard_one() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_limited(folder.path(), &[], 200, 900);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.process_id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("900"), "{line}");
}
