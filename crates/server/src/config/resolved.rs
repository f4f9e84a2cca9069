//! The configuration in its checked form: typed, judged across settings. Nothing outside this folder sees another form.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use whimbrel_engines::embedded::{LogSettings, record_bytes_max};
use whimbrel_model::limits::KEY_MAX_BYTES;

use super::Settings;
use super::keys::KeyEntry;
use super::raw::{Findings, Source};
use super::value::Value;

/// What the server runs with.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: SocketAddr,
    pub internal_listen: SocketAddr,
    pub data: PathBuf,
    pub roles: Vec<String>,
    pub insecure: bool,
    pub workers: usize,
    pub connections_max: usize,
    pub header_wait: Duration,
    pub shutdown_wait: Duration,
    pub node: u16,
    pub log: LogConfig,
    pub kafka: KafkaConfig,
    pub limits: LimitsConfig,
    pub topics: TopicsConfig,
    pub receipts: ReceiptsConfig,
    pub telemetry_level: String,
    pub telemetry_format: TelemetryFormat,
    pub keys: Vec<KeyEntry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEngineName {
    Embedded,
    Kafka,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TelemetryFormat {
    Text,
    Json,
}

#[derive(Debug, Clone)]
pub struct LogConfig {
    pub engine: LogEngineName,
    pub retention: Option<Duration>,
    pub retention_bytes: Option<u64>,
    pub segment_bytes: u64,
    pub segment_age: Duration,
    pub journal_file_bytes: u64,
    pub journal_bytes: u64,
    pub checkpoint_bytes: u64,
    pub checkpoint_interval: Duration,
    pub tail_bytes: u64,
    pub unsaved_bytes: u64,
    pub gather: Duration,
    pub queue_bytes: usize,
    pub disk_reserve_bytes: u64,
}

#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "kafka"),
    expect(dead_code, reason = "what is configured for an engine that is not built in is only checked")
)]
pub struct KafkaConfig {
    pub bootstrap: String,
    pub message_timeout: Duration,
    pub transaction_timeout: Duration,
    pub request_timeout: Duration,
    pub linger: Duration,
    pub transactional_prefix: String,
    pub options: BTreeMap<String, String>,
}

#[derive(Debug, Clone)]
pub struct LimitsConfig {
    pub payload_bytes: usize,
    pub batch_messages: usize,
    pub batch_bytes: usize,
    pub headers: usize,
    pub header_bytes: usize,
    pub in_flight_bytes: usize,
    pub answer_bytes: usize,
    pub body_wait: Duration,
    pub search_records: usize,
    pub read_bytes: usize,
    pub topics: usize,
    pub tails: usize,
}

#[derive(Debug, Clone)]
pub struct TopicsConfig {
    pub partitions: u32,
    pub replicas: Option<u32>,
    pub min_insync: Option<u32>,
    pub auto_create: bool,
}

#[derive(Debug, Clone)]
pub struct ReceiptsConfig {
    pub window: Duration,
    pub id_window: Duration,
    pub lease: Duration,
}

