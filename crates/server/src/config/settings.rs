//! Every setting there is: its name, what it takes, its default, what it means. This list drives the file's keys, the variables'
//! names, `--set`, `whimbrel check` and `whimbrel.example.toml`; nothing else may know a setting's name or default.

use std::fmt::Write as _;
use std::time::Duration;

use whimbrel_model::limits;

use super::value::{Kind, Value};

/// One setting. `path` is `key` or `section.key`.
#[derive(Debug)]
pub struct Setting {
    pub path: &'static str,
    pub kind: Kind,
    default: Given,
    pub meaning: &'static str,
}

/// A default, as it is best written here.
#[derive(Debug)]
enum Given {
    Text(&'static str),
    Count(u64),
    Bytes(u64),
    Millis(u64),
}

/// What a section of the file is about.
pub const SECTIONS: [(&str, &str); 6] = [
    ("log", "The log that every accepted message is a record of."),
    ("kafka", "The Kafka that `log.engine = \"kafka\"` uses. Nothing here matters to the embedded log."),
    ("limits", "What is refused, with 413, 422 or 429."),
    ("topics", "What a topic is that nobody configured."),
    ("receipts", "The answers that publishers got, kept so that a repeat gets the same."),
    ("telemetry", "What the server says on its standard error."),
];

const SECOND: Duration = Duration::from_secs(1);
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

const fn count(min: u64, max: u64) -> Kind {
    Kind::Count { min, max, or: None }
}

const fn bytes(min: u64, max: u64) -> Kind {
    Kind::Bytes { min, max, or: None }
}

const fn duration(min: Duration, max: Duration) -> Kind {
    Kind::Duration { min, max, or: None }
}

const fn setting(path: &'static str, kind: Kind, default: Given, meaning: &'static str) -> Setting {
    Setting { path, kind, default, meaning }
}

use Given::{Bytes, Count, Millis, Text};

/// In the order of the file: keys without a section first, each section together.
pub const SETTINGS: &[Setting] = &[
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
        "Where roles that run apart reach each other. While all roles run in one process, nothing listens here.",
    ),
    setting(
        "data",
        Kind::Text,
        Text("./whimbrel-data"),
        "The folder that everything is kept in. One server at a time.",
    ),
    setting("roles", Kind::SomeOf(&["all", "receive"]), Text("all"), "Which roles run in this process."),
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
        "Connections at the same time. Those beyond wait to be accepted.",
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
        "This process's number, part of every message id it mints. Processes that share a log want different ones.",
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
    setting("kafka.bootstrap", Kind::Text, Text("127.0.0.1:9092"), "Brokers to begin with, separated by commas."),
    setting(
        "kafka.message_timeout",
        duration(SECOND, Duration::from_secs(3600)),
        Text("10s"),
        "After this long without an acknowledgement a publish answers that its outcome is not known.",
    ),
    setting(
        "kafka.transaction_timeout",
        duration(SECOND, Duration::from_secs(900)),
        Text("15s"),
        "After this long the brokers undo a decision that was not completed.",
    ),
    setting(
        "kafka.request_timeout",
        duration(SECOND, Duration::from_secs(600)),
        Text("10s"),
        "How long a question to the brokers may take, and how long a start waits for them.",
    ),
    setting(
        "kafka.linger",
        duration(Duration::ZERO, SECOND),
        Text("0s"),
        "How long a message may wait in memory for company on its way to the brokers.",
    ),
    setting(
        "kafka.transactional_prefix",
        Kind::Text,
        Text("whimbrel/"),
        "What the names of this installation's transactions begin with. Two that share brokers want different ones.",
    ),
    setting(
        "kafka.options",
        Kind::Options,
        Text(""),
        "Options of librdkafka, passed on as they are, such as \"security.protocol\" = \"SASL_SSL\".",
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
        "limits.search_records",
        count(1, 1_000_000_000),
        Count(100_000),
        "Records that one search looks through before it answers how far it came.",
    ),
    setting(
        "limits.read_bytes",
        bytes(1, 1024 * MIB),
        Text("8MiB"),
        "Bytes of messages that one read answers with; one message is returned whatever its size.",
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
        "telemetry.level",
        Kind::Text,
        Text("info"),
        "error, warn, info, debug or trace; also by part, such as \"warn,whimbrel_storage=debug\".",
    ),
    setting("telemetry.format", Kind::OneOf(&["text", "json"]), Text("text"), "Lines for people or for programs."),
    setting(
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
    ),
];

impl Setting {
    pub fn default_value(&self) -> Value {
        match self.default {
            Given::Count(count) => Value::Count(count),
            Given::Bytes(bytes) => Value::Bytes(bytes),
            Given::Millis(millis) => Value::Duration(Duration::from_millis(millis)),
            // A default that its own kind refuses is a mistake in this file, which a test finds.
            Given::Text(text) => self.kind.read_text(text).expect("a setting takes its own default"),
        }
    }

    /// The section, empty for keys without one, and the key in it.
    pub fn section_and_key(&self) -> (&'static str, &'static str) {
        self.path.split_once('.').unwrap_or(("", self.path))
    }

    /// `WHIMBREL_LOG_ENGINE` for `log.engine`.
    pub fn variable(&self) -> String {
        format!("WHIMBREL_{}", self.path.replace('.', "_").to_uppercase())
    }
}

/// The whole default configuration with its comments: the text of `whimbrel.example.toml`.
pub fn example() -> String {
    let mut text = String::from(
        "# Whimbrel's configuration: every setting with its default. Keep the lines that you change.\n\
         #\n\
         # It is read from `whimbrel.toml` in the folder that `whimbrel serve` runs in, or from `--config FILE`. A variable goes before\n\
         # the file, a flag before both: `log.retention` is also WHIMBREL_LOG_RETENTION and `--set log.retention=3d`.\n\
         # Durations: \"250ms\", \"30s\", \"1h30m\", \"7d\". Sizes: \"64KiB\", \"1MiB\", or bytes. `whimbrel check` shows what is in force.\n",
    );
    let mut current = "";
    for setting in SETTINGS {
        let (section, key) = setting.section_and_key();
        // An empty list of tables cannot be written behind a section, so the keys stay a comment.
        let is_comment = matches!(setting.kind, Kind::Keys);
        text.push('\n');
        if section != current && !is_comment {
            current = section;
            let meaning = SECTIONS.iter().find(|(name, _)| *name == section).map_or("", |(_, meaning)| meaning);
            let _ = write!(text, "# {meaning}\n[{section}]\n");
        }
        for line in setting.meaning.lines() {
            text.push_str(if line.is_empty() { "#" } else { "# " });
            text.push_str(line);
            text.push('\n');
        }
        if !is_comment {
            let _ = writeln!(text, "{key} = {}", setting.default_value().to_toml());
        }
    }
    text
}

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
