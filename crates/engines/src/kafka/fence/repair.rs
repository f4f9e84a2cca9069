//! Repair of hanging transactions. A coordinator of Kafka 4.3 can treat a partition without a leader as deleted: it then finishes a
//! transaction without writing the transaction marker there (KAFKA-20734), and the last stable offset of that partition no longer
//! advances.
//!
//! The next marker of the same producer closes the earlier transaction too, with its own outcome. Two rules follow:
//! - **The coordinator's decision must be followed**: aborting what was committed loses records, committing what was aborted exposes them.
//! - **A fence begins no transaction in a partition until its leader has confirmed that no earlier one of the fence is open there.** If
//!   the broker or this process failed, Kafka would abort the new transaction, and its marker would void a commit whose own is missing.
//!
//! A fence therefore writes the missing marker itself (`WriteTxnMarkers`). Where it may not, it ends an empty transaction in that
//! partition as the hanging one was ended; during the two requests for that, the second rule does not hold.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use whimbrel_model::ports::Entry;
use whimbrel_model::{Event, PartitionId};

use super::inspect::{OpenTransaction, TopicPartition};
use super::transaction::{FencedProducer, MarkerError, WriteError, blocked, not_now, pause_after};
use crate::kafka::coordinator::{self, Finding, TransactionOutcome};

/// How long a partition must be stalled, or a commit unconfirmed, before a fence asks whether its own transaction is the cause.
const STALLED_FOR: Duration = Duration::from_secs(1);
/// How long the leaders of such partitions may take to answer.
const CHECK_ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long a fence ignores a stalled partition in which it has no open transaction, or whose transaction it could not close.
const EXAMINE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long a commit waits for the marker of the transaction before it, before the fence asks the coordinator whether the marker is lost.
const MARKER_GRACE: Duration = Duration::from_millis(100);
/// How often a transaction whose outcome is not in the coordinator's log is looked up and reported.
const LOOK_UP_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// How long reading a decision and closing one transaction may take.
const REPAIR_MAX: Duration = Duration::from_secs(10);
/// How long a repair waits for a coordinator that is still finishing the fence's last transaction.
const FINISHING_MAX: Duration = Duration::from_secs(1);
const FINISHING_PAUSE: Duration = Duration::from_millis(50);

/// The last transactions of a fence, and its attempts at repairs.
#[derive(Default)]
pub(super) struct Repairs {
    /// The fence's last transaction in a partition. One that is not here may be a predecessor's or was aborted.
    last: HashMap<PartitionId, Last>,
    /// Stalled partitions with their offsets in which this fence had nothing to close, or could not close it, and when that was found.
    examined: HashMap<(PartitionId, u64), Instant>,
    /// Open transactions whose outcome is not in the coordinator's log, and when that was found.
    undecided: HashMap<(PartitionId, u64), Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Committed up to this offset. The marker may be missing.
    Committed { last: u64, at: Instant },
    /// The leader has confirmed that nothing is open.
    Closed,
}

/// What closed a hanging transaction.
#[derive(Clone, Copy)]
enum ClosedBy {
    Marker,
    EmptyTransaction,
}

impl Repairs {
    /// Forgets the last outcome in partitions that get records now, since the outcome of those is not known yet.
    pub(super) fn forget(&mut self, places: &[TopicPartition]) {
        for (_, partition) in places {
            self.last.remove(partition);
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.last.clear();
    }

    fn committed(&mut self, partition: PartitionId, offset: u64, now: Instant) {
        let last = match self.last.get(&partition) {
            Some(Last::Committed { last, .. }) => offset.max(*last),
            _ => offset,
        };
        self.last.insert(partition, Last::Committed { last, at: now });
    }

    fn closed(&mut self, partition: PartitionId) {
        self.last.insert(partition, Last::Closed);
    }

    /// Whether the leader has confirmed that nothing is open.
    fn is_closed(&self, partition: PartitionId) -> bool {
        self.last.get(&partition) == Some(&Last::Closed)
    }

    /// Whether the fence has committed the transaction that is open from `start` on.
    fn has_committed(&self, partition: PartitionId, start: u64) -> bool {
        matches!(self.last.get(&partition), Some(Last::Committed { last, .. }) if start <= *last)
    }

    /// Partitions whose last commit is old enough to have its marker, and is not confirmed.
    fn unconfirmed(&self, now: Instant) -> Vec<PartitionId> {
        let is_old = |last: &Last| matches!(last, Last::Committed { at, .. } if now.saturating_duration_since(*at) >= STALLED_FOR);
        self.last.iter().filter(|(_, last)| is_old(last)).map(|(partition, _)| *partition).collect()
    }
}

impl FencedProducer {
    pub(super) fn remember_committed(&mut self, entries: &[Entry], offsets: &[u64]) {
        let now = Instant::now();
        for (entry, offset) in entries.iter().zip(offsets) {
            self.repairs.committed(entry.partition, *offset, now);
        }
    }

