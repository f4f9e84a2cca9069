//! Opens connections: TCP, TLS if configured, versions, SASL if configured.
//!
//! Abandoned and repeated handshakes must not overload a broker that is short of CPU time. Therefore few dials per broker run concurrently,
//! the others wait in order of arrival, and failed dials are followed by a back-off (`dial_pace`). During the back-off a dial fails at once
//! with the last error: its caller can look for another leader meanwhile.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::address_resolver::AddressResolver;
use super::connection::BrokerConnection;
use super::dial_pace::DialPace;
use super::sasl;
use crate::kafka::settings::{KafkaSettings, KafkaStartError, Sasl, Tls};

/// The maximum number of concurrent dials to one broker. The others wait for their turn.
pub(crate) const DIALS_PER_BROKER_MAX: usize = 4;
/// The timeout of looking up the name and connecting.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// The overall timeout of a handshake whose steps are answered in time.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);
/// The maximum number of addresses with a pace. Beyond it, those without a dial are removed.
const ADDRESSES_MAX: usize = 1024;

/// The opening of a connection. All clones wait for it. It ends when the last clone is dropped.
pub(crate) type Dial = Shared<BoxFuture<'static, Result<Arc<BrokerConnection>, String>>>;

/// The settings that all connections of the engine share, and the dials to each broker.
#[derive(Clone)]
pub(crate) struct BrokerDialer {
    runtime: Handle,
    resolver: AddressResolver,
    tls: Option<TlsConnector>,
    sasl: Option<Arc<Sasl>>,
    client_id: Arc<str>,
    brokers: Arc<Mutex<HashMap<String, Arc<BrokerDials>>>>,
}

struct BrokerDials {
    /// Fair: waiting dials get their turn in order of arrival.
    turns: Semaphore,
    pace: Mutex<DialPace>,
}

/// The reason why a dial failed.
struct DialError {
    why: String,
    /// The timeout that a step of the handshake has exceeded.
    step_timed_out: Option<Duration>,
}

impl BrokerDialer {
    /// Reads certificates and keys. Blocks on files.
    pub fn new(settings: &KafkaSettings, runtime: Handle) -> Result<Self, KafkaStartError> {
        let tls = settings.tls.as_ref().map(tls_connector).transpose()?;
        let sasl = settings.sasl.clone().map(Arc::new);
        let (resolver, client_id) = (AddressResolver::of_the_system(), settings.client_id.as_str().into());
        Ok(Self { runtime, resolver, tls, sasl, client_id, brokers: Arc::default() })
    }

    /// Opens a connection to `host:port`, even if no caller waits for the result. The error names the address and the step that failed.
    pub fn open(&self, address: &str) -> Dial {
        let (dialer, address) = (self.clone(), address.to_owned());
        // The set ends its task when it is dropped.
        let mut task = JoinSet::new();
        task.spawn_on(async move { dialer.dial_in_turn(&address).await }, &self.runtime);
        let opened = async move {
            let opened = task.join_next().await.and_then(Result::ok);
            opened.unwrap_or_else(|| Err("the log is shutting down".to_owned()))
        };
        opened.boxed().shared()
    }

    async fn dial_in_turn(&self, address: &str) -> Result<Arc<BrokerConnection>, String> {
        let broker = self.dials_to(address);
        broker.check_back_off()?;
        let _turn = broker.turns.acquire().await.map_err(|_| "the log is shutting down".to_owned())?;
        // The dials before this one may have failed meanwhile.
        broker.check_back_off()?;
        let (began, step_timeout) = (Instant::now(), broker.pace().step_timeout());
        match self.dial(address, step_timeout).await {
            Ok((connection, took)) => {
                broker.pace().succeeded(took);
                Ok(Arc::new(connection))
            }
            Err(DialError { why, step_timed_out }) => {
                let why = format!("{address}: {why}");
                let random = RandomState::new().hash_one(address);
                broker.pace().failed(began, Instant::now(), &why, step_timed_out, random);
                Err(why)
            }
        }
    }

    fn dials_to(&self, address: &str) -> Arc<BrokerDials> {
        let mut brokers = self.brokers.lock().unwrap_or_else(PoisonError::into_inner);
        if brokers.len() >= ADDRESSES_MAX && !brokers.contains_key(address) {
            brokers.retain(|_, dials| Arc::strong_count(dials) > 1);
        }
        brokers.entry(address.to_owned()).or_insert_with(BrokerDials::new).clone()
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

    /// One dial, with the time that its handshake took.
    async fn dial(&self, address: &str, step_timeout: Duration) -> Result<(BrokerConnection, Duration), DialError> {
        let not_connected = |why| DialError { why, step_timed_out: None };
        let connected = tokio::time::timeout(CONNECT_MAX, self.connect(address)).await;
        let late = |_| not_connected(format!("no connection within {} ms", CONNECT_MAX.as_millis()));
        let stream = connected.map_err(late)?.map_err(not_connected)?;
        let began = Instant::now();
        let shaken = tokio::time::timeout(HANDSHAKE_MAX, self.shake_hands(stream, address, step_timeout)).await;
        let late = |_| format!("the handshake is not complete after {} ms", HANDSHAKE_MAX.as_millis());
        let took = began.elapsed();
        match shaken.map_err(late).flatten() {
            Ok(connection) => Ok((connection, took)),
            Err(why) => Err(DialError { why, step_timed_out: (took >= step_timeout).then_some(step_timeout) }),
        }
    }

    async fn connect(&self, address: &str) -> Result<TcpStream, String> {
        let found = self.resolver.resolve(address).await?;
        let stream = TcpStream::connect(&*found).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(stream)
    }

    async fn shake_hands(
        &self,
        stream: TcpStream,
        address: &str,
        step_timeout: Duration,
    ) -> Result<BrokerConnection, String> {
        let mut connection = match &self.tls {
            None => BrokerConnection::start(stream, &self.client_id),
            Some(connector) => {
                let host = host_of(address);
                let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("TLS: `{host}`: {error}"))?;
                let late = |_| format!("TLS: no answer within {} ms", step_timeout.as_millis());
                let secured = tokio::time::timeout(step_timeout, connector.connect(name, stream)).await;
                let stream = secured.map_err(late)?.map_err(|error| format!("TLS: {error}"))?;
                BrokerConnection::start(stream, &self.client_id)
            }
        };
        let learned = connection.learn_versions(step_timeout).await;
        learned.map_err(|error| format!("{error}; {}", self.listener_hint()))?;
        if let Some(sasl) = &self.sasl {
            sasl::authenticate(&connection, sasl, step_timeout).await?;
        }
        Ok(connection)
    }
}

impl BrokerDials {
    fn new() -> Arc<Self> {
        Arc::new(Self { turns: Semaphore::new(DIALS_PER_BROKER_MAX), pace: Mutex::default() })
    }

    /// Fails with the error of the last dial while its back-off lasts.
    fn check_back_off(&self) -> Result<(), String> {
        self.pace().backs_off(Instant::now()).map_or(Ok(()), |why| Err(why.to_owned()))
    }

    fn pace(&self) -> MutexGuard<'_, DialPace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Reads the files of the settings.
pub(crate) fn check_tls_files(tls: &Tls) -> Result<(), KafkaStartError> {
    tls_connector(tls).map(drop)
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
