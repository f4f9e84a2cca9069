//! Opens connections to subscribers: name lookup, check of each address before it is dialled, TCP, TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use whimbrel_model::ports::CallFailure;

use super::failed_call::FailedCall;
use super::limits::CONNECTION_BUFFER_BYTES_MAX;
use super::origin_pool::{OriginPool, RequestSender};
use whimbrel_api::endpoint::AddressGuard;

/// Opens connections. All threads share it.
pub(super) struct CallbackDialer {
    guard: AddressGuard,
    tls: TlsConnector,
}

impl CallbackDialer {
    pub(super) fn new(guard: AddressGuard, extra_roots_pem: &[u8]) -> Result<Self, String> {
        Ok(Self { guard, tls: TlsConnector::from(Arc::new(client_tls(extra_roots_pem)?)) })
    }

    /// Opens a connection within the timeout. The connection's task runs on the caller's runtime.
    pub(super) async fn dial(&self, origin: &OriginPool, within: Duration) -> Result<RequestSender, FailedCall> {
        let deadline = Instant::now() + within;
        let dialled = timeout_at(deadline, async {
            let tcp = self.connect(origin, deadline).await?;
            if !origin.is_tls {
                return start(tcp, origin).await;
            }
            let name = ServerName::try_from(origin.host.to_string());
            let name = name.map_err(|error| FailedCall::new(CallFailure::BadTarget, error.to_string()))?;
            start(self.tls.connect(name, tcp).await.map_err(tls_failure)?, origin).await
        });
        let late = |_| FailedCall::new(CallFailure::Timeout, format!("no connection within {within:?}"));
        dialled.await.map_err(late)?
    }

    /// Dials one address after the other. Forbidden addresses are skipped, and reported if there are no others.
    async fn connect(&self, origin: &OriginPool, deadline: Instant) -> Result<TcpStream, FailedCall> {
        let addresses = self.addresses(origin).await?;
        let mut failure = None;
        for (index, address) in addresses.iter().enumerate() {
            if let Err(forbidden) = self.guard.check_dialled(&origin.host, address.ip()) {
                failure.get_or_insert_with(|| FailedCall::new(CallFailure::Forbidden, forbidden.to_string()));
                continue;
            }
            // Each address gets an equal part of the remaining time, so that an unresponsive one leaves time for the others.
            let left = deadline.saturating_duration_since(Instant::now()) / (addresses.len() - index) as u32;
            let connected = timeout_at(Instant::now() + left, TcpStream::connect(*address)).await;
            let error = match connected {
                Ok(Ok(tcp)) => {
                    tcp.set_nodelay(true).map_err(|error| connect_failure(*address, &error))?;
                    return Ok(tcp);
                }
                Ok(Err(error)) => connect_failure(*address, &error),
                Err(_) => FailedCall::new(CallFailure::Timeout, format!("{address} did not respond in time")),
            };
            failure = Some(error);
        }
        Err(failure.unwrap_or_else(|| {
            FailedCall::new(CallFailure::Connect, format!("the name {} has no address", origin.host))
        }))
    }

    async fn addresses(&self, origin: &OriginPool) -> Result<Vec<SocketAddr>, FailedCall> {
        if let Ok(address) = origin.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, origin.port)]);
        }
        // A forbidden name is not resolved.
        let checked = self.guard.check_host(&origin.host);
        checked.map_err(|forbidden| FailedCall::new(CallFailure::Forbidden, forbidden.to_string()))?;
        let found = origin.names.look_up(&origin.host, origin.port).await;
        found.map_err(|why| FailedCall::new(CallFailure::Connect, format!("the name {}: {why}", origin.host)))
    }
}

/// TLS for outgoing connections. It trusts the root certificates of the machine, including a company's own, and `extra_roots_pem`.
pub(crate) fn client_tls(extra_roots_pem: &[u8]) -> Result<ClientConfig, String> {
    let mut roots = machine_roots().clone();
    for certificate in CertificateDer::pem_slice_iter(extra_roots_pem) {
        let certificate = certificate.map_err(|error| format!("cannot parse a certificate: {error}"))?;
        roots.add(certificate).map_err(|error| format!("a certificate cannot be used: {error}"))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(config.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth())
}

/// Starts HTTP/1.1. The connection lives until its sender is dropped or the server closes it.
async fn start(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    origin: &OriginPool,
) -> Result<RequestSender, FailedCall> {
    let mut builder = http1::Builder::new();
    builder.title_case_headers(origin.has_title_case).max_buf_size(CONNECTION_BUFFER_BYTES_MAX);
    let (sender, connection) = builder.handshake(TokioIo::new(io)).await.map_err(|error| FailedCall::broken(&error))?;
    // Errors of the connection are reported to the call that uses it.
    tokio::spawn(async { drop(connection.await) });
    Ok(sender)
}

fn connect_failure(address: SocketAddr, error: &io::Error) -> FailedCall {
    FailedCall::new(CallFailure::Connect, format!("{address}: {error}"))
}

fn tls_failure(error: io::Error) -> FailedCall {
    FailedCall::new(CallFailure::Tls, error.to_string())
}

/// The root certificates of the machine, read once per process.
fn machine_roots() -> &'static RootCertStore {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (_, unusable) = roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let errors = found.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            tracing::warn!(
                unusable,
                errors,
                "no root certificates were found on this machine: callbacks to https:// will fail"
            );
        }
        roots
    })
}
