//! The settings of pushes, gateways, presence and notifications: a part of the list in `settings.rs`.

use std::time::Duration;

use super::setting::SettingDefault::{Count, Text};
use super::setting::{Setting, bytes, count, duration, setting};
use super::value::SettingKind;

pub const PEOPLE_SECTIONS: [(&str, &str); 10] = [
    ("push", "Pushes: messages to users, their inboxes, and delivery to devices."),
    ("gateway", "The connections of devices: /v1/connect as WebSocket, event stream and gRPC."),
    (
        "clients",
        "Authentication of devices by token. Without any key here, a device on this machine may claim any user.",
    ),
    ("presence", "Presence: which users are online. All nodes need the same shards and writers."),
    ("devices", "The registry of devices: where to send notifications for offline devices."),
    ("horn", "Notifications to offline devices."),
    ("horn.apns", "Notifications through Apple's push service (APNs). Disabled without a key."),
    ("horn.fcm", "Notifications through Firebase Cloud Messaging (FCM). Disabled without a service account."),
    ("horn.webpush", "Notifications to browsers (Web Push). Disabled without a key."),
    ("horn.http", "Notifications as a POST to the URL in a device's registration."),
];

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const PUSH_PARTITIONS_MAX: u64 = 1024;
const PRESENCE_SHARDS_MAX: u64 = 1024;

