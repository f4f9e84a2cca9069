//! Endpoints on loopback that answer with scripted bytes, even invalid ones, and record their requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use whimbrel_api::endpoint::AddressGuard;
use whimbrel_egress::worker::{Worker, WorkerSettings};
use whimbrel_model::ports::{Call, CallFailure, CallOutcome, CallTarget};
use whimbrel_model::subscription::{DeliveryRule, Endpoint, Envelope, OwnCallback};
use whimbrel_model::{Headers, Record, Timestamp};

/// A response without a body.
pub const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// The received requests as text, and the number of connections.
#[derive(Clone, Default)]
pub struct Received {
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<usize>>,
}

impl Received {
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }

    /// Reads one request with its body; `None` at the end of the connection.
    pub async fn request(&self, stream: &mut TcpStream) -> Option<String> {
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
                });
                if body.len() >= length.unwrap_or(0) {
                    self.requests.lock().unwrap().push(text.clone());
                    return Some(text);
                }
            }
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        }
    }
}

/// Starts an endpoint that serves each connection with `manner`.
pub async fn endpoint<T>(manner: impl Fn(TcpStream, Received) -> T + Send + 'static) -> (SocketAddr, Received)
where
    T: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heard = Received::default();
    let hearing = heard.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            *hearing.connections.lock().unwrap() += 1;
            tokio::spawn(manner(stream, hearing.clone()));
        }
    });
    (address, heard)
}

/// Answers every request with the same bytes.
pub async fn answering(answer: &'static str) -> (SocketAddr, Received) {
    endpoint(move |mut stream, heard| async move {
        while heard.request(&mut stream).await.is_some() {
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await
}

/// Reads one request, and never answers it.
pub async fn hanging() -> (SocketAddr, Received) {
    endpoint(|mut stream, heard| async move {
        heard.request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await
}

/// Reads one request of each connection, and writes these pieces with a pause after each, until the client closes the connection. Closes
/// the connection after the last piece.
pub async fn writing<P>(pieces: P, pause: Duration) -> (SocketAddr, Received)
where
    P: IntoIterator<Item = &'static [u8], IntoIter: Send> + Clone + Send + 'static,
{
    endpoint(move |mut stream, heard| {
        let pieces = pieces.clone();
        async move {
            heard.request(&mut stream).await;
            for piece in pieces {
                if stream.write_all(piece).await.is_err() {
                    return;
                }
                match pause {
                    Duration::ZERO => tokio::task::yield_now().await,
                    pause => tokio::time::sleep(pause).await,
                }
            }
        }
    })
    .await
}

/// A worker with the default settings.
pub fn worker() -> Worker {
    Worker::new(WorkerSettings::default()).unwrap()
}

/// A worker that may not dial these networks.
pub fn worker_without(networks: &[&str]) -> Worker {
    let denied: Vec<_> = networks.iter().map(|network| (*network).to_owned()).collect();
    let guard = AddressGuard::new(&[], &denied).unwrap();
    Worker::new(WorkerSettings { guard, ..WorkerSettings::default() }).unwrap()
}

pub fn target(url: Option<String>, timeout: Duration) -> CallTarget {
    let timeout_ms = timeout.as_millis() as u64;
    CallTarget {
        subscription: "billing".to_owned(),
        endpoint: Endpoint { url, timeout_ms, connect_timeout_ms: None, headers: Vec::new() },
        envelope: Envelope::Binary,
        secrets: Vec::new(),
        workers: None,
    }
}

pub fn call(target: &Arc<CallTarget>) -> Call {
    Call {
        target: Arc::clone(target),
        topic: "orders".into(),
        partition: 0,
        offset: 5,
        attempt: 1,
        id: "m-5".into(),
        published_at: Timestamp::from_millis(1_000),
        record: Record {
            key: None,
            value: Bytes::from_static(b"hello"),
            headers: Headers::EMPTY,
            timestamp: Timestamp::from_millis(1_000),
        },
        rule: None,
    }
}

/// The target of calls to this address with this timeout.
pub fn target_at(address: SocketAddr, timeout: Duration) -> CallTarget {
    target(Some(format!("http://{address}/hook")), timeout)
}

/// A call to this address with this timeout.
pub fn call_to(address: SocketAddr, timeout: Duration) -> Call {
    call(&Arc::new(target_at(address, timeout)))
}

/// A call whose message names its own callback.
pub fn own_call(method: &str, url: String, payload: &'static [u8]) -> Call {
    let callback = OwnCallback { method: method.to_owned(), url };
    let rule = DeliveryRule { callback: Some(callback), ..DeliveryRule::default() };
    let mut call = call(&Arc::new(target(None, Duration::from_secs(5))));
    call.record.value = Bytes::from_static(payload);
    Call { rule: Some(Arc::new(rule)), ..call }
}

pub fn status_of(outcome: &CallOutcome) -> u16 {
    match outcome {
        CallOutcome::Answered { status, .. } => *status,
        failed => panic!("{failed:?}"),
    }
}

pub fn failure_of(outcome: &CallOutcome) -> CallFailure {
    match outcome {
        CallOutcome::Failed { why, .. } => *why,
        other => panic!("{other:?}"),
    }
}
