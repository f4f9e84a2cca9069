//! Bounded scans of a range of one partition: to find a message by its id, and for searches.

use std::time::Duration;

use whimbrel_model::{PartitionId, StoredRecord};

use crate::api_state::ApiState;
use crate::problem::ApiProblem;
use whimbrel_model::log_walk::LogWalk;

/// The assumed maximum clock difference between nodes. Record times are from the clocks of the nodes that received the messages.
pub(super) const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Whether a scan continues after a record.
pub(super) enum ScanControl {
    Continue,
    Stop,
}

pub(super) struct ScanProgress {
    pub(super) scanned: usize,
    /// The offset at which to continue. `None` if the range is complete.
    pub(super) rest: Option<u64>,
}

/// Scans records from `from` up to `until`, at most `most`. Skips offsets that retention or damage has removed. Does not wait for records
/// that are acknowledged and not yet visible.
pub(super) async fn scan_records(
    api: &ApiState,
    partition: PartitionId,
    from: u64,
    until: u64,
    most: usize,
    mut each: impl FnMut(&StoredRecord) -> ScanControl,
) -> Result<ScanProgress, ApiProblem> {
    let mut walk = LogWalk::new(&*api.ports.log, partition, from, until);
    let mut scanned = 0;
    while scanned < most {
        let Some(records) = walk.step(most - scanned).await? else { return Ok(ScanProgress { scanned, rest: None }) };
        for stored in &records {
            scanned += 1;
            if let ScanControl::Stop = each(stored) {
                return Ok(ScanProgress { scanned, rest: Some(stored.offset + 1) });
            }
        }
    }
    Ok(ScanProgress { scanned, rest: (!walk.is_at_end()).then_some(walk.at()) })
}