    /// Begins a transaction in these partitions, once no earlier transaction of this fence is open there.
    pub(super) async fn begin(&mut self, places: &[TopicPartition], deadline: Instant) -> Result<(), WriteError> {
        self.check_leaders(places).await?;
        self.settle(deadline).await?;
        self.close_earlier(places, deadline).await?;
        // A repair may have left a request without an answer.
        self.settle(deadline).await?;
        self.add_partitions(places, TransactionOutcome::Committed, deadline).await
    }

    /// Waits until the leaders report no open transaction of this fence in the partitions, and closes those that hang.
    async fn close_earlier(&mut self, places: &[TopicPartition], deadline: Instant) -> Result<(), WriteError> {
        let unconfirmed = places.iter().filter(|(_, partition)| !self.repairs.is_closed(*partition));
        let mut unconfirmed: Vec<TopicPartition> = unconfirmed.cloned().collect();
        let began = Instant::now();
        while !unconfirmed.is_empty() {
            let open = self.open_transactions(&unconfirmed, places.len(), deadline).await;
            let open = open.map_err(|error| error.blamed_in(&unconfirmed, places))?;
            for (_, partition) in unconfirmed.iter().filter(|(_, partition)| !open.contains_key(partition)) {
                self.repairs.closed(*partition);
            }
            unconfirmed.retain(|(_, partition)| open.contains_key(partition));
            if began.elapsed() < MARKER_GRACE {
                if !unconfirmed.is_empty() {
                    tokio::time::sleep(pause_after(began.elapsed())).await;
                }
                continue;
            }
            for place in std::mem::take(&mut unconfirmed) {
                let repaired = self.repair(&place, deadline).await;
                repaired.map_err(|error| error.blamed_in(std::slice::from_ref(&place), places))?;
            }
        }
        Ok(())
    }

    /// Fails where the brokers report that some of the partitions have no leader. Where none of them has one, the commit waits.
    async fn check_leaders(&mut self, places: &[TopicPartition]) -> Result<(), WriteError> {
        let cluster = self.context.cluster.clone();
        let is_leaderless = |(topic, partition): &&TopicPartition| cluster.is_leaderless(topic.name(), partition.index);
        let Some((topic, _)) = places.iter().find(is_leaderless) else { return Ok(()) };
        cluster.refresh(topic.name()).await;
        let leaderless: Vec<TopicPartition> = places.iter().filter(is_leaderless).cloned().collect();
        if leaderless.is_empty() || leaderless.len() == places.len() {
            return Ok(());
        }
        Err(blocked(&leaderless, "the partition has no leader"))
    }

    /// Confirms commits whose partitions were not written since, and closes transactions of this fence behind which readers have found
    /// a partition stalled.
    pub(super) async fn repair_stalled(&mut self) -> Result<(), WriteError> {
        self.settle(Instant::now() + CHECK_ANSWER_MAX).await?;
        let stalled = self.context.hanging.overdue(STALLED_FOR);
        self.repairs.examined.retain(|_, at| at.elapsed() < EXAMINE_AGAIN_AFTER);
        let unexamined = stalled.iter().filter(|place| !self.repairs.examined.contains_key(place));
        let mut suspects: HashSet<PartitionId> = unexamined.map(|(partition, _)| *partition).collect();
        suspects.extend(self.repairs.unconfirmed(Instant::now()));
        if suspects.is_empty() {
            return Ok(());
        }
        let place = |partition: PartitionId| Some((self.context.known.get(partition.topic)?, partition));
        let places: Vec<TopicPartition> = suspects.into_iter().filter_map(place).collect();
        let asked = self.ask_leaders(&places, Instant::now() + CHECK_ANSWER_MAX).await;
        for place in &places {
            let (_, partition) = place;
            if asked.open.contains_key(partition) {
                match self.repair(place, Instant::now() + REPAIR_MAX).await {
                    Ok(()) => continue,
                    Err(WriteError::Fenced) => return Err(WriteError::Fenced),
                    Err(WriteError::Entry { error, .. } | WriteError::Blocked { error, .. }) => {
                        tracing::debug!(id = self.context.transactional_id, %partition, %error, "a stalled partition cannot be repaired yet");
                    }
                }
            } else if !asked.waiting.iter().any(|(_, waiting)| waiting == partition) {
                self.repairs.closed(*partition);
            }
            let examined = stalled.iter().filter(|(stalled, _)| stalled == partition);
            self.repairs.examined.extend(examined.map(|each| (*each, Instant::now())));
        }
        Ok(())
    }

