//! The typed configuration. `validation.rs` validates its settings against each other. No other form of the configuration leaves this folder.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::keys::KeyEntry;
use super::people::{self, ClientsConfig, GatewayConfig, HornConfig, PresenceConfig, PushConfig};
use super::sources::Findings;
use super::value::SettingValue;
use super::{EffectiveSettings, validation};

#[derive(Debug, Clone)]
pub struct Config {
    pub listen: SocketAddr,
    pub internal_listen: SocketAddr,
    /// Address at which other nodes reach `internal_listen`; `None`: `internal_listen` itself.
    pub advertise: Option<String>,
    pub internal_key: SecretText,
    /// A second internal key that this node accepts from callers and never presents.
    pub internal_key_previous: SecretText,
    pub data: PathBuf,
    pub roles: Roles,
    pub insecure: bool,
    pub workers: usize,
    pub connections_max: usize,
    pub header_wait: Duration,
    pub shutdown_wait: Duration,
    pub node: u16,
    /// Name of this node in the cluster; `None`: its host and port.
    pub name: Option<String>,
    pub log: LogConfig,
    pub kafka: KafkaConfig,
    pub limits: LimitsConfig,
    pub topics: TopicsConfig,
    pub receipts: ReceiptsConfig,
    pub holds: HoldsConfig,
    pub timers: StateEngineName,
    pub subscriptions: SubscriptionsConfig,
    pub callbacks: CallbacksConfig,
    pub push: PushConfig,
    pub gateway: GatewayConfig,
    pub clients: ClientsConfig,
    pub presence: PresenceConfig,
    pub devices: StateEngineName,
    pub horn: HornConfig,
    pub redis: RedisConfig,
    pub coordination: CoordinationEngineName,
    pub clock_skew: Duration,
    pub clock_stepout: Duration,
    pub etcd: EtcdConfig,
    pub telemetry_level: String,
    pub telemetry_format: TelemetryFormat,
    pub keys: Vec<KeyEntry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEngineName {
    Embedded,
    Kafka,
}

/// Where state beside the log is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateEngineName {
    Embedded,
    Redis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoordinationEngineName {
    Process,
    Etcd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    pub receive: bool,
    pub center: bool,
    pub worker: bool,
    pub gateway: bool,
    pub presence: bool,
    pub carrier: bool,
    pub horn: bool,
}

impl Roles {
    fn of(words: &[String]) -> Self {
        let has = |role: &str| words.iter().any(|word| word == role || word == "all");
        Self {
            receive: has("receive"),
            center: has("center"),
            worker: has("worker"),
            gateway: has("gateway"),
            presence: has("presence"),
            carrier: has("carrier"),
            horn: has("horn"),
        }
    }

    pub fn names(self) -> Vec<&'static str> {
        self.each().into_iter().filter(|(runs, _)| *runs).map(|(_, name)| name).collect()
    }

    pub fn are_all(self) -> bool {
        self.each().iter().all(|(runs, _)| *runs)
    }

    fn each(self) -> [(bool, &'static str); 7] {
        [
            (self.receive, "receive"),
            (self.center, "center"),
            (self.worker, "worker"),
            (self.gateway, "gateway"),
            (self.presence, "presence"),
            (self.carrier, "carrier"),
            (self.horn, "horn"),
        ]
    }
}

/// A text that must not be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "(set)" })
    }
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
    /// `None`: never.
    pub scrub_interval: Option<Duration>,
    pub scrub_rate: u64,
}

#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "kafka"),
    expect(dead_code, reason = "settings of an engine that is not built in are only validated")
)]
pub struct KafkaConfig {
    pub bootstrap: String,
    pub message_timeout: Duration,
    pub transaction_timeout: Duration,
    pub request_timeout: Duration,
    pub linger: Duration,
    pub transactional_prefix: String,
    pub client_id: String,
    pub compression: String,
    pub tls: bool,
    pub tls_ca_file: Option<PathBuf>,
    pub tls_certificate_file: Option<PathBuf>,
    pub tls_key_file: Option<PathBuf>,
    pub sasl: String,
    pub sasl_username: String,
    pub sasl_password: SecretText,
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
    pub linger_bytes: usize,
    pub linger_timeout: Duration,
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
    pub engine: StateEngineName,
    pub window: Duration,
    pub id_window: Duration,
    pub lease: Duration,
}

#[derive(Debug, Clone)]
pub struct HoldsConfig {
    pub window: Duration,
    pub window_bytes: usize,
    pub checkpoint_interval: Duration,
    pub keep_log: Duration,
    pub trim_interval: Duration,
    pub remember: Duration,
    pub shards: u32,
    pub commands_waiting: usize,
    pub behind: u64,
}

