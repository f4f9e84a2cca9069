//! What can be configured of the Kafka engine, and the options of librdkafka that its promises depend on and nobody may change.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use whimbrel_model::limits;

/// Bytes that Kafka's own format adds to a record, at most: the header of its batch, and lengths as varints. Headers are counted
/// by us with six bytes of lengths each, which is more than Kafka needs for any that the doors let in.
const BATCH_OVERHEAD_BYTES: usize = 4096;
/// Bytes of one batch that the producer sends. It stays below Kafka's default of `max.message.bytes` (1 MiB), which counts
/// whole batches: a topic that others made would refuse larger ones.
const BATCH_BYTES_MAX: usize = 1_000_000;
/// Bytes of one answer to all partitions that are fetched together.
const FETCH_ANSWER_BYTES: usize = 8 << 20;
/// How soon a partition whose records wait in memory is asked for again. librdkafka's own second would starve a fast reader.
const FETCH_QUEUE_BACKOFF_MS: u32 = 5;

const INSPECTOR_FETCH: FetchShape = FetchShape { longest: Duration::from_millis(20), partition_bytes: 1 << 20 };

/// How long a client pauses at most before it tries a lost broker again. librdkafka's own ten seconds would keep us away long
/// after Kafka is back.
const RECONNECT_PAUSE_MAX_MS: u32 = 1000;

/// Options that carry a promise of the port. An operator who sets one of them is told at start.
const RESERVED: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "auto.offset.reset",
    "bootstrap.servers",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "isolation.level",
    "max.in.flight.requests.per.connection",
    "message.max.bytes",
    "message.timeout.ms",
    "metadata.broker.list",
    "partitioner",
    "request.required.acks",
    "transaction.timeout.ms",
    "transactional.id",
];

/// How the engine reaches Kafka and what it allows itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaSettings {
    /// `host:port`, several with commas.
    pub bootstrap: String,
    /// Options for librdkafka by its own names: `compression.type`, and with the feature `kafka-tls` also `security.protocol`,
    /// `sasl.mechanism`, `ssl.ca.location` and the like.
    pub client: BTreeMap<String, String>,
    /// After this an append that Kafka has not acknowledged is answered as failed or unknown.
    pub message_timeout: Duration,
    /// After this Kafka ends a commit that its owner left open: until then it holds the readers of its partitions back, unless a
    /// successor opens the fence. Keep it near the session timeout of Coordination.
    pub transaction_timeout: Duration,
    /// How long a question to the broker (bounds, times, topics) may take; also how long a start waits for Kafka.
    pub request_timeout: Duration,
    /// The largest record, as [`whimbrel_model::Record::size`] counts. Topics are made with a `max.message.bytes` that fits; for a
    /// topic that others made with a smaller one, that one is the limit.
    pub record_bytes_max: usize,
    /// Fences have their name, with this before it, as their `transactional.id`: two installations on one Kafka need two.
    pub transactional_prefix: String,
    /// How long an append may wait in memory for company in its batch.
    pub linger: Duration,
    /// Records and bytes that wait in memory for Kafka; beyond, an append is [`whimbrel_model::ports::LogError::Overloaded`].
    pub queue_records_max: usize,
    pub queue_bytes_max: usize,
    /// Readers of one partition that stand at places of their own share this many connections beyond the first.
    pub extra_readers_max: usize,
}

impl KafkaSettings {
    pub fn new(bootstrap: impl Into<String>) -> Self {
        Self {
            bootstrap: bootstrap.into(),
            client: BTreeMap::new(),
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
            extra_readers_max: 8,
        }
    }

    /// What a topic's `max.message.bytes` must be for the largest record.
    pub(super) fn batch_bytes_max(&self) -> usize {
        self.record_bytes_max + BATCH_OVERHEAD_BYTES
    }

    /// The largest record of a topic whose `max.message.bytes` is that.
    pub(super) fn record_bytes_max_under(&self, batch_bytes_max: usize) -> usize {
        self.record_bytes_max.min(batch_bytes_max.saturating_sub(BATCH_OVERHEAD_BYTES))
    }

    pub(super) fn check(&self) -> Result<(), KafkaStartError> {
        if self.bootstrap.trim().is_empty() {
            return Err(KafkaStartError::NoBootstrap);
        }
        match RESERVED.iter().find(|key| self.client.contains_key(**key)) {
            Some(key) => Err(KafkaStartError::ReservedOption { key }),
            None => Ok(()),
        }
    }

