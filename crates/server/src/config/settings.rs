//! The settings of the log, of holds and of subscriptions, with the list of all settings. The declarations here and in
//! `people_settings.rs` define the file's keys, the variables' names, `--set`, `whimbrel check`, `whimbrel.example.toml` and the
//! typed configuration; no other place may define a setting's name or default.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use whimbrel_model::limits;

use super::EffectiveSettings;
use super::keys::{KEYS, KeyEntry};
use super::people_settings::{
    ApnsConfig, ClientsConfig, DevicesConfig, FcmConfig, GatewayConfig, HornConfig, HornHttpConfig, PresenceConfig,
    PushConfig, WebPushConfig,
};
use super::setting::SettingDefault::{Bytes, Count, Millis, Text};
use super::setting::{
    ConfigSection, DAY, HOUR, MIB, MINUTE, SECOND, Section, Setting, TIB, YEAR, bytes, count, duration, section,
};
use super::setting_type::{CoordinationEngineName, LogEngineName, Roles, SecretText, StateEngineName, TelemetryFormat};
use super::value::SettingKind;

pub const HOLD_SHARDS_MAX: u32 = 1024;

const CENTURY: Duration = YEAR.saturating_mul(100);

/// The sections in the order of the file: the settings without a section, the others, the API keys.
pub const SECTIONS: &[Section] = &[
    ProcessConfig::SECTION,
    LogConfig::SECTION,
    KafkaConfig::SECTION,
    LimitsConfig::SECTION,
    TopicsConfig::SECTION,
    ReceiptsConfig::SECTION,
    HoldsConfig::SECTION,
    TimersConfig::SECTION,
    SubscriptionsConfig::SECTION,
    CallbacksConfig::SECTION,
    RedisConfig::SECTION,
    CoordinationConfig::SECTION,
    EtcdConfig::SECTION,
    TelemetryConfig::SECTION,
    PushConfig::SECTION,
    GatewayConfig::SECTION,
    ClientsConfig::SECTION,
    PresenceConfig::SECTION,
    DevicesConfig::SECTION,
    HornConfig::SECTION,
    ApnsConfig::SECTION,
    FcmConfig::SECTION,
    WebPushConfig::SECTION,
    HornHttpConfig::SECTION,
    Section { name: "", text: "", settings: &[KEYS] },
];

/// All settings in the order of the file.
pub const SETTINGS: &[Setting] = &in_order::<{ number_of_settings() }>();

const fn number_of_settings() -> usize {
    let (mut number, mut at) = (0, 0);
    while at < SECTIONS.len() {
        number += SECTIONS[at].settings.len();
        at += 1;
    }
    number
}

const fn in_order<const ALL: usize>() -> [Setting; ALL] {
    let mut all = [KEYS; ALL];
    let (mut section, mut at) = (0, 0);
    while section < SECTIONS.len() {
        let mut next = 0;
        while next < SECTIONS[section].settings.len() {
            all[at] = SECTIONS[section].settings[next];
            (next, at) = (next + 1, at + 1);
        }
        section += 1;
    }
    all
}

/// The typed configuration. A section without a field here would not be read, which the compiler reports as dead code.
#[derive(Debug, Clone)]
pub struct Config {
    pub process: ProcessConfig,
    pub log: LogConfig,
    pub limits: LimitsConfig,
    pub topics: TopicsConfig,
    pub receipts: ReceiptsConfig,
    pub holds: HoldsConfig,
    pub timers: TimersConfig,
    pub subscriptions: SubscriptionsConfig,
    pub callbacks: CallbacksConfig,
    pub push: PushConfig,
    pub gateway: GatewayConfig,
    pub clients: ClientsConfig,
    pub presence: PresenceConfig,
    pub devices: DevicesConfig,
    pub horn: HornConfig,
    pub providers: ProvidersConfig,
    pub coordination: CoordinationConfig,
    pub telemetry: TelemetryConfig,
    pub servers: ServersConfig,
    pub keys: Vec<KeyEntry>,
}

/// The push services and other receivers of notifications.
#[derive(Debug, Clone)]
pub struct ProvidersConfig {
    pub apns: ApnsConfig,
    pub fcm: FcmConfig,
    pub webpush: WebPushConfig,
    pub http: HornHttpConfig,
}

