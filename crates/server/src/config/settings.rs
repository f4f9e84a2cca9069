//! The list of all settings. It defines the file's keys, the variables' names, `--set`, `whimbrel check` and
//! `whimbrel.example.toml`; no other place may define a setting's name or default.

use std::time::Duration;

use whimbrel_model::limits;

use super::keys::KEYS;
use super::people_settings::{PEOPLE, PEOPLE_SECTIONS};
use super::setting::SettingDefault::{Bytes, Count, Millis, Text};
use super::setting::{Setting, bytes, count, duration, setting};
use super::value::SettingKind;

/// The sections of the file, each with its description.
pub fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    SECTIONS.into_iter().chain(PEOPLE_SECTIONS)
}

const SECTIONS: [(&str, &str); 13] = [
    ("log", "The log: the durable store of all messages."),
    ("kafka", "Connection to Kafka. Used with `log.engine = \"kafka\"`, ignored by the embedded log."),
    ("limits", "Limits of requests. A request beyond one is rejected with 408, 413, 422 or 429."),
    ("topics", "Defaults for topics without a configuration of their own."),
    (
        "receipts",
        "Receipts: the first answers to publishes with an Idempotency-Key or an id. A repeat gets the same answer.",
    ),
    ("holds", "Holds: messages with a due time. The log has all of them; memory has those that are due soon."),
    ("timers", "The store of holds beside the log, with an index by id and one by due time."),
    (
        "subscriptions",
        "Deliveries to services. The API defines each subscription; these settings limit the resources of all of them.",
    ),
    ("callbacks", "Permitted destinations of callbacks, and their timeout."),
    ("redis", "Connection to Redis. Used where a setting named `engine` is `redis`."),
    ("coordination", "Membership of the cluster and ownership of shards."),
    ("etcd", "Connection to etcd. Used with `coordination.engine = \"etcd\"`."),
    ("telemetry", "Log output on standard error."),
];

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

pub const HOLD_SHARDS_MAX: u32 = 1024;

/// All settings in the order of the file: keys without a section, the sections, the API keys.
pub const SETTINGS: &[Setting] = &in_order::<{ SERVICES.len() + PEOPLE.len() + 1 }>();

const fn in_order<const ALL: usize>() -> [Setting; ALL] {
    let mut all = [KEYS; ALL];
    let mut at = 0;
    while at < SERVICES.len() {
        all[at] = SERVICES[at];
        at += 1;
    }
    while at < SERVICES.len() + PEOPLE.len() {
        all[at] = PEOPLE[at - SERVICES.len()];
        at += 1;
    }
    all
}

