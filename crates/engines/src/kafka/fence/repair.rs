//! Repair of hanging transactions. A coordinator of Kafka 4.3 can treat a partition without a leader as deleted: it then finishes a
//! transaction without writing the transaction marker there (KAFKA-20734), and the last stable offset of that partition no longer
//! advances.
//!
//! The next marker of the same producer closes the earlier transaction too, with the outcome of that marker. Three rules follow:
//! - **A repair uses the coordinator's decision.** Aborting a committed transaction loses records; committing an aborted one exposes
//!   them. The fence remembers the decisions about its own commits. Otherwise it reads the coordinator's log, and accepts it only if the
//!   last record of the transactional id has the fence's epoch.
//! - **A fence begins no transaction in a partition until its earlier transactions are proven closed there.** Otherwise, if the broker or
//!   this process failed, Kafka would abort the new transaction, and that marker would also abort a commit whose marker is missing. The
//!   proof is the last stable offset: it advances past a marker only when all in-sync replicas have the marker. Transactions of other
//!   producers can hold that offset back. In that case three conditions are required: the leader reports no open transaction, the
//!   coordinator has finished the fence's transactions, and the coordinator's broker still reports the same leader epoch. A coordinator
//!   drops a marker only if its broker knows no leader.
//! - **A fence writes a missing marker under a new epoch.** If Kafka's own marker is only late, the leader rejects it, so it cannot end the
//!   fence's next transaction.
//!
//! A fence writes the missing marker itself (`WriteTxnMarkers`). If the brokers do not allow that, it ends an empty transaction in the
//! partition with the outcome of the hanging one. The second rule does not hold during the two requests for that.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use whimbrel_model::ports::Entry;
use whimbrel_model::{Event, PartitionId};

use super::inspect::{LeaderAnswers, OpenTransaction};
use super::transaction::{FenceError, FencedProducer, MarkerError, blocked, not_now, pause_after};
use crate::kafka::coordinator::{self, TransactionFinding, TransactionOutcome};
use crate::kafka::known_topics::TopicPartition;

/// The timeout of the leaders of stalled partitions.
const CHECK_ANSWER_MAX: Duration = Duration::from_secs(1);
/// The time for which a fence ignores a stalled partition in which it has no open transaction, or whose transaction it could not close.
const EXAMINE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// The time for which a commit waits for the marker of the transaction before it. After it, the fence asks the coordinator whether the
/// marker is lost.
const MARKER_GRACE: Duration = Duration::from_millis(100);
/// The interval at which a transaction whose outcome is not in the coordinator's log is looked up and reported.
const LOOK_UP_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The timeout of reading a decision and closing one transaction.
const REPAIR_MAX: Duration = Duration::from_secs(10);
/// The time for which a check waits for a coordinator that is still finishing the fence's last transaction.
const FINISHING_MAX: Duration = Duration::from_secs(1);
const FINISHING_PAUSE: Duration = Duration::from_millis(50);

/// The last transactions of a fence, and its attempts at repairs.
#[derive(Default)]
pub(super) struct Repairs {
    /// The fence's last transaction in a partition. One that is not here may be a predecessor's or was aborted.
    last: HashMap<PartitionId, LastTransaction>,
    /// Stalled partitions with their offsets in which this fence had nothing to close, or could not close it, and when that was found.
    examined: HashMap<(PartitionId, u64), Instant>,
    /// Partitions with an unconfirmed commit whose repair failed, with the time of the failure.
    failed: HashMap<PartitionId, Instant>,
    /// Open transactions whose outcome is not in the coordinator's log, and when that was found.
    undecided: HashMap<(PartitionId, u64), Instant>,
    /// Repairs that the brokers have received, possibly without an answer, in partitions that are not proven closed yet.
    sent: HashMap<PartitionId, Repair>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastTransaction {
    /// Committed up to this offset. The marker may be missing.
    Committed { last: u64, at: Instant },
    /// All transactions of the fence are proven closed.
    Closed,
}

/// A hanging transaction that a fence closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Repair {
    /// The first offset of the transaction.
    start: u64,
    outcome: TransactionOutcome,
    by: ClosedBy,
}

/// The way in which a hanging transaction was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClosedBy {
    Marker,
    EmptyTransaction,
}