/// Turns values into the checked form, and adds what does not fit together to the findings.
pub fn resolve(settings: &Settings, findings: &mut Findings) -> Config {
    let take = Take { settings };
    let config = Config {
        listen: take.address("listen"),
        internal_listen: take.address("internal_listen"),
        data: PathBuf::from(take.text("data")),
        roles: take.words("roles"),
        insecure: take.flag("insecure"),
        workers: take.count("workers").map_or_else(cores, |workers| workers as usize),
        connections_max: take.number("connections_max") as usize,
        header_wait: take.time("header_wait"),
        shutdown_wait: take.time("shutdown_wait"),
        node: take.number("node") as u16,
        log: LogConfig {
            engine: if take.text("log.engine") == "kafka" { LogEngineName::Kafka } else { LogEngineName::Embedded },
            retention: take.duration("log.retention"),
            retention_bytes: take.bytes("log.retention_bytes"),
            segment_bytes: take.size("log.segment_bytes") as u64,
            segment_age: take.time("log.segment_age"),
            journal_file_bytes: take.size("log.journal_file_bytes") as u64,
            journal_bytes: take.size("log.journal_bytes") as u64,
            checkpoint_bytes: take.size("log.checkpoint_bytes") as u64,
            checkpoint_interval: take.time("log.checkpoint_interval"),
            tail_bytes: take.size("log.tail_bytes") as u64,
            unsaved_bytes: take.size("log.unsaved_bytes") as u64,
            gather: Duration::from_micros(take.number("log.gather_us")),
            queue_bytes: take.size("log.queue_bytes"),
            disk_reserve_bytes: take.size("log.disk_reserve_bytes") as u64,
        },
        kafka: KafkaConfig {
            bootstrap: take.text("kafka.bootstrap"),
            message_timeout: take.time("kafka.message_timeout"),
            transaction_timeout: take.time("kafka.transaction_timeout"),
            request_timeout: take.time("kafka.request_timeout"),
            linger: take.time("kafka.linger"),
            transactional_prefix: take.text("kafka.transactional_prefix"),
            options: take.options("kafka.options"),
        },
        limits: LimitsConfig {
            payload_bytes: take.size("limits.payload_bytes"),
            batch_messages: take.number("limits.batch_messages") as usize,
            batch_bytes: take.size("limits.batch_bytes"),
            headers: take.number("limits.headers") as usize,
            header_bytes: take.size("limits.header_bytes"),
            in_flight_bytes: take.size("limits.in_flight_bytes"),
            answer_bytes: take.size("limits.answer_bytes"),
            body_wait: take.time("limits.body_wait"),
            search_records: take.number("limits.search_records") as usize,
            read_bytes: take.size("limits.read_bytes"),
            topics: take.number("limits.topics") as usize,
            tails: take.number("limits.tails") as usize,
        },
        topics: TopicsConfig {
            partitions: take.number("topics.partitions") as u32,
            replicas: take.count("topics.replicas").map(|copies| copies as u32),
            min_insync: take.count("topics.min_insync").map(|copies| copies as u32),
            auto_create: take.flag("topics.auto_create_topics"),
        },
        receipts: ReceiptsConfig {
            window: take.time("receipts.window"),
            id_window: take.time("receipts.id_window"),
            lease: take.time("receipts.lease"),
        },
        telemetry_level: take.text("telemetry.level"),
        telemetry_format: match take.text("telemetry.format").as_str() {
            "json" => TelemetryFormat::Json,
            _ => TelemetryFormat::Text,
        },
        keys: take.keys("keys"),
    };
    check(&config, settings, findings);
    config
}

