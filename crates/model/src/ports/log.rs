//! The `Log` port: partitioned, ordered, durable append; all-or-nothing fenced commit; reads by offset or time.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::PortFuture;
use crate::{ExistingTopic, NamedBounds, PartitionId, Record, StoredRecord, Timestamp, TopicNumber, TopicSpec};

/// A record to write, with its partition.
#[derive(Debug, Clone)]
pub struct Entry {
    pub partition: PartitionId,
    pub record: Record,
}

/// One result for each entry of an append, in the order of the entries: the offset, or the error.
pub type AppendOutcome = Vec<Result<u64, LogError>>;

/// The log of messages.
///
/// # Order
/// Within a partition, records of one call keep the order of the call. Offsets increase, **not always by one**.
///
/// # Visibility
/// A `read` that starts after an acknowledged append or commit returns its records. Exception: on Kafka, a record behind an open
/// transaction is durable but not yet visible. `bounds().next` counts that record too.
pub trait Log: Send + Sync {
    /// Appends records to any partitions. Returns when they are durable, with an offset or an error for each entry. Not atomic: if a broker
    /// or a disk fails midway, some entries are written and others are not. Used to accept messages.
    ///
    /// *Cancellation*: dropping the future does not undo the append. The outcome is then unknown.
    fn append(&self, entries: Vec<Entry>) -> PortFuture<'_, AppendOutcome>;

    /// Opens the fence `name` and invalidates every earlier fence of that name, in this process and in others. `epoch` is the epoch of the
    /// caller's ownership; it is recorded for diagnosis only. The caller must check its ownership again after this call.
    fn fence<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<Fence, LogError>>;

    /// Writes records to any partitions, **all or nothing** even after a crash: no reader sees a part of a commit that will not be
    /// completed. Within a partition the records become visible at once; different partitions may follow moments apart. Commits of one
    /// fence are written in the order of the calls. Used for decisions of a shard's owner.
    ///
    /// After [`CommitOutcome::Fenced`] or [`CommitOutcome::Unknown`] the caller opens a new fence, checks its ownership, folds to the end
    /// of the log and decides again. It must never resubmit the same entries.
    ///
    /// *Cancellation*: dropping the future is the outcome `Unknown`.
    fn commit<'a>(&'a self, fence: &'a Fence, entries: Vec<Entry>) -> PortFuture<'a, CommitOutcome>;

    /// Reads records from offset `from`, and waits up to `limits.wait` if there are none yet. The next read starts at [`ReadBatch::next`],
    /// which also skips offsets without a record. If a record exists, at least one is returned, even if it exceeds `max_bytes`.
    ///
    /// An offset below the first retained one is [`LogError::Trimmed`], never a silent jump. An offset above the next one is
    /// [`LogError::BeyondEnd`]. Unreadable data is [`LogError::Damaged`], with the offset from which reading can resume.
    fn read(
        &self,
        partition: PartitionId,
        from: u64,
        limits: ReadLimits,
    ) -> PortFuture<'_, Result<ReadBatch, LogError>>;

    /// The first retained offset and the next offset. The next offset also counts acknowledged records that are not visible yet.
    fn bounds(&self, partition: PartitionId) -> PortFuture<'_, Result<Bounds, LogError>>;

    /// The offset of the first record at or after `time`, or the next offset if there is none. A record of that time that is appended
    /// during the search never has a lower offset than the result.
    fn offset_at(&self, partition: PartitionId, time: Timestamp) -> PortFuture<'_, Result<u64, LogError>>;

    /// The largest [`Record::size`] that the topic accepts, if the engine has a limit. It also applies to messages of holds.
    fn largest_record(&self, topic: TopicNumber) -> usize {
        let _ = topic;
        usize::MAX
    }

    /// The error that an append would return now, if the engine can tell without I/O.
    fn refusal(&self) -> Option<LogError> {
        None
    }

    /// Removes records below offset `before`, as far as whole segments can be removed. The first retained offset is then at most `before`.
    fn trim(&self, partition: PartitionId, before: u64) -> PortFuture<'_, Result<(), LogError>>;
}

/// The topics of a log. The catalogue assigns the numbers. An engine that identifies topics by name stores the mapping from number to name.
pub trait LogTopics: Send + Sync {
    /// Creates the topic, or registers an existing one under its number (as at every start). An existing topic that has more partitions
    /// than `spec` keeps them. Returns the number of partitions. Durable when it returns.
    fn create<'a>(&'a self, spec: &'a TopicSpec) -> PortFuture<'a, Result<u32, LogError>>;

    /// Changes the `named` bounds of the retention, and increases the number of partitions, never decreases it. New partitions begin at
    /// offset zero. Bounds that are not named stay as the engine has them, because other applications may have changed them.
    fn alter<'a>(&'a self, spec: &'a TopicSpec, named: NamedBounds) -> PortFuture<'a, Result<(), LogError>>;

