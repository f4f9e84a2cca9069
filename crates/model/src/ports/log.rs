//! The `Log` port: partitioned, ordered, durable append; all-or-nothing fenced commit; read by offset or time.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::PortFuture;
use crate::{FoundTopic, NamedBounds, PartitionId, Record, StoredRecord, Timestamp, TopicNumber, TopicSpec};

/// A record on its way to its partition.
#[derive(Debug, Clone)]
pub struct Entry {
    pub partition: PartitionId,
    pub record: Record,
}

/// One answer per entry of an append, in the order of the call: the offset it has, or why it has none.
pub type AppendOutcome = Vec<Result<u64, LogError>>;

/// The log of messages.
///
/// # Ordering
/// Within a partition, records of one call keep the order of the call. Offsets grow, **not always by one**.
///
/// # Visibility
/// What an append or a commit has acknowledged is found by a `read` that starts afterwards, except that on Kafka a
/// record behind an open transaction is durable and not yet visible; `bounds().next` counts it all the same.
pub trait Log: Send + Sync {
    /// For accepting. Records for any partitions; answered when durable, each with its offset or its error. It is not atomic:
    /// a broker or a disk may give out midway.
    ///
    /// *Cancellation*: dropping the future does not undo. The outcome is then unknown.
    fn append(&self, entries: Vec<Entry>) -> PortFuture<'_, AppendOutcome>;

    /// Opens the fence of that name and voids every earlier one of the same name, in this process or another. `epoch` is the
    /// opener's ownership, for those who look; the opener checks that ownership once more after opening.
    fn fence<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<Fence, LogError>>;

    /// For deciding. Records for any partitions, **all or nothing** after any crash: no reader ever sees a part that will not
    /// be completed (in each partition it appears at once; partitions may be moments apart). Commits of one fence land in the
    /// order of their calls. After [`CommitOutcome::Fenced`] or [`CommitOutcome::Unknown`]: open anew, check ownership, fold to
    /// the end, decide afresh; never resubmit.
    ///
    /// *Cancellation*: dropping the future is the outcome `Unknown`.
    fn commit<'a>(&'a self, fence: &'a Fence, entries: Vec<Entry>) -> PortFuture<'a, CommitOutcome>;

    /// Reads on from `from`, waiting up to `limits.wait` where there is nothing yet. Go on from [`ReadBatch::next`], which also
    /// passes offsets that have no record. At least one record is returned where one is there, whatever `max_bytes` says.
    ///
    /// An offset below the first kept one is [`LogError::Trimmed`], never a silent jump; one above the next is
    /// [`LogError::BeyondEnd`]. A place that cannot be read is [`LogError::Damaged`], which says where reading can go on.
    fn read(
        &self,
        partition: PartitionId,
        from: u64,
        limits: ReadLimits,
    ) -> PortFuture<'_, Result<ReadBatch, LogError>>;

    /// The first kept offset and the next one, where next counts everything acknowledged, also what is not yet visible.
    fn bounds(&self, partition: PartitionId) -> PortFuture<'_, Result<Bounds, LogError>>;

    /// The offset of the first record at or after a time; the next offset where there is none. The offset never lies behind a record of
    /// that time which is appended during the search.
    fn offset_at(&self, partition: PartitionId, time: Timestamp) -> PortFuture<'_, Result<u64, LogError>>;

    /// The largest [`Record::size`] that the topic takes, where the engine knows: what is held now must fit when it fires.
    fn largest_record(&self, topic: TopicNumber) -> usize {
        let _ = topic;
        usize::MAX
    }

    /// Why nothing would be accepted now, where the engine knows without asking anybody.
    fn refusal(&self) -> Option<LogError> {
        None
    }

    /// Drops what is older than `before`, as far as whole pieces can be dropped. The first kept offset is then at most `before`.
    fn trim(&self, partition: PartitionId, before: u64) -> PortFuture<'_, Result<(), LogError>>;
}

/// The topics of a log. Numbers come from the catalogue; an engine that has only names keeps the mapping it is told.
pub trait LogTopics: Send + Sync {
    /// Makes the topic, or makes it known under its number where it is there already (which is how every start begins). A topic
    /// that has more partitions than `spec` says keeps them; the answer says how many it has. Durable when it answers.
    fn create<'a>(&'a self, spec: &'a TopicSpec) -> PortFuture<'a, Result<u32, LogError>>;

    /// Changes the bounds of the retention that are named and grows the number of partitions; it never shrinks. New partitions begin at
    /// offset zero. Other applications may have changed the bounds that are not named: those must stay as the engine has them.
    fn alter<'a>(&'a self, spec: &'a TopicSpec, named: NamedBounds) -> PortFuture<'a, Result<(), LogError>>;