fn check(config: &Config, settings: &Settings, findings: &mut Findings) {
    let at = |path: &str| match settings.get(path).1 {
        Source::Default => format!("`{path}`"),
        source => format!("`{path}` ({source})"),
    };
    let mut wrong = |text: String| findings.problems.push(text);
    if !config.listen.ip().is_loopback() && config.keys.is_empty() && !config.insecure {
        wrong(format!(
            "{}: {} can be reached from other machines, and no API keys are configured; add [[keys]] to the \
             configuration file, listen on 127.0.0.1, or pass --insecure to serve everybody",
            at("listen"),
            config.listen
        ));
    }
    if config.listen == config.internal_listen && config.listen.port() != 0 {
        wrong(format!("{} is the same address as {}", at("internal_listen"), at("listen")));
    }
    if config.limits.batch_bytes < config.limits.payload_bytes {
        wrong(format!(
            "{} is below {}: a batch of one message could be refused where the message alone is not",
            at("limits.batch_bytes"),
            at("limits.payload_bytes")
        ));
    }
    let largest = config.limits.payload_bytes + config.limits.headers * config.limits.header_bytes + KEY_MAX_BYTES;
    let taken = record_bytes_max(&LogSettings::default());
    if config.log.engine == LogEngineName::Embedded && largest > taken {
        wrong(format!(
            "{}: with its headers a message could have {largest} bytes, and the embedded log takes {taken}",
            at("limits.payload_bytes")
        ));
    }
    if config.limits.in_flight_bytes < config.limits.batch_bytes {
        wrong(format!(
            "{} is below {}: the largest batch could never be accepted",
            at("limits.in_flight_bytes"),
            at("limits.batch_bytes")
        ));
    }
    if config.log.journal_bytes < 3 * config.log.journal_file_bytes {
        wrong(format!("{} is below three times {}", at("log.journal_bytes"), at("log.journal_file_bytes")));
    }
    if config.log.checkpoint_bytes > config.log.journal_bytes / 2 {
        wrong(format!("{} is above half of {}", at("log.checkpoint_bytes"), at("log.journal_bytes")));
    }
    if config.log.engine == LogEngineName::Embedded && config.topics.replicas.is_some_and(|copies| copies > 1) {
        wrong(format!("{}: the embedded log keeps one copy; more need log.engine = \"kafka\"", at("topics.replicas")));
    }
    if config.topics.replicas.zip(config.topics.min_insync).is_some_and(|(copies, least)| least > copies) {
        wrong(format!("{} is above {}", at("topics.min_insync"), at("topics.replicas")));
    }
    if config.data.as_os_str().is_empty() {
        wrong(format!("{} is empty: name a folder", at("data")));
    }
    if config.log.engine == LogEngineName::Kafka && config.kafka.bootstrap.trim().is_empty() {
        wrong(format!("{} is empty: name at least one broker as host:port", at("kafka.bootstrap")));
    }
    if config.log.engine == LogEngineName::Kafka && config.receipts.lease <= config.kafka.message_timeout {
        wrong(format!("{} must be longer than {}", at("receipts.lease"), at("kafka.message_timeout")));
    }
    if let Err(error) = config.telemetry_level.parse::<tracing_subscriber::filter::Targets>() {
        wrong(format!("{}: `{}` is not a level: {error}", at("telemetry.level"), config.telemetry_level));
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Takes values by path as the type that their kind has. A wrong type is a mistake of this file, which its test finds.
struct Take<'a> {
    settings: &'a Settings,
}

macro_rules! take {
    ($name:ident, $variant:ident($value:ident) => $into:expr, $type:ty) => {
        fn $name(&self, path: &str) -> $type {
            match self.settings.get(path).0 {
                Value::$variant($value) => $into,
                other => unreachable!("`{path}` is {other:?}"),
            }
        }
    };
    ($name:ident, or $variant:ident($value:ident) => $into:expr, $type:ty) => {
        fn $name(&self, path: &str) -> Option<$type> {
            match self.settings.get(path).0 {
                Value::$variant($value) => Some($into),
                Value::Left(_) => None,
                other => unreachable!("`{path}` is {other:?}"),
            }
        }
    };
}

impl Take<'_> {
    take!(flag, Flag(value) => *value, bool);
    take!(address, Address(value) => *value, SocketAddr);
    take!(text, Text(value) => value.clone(), String);
    take!(number, Count(value) => *value, u64);
    take!(count, or Count(value) => *value, u64);
    take!(time, Duration(value) => *value, Duration);
    take!(duration, or Duration(value) => *value, Duration);
    take!(size, Bytes(value) => usize::try_from(*value).unwrap_or(usize::MAX), usize);
    take!(bytes, or Bytes(value) => *value, u64);
    take!(words, Words(value) => value.clone(), Vec<String>);
    take!(options, Options(value) => value.clone(), BTreeMap<String, String>);
    take!(keys, Keys(value) => value.clone(), Vec<KeyEntry>);
}

#[cfg(test)]
mod tests {
    use super::super::{Loaded, SETTINGS, Sources, load};
    use super::*;

    fn with_flags(flags: &[(&str, &str)]) -> Loaded {
        let flags =
            flags.iter().map(|(path, text)| ((*path).into(), (*text).into(), format!("--set {path}"))).collect();
        load(&Sources { flags, ..Sources::default() })
    }

    #[test]
    fn the_defaults_have_nothing_wrong() {
        let loaded = with_flags(&[]);
        assert_eq!(loaded.findings, Findings::default());
        assert!(loaded.config.is_some());
    }

    #[test]
    fn every_setting_is_used_by_this_file() {
        let source = include_str!("resolved.rs");
        for setting in SETTINGS {
            assert!(source.contains(&format!("(\"{}\")", setting.path)), "`{}` has no effect", setting.path);
        }
    }

    #[test]
    fn listening_beyond_this_machine_wants_keys_or_insecure() {
        let refused = with_flags(&[("listen", "0.0.0.0:7600")]);
        assert!(refused.findings.problems[0].contains("no API keys are configured"), "{:?}", refused.findings);
        assert!(with_flags(&[("listen", "0.0.0.0:7600"), ("insecure", "true")]).config.is_some());
        let key = r#"[{name="a",secret="0123456789abcdef",scopes=["publish"]}]"#;
        assert!(with_flags(&[("listen", "[::]:7600"), ("keys", key)]).config.is_some());
    }

    #[test]
    fn settings_that_contradict_each_other_are_named_together() {
        let loaded = with_flags(&[("limits.batch_bytes", "1KiB"), ("telemetry.level", "lud=er"), ("data", "")]);
        assert_eq!(loaded.findings.problems.len(), 3, "{:?}", loaded.findings);
        assert!(loaded.findings.problems[0].contains("`limits.batch_bytes` (--set limits.batch_bytes)"));
    }
}
