//! The bounds of a carrier, with their defaults.

use std::time::Duration;

use whimbrel_model::people::TTL_DEFAULT;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarrierSettings {
    /// Messages, and bytes, that a seat may have been sent and not acknowledged; beyond, it is sent no more until it acknowledges.
    pub window_messages: usize,
    pub window_bytes: usize,
    /// Stored messages of one page of a seat that reads on.
    pub page_messages: usize,
    /// Pages that this node reads in a second, for all seats together.
    pub pages_per_second: u32,
    /// Bytes of stored messages that one look into an inbox shows; one message is shown whatever its size.
    pub shown_bytes: usize,
    /// How often the store is brought up to the log.
    pub save_interval: Duration,
    /// It is so earlier where so many bytes wait; beyond twice as many the log is not read on.
    pub unsaved_bytes: usize,
    /// The longest time for which a message may be stored.
    pub ttl_max: Duration,
    /// What is younger than this is never trimmed from the log, so that a lost store can be built again.
    pub keep_log: Duration,
    /// How often the log is looked through for what can be trimmed, and the store for what can be reclaimed.
    pub upkeep_interval: Duration,
    /// How long a seat counts after it was last seen.
    pub keep_seats: Duration,
    /// Raised by an operator who put the log back from a backup: it gives numbers anew that devices have for other messages.
    pub generation: u64,
    /// After which times a seat that did not acknowledge is tried again.
    pub retry_after: Vec<Duration>,
    /// How long a new owner waits for gateways to announce their sessions before it holds anybody for away.
    pub announce_wait: Duration,
    /// Threads that carriers run on; zero: one for two cores.
    pub threads: usize,
}

/// Records, and their bytes, that are read at once.
pub const READ_RECORDS: usize = 1_000;
pub const READ_BYTES: usize = 1 << 20;
/// Records that are read and not folded yet; beyond, the log is not read on.
pub const WORK_RECORDS_MAX: usize = 4_000;
/// Users whose boxes are asked for at once.
pub const LOAD_USERS: usize = 1_000;
/// Users that are reclaimed at once.
pub const RECLAIM_USERS: usize = 256;
/// Questions that may wait for one partition.
pub const ASKS_MAX: usize = 1_000;
/// How long a question waits for the log and the store.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// What does not answer is tried again after this.
pub const RETRY_AFTER: Duration = Duration::from_millis(250);
/// A write is synced to the disk so often: only behind a synced one is the log trimmed.
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
