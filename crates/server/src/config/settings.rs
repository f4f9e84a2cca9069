//! Every setting there is. This list drives the file's keys, the variables' names, `--set`, `whimbrel check` and
//! `whimbrel.example.toml`; nothing else may know a setting's name or default.

use std::time::Duration;

use whimbrel_model::limits;

use super::people_settings::{PEOPLE, PEOPLE_SECTIONS};
use super::setting::Given::{Bytes, Count, Millis, Text};
use super::setting::{Setting, bytes, count, duration, setting};
use super::value::Kind;

/// What a section of the file is about.
pub fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    SECTIONS.into_iter().chain(PEOPLE_SECTIONS)
}

const SECTIONS: [(&str, &str); 13] = [
    ("log", "The log that every accepted message is a record of."),
    ("kafka", "Connection to Kafka. Used with `log.engine = \"kafka\"`, ignored by the embedded log."),
    ("limits", "What is refused, with 413, 422 or 429."),
    ("topics", "What a topic is that nobody configured."),
    ("receipts", "The answers that publishers got, kept so that a repeat gets the same."),
    ("holds", "Messages that arrive later. What is accepted is in the log; memory has only what is due soon."),
    ("timers", "The store beside the log that knows every hold by its id and by its due time."),
    (
        "subscriptions",
        "Deliveries to services. Who gets what is said over HTTP; here is what all of them cost at most.",
    ),
    ("callbacks", "Where deliveries may go."),
    ("redis", "The Redis that settings named `engine` may name."),
    ("coordination", "Who is there, and who owns what, where several processes share the work."),
    ("etcd", "The etcd that `coordination.engine = \"etcd\"` uses."),
    ("telemetry", "What the server says on its standard error."),
];

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Shards of holds at most.
pub const HOLD_SHARDS_MAX: u32 = 1024;

