//! The bounds of a shard's owner, with their defaults.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldsSettings {
    /// How far ahead of their due time holds are read into memory.
    pub window: Duration,
    /// Bytes of the windows of all shards together.
    pub window_bytes: usize,
    /// How often a checkpoint writes the log's changes to the store.
    pub checkpoint_interval: Duration,
    /// A checkpoint is made earlier after this many changed holds in a shard…
    pub checkpoint_changes: usize,
    /// …or this many changed bytes.
    pub checkpoint_bytes: usize,
    /// Bytes of changes of one shard that the store does not have yet. Beyond that, the owner pauses reading the log.
    pub unsaved_bytes: usize,
    pub commit_holds: usize,
    pub commit_bytes: usize,
    /// The most requests that may wait for one shard.
    pub commands_waiting: usize,
    /// How long a request waits for the store or the log before it gets an error.
    pub answer_within: Duration,
    /// Records younger than this are never trimmed from the log.
    pub keep_log: Duration,
    /// How often the owner looks for records that can be trimmed.
    pub trim_interval: Duration,
    /// How long the outcome of a hold is kept.
    pub remember: Duration,
    /// The largest expected difference between the clocks of two owners.
    pub clock_skew: Duration,
}

/// The most records, or holds, of one read.
pub const PAGE_HOLDS: usize = 1_000;
/// The most bytes of one read.
pub const PAGE_BYTES: usize = 1 << 20;
/// How often a checkpoint is synced to disk; every checkpoint is, if the log is trimmed as often. The log is trimmed only up to a synced
/// checkpoint. Syncs of the store and of the log's journal delay each other, so there are few.
pub const SYNC_EVERY: Duration = Duration::from_secs(60);
/// The pause before a failed call to the store or the log is retried.
pub const RETRY_AFTER: Duration = Duration::from_millis(250);
/// The longest delay of a hold: two years, and a day for leap years.
pub const DELAY_MAX: Duration = Duration::from_secs(2 * 366 * 86_400);

impl Default for HoldsSettings {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(30),
            window_bytes: 32 << 20,
            checkpoint_interval: Duration::from_secs(1),
            checkpoint_changes: 20_000,
            checkpoint_bytes: 2 << 20,
            unsaved_bytes: 4 << 20,
            commit_holds: 1_000,
            commit_bytes: 256 << 10,
            commands_waiting: 10_000,
            answer_within: Duration::from_secs(5),
            keep_log: Duration::from_secs(86_400),
            trim_interval: Duration::from_secs(600),
            remember: Duration::from_secs(7 * 86_400),
            clock_skew: Duration::from_millis(500),
        }
    }
}