/// The servers of shared engines.
#[derive(Debug, Clone)]
pub struct ServersConfig {
    pub kafka: KafkaConfig,
    pub redis: RedisConfig,
    pub etcd: EtcdConfig,
}

impl Config {
    pub fn from_settings(settings: &EffectiveSettings) -> Self {
        Self {
            process: settings.section(),
            log: settings.section(),
            limits: settings.section(),
            topics: settings.section(),
            receipts: settings.section(),
            holds: settings.section(),
            timers: settings.section(),
            subscriptions: settings.section(),
            callbacks: settings.section(),
            push: settings.section(),
            gateway: settings.section(),
            clients: settings.section(),
            presence: settings.section(),
            devices: settings.section(),
            horn: settings.section(),
            providers: ProvidersConfig {
                apns: settings.section(),
                fcm: settings.section(),
                webpush: settings.section(),
                http: settings.section(),
            },
            coordination: settings.section(),
            telemetry: settings.section(),
            servers: ServersConfig { kafka: settings.section(), redis: settings.section(), etcd: settings.section() },
            keys: settings.value(KEYS.path),
        }
    }
}

section! {
    /// Settings without a section.
    pub struct ProcessConfig in "" {
        /// Address for clients: HTTP/1.1, HTTP/2 and gRPC on one port. A non-loopback address requires [[keys]], or insecure.
        listen: SocketAddr = Text("127.0.0.1:7600");
        /// Address for calls from other nodes. Not opened with coordination.engine = "process".
        internal_listen: SocketAddr = Text("127.0.0.1:7601");
        /// The host:port at which other nodes reach internal_listen. "auto": internal_listen itself.
        advertise: Option<String> = Text("auto");
        /// Shared secret for calls between nodes, the same on all of them. Required unless internal_listen is loopback.
        internal_key: SecretText = Text("");
        /// A second internal_key that this node accepts from others and does not present. Set it while you change internal_key
        /// node by node.
        internal_key_previous: SecretText = Text("");
        /// Data folder of this node. Only one server may use it at a time.
        data: PathBuf = Text("./whimbrel-data");
        /// Roles of this node: "receive" serves the API, "center" owns holds and subscriptions, "worker" makes callbacks,
        /// "gateway" holds the connections of devices, "carrier" owns inboxes, "presence" tracks which users are online, "horn" sends
        /// notifications. A node without all roles needs etcd.
        roles: Roles = Text("all");
        /// Permits non-loopback addresses without [[keys]] and without internal_key: authentication is then disabled.
        insecure: bool = Text("false");
        /// Threads that serve connections. "auto": one for each CPU core.
        workers: Option<usize> = Text("auto"), count(1, 1024).or("auto");
        /// Open client connections. Further ones wait to be accepted; so do those for which no file descriptor is free.
        connections_max: usize = Count(16_384), count(1, 1_000_000);
        /// Timeout of a connection without a request, and for receiving a request's headers.
        header_timeout: Duration = Text("30s"), duration(SECOND, Duration::from_secs(600));
        /// Time limit for requests in progress after Ctrl-C or SIGTERM.
        shutdown_timeout: Duration = Text("10s"), duration(Duration::ZERO, Duration::from_secs(600));
        /// Number of this node, a part of each message id that it creates. With etcd, a node takes a free number if this one is in use.
        node: u16 = Count(0), count(0, 4095);
        /// Name of this node, unique in the cluster. "auto": its host and port.
        name: Option<String> = Text("auto");
    }
}

