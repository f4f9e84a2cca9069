//! The horn's HTTP client: one question to a provider, one answer, within a time. HTTP/2 where the other side has it.
//!
//! Places that devices brought are judged by the guard whenever they are dialled; those of the configuration are the operator's own.
//! Nothing is followed and nothing is tried again here.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as PooledClient;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use whimbrel_model::ports::PortFuture;
use whimbrel_model::{Clock, Timestamp};

use super::limits::{
    ANSWER_BYTES_MAX, CONNECT_WITHIN, IDLE_APNS_CONNECTION_FOR, IDLE_CONNECTION_FOR, IDLE_CONNECTIONS_MAX, LOOKUPS_MAX,
    PING_EVERY, PING_WITHIN,
};
use crate::worker::{client_tls, retry_after};
use whimbrel_api::endpoint::{AddressGuard, Forbidden};

/// Which HTTP is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaks {
    /// Only HTTP/2, without asking first where there is no TLS.
    Http2,
    /// HTTP/2 where TLS agrees on it, otherwise HTTP/1.1.
    Either,
}

/// Connections to providers. Cloning shares them.
#[derive(Clone)]
pub(super) struct Client {
    pooled: PooledClient<Connector, Full<Bytes>>,
    clock: Arc<dyn Clock>,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    /// The start of it.
    pub(super) body: Bytes,
    pub(super) received_at: Timestamp,
}

impl Answer {
    pub(super) fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.headers, self.received_at)
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoAnswer {
    /// The place is one that notices may not go to.
    #[error("{0}")]
    Forbidden(String),
    /// It may be there another time.
    #[error("{0}")]
    Unreachable(String),
}

impl From<Forbidden> for NoAnswer {
    fn from(Forbidden(place): Forbidden) -> Self {
        Self::Forbidden(format!("notices may not go to {place}, which a device named, unless horn.allow has it"))
    }
}

impl Client {
    /// Without a guard everything may be dialled.
    pub(super) fn new(
        speaks: Speaks,
        guard: Option<AddressGuard>,
        extra_roots_pem: &[u8],
        clock: Arc<dyn Clock>,
    ) -> Result<Self, String> {
        let mut tls = client_tls(extra_roots_pem)?;
        tls.alpn_protocols = match speaks {
            Speaks::Http2 => vec![b"h2".to_vec()],
            Speaks::Either => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        };
        let core =
            ConnectorCore { guard, tls: TlsConnector::from(Arc::new(tls)), lookups: Semaphore::new(LOOKUPS_MAX) };
        let mut builder = PooledClient::builder(TokioExecutor::new());
        builder
            .http2_only(speaks == Speaks::Http2)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(if speaks == Speaks::Http2 { IDLE_APNS_CONNECTION_FOR } else { IDLE_CONNECTION_FOR })
            .http2_keep_alive_interval(PING_EVERY)
            .http2_keep_alive_timeout(PING_WITHIN)
            .http2_keep_alive_while_idle(speaks == Speaks::Http2);
        Ok(Self { pooled: builder.build(Connector { core: Arc::new(core) }), clock })
    }

    pub(super) async fn ask(&self, request: Request<Full<Bytes>>, deadline: Instant) -> Result<Answer, NoAnswer> {
        let asked = timeout_at(deadline, self.pooled.request(request)).await;
        let late = |_| NoAnswer::Unreachable("no answer in time".to_owned());
        let (head, mut body) = asked.map_err(late)?.map_err(|error| no_answer(&error))?.into_parts();
        let mut read = BytesMut::new();
        // The status has come: what is missing of the body when the time is over is only missing from the reason.
        let reading = async {
            while let Some(Ok(frame)) = body.frame().await {
                let Some(data) = frame.data_ref() else { continue };
                read.extend_from_slice(&data[..data.len().min(ANSWER_BYTES_MAX - read.len())]);
                if read.len() == ANSWER_BYTES_MAX {
                    return;
                }
            }
        };
        let _ = timeout_at(deadline, reading).await;
        let received_at = self.clock.now();
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body: read.freeze(), received_at })
    }
}

/// What the connector said where it was the connector, otherwise what the whole chain of causes says.
fn no_answer(error: &hyper_util::client::legacy::Error) -> NoAnswer {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(told) = error.downcast_ref::<NoAnswer>() {
            return told.clone();
        }
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    NoAnswer::Unreachable(text)
}

#[derive(Clone)]
struct Connector {
    core: Arc<ConnectorCore>,
}

struct ConnectorCore {
    guard: Option<AddressGuard>,
    tls: TlsConnector,
    lookups: Semaphore,
}

impl tower::Service<Uri> for Connector {
    type Response = Wire;
    type Error = NoAnswer;
    type Future = PortFuture<'static, Result<Wire, NoAnswer>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), NoAnswer>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let core = Arc::clone(&self.core);
        Box::pin(async move {
            let late = |_| NoAnswer::Unreachable(format!("no connection within {CONNECT_WITHIN:?}"));
            timeout(CONNECT_WITHIN, core.connect(&uri)).await.map_err(late)?
        })
    }
}

impl ConnectorCore {
    async fn connect(&self, uri: &Uri) -> Result<Wire, NoAnswer> {
        let unreachable = |why: &str| NoAnswer::Unreachable(why.to_owned());
        let bracketed = uri.host().ok_or_else(|| unreachable("the URL has no host"))?;
        let host = bracketed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(bracketed);
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tcp = self.dial(host, port).await?;
        if !is_tls {
            return Ok(Wire { io: TokioIo::new(Box::new(tcp)), is_h2: false });
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|error| unreachable(&error.to_string()))?;
        let tls = self.tls.connect(name, tcp).await;
        let tls = tls.map_err(|error| NoAnswer::Unreachable(format!("TLS with {host}: {error}")))?;
        let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Wire { io: TokioIo::new(Box::new(tls)), is_h2 })
    }

    /// Dials one address after the other. Those that are forbidden are passed over, and told where there are no others.
    async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, NoAnswer> {
        let mut failure = NoAnswer::Unreachable(format!("the name {host} has no address"));
        for address in self.addresses(host, port).await? {
            let judged = self.guard.as_ref().map_or(Ok(()), |guard| guard.check_dialled(host, address.ip()));
            if let Err(forbidden) = judged {
                failure = forbidden.into();
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(tcp) => {
                    // A connection that cannot be hurried still works.
                    let _ = tcp.set_nodelay(true);
                    return Ok(tcp);
                }
                Err(error) => failure = NoAnswer::Unreachable(format!("{address}: {error}")),
            }
        }
        Err(failure)
    }

    async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, NoAnswer> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        // A name that is forbidden is not even looked up.
        let judged = self.guard.as_ref().map_or(Ok(()), |guard| guard.check_host(host));
        judged?;
        let _permit = self.lookups.acquire().await.ok();
        let found = lookup_host((host, port)).await;
        Ok(found.map_err(|error| NoAnswer::Unreachable(format!("the name {host}: {error}")))?.collect())
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection that stands, with TLS or without.
struct Wire {
    io: TokioIo<Box<dyn Stream>>,
    is_h2: bool,
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.is_h2 { connected.negotiated_h2() } else { connected }
    }
}

impl hyper::rt::Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