const SERVICES: &[Setting] = &[
    setting(
        "listen",
        SettingKind::Address,
        Text("127.0.0.1:7600"),
        "Address for clients: HTTP/1.1, HTTP/2 and gRPC on one port. A non-loopback address requires [[keys]], or insecure.",
    ),
    setting(
        "internal_listen",
        SettingKind::Address,
        Text("127.0.0.1:7601"),
        "Address for calls from other nodes. Not opened with coordination.engine = \"process\".",
    ),
    setting(
        "advertise",
        SettingKind::Text,
        Text("auto"),
        "The host:port at which other nodes reach internal_listen. \"auto\": internal_listen itself.",
    ),
    setting(
        "internal_key",
        SettingKind::Secret,
        Text(""),
        "Shared secret for calls between nodes, the same on all of them. Required unless internal_listen is loopback.",
    ),
    setting(
        "internal_key_previous",
        SettingKind::Secret,
        Text(""),
        "A second internal_key that this node accepts from others and does not present. Set it while you change internal_key\n\
         node by node.",
    ),
    setting(
        "data",
        SettingKind::Text,
        Text("./whimbrel-data"),
        "Data folder of this node. Only one server may use it at a time.",
    ),
    setting(
        "roles",
        SettingKind::SomeOf(&["all", "receive", "center", "worker", "gateway", "presence", "carrier", "horn"]),
        Text("all"),
        "Roles of this node: \"receive\" serves the API, \"center\" owns holds and subscriptions, \"worker\" makes callbacks,\n\
         \"gateway\" holds the connections of devices, \"carrier\" owns inboxes, \"presence\" tracks which users are online, \"horn\" sends\n\
         notifications. A node without all roles needs etcd.",
    ),
    setting(
        "insecure",
        SettingKind::Flag,
        Text("false"),
        "Permits non-loopback addresses without [[keys]] and without internal_key: authentication is then disabled.",
    ),
    setting(
        "workers",
        SettingKind::Count { min: 1, max: 1024, or: Some("auto") },
        Text("auto"),
        "Threads that serve connections. \"auto\": one for each CPU core.",
    ),
    setting(
        "connections_max",
        count(1, 1_000_000),
        Count(16_384),
        "Open client connections. Further ones wait to be accepted; so do those for which no file descriptor is free.",
    ),
    setting(
        "header_wait",
        duration(SECOND, Duration::from_secs(600)),
        Text("30s"),
        "Timeout of a connection without a request, and for receiving a request's headers.",
    ),
    setting(
        "shutdown_wait",
        duration(Duration::ZERO, Duration::from_secs(600)),
        Text("10s"),
        "Time limit for requests in progress after Ctrl-C or SIGTERM.",
    ),
    setting(
        "node",
        count(0, 4095),
        Count(0),
        "Number of this node, a part of each message id that it creates. With etcd, a node takes a free number if this one is in use.",
    ),
    setting(
        "name",
        SettingKind::Text,
        Text("auto"),
        "Name of this node, unique in the cluster. \"auto\": its host and port.",
    ),
    setting(
        "log.engine",
        SettingKind::OneOf(&["embedded", "kafka"]),
        Text("embedded"),
        "Where the log is: \"embedded\" in the data folder, \"kafka\" on the brokers of [kafka].",
    ),
    setting(
        "log.retention",
        SettingKind::Duration { min: SECOND, max: Duration::from_secs(100 * 365 * 86_400), or: Some("forever") },
        Millis(limits::RETENTION_DEFAULT_MS),
        "How long topics keep messages, unless a topic has a retention of its own.",
    ),
    setting(
        "log.retention_bytes",
        SettingKind::Bytes { min: MIB, max: 1 << 60, or: Some("unlimited") },
        Text("unlimited"),
        "Size to which each partition is kept, unless its topic has one of its own. The oldest messages are removed first.",
    ),
    setting(
        "log.segment_bytes",
        bytes(64 << 10, 2048 * MIB),
        Text("128MiB"),
        "Embedded log: size of one segment of a partition. Retention removes whole segments.",
    ),
    setting(
        "log.segment_age",
        duration(SECOND, YEAR),
        Text("1d"),
        "Embedded log: age at which a segment is closed and the next one started, so that retention by time can remove it.",
    ),
    setting(
        "log.journal_file_bytes",
        bytes(32 * MIB, 4096 * MIB),
        Text("32MiB"),
        "Embedded log: size of one journal file. The first start writes the first file in full.",
    ),
    setting(
        "log.journal_bytes",
        bytes(96 * MIB, TIB),
        Text("1GiB"),
        "Embedded log: size of the whole journal, at least three files. At this size publishes wait for a checkpoint.",
    ),
    setting(
        "log.checkpoint_bytes",
        bytes(MIB, TIB),
        Text("256MiB"),
        "Embedded log: bytes written after which a checkpoint is made. At most half of log.journal_bytes.",
    ),
    setting(
        "log.checkpoint_interval",
        duration(Duration::from_millis(100), Duration::from_secs(3600)),
        Text("10s"),
        "Embedded log: time after which a checkpoint is made, if anything was written.",
    ),
    setting(
        "log.tail_bytes",
        bytes(0, TIB),
        Text("32MiB"),
        "Embedded log: memory for the newest messages. Reads at the end of a partition are served from it.",
    ),
    setting(
        "log.unsaved_bytes",
        bytes(32 * MIB, TIB),
        Text("128MiB"),
        "Embedded log: memory for messages that are in the journal and not yet in segments. When it is full, publishes wait.",
    ),
    setting(
        "log.gather_us",
        count(0, 100_000),
        Count(200),
        "Embedded log: microseconds that a group commit waits for more publishes under load. 0: no wait.",
    ),
    setting(
        "log.queue_bytes",
        bytes(MIB, TIB),
        Text("64MiB"),
        "Embedded log: bytes that may wait for the next group commit. Beyond, the answer is 429.",
    ),
    setting(
        "log.disk_reserve_bytes",
        bytes(0, TIB),
        Text("128MiB"),
        "Embedded log: free disk space below which publishes are rejected with 503, until more is free again.",
    ),
    setting(
        "log.scrub_interval",
        SettingKind::Duration { min: SECOND, max: YEAR, or: Some("never") },
        Text("1d"),
        "Embedded log: how often the server reads all closed segments and verifies their checksums.",
    ),
    setting(
        "log.scrub_rate",
        bytes(64 << 10, TIB),
        Text("4MiB"),
        "Embedded log: bytes that this verification reads in a second, at most.",
    ),
    setting(
        "kafka.bootstrap",
        SettingKind::Text,
        Text("127.0.0.1:9092"),
        "Bootstrap brokers as `host:port`, separated by commas.",
    ),
    setting(
        "kafka.message_timeout",
        duration(SECOND, Duration::from_secs(3600)),
        Text("10s"),
        "Time limit for Kafka to acknowledge a publish. After it, the publish fails with 503 if nothing was written, or with 504 if the outcome is unknown.",
    ),
    setting(
        "kafka.transaction_timeout",
        duration(SECOND, Duration::from_secs(900)),
        Text("15s"),
        "Kafka aborts a transaction that stays open this long (`transaction.timeout.ms`). Also the time limit of one commit.",
    ),
    setting(
        "kafka.request_timeout",
        duration(SECOND, Duration::from_secs(600)),
        Text("10s"),
        "Time limit of a fetch, metadata, offset or admin request, including retries. Also how long a start waits for Kafka.",
    ),
    setting(
        "kafka.linger",
        duration(Duration::ZERO, SECOND),
        Text("0s"),
        "How long a record may wait for more records in its batch (`linger.ms`). 0s: it is sent at once.",
    ),
    setting(
        "kafka.transactional_prefix",
        SettingKind::Text,
        Text("whimbrel/"),
        "Prefix of every `transactional.id`. Installations that share a Kafka cluster need different prefixes.",
    ),
    setting(
        "kafka.client_id",
        SettingKind::Text,
        Text("whimbrel"),
        "Name of this client in the brokers' logs, metrics and quotas.",
    ),
    setting(
        "kafka.compression",
        SettingKind::OneOf(&["none", "gzip", "snappy", "lz4", "zstd"]),
        Text("none"),
        "Compression of the record batches that Whimbrel writes. Whimbrel reads batches in any of these formats.",
    ),
    setting("kafka.tls", SettingKind::Flag, Text("false"), "Connects to the brokers with TLS."),
    setting(
        "kafka.tls_ca_file",
        SettingKind::Text,
        Text(""),
        "PEM file with the certificate authorities of the brokers. Empty: those of the operating system.",
    ),
    setting(
        "kafka.tls_certificate_file",
        SettingKind::Text,
        Text(""),
        "PEM file with the client certificate, for brokers that require one (mutual TLS). Empty: none.",
    ),
    setting(
        "kafka.tls_key_file",
        SettingKind::Text,
        Text(""),
        "PEM file with the private key of the client certificate. Empty: none.",
    ),
    setting(
        "kafka.sasl",
        SettingKind::OneOf(&["none", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]),
        Text("none"),
        "SASL mechanism to authenticate with. PLAIN sends the password in clear text: use it only with `kafka.tls = true`.",
    ),
    setting(
        "kafka.sasl_username",
        SettingKind::Text,
        Text(""),
        "User name for SASL. Required unless `kafka.sasl` is `none`.",
    ),
    setting(
        "kafka.sasl_password",
        SettingKind::Secret,
        Text(""),
        "Password for SASL. Required unless `kafka.sasl` is `none`.",
    ),
    setting(
        "limits.payload_bytes",
        bytes(1, 256 * MIB),
        Bytes(limits::PAYLOAD_BYTES_DEFAULT as u64),
        "Size of one payload.",
    ),
    setting(
        "limits.batch_messages",
        count(1, 1_000_000),
        Count(limits::BATCH_MESSAGES_DEFAULT as u64),
        "Messages in one batch.",
    ),
    setting(
        "limits.batch_bytes",
        bytes(1, 1024 * MIB),
        Bytes(limits::BATCH_BYTES_DEFAULT as u64),
        "Size of one batch.",
    ),
    setting("limits.headers", count(0, 1024), Count(limits::HEADERS_DEFAULT as u64), "Headers of one message."),
    setting(
        "limits.header_bytes",
        bytes(1, 65_535),
        Bytes(limits::HEADER_BYTES_DEFAULT as u64),
        "Size of one header: its name and value together.",
    ),
    setting(
        "limits.in_flight_bytes",
        bytes(MIB, TIB),
        Text("256MiB"),
        "Total size of requests that are not yet acknowledged. Beyond, the answer is 429.",
    ),
    setting(
        "limits.answer_bytes",
        bytes(MIB, TIB),
        Text("256MiB"),
        "Total size of answers with messages that clients have not yet received. Beyond, the answer is 429.",
    ),
    setting(
        "limits.body_wait",
        duration(SECOND, Duration::from_secs(600)),
        Text("30s"),
        "Timeout between two pieces of a request body. After it, the answer is 408.",
    ),
    setting(
        "limits.linger_bytes",
        bytes(0, 1024 * MIB),
        Text("64MiB"),
        "Bytes of a rejected request's body that are read and discarded before the connection is closed, so that the\n\
         client receives the answer.",
    ),
    setting(
        "limits.linger_timeout",
        duration(Duration::ZERO, Duration::from_secs(60)),
        Text("5s"),
        "Time limit for discarding such a body.",
    ),
    setting(
        "limits.search_records",
        count(1, 1_000_000_000),
        Count(100_000),
        "Records that one search examines before it answers with its position.",
    ),
    setting(
        "limits.read_bytes",
        bytes(1, 1024 * MIB),
        Text("8MiB"),
        "Size of the messages in one answer of a read or an inbox query. One message is returned whatever its size.",
    ),
    setting("limits.topics", count(1, limits::TOPIC_NUMBER_MAX as u64), Count(10_000), "Number of topics."),
    setting("limits.tails", count(0, 1_000_000), Count(1024), "Open tails (event streams)."),
    setting(
        "topics.partitions",
        count(1, limits::PARTITIONS_MAX as u64),
        Count(limits::PARTITIONS_DEFAULT as u64),
        "Partitions of a topic.",
    ),
    setting(
        "topics.replicas",
        SettingKind::Count { min: 1, max: 1000, or: Some("engine") },
        Text("engine"),
        "Copies of each partition. \"engine\": the brokers' default; the embedded log has one.",
    ),
    setting(
        "topics.min_insync",
        SettingKind::Count { min: 1, max: 1000, or: Some("engine") },
        Text("engine"),
        "Copies that must have a message before it is acknowledged. \"engine\": the brokers' default.",
    ),
    setting(
        "topics.auto_create_topics",
        SettingKind::Flag,
        Text("true"),
        "Whether the first publish to a topic creates it. Otherwise the answer is 404 unknown_topic.",
    ),
    setting(
        "receipts.engine",
        SettingKind::OneOf(&["embedded", "redis"]),
        Text("embedded"),
        "Where receipts are kept: \"embedded\" in the data folder, \"redis\" on the servers of [redis], shared by all nodes.",
    ),
    setting(
        "receipts.window",
        duration(SECOND, YEAR),
        Millis(limits::RECEIPT_WINDOW_DEFAULT_MS),
        "How long the first answer to an Idempotency-Key or a publisher's id is kept.",
    ),
    setting(
        "receipts.id_window",
        duration(SECOND, YEAR),
        Millis(limits::RETENTION_DEFAULT_MS),
        "How long a message can be found by its publisher's id.",
    ),
    setting(
        "receipts.lease",
        duration(SECOND, Duration::from_secs(3600)),
        Text("1m"),
        "Time after which a repeat may take over a publish that did not end. Must be longer than any publish takes.",
    ),
    setting(
        "holds.window",
        duration(SECOND, HOUR),
        Text("30s"),
        "How far ahead of their due time holds are loaded into memory.",
    ),
    setting(
        "holds.window_bytes",
        bytes(MIB, TIB),
        Text("32MiB"),
        "Memory for these holds, over all shards. When it is full, the window is shorter.",
    ),
    setting(
        "holds.checkpoint_interval",
        duration(Duration::from_millis(50), Duration::from_secs(60)),
        Text("1s"),
        "How often changes of holds are written to the store of [timers].",
    ),
    setting(
        "holds.keep_log",
        duration(SECOND, YEAR),
        Text("1d"),
        "How long records about holds stay in the log. Holds that are still pending after it are written to the log again.",
    ),
    setting(
        "holds.trim_interval",
        duration(SECOND, Duration::from_secs(86_400)),
        Text("10m"),
        "How often older records about holds are removed from the log.",
    ),
    setting("holds.remember", duration(SECOND, YEAR), Text("7d"), "How long the outcome of a hold can be queried."),
    setting(
        "holds.shards",
        count(1, HOLD_SHARDS_MAX as u64),
        Count(16),
        "Shards over which holds are distributed. Applied at the first start only; it cannot be changed later.",
    ),
    setting(
        "holds.commands_waiting",
        count(1, 1_000_000),
        Count(10_000),
        "Commands that may wait for the owner of a shard. Beyond, the answer is 429.",
    ),
    setting(
        "holds.behind",
        count(1_000, 1_000_000_000),
        Count(50_000),
        "Maximum backlog of a shard: records that this node accepted and the shard's owner has not applied. Beyond, new holds get 429.",
    ),
    setting(
        "timers.engine",
        SettingKind::OneOf(&["embedded", "redis"]),
        Text("embedded"),
        "Where this store is: \"embedded\" in the data folder, \"redis\" on the servers of [redis], where another node can take over.",
    ),
    setting(
        "subscriptions.engine",
        SettingKind::OneOf(&["embedded", "redis"]),
        Text("embedded"),
        "Where the progress of subscriptions is kept: \"embedded\" in the data folder, \"redis\" on the servers of [redis].",
    ),
    setting(
        "subscriptions.prefetch_bytes",
        bytes(64 << 10, TIB),
        Text("4MiB"),
        "Memory of one subscription for messages that are read and not yet delivered.",
    ),
    setting(
        "subscriptions.parked_bytes",
        bytes(64 << 10, TIB),
        Text("8MiB"),
        "Memory of one subscription for messages that wait in a partition behind parked keys. Beyond, it reads no further.",
    ),
    setting(
        "subscriptions.retry_holds",
        count(1, 10_000_000),
        Count(10_000),
        "Retries that may wait at a time, for one subscription without order. Beyond, it reads no further.",
    ),
    setting(
        "subscriptions.save_interval",
        duration(Duration::from_millis(50), SECOND),
        Text("1s"),
        "How often the progress of subscriptions is saved. After a crash, the deliveries of this time are repeated.",
    ),
    setting(
        "subscriptions.attempts_bytes",
        bytes(MIB, TIB),
        Text("256MiB"),
        "Disk space of this node for the history of delivery attempts. The oldest are removed first.",
    ),
    setting(
        "subscriptions.breaker_failures",
        count(1, 1_000_000),
        Count(20),
        "Consecutive failures that open the circuit breaker of an endpoint. While it is open, messages use up no attempts.",
    ),
    setting(
        "subscriptions.breaker_pause",
        duration(Duration::from_millis(10), HOUR),
        Text("5s"),
        "How long a circuit breaker stays open at first, before one delivery tests the endpoint.",
    ),
    setting(
        "subscriptions.breaker_pause_max",
        duration(Duration::from_millis(10), Duration::from_secs(86_400)),
        Text("1m"),
        "How long it stays open at most, after repeated failures.",
    ),
    setting(
        "subscriptions.threads",
        SettingKind::Count { min: 1, max: 256, or: Some("auto") },
        Text("auto"),
        "Threads that run subscriptions. \"auto\": one for each CPU core.",
    ),
    setting(
        "callbacks.allow",
        SettingKind::Text,
        Text(""),
        "Addresses and names that callbacks may reach although they are denied, separated by commas: 10.0.0.0/8, *.lan",
    ),
    setting(
        "callbacks.deny",
        SettingKind::Text,
        Text(""),
        "Addresses and names that callbacks may not reach, beside link-local and cloud metadata, separated by commas.",
    ),
    setting(
        "callbacks.connect_timeout",
        duration(Duration::from_millis(10), Duration::from_secs(60)),
        Text("5s"),
        "Timeout for connecting to an endpoint, unless its subscription sets one.",
    ),
    setting(
        "redis.urls",
        SettingKind::Text,
        Text("redis://127.0.0.1:6379"),
        "Bootstrap servers, separated by commas. One, unless it is a Redis Cluster.",
    ),
    setting("redis.user", SettingKind::Text, Text(""), "User name. Empty: the default user."),
    setting("redis.password", SettingKind::Secret, Text(""), "Password. Empty: none."),
    setting(
        "redis.prefix",
        SettingKind::Text,
        Text("whimbrel"),
        "Prefix of all keys. Installations that share Redis servers need different prefixes.",
    ),
    setting(
        "redis.connect_timeout",
        duration(Duration::from_millis(10), Duration::from_secs(60)),
        Text("2s"),
        "Timeout for connecting to a server.",
    ),
    setting(
        "redis.response_timeout",
        duration(Duration::from_millis(10), Duration::from_secs(60)),
        Text("5s"),
        "Timeout of a response.",
    ),
    setting(
        "coordination.engine",
        SettingKind::OneOf(&["process", "etcd"]),
        Text("process"),
        "\"process\": this node works alone. \"etcd\": several nodes form a cluster; see [etcd].",
    ),
    setting(
        "coordination.clock_skew",
        duration(Duration::ZERO, Duration::from_secs(60)),
        Text("500ms"),
        "Permitted difference between the clocks of nodes. A node whose clock differs by more is rejected.",
    ),
    setting(
        "coordination.clock_stepout",
        duration(Duration::ZERO, Duration::from_secs(86_400)),
        Text("5m"),
        "Time that a step of the wall clock beyond clock_skew must last before Whimbrel follows it. Also the time that a clock ahead\n\
         of the log must keep at a start before anything expires by it. 0s: at once.",
    ),
    setting(
        "etcd.endpoints",
        SettingKind::Text,
        Text("http://127.0.0.1:2379"),
        "Bootstrap members of the etcd cluster, separated by commas.",
    ),
    setting(
        "etcd.prefix",
        SettingKind::Text,
        Text("whimbrel/"),
        "Prefix of all keys. Installations that share an etcd cluster need different prefixes.",
    ),
    setting(
        "etcd.session",
        duration(Duration::from_secs(2), Duration::from_secs(600)),
        Text("5s"),
        "Time without a keep-alive after which a node's session ends, and other nodes take over what it owned. Whole seconds.",
    ),
    setting("etcd.user", SettingKind::Text, Text(""), "User name. Empty: no authentication."),
    setting("etcd.password", SettingKind::Secret, Text(""), "Password."),
    setting(
        "etcd.request_timeout",
        duration(Duration::from_millis(100), Duration::from_secs(60)),
        Text("3s"),
        "Timeout of a request to etcd. Also how long a start waits for etcd.",
    ),
    setting(
        "telemetry.level",
        SettingKind::Text,
        Text("info"),
        "error, warn, info, debug or trace; also for each component: \"warn,whimbrel_storage=debug\".",
    ),
    setting(
        "telemetry.format",
        SettingKind::OneOf(&["text", "json"]),
        Text("text"),
        "Format of log lines: \"text\" for people, \"json\" for programs.",
    ),
];

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