#[derive(Debug, Clone)]
pub struct SubscriptionsConfig {
    pub engine: StateEngineName,
    pub prefetch_bytes: usize,
    pub parked_bytes: usize,
    pub retry_holds: u64,
    pub save_interval: Duration,
    pub attempts_bytes: u64,
    pub breaker_failures: u32,
    pub breaker_pause: Duration,
    pub breaker_pause_max: Duration,
    /// `None`: one for each CPU core.
    pub threads: Option<usize>,
}

#[derive(Debug, Clone)]
pub struct CallbacksConfig {
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    pub connect_timeout: Duration,
}

#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "redis"),
    expect(dead_code, reason = "settings of an engine that is not built in are only validated")
)]
pub struct RedisConfig {
    pub urls: Vec<String>,
    pub user: String,
    pub password: SecretText,
    pub prefix: String,
    pub connect_timeout: Duration,
    pub response_timeout: Duration,
}

#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "etcd"),
    expect(dead_code, reason = "settings of an engine that is not built in are only validated")
)]
pub struct EtcdConfig {
    pub endpoints: Vec<String>,
    pub prefix: String,
    pub session: Duration,
    pub user: String,
    pub password: SecretText,
    pub request_timeout: Duration,
}

/// Converts values to the typed configuration, and adds conflicts between settings to the findings.
pub fn resolve(settings: &EffectiveSettings, findings: &mut Findings) -> Config {
    let take = TypedSettings { settings };
    let config = Config {
        listen: take.address("listen"),
        internal_listen: take.address("internal_listen"),
        advertise: take.unless_auto("advertise"),
        internal_key: take.secret("internal_key"),
        internal_key_previous: take.secret("internal_key_previous"),
        data: PathBuf::from(take.text("data")),
        roles: Roles::of(&take.words("roles")),
        insecure: take.flag("insecure"),
        workers: take.count("workers").map_or_else(cores, |workers| workers as usize),
        connections_max: take.number("connections_max") as usize,
        header_wait: take.time("header_wait"),
        shutdown_wait: take.time("shutdown_wait"),
        node: take.number("node") as u16,
        name: take.unless_auto("name"),
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
            scrub_interval: take.duration("log.scrub_interval"),
            scrub_rate: take.size("log.scrub_rate") as u64,
        },
        kafka: KafkaConfig {
            bootstrap: take.text("kafka.bootstrap"),
            message_timeout: take.time("kafka.message_timeout"),
            transaction_timeout: take.time("kafka.transaction_timeout"),
            request_timeout: take.time("kafka.request_timeout"),
            linger: take.time("kafka.linger"),
            transactional_prefix: take.text("kafka.transactional_prefix"),
            client_id: take.text("kafka.client_id"),
            compression: take.text("kafka.compression"),
            tls: take.flag("kafka.tls"),
            tls_ca_file: take.unless_empty("kafka.tls_ca_file").map(PathBuf::from),
            tls_certificate_file: take.unless_empty("kafka.tls_certificate_file").map(PathBuf::from),
            tls_key_file: take.unless_empty("kafka.tls_key_file").map(PathBuf::from),
            sasl: take.text("kafka.sasl"),
            sasl_username: take.text("kafka.sasl_username"),
            sasl_password: take.secret("kafka.sasl_password"),
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
            linger_bytes: take.size("limits.linger_bytes"),
            linger_timeout: take.time("limits.linger_timeout"),
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
            engine: take.state_engine("receipts.engine"),
            window: take.time("receipts.window"),
            id_window: take.time("receipts.id_window"),
            lease: take.time("receipts.lease"),
        },
        holds: HoldsConfig {
            window: take.time("holds.window"),
            window_bytes: take.size("holds.window_bytes"),
            checkpoint_interval: take.time("holds.checkpoint_interval"),
            keep_log: take.time("holds.keep_log"),
            trim_interval: take.time("holds.trim_interval"),
            remember: take.time("holds.remember"),
            shards: take.number("holds.shards") as u32,
            commands_waiting: take.number("holds.commands_waiting") as usize,
            behind: take.number("holds.behind"),
        },
        timers: take.state_engine("timers.engine"),
        subscriptions: SubscriptionsConfig {
            engine: take.state_engine("subscriptions.engine"),
            prefetch_bytes: take.size("subscriptions.prefetch_bytes"),
            parked_bytes: take.size("subscriptions.parked_bytes"),
            retry_holds: take.number("subscriptions.retry_holds"),
            save_interval: take.time("subscriptions.save_interval"),
            attempts_bytes: take.size("subscriptions.attempts_bytes") as u64,
            breaker_failures: take.number("subscriptions.breaker_failures") as u32,
            breaker_pause: take.time("subscriptions.breaker_pause"),
            breaker_pause_max: take.time("subscriptions.breaker_pause_max"),
            threads: take.count("subscriptions.threads").map(|threads| threads as usize),
        },
        callbacks: CallbacksConfig {
            allow: take.separated("callbacks.allow"),
            deny: take.separated("callbacks.deny"),
            connect_timeout: take.time("callbacks.connect_timeout"),
        },
        push: people::push(&take),
        gateway: people::gateway(&take),
        clients: people::clients(&take),
        presence: people::presence(&take),
        devices: take.state_engine("devices.engine"),
        horn: people::horn(&take),
        redis: RedisConfig {
            urls: take.separated("redis.urls"),
            user: take.text("redis.user"),
            password: take.secret("redis.password"),
            prefix: take.text("redis.prefix"),
            connect_timeout: take.time("redis.connect_timeout"),
            response_timeout: take.time("redis.response_timeout"),
        },
        coordination: match take.text("coordination.engine").as_str() {
            "etcd" => CoordinationEngineName::Etcd,
            _ => CoordinationEngineName::Process,
        },
        clock_skew: take.time("coordination.clock_skew"),
        clock_stepout: take.time("coordination.clock_stepout"),
        etcd: EtcdConfig {
            endpoints: take.separated("etcd.endpoints"),
            prefix: take.text("etcd.prefix"),
            session: take.time("etcd.session"),
            user: take.text("etcd.user"),
            password: take.secret("etcd.password"),
            request_timeout: take.time("etcd.request_timeout"),
        },
        telemetry_level: take.text("telemetry.level"),
        telemetry_format: match take.text("telemetry.format").as_str() {
            "json" => TelemetryFormat::Json,
            _ => TelemetryFormat::Text,
        },
        keys: take.keys("keys"),
    };
    validation::validate(&config, settings, findings);
    config
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Takes values by path, as the type that their kind has. A wrong type is a bug of this folder, which a test finds.
pub(super) struct TypedSettings<'a> {
    settings: &'a EffectiveSettings,
}

