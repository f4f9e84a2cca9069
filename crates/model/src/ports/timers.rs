//! The `Timers` port: the store beside the log that knows every hold of a shard by its id and in due order.
//!
//! The store is a fold of the shard's records up to an offset, `applied`, which is written in the same step as what it
//! covers. It may be lost or fall back to an earlier state (a Redis that failed over): **every read says where the store was
//! in the same step**, and the owner of the shard judges whether that is where it left it. A store can always be built again
//! from the log.

use std::sync::Arc;
use std::time::Duration;

use super::PortFuture;
use crate::{Hold, HoldEnd, HoldId, Timestamp, TopicNumber};

/// What a store knows of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    Pending(Arc<Hold>),
    Ended(HoldEnd),
}

/// Where the store has a pending hold: the place of its row in due order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub due: Timestamp,
    pub topic: TopicNumber,
}

/// One id as it is from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Pending as it stands here.
    Put { hold: Arc<Hold>, was: Option<Row> },
    /// Over: its row goes, its end stays for the time that ends are remembered.
    End { id: HoldId, end: HoldEnd, was: Option<Row> },
}

/// One atomic write. `was` of each change is the row that the store has for that id at `expected` (`None`: it has no pending
/// row); the writer knows, having read it or having never written it, and the engine need not look.
///
/// Each id occurs once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub epoch: u64,
    /// Where the writer left the store.
    pub expected: u64,
    /// Empties the shard in the same write, before the changes; their `was` is `None`.
    pub reset: bool,
    pub changes: Vec<Change>,
    /// Where the store is then.
    pub applied: u64,
    /// After this write no row is due below this: reads without a cursor begin here, never at the head.
    pub floor: Timestamp,
    /// For forgetting old ends.
    pub now: Timestamp,
    /// Whether this write, and all before it, must be on disk when it answers, where the engine has a disk of its own: so that the log
    /// may be trimmed behind it. Others survive a crash of the process, and may be lost with the machine's power.
    pub synced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    Done,
    /// The store is not at `expected` but here; nothing was written.
    Behind {
        at: u64,
    },
    /// A newer epoch has the shard; nothing was written.
    OlderEpoch,
}

/// What was read, and where the store was in the same step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At<T> {
    pub applied: u64,
    pub found: T,
}

/// A place in due order: everything after it is due later, or at the same time with a greater id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueCursor {
    pub due: Timestamp,
    pub id: HoldId,
}

/// Which pending holds: due at or after `from` and before `to`, after a cursor, of one topic or of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldQuery {
    pub topic: Option<TopicNumber>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub after: Option<DueCursor>,
    pub limit: usize,
}

/// How many come due when: counted in buckets that begin at multiples of `bucket` since the epoch of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountQuery {
    pub topic: Option<TopicNumber>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    /// Whole minutes. The bounds are widened to whole minutes.
    pub bucket: Duration,
}

/// Where buckets of this length begin that hold this time.
pub fn bucket_start(due: Timestamp, bucket: Duration) -> Timestamp {
    let length = i64::try_from(bucket.as_millis()).unwrap_or(i64::MAX).max(1);
    Timestamp::from_millis(due.as_millis().div_euclid(length).saturating_mul(length))
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimersError {
    /// Nothing was read. A write may or may not have happened; its `expected` tells the next time.
    #[error("the store of holds is not available: {0}")]
    Unavailable(String),
    /// A row that cannot be understood: the store must be built again from the log.
    #[error("the store of holds is damaged: {0}")]
    Damaged(String),
}

/// What a read returns: what was found, and where the store was in the same step.
pub type TimersRead<'a, T> = PortFuture<'a, Result<At<T>, TimersError>>;

/// The store of holds. One owner at a time writes a shard; owners that were replaced are refused by their epoch.
///
/// # Atomicity
/// A write is visible and durable whole or not at all, also through a crash of the store's process. The owner acknowledges
/// from the log and not from here, so a write need not be synced before it answers, as long as what survives a crash is the
/// state after some earlier write, whole.
///
/// # Cancellation
/// A dropped read did nothing. A dropped write may have happened.
pub trait Timers: Send + Sync {
    /// Takes the shard for an epoch, so that writes of older ones are refused from now on, and answers with where the store
    /// is: zero for a shard that it does not know. An older epoch than the store's is answered with `None`. What is there then is synced
    /// as a synced write would be.
    fn open(&self, shard: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, TimersError>>;

    fn apply(&self, shard: u32, write: Write) -> PortFuture<'_, Result<Applied, TimersError>>;

    /// Pending holds in due order, after a cursor (or from the floor), due before `until`; at most `limit`, and fewer where
    /// they have more than `max_bytes` together (but one, where there is one). An empty page says that there are no more.
    fn due(
        &self,
        shard: u32,
        after: Option<DueCursor>,
        until: Timestamp,
        limit: usize,
        max_bytes: usize,
    ) -> TimersRead<'_, Vec<Arc<Hold>>>;

    /// What is known of each id, in the order of the question.
    fn get(&self, shard: u32, ids: Vec<HoldId>) -> TimersRead<'_, Vec<Option<Known>>>;

    /// Pending holds in due order by topic and range; fewer than asked for where they are large. An empty page says that there are no
    /// more.
    fn list(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<Arc<Hold>>>;

    /// Holds that ended as dead and are remembered, in the order of (due, id), by the same query.
    fn dead(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<(HoldId, HoldEnd)>>;

    /// Counts by bucket, in order, from figures that are kept by the minute and not from a scan of the holds. Buckets without
    /// any are left out.
    fn count(&self, shard: u32, query: CountQuery) -> TimersRead<'_, Vec<(Timestamp, u64)>>;

    /// Nobody will ask any more: what would make the next start slow is done now, within a bounded time. Nothing is lost without it.
    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
