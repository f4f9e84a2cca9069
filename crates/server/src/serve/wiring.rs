//! Converts the configuration to the settings of engines and roles. `whimbrel_engines::resolve` decides which engine serves which port;
//! this module only converts types.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use whimbrel_api::endpoint::AddressGuard;
use whimbrel_catalogue::topics::TopicDefaults;
use whimbrel_dispatch::DispatchSettings;
use whimbrel_dispatch::breaker::BreakerSettings;
use whimbrel_egress::worker::WorkerSettings;
use whimbrel_engines::embedded::{LogSettings, NotebookSettings, OpenError};
use whimbrel_engines::resolve::{
    CoordinationEngine, EngineError, EngineSettings, Engines, LogEngine, StateEngine, resolve,
};
use whimbrel_engines::stores::{ReceiptSettings, TimerSettings};
use whimbrel_holds::HoldsSettings;
use whimbrel_ingress::{ApiKey, BacklogLimits, DestinationGuards, KeySecret, PageInfo, ReceiveSettings, Scope};
use whimbrel_model::{Clock, EventSink, Retention};

use crate::cli::CliError;
use crate::config::{Config, CoordinationEngineName, KeyEntry, LogEngineName, PresenceEngineName, StateEngineName};

/// Opens the engines that the configuration names.
pub async fn open_engines(config: &Config, clock: Arc<dyn Clock>, events: EventSink) -> Result<Engines, CliError> {
    resolve(engine_settings(config)?, clock, events).await.map_err(|error| {
        let failure = CliError::new(error.to_string());
        match hint_for(&error) {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    })
}

/// The configured engines with their settings.
pub fn engine_settings(config: &Config) -> Result<EngineSettings, CliError> {
    Ok(EngineSettings {
        data: config.process.data.clone(),
        log: log_engine(config)?,
        coordination: coordination_engine(config)?,
        receipts: receipt_settings(config),
        receipts_engine: state_engine(config, config.receipts.engine, "receipts.engine")?,
        timers: timer_settings(config),
        timers_engine: state_engine(config, config.timers.engine, "timers.engine")?,
        progress_engine: state_engine(config, config.subscriptions.engine, "subscriptions.engine")?,
        inbox_engine: state_engine(config, config.push.engine, "push.engine")?,
        sessions_engine: match config.presence.engine {
            PresenceEngineName::Memory => StateEngine::Embedded,
            PresenceEngineName::Redis => redis_engine(config, "presence.engine")?,
        },
        devices_engine: state_engine(config, config.devices.engine, "devices.engine")?,
        notebook: notebook_settings(config),
    })
}

/// The engines of the ports, as lines of the banner.
pub fn describe(config: &Config, engines: &Engines) -> Vec<String> {
    let catalogue = match config.coordination.engine {
        CoordinationEngineName::Process => "coordination, catalogue: this process".to_owned(),
        CoordinationEngineName::Etcd => {
            format!("coordination, catalogue: etcd at {}", config.servers.etcd.endpoints.join(", "))
        }
    };
    vec![format!("log: {}", engines.description), catalogue]
}

/// The fix for engines that do not open.
fn hint_for(error: &EngineError) -> Option<&'static str> {
    match error {
        EngineError::Folder(OpenError::InUse(_)) => {
            Some("stop the other server, or use another folder: whimbrel serve --data DIR")
        }
        EngineError::Folder(OpenError::NotOurs(_)) => {
            Some("set an empty folder, or one that Whimbrel created, with --data")
        }
        EngineError::Folder(OpenError::OtherFormat { .. }) => {
            Some("run the version that wrote it, or a newer one; nothing was changed")
        }
        EngineError::Folder(OpenError::Unreadable { .. } | OpenError::CatalogueMissing(_)) => {
            Some("restore the folder from a backup; docs/operating/trouble.md describes the fix without one")
        }
        EngineError::Receipts(_) => Some(
            "move the folder `receipts` away: the server rebuilds receipts from the log, as far back as the window",
        ),
        EngineError::Folder(OpenError::Io { .. }) => Some("does the folder exist, and can this user write to it?"),
        _ => None,
    }
}

fn log_engine(config: &Config) -> Result<LogEngine, CliError> {
    match config.log.engine {
        LogEngineName::Embedded => Ok(LogEngine::Embedded(log_settings(config))),
        LogEngineName::Kafka => kafka_engine(config),
    }
}

