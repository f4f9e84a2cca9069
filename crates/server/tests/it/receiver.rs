//! An endpoint under test: it records every callback, and answers as the test defines.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use super::server::eventually;

#[derive(Debug, Clone)]
pub struct Got {
    pub at: Instant,
    pub method: Method,
    /// With its query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Got {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn attempt(&self) -> u32 {
        self.header("whimbrel-attempt").parse().unwrap()
    }

    pub fn key(&self) -> &str {
        self.header("ce-partitionkey")
    }
}

#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: &'static str,
    pub after: Duration,
}

pub fn reply(status: u16) -> Reply {
    Reply { status, ..Reply::default() }
}

type Answer = dyn Fn(&Got) -> Reply + Send + Sync;

/// An endpoint on a free port, stopped at the end of the test.
pub struct Receiver {
    address: String,
    got: Arc<Mutex<Vec<Got>>>,
    answer: Arc<Mutex<Arc<Answer>>>,
    _end: oneshot::Sender<()>,
}

impl Receiver {
    /// Answers everything with 200.
    pub fn willing() -> Self {
        Self::answering(|_| reply(200))
    }

    /// Answers every callback like a successful callback of soraka.
    pub fn confirming() -> Self {
        Self::answering(|_| Reply { body: r#"{"ec":200,"em":"success","result":true}"#, ..reply(200) })
    }

    pub fn answering(answer: impl Fn(&Got) -> Reply + Send + Sync + 'static) -> Self {
        let (end, ended) = oneshot::channel();
        let got = Arc::new(Mutex::new(Vec::new()));
        let answer: Arc<Mutex<Arc<Answer>>> = Arc::new(Mutex::new(Arc::new(answer)));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (kept, answered) = (Arc::clone(&got), Arc::clone(&answer));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, kept, answered) => {}
                    _ = ended => {}
                }
            });
        });
        Self { address, got, answer, _end: end }
    }

    /// Replaces the answer for further callbacks.
    pub fn answer_with(&self, answer: impl Fn(&Got) -> Reply + Send + Sync + 'static) {
        *self.answer.lock().unwrap() = Arc::new(answer);
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn all(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.got.lock().unwrap().len()
    }

    pub fn wait_for(&self, count: usize) -> Vec<Got> {
        eventually(&format!("callback {count} of {}", self.address), || self.count() >= count);
        self.all()
    }

    pub fn forget(&self) {
        self.got.lock().unwrap().clear();
    }
}

async fn serve(listener: std::net::TcpListener, got: Arc<Mutex<Vec<Got>>>, answer: Arc<Mutex<Arc<Answer>>>) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (got, answer) = (Arc::clone(&got), Arc::clone(&answer));
        tokio::spawn(async move {
            let service = service_fn(|request| take(Arc::clone(&got), Arc::clone(&answer), request));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn take(
    got: Arc<Mutex<Vec<Got>>>,
    answer: Arc<Mutex<Arc<Answer>>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let path = head.uri.path_and_query().map_or(String::new(), |path| path.to_string());
    let one = Got { at: Instant::now(), method: head.method, path, headers: head.headers, body };
    let answer = Arc::clone(&answer.lock().unwrap());
    let reply = answer(&one);
    got.lock().unwrap().push(one);
    tokio::time::sleep(reply.after).await;
    let mut response = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    Ok(response.body(Full::new(Bytes::from_static(reply.body.as_bytes()))).unwrap())
}
