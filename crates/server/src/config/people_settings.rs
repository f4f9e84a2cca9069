//! The settings of reaching people, a part of the list in `settings.rs`.

use std::time::Duration;

use super::setting::Given::{Count, Text};
use super::setting::{Setting, bytes, count, duration, setting};
use super::value::Kind;

pub const PEOPLE_SECTIONS: [(&str, &str); 10] = [
    ("push", "Messages to people: their inboxes, and what is on its way to their devices."),
    ("gateway", "The connections of devices: /v1/connect as WebSocket, event stream and gRPC."),
    (
        "clients",
        "Whose word is taken for who a device's user is. With no key at all, a device on this machine may simply say who it is.",
    ),
    ("presence", "Who is online. Processes that share the work need the same shards and writers everywhere."),
    ("devices", "The registry of where notices for devices that are away go."),
    ("horn", "Notices to devices that are away."),
    ("horn.apns", "Notices through Apple's service. Without a key there are none."),
    ("horn.fcm", "Notices through Firebase Cloud Messaging. Without a service account there are none."),
    ("horn.webpush", "Notices to browsers. Without a key there are none."),
    ("horn.http", "Notices as a POST to the URL that a device was registered with."),
];

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Partitions of pushes at most.
const PUSH_PARTITIONS_MAX: u64 = 1024;
/// Shards of presence at most.
const PRESENCE_SHARDS_MAX: u64 = 1024;

