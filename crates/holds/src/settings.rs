//! The bounds of a shard's owner, with their defaults.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldsSettings {
    /// How far ahead of their time holds are read into memory.
    pub window: Duration,
    /// Bytes of the windows of all shards together.
    pub window_bytes: usize,
    /// How often the store is brought up to the log.
    pub checkpoint_interval: Duration,
    /// A checkpoint is made earlier when so many holds changed in a shard…
    pub checkpoint_changes: usize,
    /// …or so many bytes.
    pub checkpoint_bytes: usize,
    /// Bytes of changes of one shard that the store does not have; beyond, its log is not read on.
    pub unsaved_bytes: usize,
    /// Holds and bytes of one commit.
    pub commit_holds: usize,
    pub commit_bytes: usize,
    /// Commands that may wait for one shard.
    pub commands_waiting: usize,
    /// How long a command waits for the store or the log before it is answered with an error.
    pub answer_within: Duration,
    /// What is younger than this is never trimmed from the log.
    pub keep_log: Duration,
    /// How often the log is looked through for what can be trimmed.
    pub trim_interval: Duration,
    /// How long it is known what became of a hold.
    pub remember: Duration,
    /// How far apart the clocks of two owners may be.
    pub clock_skew: Duration,
}

/// Records, or holds, that are read at once.
pub const PAGE_HOLDS: usize = 1_000;
/// Bytes of such a page.
pub const PAGE_BYTES: usize = 1 << 20;
/// A checkpoint is synced to the disk so often, or every one where the log is trimmed as often: only behind a synced one is it
/// trimmed. Syncs of the store and of the log's journal hold each other up, so there are few.
pub const SYNC_EVERY: Duration = Duration::from_secs(60);
/// A store that does not answer is asked again after this.
pub const RETRY_AFTER: Duration = Duration::from_millis(250);
/// A hold is due at most so far from now: two years, and a day for leap years.
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
