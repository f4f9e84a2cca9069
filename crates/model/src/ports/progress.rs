//! The `Progress` port: how far each subscription has come, and what is unfinished behind that.
//!
//! What is saved is bytes to the engine; only the owner of a subscription reads and writes it. Losing a store, or a part of it, costs
//! repeats: where there is nothing, a subscription begins where the catalogue says that it began.

use bytes::Bytes;

use super::PortFuture;
use crate::{PartitionId, SubscriptionNumber};

/// What a subscription's progress is kept under: one row for each partition of each of its lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgressPlace {
    /// Zero is the cursor; a replay has its run.
    pub line: u32,
    pub partition: PartitionId,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressRow {
    pub place: ProgressPlace,
    /// The run that it is progress of.
    pub run: u32,
    pub state: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgressError {
    /// A newer owner has opened the subscription: nothing was written.
    #[error("subscription {subscription} belongs to epoch {epoch} now")]
    Fenced { subscription: u32, epoch: u64 },
    /// A row is of a newer run: nothing was written. The catalogue has it.
    #[error("a row is of run {run} already")]
    NewerRun { place: ProgressPlace, run: u32 },
    /// It may have been written.
    #[error("the store of progress is not available: {0}")]
    Unavailable(String),
}

/// How far subscriptions have come.
///
/// *Ordering*: calls for one subscription take effect in the order in which they are made one after the other. *Durability*: what was
/// saved survives the death of this process at once, and the machine's within about a second. *Cancellation*: a dropped call may or may
/// not have happened.
pub trait Progress: Send + Sync {
    /// Notes the owner's epoch, so that whatever an earlier owner still saves is refused, and answers with all rows, in one step. An
    /// epoch that is older than the noted one is [`ProgressError::Fenced`]; the same one may open again.
    fn open(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
    ) -> PortFuture<'_, Result<Vec<ProgressRow>, ProgressError>>;

    /// Writes these rows, all or none; each replaces what was there. Refused under any epoch but the noted one, and where a row that is
    /// there is of a newer run than the one that would replace it. Saving where nothing is noted (the store was lost) notes the epoch.
    fn save(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        rows: Vec<ProgressRow>,
    ) -> PortFuture<'_, Result<(), ProgressError>>;

    /// Removes the rows of one line: a replay is over. Refused under an older epoch.
    fn end_line(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        line: u32,
    ) -> PortFuture<'_, Result<(), ProgressError>>;

    /// Removes everything of a subscription that is no more. Its number is never used again.
    fn forget(&self, subscription: SubscriptionNumber) -> PortFuture<'_, Result<(), ProgressError>>;

    /// Nobody will save any more: what was saved is made to survive the machine too.
    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
