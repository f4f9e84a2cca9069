//! Listeners: one task accepts connections and distributes them in turn to worker threads, each with a runtime of its own.
//!
//! Why not one runtime over several threads: a publish waits for the disk, and its group wakes it when it is durable. In a shared runtime
//! that wake-up moves between threads, with a lock and often a second wake-up. Here a connection, its requests and their wake-ups stay on
//! one thread. Why not SO_REUSEPORT: the kernel distributes by hash. With tens of connections, as services have, one worker easily gets
//! twice the work of another.
//!
//! Bounds: `connections_max` connections (further ones wait in the kernel's queue; so do those without a free file descriptor), a timeout
//! for a request's headers, a timeout for draining, a timeout and bytes for discarding the body of a rejected request.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use futures_util::TryFutureExt as _;
use futures_util::future::{Either, ready};
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use whimbrel_people::linger::{LingerLimits, LingeringStream, Unread};

use super::descriptors::Descriptors;
use super::guard::{Guard, GuardDecision};
use super::request_check;

/// Connections that the kernel queues until they are accepted.
const BACKLOG: u32 = 1024;
/// Delay before the next accept after one failed for lack of file descriptors or memory.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Concurrent requests on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// The HTTP library parses this many headers beyond the limit for a request. Up to there the server answers 431 with a problem; beyond, the
/// library answers 431 without a body. While it parses a request, the library allocates 64 bytes for each header that it may parse.
const HEADERS_PARSED_BEYOND: usize = 156;
/// The first bytes of an HTTP/2 connection.
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Delay before a connection with an incomplete preface of HTTP/2 is checked again.
const PEEK_PAUSE: Duration = Duration::from_millis(10);
/// Milliseconds for which the kernel retransmits data that a peer does not acknowledge.
#[cfg(target_os = "linux")]
const UNTAKEN_MAX_MS: u32 = 60_000;
/// Interval of pings on a silent HTTP/2 connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
pub struct ListenSettings {
    pub workers: usize,
    pub connections_max: usize,
    pub header_timeout: Duration,
    pub shutdown_timeout: Duration,
    pub linger: LingerLimits,
    /// Maximum number of headers of an HTTP/1.1 request; one with more is answered 431.
    pub headers_max: usize,
}

/// A connection for a worker. The permit counts it against `connections_max`.
type AcceptedConnection = (std::net::TcpStream, OwnedSemaphorePermit);

/// Binds the address. From here on connections queue; none is served before [`serve`].
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart must not wait until the kernel removes the closed connections of the last run.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `shutdown`, then drains requests for at most `shutdown_timeout`. Returns when all workers have ended.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    guard: Guard,
    settings: ListenSettings,
    descriptors: Arc<Descriptors>,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let mut workers = Vec::with_capacity(settings.workers);
    let mut ended = Vec::with_capacity(settings.workers);
    for number in 0..settings.workers {
        // Unbounded: every entry holds one of the permits, which are bounded.
        let (deal, dealt) = mpsc::unbounded_channel();
        let (end, has_ended) = tokio::sync::oneshot::channel();
        let (router, guard, shutdown) = (router.clone(), guard.clone(), shutdown.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
            runtime.block_on(work(dealt, router, guard, settings, shutdown));
            // The draining timeout has passed for the remaining requests.
            runtime.shutdown_background();
            let _ = end.send(());
        })?;
        workers.push(deal);
        ended.push(has_ended);
    }
    let places = ConnectionLimits { connections: Arc::new(Semaphore::new(settings.connections_max)), descriptors };
    deal_connections(&listener, &workers, &places, &shutdown).await;
    // From here on the kernel refuses connections, so that a client retries elsewhere at once.
    drop(listener);
    drop(workers);
    for worker in ended {
        let _ = worker.await;
    }
    Ok(())
}