section! {
    /// The log: the durable store of all messages.
    pub struct LogConfig in "log" {
        /// Where the log is: "embedded" in the data folder, "kafka" on the brokers of [kafka].
        engine: LogEngineName = Text("embedded");
        /// How long topics keep messages, unless a topic has a retention of its own.
        retention: Option<Duration> = Millis(limits::RETENTION_DEFAULT_MS), duration(SECOND, CENTURY).or("forever");
        /// Size to which each partition is kept, unless its topic has one of its own. The oldest messages are removed first.
        retention_bytes: Option<u64> = Text("unlimited"), bytes(MIB, 1 << 60).or("unlimited");
        /// Embedded log: size of one segment of a partition. Retention removes whole segments.
        segment_bytes: u64 = Text("128MiB"), bytes(64 << 10, 2048 * MIB);
        /// Embedded log: age at which a segment is closed and the next one started, so that retention by time can remove it.
        segment_age: Duration = Text("1d"), duration(SECOND, YEAR);
        /// Embedded log: size of one journal file. The first start writes the first file in full.
        journal_file_bytes: u64 = Text("32MiB"), bytes(32 * MIB, 4096 * MIB);
        /// Embedded log: size of the whole journal, at least three files. At this size publishes wait for a checkpoint.
        journal_bytes: u64 = Text("1GiB"), bytes(96 * MIB, TIB);
        /// Embedded log: bytes written after which a checkpoint is made. At most half of log.journal_bytes.
        checkpoint_bytes: u64 = Text("256MiB"), bytes(MIB, TIB);
        /// Embedded log: time after which a checkpoint is made, if anything was written.
        checkpoint_interval: Duration = Text("10s"), duration(Duration::from_millis(100), HOUR);
        /// Embedded log: memory for the newest messages. Reads at the end of a partition are served from it.
        tail_bytes: u64 = Text("32MiB"), bytes(0, TIB);
        /// Embedded log: memory for messages that are in the journal and not yet in segments. When it is full, publishes wait.
        unsaved_bytes: u64 = Text("128MiB"), bytes(32 * MIB, TIB);
        /// Embedded log: microseconds that a group commit waits for more publishes under load. 0: no wait.
        gather_us: u64 = Count(200), count(0, 100_000);
        /// Embedded log: bytes that may wait for the next group commit. Beyond, the answer is 429.
        queue_bytes: usize = Text("64MiB"), bytes(MIB, TIB);
        /// Embedded log: free disk space below which publishes are rejected with 503, until more is free again.
        disk_reserve_bytes: u64 = Text("128MiB"), bytes(0, TIB);
        /// Embedded log: how often the server reads all closed segments and verifies their checksums.
        scrub_interval: Option<Duration> = Text("1d"), duration(SECOND, YEAR).or("never");
        /// Embedded log: bytes that this verification reads in a second, at most.
        scrub_rate: u64 = Text("4MiB"), bytes(64 << 10, TIB);
    }
}

section! {
    /// Connection to Kafka. Used with `log.engine = "kafka"`, ignored by the embedded log.
    pub struct KafkaConfig in "kafka" with feature "kafka" {
        /// Bootstrap brokers as `host:port`, separated by commas.
        bootstrap: String = Text("127.0.0.1:9092");
        /// Time limit for Kafka to acknowledge a publish. After it, the publish fails with 503 if nothing was written, or with 504 if the outcome is unknown.
        message_timeout: Duration = Text("10s"), duration(SECOND, HOUR);
        /// Kafka aborts a transaction that stays open this long (`transaction.timeout.ms`). Also the time limit of one commit.
        transaction_timeout: Duration = Text("15s"), duration(SECOND, Duration::from_secs(900));
        /// Time limit of a fetch, metadata, offset or admin request, including retries. Also how long a start waits for Kafka.
        request_timeout: Duration = Text("10s"), duration(SECOND, Duration::from_secs(600));
        /// How long a record may wait for more records in its batch (`linger.ms`). 0s: it is sent at once.
        linger: Duration = Text("0s"), duration(Duration::ZERO, SECOND);
        /// Prefix of every `transactional.id`. Installations that share a Kafka cluster need different prefixes.
        transactional_prefix: String = Text("whimbrel/");
        /// Name of this client in the brokers' logs, metrics and quotas.
        client_id: String = Text("whimbrel");
        /// Compression of the record batches that Whimbrel writes. Whimbrel reads batches in any of these formats.
        compression: String = Text("none"), SettingKind::OneOf(&["none", "gzip", "snappy", "lz4", "zstd"]);
        /// Connects to the brokers with TLS.
        tls: bool = Text("false");
        /// PEM file with the certificate authorities of the brokers. Empty: those of the operating system.
        tls_ca_file: Option<PathBuf> = Text("");
        /// PEM file with the client certificate, for brokers that require one (mutual TLS). Empty: none.
        tls_certificate_file: Option<PathBuf> = Text("");
        /// PEM file with the private key of the client certificate. Empty: none.
        tls_key_file: Option<PathBuf> = Text("");
        /// SASL mechanism to authenticate with. PLAIN sends the password in clear text: use it only with `kafka.tls = true`.
        sasl: String = Text("none"), SettingKind::OneOf(&["none", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]);
        /// User name for SASL. Required unless `kafka.sasl` is `none`.
        sasl_username: String = Text("");
        /// Password for SASL. Required unless `kafka.sasl` is `none`.
        sasl_password: SecretText = Text("");
    }
}

