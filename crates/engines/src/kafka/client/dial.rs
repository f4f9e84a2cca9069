//! Opening connections: TCP, TLS where it is configured, versions, SASL where it is configured.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;

use super::connection::Connection;
use super::resolve::Resolver;
use super::sasl;
use crate::kafka::settings::{KafkaSettings, KafkaStartError, Sasl, Tls};

/// How long opening a connection may take, from the first packet to the end of SASL.
const OPENING_MAX: Duration = Duration::from_secs(3);

/// The settings that all connections of the engine share.
#[derive(Clone)]
pub(crate) struct Dialer {
    runtime: Handle,
    resolver: Resolver,
    tls: Option<TlsConnector>,
    sasl: Option<Arc<Sasl>>,
    client_id: Arc<str>,
}

impl Dialer {
    /// Reads certificates and keys. Blocks on files.
    pub fn new(settings: &KafkaSettings, runtime: Handle) -> Result<Self, KafkaStartError> {
        let tls = settings.tls.as_ref().map(tls_connector).transpose()?;
        let sasl = settings.sasl.clone().map(Arc::new);
        let (resolver, client_id) = (Resolver::of_the_system(), settings.client_id.as_str().into());
        Ok(Self { runtime, resolver, tls, sasl, client_id })
    }

    /// Opens a connection to `host:port`. The error names the address and the step that failed.
    pub async fn open(&self, address: &str) -> Result<Connection, String> {
        let (dialer, address) = (self.clone(), address.to_owned());
        let opening = self.runtime.spawn(async move {
            match tokio::time::timeout(OPENING_MAX, dialer.dial(&address)).await {
                Ok(opened) => opened.map_err(|why| format!("{address}: {why}")),
                Err(_) => Err(format!("{address}: no connection within {} ms", OPENING_MAX.as_millis())),
            }
        });
        opening.await.unwrap_or_else(|_| Err("the log is shutting down".to_owned()))
    }

    /// Hint for connections that the broker closes without an error.
    pub fn listener_hint(&self) -> &'static str {
        match (&self.tls, &self.sasl) {
            (None, None) => "the listener may require TLS (`kafka.tls`) or SASL (`kafka.sasl`)",
            (None, Some(_)) => "the listener may require TLS (`kafka.tls`)",
            (Some(_), None) => "the listener may require SASL (`kafka.sasl`) or a client certificate",
            (Some(_), Some(_)) => "the listener may require a client certificate",
        }
    }

    async fn dial(&self, address: &str) -> Result<Connection, String> {
        let found = self.resolver.resolve(address).await?;
        let stream = TcpStream::connect(&*found).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut connection = match &self.tls {
            None => Connection::start(stream, &self.client_id),
            Some(connector) => {
                let host = host_of(address);
                let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("TLS: `{host}`: {error}"))?;
                let stream = connector.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))?;
                Connection::start(stream, &self.client_id)
            }
        };
        let learned = connection.learn_versions(OPENING_MAX).await;
        learned.map_err(|error| format!("{error}; {}", self.listener_hint()))?;
        if let Some(sasl) = &self.sasl {
            sasl::authenticate(&connection, sasl, OPENING_MAX).await?;
        }
        Ok(connection)
    }
}

/// The host of `host:port` or `[host]:port`.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn tls_connector(tls: &Tls) -> Result<TlsConnector, KafkaStartError> {
    let mut roots = RootCertStore::empty();
    match &tls.ca_file {
        Some(file) => {
            for certificate in certificates_in("kafka.tls_ca_file", file)? {
                roots.add(certificate).map_err(|error| bad_file("kafka.tls_ca_file", file, error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(KafkaStartError::NoRootCertificates);
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| KafkaStartError::Client(error.to_string()))?
        .with_root_certificates(roots);
    let config = match &tls.identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let chain = certificates_in("kafka.tls_certificate_file", &identity.certificate_file)?;
            let key = PrivateKeyDer::from_pem_file(&identity.key_file)
                .map_err(|error| bad_file("kafka.tls_key_file", &identity.key_file, error))?;
            let config = config.with_client_auth_cert(chain, key);
            config.map_err(|error| bad_file("kafka.tls_key_file", &identity.key_file, error))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates_in(setting: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, KafkaStartError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| bad_file(setting, file, error))?;
    if certificates.is_empty() {
        return Err(bad_file(setting, file, "the file has no PEM certificate"));
    }
    Ok(certificates)
}

fn bad_file(setting: &'static str, file: &Path, reason: impl std::fmt::Display) -> KafkaStartError {
    KafkaStartError::BadFile { setting, file: file.display().to_string(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_without_its_port_and_brackets() {
        assert_eq!(host_of("broker-1:9092"), "broker-1");
        assert_eq!(host_of("127.0.0.1:9092"), "127.0.0.1");
        assert_eq!(host_of("[::1]:9092"), "::1");
    }

    #[test]
    fn a_file_without_certificates_is_named_with_its_setting() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = certificates_in("kafka.tls_ca_file", file.path()).unwrap_err().to_string();
        assert!(error.contains("kafka.tls_ca_file") && error.contains("no PEM certificate"), "{error}");
        let error = certificates_in("kafka.tls_ca_file", Path::new("/nonexistent/ca.pem")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/ca.pem"), "{error}");
    }
}