    /// The identity of a topic in the engine. A topic that is created later under the same name has another identity. `None`: the engine
    /// does not have the topic. The topic need not be registered under its number. An engine that identifies topics by name returns the
    /// identity of the topic that has the name at the time of the call; callers must check that it is the topic they mean.
    fn identity<'a>(&'a self, topic: TopicNumber, name: &'a str) -> PortFuture<'a, Result<Option<String>, LogError>>;

    /// Deletes exactly this topic and all its records. A later topic of the same name stays. The topic need not be registered under its
    /// number. Deleting a topic that the engine does not have is no error.
    fn delete<'a>(&'a self, topic: ExactTopic<'a>) -> PortFuture<'a, Result<(), LogError>>;

    /// Announces that this process or another one deletes the topic. The engine then does not report it as deleted by another application.
    fn expect_deletion(&self, topic: TopicNumber) {
        let _ = topic;
    }

    /// The status of the topic in the engine: leaders, replicas, sizes.
    fn describe(&self, topic: TopicNumber) -> PortFuture<'_, Result<TopicStatus, LogError>>;

    /// Whether the engine has a topic of this name now. The engine asks every broker that may have a stale view. It returns `false` if it
    /// only has topics of the catalogue.
    fn exists<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<bool, LogError>>;

    /// The topics that exist in the engine, created by other applications or before this start, with their retention there. Names for which
    /// `is_skipped` is true are left out, without a lookup of their retention. The embedded log only has topics of the catalogue: it
    /// returns none.
    fn found<'a>(
        &'a self,
        is_skipped: &'a (dyn Fn(&str) -> bool + Sync),
    ) -> PortFuture<'a, Result<Vec<ExistingTopic>, LogError>>;
}

/// One topic of the engine. Earlier and later topics of the same name are different topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactTopic<'a> {
    pub number: TopicNumber,
    pub name: &'a str,
    /// The result of [`LogTopics::identity`]. `None`: the engine does not have the topic, and deleting it only removes its number.
    pub identity: Option<&'a str>,
}

/// An open fence. Cloning shares it.
#[derive(Clone)]
pub struct Fence {
    pub name: Arc<str>,
    pub epoch: u64,
    /// The engine's own state of the fence.
    pub handle: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fence({}, epoch {})", self.name, self.epoch)
    }
}

/// The outcome of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The records are durable. The offsets are in the order of the entries.
    Done(Vec<u64>),
    /// A newer fence of the same name is open. Nothing was written.
    Fenced,
    /// The entry at `index` can never be written: its topic is deleted, or the entry is too large. Nothing was written. If the topic has no
    /// partition in the log any more, the error is `UnknownPartition` with partition 0.
    Refused { index: usize, error: LogError },
    /// Nothing was written, and the fence is still valid. These partitions cannot be written now; other partitions of the commit can. Retry
    /// without them at once, and with them later.
    Blocked { partitions: Vec<PartitionId>, error: LogError },
    /// Nothing was written, and the fence is still valid. The disk is full, or too many writes are in progress. Retry later.
    NotNow(LogError),
    /// The records may have been written.
    Unknown(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    pub max_records: usize,
    pub max_bytes: usize,
    pub wait: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadBatch {
    pub records: Vec<StoredRecord>,
    /// The offset of the next read.
    pub next: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub first: u64,
    pub next: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicStatus {
    pub partitions: Vec<PartitionStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStatus {
    pub index: u32,
    pub leader: Option<i32>,
    pub replicas: Vec<i32>,
    pub in_sync: Vec<i32>,
    /// Bytes on disk, if the engine reports them.
    pub bytes: Option<u64>,
}

/// The errors of a log. For errors of writes, each variant states whether records may have been written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    #[error("there is no partition {0}")]
    UnknownPartition(PartitionId),
    #[error("a record of {size} bytes is over the limit of {limit}")]
    TooLarge { size: usize, limit: usize },
    #[error("the retention removed offset {asked}: the first is {first}")]
    Trimmed { asked: u64, first: u64 },
    #[error("offset {asked} is beyond the end: the next is {next}")]
    BeyondEnd { asked: u64, next: u64 },
    #[error("{what} at {file}:{position}; reading can resume at offset {resume_at}")]
    Damaged { what: String, file: String, position: u64, resume_at: u64 },
    /// Nothing was written.
    #[error("the disk is full: {0}")]
    DiskFull(String),
    /// Nothing was written: too many writes are in progress.
    #[error("too many writes are in progress: {0}")]
    Overloaded(String),
    /// Nothing was written: the log accepts no writes until a restart has recovered it.
    #[error("the log is closed for writing after a failure: {0}")]
    Poisoned(String),
    /// Nothing was written or read: the broker cannot be reached, or the log is shutting down.
    #[error("the log is not available: {0}")]
    Unavailable(String),
    /// The records may have been written.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// The engine does not support the request. A retry fails too.
    #[error("{0}")]
    Unsupported(String),
}
