//! The `Progress` port: the progress of each subscription: its watermarks and the unfinished messages above them.
//!
//! The state is opaque to the engine; only the owner of a subscription reads and writes it. A lost store, or a lost part of it, causes
//! repeated deliveries: a subscription without a row starts at the offsets in the catalogue.

use bytes::Bytes;

use super::PortFuture;
use crate::{PartitionId, SubscriptionNumber};

/// The key of a subscription's row: one row for each partition of each line. A line is the normal delivery or a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgressKey {
    /// Zero for the normal delivery, or the run of a replay.
    pub line: u32,
    pub partition: PartitionId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressRow {
    pub place: ProgressKey,
    /// The run of the subscription that wrote the state.
    pub run: u32,
    pub state: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgressError {
    /// A newer owner has opened the subscription. Nothing was written.
    #[error("subscription {subscription} belongs to epoch {epoch} now")]
    Fenced { subscription: u32, epoch: u64 },
    /// A stored row has a newer run. Nothing was written. The catalogue has the current run.
    #[error("a stored row already has run {run}, which is newer")]
    NewerRun { place: ProgressKey, run: u32 },
    /// The rows may have been written.
    #[error("the progress store is not available: {0}")]
    Unavailable(String),
}

/// The progress of subscriptions.
///
/// *Atomicity*: each call is one step. *Order*: sequential calls for one subscription take effect in the order of the calls. *Durability*:
/// saved rows survive a crash of this process at once, a power failure after about 1 s. *Cancellation*: a dropped call may have happened.
pub trait Progress: Send + Sync {
    /// Stores the owner's epoch and returns all rows, in one step. Saves of earlier owners are rejected from then on. An epoch older than
    /// the stored one is [`ProgressError::Fenced`]; the same epoch may open again.
    fn open(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
    ) -> PortFuture<'_, Result<Vec<ProgressRow>, ProgressError>>;

    /// Replaces these rows, all or none. Rejected if `epoch` is not the stored epoch, or if a stored row has a newer run than its
    /// replacement. If the store has no epoch (its data was lost), the call stores `epoch`.
    fn save(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        rows: Vec<ProgressRow>,
    ) -> PortFuture<'_, Result<(), ProgressError>>;

    /// Removes the rows of one line, after its replay has ended. Rejected under an older epoch.
    fn end_line(
        &self,
        subscription: SubscriptionNumber,
        epoch: u64,
        line: u32,
    ) -> PortFuture<'_, Result<(), ProgressError>>;

    /// Removes all rows of a deleted subscription. Its number is never used again.
    fn forget(&self, subscription: SubscriptionNumber) -> PortFuture<'_, Result<(), ProgressError>>;

    /// Closes the store after the last save: syncs saved rows to disk, so that they survive a power failure.
    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
