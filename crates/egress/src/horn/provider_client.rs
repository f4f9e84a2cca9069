//! The horn's HTTP client: one request to a provider, one response, within a timeout. It uses HTTP/2 if the server supports it.
//!
//! Each dial to an address from a device is checked by the guard; addresses from the configuration are not checked. The client follows no
//! redirects and retries nothing.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Uri};
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
use super::outcome::DeviceOutcome;
use crate::worker::{client_tls, retry_after};
use whimbrel_api::endpoint::{AddressGuard, Forbidden};

/// The HTTP version of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HttpVersions {
    /// Only HTTP/2; without TLS with prior knowledge.
    Http2,
    /// HTTP/2 if TLS negotiates it, otherwise HTTP/1.1.
    Either,
}

/// Connections to providers. Cloning shares them.
#[derive(Clone)]
pub(super) struct ProviderClient {
    pooled: PooledClient<Connector, Full<Bytes>>,
    clock: Arc<dyn Clock>,
}

pub(super) struct ProviderResponse {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    /// The start of the body, at most [`ANSWER_BYTES_MAX`].
    pub(super) body: Bytes,
    pub(super) received_at: Timestamp,
}

impl ProviderResponse {
    pub(super) fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.headers, self.received_at)
    }
}

/// The reason why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoResponse {
    /// The address is outside the networks that notices may reach.
    #[error("{0}")]
    Forbidden(String),
    /// A temporary failure: no connection, or no response in time.
    #[error("{0}")]
    Unreachable(String),
}

impl From<Forbidden> for NoResponse {
    fn from(Forbidden(place): Forbidden) -> Self {
        Self::Forbidden(format!("notices may not go to {place}, which a device named, unless horn.allow has it"))
    }
}

/// The value of an `Authorization` header, which is never logged.
pub(super) fn authorization(value: &str) -> Result<HeaderValue, DeviceOutcome> {
    let mut value = HeaderValue::from_str(value).map_err(|error| DeviceOutcome::refused(error.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

impl ProviderClient {
    /// Creates a client. Without a guard it may dial every address.
    pub(super) fn new(
        versions: HttpVersions,
        guard: Option<AddressGuard>,
        extra_roots_pem: &[u8],
        clock: Arc<dyn Clock>,
    ) -> Result<Self, String> {
        let mut tls = client_tls(extra_roots_pem)?;
        tls.alpn_protocols = match versions {
            HttpVersions::Http2 => vec![b"h2".to_vec()],
            HttpVersions::Either => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        };
        let core =
            ConnectorCore { guard, tls: TlsConnector::from(Arc::new(tls)), lookups: Semaphore::new(LOOKUPS_MAX) };
        let mut builder = PooledClient::builder(TokioExecutor::new());
        builder
            .http2_only(versions == HttpVersions::Http2)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(if versions == HttpVersions::Http2 {
                IDLE_APNS_CONNECTION_FOR
            } else {
                IDLE_CONNECTION_FOR
            })
            .http2_keep_alive_interval(PING_EVERY)
            .http2_keep_alive_timeout(PING_WITHIN)
            .http2_keep_alive_while_idle(versions == HttpVersions::Http2);
        Ok(Self { pooled: builder.build(Connector { core: Arc::new(core) }), clock })
    }

    pub(super) async fn ask(
        &self,
        request: Request<Full<Bytes>>,
        deadline: Instant,
    ) -> Result<ProviderResponse, NoResponse> {
        let asked = timeout_at(deadline, self.pooled.request(request)).await;
        let late = |_| NoResponse::Unreachable("no response in time".to_owned());
        let (head, mut body) = asked.map_err(late)?.map_err(|error| no_answer(&error))?.into_parts();
        let mut read = BytesMut::new();
        // The status has arrived. If the rest of the body is late, only the reason is incomplete.
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
        Ok(ProviderResponse { status: head.status.as_u16(), headers: head.headers, body: read.freeze(), received_at })
    }
}

/// The connector's error if it is in the chain of causes, otherwise the whole chain as text.
fn no_answer(error: &hyper_util::client::legacy::Error) -> NoResponse {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(told) = error.downcast_ref::<NoResponse>() {
            return told.clone();
        }
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    NoResponse::Unreachable(text)
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
    type Response = ProviderConnection;
    type Error = NoResponse;
    type Future = PortFuture<'static, Result<ProviderConnection, NoResponse>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), NoResponse>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let core = Arc::clone(&self.core);
        Box::pin(async move {
            let late = |_| NoResponse::Unreachable(format!("no connection within {CONNECT_WITHIN:?}"));
            timeout(CONNECT_WITHIN, core.connect(&uri)).await.map_err(late)?
        })
    }
}

impl ConnectorCore {
    async fn connect(&self, uri: &Uri) -> Result<ProviderConnection, NoResponse> {
        let unreachable = |why: &str| NoResponse::Unreachable(why.to_owned());
        let bracketed = uri.host().ok_or_else(|| unreachable("the URL has no host"))?;
        let host = bracketed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(bracketed);
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tcp = self.dial(host, port).await?;
        if !is_tls {
            return Ok(ProviderConnection { io: TokioIo::new(Box::new(tcp)), is_h2: false });
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|error| unreachable(&error.to_string()))?;
        let tls = self.tls.connect(name, tcp).await;
        let tls = tls.map_err(|error| NoResponse::Unreachable(format!("TLS with {host}: {error}")))?;
        let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(ProviderConnection { io: TokioIo::new(Box::new(tls)), is_h2 })
    }

    /// Dials one address after the other. Forbidden addresses are skipped, and reported if there are no others.
    async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, NoResponse> {
        let mut failure = NoResponse::Unreachable(format!("the name {host} has no address"));
        for address in self.addresses(host, port).await? {
            let classified = self.guard.as_ref().map_or(Ok(()), |guard| guard.check_dialled(host, address.ip()));
            if let Err(forbidden) = classified {
                failure = forbidden.into();
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(tcp) => {
                    // A connection without `TCP_NODELAY` still works.
                    let _ = tcp.set_nodelay(true);
                    return Ok(tcp);
                }
                Err(error) => failure = NoResponse::Unreachable(format!("{address}: {error}")),
            }
        }
        Err(failure)
    }

    async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, NoResponse> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        // A forbidden name is not resolved.
        let classified = self.guard.as_ref().map_or(Ok(()), |guard| guard.check_host(host));
        classified?;
        let _permit = self.lookups.acquire().await.ok();
        let found = lookup_host((host, port)).await;
        Ok(found.map_err(|error| NoResponse::Unreachable(format!("the name {host}: {error}")))?.collect())
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// An open connection, with or without TLS.
struct ProviderConnection {
    io: TokioIo<Box<dyn Stream>>,
    is_h2: bool,
}

impl Connection for ProviderConnection {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.is_h2 { connected.negotiated_h2() } else { connected }
    }
}

impl hyper::rt::Read for ProviderConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for ProviderConnection {
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