    /// Closes the transaction that is open in the partition, with the outcome that the coordinator has decided. It does not touch other
    /// partitions of that transaction: another one may be open there.
    async fn repair(&mut self, place: &TopicPartition, deadline: Instant) -> Result<(), WriteError> {
        let (topic, partition) = place;
        let places = std::slice::from_ref(place);
        self.settle(deadline).await?;
        self.wait_until_finished(deadline.min(Instant::now() + FINISHING_MAX)).await?;
        // Kafka's own marker is there by now, or lost.
        let Some(open) = self.open_transactions(places, 1, deadline).await?.remove(partition) else {
            self.repairs.closed(*partition);
            return Ok(());
        };
        let outcome = match self.decision(place, open.start, deadline).await? {
            Finding::Finished(outcome) => outcome,
            Finding::Nothing => {
                return Err(not_now(
                    0,
                    "a transaction of this fence hangs, and its outcome is not in `__transaction_state`",
                ));
            }
            Finding::UnderWay => return Err(not_now(0, "the coordinator has not finished the previous transaction")),
        };
        let closed_by = self.close(outcome, place, open, deadline).await?;
        // The marker may be lost as well.
        self.repairs.forget(places);
        while !self.open_transactions(places, 1, deadline).await?.is_empty() {
            if Instant::now() >= deadline {
                return Err(not_now(0, "a hanging transaction is still open"));
            }
            tokio::time::sleep(FINISHING_PAUSE).await;
        }
        self.repairs.closed(*partition);
        self.report_closed(topic.name(), *partition, open.start, outcome, closed_by);
        Ok(())
    }

    async fn decision(&mut self, place: &TopicPartition, start: u64, deadline: Instant) -> Result<Finding, WriteError> {
        let (topic, partition) = place;
        if self.repairs.has_committed(*partition, start) {
            return Ok(Finding::Finished(TransactionOutcome::Committed));
        }
        self.repairs.undecided.retain(|_, at| at.elapsed() < LOOK_UP_AGAIN_AFTER);
        if self.repairs.undecided.contains_key(&(*partition, start)) {
            return Ok(Finding::Nothing);
        }
        let FencedProducer { context, .. } = self;
        let at = (topic.name(), partition.index);
        let found =
            coordinator::look_up(&context.queries, &context.fetcher, &context.transactional_id, at, start, deadline);
        let found = found.await;
        let found = found
            .map_err(|error| not_now(0, format!("cannot read the decision about a hanging transaction: {error}")))?;
        if found == Finding::Nothing {
            self.repairs.undecided.insert((*partition, start), Instant::now());
            self.context.hanging.report(topic.name(), partition.index, start);
        }
        Ok(found)
    }

    /// Writes the missing marker, or ends an empty transaction in the partition with that outcome where the fence may not write markers.
    async fn close(
        &mut self,
        outcome: TransactionOutcome,
        place: &TopicPartition,
        open: OpenTransaction,
        deadline: Instant,
    ) -> Result<ClosedBy, WriteError> {
        match self.write_marker(place, outcome, open.coordinator_epoch, deadline).await {
            Ok(()) => return Ok(ClosedBy::Marker),
            Err(MarkerError::Fenced) => return Err(WriteError::Fenced),
            Err(MarkerError::NotNow(why)) => return Err(not_now(0, format!("a missing transaction marker: {why}"))),
            Err(MarkerError::NotAllowed(why)) => {
                tracing::debug!(id = self.context.transactional_id, why, "the fence ends an empty transaction instead");
            }
        }
        let empty = async {
            self.add_partitions(std::slice::from_ref(place), outcome, deadline).await?;
            self.end_open(deadline).await?;
            Ok(ClosedBy::EmptyTransaction)
        };
        // The index of the error is not that of an entry of the waiting commit.
        empty.await.map_err(|error| match error {
            WriteError::Fenced => WriteError::Fenced,
            WriteError::Entry { error, .. } | WriteError::Blocked { error, .. } => not_now(0, error),
        })
    }

    fn report_closed(
        &self,
        topic: &str,
        partition: PartitionId,
        at: u64,
        outcome: TransactionOutcome,
        closed_by: ClosedBy,
    ) {
        let index = partition.index;
        let outcome = match outcome {
            TransactionOutcome::Committed => "committed",
            TransactionOutcome::Aborted => "aborted",
        };
        let (by, how) = match closed_by {
            ClosedBy::Marker => ("marker", "wrote the marker"),
            ClosedBy::EmptyTransaction => ("empty_transaction", "ended an empty transaction there"),
        };
        let detail = format!(
            "partition {index} of `{topic}`: Kafka had {outcome} the transaction at offset {at} without writing its marker; \
             Whimbrel {how} as {outcome}"
        );
        tracing::warn!(id = self.context.transactional_id, "{detail}");
        let event = Event::warning("hanging_transaction_ended", detail);
        (self.context.events)(
            event.with("topic", topic).with("partition", index).with("offset", at).with("as", outcome).with("by", by),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::TopicNumber;

    #[test]
    fn only_a_transaction_that_began_before_the_last_commit_is_a_committed_one() {
        let partition = PartitionId::new(TopicNumber(1), 0);
        let mut repairs = Repairs::default();
        assert!(!repairs.has_committed(partition, 0), "a predecessor's transaction");
        let now = Instant::now();
        repairs.committed(partition, 9, now);
        repairs.committed(partition, 8, now);
        assert!(repairs.has_committed(partition, 9) && !repairs.has_committed(partition, 10));
        assert!(repairs.unconfirmed(now).is_empty());
        assert_eq!(repairs.unconfirmed(now + STALLED_FOR), [partition]);
        repairs.closed(partition);
        assert!(!repairs.has_committed(partition, 9) && repairs.is_closed(partition));
        assert!(repairs.unconfirmed(now + STALLED_FOR).is_empty());
    }
}
