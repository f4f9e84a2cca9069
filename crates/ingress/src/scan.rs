//! Looking through a stretch of one partition, bounded: for a message by its id, for a search, by whoever must find and not guess.

use std::time::Duration;

use whimbrel_model::{PartitionId, StoredRecord};

use super::door::Door;
use super::problem::Problem;
use whimbrel_model::log_walk::LogWalk;

/// Records' times are their publishers' door's: doors differ by little, and so may neighbours in a partition.
pub(super) const CLOCK_SKEW: Duration = Duration::from_secs(60);

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

/// Looks at records from `from` up to `until`, at most so many. Places that retention or damage has taken are passed over; what is
/// acknowledged and not yet visible is not waited for.
pub(super) async fn look_through(
    door: &Door,
    partition: PartitionId,
    from: u64,
    until: u64,
    most: usize,
    mut each: impl FnMut(&StoredRecord) -> Go,
) -> Result<Looked, Problem> {
    let mut walk = LogWalk::new(&*door.ports.log, partition, from, until);
    let mut scanned = 0;
    while scanned < most {
        let Some(records) = walk.step(most - scanned).await? else { return Ok(Looked { scanned, rest: None }) };
        for stored in &records {
            scanned += 1;
            if let Go::Stop = each(stored) {
                return Ok(Looked { scanned, rest: Some(stored.offset + 1) });
            }
        }
    }
    Ok(Looked { scanned, rest: (!walk.is_at_end()).then_some(walk.at()) })
}