section! {
    /// Limits of requests. A request beyond one is rejected with 408, 413, 422 or 429.
    pub struct LimitsConfig in "limits" {
        /// Size of one payload.
        payload_bytes: usize = Bytes(limits::PAYLOAD_BYTES_DEFAULT as u64), bytes(1, 256 * MIB);
        /// Messages in one batch.
        batch_messages: usize = Count(limits::BATCH_MESSAGES_DEFAULT as u64), count(1, 1_000_000);
        /// Size of one batch.
        batch_bytes: usize = Bytes(limits::BATCH_BYTES_DEFAULT as u64), bytes(1, 1024 * MIB);
        /// Headers of one message.
        headers: usize = Count(limits::HEADERS_DEFAULT as u64), count(0, 1024);
        /// Size of one header: its name and value together.
        header_bytes: usize = Bytes(limits::HEADER_BYTES_DEFAULT as u64), bytes(1, 65_535);
        /// Total size of requests that are not yet acknowledged. Beyond, the answer is 429.
        in_flight_bytes: usize = Text("256MiB"), bytes(MIB, TIB);
        /// Total size of answers with messages that clients have not yet received. Beyond, the answer is 429.
        answer_bytes: usize = Text("256MiB"), bytes(MIB, TIB);
        /// Timeout between two pieces of a request body. After it, the answer is 408.
        body_timeout: Duration = Text("30s"), duration(SECOND, Duration::from_secs(600));
        /// Bytes of a rejected request's body that are read and discarded before the connection is closed, so that the
        /// client receives the answer.
        linger_bytes: usize = Text("64MiB"), bytes(0, 1024 * MIB);
        /// Time limit for discarding such a body.
        linger_timeout: Duration = Text("5s"), duration(Duration::ZERO, MINUTE);
        /// Records that one search examines before it answers with its position.
        search_records: usize = Count(100_000), count(1, 1_000_000_000);
        /// Size of the messages in one answer of a read or an inbox query. One message is returned whatever its size.
        read_bytes: usize = Text("8MiB"), bytes(1, 1024 * MIB);
        /// Number of topics.
        topics: usize = Count(10_000), count(1, limits::TOPIC_NUMBER_MAX as u64);
        /// Open tails (event streams).
        tails: usize = Count(1024), count(0, 1_000_000);
    }
}

section! {
    /// Defaults for topics without a configuration of their own.
    pub struct TopicsConfig in "topics" {
        /// Partitions of a topic.
        partitions: u32 = Count(limits::PARTITIONS_DEFAULT as u64), count(1, limits::PARTITIONS_MAX as u64);
        /// Copies of each partition. "engine": the brokers' default; the embedded log has one.
        replicas: Option<u32> = Text("engine"), count(1, 1000).or("engine");
        /// Copies that must have a message before it is acknowledged. "engine": the brokers' default.
        min_insync: Option<u32> = Text("engine"), count(1, 1000).or("engine");
        /// Whether the first publish to a topic creates it. Otherwise the answer is 404 unknown_topic.
        auto_create_topics: bool = Text("true");
    }
}

section! {
    /// Receipts: the first answers to publishes with an Idempotency-Key or an id. A repeat gets the same answer.
    pub struct ReceiptsConfig in "receipts" {
        /// Where receipts are kept: "embedded" in the data folder, "redis" on the servers of [redis], shared by all nodes.
        engine: StateEngineName = Text("embedded");
        /// How long the first answer to an Idempotency-Key or a publisher's id is kept.
        window: Duration = Millis(limits::RECEIPT_WINDOW_DEFAULT_MS), duration(SECOND, YEAR);
        /// How long a message can be found by its publisher's id.
        id_window: Duration = Millis(limits::RETENTION_DEFAULT_MS), duration(SECOND, YEAR);
        /// Time after which a repeat may take over a publish that did not end. Must be longer than any publish takes.
        lease: Duration = Text("1m"), duration(SECOND, HOUR);
    }
}