    fn any_client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.bootstrap)
            .set("client.id", "whimbrel")
            // Asking for a topic that was deleted must not make it again, which a producer's questions do by default.
            .set("allow.auto.create.topics", "false")
            .set("reconnect.backoff.max.ms", RECONNECT_PAUSE_MAX_MS.to_string());
        for (key, value) in &self.client {
            config.set(key, value);
        }
        config
    }

    fn any_producer(&self) -> ClientConfig {
        let mut config = self.any_client();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.max.bytes", self.batch_bytes_max().to_string());
        self.unless_chosen(&mut config, "linger.ms", format!("{}", self.linger.as_secs_f64() * 1000.0));
        self.unless_chosen(&mut config, "batch.size", BATCH_BYTES_MAX.to_string());
        self.unless_chosen(&mut config, "queue.buffering.max.messages", self.queue_records_max.to_string());
        self.unless_chosen(&mut config, "queue.buffering.max.kbytes", (self.queue_bytes_max >> 10).to_string());
        config
    }

    /// The producer of appends. Public, so that a measurement can put a bare producer with the same settings beside the engine.
    pub fn append_producer(&self) -> ClientConfig {
        let mut config = self.any_producer();
        config.set("message.timeout.ms", self.message_timeout.as_millis().to_string());
        config
    }

    pub(super) fn transactional_id(&self, fence: &str) -> String {
        format!("{}{fence}", self.transactional_prefix)
    }

    pub(super) fn commit_producer(&self, fence: &str, epoch: u64) -> ClientConfig {
        let mut config = self.any_producer();
        let message_timeout = self.message_timeout.min(self.transaction_timeout);
        config
            .set("transactional.id", self.transactional_id(fence))
            .set("transaction.timeout.ms", self.transaction_timeout.as_millis().to_string())
            .set("message.timeout.ms", message_timeout.as_millis().to_string())
            .set("client.id", format!("whimbrel-{fence}-{epoch}"));
        config
    }

    /// A consumer that only asks questions: it has no group and no partitions.
    pub(super) fn query_client(&self, isolation: &str) -> ClientConfig {
        let mut config = self.any_client();
        config.set("isolation.level", isolation);
        config
    }

    /// A consumer that reads partitions it is assigned. librdkafka assigns only to a consumer with a group's name; this one
    /// never joins the group and never commits to it.
    pub(super) fn reader(&self, fetch: FetchShape) -> ClientConfig {
        let mut config = self.query_client("read_committed");
        config
            .set("group.id", "whimbrel-readers")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "false")
            .set("auto.offset.reset", "error")
            .set("fetch.wait.max.ms", fetch.longest.as_millis().to_string());
        let answer_bytes = FETCH_ANSWER_BYTES.max(self.batch_bytes_max() + BATCH_OVERHEAD_BYTES);
        self.unless_chosen(&mut config, "fetch.queue.backoff.ms", FETCH_QUEUE_BACKOFF_MS.to_string());
        self.unless_chosen(&mut config, "queued.max.messages.kbytes", (fetch.partition_bytes >> 10).to_string());
        self.unless_chosen(&mut config, "max.partition.fetch.bytes", fetch.partition_bytes.to_string());
        self.unless_chosen(&mut config, "fetch.max.bytes", answer_bytes.to_string());
        config.set("message.max.bytes", self.batch_bytes_max().to_string());
        config
    }

    /// A consumer that reads the coordinator's log, and what nobody can see yet, to its end.
    pub(super) fn inspector(&self) -> ClientConfig {
        let mut config = self.reader(INSPECTOR_FETCH);
        config.set("isolation.level", "read_uncommitted").set("enable.partition.eof", "true");
        config
    }

    pub(super) fn admin(&self) -> ClientConfig {
        self.any_client()
    }

    fn unless_chosen(&self, config: &mut ClientConfig, key: &str, value: String) {
        if !self.client.contains_key(key) {
            config.set(key, value);
        }
    }
}

/// How a reader fetches.
#[derive(Debug, Clone, Copy)]
pub(super) struct FetchShape {
    /// How long the broker may keep a fetch waiting for news.
    pub longest: Duration,
    /// Bytes that the broker may send of one partition in one answer, and that wait in memory per partition being read.
    pub partition_bytes: usize,
}

/// Why the engine could not start. Each says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KafkaStartError {
    #[error("no Kafka is named: set its bootstrap address, such as 127.0.0.1:9092")]
    NoBootstrap,
    #[error(
        "Kafka at {bootstrap} cannot be reached within {waited_ms} ms: is it running, and is the address right? ({reason})"
    )]
    Unreachable { bootstrap: String, waited_ms: u128, reason: String },
    #[error("the Kafka option `{key}` carries a promise of Whimbrel and cannot be changed: remove it")]
    ReservedOption { key: &'static str },
    #[error("Kafka's client does not take the option `{key}` = `{value}`: {reason}")]
    BadOption { key: String, value: String, reason: String },
    #[error("Kafka's client cannot be made: {0}")]
    Client(String),
}

impl From<rdkafka::error::KafkaError> for KafkaStartError {
    fn from(error: rdkafka::error::KafkaError) -> Self {
        match error {
            rdkafka::error::KafkaError::ClientConfig(_, reason, key, value) => Self::BadOption { key, value, reason },
            other => Self::Client(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_carries_a_promise_is_refused_by_name() {
        let mut settings = KafkaSettings::new("127.0.0.1:1");
        settings.client.insert("acks".into(), "1".into());
        assert_eq!(settings.check(), Err(KafkaStartError::ReservedOption { key: "acks" }));
    }

    #[test]
    fn an_option_of_the_operators_wins_over_a_default() {
        let mut settings = KafkaSettings::new("127.0.0.1:1");
        settings.client.insert("linger.ms".into(), "7".into());
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(settings.append_producer().get("linger.ms"), Some("7"));
        assert_eq!(settings.append_producer().get("acks"), Some("all"));
    }

    #[test]
    fn a_topic_with_smaller_batches_has_smaller_records() {
        let settings = KafkaSettings::new("127.0.0.1:1");
        assert_eq!(settings.record_bytes_max_under(settings.batch_bytes_max()), settings.record_bytes_max);
        assert_eq!(settings.record_bytes_max_under(usize::MAX), settings.record_bytes_max);
        assert_eq!(settings.record_bytes_max_under(10_000), 10_000 - BATCH_OVERHEAD_BYTES);
        assert_eq!(settings.record_bytes_max_under(10), 0);
    }
}
