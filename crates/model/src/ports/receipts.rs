//! The `Receipts` port: the first answer to a publish with an idempotency key or an id, for a window of time.
//!
//! Within (key owner, topic), the first answer is stored for the window, with a fingerprint of the body. The record in the log also
//! contains the key, so an engine that keeps its store beside the log can restore what a crash removed from it.

use super::{LogError, PortFuture};
use crate::{PartitionId, Timestamp, TopicNumber};

/// How the publisher identified the publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimKind {
    /// An `Idempotency-Key`.
    Key,
    /// An id that the publisher chose. [`Receipts::find`] finds answers by these ids.
    Id,
}

/// The identity of a publish that must happen at most once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The API key that published; empty if there is none.
    pub owner: String,
    pub kind: ClaimKind,
    pub text: String,
    /// The topic of the message. It is part of the claim's identity.
    pub topic: TopicNumber,
    /// The partition of the message's record: one of its topic, or a shard of the holds.
    pub partition: PartitionId,
    /// A hash of the body and of the attributes that a repeat must not change.
    pub fingerprint: u64,
}

/// The answer that the publisher received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishReceipt {
    pub id: String,
    pub partition: PartitionId,
    pub offset: u64,
    /// The due time of a hold. The partition and offset are then those of its `held` record.
    pub due: Option<Timestamp>,
    pub answered_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimState {
    /// The claim is new. The caller publishes and calls `finish`, or `abandon` if it is certain that nothing was written.
    New,
    /// The message was published before, with this answer.
    Earlier(PublishReceipt),
    /// The key was used with another body.
    Different,
    /// Another publish with this key is in progress.
    UnderWay,
    /// The outcome of one or more earlier publishes is unknown. The caller now has the claim. Before it writes, it must search the log from
    /// these places for a record with the claim, and then `finish` with that record or write.
    Lapsed { places: Vec<(PartitionId, u64)> },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptsError {
    #[error("the receipts are not available: {0}")]
    Unavailable(String),
    /// The engine restores receipts from the log, and reading the log failed.
    #[error("cannot read the log to complete the receipts: {0}")]
    Log(LogError),
}

/// The receipts of publishes.
///
/// *Atomicity*: each call is one step; of concurrent `begin` calls with one claim, at most one gets [`ClaimState::New`] or
/// [`ClaimState::Lapsed`]. *Durability*: see `finish`; claims need not survive their process. *Cancellation*: a dropped call may have
/// happened. A publisher must run `begin` and the call that ends the claim to completion: a claim without an end can stay in progress until
/// its process ends.
pub trait Receipts: Send + Sync {
    /// Claims. `end` is the partition's next offset, read before this call: a search for a lapsed claim's record starts there.
    fn begin<'a>(
        &'a self,
        claim: &'a Claim,
        end: u64,
        now: Timestamp,
    ) -> PortFuture<'a, Result<ClaimState, ReceiptsError>>;

    /// Stores the answer and ends the claim. The answer survives a crash: an engine that has not synced it restores it from the log.
    fn finish<'a>(&'a self, claim: &'a Claim, answer: PublishReceipt) -> PortFuture<'a, Result<(), ReceiptsError>>;

    /// Ends the claim without an answer. Only allowed if it is certain that nothing was written, by this or an earlier attempt.
    fn abandon<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>>;

    /// Returns the claim to its state before `begin`; the caller has written nothing. A claim that was [`ClaimState::New`] is free. For one
    /// that was [`ClaimState::Lapsed`], the outcome of the earlier attempts stays unknown: a repeat gets [`ClaimState::Lapsed`] at once.
    fn give_back<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>>;

    /// Whether the caller still has the claim; called right before the write. If another caller may have taken it over, for example after a
    /// pause of this process, the engine renews it or returns `false`. Engines whose claims lapse only after `leave` return `true`.
    fn still_holds<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<bool, ReceiptsError>> {
        let _ = claim;
        Box::pin(async { Ok(true) })
    }

    /// Ends the attempt with an unknown outcome. After the engine's claim lease, in which all sent writes have arrived or failed, a repeat
    /// gets [`ClaimState::Lapsed`]. A claim is in progress until `finish`, `abandon`, `give_back` or `leave`.
    fn leave<'a>(&'a self, claim: &'a Claim) -> PortFuture<'a, Result<(), ReceiptsError>>;

    /// Reads the log to its end and restores receipts that a crash removed. Called once at the start, after the log has its topics and
    /// before any publish. An engine whose store is not beside the log does nothing.
    fn recover<'a>(&'a self, partitions: &'a [PartitionId]) -> PortFuture<'a, Result<(), ReceiptsError>> {
        let _ = partitions;
        Box::pin(async { Ok(()) })
    }

    /// The answers to publishes with this publisher-chosen id, oldest first, of all publishers.
    fn find<'a>(&'a self, id: &'a str) -> PortFuture<'a, Result<Vec<PublishReceipt>, ReceiptsError>>;
}
