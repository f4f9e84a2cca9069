//! A connection to a subscriber: its name is looked up, every address is judged before it is dialled, then TCP, then TLS.

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

use super::failure::Failure;
use super::limits::CONNECTION_BUFFER_BYTES_MAX;
use super::origin::{Origin, Sender};
use whimbrel_api::endpoint::AddressGuard;

/// What makes connections: shared by all threads.
pub(super) struct Dialer {
    guard: AddressGuard,
    tls: TlsConnector,
}

impl Dialer {
    pub(super) fn new(guard: AddressGuard, extra_roots_pem: &[u8]) -> Result<Self, String> {
        Ok(Self { guard, tls: TlsConnector::from(Arc::new(client_tls(extra_roots_pem)?)) })
    }

    /// A connection that stands within the time. Its task runs on the caller's runtime.
    pub(super) async fn dial(&self, origin: &Origin, within: Duration) -> Result<Sender, Failure> {
        let deadline = Instant::now() + within;
        let dialled = timeout_at(deadline, async {
            let tcp = self.connect(origin, deadline).await?;
            if !origin.is_tls {
                return speak(tcp, origin).await;
            }
            let name = ServerName::try_from(origin.host.to_string());
            let name = name.map_err(|error| Failure::new(CallFailure::BadTarget, error.to_string()))?;
            speak(self.tls.connect(name, tcp).await.map_err(tls_failure)?, origin).await
        });
        let late = |_| Failure::new(CallFailure::Timeout, format!("no connection within {within:?}"));
        dialled.await.map_err(late)?
    }

    /// Dials one address after the other. Those that are forbidden are passed over, and told where there are no others.
    async fn connect(&self, origin: &Origin, deadline: Instant) -> Result<TcpStream, Failure> {
        let addresses = self.addresses(origin).await?;
        let mut failure = None;
        for (index, address) in addresses.iter().enumerate() {
            if let Err(forbidden) = self.guard.check_dialled(&origin.host, address.ip()) {
                failure.get_or_insert_with(|| Failure::new(CallFailure::Forbidden, forbidden.to_string()));
                continue;
            }
            // One address that swallows everything leaves time for the others.
            let left = deadline.saturating_duration_since(Instant::now()) / (addresses.len() - index) as u32;
            let connected = timeout_at(Instant::now() + left, TcpStream::connect(*address)).await;
            let error = match connected {
                Ok(Ok(tcp)) => {
                    tcp.set_nodelay(true).map_err(|error| connect_failure(*address, &error))?;
                    return Ok(tcp);
                }
                Ok(Err(error)) => connect_failure(*address, &error),
                Err(_) => Failure::new(CallFailure::Timeout, format!("{address} did not answer in time")),
            };
            failure = Some(error);
        }
        Err(failure
            .unwrap_or_else(|| Failure::new(CallFailure::Connect, format!("the name {} has no address", origin.host))))
    }

    async fn addresses(&self, origin: &Origin) -> Result<Vec<SocketAddr>, Failure> {
        if let Ok(address) = origin.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, origin.port)]);
        }
        // A name that is forbidden is not even looked up.
        let checked = self.guard.check_host(&origin.host);
        checked.map_err(|forbidden| Failure::new(CallFailure::Forbidden, forbidden.to_string()))?;
        let found = origin.names.look_up(&origin.host, origin.port).await;
        found.map_err(|why| Failure::new(CallFailure::Connect, format!("the name {}: {why}", origin.host)))
    }
}

/// TLS towards others. They are believed by the certificates of the machine, as an operator expects who has put a company's own among
/// them, and by those of `extra_roots_pem`.
pub(crate) fn client_tls(extra_roots_pem: &[u8]) -> Result<ClientConfig, String> {
    let mut roots = machine_roots().clone();
    for certificate in CertificateDer::pem_slice_iter(extra_roots_pem) {
        let certificate = certificate.map_err(|error| format!("no certificate: {error}"))?;
        roots.add(certificate).map_err(|error| format!("a certificate cannot be used: {error}"))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(config.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth())
}

/// Begins to speak HTTP/1.1. The connection lives until its sender is dropped or the other side closes it.
async fn speak(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, origin: &Origin) -> Result<Sender, Failure> {
    let mut builder = http1::Builder::new();
    builder.title_case_headers(origin.has_title_case).max_buf_size(CONNECTION_BUFFER_BYTES_MAX);
    let (sender, connection) = builder.handshake(TokioIo::new(io)).await.map_err(|error| Failure::broken(&error))?;
    // What goes wrong on the connection is told to the call that is on it.
    tokio::spawn(async { drop(connection.await) });
    Ok(sender)
}

fn connect_failure(address: SocketAddr, error: &io::Error) -> Failure {
    Failure::new(CallFailure::Connect, format!("{address}: {error}"))
}

fn tls_failure(error: io::Error) -> Failure {
    Failure::new(CallFailure::Tls, error.to_string())
}

/// The certificates of the machine, read once in a process.
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
                "no root certificates were found on this machine: callbacks to https:// fail"
            );
        }
        roots
    })
}