impl Repairs {
    /// Removes the last outcome in partitions that get records now, since the outcome of those records is not known yet.
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
            Some(LastTransaction::Committed { last, .. }) => offset.max(*last),
            _ => offset,
        };
        self.last.insert(partition, LastTransaction::Committed { last, at: now });
    }

    /// Returns the repair that closed the last transaction in the partition.
    fn closed(&mut self, partition: PartitionId) -> Option<Repair> {
        self.last.insert(partition, LastTransaction::Closed);
        self.sent.remove(&partition)
    }

    /// Whether all transactions of the fence in the partition are proven closed.
    fn is_closed(&self, partition: PartitionId) -> bool {
        self.last.get(&partition) == Some(&LastTransaction::Closed)
    }

    /// Whether the last stable offset is past the fence's last commit. All in-sync replicas then have the marker.
    fn is_stable(&self, partition: PartitionId, stable_end: Option<u64>) -> bool {
        matches!(self.last.get(&partition), Some(LastTransaction::Committed { last, .. }) if stable_end.is_some_and(|end| end > *last))
    }

    /// Whether the fence has committed the transaction that is open from `start` on.
    fn has_committed(&self, partition: PartitionId, start: u64) -> bool {
        matches!(self.last.get(&partition), Some(LastTransaction::Committed { last, .. }) if start <= *last)
    }

    /// Partitions whose last commit was made at least `after` ago, so that it should have its marker, and is not confirmed.
    fn unconfirmed(&self, now: Instant, after: Duration) -> Vec<PartitionId> {
        let is_old = |last: &LastTransaction| matches!(last, LastTransaction::Committed { at, .. } if now.saturating_duration_since(*at) >= after);
        self.last
            .iter()
            .filter(|(partition, last)| is_old(last) && !self.failed.contains_key(partition))
            .map(|(partition, _)| *partition)
            .collect()
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
    pub(super) async fn begin(&mut self, places: &[TopicPartition], deadline: Instant) -> Result<(), FenceError> {
        self.check_writable(places).await?;
        loop {
            self.settle(deadline).await?;
            self.close_earlier(places, deadline).await?;
            // A request of the repair may be unanswered.
            self.settle(deadline).await?;
            self.add_partitions(places, TransactionOutcome::Committed, deadline).await?;
            if !self.needs_new_epoch() {
                return Ok(());
            }
            // An unanswered attempt may reach the coordinator after this transaction was committed, and begin another one. So this empty
            // transaction ends now, and the next one has a new epoch, under which the late attempt is rejected.
            self.end_open(deadline).await?;
            if Instant::now() >= deadline {
                return Err(not_now(0, "the coordinator did not answer every attempt to begin the transaction"));
            }
        }
    }

    /// Waits until the transactions of this fence in the partitions are proven closed, and closes hanging ones.
    async fn close_earlier(&mut self, places: &[TopicPartition], deadline: Instant) -> Result<(), FenceError> {
        let unconfirmed = places.iter().filter(|(_, partition)| !self.repairs.is_closed(*partition));
        let mut unconfirmed: Vec<TopicPartition> = unconfirmed.cloned().collect();
        let began = Instant::now();
        while !unconfirmed.is_empty() {
            let answers = self.open_transactions(&unconfirmed, places.len(), deadline).await;
            let answers = answers.map_err(|error| error.blamed_in(&unconfirmed, places))?;
            self.confirm(&unconfirmed, &answers, deadline).await?;
            unconfirmed.retain(|(_, partition)| !self.repairs.is_closed(*partition));
            let open = unconfirmed.iter().filter(|(_, partition)| answers.open.contains_key(partition));
            let open: Vec<TopicPartition> = open.cloned().collect();
            if unconfirmed.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(not_now(0, "the coordinator has not finished the previous transaction"));
            }
            if open.is_empty() || began.elapsed() < MARKER_GRACE {
                tokio::time::sleep(pause_after(began.elapsed())).await;
                continue;
            }
            self.prepare_repair(deadline).await?;
            for place in &open {
                self.repair(place, deadline).await.map_err(|error| match error {
                    // The other partitions of the commit can be written.
                    FenceError::Entry { error, .. } if places.len() > 1 => blocked(std::slice::from_ref(place), error),
                    other => other.blamed_in(std::slice::from_ref(place), places),
                })?;
            }
        }
        Ok(())
    }

    /// Records the partitions in which the answers prove that all transactions of this fence are closed.
    async fn confirm(
        &mut self,
        places: &[TopicPartition],
        answers: &LeaderAnswers,
        deadline: Instant,
    ) -> Result<(), FenceError> {
        let mut doubtful = Vec::new();
        for place in places.iter().filter(|(_, partition)| !answers.open.contains_key(partition)) {
            match answers.quiet.get(&place.1) {
                Some(quiet) if !self.repairs.is_stable(place.1, quiet.stable_end) => {
                    doubtful.push((place, quiet.leader_epoch));
                }
                // Stable, or the topic was deleted.
                _ => self.learn_closed(place),
            }
        }
        if doubtful.is_empty() || !self.has_finished(deadline).await? {
            return Ok(());
        }
        let topics: Vec<&str> = doubtful.iter().map(|((topic, _), _)| topic.name()).collect();
        if self.learn_leaders(&topics, deadline).await.is_ok() {
            for (place, leader_epoch) in doubtful {
                let (topic, partition) = place;
                if self.context.cluster.leader_epoch(topic.name(), partition.index) == leader_epoch {
                    self.learn_closed(place);
                }
            }
        }
        Ok(())
    }

    /// Fails if the brokers report that some of the partitions cannot be written, and some can. If none can be written, the commit
    /// waits. A transaction that has begun in such a partition cannot even be aborted: Kafka rejects its marker too, and the fence
    /// would wait for the marker.
    async fn check_writable(&mut self, places: &[TopicPartition]) -> Result<(), FenceError> {
        let cluster = self.context.cluster.clone();
        let is_unwritable = |(topic, partition): &&TopicPartition| {
            cluster.is_unwritable(topic.name(), partition.index, topic.min_insync())
        };
        let Some((topic, _)) = places.iter().find(is_unwritable) else { return Ok(()) };
        cluster.refresh(topic.name()).await;
        let unwritable: Vec<TopicPartition> = places.iter().filter(is_unwritable).cloned().collect();
        if unwritable.is_empty() || unwritable.len() == places.len() {
            return Ok(());
        }
        Err(blocked(&unwritable, "the partition has no leader, or fewer replicas in sync than `min.insync.replicas`"))
    }

    /// Confirms commits to partitions that were not written again, and closes transactions of this fence that stall a partition, as
    /// reported in `stalled_partitions`.
    pub(super) async fn repair_stalled(&mut self) -> Result<(), FenceError> {
        self.settle(Instant::now() + CHECK_ANSWER_MAX).await?;
        let after = self.context.stalled_after;
        let stalled = self.context.hanging.overdue(after);
        self.repairs.examined.retain(|_, at| at.elapsed() < EXAMINE_AGAIN_AFTER);
        self.repairs.failed.retain(|_, at| at.elapsed() < EXAMINE_AGAIN_AFTER);
        let unexamined = stalled.iter().filter(|place| !self.repairs.examined.contains_key(place));
        let mut suspects: HashSet<PartitionId> = unexamined.map(|(partition, _)| *partition).collect();
        suspects.extend(self.repairs.unconfirmed(Instant::now(), after));
        if suspects.is_empty() {
            return Ok(());
        }
        let place = |partition: PartitionId| Some((self.context.known.get(partition.topic)?, partition));
        let places: Vec<TopicPartition> = suspects.into_iter().filter_map(place).collect();
        let deadline = Instant::now() + CHECK_ANSWER_MAX;
        let answers = self.ask_leaders(&places, deadline).await;
        let is_answered = |(_, partition): &&TopicPartition| answers.quiet.contains_key(partition);
        let quiet: Vec<TopicPartition> = places.iter().filter(is_answered).cloned().collect();
        self.confirm(&quiet, &answers, deadline).await?;
        let open = places.iter().filter(|(_, partition)| answers.open.contains_key(partition));
        let open: Vec<TopicPartition> = open.cloned().collect();
        if !open.is_empty() {
            self.prepare_repair(Instant::now() + FINISHING_MAX).await?;
        }
        for place in &open {
            let (_, partition) = place;
            match self.repair(place, Instant::now() + REPAIR_MAX).await {
                Ok(()) => {}
                Err(FenceError::Fenced) => return Err(FenceError::Fenced),
                Err(FenceError::Entry { error, .. } | FenceError::Blocked { error, .. }) => {
                    tracing::debug!(id = self.context.transactional_id, %partition, %error, "a stalled partition cannot be repaired yet");
                    self.repairs.failed.insert(*partition, Instant::now());
                }
            }
        }
        let examined = stalled.iter().filter(|(partition, _)| places.iter().any(|(_, place)| place == partition));
        self.repairs.examined.extend(examined.map(|each| (*each, Instant::now())));
        Ok(())
    }

    /// Waits until the coordinator has finished the fence's transactions, so that each marker is written or lost. Then takes a new epoch.
    async fn prepare_repair(&mut self, deadline: Instant) -> Result<(), FenceError> {
        self.settle(deadline).await?;
        self.wait_until_finished(deadline).await?;
        self.leave_used_epoch(deadline).await
    }

    /// Closes the transaction that is open in the partition, with the outcome that the coordinator has decided, after
    /// [`Self::prepare_repair`]. It does not repair other partitions of that transaction: a later transaction may be open there.
    async fn repair(&mut self, place: &TopicPartition, deadline: Instant) -> Result<(), FenceError> {
        let (topic, partition) = place;
        let places = std::slice::from_ref(place);
        self.learn_leaders(&[topic.name()], deadline).await.map_err(|error| not_now(0, error))?;
        // Kafka's own marker has been written by now, or is lost.
        let Some(open) = self.open_transactions(places, 1, deadline).await?.open.remove(partition) else {
            self.learn_closed(place);
            return Ok(());
        };
        let outcome = match self.decision(place, open.start, deadline).await? {
            TransactionFinding::Finished(outcome) => outcome,
            TransactionFinding::Nothing => {
                return Err(not_now(
                    0,
                    "a transaction of this fence hangs, and its outcome is not in `__transaction_state`",
                ));
            }
            TransactionFinding::UnderWay => {
                return Err(not_now(0, "the coordinator has not finished the previous transaction"));
            }
        };
        self.close(outcome, place, open, deadline).await?;
        // The marker may be lost as well.
        self.repairs.forget(places);
        while !self.open_transactions(places, 1, deadline).await?.open.is_empty() {
            if Instant::now() >= deadline {
                return Err(not_now(0, "a hanging transaction is still open"));
            }
            tokio::time::sleep(FINISHING_PAUSE).await;
        }
        self.learn_closed(place);
        Ok(())
    }

    async fn decision(
        &mut self,
        place: &TopicPartition,
        start: u64,
        deadline: Instant,
    ) -> Result<TransactionFinding, FenceError> {
        let (topic, partition) = place;
        if self.repairs.has_committed(*partition, start) {
            return Ok(TransactionFinding::Finished(TransactionOutcome::Committed));
        }
        self.repairs.undecided.retain(|_, at| at.elapsed() < LOOK_UP_AGAIN_AFTER);
        if self.repairs.undecided.contains_key(&(*partition, start)) {
            return Ok(TransactionFinding::Nothing);
        }
        let query = coordinator::TransactionQuery {
            id: &self.context.transactional_id,
            identity: self.identity(),
            partition: (topic.name(), partition.index),
            at: start,
        };
        let found = coordinator::look_up(&self.context.queries, &self.context.fetcher, query, deadline).await;
        let found = found
            .map_err(|error| not_now(0, format!("cannot read the decision about a hanging transaction: {error}")))?;
        if found == TransactionFinding::Nothing {
            self.repairs.undecided.insert((*partition, start), Instant::now());
            self.context.hanging.report(topic.name(), partition.index, start);
        }
        Ok(found)
    }

    /// Writes the missing marker. If the fence may not write markers, ends an empty transaction in the partition with that outcome.
    async fn close(
        &mut self,
        outcome: TransactionOutcome,
        place: &TopicPartition,
        open: OpenTransaction,
        deadline: Instant,
    ) -> Result<(), FenceError> {
        let (partition, repair) = (place.1, Repair { start: open.start, outcome, by: ClosedBy::Marker });
        let not_written = |why| not_now(0, format!("cannot write a missing marker: {why}"));
        match self.write_marker(place, outcome, open.coordinator_epoch, deadline).await {
            Ok(()) => {
                self.repairs.sent.insert(partition, repair);
                return Ok(());
            }
            Err(MarkerError::Fenced) => return Err(FenceError::Fenced),
            Err(MarkerError::NotNow(why)) => return Err(not_written(why)),
            Err(MarkerError::Unknown(why)) => {
                self.repairs.sent.insert(partition, repair);
                self.demand_new_epoch();
                return Err(not_written(why));
            }
            Err(MarkerError::NotAllowed(why)) => {
                tracing::debug!(id = self.context.transactional_id, why, "the fence ends an empty transaction instead");
            }
        }
        let empty = async {
            self.add_partitions(std::slice::from_ref(place), outcome, deadline).await?;
            self.repairs.sent.insert(partition, Repair { by: ClosedBy::EmptyTransaction, ..repair });
            self.end_open(deadline).await?;
            self.demand_new_epoch();
            Ok(())
        };
        // The index of the error is not that of an entry of the waiting commit.
        empty.await.map_err(|error| match error {
            FenceError::Fenced => FenceError::Fenced,
            FenceError::Entry { error, .. } | FenceError::Blocked { error, .. } => not_now(0, error),
        })
    }

    /// Records that all transactions of this fence in the partition are closed, and reports the repair that closed the last one.
    fn learn_closed(&mut self, (topic, partition): &TopicPartition) {
        if let Some(repair) = self.repairs.closed(*partition) {
            self.report_closed(topic.name(), *partition, repair);
        }
    }

    fn report_closed(&self, topic: &str, partition: PartitionId, repair: Repair) {
        let Repair { start: at, outcome, by } = repair;
        let index = partition.index;
        let outcome = match outcome {
            TransactionOutcome::Committed => "committed",
            TransactionOutcome::Aborted => "aborted",
        };
        let (by, how) = match by {
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
        let after = Duration::from_secs(1);
        assert!(repairs.unconfirmed(now, after).is_empty());
        assert_eq!(repairs.unconfirmed(now + after, after), [partition]);
        repairs.closed(partition);
        assert!(!repairs.has_committed(partition, 9) && repairs.is_closed(partition));
        assert!(repairs.unconfirmed(now + after, after).is_empty());
    }
}