macro_rules! take {
    ($name:ident, $variant:ident($value:ident) => $into:expr, $type:ty) => {
        pub(super) fn $name(&self, path: &str) -> $type {
            match self.settings.get(path).0 {
                SettingValue::$variant($value) => $into,
                other => unreachable!("`{path}` is {other:?}"),
            }
        }
    };
    ($name:ident, or $variant:ident($value:ident) => $into:expr, $type:ty) => {
        pub(super) fn $name(&self, path: &str) -> Option<$type> {
            match self.settings.get(path).0 {
                SettingValue::$variant($value) => Some($into),
                SettingValue::Left(_) => None,
                other => unreachable!("`{path}` is {other:?}"),
            }
        }
    };
}

impl TypedSettings<'_> {
    take!(flag, Flag(value) => *value, bool);
    take!(address, Address(value) => *value, SocketAddr);
    take!(text, Text(value) => value.clone(), String);
    take!(secret, Secret(value) => SecretText(value.clone()), SecretText);
    take!(number, Count(value) => *value, u64);
    take!(count, or Count(value) => *value, u64);
    take!(time, Duration(value) => *value, Duration);
    take!(duration, or Duration(value) => *value, Duration);
    take!(size, Bytes(value) => usize::try_from(*value).unwrap_or(usize::MAX), usize);
    take!(bytes, or Bytes(value) => *value, u64);
    take!(words, Words(value) => value.clone(), Vec<String>);
    take!(keys, Keys(value) => value.clone(), Vec<KeyEntry>);

    fn unless_auto(&self, path: &str) -> Option<String> {
        Some(self.text(path)).filter(|text| text != "auto")
    }

    pub(super) fn unless_empty(&self, path: &str) -> Option<String> {
        Some(self.text(path)).filter(|text| !text.trim().is_empty())
    }

    /// The items of a comma-separated text.
    pub(super) fn separated(&self, path: &str) -> Vec<String> {
        let text = self.text(path);
        text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
    }

    pub(super) fn state_engine(&self, path: &str) -> StateEngineName {
        if self.text(path) == "redis" { StateEngineName::Redis } else { StateEngineName::Embedded }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LoadedConfig, SETTINGS, Sources, load};
    use super::*;

    fn with_flags(flags: &[(&str, &str)]) -> LoadedConfig {
        let flags =
            flags.iter().map(|(path, text)| ((*path).into(), (*text).into(), format!("--set {path}"))).collect();
        load(&Sources { flags, ..Sources::default() })
    }

    #[test]
    fn the_defaults_are_valid() {
        let loaded = with_flags(&[]);
        assert_eq!(loaded.findings, Findings::default());
        assert!(loaded.config.is_some());
    }

    #[test]
    fn every_setting_is_used() {
        let source = concat!(include_str!("resolved.rs"), include_str!("people.rs"));
        for setting in SETTINGS {
            assert!(source.contains(&format!("(\"{}\")", setting.path)), "`{}` has no effect", setting.path);
        }
    }
}
