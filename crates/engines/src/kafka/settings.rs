//! The settings of the Kafka engine.

use std::path::PathBuf;
use std::time::Duration;

use whimbrel_model::{format_duration, limits};

use super::client::dial::check_tls_files;

/// Bytes that Kafka's own format adds to a record, at most: the header of its batch, and lengths as varints. `Record::size` counts six
/// bytes of lengths per header, which is more than Kafka needs for any header that the API accepts.
const BATCH_OVERHEAD_BYTES: usize = 4096;

/// The connection to Kafka, and the bounds of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaSettings {
    /// `host:port`, several with commas.
    pub bootstrap: String,
    /// The name in the brokers' request logs and quotas.
    pub client_id: String,
    /// TLS to the brokers; `None` is plain TCP.
    pub tls: Option<Tls>,
    /// SASL credentials; `None` does not authenticate.
    pub sasl: Option<Sasl>,
    pub compression: Compression,
    /// An append that Kafka has not acknowledged after this time fails: as `Unavailable` if nothing was written, else as `Unknown`.
    pub message_timeout: Duration,
    /// Kafka aborts a commit that its owner left open after this time. Until then it holds the readers of its partitions back, unless
    /// a successor opens the fence. Keep it near the session timeout of Coordination.
    pub transaction_timeout: Duration,
    /// The timeout of a fetch, metadata, offset or admin request, including retries; also the maximum time for which a start waits for
    /// Kafka.
    pub request_timeout: Duration,
    /// The largest record, as [`whimbrel_model::Record::size`] counts. Topics are created with a `max.message.bytes` that fits; for a
    /// topic that another application created with a smaller one, that one is the limit.
    pub record_bytes_max: usize,
    /// The `transactional.id` of a fence is its name with this prefix. Two installations on one Kafka need different prefixes.
    pub transactional_prefix: String,
    /// The time for which an append may wait in memory for more records in its batch.
    pub linger: Duration,
    /// The maximum records and bytes that wait in memory for Kafka; beyond them, an append is
    /// [`whimbrel_model::ports::LogError::Overloaded`].
    pub queue_records_max: usize,
    pub queue_bytes_max: usize,
    /// The maximum number of concurrent fetches from one broker, except for those at the end of a partition. Each has a connection of its
    /// own.
    pub fetches_at_once_max: usize,
    /// The time for which a partition must be stalled, or a commit unconfirmed, before a fence asks whether its own transaction is the
    /// cause.
    pub stalled_after: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// PEM file with the authorities that the brokers' certificates are checked against; `None` uses those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// The client's own certificate, for brokers that ask for one.
    pub identity: Option<TlsIdentity>,
}

/// PEM files of a client certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsIdentity {
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Sasl {
    pub mechanism: SaslMechanism,
    pub username: String,
    pub password: String,
}

impl std::fmt::Debug for Sasl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sasl({} as {})", self.mechanism.name(), self.username)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslMechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

impl SaslMechanism {
    /// The name in Kafka's protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// The compression of record batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    #[default]
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl KafkaSettings {
    pub fn new(bootstrap: impl Into<String>) -> Self {
        Self {
            bootstrap: bootstrap.into(),
            client_id: "whimbrel".to_owned(),
            tls: None,
            sasl: None,
            compression: Compression::None,
            message_timeout: Duration::from_secs(10),
            transaction_timeout: Duration::from_secs(15),
            request_timeout: Duration::from_secs(10),
            record_bytes_max: limits::PAYLOAD_BYTES_DEFAULT
                + limits::KEY_MAX_BYTES
                + limits::HEADERS_DEFAULT * limits::HEADER_BYTES_DEFAULT,
            transactional_prefix: "whimbrel/".to_owned(),
            linger: Duration::ZERO,
            queue_records_max: 500_000,
            queue_bytes_max: 256 << 20,
            fetches_at_once_max: 8,
            stalled_after: Duration::from_secs(1),
        }
    }

    /// The `max.message.bytes` that a topic needs for the largest record.
    pub(super) fn batch_bytes_max(&self) -> usize {
        self.record_bytes_max + BATCH_OVERHEAD_BYTES
    }

    /// The largest record of a topic whose `max.message.bytes` is `batch_bytes_max`.
    pub(super) fn record_bytes_max_under(&self, batch_bytes_max: usize) -> usize {
        self.record_bytes_max.min(batch_bytes_max.saturating_sub(BATCH_OVERHEAD_BYTES))
    }

    /// Reads the certificates and the key, like a start. Blocks on files.
    pub fn check_files(&self) -> Result<(), KafkaStartError> {
        self.tls.as_ref().map_or(Ok(()), check_tls_files)
    }

    pub(super) fn check(&self) -> Result<(), KafkaStartError> {
        if self.bootstrap.trim().is_empty() {
            return Err(KafkaStartError::NoBootstrap);
        }
        Ok(())
    }

    pub(super) fn transactional_id(&self, fence: &str) -> String {
        format!("{}{fence}", self.transactional_prefix)
    }
}

/// The reason why the engine could not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KafkaStartError {
    #[error("`kafka.bootstrap` is empty: set at least one broker, such as 127.0.0.1:9092")]
    NoBootstrap,
    #[error(
        "cannot connect to Kafka within {timeout} (`kafka.request_timeout`): {reason}. Check that the brokers run and that \
         `kafka.bootstrap` ({bootstrap}) is correct",
        timeout = format_duration(*timeout)
    )]
    Unreachable { bootstrap: String, timeout: Duration, reason: String },
    #[error("cannot load `{setting}` ({file}): {reason}")]
    BadFile { setting: &'static str, file: String, reason: String },
    #[error("no CA certificates found in the operating system's trust store: set `kafka.tls_ca_file`")]
    NoRootCertificates,
    #[error("cannot start the Kafka client: {0}")]
    Client(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_with_smaller_batches_has_smaller_records() {
        let settings = KafkaSettings::new("127.0.0.1:1");
        assert_eq!(settings.record_bytes_max_under(settings.batch_bytes_max()), settings.record_bytes_max);
        assert_eq!(settings.record_bytes_max_under(usize::MAX), settings.record_bytes_max);
        assert_eq!(settings.record_bytes_max_under(10_000), 10_000 - BATCH_OVERHEAD_BYTES);
        assert_eq!(settings.record_bytes_max_under(10), 0);
    }

    #[test]
    fn a_password_is_not_printed() {
        let sasl = Sasl { mechanism: SaslMechanism::Plain, username: "eva".to_owned(), password: "secret".to_owned() };
        assert_eq!(format!("{sasl:?}"), "Sasl(PLAIN as eva)");
    }
}