section! {
    /// Holds: messages with a due time. The log has all of them; memory has those that are due soon.
    pub struct HoldsConfig in "holds" {
        /// How far ahead of their due time holds are loaded into memory.
        window: Duration = Text("30s"), duration(SECOND, HOUR);
        /// Memory for these holds, over all shards. When it is full, the window is shorter.
        window_bytes: usize = Text("32MiB"), bytes(MIB, TIB);
        /// How often changes of holds are written to the store of [timers].
        checkpoint_interval: Duration = Text("1s"), duration(Duration::from_millis(50), MINUTE);
        /// How long records about holds stay in the log. Holds that are still pending after it are written to the log again.
        keep_log: Duration = Text("1d"), duration(SECOND, YEAR);
        /// How often older records about holds are removed from the log.
        trim_interval: Duration = Text("10m"), duration(SECOND, DAY);
        /// How long the outcome of a hold can be queried.
        remember: Duration = Text("7d"), duration(SECOND, YEAR);
        /// Shards over which holds are distributed. Applied at the first start only; it cannot be changed later.
        shards: u32 = Count(16), count(1, HOLD_SHARDS_MAX as u64);
        /// Commands that may wait for the owner of a shard. Beyond, the answer is 429.
        commands_waiting: usize = Count(10_000), count(1, 1_000_000);
        /// Maximum backlog of a shard: records that this node accepted and the shard's owner has not applied. Beyond, new holds get 429.
        max_backlog: u64 = Count(50_000), count(1_000, 1_000_000_000);
    }
}

section! {
    /// The store of holds beside the log, with an index by id and one by due time.
    pub struct TimersConfig in "timers" {
        /// Where this store is: "embedded" in the data folder, "redis" on the servers of [redis], where another node can take over.
        engine: StateEngineName = Text("embedded");
    }
}

section! {
    /// Deliveries to services. The API defines each subscription; these settings limit the resources of all of them.
    pub struct SubscriptionsConfig in "subscriptions" {
        /// Where the progress of subscriptions is kept: "embedded" in the data folder, "redis" on the servers of [redis].
        engine: StateEngineName = Text("embedded");
        /// Memory of one subscription for messages that are read and not yet delivered.
        prefetch_bytes: usize = Text("4MiB"), bytes(64 << 10, TIB);
        /// Memory of one subscription for messages that wait in a partition behind parked keys. Beyond, it reads no further.
        parked_bytes: usize = Text("8MiB"), bytes(64 << 10, TIB);
        /// Retries that may wait at a time, for one subscription without order. Beyond, it reads no further.
        retry_holds: u64 = Count(10_000), count(1, 10_000_000);
        /// How often the progress of subscriptions is saved. After a crash, the deliveries of this time are repeated.
        save_interval: Duration = Text("1s"), duration(Duration::from_millis(50), SECOND);
        /// Disk space of this node for the history of delivery attempts. The oldest are removed first.
        attempts_bytes: u64 = Text("256MiB"), bytes(MIB, TIB);
        /// Consecutive failures that open the circuit breaker of an endpoint. While it is open, messages use up no attempts.
        breaker_failures: u32 = Count(20), count(1, 1_000_000);
        /// How long a circuit breaker stays open at first, before one delivery tests the endpoint.
        breaker_pause: Duration = Text("5s"), duration(Duration::from_millis(10), HOUR);
        /// How long it stays open at most, after repeated failures.
        breaker_pause_max: Duration = Text("1m"), duration(Duration::from_millis(10), DAY);
        /// Threads that run subscriptions. "auto": one for each CPU core.
        threads: Option<usize> = Text("auto"), count(1, 256).or("auto");
    }
}

