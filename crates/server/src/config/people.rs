//! The typed settings of pushes, gateways, clients, presence and notifications.

use std::path::PathBuf;
use std::time::Duration;

use whimbrel_model::parse_duration;

use super::resolved::{SecretText, StateEngineName, TypedSettings};

#[derive(Debug, Clone)]
pub struct PushConfig {
    pub engine: StateEngineName,
    pub partitions: u32,
    pub ttl_max: Duration,
    pub window: usize,
    pub window_bytes: usize,
    /// A text that is not a duration is an `Err`, which validation reports.
    pub retry_after: Vec<Result<Duration, String>>,
    pub pages_per_second: u32,
    pub save_interval: Duration,
    pub keep_log: Duration,
    pub upkeep_interval: Duration,
    pub keep_seats: Duration,
    pub generation: u64,
    pub behind: u64,
    /// `None`: one for two CPU cores.
    pub threads: Option<usize>,
}

#[derive(Debug, Clone)]
pub struct GatewayConfig {
    pub connections: usize,
    pub accepts_per_second: u32,
    pub first_frame: Duration,
    pub frame_bytes: usize,
    pub queue_bytes: usize,
    pub stuck_wait: Duration,
    pub ping_interval: Duration,
    pub pong_wait: Duration,
    pub goaway_spread: Duration,
    pub origins: Vec<String>,
}

/// How devices authenticate.
#[derive(Debug, Clone)]
pub struct ClientsConfig {
    pub secret: SecretText,
    pub public_keys: Vec<PathBuf>,
    pub jwks: Option<PathBuf>,
    pub issuers: Vec<String>,
    pub audiences: Vec<String>,
    pub leeway: Duration,
}

impl ClientsConfig {
    /// Whether devices need a token.
    pub fn has_keys(&self) -> bool {
        !self.secret.0.is_empty() || !self.public_keys.is_empty() || self.jwks.is_some()
    }
}

#[derive(Debug, Clone)]
pub struct PresenceConfig {
    pub engine: PresenceEngineName,
    pub shards: u32,
    /// The writer of each shard, for each data centre; empty if this node writes all shards.
    pub writers: Vec<Vec<String>>,
    pub data_centre: usize,
    pub stale_after: Duration,
    pub debounce: Duration,
    pub events: bool,
    pub sweep_per_second: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresenceEngineName {
    Memory,
    Redis,
}

#[derive(Debug, Clone)]
pub struct HornConfig {
    /// `None` without a key; so for `fcm` and `webpush`.
    pub apns: Option<ApnsConfig>,
    pub fcm: Option<FcmConfig>,
    pub webpush: Option<WebPushConfig>,
    pub http_secret: SecretText,
    /// Destinations that are not public and that devices may use nevertheless.
    pub allow: Vec<String>,
    pub timeout: Duration,
}

#[derive(Debug, Clone)]
pub struct ApnsConfig {
    pub key_file: PathBuf,
    pub key_id: String,
    pub team_id: String,
    pub topic: String,
    pub url: String,
}

#[derive(Debug, Clone)]
pub struct FcmConfig {
    pub service_account: PathBuf,
    pub url: String,
}

#[derive(Debug, Clone)]
pub struct WebPushConfig {
    pub key_file: PathBuf,
    pub subject: String,
}

pub fn push(take: &TypedSettings<'_>) -> PushConfig {
    let times = take.separated("push.retry_after");
    let read = |text: String| parse_duration(&text).map_err(|error| format!("`{text}`: {error}"));
    PushConfig {
        engine: take.state_engine("push.engine"),
        partitions: take.number("push.partitions") as u32,
        ttl_max: take.time("push.ttl_max"),
        window: take.number("push.window") as usize,
        window_bytes: take.size("push.window_bytes"),
        retry_after: times.into_iter().map(read).collect(),
        pages_per_second: take.number("push.pages_per_second") as u32,
        save_interval: take.time("push.save_interval"),
        keep_log: take.time("push.keep_log"),
        upkeep_interval: take.time("push.upkeep_interval"),
        keep_seats: take.time("push.keep_seats"),
        generation: take.number("push.generation"),
        behind: take.number("push.behind"),
        threads: take.count("push.threads").map(|threads| threads as usize),
    }
}

pub fn gateway(take: &TypedSettings<'_>) -> GatewayConfig {
    GatewayConfig {
        connections: take.number("gateway.connections") as usize,
        accepts_per_second: take.number("gateway.accepts_per_second") as u32,
        first_frame: take.time("gateway.first_frame"),
        frame_bytes: take.size("gateway.frame_bytes"),
        queue_bytes: take.size("gateway.queue_bytes"),
        stuck_wait: take.time("gateway.stuck_wait"),
        ping_interval: take.time("gateway.ping_interval"),
        pong_wait: take.time("gateway.pong_wait"),
        goaway_spread: take.time("gateway.goaway_spread"),
        origins: take.separated("gateway.origins"),
    }
}

pub fn clients(take: &TypedSettings<'_>) -> ClientsConfig {
    ClientsConfig {
        secret: take.secret("clients.secret"),
        public_keys: take.separated("clients.public_keys").into_iter().map(PathBuf::from).collect(),
        jwks: take.unless_empty("clients.jwks").map(PathBuf::from),
        issuers: take.separated("clients.issuer"),
        audiences: take.separated("clients.audience"),
        leeway: take.time("clients.leeway"),
    }
}

pub fn presence(take: &TypedSettings<'_>) -> PresenceConfig {
    let text = take.text("presence.writers");
    let of_one = |writers: &str| -> Vec<String> {
        writers.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
    };
    let writers: Vec<_> = text.split(';').map(of_one).collect();
    PresenceConfig {
        engine: match take.text("presence.engine").as_str() {
            "redis" => PresenceEngineName::Redis,
            _ => PresenceEngineName::Memory,
        },
        shards: take.number("presence.shards") as u32,
        writers: if text.trim().is_empty() { Vec::new() } else { writers },
        data_centre: take.number("presence.data_centre") as usize,
        stale_after: take.time("presence.stale_after"),
        debounce: take.time("presence.debounce"),
        events: take.flag("presence.events"),
        sweep_per_second: take.number("presence.sweep_per_second") as u32,
    }
}

pub fn horn(take: &TypedSettings<'_>) -> HornConfig {
    let apns = take.unless_empty("horn.apns.key_file").map(|key_file| ApnsConfig {
        key_file: key_file.into(),
        key_id: take.text("horn.apns.key_id"),
        team_id: take.text("horn.apns.team_id"),
        topic: take.text("horn.apns.topic"),
        url: take.text("horn.apns.url"),
    });
    let fcm = take
        .unless_empty("horn.fcm.service_account")
        .map(|file| FcmConfig { service_account: file.into(), url: take.text("horn.fcm.url") });
    let webpush = take
        .unless_empty("horn.webpush.key_file")
        .map(|file| WebPushConfig { key_file: file.into(), subject: take.text("horn.webpush.subject") });
    HornConfig {
        apns,
        fcm,
        webpush,
        http_secret: take.secret("horn.http.secret"),
        allow: take.separated("horn.allow"),
        timeout: take.time("horn.timeout"),
    }
}
