//! Callbacks per second of one thread against a sink on another thread, and the CPU time of each: signed calls of the worker, compared with
//! a bare loop over hyper-util's pooled client.
//!
//! `cargo run --release -p whimbrel-egress --example callbacks_throughput [seconds] [concurrency]`

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use whimbrel_egress::worker::{Worker, WorkerSettings};
use whimbrel_model::ports::{Call, CallOutcome, CallTarget, Callbacks};
use whimbrel_model::subscription::{Endpoint, Envelope, SigningSecret};
use whimbrel_model::{Headers, Record, Timestamp};

const PAYLOAD_BYTES: usize = 256;

fn main() {
    let argument = |index: usize, default: u64| {
        std::env::args().nth(index).map_or(default, |text| text.parse().expect("a number"))
    };
    let (seconds, concurrency) = (Duration::from_secs(argument(1, 3)), argument(2, 64) as usize);
    let address = sink();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for round in 1..=2 {
        let bare = runtime.block_on(measured(seconds, || bare(address, concurrency, seconds)));
        println!("round {round}: bare client     {bare}");
        for (name, envelope, secrets) in [
            ("unsigned", Envelope::Binary, 0),
            ("signed", Envelope::Binary, 1),
            ("structured", Envelope::Structured, 1),
            ("kmq", Envelope::Kmq, 0),
        ] {
            let target = target(address, envelope, secrets);
            let worker = runtime.block_on(measured(seconds, || calls(target, concurrency, seconds)));
            println!("round {round}: worker {name:<10} {worker}");
        }
    }
}

/// Runs `work` and formats its rate and CPU time.
async fn measured<F: Future<Output = u64>>(seconds: Duration, work: impl FnOnce() -> F) -> String {
    let before = thread_cpu();
    let count = work().await;
    let cpu_us = (thread_cpu() - before).as_micros() as f64 / count.max(1) as f64;
    format!("{:>8.0}/s  {cpu_us:>6.2} µs of CPU time each", count as f64 / seconds.as_secs_f64())
}

fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Answers every request with 200 and an empty body.
fn sink() -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
                    request.into_body().collect().await?;
                    Ok::<_, hyper::Error>(Response::new(Empty::<Bytes>::new()))
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
    });
    receiver.recv().unwrap()
}

async fn bare(address: SocketAddr, concurrency: usize, seconds: Duration) -> u64 {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let until = Instant::now() + seconds;
    let payload = Bytes::from(vec![b'x'; PAYLOAD_BYTES]);
    let loops = (0..concurrency).map(|_| async {
        let mut count = 0;
        while Instant::now() < until {
            let request = Request::post(format!("http://{address}/")).body(Full::new(payload.clone())).unwrap();
            let response = client.request(request).await.unwrap();
            response.into_body().collect().await.unwrap();
            count += 1;
        }
        count
    });
    join_all(loops).await.into_iter().sum()
}

async fn calls(target: Arc<CallTarget>, concurrency: usize, seconds: Duration) -> u64 {
    let worker = Worker::new(WorkerSettings::default()).unwrap();
    let until = Instant::now() + seconds;
    let mut headers = Headers::builder();
    headers.push("whimbrel-id", b"01999999-0000-8000-8000-000000000001").push("content-type", b"application/json");
    let record = Record {
        key: Some(Bytes::from_static(b"customer-17")),
        value: Bytes::from(vec![b'1'; PAYLOAD_BYTES]),
        headers: headers.take(),
        timestamp: Timestamp::from_millis(1_794_739_122_001),
    };
    let topic: Arc<str> = "orders".into();
    let loops = (0..concurrency).map(|_| async {
        let mut count = 0;
        while Instant::now() < until {
            let call = Call {
                target: Arc::clone(&target),
                topic: Arc::clone(&topic),
                partition: 3,
                offset: count,
                attempt: 1,
                id: "01999999-0000-8000-8000-000000000001".into(),
                published_at: record.timestamp,
                record: record.clone(),
                rule: None,
            };
            let called = worker.call(call).await;
            assert!(matches!(called.outcome, CallOutcome::Answered { status: 200, .. }), "{called:?}");
            count += 1;
        }
        count
    });
    join_all(loops).await.into_iter().sum()
}

fn target(address: SocketAddr, envelope: Envelope, secrets: usize) -> Arc<CallTarget> {
    let secret = SigningSecret { secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned(), until_ms: None };
    let url = Some(format!("http://{address}/hook"));
    Arc::new(CallTarget {
        subscription: "billing".to_owned(),
        endpoint: Endpoint { url, timeout_ms: 10_000, connect_timeout_ms: None, headers: Vec::new() },
        envelope,
        secrets: vec![secret; secrets],
        workers: None,
    })
}
