//! The `Timers` port: the store beside the log with every hold of a shard, by id and in due order.
//!
//! The store is a fold of the shard's records up to an offset, `applied`. `applied` is written atomically with the changes that it covers.
//! A store may be lost or fall back to an earlier state (a Redis after a failover). So **every read returns the store's `applied` of the
//! same atomic step**, and the shard's owner checks that it is the offset that it wrote last. A store can always be rebuilt from the log.

use std::sync::Arc;
use std::time::Duration;

use super::PortFuture;
use crate::{Hold, HoldEnd, HoldId, Timestamp, TopicNumber};

/// The state of a hold in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredHold {
    Pending(Arc<Hold>),
    Ended(HoldEnd),
}

/// The position of a pending hold in the store's due order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueKey {
    pub due: Timestamp,
    pub topic: TopicNumber,
}

/// The new state of one id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimerChange {
    /// The hold is pending with this content.
    Put { hold: Arc<Hold>, was: Option<DueKey> },
    /// The hold is over. Its row is removed, and its end is stored for the retention of ends.
    End { id: HoldId, end: HoldEnd, was: Option<DueKey> },
}

/// One atomic write. `was` of each change is the row that the store has for that id at `expected`; `None` if it has no pending row. The
/// writer supplies it from an earlier read or its own writes, so the engine need not look it up.
///
/// Each id occurs at most once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimersWrite {
    pub epoch: u64,
    /// The `applied` of the writer's last write. The write is rejected if the store has another one.
    pub expected: u64,
    /// Empties the shard in the same write, before the changes. The `was` of all changes is then `None`.
    pub reset: bool,
    pub changes: Vec<TimerChange>,
    /// The `applied` of the store after this write.
    pub applied: u64,
    /// No row is due before this time after the write. Reads without a cursor begin here, and need not skip deleted rows.
    pub floor: Timestamp,
    /// The present time, to expire old ends.
    pub now: Timestamp,
    /// Whether this write and all earlier ones are synced to disk before the reply, if the engine has a disk of its own. The log may then
    /// be trimmed up to `applied`. Other writes survive a crash of the process, but may be lost on a power failure.
    pub synced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyOutcome {
    Done,
    /// The store is at this offset, not at `expected`. Nothing was written.
    Behind {
        at: u64,
    },
    /// A newer epoch owns the shard. Nothing was written.
    OlderEpoch,
}

/// The result of a read, with the store's `applied` of the same atomic step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtOffset<T> {
    pub applied: u64,
    pub found: T,
}

/// A position in due order. The holds after it are due later, or at the same time with a greater id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueCursor {
    pub due: Timestamp,
    pub id: HoldId,
}

/// Selects pending holds: due at or after `from` and before `to`, after a cursor, of one topic or of all topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldQuery {
    pub topic: Option<TopicNumber>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub after: Option<DueCursor>,
    pub limit: usize,
}

/// Counts pending holds by due time, in buckets that begin at multiples of `bucket` since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountQuery {
    pub topic: Option<TopicNumber>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    /// A multiple of one minute. `from` and `to` are widened to whole minutes.
    pub bucket: Duration,
}

/// The start of the bucket that contains `due`.
pub fn bucket_start(due: Timestamp, bucket: Duration) -> Timestamp {
    let length = i64::try_from(bucket.as_millis()).unwrap_or(i64::MAX).max(1);
    Timestamp::from_millis(due.as_millis().div_euclid(length).saturating_mul(length))
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimersError {
    /// A read failed. A write may or may not have happened; the check of `expected` in the next write detects it.
    #[error("the store of holds is not available: {0}")]
    Unavailable(String),
    /// A row cannot be decoded. The store must be rebuilt from the log.
    #[error("the store of holds is damaged: {0}")]
    Damaged(String),
}

/// The future of a read: the result, with the store's `applied` of the same atomic step.
pub type TimersRead<'a, T> = PortFuture<'a, Result<AtOffset<T>, TimersError>>;

/// The store of holds. One owner at a time writes a shard. The epoch check rejects writes of earlier owners.
///
/// # Atomicity and order
/// A write is visible and durable as a whole or not at all, even if the store's process crashes. The owner replies from the log, not from
/// the store. So a write need not be synced before it returns, if the state after a crash is the complete state after some earlier write.
/// The check of `expected` orders the writes of a shard.
///
/// # Cancellation
/// A dropped read has no effect. A dropped write may or may not have happened.
pub trait Timers: Send + Sync {
    /// Takes over the shard for an epoch: writes of older epochs are rejected from now on. Returns the store's `applied`, zero if it has no
    /// such shard, or `None` if the store has a newer epoch. The present contents are synced to disk as by a synced write.
    fn open(&self, shard: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, TimersError>>;

    fn apply(&self, shard: u32, write: TimersWrite) -> PortFuture<'_, Result<ApplyOutcome, TimersError>>;

    /// The pending holds due before `until`, in due order, after a cursor or from the floor. Returns at most `limit` holds, and fewer if
    /// they exceed `max_bytes` together, but at least one if there is one. An empty page means that there are no more.
    fn due(
        &self,
        shard: u32,
        after: Option<DueCursor>,
        until: Timestamp,
        limit: usize,
        max_bytes: usize,
    ) -> TimersRead<'_, Vec<Arc<Hold>>>;

    /// The state of each id, in the order of `ids`.
    fn get(&self, shard: u32, ids: Vec<HoldId>) -> TimersRead<'_, Vec<Option<StoredHold>>>;

    /// The pending holds that match the query, in due order. A page with large holds may have fewer than `limit`. An empty page is the end.
    fn list(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<Arc<Hold>>>;

    /// The dead holds that match the query and have not expired, in the order of (due, id).
    fn dead(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<(HoldId, HoldEnd)>>;

    /// The number of pending holds per non-empty bucket, in order. The engine keeps counts per minute, so no scan of the holds is needed.
    fn count(&self, shard: u32, query: CountQuery) -> TimersRead<'_, Vec<(Timestamp, u64)>>;

    /// Closes the store after the last call. It does work, within a bounded time, that makes the next start faster. No data depends on it.
    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