section! {
    /// Permitted destinations of callbacks, and their timeout.
    pub struct CallbacksConfig in "callbacks" {
        /// Addresses and names that callbacks may reach although they are denied, separated by commas: 10.0.0.0/8, *.lan
        allow: Vec<String> = Text("");
        /// Addresses and names that callbacks may not reach, beside link-local and cloud metadata, separated by commas.
        deny: Vec<String> = Text("");
        /// Timeout for connecting to an endpoint, unless its subscription sets one.
        connect_timeout: Duration = Text("5s"), duration(Duration::from_millis(10), MINUTE);
    }
}

section! {
    /// Connection to Redis. Used where a setting named `engine` is `redis`.
    pub struct RedisConfig in "redis" with feature "redis" {
        /// Bootstrap servers, separated by commas. One, unless it is a Redis Cluster.
        urls: Vec<String> = Text("redis://127.0.0.1:6379");
        /// User name. Empty: the default user.
        user: String = Text("");
        /// Password. Empty: none.
        password: SecretText = Text("");
        /// Prefix of all keys. Installations that share Redis servers need different prefixes.
        prefix: String = Text("whimbrel");
        /// Timeout for connecting to a server.
        connect_timeout: Duration = Text("2s"), duration(Duration::from_millis(10), MINUTE);
        /// Timeout of a response.
        response_timeout: Duration = Text("5s"), duration(Duration::from_millis(10), MINUTE);
    }
}

section! {
    /// Membership of the cluster and ownership of shards.
    pub struct CoordinationConfig in "coordination" {
        /// "process": this node works alone. "etcd": several nodes form a cluster; see [etcd].
        engine: CoordinationEngineName = Text("process");
        /// Permitted difference between the clocks of nodes. A node whose clock differs by more is rejected.
        clock_skew: Duration = Text("500ms"), duration(Duration::ZERO, MINUTE);
        /// Time that a step of the wall clock beyond clock_skew must last before Whimbrel follows it. Also the time that a clock ahead
        /// of the log must keep at a start before anything expires by it. 0s: at once.
        clock_stepout: Duration = Text("5m"), duration(Duration::ZERO, DAY);
    }
}

section! {
    /// Connection to etcd. Used with `coordination.engine = "etcd"`.
    pub struct EtcdConfig in "etcd" with feature "etcd" {
        /// Bootstrap members of the etcd cluster, separated by commas.
        endpoints: Vec<String> = Text("http://127.0.0.1:2379");
        /// Prefix of all keys. Installations that share an etcd cluster need different prefixes.
        prefix: String = Text("whimbrel/");
        /// Time without a keep-alive after which a node's session ends, and other nodes take over what it owned. Whole seconds.
        session: Duration = Text("5s"), duration(Duration::from_secs(2), Duration::from_secs(600));
        /// User name. Empty: no authentication.
        user: String = Text("");
        /// Password.
        password: SecretText = Text("");
        /// Timeout of a request to etcd. Also how long a start waits for etcd.
        request_timeout: Duration = Text("3s"), duration(Duration::from_millis(100), MINUTE);
    }
}

section! {
    /// Log output on standard error.
    pub struct TelemetryConfig in "telemetry" {
        /// error, warn, info, debug or trace; also for each component: "warn,whimbrel_storage=debug".
        level: String = Text("info");
        /// Format of log lines: "text" for people, "json" for programs.
        format: TelemetryFormat = Text("text");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_accepts_its_own_default() {
        for setting in SETTINGS {
            let written = setting.default_value().to_toml();
            let read = toml::de::DeValue::parse(&written).unwrap();
            assert_eq!(setting.kind.read_toml(read.get_ref()), Ok(setting.default_value()), "{}", setting.path);
        }
    }

    #[test]
    fn settings_of_a_section_are_adjacent_and_names_are_unique() {
        let mut sections: Vec<&str> = SETTINGS.iter().map(|setting| setting.section_and_key().0).collect();
        sections.pop();
        sections.dedup();
        let mut names: Vec<_> = SETTINGS.iter().map(Setting::variable).collect();
        names.sort_unstable();
        let (count, sections_seen) = (names.len(), sections.len());
        names.dedup();
        sections.sort_unstable();
        sections.dedup();
        assert_eq!((names.len(), sections.len()), (count, sections_seen));
    }
}