/// In the order of the file: keys without a section first, each section together, the keys last.
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
        Kind::Address,
        Text("127.0.0.1:7600"),
        "Where clients connect: HTTP/1.1, HTTP/2 and gRPC on one port. Anything but loopback wants [[keys]], or insecure.",
    ),
    setting(
        "internal_listen",
        Kind::Address,
        Text("127.0.0.1:7601"),
        "Where processes that share the work reach each other. With coordination.engine = \"process\" nothing listens here.",
    ),
    setting(
        "advertise",
        Kind::Text,
        Text("auto"),
        "The host:port at which other processes reach internal_listen. \"auto\": internal_listen itself.",
    ),
    setting(
        "internal_key",
        Kind::Secret,
        Text(""),
        "Shared secret for calls between processes, the same in all of them. Required unless internal_listen is loopback.",
    ),
    setting(
        "internal_key_previous",
        Kind::Secret,
        Text(""),
        "A second internal_key that this process accepts from others and does not present. Set it while you change internal_key\n\
         process by process.",
    ),
    setting(
        "data",
        Kind::Text,
        Text("./whimbrel-data"),
        "The folder that everything is kept in. One server at a time.",
    ),
    setting(
        "roles",
        Kind::SomeOf(&["all", "receive", "center", "worker", "gateway", "presence", "carrier", "horn"]),
        Text("all"),
        "Which roles run here: \"receive\" takes requests, \"center\" owns holds and subscriptions, \"worker\" calls subscribers,\n\
         \"gateway\" holds devices' connections, \"carrier\" owns inboxes, \"presence\" knows who is online, \"horn\" sends notices. Apart\n\
         they need etcd.",
    ),
    setting(
        "insecure",
        Kind::Flag,
        Text("false"),
        "Serves everybody who can connect, without keys, also beyond this machine.",
    ),
    setting(
        "workers",
        Kind::Count { min: 1, max: 1024, or: Some("auto") },
        Text("auto"),
        "Threads that serve connections. \"auto\": as many as the machine has cores.",
    ),
    setting(
        "connections_max",
        count(1, 1_000_000),
        Count(16_384),
        "Connections at the same time. Those beyond wait to be accepted, as do those that file descriptors do not suffice for.",
    ),
    setting(
        "header_wait",
        duration(SECOND, Duration::from_secs(600)),
        Text("30s"),
        "How long a connection may be silent between requests, or take to send a request's headers.",
    ),
    setting(
        "shutdown_wait",
        duration(Duration::ZERO, Duration::from_secs(600)),
        Text("10s"),
        "How long requests under way may take to end after Ctrl-C or SIGTERM.",
    ),
    setting(
        "node",
        count(0, 4095),
        Count(0),
        "This process's number, part of every message id it mints. With etcd another is taken where it is not free.",
    ),
    setting(
        "name",
        Kind::Text,
        Text("auto"),
        "What others call this process; no two of one installation may have the same. \"auto\": its host and port.",
    ),
    setting(
        "log.engine",
        Kind::OneOf(&["embedded", "kafka"]),
        Text("embedded"),
        "\"embedded\" keeps the log in the data folder, \"kafka\" on the brokers of [kafka].",
    ),
    setting(
        "log.retention",
        Kind::Duration { min: SECOND, max: Duration::from_secs(100 * 365 * 86_400), or: Some("forever") },
        Millis(limits::RETENTION_DEFAULT_MS),
        "How long messages are kept in a topic that does not say so itself.",
    ),
    setting(
        "log.retention_bytes",
        Kind::Bytes { min: MIB, max: 1 << 60, or: Some("unlimited") },
        Text("unlimited"),
        "How much is kept in each partition of a topic that does not say so itself; the oldest goes first.",
    ),
    setting(
        "log.segment_bytes",
        bytes(64 << 10, 2048 * MIB),
        Text("128MiB"),
        "Embedded log: bytes of one segment of a partition. Retention drops whole segments.",
    ),
    setting(
        "log.segment_age",
        duration(SECOND, YEAR),
        Text("1d"),
        "Embedded log: after this long the next segment is begun, so that retention by time can drop this one.",
    ),
    setting(
        "log.journal_file_bytes",
        bytes(32 * MIB, 4096 * MIB),
        Text("32MiB"),
        "Embedded log: bytes of one journal file. The first one is written out at the first start.",
    ),
    setting(
        "log.journal_bytes",
        bytes(96 * MIB, TIB),
        Text("1GiB"),
        "Embedded log: bytes of the whole journal, at least three files. At this bound publishes wait for a checkpoint.",
    ),
    setting(
        "log.checkpoint_bytes",
        bytes(MIB, TIB),
        Text("256MiB"),
        "Embedded log: a checkpoint is made when this much was written, at most half of journal_bytes…",
    ),
    setting(
        "log.checkpoint_interval",
        duration(Duration::from_millis(100), Duration::from_secs(3600)),
        Text("10s"),
        "…or when this much time has passed and anything was written.",
    ),
    setting(
        "log.tail_bytes",
        bytes(0, TIB),
        Text("32MiB"),
        "Embedded log: memory for the newest messages, from which readers at the end are served.",
    ),
    setting(
        "log.unsaved_bytes",
        bytes(32 * MIB, TIB),
        Text("128MiB"),
        "Embedded log: memory for messages that are in the journal and not in segments yet. At it publishes wait.",
    ),
    setting(
        "log.gather_us",
        count(0, 100_000),
        Count(200),
        "Embedded: microseconds that a write to disk waits for publishes on their way, when there are many. 0: none.",
    ),
    setting(
        "log.queue_bytes",
        bytes(MIB, TIB),
        Text("64MiB"),
        "Embedded log: bytes that may wait for the next write to disk. Beyond, the answer is 429.",
    ),
    setting(
        "log.disk_reserve_bytes",
        bytes(0, TIB),
        Text("128MiB"),
        "Embedded log: with less free disk space than this, publishes are refused with 503 until there is room again.",
    ),
    setting(
        "log.scrub_interval",
        Kind::Duration { min: SECOND, max: YEAR, or: Some("never") },
        Text("1d"),
        "Embedded log: how often the server reads all segments that are not written to any more and checks their checksums.",
    ),
    setting(
        "log.scrub_rate",
        bytes(64 << 10, TIB),
        Text("4MiB"),
        "Embedded log: bytes that this check reads in a second, at most.",
    ),
    setting(
        "kafka.bootstrap",
        Kind::Text,
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
        Kind::Text,
        Text("whimbrel/"),
        "Prefix of every `transactional.id`. Installations that share a Kafka cluster need different prefixes.",
    ),
    setting(
        "kafka.client_id",
        Kind::Text,
        Text("whimbrel"),
        "Name of this client in the brokers' logs, metrics and quotas.",
    ),
    setting(
        "kafka.compression",
        Kind::OneOf(&["none", "gzip", "snappy", "lz4", "zstd"]),
        Text("none"),
        "Compression of the record batches that Whimbrel writes. Whimbrel reads batches in any of these formats.",
    ),
    setting("kafka.tls", Kind::Flag, Text("false"), "Connects to the brokers with TLS."),
    setting(
        "kafka.tls_ca_file",
        Kind::Text,
        Text(""),
        "PEM file with the certificate authorities of the brokers. Empty: those of the operating system.",
    ),
    setting(
        "kafka.tls_certificate_file",
        Kind::Text,
        Text(""),
        "PEM file with the client certificate, for brokers that require one (mutual TLS). Empty: none.",
    ),
    setting(
        "kafka.tls_key_file",
        Kind::Text,
        Text(""),
        "PEM file with the private key of the client certificate. Empty: none.",
    ),
    setting(
        "kafka.sasl",
        Kind::OneOf(&["none", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]),
        Text("none"),
        "SASL mechanism to authenticate with. PLAIN sends the password in clear text: use it only with `kafka.tls = true`.",
    ),
    setting("kafka.sasl_username", Kind::Text, Text(""), "User name for SASL. Required unless `kafka.sasl` is `none`."),
    setting(
        "kafka.sasl_password",
        Kind::Secret,
        Text(""),
        "Password for SASL. Required unless `kafka.sasl` is `none`.",
    ),
    setting(
        "limits.payload_bytes",
        bytes(1, 256 * MIB),
        Bytes(limits::PAYLOAD_BYTES_DEFAULT as u64),
        "Bytes of one payload.",
    ),
    setting(
        "limits.batch_messages",
        count(1, 1_000_000),
        Count(limits::BATCH_MESSAGES_DEFAULT as u64),
        "Messages of one batch.",
    ),
    setting(
        "limits.batch_bytes",
        bytes(1, 1024 * MIB),
        Bytes(limits::BATCH_BYTES_DEFAULT as u64),
        "Bytes of one batch.",
    ),
    setting("limits.headers", count(0, 1024), Count(limits::HEADERS_DEFAULT as u64), "Headers of one message."),
    setting(
        "limits.header_bytes",
        bytes(1, 65_535),
        Bytes(limits::HEADER_BYTES_DEFAULT as u64),
        "Bytes of one header's name and value together.",
    ),
    setting(
        "limits.in_flight_bytes",
        bytes(MIB, TIB),
        Text("256MiB"),
        "Bytes of all requests under way that were not yet acknowledged. Beyond, the answer is 429.",
    ),
    setting(
        "limits.answer_bytes",
        bytes(MIB, TIB),
        Text("256MiB"),
        "Bytes of all answers with messages that clients have not yet taken. Beyond, the answer is 429.",
    ),
    setting(
        "limits.body_wait",
        duration(SECOND, Duration::from_secs(600)),
        Text("30s"),
        "How long a request's body may be silent between two of its pieces. Beyond, the answer is 408.",
    ),
    setting(
        "limits.linger_bytes",
        bytes(0, 1024 * MIB),
        Text("64MiB"),
        "Bytes of a body that are discarded before a connection is closed whose request was refused before it was read, so that the \
         client receives the answer.",
    ),
    setting(
        "limits.linger_timeout",
        duration(Duration::ZERO, Duration::from_secs(60)),
        Text("5s"),
        "How long such a body is discarded.",
    ),
    setting(
        "limits.search_records",
        count(1, 1_000_000_000),
        Count(100_000),
        "Records that one search looks through before it answers how far it came.",
    ),
    setting(
        "limits.read_bytes",
        bytes(1, 1024 * MIB),
        Text("8MiB"),
        "Bytes of messages that one read, or look into an inbox, answers with; one message is returned whatever its size.",
    ),
    setting("limits.topics", count(1, limits::TOPIC_NUMBER_MAX as u64), Count(10_000), "Topics at the same time."),
    setting("limits.tails", count(0, 1_000_000), Count(1024), "Open tails (event streams) at the same time."),
    setting(
        "topics.partitions",
        count(1, limits::PARTITIONS_MAX as u64),
        Count(limits::PARTITIONS_DEFAULT as u64),
        "Partitions.",
    ),
    setting(
        "topics.replicas",
        Kind::Count { min: 1, max: 1000, or: Some("engine") },
        Text("engine"),
        "Copies of each partition. \"engine\": the brokers' default; the embedded log has one.",
    ),
    setting(
        "topics.min_insync",
        Kind::Count { min: 1, max: 1000, or: Some("engine") },
        Text("engine"),
        "Copies that must have a message before it is acknowledged. \"engine\": the brokers' default.",
    ),
    setting(
        "topics.auto_create_topics",
        Kind::Flag,
        Text("true"),
        "Whether the first publish to a topic makes it. Otherwise: 404 unknown_topic.",
    ),
    setting(
        "receipts.engine",
        Kind::OneOf(&["embedded", "redis"]),
        Text("embedded"),
        "\"embedded\" keeps them in the data folder, \"redis\" on the servers of [redis], shared by all processes.",
    ),
    setting(
        "receipts.window",
        duration(SECOND, YEAR),
        Millis(limits::RECEIPT_WINDOW_DEFAULT_MS),
        "How long the first answer to an Idempotency-Key or an id of the publisher's own is remembered.",
    ),
    setting(
        "receipts.id_window",
        duration(SECOND, YEAR),
        Millis(limits::RETENTION_DEFAULT_MS),
        "How long a message is found again by an id of the publisher's own.",
    ),
    setting(
        "receipts.lease",
        duration(SECOND, Duration::from_secs(3600)),
        Text("1m"),
        "After this long a publish that began and never ended may be taken up by a repeat. Longer than any publish takes.",
    ),
    setting(
        "holds.window",
        duration(SECOND, HOUR),
        Text("30s"),
        "How far ahead holds are kept in memory, ready to fire.",
    ),
    setting(
        "holds.window_bytes",
        bytes(MIB, TIB),
        Text("32MiB"),
        "Memory for them, over all shards. Beyond, the window is shorter.",
    ),
    setting(
        "holds.checkpoint_interval",
        duration(Duration::from_millis(50), Duration::from_secs(60)),
        Text("1s"),
        "How often what became of holds is written to the store of [timers].",
    ),
    setting(
        "holds.keep_log",
        duration(SECOND, YEAR),
        Text("1d"),
        "How long what was written about holds stays in the log. What is still pending is then written anew.",
    ),
    setting(
        "holds.trim_interval",
        duration(SECOND, Duration::from_secs(86_400)),
        Text("10m"),
        "How often what is older is looked for in the log, and dropped.",
    ),
    setting("holds.remember", duration(SECOND, YEAR), Text("7d"), "How long it is remembered what became of a hold."),
    setting(
        "holds.shards",
        count(1, HOLD_SHARDS_MAX as u64),
        Count(16),
        "Shards that holds are spread over. It matters before the first start only, and never changes after it.",
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
        "Records that the owner of a shard may be behind what this process accepts for it. Beyond, no more is held there: 429.",
    ),
    setting(
        "timers.engine",
        Kind::OneOf(&["embedded", "redis"]),
        Text("embedded"),
        "\"embedded\" keeps it in the data folder, \"redis\" on the servers of [redis], where another process can take over.",
    ),
    setting(
        "subscriptions.engine",
        Kind::OneOf(&["embedded", "redis"]),
        Text("embedded"),
        "Where it is kept how far subscriptions are: \"embedded\" in the data folder, \"redis\" on the servers of [redis].",
    ),
    setting(
        "subscriptions.prefetch_bytes",
        bytes(64 << 10, TIB),
        Text("4MiB"),
        "Memory for the messages of one subscription that were read and not yet delivered.",
    ),
    setting(
        "subscriptions.parked_bytes",
        bytes(64 << 10, TIB),
        Text("8MiB"),
        "Memory of one subscription for what waits in a partition behind failing keys. Beyond, it reads no further.",
    ),
    setting(
        "subscriptions.retry_holds",
        count(1, 10_000_000),
        Count(10_000),
        "Retries of one subscription without order that may wait at a time. Beyond, it reads no further.",
    ),
    setting(
        "subscriptions.save_interval",
        duration(Duration::from_millis(50), SECOND),
        Text("1s"),
        "How often it is saved how far subscriptions are: so much is delivered again after a crash.",
    ),
    setting(
        "subscriptions.attempts_bytes",
        bytes(MIB, TIB),
        Text("256MiB"),
        "Disk space of this process for what deliveries were tried and how they went. The oldest goes first.",
    ),
    setting(
        "subscriptions.breaker_failures",
        count(1, 1_000_000),
        Count(20),
        "After so many failures in a row an endpoint is left alone for a while, and spends no attempts.",
    ),
    setting(
        "subscriptions.breaker_pause",
        duration(Duration::from_millis(10), HOUR),
        Text("5s"),
        "How long it is left alone at first, before one delivery tries it…",
    ),
    setting(
        "subscriptions.breaker_pause_max",
        duration(Duration::from_millis(10), Duration::from_secs(86_400)),
        Text("1m"),
        "…and how long at most, after it failed again and again.",
    ),
    setting(
        "subscriptions.threads",
        Kind::Count { min: 1, max: 256, or: Some("auto") },
        Text("auto"),
        "Threads that run subscriptions. \"auto\": as many as the machine has cores.",
    ),
    setting(
        "callbacks.allow",
        Kind::Text,
        Text(""),
        "Addresses and names that callbacks may go to although they are denied, separated by commas: 10.0.0.0/8, *.lan",
    ),
    setting(
        "callbacks.deny",
        Kind::Text,
        Text(""),
        "Addresses and names that callbacks may not go to, beside link-local and cloud metadata, separated by commas.",
    ),
    setting(
        "callbacks.connect_timeout",
        duration(Duration::from_millis(10), Duration::from_secs(60)),
        Text("5s"),
        "How long a connection to a subscriber may take to come about, where its subscription does not say.",
    ),
    setting(
        "redis.urls",
        Kind::Text,
        Text("redis://127.0.0.1:6379"),
        "Servers to begin with, separated by commas; one, unless it is a Redis Cluster.",
    ),
    setting("redis.user", Kind::Text, Text(""), "The user to sign in as. Empty: the default user."),
    setting("redis.password", Kind::Secret, Text(""), "The password to sign in with. Empty: none."),
    setting(
        "redis.prefix",
        Kind::Text,
        Text("whimbrel"),
        "What the keys of this installation begin with. Two that share servers want different ones.",
    ),
    setting(
        "redis.connect_timeout",
        duration(Duration::from_millis(10), Duration::from_secs(60)),
        Text("2s"),
        "How long a connection may take to come about.",
    ),
    setting(
        "redis.response_timeout",
        duration(Duration::from_millis(10), Duration::from_secs(60)),
        Text("5s"),
        "How long an answer may take.",
    ),
    setting(
        "coordination.engine",
        Kind::OneOf(&["process", "etcd"]),
        Text("process"),
        "\"process\": this process does everything by itself. \"etcd\": several share the work; see [etcd].",
    ),
    setting(
        "coordination.clock_skew",
        duration(Duration::ZERO, Duration::from_secs(60)),
        Text("500ms"),
        "How far the clocks of processes may be apart. One whose clock is further off is refused.",
    ),
    setting(
        "coordination.clock_stepout",
        duration(Duration::ZERO, Duration::from_secs(86_400)),
        Text("5m"),
        "How long a step of this machine's wall clock beyond `clock_skew` must last before it is followed, and how long a clock that is \
         ahead of the log at a start must keep its time before anything expires by it. 0s: at once.",
    ),
    setting(
        "etcd.endpoints",
        Kind::Text,
        Text("http://127.0.0.1:2379"),
        "Members of the cluster to begin with, separated by commas.",
    ),
    setting(
        "etcd.prefix",
        Kind::Text,
        Text("whimbrel/"),
        "What the keys of this installation begin with. Two that share a cluster want different ones.",
    ),
    setting(
        "etcd.session",
        duration(Duration::from_secs(2), Duration::from_secs(600)),
        Text("5s"),
        "After this long without a sign of life, what a process owned is free for others. Whole seconds.",
    ),
    setting("etcd.user", Kind::Text, Text(""), "The user to sign in as. Empty: nobody."),
    setting("etcd.password", Kind::Secret, Text(""), "The password to sign in with."),
    setting(
        "etcd.request_timeout",
        duration(Duration::from_millis(100), Duration::from_secs(60)),
        Text("3s"),
        "How long a question to etcd may take, and how long a start waits for it.",
    ),
    setting(
        "telemetry.level",
        Kind::Text,
        Text("info"),
        "error, warn, info, debug or trace; also by part, such as \"warn,whimbrel_storage=debug\".",
    ),
    setting("telemetry.format", Kind::OneOf(&["text", "json"]), Text("text"), "Lines for people or for programs."),
];

const KEYS: Setting = setting(
    "keys",
    Kind::Keys,
    Text("[]"),
    "API keys. With none, everybody who can connect may do everything. An entry,\n\
     whose bearer sends `Authorization: Bearer <secret>`:\n\n\
     [[keys]]\n\
     name = \"shop\"\n\
     secret = \"at-least-16-characters\"      # or \"sha256:\" and its 64 hexadecimal digits\n\
     scopes = [\"publish\", \"consume\"]   # publish, consume, push, admin\n\
     topics = [\"orders.*\"]             # all of them where this is left out",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_takes_its_own_default() {
        for setting in SETTINGS {
            let written = setting.default_value().to_toml();
            let read = toml::de::DeValue::parse(&written).unwrap();
            assert_eq!(setting.kind.read_toml(read.get_ref()), Ok(setting.default_value()), "{}", setting.path);
        }
    }

    #[test]
    fn settings_of_a_section_stand_together_and_have_one_name_each() {
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