fn log_settings(config: &Config) -> LogSettings {
    let log = &config.log;
    LogSettings {
        journal_file_bytes: log.journal_file_bytes,
        journal_bytes_max: log.journal_bytes,
        checkpoint_bytes: log.checkpoint_bytes,
        checkpoint_interval: log.checkpoint_interval,
        segment_bytes: log.segment_bytes,
        segment_age: log.segment_age,
        tail_bytes: log.tail_bytes,
        unsaved_bytes_max: log.unsaved_bytes,
        gather_max: Duration::from_micros(log.gather_us),
        queue_bytes_max: log.queue_bytes,
        disk_reserve_bytes: log.disk_reserve_bytes,
        scrub_interval: log.scrub_interval,
        scrub_rate: log.scrub_rate,
        ..LogSettings::default()
    }
}

#[cfg(feature = "kafka")]
fn kafka_engine(config: &Config) -> Result<LogEngine, CliError> {
    Ok(LogEngine::Kafka(kafka_settings(config)))
}

/// The first problem of the certificates and the key for Kafka, which would fail a start.
#[cfg(feature = "kafka")]
pub fn kafka_file_problem(config: &Config) -> Option<String> {
    let is_used = config.log.engine == LogEngineName::Kafka && config.servers.kafka.tls;
    let problem = if is_used { kafka_settings(config).check_files().err() } else { None };
    problem.map(|error| error.to_string())
}

#[cfg(not(feature = "kafka"))]
pub fn kafka_file_problem(_: &Config) -> Option<String> {
    None
}

#[cfg(not(feature = "kafka"))]
fn kafka_engine(_: &Config) -> Result<LogEngine, CliError> {
    Err(CliError::new("`log.engine` is \"kafka\", but this binary was built without Kafka")
        .with_hint("build with --features kafka, or set log.engine = \"embedded\""))
}

#[cfg(feature = "kafka")]
fn kafka_settings(config: &Config) -> whimbrel_engines::kafka::KafkaSettings {
    use whimbrel_engines::kafka::settings::{Compression, Sasl, SaslMechanism, Tls, TlsIdentity};
    let (kafka, limits) = (&config.servers.kafka, &config.limits);
    let identity = kafka.tls_certificate_file.clone().zip(kafka.tls_key_file.clone());
    let tls = Tls {
        ca_file: kafka.tls_ca_file.clone(),
        identity: identity.map(|(certificate_file, key_file)| TlsIdentity { certificate_file, key_file }),
    };
    let mechanism = match kafka.sasl.as_str() {
        "PLAIN" => Some(SaslMechanism::Plain),
        "SCRAM-SHA-256" => Some(SaslMechanism::ScramSha256),
        "SCRAM-SHA-512" => Some(SaslMechanism::ScramSha512),
        _ => None,
    };
    whimbrel_engines::kafka::KafkaSettings {
        client_id: kafka.client_id.clone(),
        tls: kafka.tls.then_some(tls),
        sasl: mechanism.map(|mechanism| Sasl {
            mechanism,
            username: kafka.sasl_username.clone(),
            password: kafka.sasl_password.0.clone(),
        }),
        compression: match kafka.compression.as_str() {
            "gzip" => Compression::Gzip,
            "snappy" => Compression::Snappy,
            "lz4" => Compression::Lz4,
            "zstd" => Compression::Zstd,
            _ => Compression::None,
        },
        message_timeout: kafka.message_timeout,
        transaction_timeout: kafka.transaction_timeout,
        request_timeout: kafka.request_timeout,
        linger: kafka.linger,
        record_bytes_max: limits.payload_bytes
            + whimbrel_model::limits::KEY_MAX_BYTES
            + limits.headers * limits.header_bytes,
        transactional_prefix: kafka.transactional_prefix.clone(),
        ..whimbrel_engines::kafka::KafkaSettings::new(kafka.bootstrap.clone())
    }
}

fn coordination_engine(config: &Config) -> Result<CoordinationEngine, CliError> {
    match config.coordination.engine {
        CoordinationEngineName::Process => Ok(CoordinationEngine::InProcess),
        CoordinationEngineName::Etcd => etcd_engine(config),
    }
}

#[cfg(feature = "etcd")]
fn etcd_engine(config: &Config) -> Result<CoordinationEngine, CliError> {
    Ok(CoordinationEngine::Etcd(etcd_settings(config)))
}

#[cfg(not(feature = "etcd"))]
fn etcd_engine(_: &Config) -> Result<CoordinationEngine, CliError> {
    Err(CliError::new("`coordination.engine` is \"etcd\", but this binary was built without etcd")
        .with_hint("build with --features etcd, or set coordination.engine = \"process\""))
}

#[cfg(feature = "etcd")]
fn etcd_settings(config: &Config) -> whimbrel_engines::etcd::EtcdSettings {
    let etcd = &config.servers.etcd;
    whimbrel_engines::etcd::EtcdSettings {
        endpoints: etcd.endpoints.clone(),
        prefix: etcd.prefix.clone(),
        login: (!etcd.user.is_empty())
            .then(|| whimbrel_engines::etcd::EtcdLogin { user: etcd.user.clone(), password: etcd.password.0.clone() }),
        session: etcd.session,
        request_timeout: etcd.request_timeout,
    }
}

