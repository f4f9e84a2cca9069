//! Looking through a stretch of one partition, bounded: for a message by its id, for a search, by whoever must find and not guess.

use std::time::Duration;

use whimbrel_model::ports::{LogError, ReadLimits};
use whimbrel_model::{PartitionId, StoredRecord};

use super::door::Door;
use super::problem::Problem;

/// Records' times are their publishers' door's: doors differ by little, and so may neighbours in a partition.
pub(super) const CLOCK_SKEW: Duration = Duration::from_secs(60);
/// Records and bytes of one step.
const STEP_RECORDS: usize = 4096;
const STEP_BYTES: usize = 4 << 20;

/// What the one who looks wants after each record.
pub(super) enum Go {
    On,
    Stop,
}

/// How far a look came.
pub(super) struct Looked {
    pub(super) scanned: usize,
    /// Where to look on: `None` when the stretch was looked at to its end, or the look was stopped at its goal.
    pub(super) rest: Option<u64>,
}

/// Looks at records from `from` up to `until`, at most so many. Places that retention or damage has taken are passed over.
pub(super) async fn look_through(
    door: &Door,
    partition: PartitionId,
    from: u64,
    until: u64,
    most: usize,
    mut each: impl FnMut(&StoredRecord) -> Go,
) -> Result<Looked, Problem> {
    let (mut at, mut scanned) = (from, 0);
    while at < until {
        if scanned >= most {
            return Ok(Looked { scanned, rest: Some(at) });
        }
        let max_records = STEP_RECORDS.min(most - scanned);
        let limits = ReadLimits { max_records, max_bytes: STEP_BYTES, wait: Duration::ZERO };
        let batch = match door.ports.log.read(partition, at, limits).await {
            Ok(batch) => batch,
            Err(LogError::Trimmed { first, .. }) if first > at => {
                at = first;
                continue;
            }
            Err(LogError::Damaged { resume_at, .. }) if resume_at > at => {
                at = resume_at;
                continue;
            }
            Err(LogError::BeyondEnd { .. }) => break,
            Err(error) => return Err(error.into()),
        };
        for stored in &batch.records {
            if stored.offset >= until {
                return Ok(Looked { scanned, rest: None });
            }
            scanned += 1;
            if let Go::Stop = each(stored) {
                return Ok(Looked { scanned, rest: Some(stored.offset + 1) });
            }
        }
        // What is acknowledged may not be visible yet; a look does not wait for it.
        if batch.next <= at {
            break;
        }
        at = batch.next;
    }
    Ok(Looked { scanned, rest: None })
}
