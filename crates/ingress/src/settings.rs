//! What the door is told when it opens: its limits, its keys, what the page for people says.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use whimbrel_model::limits;
use whimbrel_model::people::TTL_DEFAULT;
use whimbrel_model::ports::Provider;

use super::keys::ApiKey;
use whimbrel_api::endpoint::AddressGuard;

/// Bytes of payloads that may be on their way into the log at one time, by default.
pub const IN_FLIGHT_BYTES_DEFAULT: usize = 256 << 20;
/// Bytes of answers with messages that may be on their way to clients at one time, by default.
pub const ANSWER_BYTES_DEFAULT: usize = 256 << 20;
/// How long the next piece of a body is waited for, by default.
pub const BODY_WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// Records that one search looks at, by default.
pub const SEARCH_SCAN_RECORDS_DEFAULT: usize = 100_000;
/// Bytes of messages, as they are written into the answer, that one read returns at most, by default (one message is returned whatever its size).
pub const READ_BYTES_DEFAULT: usize = 8 << 20;
/// Records that the owner of a shard of holds may be behind, by default: what an ordinary disk takes within a few seconds.
pub const HOLDS_BEHIND_DEFAULT: u64 = 50_000;
/// Records that the carrier of a partition of pushes may be behind, by default: what an ordinary machine delivers within a few seconds.
pub const PUSH_BEHIND_DEFAULT: u64 = 50_000;
/// Open tails, by default.
pub const TAILS_DEFAULT: usize = 1024;

/// The settings of `receive`, already checked: see `Default` for what is in force where nobody says otherwise.
#[derive(Debug, Clone)]
pub struct ReceiveSettings {
    pub payload_bytes_max: usize,
    pub batch_messages_max: usize,
    pub batch_bytes_max: usize,
    pub headers_max: usize,
    /// Of one header's name and value together.
    pub header_bytes_max: usize,
    pub read_bytes_max: usize,
    pub in_flight_bytes_max: usize,
    /// Of all answers with messages that clients have not yet taken.
    pub answer_bytes_max: usize,
    /// How long a body may be silent between two of its pieces.
    pub body_wait: Duration,
    pub search_scan_max_records: usize,
    pub tails_max: usize,
    /// How long a push may be of use.
    pub push_ttl_max: Duration,
    /// Records that the owner of a shard may be behind before no more holds are taken for it.
    pub holds_behind_max: u64,
    /// Records that the carrier of a partition may be behind before no more pushes are taken for it.
    pub push_behind_max: u64,
    /// This process among those that mint ids: 12 bits.
    pub node: u16,
    /// Without any key, everything is allowed: whoever opens the port guards its address.
    pub keys: Vec<ApiKey>,
    /// Where callbacks may go, as far as it can be told when a subscription is made.
    pub guard: Arc<AddressGuard>,
    /// Where notices may go whose URL a device brought, as far as it can be told when the device is registered.
    pub device_guard: Arc<AddressGuard>,
    /// Providers of notices that the horn of this process has no settings for; none where it has no horn, and another's may.
    pub mute_providers: Vec<Provider>,
    /// What the page at `/` says of this process.
    pub page: PageInfo,
    /// Cancelled when the server ends: tails and waiting reads end then, and the background tasks.
    pub shutdown: CancellationToken,
}

/// What the page for people says of the process.
#[derive(Debug, Clone, Default)]
pub struct PageInfo {
    pub version: String,
    pub data_folder: String,
    /// One line for each engine, such as `log: embedded`.
    pub engines: Vec<String>,
    /// Where it listens, such as `http://127.0.0.1:7600`.
    pub address: String,
}

impl Default for ReceiveSettings {
    fn default() -> Self {
        Self {
            payload_bytes_max: limits::PAYLOAD_BYTES_DEFAULT,
            batch_messages_max: limits::BATCH_MESSAGES_DEFAULT,
            batch_bytes_max: limits::BATCH_BYTES_DEFAULT,
            headers_max: limits::HEADERS_DEFAULT,
            header_bytes_max: limits::HEADER_BYTES_DEFAULT,
            read_bytes_max: READ_BYTES_DEFAULT,
            in_flight_bytes_max: IN_FLIGHT_BYTES_DEFAULT,
            answer_bytes_max: ANSWER_BYTES_DEFAULT,
            body_wait: BODY_WAIT_DEFAULT,
            search_scan_max_records: SEARCH_SCAN_RECORDS_DEFAULT,
            tails_max: TAILS_DEFAULT,
            push_ttl_max: TTL_DEFAULT,
            holds_behind_max: HOLDS_BEHIND_DEFAULT,
            push_behind_max: PUSH_BEHIND_DEFAULT,
            node: 0,
            keys: Vec::new(),
            guard: Arc::default(),
            device_guard: Arc::new(AddressGuard::default_for_devices()),
            mute_providers: Vec::new(),
            page: PageInfo::default(),
            shutdown: CancellationToken::new(),
        }
    }
}
