//! The bounds of a carrier, with their defaults.

use std::time::Duration;

use whimbrel_model::people::TTL_DEFAULT;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarrierSettings {
    /// Messages, and bytes, sent to a seat and not acknowledged, at most. At the limit the carrier sends no more to it.
    pub window_messages: usize,
    pub window_bytes: usize,
    /// Stored messages that one page read for a seat requests, at most.
    pub page_messages: usize,
    /// Pages per second that this node reads for all seats.
    pub pages_per_second: u32,
    /// Bytes of stored messages in one inbox view, at most. One message is always shown, whatever its size.
    pub shown_bytes: usize,
    /// How often the carrier saves to the store.
    pub save_interval: Duration,
    /// Unsaved bytes that trigger an earlier save. At twice this number the carrier stops reading the log.
    pub unsaved_bytes: usize,
    /// The longest time for which a message may be stored.
    pub ttl_max: Duration,
    /// Records younger than this are never trimmed from the log, so that a lost store can be rebuilt.
    pub keep_log: Duration,
    /// How often the carrier trims the log and looks for reclaimable boxes in the store.
    pub upkeep_interval: Duration,
    /// How long a seat is kept after it was last seen.
    pub keep_seats: Duration,
    /// An operator raises it after restoring the log from a backup: the log then reuses numbers that devices know for other messages.
    pub generation: u64,
    /// Delays before each retry to a seat that does not acknowledge.
    pub retry_after: Vec<Duration>,
    /// How long a new owner waits for gateways to announce their sessions before it treats users as offline.
    pub announce_wait: Duration,
    /// Threads of the carrier. Zero: one for every two cores.
    pub threads: usize,
}

/// Records, and their bytes, in one read of the log, at most.
pub const READ_RECORDS: usize = 1_000;
pub const READ_BYTES: usize = 1 << 20;
/// Records read and not folded yet, at most. At the limit the carrier stops reading the log.
pub const WORK_RECORDS_MAX: usize = 4_000;
/// Boxes in one load request, at most.
pub const LOAD_USERS: usize = 1_000;
/// Users that one upkeep run reclaims, at most.
pub const RECLAIM_USERS: usize = 256;
/// Pending queries of one node's carrier, at most.
pub const ASKS_MAX: usize = 1_000;
/// Timeout of a query, which waits for the log and the store.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Delay before a failed call to the log or the store is retried.
pub const RETRY_AFTER: Duration = Duration::from_millis(250);
/// How often a write is synced to disk. The log is trimmed only up to a synced write.
pub const SYNC_EVERY: Duration = Duration::from_secs(60);

impl Default for CarrierSettings {
    fn default() -> Self {
        Self {
            window_messages: 64,
            window_bytes: 256 << 10,
            page_messages: 50,
            pages_per_second: 10_000,
            shown_bytes: 8 << 20,
            save_interval: Duration::from_millis(100),
            unsaved_bytes: 4 << 20,
            ttl_max: TTL_DEFAULT,
            keep_log: TTL_DEFAULT + Duration::from_secs(86_400),
            upkeep_interval: Duration::from_secs(60),
            keep_seats: Duration::from_secs(30 * 86_400),
            generation: 0,
            retry_after: whimbrel_model::push::RETRY_AFTER_MS.map(Duration::from_millis).to_vec(),
            announce_wait: Duration::from_secs(5),
            threads: 0,
        }
    }
}