fn state_engine(config: &Config, engine: StateEngineName, setting: &str) -> Result<StateEngine, CliError> {
    match engine {
        StateEngineName::Embedded => Ok(StateEngine::Embedded),
        StateEngineName::Redis => redis_engine(config, setting),
    }
}

#[cfg(feature = "redis")]
fn redis_engine(config: &Config, _: &str) -> Result<StateEngine, CliError> {
    Ok(StateEngine::Redis(redis_settings(config)))
}

#[cfg(not(feature = "redis"))]
fn redis_engine(_: &Config, setting: &str) -> Result<StateEngine, CliError> {
    Err(CliError::new(format!("`{setting}` is \"redis\", but this binary was built without Redis"))
        .with_hint(format!("build with --features redis, or set {setting} = \"embedded\"")))
}

#[cfg(feature = "redis")]
fn redis_settings(config: &Config) -> whimbrel_engines::redis::RedisSettings {
    let redis = &config.servers.redis;
    whimbrel_engines::redis::RedisSettings {
        urls: redis.urls.clone(),
        user: redis.user.clone(),
        password: redis.password.0.clone(),
        prefix: redis.prefix.clone(),
        connect_timeout: redis.connect_timeout,
        response_timeout: redis.response_timeout,
    }
}

pub fn holds_settings(config: &Config) -> HoldsSettings {
    let holds = &config.holds;
    HoldsSettings {
        window: holds.window,
        window_bytes: holds.window_bytes,
        checkpoint_interval: holds.checkpoint_interval,
        commands_waiting: holds.commands_waiting,
        keep_log: holds.keep_log,
        trim_interval: holds.trim_interval,
        remember: holds.remember,
        clock_skew: config.coordination.clock_skew,
        ..HoldsSettings::default()
    }
}

/// The settings of the dispatch of subscriptions.
pub fn dispatch_settings(config: &Config) -> DispatchSettings {
    let subscriptions = &config.subscriptions;
    DispatchSettings {
        prefetch_bytes: subscriptions.prefetch_bytes,
        parked_bytes: subscriptions.parked_bytes,
        retry_holds: subscriptions.retry_holds,
        save_interval: subscriptions.save_interval,
        breaker: BreakerSettings {
            failures: subscriptions.breaker_failures,
            pause: subscriptions.breaker_pause,
            pause_max: subscriptions.breaker_pause_max,
        },
        threads: subscriptions.threads.unwrap_or(0),
        ..DispatchSettings::default()
    }
}

pub fn worker_settings(config: &Config, clock: &Arc<dyn Clock>) -> Result<WorkerSettings, CliError> {
    let guard = address_guard(config)?;
    let (connect_timeout, clock) = (config.callbacks.connect_timeout, Arc::clone(clock));
    Ok(WorkerSettings { guard, connect_timeout, clock, ..WorkerSettings::default() })
}

/// The permitted destinations of callbacks.
pub fn address_guard(config: &Config) -> Result<AddressGuard, CliError> {
    let callbacks = &config.callbacks;
    AddressGuard::new(&callbacks.allow, &callbacks.deny).map_err(|error| CliError::new(error.to_string()))
}

/// The permitted destinations of notifications to URLs from devices.
pub fn device_guard(config: &Config) -> Result<AddressGuard, CliError> {
    AddressGuard::for_devices(&config.horn.allow, &config.callbacks.deny)
        .map_err(|error| CliError::new(error.to_string()))
}

fn notebook_settings(config: &Config) -> NotebookSettings {
    NotebookSettings { attempts_bytes_max: config.subscriptions.attempts_bytes, ..NotebookSettings::default() }
}

fn timer_settings(config: &Config) -> TimerSettings {
    TimerSettings { remember: config.holds.remember }
}

fn receipt_settings(config: &Config) -> ReceiptSettings {
    let receipts = &config.receipts;
    ReceiptSettings {
        window: receipts.window,
        id_window: receipts.id_window,
        lease: receipts.lease,
        ..ReceiptSettings::default()
    }
}

pub fn topic_defaults(config: &Config) -> TopicDefaults {
    TopicDefaults {
        auto_create: config.topics.auto_create_topics,
        partitions: config.topics.partitions,
        retention: Retention { time: config.log.retention, bytes: config.log.retention_bytes },
        replicas: config.topics.replicas,
        min_insync: config.topics.min_insync,
        topics_max: config.limits.topics,
    }
}

/// The permitted destinations of callbacks, and of notifications to URLs from devices.
pub fn destination_guards(config: &Config) -> Result<DestinationGuards, CliError> {
    Ok(DestinationGuards { callbacks: Arc::new(address_guard(config)?), devices: Arc::new(device_guard(config)?) })
}

