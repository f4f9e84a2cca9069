//! The sink: an HTTP server that answers callbacks and counts them by path. `whimbrel bench sink` runs it in a process of its own.
//!
//! The path determines the behaviour: `/hang…` never answers, `/bad…` fails the key `k0`, `/stamp…` records the time since the publish time
//! in the payload, and any other path answers at once. `GET /figures?path=…` returns the counts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Write as _;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::task::LocalSet;

use super::super::histogram::Histogram;
use crate::BenchError;

/// The key that a path beginning with `/bad` fails.
const BAD_KEY: &str = "k0";
const KEY_HEADER: &str = "ce-partitionkey";
/// Time for which a hanging path keeps a request, longer than any timeout of the benchmark.
const HANG: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct SinkFigures {
    /// Callbacks that were answered with success.
    pub answered: u64,
    /// Those of them with a key other than the failing one.
    pub of_other_keys: u64,
    pub failed: u64,
    /// Time since the sink started, by its own clock.
    pub at: Duration,
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
}

#[derive(Default)]
struct SinkCounts {
    figures: SinkFigures,
    latency: Histogram,
}

struct Sink {
    began: Instant,
    paths: RefCell<HashMap<String, SinkCounts>>,
}

/// Serves until the process exits. Prints its address first.
pub fn run() -> Result<ExitCode, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{}", listener.local_addr()?)?;
        stdout.flush()?;
        let sink = Rc::new(Sink { began: Instant::now(), paths: RefCell::default() });
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let _ = stream.set_nodelay(true);
            let sink = Rc::clone(&sink);
            tokio::task::spawn_local(async move {
                let service = service_fn(|request| answer(Rc::clone(&sink), request));
                // A broken connection is reported by the caller.
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}

async fn answer(sink: Rc<Sink>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.method() == Method::GET && request.uri().path() == "/figures" {
        let path = request.uri().query().and_then(|query| query.strip_prefix("path=")).unwrap_or_default();
        let figures = serde_json::to_vec(&sink.figures(path)).unwrap_or_default();
        return Ok(Response::new(Full::new(figures.into())));
    }
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return Ok(Response::new(Full::default())) };
    let path = head.uri.path();
    if path.starts_with("/hang") {
        tokio::time::sleep(HANG).await;
    }
    let is_bad_key = head.headers.get(KEY_HEADER).is_some_and(|key| key.as_bytes() == BAD_KEY.as_bytes());
    let fails = is_bad_key && path.starts_with("/bad");
    let took = path.starts_with("/stamp").then(|| since_published(&body.to_bytes())).flatten();
    sink.count(path, fails, is_bad_key, took);
    let mut response = Response::new(Full::default());
    *response.status_mut() = if fails { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
    Ok(response)
}

impl Sink {
    fn count(&self, path: &str, fails: bool, is_bad_key: bool, took: Option<Duration>) {
        let mut paths = self.paths.borrow_mut();
        if !paths.contains_key(path) {
            paths.insert(path.to_owned(), SinkCounts::default());
        }
        let Some(counts) = paths.get_mut(path) else { return };
        counts.figures.failed += u64::from(fails);
        counts.figures.answered += u64::from(!fails);
        counts.figures.of_other_keys += u64::from(!fails && !is_bad_key);
        if let Some(took) = took {
            counts.latency.record(took);
        }
    }

    fn figures(&self, path: &str) -> SinkFigures {
        let paths = self.paths.borrow();
        let at = self.began.elapsed();
        let Some(counts) = paths.get(path) else { return SinkFigures { at, ..SinkFigures::default() } };
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| counts.latency.quantile(share));
        SinkFigures { at, p50, p99, max, ..counts.figures }
    }
}

/// Time since the publish time in the payload, which begins with nanoseconds since 1970.
fn since_published(payload: &[u8]) -> Option<Duration> {
    let digits = payload.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let nanos: u64 = std::str::from_utf8(&payload[..digits]).ok()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.saturating_sub(Duration::from_nanos(nanos)))
}

/// A payload for [`since_published`], filled up to this size.
pub fn stamped_payload(bytes: usize) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut payload = format!("{} ", now.as_nanos()).into_bytes();
    payload.resize(bytes.max(payload.len()), b'x');
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_it_was_written() {
        let payload = stamped_payload(256);
        assert_eq!(payload.len(), 256);
        assert!(since_published(&payload).unwrap() < Duration::from_secs(60));
        assert_eq!(since_published(b"xxx"), None);
    }
}
