//! Log calls of a shard's owner.

use std::time::Duration;

use whimbrel_model::ports::{Log, LogError, ReadBatch, ReadLimits};
use whimbrel_model::{PartitionId, Timestamp};

use super::settings::{PAGE_BYTES, PAGE_HOLDS, RETRY_AFTER};
use whimbrel_cluster::line_limit::LineLimit;

/// Attempts at a read of an old range before the trim is postponed.
const TRIM_TRIES: usize = 4;

/// Reads a batch. It returns a transient error only after [`RETRY_AFTER`], so that the caller does not repeat the read at once.
pub(super) async fn read(
    log: &dyn Log,
    partition: PartitionId,
    from: u64,
    limits: ReadLimits,
) -> Result<ReadBatch, LogError> {
    let read = log.read(partition, from, limits).await;
    if let Err(error) = &read
        && passes(error)
    {
        static LINES: LineLimit = LineLimit::new();
        if let Some(left_out) = LINES.admit(&error.to_string()) {
            tracing::warn!(%partition, %error, left_out, "cannot read the log of the holds; retrying");
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
    read
}

/// Whether the error is transient: the same call may succeed later.
fn passes(error: &LogError) -> bool {
    !matches!(error, LogError::Trimmed { .. } | LogError::BeyondEnd { .. } | LogError::Damaged { .. })
}

/// Reads a page of an old range, up to `upto`. A log reports a place that it cannot read as damaged only after several failures. So one
/// failure is not enough to postpone the trim.
pub(super) async fn walk(log: &dyn Log, partition: PartitionId, from: u64, upto: u64) -> Result<ReadBatch, LogError> {
    let limits = ReadLimits { max_records: PAGE_HOLDS, max_bytes: PAGE_BYTES, wait: Duration::ZERO };
    let mut page = read(log, partition, from, limits).await;
    for _ in 1..TRIM_TRIES {
        if !page.as_ref().is_err_and(passes) {
            break;
        }
        page = read(log, partition, from, limits).await;
    }
    match page {
        // Damaged records cannot be carried. Their holds are in the store, and the log has reported the damage.
        Err(LogError::Damaged { resume_at, .. }) if resume_at > from => {
            Ok(ReadBatch { records: Vec::new(), next: resume_at.min(upto) })
        }
        page => page,
    }
}

/// Returns the first kept offset, and the first one that is not older than `kept_since`.
pub(super) async fn cut(log: &dyn Log, partition: PartitionId, kept_since: Timestamp) -> Result<(u64, u64), LogError> {
    let first = log.bounds(partition).await?.first;
    for _ in 1..TRIM_TRIES {
        match log.offset_at(partition, kept_since).await {
            Err(error) if passes(&error) => tokio::time::sleep(RETRY_AFTER).await,
            found => return Ok((first, found?)),
        }
    }
    Ok((first, log.offset_at(partition, kept_since).await?))
}
