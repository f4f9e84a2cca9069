//! Partitions without a leader, which the last attempt could not write to. Commits skip messages for these partitions, so that one such
//! partition delays no other hold of the shard. Pure: the time is passed in.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use whimbrel_model::PartitionId;

/// The first pause before a blocked partition is tried again. It doubles while the partition stays blocked.
const BACK_OFF_MIN: Duration = Duration::from_millis(250);
/// The longest pause. It delays the holds of a partition that can be written again.
const BACK_OFF_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct BlockedPartitions(HashMap<PartitionId, Blocked>);

#[derive(Debug, Clone, Copy)]
struct Blocked {
    until: Instant,
    back_off: Duration,
}

impl BlockedPartitions {
    /// Whether commits must skip the partition now.
    pub(super) fn contains(&self, partition: PartitionId, now: Instant) -> bool {
        self.0.get(&partition).is_some_and(|blocked| now < blocked.until)
    }

    /// Blocks the partition after a commit could not write to it.
    pub(super) fn block(&mut self, partition: PartitionId, now: Instant) {
        let back_off = self.0.get(&partition).map_or(BACK_OFF_MIN, |blocked| (blocked.back_off * 2).min(BACK_OFF_MAX));
        self.0.insert(partition, Blocked { until: now + back_off, back_off });
    }

    /// Unblocks the partition: a commit has written to it, or it does not exist.
    pub(super) fn unblock(&mut self, partition: PartitionId) {
        self.0.remove(&partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::TopicNumber;

    #[test]
    fn a_blocked_partition_is_tried_again_after_a_back_off_that_doubles_up_to_its_limit() {
        let (partition, mut now) = (PartitionId::new(TopicNumber(1), 3), Instant::now());
        let mut blocked = BlockedPartitions::default();
        assert!(!blocked.contains(partition, now));
        for back_off_ms in [250, 500, 1000, 2000, 2000] {
            let back_off = Duration::from_millis(back_off_ms);
            blocked.block(partition, now);
            assert!(blocked.contains(partition, now + back_off - Duration::from_millis(1)), "{back_off_ms}");
            now += back_off;
            assert!(!blocked.contains(partition, now), "{back_off_ms}");
        }
        blocked.unblock(partition);
        blocked.block(partition, now);
        assert!(!blocked.contains(partition, now + BACK_OFF_MIN), "the partition was written in between");
    }
}
