//! The settings of pushes, gateways, devices' tokens, presence and notifications.

use std::path::PathBuf;
use std::time::Duration;

use super::setting::SettingDefault::{Count, Text};
use super::setting::{DAY, HOUR, KIB, MIB, MINUTE, SECOND, YEAR, bytes, count, duration, section};
use super::setting_type::{PresenceEngineName, SecretText, StateEngineName};

const PUSH_PARTITIONS_MAX: u64 = 1024;
const PRESENCE_SHARDS_MAX: u64 = 1024;

section! {
    /// Pushes: messages to users, their inboxes, and delivery to devices.
    pub struct PushConfig in "push" {
        /// Where inboxes are kept: "embedded" in the data folder, "redis" on the servers of [redis].
        engine: StateEngineName = Text("embedded");
        /// Partitions over which users are distributed. Applied at the first start only; it cannot be changed later.
        partitions: u32 = Count(16), count(1, PUSH_PARTITIONS_MAX);
        /// How long a message is kept for a device at most, whatever its push or its platform sets.
        ttl_max: Duration = Text("7d"), duration(SECOND, YEAR);
        /// Messages that a device may be sent before it acknowledges any.
        window: usize = Count(64), count(1, 10_000);
        /// Size of the messages that a device may be sent before it acknowledges any. One is sent whatever its size.
        window_bytes: usize = Text("256KiB"), bytes(KIB, 64 * MIB);
        /// Delays after which unacknowledged messages are sent again, separated by commas. After the last one, the session is closed.
        retry_after: Vec<Result<Duration, String>> = Text("1s, 5s, 30s");
        /// Pages of stored messages that this node reads in a second for all reconnecting devices.
        pages_per_second: u32 = Count(10_000), count(1, 1_000_000);
        /// How often acknowledgements are written to the inboxes. After a crash, the messages of this time are sent again.
        save_interval: Duration = Text("100ms"), duration(Duration::from_millis(10), Duration::from_secs(10));
        /// How long pushes stay in the log. While it is longer than ttl_max, lost inboxes can be rebuilt from the log.
        keep_log: Duration = Text("8d"), duration(SECOND, YEAR);
        /// How often older pushes, and inboxes without any usable content, are removed.
        upkeep_interval: Duration = Text("1m"), duration(SECOND, DAY);
        /// How long a seat is kept after its device was last connected, with the messages that the device has not acknowledged.
        keep_seats: Duration = Text("30d"), duration(SECOND, YEAR);
        /// To be raised by one on every node after the log was restored from a backup. Devices then continue from the server's state.
        generation: u64 = Count(0), count(0, 1_000_000_000);
        /// Maximum backlog of a partition: records that this node accepted and the carrier has not applied. Beyond, pushes get 429.
        max_backlog: u64 = Count(50_000), count(1_000, 1_000_000_000);
        /// Threads for inboxes. "auto": one for two CPU cores.
        threads: Option<usize> = Text("auto"), count(1, 256).or("auto");
    }
}

section! {
    /// The connections of devices: /v1/connect as WebSocket, event stream and gRPC.
    pub struct GatewayConfig in "gateway" {
        /// Devices connected to this node. Further ones are told to reconnect later.
        connections: usize = Count(100_000), count(1, 10_000_000);
        /// Devices that may connect in one second. Further ones are told to reconnect later. 0: no limit.
        accepts_per_second: u32 = Count(10_000), count(0, 1_000_000);
        /// Timeout for the first frame, which identifies the device.
        handshake_timeout: Duration = Text("10s"), duration(Duration::from_millis(100), MINUTE);
        /// Size of one frame from a device.
        frame_bytes: usize = Text("64KiB"), bytes(KIB, 16 * MIB);
        /// Bytes that may wait for one device to read them. Beyond, stored messages wait in the inbox; others are dropped and counted.
        queue_bytes: usize = Text("256KiB"), bytes(KIB, 256 * MIB);
        /// Timeout of a device that reads nothing while data waits for it.
        write_timeout: Duration = Text("30s"), duration(SECOND, HOUR);
        /// Silence of a device after which the gateway sends a ping.
        ping_interval: Duration = Text("25s"), duration(SECOND, HOUR);
        /// Timeout for the reply to a ping.
        pong_timeout: Duration = Text("10s"), duration(Duration::from_millis(100), HOUR);
        /// Time over which the reconnects of devices are spread when this node shuts down.
        goaway_spread: Duration = Text("10s"), duration(Duration::ZERO, MINUTE);
        /// Origins of web pages that may connect, separated by commas: https://shop.example, or * for all. Without API keys, these pages
        /// may also publish, push and change things, and the server answers under these public names. Empty: with client keys all pages may
        /// connect, because a page needs a token; otherwise only pages of this machine, because any page could claim an identity.
        origins: Vec<String> = Text("");
    }
}