pub const PEOPLE: &[Setting] = &[
    setting(
        "push.engine",
        SettingKind::OneOf(&["embedded", "redis"]),
        Text("embedded"),
        "Where inboxes are kept: \"embedded\" in the data folder, \"redis\" on the servers of [redis].",
    ),
    setting(
        "push.partitions",
        count(1, PUSH_PARTITIONS_MAX),
        Count(16),
        "Partitions over which users are distributed. Applied at the first start only; it cannot be changed later.",
    ),
    setting(
        "push.ttl_max",
        duration(SECOND, YEAR),
        Text("7d"),
        "How long a message is kept for a device at most, whatever its push or its platform sets.",
    ),
    setting(
        "push.window",
        count(1, 10_000),
        Count(64),
        "Messages that a device may be sent before it acknowledges any.",
    ),
    setting(
        "push.window_bytes",
        bytes(KIB, 64 * MIB),
        Text("256KiB"),
        "Size of the messages that a device may be sent before it acknowledges any. One is sent whatever its size.",
    ),
    setting(
        "push.retry_after",
        SettingKind::Text,
        Text("1s, 5s, 30s"),
        "Delays after which unacknowledged messages are sent again, separated by commas. After the last one, the session is closed.",
    ),
    setting(
        "push.pages_per_second",
        count(1, 1_000_000),
        Count(10_000),
        "Pages of stored messages that this node reads in a second for all reconnecting devices.",
    ),
    setting(
        "push.save_interval",
        duration(Duration::from_millis(10), Duration::from_secs(10)),
        Text("100ms"),
        "How often acknowledgements are written to the inboxes. After a crash, the messages of this time are sent again.",
    ),
    setting(
        "push.keep_log",
        duration(SECOND, YEAR),
        Text("8d"),
        "How long pushes stay in the log. While it is longer than ttl_max, lost inboxes can be rebuilt from the log.",
    ),
    setting(
        "push.upkeep_interval",
        duration(SECOND, Duration::from_secs(86_400)),
        Text("1m"),
        "How often older pushes, and inboxes without any usable content, are removed.",
    ),
    setting(
        "push.keep_seats",
        duration(SECOND, YEAR),
        Text("30d"),
        "How long a seat is kept after its device was last connected, with the messages that the device has not acknowledged.",
    ),
    setting(
        "push.generation",
        count(0, 1_000_000_000),
        Count(0),
        "To be raised by one on every node after the log was restored from a backup. Devices then continue from the server's state.",
    ),
    setting(
        "push.behind",
        count(1_000, 1_000_000_000),
        Count(50_000),
        "Maximum backlog of a partition: records that this node accepted and the carrier has not applied. Beyond, pushes get 429.",
    ),
    setting(
        "push.threads",
        SettingKind::Count { min: 1, max: 256, or: Some("auto") },
        Text("auto"),
        "Threads for inboxes. \"auto\": one for two CPU cores.",
    ),
    setting(
        "gateway.connections",
        count(1, 10_000_000),
        Count(100_000),
        "Devices connected to this node. Further ones are told to reconnect later.",
    ),
    setting(
        "gateway.accepts_per_second",
        count(0, 1_000_000),
        Count(10_000),
        "Devices that may connect in one second. Further ones are told to reconnect later. 0: no limit.",
    ),
    setting(
        "gateway.first_frame",
        duration(Duration::from_millis(100), MINUTE),
        Text("10s"),
        "Timeout for the first frame, which identifies the device.",
    ),
    setting("gateway.frame_bytes", bytes(KIB, 16 * MIB), Text("64KiB"), "Size of one frame from a device."),
    setting(
        "gateway.queue_bytes",
        bytes(KIB, 256 * MIB),
        Text("256KiB"),
        "Bytes that may wait for one device to read them. Beyond, stored messages wait in the inbox; others are dropped and counted.",
    ),
    setting(
        "gateway.stuck_wait",
        duration(SECOND, HOUR),
        Text("30s"),
        "Timeout of a device that reads nothing while data waits for it.",
    ),
    setting(
        "gateway.ping_interval",
        duration(SECOND, HOUR),
        Text("25s"),
        "Silence of a device after which the gateway sends a ping.",
    ),
    setting(
        "gateway.pong_wait",
        duration(Duration::from_millis(100), HOUR),
        Text("10s"),
        "Timeout for the reply to a ping.",
    ),
    setting(
        "gateway.goaway_spread",
        duration(Duration::ZERO, MINUTE),
        Text("10s"),
        "Time over which the reconnects of devices are spread when this node shuts down.",
    ),
    setting(
        "gateway.origins",
        SettingKind::Text,
        Text(""),
        "Origins of web pages that may connect, separated by commas: https://shop.example, or * for all. Without API keys, these pages\n\
         may also publish, push and change things, and the server answers under these public names. Empty: with client keys all pages may\n\
         connect, because a page needs a token; otherwise only pages of this machine, because any page could claim an identity.",
    ),
    setting("clients.secret", SettingKind::Secret, Text(""), "Secret of HS256 tokens, at least 32 bytes."),
    setting(
        "clients.public_keys",
        SettingKind::Text,
        Text(""),
        "PEM files with the public keys of RS256, ES256 and EdDSA tokens, separated by commas.",
    ),
    setting("clients.jwks", SettingKind::Text, Text(""), "JWK set file with the keys of tokens."),
    setting(
        "clients.issuer",
        SettingKind::Text,
        Text(""),
        "Accepted values of `iss` in a token, separated by commas. Empty: any.",
    ),
    setting(
        "clients.audience",
        SettingKind::Text,
        Text(""),
        "Accepted values of `aud` in a token, of which it must have one, separated by commas. Empty: any.",
    ),
    setting(
        "clients.leeway",
        duration(Duration::ZERO, HOUR),
        Text("30s"),
        "Permitted difference to the clock of the issuer of tokens.",
    ),
    setting(
        "presence.engine",
        SettingKind::OneOf(&["memory", "redis"]),
        Text("memory"),
        "Where presence is kept: \"memory\" of its writer, \"redis\" on the servers of [redis].",
    ),
    setting(
        "presence.shards",
        count(1, PRESENCE_SHARDS_MAX),
        Count(16),
        "Shards over which users are distributed, if presence.writers is empty.",
    ),
    setting(
        "presence.writers",
        SettingKind::Text,
        Text(""),
        "The writer of each shard: host:port of internal ports, one for each shard, separated by commas; data centres are separated by\n\
         semicolons. Empty: this node writes all shards.",
    ),
    setting(
        "presence.data_centre",
        count(0, 15),
        Count(0),
        "This node's data centre in presence.writers, counted from 0.",
    ),
    setting(
        "presence.stale_after",
        duration(SECOND, MINUTE),
        Text("3s"),
        "Maximum age of a presence answer. If a live gateway or a shard's writer has not reported for longer, the answer is 503 not_fresh.",
    ),
    setting(
        "presence.debounce",
        duration(Duration::ZERO, MINUTE),
        Text("1s"),
        "Changes of a user within this time are reported once, with the last state.",
    ),
    setting(
        "presence.events",
        SettingKind::Flag,
        Text("true"),
        "Whether changes of presence are published to the topic _presence.",
    ),
    setting(
        "presence.sweep_per_second",
        count(1, 1_000_000),
        Count(2_000),
        "Sessions of a failed gateway that each shard removes in a second, with their events.",
    ),
    setting(
        "devices.engine",
        SettingKind::OneOf(&["embedded", "redis"]),
        Text("embedded"),
        "Where the registry is kept: \"embedded\" in the data folder, \"redis\" on the servers of [redis], shared by all nodes.",
    ),
    setting(
        "horn.timeout",
        // Below the time limit of a whole notification, so that a dispatcher on another node still receives the result.
        duration(Duration::from_millis(100), Duration::from_secs(25)),
        Text("10s"),
        "Timeout of a notification to one device, for every provider.",
    ),
    setting(
        "horn.allow",
        SettingKind::Text,
        Text(""),
        "Addresses and names that notifications (webpush, http) may reach although they are loopback, private or otherwise not public,\n\
         separated by commas: 10.0.0.0/8, *.lan",
    ),
    setting("horn.apns.key_file", SettingKind::Text, Text(""), "File with the key from Apple (.p8)."),
    setting("horn.apns.key_id", SettingKind::Text, Text(""), "Id of the key."),
    setting("horn.apns.team_id", SettingKind::Text, Text(""), "Id of the team that owns the key."),
    setting("horn.apns.topic", SettingKind::Text, Text(""), "Bundle id of the app, for devices that name none."),
    setting("horn.apns.url", SettingKind::Text, Text("https://api.push.apple.com"), "URL of APNs."),
    setting("horn.fcm.service_account", SettingKind::Text, Text(""), "JSON file of the service account."),
    setting("horn.fcm.url", SettingKind::Text, Text("https://fcm.googleapis.com"), "URL of FCM."),
    setting(
        "horn.webpush.key_file",
        SettingKind::Text,
        Text(""),
        "File with the VAPID private key: PEM, or 32 bytes in URL-safe base64.",
    ),
    setting(
        "horn.webpush.subject",
        SettingKind::Text,
        Text(""),
        "Contact for push services: mailto:ops@shop.example, or an https URL.",
    ),
    setting(
        "horn.http.secret",
        SettingKind::Secret,
        Text(""),
        "Secret that signs these calls by Standard Webhooks: whsec_ and base64. Empty: no signature.",
    ),
];
