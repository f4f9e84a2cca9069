//! The reference of deliveries: a loop of calls with hyper-util's client on one thread.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::{CONCURRENCY, PAYLOAD_BYTES};
use crate::BenchError;

/// Calls per second, with the concurrency of a subscription.
pub fn calls_per_second(sink: SocketAddr, duration: Duration) -> Result<f64, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client: Client<_, Full<Bytes>> =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(CONCURRENCY as usize).build(connector);
        // The first tenth opens the connections and does not count.
        let began = Instant::now();
        let from = began + duration / 10;
        let until = from + duration;
        let loops: Vec<_> = (0..CONCURRENCY)
            .map(|_| tokio::spawn(call_on(client.clone(), format!("http://{sink}/bare"), from, until)))
            .collect();
        let mut calls = 0;
        for one in loops {
            calls += one.await.map_err(|_| BenchError::new("a bare loop ended early"))??;
        }
        Ok(calls as f64 / duration.as_secs_f64())
    })
}

async fn call_on(
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    from: Instant,
    until: Instant,
) -> Result<u64, BenchError> {
    let broken = |error: &dyn std::error::Error| BenchError::new(format!("a bare call failed: {error}"));
    let uri: http::Uri = url.parse().map_err(|error: http::uri::InvalidUri| broken(&error))?;
    let body = Bytes::from(vec![b'x'; PAYLOAD_BYTES]);
    let mut calls = 0;
    loop {
        let request = Request::post(uri.clone())
            .header("content-type", "application/octet-stream")
            .body(Full::new(body.clone()))
            .map_err(|error| broken(&error))?;
        let response = client.request(request).await.map_err(|error| broken(&error))?;
        response.into_body().collect().await.map_err(|error| broken(&error))?;
        let now = Instant::now();
        if now >= until {
            return Ok(calls);
        }
        calls += u64::from(now >= from);
    }
}
