//! The `Receipts` port: the answer a publisher got for an idempotency key or an id of its own, for a window of time.
//!
//! Within (key owner, topic), the first answer stays for the window with a fingerprint of the body. The record in the log
//! carries the key too, so an engine that keeps its store beside the log can rebuild what a crash took from it.

use super::{LogError, PortFuture};
use crate::{PartitionId, Timestamp, TopicNumber};

/// What a publisher brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimKind {
    /// An `Idempotency-Key`.
    Key,
    /// An id of the publisher's own. Answers under ids are found again by [`Receipts::find`].
    Id,
}

/// A publish that shall happen once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Whose key it is: the API key that published, empty where there is none.
    pub owner: String,
    pub kind: ClaimKind,
    pub text: String,
    /// The topic that the message is for: part of the claim's identity.
    pub topic: TopicNumber,
    /// The partition that the message's record goes to: one of its topic, or a shard of the holds.
    pub partition: PartitionId,
    /// A hash of the body and what else must be the same.
    pub fingerprint: u64,
}

/// The answer that the publisher got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub id: String,
    pub partition: PartitionId,
    pub offset: u64,
    /// When it is due, where it was held: then the place is that of its `held` record.
    pub due: Option<Timestamp>,
    pub answered_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Go ahead, then `finish`, or `abandon` where it is certain that nothing was written.
    New,
    /// It was published before; this was the answer.
    Earlier(Answer),
    /// The same key with another body.
    Different,
    /// Another publish under this key is under way.
    UnderWay,
    /// One began, perhaps more than once, and its outcome is not known: look through the log from these places on for a record
    /// that carries the claim before writing again, and `finish` or write accordingly. The claim is yours.
    Lapsed { places: Vec<(PartitionId, u64)> },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptsError {
    #[error("the receipts are not available: {0}")]
    Unavailable(String),
    /// The receipts follow the log, which failed.
    #[error("cannot read the log to complete the receipts: {0}")]
    Log(LogError),
}

/// Who published what under which key.
pub trait Receipts: Send + Sync {
    /// Claims. `end` is the partition's next offset, read before: what a lapsed claim is looked for from.
    fn begin<'a>(&'a self, claim: &'a Claim, end: u64, now: Timestamp) -> PortFuture<'a, Result<Begun, ReceiptsError>>;

    /// Keeps the answer. It stays also through a crash: the log has the record, and the store follows the log.
    fn finish<'a>(&'a self, claim: &'a Claim, answer: Answer) -> PortFuture<'a, Result<(), ReceiptsError>>;

    /// Gives the claim up: only where it is certain that nothing was written.
    fn abandon<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>>;

    /// Gives the claim back as it was before it was begun: its holder has written nothing. A claim that was [`Begun::New`] is free. Of one
    /// that was [`Begun::Lapsed`], the outcome of the earlier tries stays unknown: a repeat gets [`Begun::Lapsed`] at once.
    fn give_back<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>>;

    /// Whether the claim is still the caller's, who asks right before it writes. If another caller may have taken the claim over since,
    /// because this process paused for example, the engine renews the claim or answers `false`. Claims of some engines lapse only after
    /// they were left: those engines answer `true`.
    fn still_holds<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<bool, ReceiptsError>> {
        let _ = claim;
        Box::pin(async { Ok(true) })
    }

    /// Leaves the claim with an outcome that is not known. After a time in which whatever was sent has landed or never will, a
    /// repeat takes it as [`Begun::Lapsed`]. A claim that was neither finished, abandoned nor left is under way.
    fn leave<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>>;

    /// Follows the log to its end, so that nothing that a crash cut off is missing. Called once, when the log knows its topics
    /// and before anything is accepted. An engine whose store is not kept beside the log has nothing to follow.
    fn recover<'a>(&'a self, partitions: &'a [PartitionId]) -> PortFuture<'a, Result<(), ReceiptsError>> {
        let _ = partitions;
        Box::pin(async { Ok(()) })
    }

    /// Where messages of that brought id are, oldest first, whoever published them.
    fn find<'a>(&'a self, id: &'a str) -> PortFuture<'a, Result<Vec<Answer>, ReceiptsError>>;
}
