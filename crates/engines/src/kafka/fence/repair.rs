//! Repair of hanging transactions. A coordinator of Kafka 4.3 can treat a partition without a leader as deleted: it then finishes a
//! transaction without writing the transaction marker there (KAFKA-20734), and the last stable offset of that partition no longer
//! advances.
//!
//! A later marker of the same producer closes the earlier transaction too. The fence therefore ends an empty transaction in that
//! partition as the coordinator has ended the hanging one. **The coordinator's decision must be followed**: aborting what was
//! committed loses records, committing what was aborted exposes them. For the same reason a fence writes nothing to a partition until
//! its leader has confirmed that no earlier transaction of the fence is open there.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use whimbrel_model::ports::Entry;
use whimbrel_model::{Event, PartitionId};

use super::inspect::TopicPartition;
use super::transaction::{FencedProducer, WriteError, blocked, not_now};
use crate::kafka::coordinator::{self, Finding, TransactionOutcome};

/// How long a partition must be stalled, or a commit unconfirmed, before a fence asks whether its own transaction is the cause.
const STALLED_FOR: Duration = Duration::from_secs(1);
/// How long the leaders of such partitions may take to answer.
const CHECK_ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long a fence ignores a stalled partition in which it has no open transaction, or whose transaction it could not close.
const EXAMINE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long a transaction must stay open after it was found before the fence closes it: on a slow broker Kafka's own marker is only late.
const MARKER_GRACE: Duration = Duration::from_millis(500);
/// How often a transaction whose outcome is not in the coordinator's log is looked up and reported.
const LOOK_UP_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// How long reading a decision and closing one transaction may take.
const REPAIR_MAX: Duration = Duration::from_secs(10);
/// How long a commit waits for a coordinator that is still finishing the transaction before it.
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
    /// Transactions that were found open in a partition, each with its first offset and when it was found.
    found_open: HashMap<PartitionId, (u64, Instant)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Committed up to this offset. The marker may be missing.
    Committed { last: u64, at: Instant },
    /// The leader has confirmed that nothing is open.
    Closed,
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
        self.found_open.remove(&partition);
    }

    /// Whether the transaction from `start` on, which is open now, was found open at least [`MARKER_GRACE`] ago.
    fn has_stayed_open(&mut self, partition: PartitionId, start: u64, now: Instant) -> bool {
        let found = self.found_open.entry(partition).or_insert((start, now));
        if found.0 != start {
            *found = (start, now);
        }
        now.saturating_duration_since(found.1) >= MARKER_GRACE
    }

    fn is_committed(&self, partition: PartitionId) -> bool {
        matches!(self.last.get(&partition), Some(Last::Committed { .. }))
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

    /// Begins a transaction in these partitions, after closing earlier transactions of this fence that are open there.
    pub(super) async fn begin(&mut self, places: &[TopicPartition], deadline: Instant) -> Result<(), WriteError> {
        let mut closed: HashMap<PartitionId, u64> = HashMap::new();
        self.check_leaders(places).await?;
        loop {
            self.settle(deadline).await?;
            self.examine_unknown(places, deadline).await?;
            self.add_partitions(places, TransactionOutcome::Committed, deadline).await?;
            let committed = places.iter().filter(|(_, partition)| self.repairs.is_committed(*partition));
            let committed: Vec<TopicPartition> = committed.cloned().collect();
            // Asks once only: if this process ended now, Kafka would abort the transaction, and with it a commit whose marker is missing.
            let asked = self.ask_leaders(&committed, Instant::now() + CHECK_ANSWER_MAX).await;
            if asked.waiting.is_empty() && asked.open.is_empty() {
                for (topic, partition) in &committed {
                    if let Some(at) = closed.get(partition) {
                        self.report_closed(topic.name(), *partition, *at, TransactionOutcome::Committed);
                    }
                }
                return Ok(());
            }
            closed.extend(asked.open);
            // The marker of this empty transaction also closes the hanging one. The next round asks whether it was written.
            self.end_open(deadline).await?;
            if Instant::now() >= deadline {
                return Err(not_now(0, format!("an earlier transaction is open: {}", asked.why)));
            }
            // Leaders that did not answer are waited for while no transaction is open.
            let waited_for = self.open_transactions(&asked.waiting, places.len(), deadline).await;
            waited_for.map_err(|error| error.blamed_in(&asked.waiting, places))?;
        }
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

    /// Closes the fence's open transactions in partitions whose last outcome it does not know.
    async fn examine_unknown(&mut self, places: &[TopicPartition], deadline: Instant) -> Result<(), WriteError> {
        let unknown = places.iter().filter(|(_, partition)| !self.repairs.last.contains_key(partition));
        let unknown: Vec<TopicPartition> = unknown.cloned().collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let open = self.open_transactions(&unknown, places.len(), deadline).await;
        let open = open.map_err(|error| error.blamed_in(&unknown, places))?;
        for place in &unknown {
            match open.get(&place.1) {
                Some(start) => self.repair(place, *start, deadline).await?,
                None => self.repairs.closed(place.1),
            }
        }
        Ok(())
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
            if let Some(start) = asked.open.get(partition) {
                if !self.repairs.has_stayed_open(*partition, *start, Instant::now()) {
                    // The next check asks again. Commits do not wait for it.
                    continue;
                }
                match self.repair(place, *start, Instant::now() + REPAIR_MAX).await {
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

    /// Closes the transaction that is open in the partition from `start` on, with the outcome that the coordinator has decided. It does
    /// not touch other partitions of that transaction: another one may be open there.
    async fn repair(&mut self, place: &TopicPartition, start: u64, deadline: Instant) -> Result<(), WriteError> {
        let began = Instant::now();
        let (_, partition) = place;
        let outcome = loop {
            match self.decision(place, start, deadline).await? {
                Finding::Finished(outcome) => break outcome,
                Finding::Nothing => {
                    let why = "a transaction of this fence hangs, and its outcome is not in `__transaction_state`";
                    return Err(not_now(0, why));
                }
                Finding::UnderWay if began.elapsed() >= FINISHING_MAX => {
                    return Err(not_now(0, "the coordinator has not finished the previous transaction"));
                }
                Finding::UnderWay => tokio::time::sleep(FINISHING_PAUSE).await,
            }
            if self.open_transactions(std::slice::from_ref(place), 1, deadline).await?.is_empty() {
                self.repairs.closed(*partition);
                return Ok(());
            }
        };
        while !self.repairs.has_stayed_open(*partition, start, Instant::now()) {
            tokio::time::sleep(FINISHING_PAUSE).await;
            if self.open_transactions(std::slice::from_ref(place), 1, deadline).await?.is_empty() {
                self.repairs.closed(*partition);
                return Ok(());
            }
        }
        let closed = self.close(outcome, place, start, deadline).await;
        // The index of the error is not that of an entry of the waiting commit.
        closed.map_err(|error| match error {
            WriteError::Fenced => WriteError::Fenced,
            WriteError::Entry { error, .. } | WriteError::Blocked { error, .. } => not_now(0, error),
        })
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

    /// Ends an empty transaction in the partition, and asks the leader whether that has closed the one that was open.
    async fn close(
        &mut self,
        outcome: TransactionOutcome,
        place: &TopicPartition,
        start: u64,
        deadline: Instant,
    ) -> Result<(), WriteError> {
        let (topic, partition) = place;
        let places = std::slice::from_ref(place);
        self.settle(deadline).await?;
        self.add_partitions(places, outcome, deadline).await?;
        // The coordinator has finished every earlier transaction by now. Asks once only, as `begin` does.
        let asked = self.ask_leaders(places, Instant::now() + CHECK_ANSWER_MAX).await;
        let was_late = asked.waiting.is_empty() && asked.open.is_empty();
        self.end_open(deadline).await?;
        // The coordinator may not have written this marker either.
        self.repairs.forget(places);
        loop {
            if self.open_transactions(places, 1, deadline).await?.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(not_now(0, "a hanging transaction is still open"));
            }
            tokio::time::sleep(FINISHING_PAUSE).await;
        }
        self.repairs.closed(*partition);
        if was_late {
            tracing::debug!(id = self.context.transactional_id, %partition, "Kafka has written a late transaction marker");
        } else {
            self.report_closed(topic.name(), *partition, start, outcome);
        }
        Ok(())
    }

    fn report_closed(&self, topic: &str, partition: PartitionId, at: u64, outcome: TransactionOutcome) {
        let index = partition.index;
        let outcome = match outcome {
            TransactionOutcome::Committed => "committed",
            TransactionOutcome::Aborted => "aborted",
        };
        let detail = format!(
            "partition {index} of `{topic}`: Kafka had {outcome} the transaction at offset {at} without writing its marker; \
             Whimbrel wrote the marker as {outcome}"
        );
        tracing::warn!(id = self.context.transactional_id, "{detail}");
        let event = Event::warning("hanging_transaction_ended", detail);
        (self.context.events)(
            event.with("topic", topic).with("partition", index).with("offset", at).with("as", outcome),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::TopicNumber;

    #[test]
    fn a_transaction_has_stayed_open_when_it_was_found_again_after_the_grace() {
        let (partition, now) = (PartitionId::new(TopicNumber(1), 0), Instant::now());
        let mut repairs = Repairs::default();
        assert!(!repairs.has_stayed_open(partition, 5, now));
        assert!(!repairs.has_stayed_open(partition, 5, now + MARKER_GRACE / 2));
        assert!(repairs.has_stayed_open(partition, 5, now + MARKER_GRACE));
        assert!(!repairs.has_stayed_open(partition, 9, now + MARKER_GRACE), "another transaction");
        repairs.closed(partition);
        assert!(!repairs.has_stayed_open(partition, 9, now + MARKER_GRACE * 2), "the one before was closed");
    }

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
        assert!(!repairs.has_committed(partition, 9) && !repairs.is_committed(partition));
        assert!(repairs.unconfirmed(now + STALLED_FOR).is_empty());
    }
}