    /// The identity of a topic in the engine. A topic that is created later under the same name has another identity. `None`: the engine
    /// does not have the topic. The engine need not know the topic's number. An engine that identifies topics by name returns the identity
    /// of the topic that has the name at the time of the call; callers must check that it is the topic they mean.
    fn identity<'a>(&'a self, topic: TopicNumber, name: &'a str) -> PortFuture<'a, Result<Option<String>, LogError>>;

    /// Drops exactly this topic and all its records. A later topic with the same name stays. The engine need not know the topic's number.
    /// Deleting a topic that the engine does not have is no error.
    fn delete<'a>(&'a self, topic: ExactTopic<'a>) -> PortFuture<'a, Result<(), LogError>>;

    /// The topic is being deleted, by this process or another one. An engine that reports topics which other applications deleted does
    /// not report this one.
    fn expect_deletion(&self, topic: TopicNumber) {
        let _ = topic;
    }

    /// What the engine knows of the topic: leaders, copies, sizes.
    fn describe(&self, topic: TopicNumber) -> PortFuture<'_, Result<TopicStatus, LogError>>;

    /// Whether the engine has a topic of this name now. It asks all parts of the engine that could have an old view. An engine that has
    /// only topics which the catalogue made answers `false`.
    fn exists<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<bool, LogError>>;

    /// Topics that exist in the engine under names, made by others or by an earlier start, with the retention that they have there.
    /// Names that `is_skipped` are left out: the engine need not look up their retention. The embedded log has only topics that the
    /// catalogue made, and answers with none.
    fn found<'a>(
        &'a self,
        is_skipped: &'a (dyn Fn(&str) -> bool + Sync),
    ) -> PortFuture<'a, Result<Vec<FoundTopic>, LogError>>;
}

/// One topic of the engine. Other topics that had or will have the same name are different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactTopic<'a> {
    pub number: TopicNumber,
    pub name: &'a str,
    /// The answer of [`LogTopics::identity`]. `None`: the engine does not have the topic; deleting it only drops its number.
    pub identity: Option<&'a str>,
}

/// An open fence. Cloning shares it.
#[derive(Clone)]
pub struct Fence {
    pub name: Arc<str>,
    pub epoch: u64,
    /// What the engine that opened it needs to know it again.
    pub handle: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fence({}, epoch {})", self.name, self.epoch)
    }
}

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutcome {
    /// Durable: the offsets, in the order of the entries.
    Done(Vec<u64>),
    /// A newer fence of that name is open. Nothing was written.
    Fenced,
    /// The entry with that index can never be written (its topic is gone, or the entry is too large). Nothing was written. If the log
    /// has no partition of its topic any more, the error is `UnknownPartition` with partition 0.
    Refused { index: usize, error: LogError },
    /// Nothing was written and the fence still stands: these partitions cannot be written now, others of the commit can. Try again
    /// without them; try them again later.
    Blocked { partitions: Vec<PartitionId>, error: LogError },
    /// Nothing was written and the fence still stands: there is no room, or too much is under way. Try again later.
    NotNow(LogError),
    /// It may have been written.
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
    /// Where to read on.
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
    /// Bytes on disk, where the engine knows.
    pub bytes: Option<u64>,
}

/// What can go wrong with a log. Each says whether something may have been written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    #[error("there is no partition {0}")]
    UnknownPartition(PartitionId),
    #[error("a record of {size} bytes is over the limit of {limit}")]
    TooLarge { size: usize, limit: usize },
    #[error("offset {asked} is no longer kept: the first is {first}")]
    Trimmed { asked: u64, first: u64 },
    #[error("offset {asked} is beyond the end: the next is {next}")]
    BeyondEnd { asked: u64, next: u64 },
    #[error("{what} at {file}:{position}; reading can go on from offset {resume_at}")]
    Damaged { what: String, file: String, position: u64, resume_at: u64 },
    /// Nothing was written.
    #[error("the disk is full: {0}")]
    DiskFull(String),
    /// Nothing was written: too much is under way.
    #[error("too much is under way: {0}")]
    Overloaded(String),
    /// Nothing was written: the log takes nothing until a restart has recovered it.
    #[error("the log is closed for writing after a failure: {0}")]
    Poisoned(String),
    /// Nothing was written or read: the broker cannot be reached, or the log is shutting down.
    #[error("the log is not available: {0}")]
    Unavailable(String),
    /// It may have been written.
    #[error("the outcome is not known: {0}")]
    Unknown(String),
    /// The engine refuses what was asked, for good.
    #[error("{0}")]
    Unsupported(String),
}
