//! The `Inbox` port: the store of unacknowledged messages, a fold of `_push`.
//!
//! For each partition of `_push` it stores *boxes*, one per user, in a format that only the partition's owner reads, and *rows*, the
//! messages, by number. A row belongs to one user, or is shared by many users and removed with its last reference. The owner decides the
//! content of each box; the engine stores and finds. As in the store of holds, `applied` is written atomically with the changes that it
//! covers, **every read returns the `applied` of the same atomic step**, and a store can always be rebuilt from the log.

use bytes::Bytes;

use super::PortFuture;
use super::timers::{ApplyOutcome, AtOffset};
use crate::Timestamp;
use crate::people::Uid;

/// The key of a row: a user's own row by number, or the shared row of that number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RowKey {
    Own { uid: Uid, seq: u64 },
    Shared { seq: u64 },
}

/// The granularity of reclaim times. A box is found at its reclaim time or up to this much later, never earlier.
pub const RECLAIM_GRAIN_MS: i64 = 3_600_000;

/// The hour (since the Unix epoch) under which the engine indexes a box: the first full hour at or after its reclaim time.
pub fn reclaim_hour(at: Timestamp) -> u32 {
    let ms = at.as_millis();
    let hours = ms.div_euclid(RECLAIM_GRAIN_MS) + i64::from(ms.rem_euclid(RECLAIM_GRAIN_MS) > 0);
    u32::try_from(hours.max(0)).unwrap_or(u32::MAX)
}

/// One change. The changes of a write take effect in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InboxChange {
    /// Replaces the user's box; `None` removes it. `reclaim_at` is the time after which the box has no useful content, and
    /// [`Inbox::reclaimable`] finds the box by it. `was` is the `reclaim_at` of the box in the store. If a write changes a box twice, `was`
    /// of both changes is the value before the write.
    PutBox {
        uid: Uid,
        state: Option<Bytes>,
        reclaim_at: Option<Timestamp>,
        was: Option<Timestamp>,
    },
    /// A row of the user's own.
    PutOwn {
        uid: Uid,
        seq: u64,
        row: Bytes,
    },
    /// A row with `references` users. If the row exists, its content stays and the references are added.
    PutShared {
        seq: u64,
        row: Bytes,
        references: u32,
    },
    DropOwn {
        uid: Uid,
        seq: u64,
    },
    /// Removes `references` references, and the row with the last one. A missing row is no error.
    ReleaseShared {
        seq: u64,
        references: u32,
    },
}

/// One atomic write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxWrite {
    pub epoch: u64,
    /// The `applied` of the writer's last write. The write is rejected if the store has another one.
    pub expected: u64,
    /// Empties the partition in the same write, before the changes.
    pub reset: bool,
    pub changes: Vec<InboxChange>,
    /// The `applied` of the store after this write. Writes of acknowledgements alone do not change it.
    pub applied: u64,
    /// Whether this write and all earlier ones are synced to disk before the reply, as in the store of holds.
    pub synced: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InboxError {
    /// A read failed. A write may or may not have happened; the check of `expected` in the next write detects it.
    #[error("the store of inboxes is not available: {0}")]
    Unavailable(String),
    /// The store's contents cannot be decoded. The store must be rebuilt from the log.
    #[error("the store of inboxes is damaged: {0}")]
    Damaged(String),
}

/// The future of a read: the result, with the store's `applied` of the same atomic step.
pub type InboxRead<'a, T> = PortFuture<'a, Result<AtOffset<T>, InboxError>>;

/// The store of inboxes. One owner at a time writes a partition. The epoch check rejects writes of earlier owners.
///
/// # Atomicity and order
/// A write is visible and durable as a whole or not at all, even if the store's process crashes. It need not be synced before it returns,
/// if the state after a crash is the complete state after some earlier write. If a store falls back while its writer runs, it rejects the
/// writer's next write with [`ApplyOutcome::Behind`], even if the lost writes did not change `applied`.
///
/// # Cancellation
/// A dropped read has no effect. A dropped write may or may not have happened.
pub trait Inbox: Send + Sync {
    /// Takes over the partition for an epoch: writes of older epochs are rejected from now on. Returns the store's `applied`, zero if it
    /// has no such partition, or `None` if the store has a newer epoch.
    fn open(&self, partition: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, InboxError>>;

    fn apply(&self, partition: u32, write: InboxWrite) -> PortFuture<'_, Result<ApplyOutcome, InboxError>>;

    /// The boxes of these users, in the order of `uids`.
    fn boxes(&self, partition: u32, uids: Vec<Uid>) -> InboxRead<'_, Vec<Option<Bytes>>>;

    /// The rows, in the order of `keys`.
    fn rows(&self, partition: u32, keys: Vec<RowKey>) -> InboxRead<'_, Vec<Option<Bytes>>>;

    /// Users whose box may be reclaimed: its [`reclaim_hour`] is before the hour of `before`. Sorted by hour, then by user id.
    fn reclaimable(&self, partition: u32, before: Timestamp, limit: usize) -> InboxRead<'_, Vec<Uid>>;

    /// Closes the store after the last call. It does work, within a bounded time, that makes the next start faster. No data depends on it.
    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_never_found_before_its_time_and_at_most_an_hour_after() {
        for at in [1, 3_599_999, 3_600_000, 3_600_001, 1_800_000_000_000] {
            let found_at = i64::from(reclaim_hour(Timestamp::from_millis(at))) * RECLAIM_GRAIN_MS;
            assert!((at..at + RECLAIM_GRAIN_MS).contains(&found_at), "{at} {found_at}");
        }
        assert_eq!(reclaim_hour(Timestamp::from_millis(-5)), 0);
        assert_eq!(reclaim_hour(Timestamp::from_millis(i64::MAX)), u32::MAX);
    }
}
