//! The `Inbox` port: the store of what users have not acknowledged yet, a fold of `_push`.
//!
//! For each partition of `_push` it keeps *boxes*, one for each user, whose bytes only the partition's owner understands, and *rows*, the
//! messages themselves, by number: a row of one user's own, or one that many users share and that goes with its last reference. What is in
//! which box is decided by the owner; the engine keeps and finds. As with the store of holds, `applied` is written in the same step as what
//! it covers, **every read says where the store was in the same step**, and a store can always be built again from the log.

use bytes::Bytes;

use super::PortFuture;
use super::timers::{Applied, At};
use crate::Timestamp;
use crate::people::Uid;

/// Which row: a user's own by number, or the shared one of that number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RowKey {
    Own { uid: Uid, seq: u64 },
    Shared { seq: u64 },
}

/// How exactly boxes are found by the time at which they may be reclaimed: never before it, and up to so much later.
pub const RECLAIM_GRAIN_MS: i64 = 3_600_000;

/// The whole hour that a box is found by: the first one that is not before its time.
pub fn reclaim_hour(at: Timestamp) -> u32 {
    let ms = at.as_millis();
    let hours = ms.div_euclid(RECLAIM_GRAIN_MS) + i64::from(ms.rem_euclid(RECLAIM_GRAIN_MS) > 0);
    u32::try_from(hours.max(0)).unwrap_or(u32::MAX)
}

/// One change. Within a write they take effect in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InboxChange {
    /// The user's box is this from now on; `None`: it is no more. Where it has a time at which nothing in it is of use any more,
    /// [`Inbox::reclaimable`] finds it by that. `was` is the time that it had, where the store has the box; a second change of the same
    /// box in one write goes by the first.
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
    /// A row that so many users refer to. Where the row is there already it stays, and the references are added.
    PutShared {
        seq: u64,
        row: Bytes,
        references: u32,
    },
    DropOwn {
        uid: Uid,
        seq: u64,
    },
    /// So many references fewer; with the last one the row goes. One that is not there is no error.
    ReleaseShared {
        seq: u64,
        references: u32,
    },
}

/// One atomic write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxWrite {
    pub epoch: u64,
    /// Where the writer left the store.
    pub expected: u64,
    /// Empties the partition in the same write, before the changes.
    pub reset: bool,
    pub changes: Vec<InboxChange>,
    /// Where the store is then. Acknowledgements alone leave it where it was.
    pub applied: u64,
    /// As for the store of holds: whether this and all before must be on disk when it answers.
    pub synced: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InboxError {
    /// Nothing was read. A write may or may not have happened; its `expected` tells the next time.
    #[error("the store of inboxes is not available: {0}")]
    Unavailable(String),
    /// Something that cannot be understood: the store must be built again from the log.
    #[error("the store of inboxes is damaged: {0}")]
    Damaged(String),
}

/// What a read returns: what was found, and where the store was in the same step.
pub type InboxRead<'a, T> = PortFuture<'a, Result<At<T>, InboxError>>;

/// The store of inboxes. One owner at a time writes a partition; owners that were replaced are refused by their epoch.
///
/// # Atomicity
/// A write is visible and durable whole or not at all, also through a crash of the store's process. It need not be synced before it
/// answers, as long as what survives a crash is the state after some earlier write, whole. A store that fell back so while its writer lives
/// refuses that writer's next write as [`Applied::Behind`], also where it lost only what left it at the same offset.
///
/// # Cancellation
/// A dropped read did nothing. A dropped write may have happened.
pub trait Inbox: Send + Sync {
    /// Takes the partition for an epoch, so that writes of older ones are refused from now on, and answers with where the store is: zero
    /// for a partition that it does not know. An older epoch than the store's is answered with `None`.
    fn open(&self, partition: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, InboxError>>;

    fn apply(&self, partition: u32, write: InboxWrite) -> PortFuture<'_, Result<Applied, InboxError>>;

    /// The boxes of these users, in the order of the question.
    fn boxes(&self, partition: u32, uids: Vec<Uid>) -> InboxRead<'_, Vec<Option<Bytes>>>;

    /// These rows, in the order of the question.
    fn rows(&self, partition: u32, keys: Vec<RowKey>) -> InboxRead<'_, Vec<Option<Bytes>>>;

    /// Users whose box may be reclaimed before that time, the earliest hour first and by id within one: a box is found by its
    /// [`reclaim_hour`] when that is before the time's own.
    fn reclaimable(&self, partition: u32, before: Timestamp, limit: usize) -> InboxRead<'_, Vec<Uid>>;

    /// Nobody will ask any more: what would make the next start slow is done now, within a bounded time. Nothing is lost without it.
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
