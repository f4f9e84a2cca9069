//! Partitions that stand still: more is written than readers can see, for longer than a transaction may last. Pure: the time is
//! passed in. What is done about it is in `mend`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_model::PartitionId;

/// How often a partition is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How late Kafka itself ends a transaction whose time is over: it looks for them every ten seconds.
const KAFKAS_OWN_LOOK: Duration = Duration::from_secs(12);

pub(super) struct Hanging {
    /// How long a transaction may take.
    patience: Duration,
    state: Mutex<State>,
    mending: Mutex<()>,
}

#[derive(Default)]
struct State {
    looked_at: HashMap<PartitionId, Instant>,
    standing: HashMap<PartitionId, Standing>,
}

struct Standing {
    visible_end: u64,
    since: Instant,
    /// When it was last seen to be so: while Kafka is away nothing is known, and time alone makes nothing hang.
    seen_at: Instant,
    is_told: bool,
}

/// What a look at a partition has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Fine,
    /// Somebody must be told, once for each place.
    HangsSinceLong,
}

impl Hanging {
    pub fn new(transaction_timeout: Duration) -> Self {
        Self { patience: transaction_timeout, state: Mutex::default(), mending: Mutex::default() }
    }

    /// Whether it is time to look at the partition. Readers that find nothing must not become a storm of questions.
    pub fn may_look(&self, partition: PartitionId, now: Instant) -> bool {
        let mut state = self.state();
        let last = state.looked_at.get(&partition);
        let is_due = last.is_none_or(|last| now.saturating_duration_since(*last) >= LOOK_INTERVAL);
        if is_due {
            state.looked_at.insert(partition, now);
        }
        is_due
    }

    /// Takes in where the partition ends for readers and for writers.
    pub fn found(&self, partition: PartitionId, visible_end: u64, written_end: u64, now: Instant) -> Look {
        let mut state = self.state();
        if visible_end >= written_end {
            state.standing.remove(&partition);
            return Look::Fine;
        }
        let fresh = || Standing { visible_end, since: now, seen_at: now, is_told: false };
        let standing = state.standing.entry(partition).or_insert_with(fresh);
        if standing.visible_end != visible_end {
            *standing = fresh();
        }
        standing.seen_at = now;
        let stands_long = now.saturating_duration_since(standing.since) >= self.patience + KAFKAS_OWN_LOOK;
        if !stands_long || standing.is_told {
            return Look::Fine;
        }
        standing.is_told = true;
        Look::HangsSinceLong
    }

    /// Partitions that were seen to stand still for longer than a transaction may take, each with its visible end.
    pub fn overdue(&self) -> Vec<(PartitionId, u64)> {
        let state = self.state();
        let is_overdue =
            |standing: &Standing| standing.seen_at.saturating_duration_since(standing.since) >= self.patience;
        let overdue = state.standing.iter().filter(|(_, standing)| is_overdue(standing));
        overdue.map(|(partition, standing)| (*partition, standing.visible_end)).collect()
    }

    /// Fences mend one after the other: several may have written to a partition that hangs, and one of them is right.
    pub fn one_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.mending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::TopicNumber;

    const PATIENCE: Duration = Duration::from_secs(3);

    fn partition() -> PartitionId {
        PartitionId::new(TopicNumber(1), 0)
    }

    #[test]
    fn a_partition_hangs_when_its_visible_end_stays_behind_for_longer_than_a_transaction_may_take() {
        let (hanging, now) = (Hanging::new(PATIENCE), Instant::now());
        hanging.found(partition(), 5, 9, now);
        hanging.found(partition(), 5, 12, now + PATIENCE / 2);
        assert_eq!(hanging.overdue(), []);
        hanging.found(partition(), 5, 12, now + PATIENCE);
        assert_eq!(hanging.overdue(), [(partition(), 5)]);
    }

    #[test]
    fn a_partition_that_goes_on_does_not_hang() {
        let (hanging, now) = (Hanging::new(PATIENCE), Instant::now());
        hanging.found(partition(), 5, 9, now);
        hanging.found(partition(), 6, 9, now + PATIENCE);
        assert_eq!(hanging.overdue(), []);
        hanging.found(partition(), 6, 9, now + PATIENCE * 2);
        hanging.found(partition(), 9, 9, now + PATIENCE * 2);
        assert_eq!(hanging.overdue(), []);
    }

    #[test]
    fn it_is_told_once_for_each_place_and_only_when_kafka_would_have_ended_it() {
        let (hanging, now) = (Hanging::new(PATIENCE), Instant::now());
        let late = now + PATIENCE + KAFKAS_OWN_LOOK;
        assert_eq!(hanging.found(partition(), 5, 9, now), Look::Fine);
        assert_eq!(hanging.found(partition(), 5, 9, now + PATIENCE), Look::Fine);
        assert_eq!(hanging.found(partition(), 5, 9, late), Look::HangsSinceLong);
        assert_eq!(hanging.found(partition(), 5, 9, late), Look::Fine);
    }

    #[test]
    fn a_partition_is_looked_at_no_more_than_once_in_a_while() {
        let (hanging, now) = (Hanging::new(PATIENCE), Instant::now());
        assert!(hanging.may_look(partition(), now));
        assert!(!hanging.may_look(partition(), now + LOOK_INTERVAL / 2));
        assert!(hanging.may_look(partition(), now + LOOK_INTERVAL));
    }
}