section! {
    /// Authentication of devices by token. Without any key here, a device on this machine may claim any user.
    pub struct ClientsConfig in "clients" {
        /// Secret of HS256 tokens, at least 32 bytes.
        secret: SecretText = Text("");
        /// PEM files with the public keys of RS256, ES256 and EdDSA tokens, separated by commas.
        public_keys: Vec<PathBuf> = Text("");
        /// JWK set file with the keys of tokens.
        jwks: Option<PathBuf> = Text("");
        /// Accepted values of `iss` in a token, separated by commas. Empty: any.
        issuer: Vec<String> = Text("");
        /// Accepted values of `aud` in a token, of which it must have one, separated by commas. Empty: any.
        audience: Vec<String> = Text("");
        /// Permitted difference to the clock of the issuer of tokens.
        leeway: Duration = Text("30s"), duration(Duration::ZERO, HOUR);
    }
}

section! {
    /// Presence: which users are online. All nodes need the same shards and writers.
    pub struct PresenceConfig in "presence" {
        /// Where presence is kept: "memory" of its writer, "redis" on the servers of [redis].
        engine: PresenceEngineName = Text("memory");
        /// Shards over which users are distributed, if presence.writers is empty.
        shards: u32 = Count(16), count(1, PRESENCE_SHARDS_MAX);
        /// The writer of each shard: host:port of internal ports, one for each shard, separated by commas; data centres are separated by
        /// semicolons. Empty: this node writes all shards.
        writers: Vec<Vec<String>> = Text("");
        /// This node's data centre in presence.writers, counted from 0.
        data_centre: usize = Count(0), count(0, 15);
        /// Maximum age of a presence answer. If a live gateway or a shard's writer has not reported for longer, the answer is 503 presence_stale.
        stale_after: Duration = Text("3s"), duration(SECOND, MINUTE);
        /// Changes of a user within this time are reported once, with the last state.
        debounce: Duration = Text("1s"), duration(Duration::ZERO, MINUTE);
        /// Whether changes of presence are published to the topic _presence.
        events: bool = Text("true");
        /// Sessions of a failed gateway that each shard removes in a second, with their events.
        sweep_per_second: u32 = Count(2_000), count(1, 1_000_000);
    }
}

section! {
    /// The registry of devices: where to send notifications for offline devices.
    pub struct DevicesConfig in "devices" {
        /// Where the registry is kept: "embedded" in the data folder, "redis" on the servers of [redis], shared by all nodes.
        engine: StateEngineName = Text("embedded");
    }
}

section! {
    /// Notifications to offline devices.
    pub struct HornConfig in "horn" {
        /// Timeout of a notification to one device, for every provider.
        // Below the time limit of a whole notification, so that a dispatcher on another node still receives the result.
        timeout: Duration = Text("10s"), duration(Duration::from_millis(100), Duration::from_secs(25));
        /// Addresses and names that notifications (webpush, http) may reach although they are loopback, private or otherwise not public,
        /// separated by commas: 10.0.0.0/8, *.lan
        allow: Vec<String> = Text("");
    }
}

section! {
    /// Notifications through Apple's push service (APNs). Disabled without a key.
    pub struct ApnsConfig in "horn.apns" {
        /// File with the key from Apple (.p8).
        key_file: Option<PathBuf> = Text("");
        /// Id of the key.
        key_id: String = Text("");
        /// Id of the team that owns the key.
        team_id: String = Text("");
        /// Bundle id of the app, for devices that name none.
        topic: String = Text("");
        /// URL of APNs.
        url: String = Text("https://api.push.apple.com");
    }
}

section! {
    /// Notifications through Firebase Cloud Messaging (FCM). Disabled without a service account.
    pub struct FcmConfig in "horn.fcm" {
        /// JSON file of the service account.
        service_account: Option<PathBuf> = Text("");
        /// URL of FCM.
        url: String = Text("https://fcm.googleapis.com");
    }
}

section! {
    /// Notifications to browsers (Web Push). Disabled without a key.
    pub struct WebPushConfig in "horn.webpush" {
        /// File with the VAPID private key: PEM, or 32 bytes in URL-safe base64.
        key_file: Option<PathBuf> = Text("");
        /// Contact for push services: mailto:ops@shop.example, or an https URL.
        subject: String = Text("");
    }
}

section! {
    /// Notifications as a POST to the URL in a device's registration.
    pub struct HornHttpConfig in "horn.http" {
        /// Secret that signs these calls by Standard Webhooks: whsec_ and base64. Empty: no signature.
        secret: SecretText = Text("");
    }
}

impl ClientsConfig {
    /// Whether devices need a token.
    pub fn has_keys(&self) -> bool {
        !self.secret.0.is_empty() || !self.public_keys.is_empty() || self.jwks.is_some()
    }
}