async fn deal_connections(
    listener: &TcpListener,
    workers: &[mpsc::UnboundedSender<AcceptedConnection>],
    places: &ConnectionLimits,
    shutdown: &CancellationToken,
) {
    let mut turns = workers.iter().cycle();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return,
            accepted = accept(listener, places) => accepted,
        };
        match accepted {
            Ok(dealt) => {
                let Some(worker) = turns.next() else { return };
                // The send fails only if the worker has panicked. Its connection is closed; other workers continue.
                let _ = worker.send(dealt);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}

struct ConnectionLimits {
    connections: Arc<Semaphore>,
    descriptors: Arc<Descriptors>,
}

async fn accept(listener: &TcpListener, places: &ConnectionLimits) -> io::Result<AcceptedConnection> {
    let place = Arc::clone(&places.connections).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    let stream = places.descriptors.wait_for_room(stream.into_std()?).await;
    Ok((stream, place))
}

async fn work(
    mut dealt: mpsc::UnboundedReceiver<AcceptedConnection>,
    router: Router,
    guard: Guard,
    settings: ListenSettings,
    shutdown: CancellationToken,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(settings.header_timeout);
    builder.http1().max_headers(settings.headers_max + HEADERS_PARSED_BEYOND);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(settings.header_timeout);
    let service = TowerToHyperService::new(router);
    let graceful = GracefulShutdown::new();
    let connections = metrics::gauge!("whimbrel_connections");
    loop {
        let next = tokio::select! {
            () = shutdown.cancelled() => break,
            next = dealt.recv() => next,
        };
        let Some((stream, place)) = next else { break };
        let Ok(stream) = adopt(stream) else { continue };
        let Ok(peer) = stream.peer_addr() else { continue };
        let (service, guard, unread) = (service.clone(), guard.clone(), Unread::default());
        let stream = LingeringStream::new(stream, unread.clone(), settings.linger);
        // A permitted request costs no allocation: both futures are part of the connection's.
        let service = service_fn(move |request: http::Request<Incoming>| {
            let version = request.version();
            let mut request = request.map(|body| unread.track(version, body));
            if let Some(refusal) = request_check::refusal(version, request.headers(), settings.headers_max) {
                return Either::Left(ready(Ok(refusal)));
            }
            match guard.decide(request.method(), request.uri(), request.headers()) {
                GuardDecision::Answered(response) => Either::Left(ready(Ok(response))),
                GuardDecision::Pass(told) => {
                    request.extensions_mut().insert(ConnectInfo(peer));
                    Either::Right(service.call(request).map_ok(|response| told.with(response)))
                }
            }
        });
        let connections = connections.clone();
        connections.increment(1.0);
        let (builder, watcher, ends) = (builder.clone(), graceful.watcher(), shutdown.clone());
        tokio::spawn(async move {
            // A silent connection is closed: hyper's own timeout starts only after the protocol is known.
            let has_begun = tokio::select! {
                () = ends.cancelled() => false,
                begun = tokio::time::timeout(settings.header_timeout, protocol_shows(stream.get_ref())) => matches!(begun, Ok(Ok(()))),
            };
            if !has_begun {
                connections.decrement(1.0);
                return;
            }
            // After its handshake a WebSocket leaves this connection. It then counts against the gateway's bound and not against this one.
            let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
            if let Err(error) = watcher.watch(connection).await {
                // A client may close its connection at any time, so this is no warning.
                tracing::debug!(%error, "a connection ended");
            }
            connections.decrement(1.0);
            drop(place);
        });
    }
    if tokio::time::timeout(settings.shutdown_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time and were aborted");
    }
}

/// Returns when the received bytes tell HTTP/1.1 from HTTP/2, or the connection has ended.
async fn protocol_shows(stream: &TcpStream) -> io::Result<()> {
    let mut start = [0; HTTP2_PREFACE.len()];
    loop {
        let read = stream.peek(&mut start).await?;
        if read == 0 || read == start.len() || !HTTP2_PREFACE.starts_with(&start[..read]) {
            return Ok(());
        }
        // Peeked bytes stay in the buffer, so the socket would be readable at once.
        tokio::time::sleep(PEEK_PAUSE).await;
    }
}

fn adopt(stream: std::net::TcpStream) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    // A peer that vanished acknowledges no data. The timeout ends its connection.
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(&stream, UNTAKEN_MAX_MS)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Notify;

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    fn settings(connections_max: usize, shutdown_timeout: Duration) -> ListenSettings {
        let linger = LingerLimits { bytes: 1 << 20, timeout: Duration::from_secs(5) };
        let header_timeout = Duration::from_secs(30);
        ListenSettings { workers: 2, connections_max, header_timeout, shutdown_timeout, linger, headers_max: 100 }
    }

    fn enough() -> Arc<Descriptors> {
        Arc::new(Descriptors::of_limit(u64::MAX, Arc::new(|_| {})))
    }

    async fn status_of(stream: &mut TcpStream) -> String {
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// A server whose `/` answers on request, and its address.
    fn waiting_server(
        settings: ListenSettings,
        begun: Arc<Notify>,
        go_on: Arc<Notify>,
        shutdown: &CancellationToken,
    ) -> (SocketAddr, tokio::task::JoinHandle<io::Result<()>>) {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let answer = move || async move {
            begun.notify_one();
            go_on.notified().await;
            "done"
        };
        let router = Router::new().route("/", get(answer));
        (address, tokio::spawn(serve(listener, router, Guard::default(), settings, enough(), shutdown.clone())))
    }

    #[tokio::test]
    async fn a_request_in_progress_is_answered_during_a_shutdown() {
        let (begun, go_on, shutdown) = (Arc::new(Notify::new()), Arc::new(Notify::new()), CancellationToken::new());
        let settings = settings(10, Duration::from_secs(30));
        let (address, server) = waiting_server(settings, begun.clone(), go_on.clone(), &shutdown);
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        begun.notified().await;
        shutdown.cancel();
        // Connections are refused once the server has stopped accepting, with the request still in progress.
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        go_on.notify_one();
        assert_eq!(status_of(&mut stream).await, "HTTP/1.1 200");
        server.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_request_that_never_ends_does_not_block_a_shutdown() {
        let (begun, shutdown) = (Arc::new(Notify::new()), CancellationToken::new());
        let settings = settings(10, Duration::from_millis(50));
        let (address, server) = waiting_server(settings, begun.clone(), Arc::new(Notify::new()), &shutdown);
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        begun.notified().await;
        shutdown.cancel();
        server.await.unwrap().unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
    }

    #[tokio::test]
    async fn a_silent_connection_is_closed() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let router = Router::new().route("/", get(|| async { "here" }));
        let settings =
            ListenSettings { header_timeout: Duration::from_millis(100), ..settings(2, Duration::from_secs(5)) };
        let server = tokio::spawn(serve(listener, router, Guard::default(), settings, enough(), shutdown.clone()));
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(b"PRI * HT").await.unwrap();
        let mut third = TcpStream::connect(address).await.unwrap();
        third.write_all(REQUEST).await.unwrap();
        assert_eq!(status_of(&mut third).await, "HTTP/1.1 200");
        shutdown.cancel();
        server.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn connections_beyond_the_bound_wait_until_another_ends() {
        static SERVED: AtomicUsize = AtomicUsize::new(0);
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let count = || async { SERVED.fetch_add(1, Ordering::SeqCst).to_string() };
        let router = Router::new().route("/", get(count));
        let server = tokio::spawn(serve(
            listener,
            router,
            Guard::default(),
            settings(1, Duration::from_secs(5)),
            enough(),
            shutdown.clone(),
        ));
        let mut first = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(REQUEST).await.unwrap();
        first.write_all(REQUEST).await.unwrap();
        assert_eq!(status_of(&mut first).await, "HTTP/1.1 200");
        assert_eq!(SERVED.load(Ordering::SeqCst), 1);
        drop(first);
        assert_eq!(status_of(&mut second).await, "HTTP/1.1 200");
        shutdown.cancel();
        server.await.unwrap().unwrap();
    }
}