/// The settings of `receive`.
pub fn receive_settings(
    config: &Config,
    node: u16,
    address: String,
    engines: Vec<String>,
    guards: DestinationGuards,
    shutdown: &CancellationToken,
) -> ReceiveSettings {
    let limits = &config.limits;
    ReceiveSettings {
        payload_bytes_max: limits.payload_bytes,
        batch_messages_max: limits.batch_messages,
        batch_bytes_max: limits.batch_bytes,
        headers_max: limits.headers,
        header_bytes_max: limits.header_bytes,
        read_bytes_max: limits.read_bytes,
        in_flight_bytes_max: limits.in_flight_bytes,
        answer_bytes_max: limits.answer_bytes,
        body_timeout: limits.body_timeout,
        search_scan_max_records: limits.search_records,
        tails_max: limits.tails,
        push_ttl_max: config.push.ttl_max,
        backlog: BacklogLimits { holds: config.holds.max_backlog, push: config.push.max_backlog },
        node,
        keys: config.keys.iter().map(api_key).collect(),
        guards,
        mute_providers: super::people_wiring::mute_providers(config),
        page: PageInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data_folder: config.process.data.display().to_string(),
            engines,
            address,
        },
        shutdown: shutdown.clone(),
    }
}

fn api_key(entry: &KeyEntry) -> ApiKey {
    ApiKey {
        name: entry.name.clone(),
        secret: entry.digest().map_or_else(|| KeySecret::Plain(entry.secret.clone()), KeySecret::Sha256),
        scopes: entry.scopes.iter().filter_map(|word| Scope::from_word(word)).collect(),
        topics: entry.topics.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{SCOPES, Sources, load};

    fn defaults() -> Config {
        load(&Sources::default()).config.unwrap()
    }

    #[test]
    fn the_defaults_of_the_configuration_match_those_of_the_engines() {
        assert_eq!(log_settings(&defaults()), LogSettings::default());
        assert_eq!(receipt_settings(&defaults()), ReceiptSettings::default());
        assert_eq!(timer_settings(&defaults()), TimerSettings::default());
        assert_eq!(notebook_settings(&defaults()), NotebookSettings::default());
        assert_eq!(holds_settings(&defaults()), HoldsSettings::default());
        assert_eq!(dispatch_settings(&defaults()), DispatchSettings::default());
        let clock: Arc<dyn Clock> = Arc::new(whimbrel_model::SystemClock);
        let worker = worker_settings(&defaults(), &clock).unwrap();
        assert_eq!(format!("{worker:?}"), format!("{:?}", WorkerSettings::default()));
        #[cfg(feature = "redis")]
        assert_eq!(
            redis_settings(&defaults()),
            whimbrel_engines::redis::RedisSettings::new(defaults().servers.redis.urls)
        );
        #[cfg(feature = "etcd")]
        assert_eq!(
            etcd_settings(&defaults()),
            whimbrel_engines::etcd::EtcdSettings::new(defaults().servers.etcd.endpoints)
        );
        #[cfg(feature = "kafka")]
        assert_eq!(
            kafka_settings(&defaults()),
            whimbrel_engines::kafka::KafkaSettings::new(defaults().servers.kafka.bootstrap)
        );
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn a_check_finds_a_missing_certificate_file_of_kafka() {
        let mut config = defaults();
        config.servers.kafka.tls = true;
        config.servers.kafka.tls_ca_file = Some("/nonexistent/ca.pem".into());
        assert_eq!(kafka_file_problem(&config), None, "the log is not Kafka");
        config.log.engine = LogEngineName::Kafka;
        let problem = kafka_file_problem(&config).unwrap();
        assert!(problem.contains("`kafka.tls_ca_file` (/nonexistent/ca.pem)"), "{problem}");
    }

    #[test]
    fn the_defaults_of_the_configuration_match_those_of_receive() {
        let guards = destination_guards(&defaults()).unwrap();
        let ours = receive_settings(&defaults(), 0, String::new(), Vec::new(), guards, &CancellationToken::new());
        // The horn runs here, without keys of any provider.
        let mute_providers = ours.mute_providers.clone();
        assert_eq!(mute_providers.len(), 3);
        let (page, shutdown) = (ours.page.clone(), ours.shutdown.clone());
        let theirs = ReceiveSettings { page, shutdown, mute_providers, ..Default::default() };
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    #[test]
    fn the_defaults_of_the_configuration_match_those_of_topics() {
        assert_eq!(format!("{:?}", topic_defaults(&defaults())), format!("{:?}", TopicDefaults::default()));
    }

    #[test]
    fn receive_supports_every_scope_of_a_key() {
        for word in SCOPES {
            assert!(Scope::from_word(word).is_some(), "{word}");
        }
    }
}
