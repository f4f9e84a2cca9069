//! The settings of the API: limits, keys, and the process information of the page at `/`.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use whimbrel_model::limits;
use whimbrel_model::people::TTL_DEFAULT;
use whimbrel_model::ports::Provider;

use super::keys::ApiKey;
use whimbrel_api::endpoint::AddressGuard;

/// Default limit of payload bytes in progress to the log.
pub const IN_FLIGHT_BYTES_DEFAULT: usize = 256 << 20;
/// Default limit of answer bytes, for answers with messages, in progress to clients.
pub const ANSWER_BYTES_DEFAULT: usize = 256 << 20;
/// Default timeout for the next piece of a request body.
pub const BODY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Default limit of records that one search reads.
pub const SEARCH_SCAN_RECORDS_DEFAULT: usize = 100_000;
/// Default limit of message bytes that one read returns, as encoded in the answer. A single message is returned whatever its size.
pub const READ_BYTES_DEFAULT: usize = 8 << 20;
/// Default limit of the backlog of a shard or partition, in records: the amount that an ordinary machine processes in a few seconds.
pub const MAX_BACKLOG_DEFAULT: u64 = 50_000;
/// Default limit of open tails.
pub const TAILS_DEFAULT: usize = 1024;

/// The validated settings of `receive`. `Default` has the default values.
#[derive(Debug, Clone)]
pub struct ReceiveSettings {
    pub payload_bytes_max: usize,
    pub batch_messages_max: usize,
    pub batch_bytes_max: usize,
    pub headers_max: usize,
    /// Limits name and value of one header together.
    pub header_bytes_max: usize,
    pub read_bytes_max: usize,
    pub in_flight_bytes_max: usize,
    /// Limits all answers with messages that clients have not received yet.
    pub answer_bytes_max: usize,
    /// The maximum pause between two pieces of a body.
    pub body_timeout: Duration,
    pub search_scan_max_records: usize,
    pub tails_max: usize,
    /// The maximum TTL of a push.
    pub push_ttl_max: Duration,
    pub backlog: BacklogLimits,
    /// The number of this process for minting ids: 12 bits.
    pub node: u16,
    /// No keys means no authentication. The caller then restricts the listening address.
    pub keys: Vec<ApiKey>,
    pub guards: DestinationGuards,
    /// Notification providers for which the horn of this process has no settings. Empty without a horn: one on another node may have them.
    pub mute_providers: Vec<Provider>,
    /// The process information of the page at `/`.
    pub page: PageInfo,
    /// Cancelled when the server shuts down. Tails, waiting reads and background tasks then end.
    pub shutdown: CancellationToken,
}

/// The backlogs above which new records are rejected, in records that this node accepted and the owner has not applied.
#[derive(Debug, Clone)]
pub struct BacklogLimits {
    /// Of a shard of holds.
    pub holds: u64,
    /// Of a push partition.
    pub push: u64,
}

impl Default for BacklogLimits {
    fn default() -> Self {
        Self { holds: MAX_BACKLOG_DEFAULT, push: MAX_BACKLOG_DEFAULT }
    }
}

/// The allowed destinations of calls. The sender of a call checks them again, when it connects.
#[derive(Debug, Clone)]
pub struct DestinationGuards {
    /// Of callbacks, checked as far as possible when a subscription is created.
    pub callbacks: Arc<AddressGuard>,
    /// Of notification URLs, checked as far as possible when a device is registered.
    pub devices: Arc<AddressGuard>,
}

impl Default for DestinationGuards {
    fn default() -> Self {
        Self { callbacks: Arc::default(), devices: Arc::new(AddressGuard::default_for_devices()) }
    }
}

/// The process information of the page at `/`.
#[derive(Debug, Clone, Default)]
pub struct PageInfo {
    pub version: String,
    pub data_folder: String,
    /// One line for each engine, such as `log: embedded`.
    pub engines: Vec<String>,
    /// The listening address, such as `http://127.0.0.1:7600`.
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
            body_timeout: BODY_TIMEOUT_DEFAULT,
            search_scan_max_records: SEARCH_SCAN_RECORDS_DEFAULT,
            tails_max: TAILS_DEFAULT,
            push_ttl_max: TTL_DEFAULT,
            backlog: BacklogLimits::default(),
            node: 0,
            keys: Vec::new(),
            guards: DestinationGuards::default(),
            mute_providers: Vec::new(),
            page: PageInfo::default(),
            shutdown: CancellationToken::new(),
        }
    }
}