/// In the order of the file.
pub const PEOPLE: &[Setting] = &[
    setting(
        "push.engine",
        Kind::OneOf(&["embedded", "redis"]),
        Text("embedded"),
        "Where inboxes are kept: \"embedded\" in the data folder, \"redis\" on the servers of [redis].",
    ),
    setting(
        "push.partitions",
        count(1, PUSH_PARTITIONS_MAX),
        Count(16),
        "Partitions that users are spread over. It matters before the first start only, and never changes after it.",
    ),
    setting(
        "push.ttl_max",
        duration(SECOND, YEAR),
        Text("7d"),
        "How long a message may be kept for a device at most, whatever its push or its platform says.",
    ),
    setting(
        "push.window",
        count(1, 10_000),
        Count(64),
        "Messages that a device may be sent before it acknowledges any…",
    ),
    setting(
        "push.window_bytes",
        bytes(KIB, 64 * MIB),
        Text("256KiB"),
        "…and their bytes; one is sent whatever its size.",
    ),
    setting(
        "push.retry_after",
        Kind::Text,
        Text("1s, 5s, 30s"),
        "After which times a device that did not acknowledge is tried again, separated by commas. Then it is closed, and away.",
    ),
    setting(
        "push.pages_per_second",
        count(1, 1_000_000),
        Count(10_000),
        "Pages of stored messages that this process reads in a second for all devices that come back.",
    ),
    setting(
        "push.save_interval",
        duration(Duration::from_millis(10), Duration::from_secs(10)),
        Text("100ms"),
        "How often what devices acknowledged is written to their inboxes: so much is sent again after a crash.",
    ),
    setting(
        "push.keep_log",
        duration(SECOND, YEAR),
        Text("8d"),
        "How long pushes stay in the log. While it is longer than ttl_max, inboxes that are lost can be built again.",
    ),
    setting(
        "push.upkeep_interval",
        duration(SECOND, Duration::from_secs(86_400)),
        Text("1m"),
        "How often pushes that are older, and inboxes in which nothing is of use, are looked for and dropped.",
    ),
    setting(
        "push.keep_seats",
        duration(SECOND, YEAR),
        Text("30d"),
        "How long a device counts after it was last seen: what it has not acknowledged is kept for it.",
    ),
    setting(
        "push.generation",
        count(0, 1_000_000_000),
        Count(0),
        "To be raised by one, in every process alike, when the log was put back from a backup. Devices then go on from what the server knows.",
    ),
    setting(
        "push.behind",
        count(1_000, 1_000_000_000),
        Count(50_000),
        "Records that the carrier of a partition may be behind what this process accepts for it. Beyond, no more is pushed there: 429.",
    ),
    setting(
        "push.threads",
        Kind::Count { min: 1, max: 256, or: Some("auto") },
        Text("auto"),
        "Threads that inboxes are kept on. \"auto\": one for two cores.",
    ),
    setting(
        "gateway.connections",
        count(1, 10_000_000),
        Count(100_000),
        "Devices connected to this process at the same time. Beyond, they are told to come back later.",
    ),
    setting(
        "gateway.accepts_per_second",
        count(0, 1_000_000),
        Count(10_000),
        "Devices that may connect in one second; beyond, they are told to come back later. 0: as many as come.",
    ),
    setting(
        "gateway.first_frame",
        duration(Duration::from_millis(100), MINUTE),
        Text("10s"),
        "How long a connection may take to say who it is.",
    ),
    setting("gateway.frame_bytes", bytes(KIB, 16 * MIB), Text("64KiB"), "Bytes of one frame that a device sends."),
    setting(
        "gateway.queue_bytes",
        bytes(KIB, 256 * MIB),
        Text("256KiB"),
        "Bytes that may wait for one device to read them. Beyond, what is stored waits in the inbox and the rest is dropped and counted.",
    ),
    setting(
        "gateway.stuck_wait",
        duration(SECOND, HOUR),
        Text("30s"),
        "How long a device may read nothing while something waits for it.",
    ),
    setting(
        "gateway.ping_interval",
        duration(SECOND, HOUR),
        Text("25s"),
        "After how much silence a device is asked whether it is there…",
    ),
    setting(
        "gateway.pong_wait",
        duration(Duration::from_millis(100), HOUR),
        Text("10s"),
        "…and how long it may take to answer.",
    ),
    setting(
        "gateway.goaway_spread",
        duration(Duration::ZERO, MINUTE),
        Text("10s"),
        "Over how long devices come back elsewhere when this process ends.",
    ),
    setting(
        "gateway.origins",
        Kind::Text,
        Text(""),
        "Web pages that may connect, and where there are no API keys also publish, push and change things; separated by commas:\n\
         https://shop.example, or * for all. Without API keys these are also the public names that the server answers under. Empty: with client\n\
         keys all may connect, for a page needs a token; otherwise only pages of this machine, for any page could say who it is.",
    ),
    setting(
        "clients.secret",
        Kind::Secret,
        Text(""),
        "The secret that HS256 tokens are signed with, at least 32 bytes.",
    ),
    setting(
        "clients.public_keys",
        Kind::Text,
        Text(""),
        "Files with the public keys of RS256, ES256 and EdDSA tokens as PEM, separated by commas.",
    ),
    setting("clients.jwks", Kind::Text, Text(""), "A file with keys of tokens as a JWK set."),
    setting(
        "clients.issuer",
        Kind::Text,
        Text(""),
        "What `iss` of a token must be one of, separated by commas. Empty: anything.",
    ),
    setting(
        "clients.audience",
        Kind::Text,
        Text(""),
        "What `aud` of a token must have one of, separated by commas. Empty: anything.",
    ),
    setting(
        "clients.leeway",
        duration(Duration::ZERO, HOUR),
        Text("30s"),
        "How far the clock of whoever makes tokens may be off.",
    ),
    setting(
        "presence.engine",
        Kind::OneOf(&["memory", "redis"]),
        Text("memory"),
        "Where the picture of who is online is kept: \"memory\" of its writer, \"redis\" on the servers of [redis].",
    ),
    setting(
        "presence.shards",
        count(1, PRESENCE_SHARDS_MAX),
        Count(16),
        "Shards that users are spread over, where no writers are named.",
    ),
    setting(
        "presence.writers",
        Kind::Text,
        Text(""),
        "Who writes each shard: host:port of internal ports, one for each shard, separated by commas; data centres are separated by\n\
         semicolons. Empty: this process writes all of them.",
    ),
    setting(
        "presence.data_centre",
        count(0, 15),
        Count(0),
        "Which of those data centres this process is in, counted from 0.",
    ),
    setting(
        "presence.stale_after",
        duration(SECOND, MINUTE),
        Text("3s"),
        "How old what is said about who is online may be: where a gateway that lives, or a shard's writer, was not heard for longer, 503 not_fresh.",
    ),
    setting(
        "presence.debounce",
        duration(Duration::ZERO, MINUTE),
        Text("1s"),
        "A user that comes and goes within this is told of once, as it is then.",
    ),
    setting(
        "presence.events",
        Kind::Flag,
        Text("true"),
        "Whether who came and went is published to the topic _presence.",
    ),
    setting(
        "presence.sweep_per_second",
        count(1, 1_000_000),
        Count(2_000),
        "Sessions of a gateway that died that each shard clears away in a second, with the events about them.",
    ),
    setting(
        "devices.engine",
        Kind::OneOf(&["embedded", "redis"]),
        Text("embedded"),
        "\"embedded\" keeps it in the data folder, \"redis\" on the servers of [redis], shared by all processes.",
    ),
    setting(
        "horn.timeout",
        // Below the time that a whole notice has: a dispatcher of another process would not hear of those that take longer.
        duration(Duration::from_millis(100), Duration::from_secs(25)),
        Text("10s"),
        "How long a notice to one device may take, whatever service it goes to.",
    ),
    setting(
        "horn.allow",
        Kind::Text,
        Text(""),
        "Addresses and names that devices may have notices sent to (webpush, http) although they are loopback, private or otherwise not public, separated by commas: 10.0.0.0/8, *.lan",
    ),
    setting("horn.apns.key_file", Kind::Text, Text(""), "The file with the key that Apple gave out (.p8)."),
    setting("horn.apns.key_id", Kind::Text, Text(""), "That key's id."),
    setting("horn.apns.team_id", Kind::Text, Text(""), "The team that the key is of."),
    setting("horn.apns.topic", Kind::Text, Text(""), "The app's bundle id, where a device does not say."),
    setting("horn.apns.url", Kind::Text, Text("https://api.push.apple.com"), "Where Apple's service is."),
    setting("horn.fcm.service_account", Kind::Text, Text(""), "The file of the service account (JSON)."),
    setting("horn.fcm.url", Kind::Text, Text("https://fcm.googleapis.com"), "Where Firebase is."),
    setting(
        "horn.webpush.key_file",
        Kind::Text,
        Text(""),
        "The file with the private key of VAPID: PEM, or 32 bytes in URL-safe base64.",
    ),
    setting(
        "horn.webpush.subject",
        Kind::Text,
        Text(""),
        "Whom a push service may turn to: mailto:ops@shop.example, or a page.",
    ),
    setting(
        "horn.http.secret",
        Kind::Secret,
        Text(""),
        "What such calls are signed with, as Standard Webhooks says: whsec_ and base64. Empty: they are not signed.",
    ),
];
