//! Stalled partitions: the last stable offset does not advance and is behind the high watermark, because a transaction is open.
//! Readers and `stall_sweep` record the offsets here. `fence::repair` closes the transactions of this process's fences. A partition
//! that stays stalled is reported as an event.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_model::{Event, EventSink, PartitionId};

/// The maximum delay after its timeout until Kafka aborts a transaction: Kafka checks every 10 s, and 2 s are margin.
const KAFKA_ABORT_DELAY_MAX: Duration = Duration::from_secs(12);

/// The time for which an observation counts. A partition that is not observed does not count as stalled.
const SEEN_FOR: Duration = Duration::from_secs(5);

pub(super) struct StalledPartitions {
    events: EventSink,
    /// The maximum time of a transaction.
    patience: Duration,
    stalled: Mutex<HashMap<PartitionId, StalledPartition>>,
}

struct StalledPartition {
    visible_end: u64,
    since: Instant,
    /// The time of the last observation by a reader. Without a recent one, for example while Kafka is unreachable, the partition does not
    /// count as stalled.
    seen_at: Instant,
    is_reported: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Observation {
    Fine,
    /// It is stalled for longer than a transaction may last: report it, once per offset.
    MustReport,
}

impl StalledPartitions {
    pub fn new(transaction_timeout: Duration, events: EventSink) -> Self {
        Self { events, patience: transaction_timeout, stalled: Mutex::default() }
    }

    /// Records the ends of a partition as a reader found them. Reports a partition that is stalled for longer than a transaction may
    /// last, once per offset.
    pub fn observe(&self, topic: &str, partition: PartitionId, visible_end: u64, written_end: u64) {
        if self.found(partition, visible_end, written_end, Instant::now()) == Observation::MustReport {
            self.report(topic, partition.index, visible_end);
        }
    }

    /// Emits the event `transaction_hanging`.
    pub fn report(&self, topic: &str, index: u32, offset: u64) {
        let detail = format!(
            "partition {index} of `{topic}`: the last stable offset is stuck at {offset} behind an open transaction; `read_committed` \
             consumers cannot read past it. `kafka-transactions.sh find-hanging` shows the producer"
        );
        let event = Event::warning("transaction_hanging", detail);
        (self.events)(event.with("topic", topic).with("partition", index).with("offset", offset));
    }

    /// Records where the partition ends for readers and for writers.
    pub fn found(&self, partition: PartitionId, visible_end: u64, written_end: u64, now: Instant) -> Observation {
        let mut all = self.stalled();
        if visible_end >= written_end {
            all.remove(&partition);
            return Observation::Fine;
        }
        let fresh = || StalledPartition { visible_end, since: now, seen_at: now, is_reported: false };
        let stalled = all.entry(partition).or_insert_with(fresh);
        if stalled.visible_end != visible_end {
            *stalled = fresh();
        }
        stalled.seen_at = now;
        let is_overdue = now.saturating_duration_since(stalled.since) >= self.patience + KAFKA_ABORT_DELAY_MAX;
        if !is_overdue || stalled.is_reported {
            return Observation::Fine;
        }
        stalled.is_reported = true;
        Observation::MustReport
    }

    /// Partitions that were seen stalled for at least `patience`, each with its visible end.
    pub fn overdue(&self, patience: Duration) -> Vec<(PartitionId, u64)> {
        let all = self.stalled();
        let is_overdue = |stalled: &StalledPartition| {
            let stalled_for = stalled.seen_at.saturating_duration_since(stalled.since);
            stalled_for >= patience && stalled.seen_at.elapsed() < SEEN_FOR
        };
        let overdue = all.iter().filter(|(_, stalled)| is_overdue(stalled));
        overdue.map(|(partition, stalled)| (*partition, stalled.visible_end)).collect()
    }

    fn stalled(&self) -> MutexGuard<'_, HashMap<PartitionId, StalledPartition>> {
        self.stalled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use whimbrel_model::TopicNumber;

    const PATIENCE: Duration = Duration::from_secs(3);

    fn partition() -> PartitionId {
        PartitionId::new(TopicNumber(1), 0)
    }

    #[test]
    fn a_partition_hangs_when_its_visible_end_stays_behind_for_longer_than_a_transaction_may_take() {
        let (hanging, now) = (StalledPartitions::new(PATIENCE, Arc::new(|_| {})), Instant::now());
        hanging.found(partition(), 5, 9, now);
        hanging.found(partition(), 5, 12, now + PATIENCE / 2);
        assert_eq!(hanging.overdue(PATIENCE), []);
        hanging.found(partition(), 5, 12, now + PATIENCE);
        assert_eq!(hanging.overdue(PATIENCE), [(partition(), 5)]);
    }

    #[test]
    fn a_partition_that_advances_does_not_hang() {
        let (hanging, now) = (StalledPartitions::new(PATIENCE, Arc::new(|_| {})), Instant::now());
        hanging.found(partition(), 5, 9, now);
        hanging.found(partition(), 6, 9, now + PATIENCE);
        assert_eq!(hanging.overdue(PATIENCE), []);
        hanging.found(partition(), 6, 9, now + PATIENCE * 2);
        hanging.found(partition(), 9, 9, now + PATIENCE * 2);
        assert_eq!(hanging.overdue(PATIENCE), []);
    }

    #[test]
    fn a_hanging_transaction_is_reported_once_per_offset_and_only_when_kafka_would_have_aborted_it() {
        let (hanging, now) = (StalledPartitions::new(PATIENCE, Arc::new(|_| {})), Instant::now());
        let late = now + PATIENCE + KAFKA_ABORT_DELAY_MAX;
        assert_eq!(hanging.found(partition(), 5, 9, now), Observation::Fine);
        assert_eq!(hanging.found(partition(), 5, 9, now + PATIENCE), Observation::Fine);
        assert_eq!(hanging.found(partition(), 5, 9, late), Observation::MustReport);
        assert_eq!(hanging.found(partition(), 5, 9, late), Observation::Fine);
    }
}
