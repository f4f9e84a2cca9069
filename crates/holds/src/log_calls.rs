//! The reads of a shard's owner from the log.

use std::time::Duration;

use whimbrel_model::ports::{Log, LogError, ReadBatch, ReadLimits};
use whimbrel_model::{PartitionId, Timestamp};

use super::settings::{PAGE_BYTES, PAGE_HOLDS, RETRY_AFTER};
use whimbrel_cluster::line_limit::LineLimit;

/// Attempts at a read of an old stretch before the trim is put off.
const TRIM_TRIES: usize = 4;

/// Reads; an error that may pass is answered after a while, so that it is not asked again at once.
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
            tracing::warn!(%partition, %error, left_out, "the holds' log cannot be read; it is tried again");
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
    read
}

/// Whether the same call may succeed later.
fn passes(error: &LogError) -> bool {
    !matches!(error, LogError::Trimmed { .. } | LogError::BeyondEnd { .. } | LogError::Damaged { .. })
}

/// Reads a page of an old stretch, up to an offset. A log reports a place that it cannot read as damaged only after several failures, so
/// that one is not enough to put the trim off.
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
        // What cannot be read cannot be carried; its holds are in the store, and the damage was reported.
        Err(LogError::Damaged { resume_at, .. }) if resume_at > from => {
            Ok(ReadBatch { records: Vec::new(), next: resume_at.min(upto) })
        }
        page => page,
    }
}

/// The first kept offset, and the first one that is not older than a time.
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
