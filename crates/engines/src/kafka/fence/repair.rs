//! Repair of hanging transactions. A coordinator of Kafka 4.3 can treat a partition without a leader as deleted: it then finishes a
//! transaction without writing the transaction marker there (KAFKA-20734), and the last stable offset of that partition no longer
//! advances.
//!
//! A later marker of the same producer closes the earlier transaction too. The fence therefore ends an empty transaction in that
//! partition as the coordinator has ended the hanging one. **The coordinator's decision must be followed**: aborting what was
//! committed loses records, committing what was aborted exposes them. For the same reason a fence writes nothing to a partition until
//! its leader has confirmed that no earlier transaction of the fence is open there.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use whimbrel_model::ports::Entry;
use whimbrel_model::{Event, PartitionId};

use super::inspect::Place;
use super::transaction::{FencedProducer, WriteError, not_now};
use crate::kafka::coordinator::{self, Decision, Finding, TransactionOutcome};

/// How long a partition must be stalled before a fence asks whether its own transaction is the cause.
const STALLED_FOR: Duration = Duration::from_secs(1);
/// How long the leader of a stalled partition may take to answer that.
const STALLED_ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long a stalled partition is left alone in which this fence has nothing open.
const EXAMINE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long reading a decision and closing one transaction may take.
const REPAIR_MAX: Duration = Duration::from_secs(10);
/// How long a commit waits for a coordinator that is still finishing the transaction before it.
const FINISHING_MAX: Duration = Duration::from_secs(1);
const FINISHING_PAUSE: Duration = Duration::from_millis(50);

/// What a fence knows of its last transactions.
#[derive(Default)]
pub(super) struct Repairs {
    /// The fence's last transaction in a partition. One that is not here may be a predecessor's or was aborted.
    last: HashMap<PartitionId, Last>,
    /// Stalled places in which this fence has nothing open, and when that was found.
    examined: HashMap<(PartitionId, u64), Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Committed up to this offset. The marker may be missing.
    Committed(u64),
    /// The leader has nothing open.
    Closed,
}

impl Repairs {
    /// The partitions get records now: how that ends is not known yet.
    pub(super) fn forget(&mut self, places: &[Place]) {
        for (_, partition) in places {
            self.last.remove(partition);
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.last.clear();
    }

    fn closed(&mut self, partition: PartitionId) {
        self.last.insert(partition, Last::Closed);
    }

    fn is_committed(&self, partition: PartitionId) -> bool {
        matches!(self.last.get(&partition), Some(Last::Committed(_)))
    }

    /// Whether the fence has committed the transaction that is open from `start` on.
    fn has_committed(&self, partition: PartitionId, start: u64) -> bool {
        matches!(self.last.get(&partition), Some(Last::Committed(last)) if start <= *last)
    }
}

impl FencedProducer {
    pub(super) fn remember_committed(&mut self, entries: &[Entry], offsets: &[u64]) {
        for (entry, offset) in entries.iter().zip(offsets) {
            let last = self.repairs.last.entry(entry.partition).or_insert(Last::Committed(*offset));
            if let Last::Committed(last) = last {
                *last = (*last).max(*offset);
            }
        }
    }

    /// Begins a transaction in these partitions, in which no earlier one of this fence is open.
    pub(super) async fn begin(&mut self, places: &[Place], deadline: Instant) -> Result<(), WriteError> {
        loop {
            self.settle(deadline).await?;
            self.examine_unknown(places, deadline).await?;
            self.add_partitions(places, TransactionOutcome::Committed, deadline).await?;
            let committed = places.iter().filter(|(_, partition)| self.repairs.is_committed(*partition));
            let committed: Vec<Place> = committed.cloned().collect();
            let hanging = self.open_transactions(&committed, deadline).await?;
            if hanging.is_empty() {
                return Ok(());
            }
            self.end_open().await?;
            for (topic, partition) in &committed {
                if let Some(at) = hanging.get(partition) {
                    self.report_closed(topic.name(), *partition, *at, TransactionOutcome::Committed);
                    self.repairs.closed(*partition);
                }
            }
        }
    }

    /// Closes what is open in partitions that the fence knows nothing of.
    async fn examine_unknown(&mut self, places: &[Place], deadline: Instant) -> Result<(), WriteError> {
        let unknown = places.iter().filter(|(_, partition)| !self.repairs.last.contains_key(partition));
        let unknown: Vec<Place> = unknown.cloned().collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let open = self.open_transactions(&unknown, deadline).await?;
        for place in &unknown {
            match open.get(&place.1) {
                Some(start) => self.repair(place, *start, deadline).await?,
                None => self.repairs.closed(place.1),
            }
        }
        Ok(())
    }

    /// Closes transactions of this fence behind which readers have found a partition stalled.
    pub(super) async fn repair_stalled(&mut self) -> Result<(), WriteError> {
        let settled = self.settle(Instant::now() + STALLED_ANSWER_MAX).await;
        let stalled = self.context.hanging.overdue(STALLED_FOR);
        let is_current = |place: &(PartitionId, u64), at: &mut Instant| {
            at.elapsed() < EXAMINE_AGAIN_AFTER && stalled.contains(place)
        };
        self.repairs.examined.retain(is_current);
        settled?;
        for (partition, at) in stalled {
            let Some(topic) = self.context.known.get(partition.topic) else { continue };
            if self.repairs.examined.contains_key(&(partition, at)) {
                continue;
            }
            let place = (topic, partition);
            let deadline = Instant::now() + STALLED_ANSWER_MAX;
            let repaired = match self.open_transactions(std::slice::from_ref(&place), deadline).await {
                Ok(open) => match open.get(&partition) {
                    Some(start) => self.repair(&place, *start, Instant::now() + REPAIR_MAX).await,
                    None => {
                        self.repairs.examined.insert((partition, at), Instant::now());
                        Ok(())
                    }
                },
                Err(error) => Err(error),
            };
            match repaired {
                Ok(()) => {}
                Err(WriteError::Fenced) => return Err(WriteError::Fenced),
                Err(WriteError::Entry { error, .. }) => {
                    tracing::debug!(id = self.context.transactional_id, %partition, at, %error, "a stalled partition cannot be repaired yet");
                }
            }
        }
        Ok(())
    }

    /// Closes the transaction that is open from `start` on as the coordinator has decided it, here and in its other partitions.
    async fn repair(&mut self, place: &Place, start: u64, deadline: Instant) -> Result<(), WriteError> {
        let began = Instant::now();
        let (topic, partition) = place;
        let decision = loop {
            match self.decision(place, start, deadline).await? {
                Finding::Finished(decision) => break decision,
                Finding::Nothing => {
                    self.context.hanging.report(topic.name(), partition.index, start);
                    return Err(not_now(
                        0,
                        "a transaction of this fence hangs, and the coordinator's decision is not in its log",
                    ));
                }
                Finding::UnderWay if began.elapsed() >= FINISHING_MAX => {
                    return Err(not_now(0, "the coordinator has not finished the previous transaction"));
                }
                Finding::UnderWay => tokio::time::sleep(FINISHING_PAUSE).await,
            }
            if self.open_transactions(std::slice::from_ref(place), deadline).await?.is_empty() {
                self.repairs.closed(*partition);
                return Ok(());
            }
        };
        let known = &self.context.known;
        let others = decision.partitions.iter().filter_map(|(name, index)| {
            let topic = known.by_name(name)?;
            let partition = PartitionId::new(topic.number, *index);
            Some((topic, partition))
        });
        let mut places: Vec<Place> = others.filter(|(_, other)| other != partition).collect();
        places.push(place.clone());
        let open = self.open_transactions(&places, deadline).await?;
        places.retain(|(_, partition)| open.contains_key(partition));
        let closed = self.close(decision.outcome, &places, deadline).await;
        // Its entries are not those of the commit that waits.
        closed.map_err(|error| match error {
            WriteError::Fenced => WriteError::Fenced,
            WriteError::Entry { error, .. } => not_now(0, error),
        })?;
        self.repairs.closed(*partition);
        Ok(())
    }

    async fn decision(&self, place: &Place, start: u64, deadline: Instant) -> Result<Finding, WriteError> {
        let (topic, partition) = place;
        let at = (topic.name(), partition.index);
        if self.repairs.has_committed(*partition, start) {
            let partitions = vec![(topic.name().to_owned(), partition.index)];
            return Ok(Finding::Finished(Decision { outcome: TransactionOutcome::Committed, partitions }));
        }
        let FencedProducer { context, .. } = self;
        let found =
            coordinator::look_up(&context.queries, &context.fetcher, &context.transactional_id, at, start, deadline);
        found
            .await
            .map_err(|error| not_now(0, format!("cannot read the decision about a hanging transaction: {error}")))
    }

    /// Ends an empty transaction in the partitions.
    async fn close(
        &mut self,
        outcome: TransactionOutcome,
        places: &[Place],
        deadline: Instant,
    ) -> Result<(), WriteError> {
        if places.is_empty() {
            return Ok(());
        }
        self.settle(deadline).await?;
        self.add_partitions(places, outcome, deadline).await?;
        // The coordinator has finished every earlier transaction now: what is still open hangs.
        let hanging = self.open_transactions(places, deadline).await?;
        self.end_open().await?;
        for (topic, partition) in places {
            if let Some(at) = hanging.get(partition) {
                self.report_closed(topic.name(), *partition, *at, outcome);
            }
            self.repairs.closed(*partition);
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
    fn only_a_transaction_that_began_before_the_last_commit_is_a_committed_one() {
        let partition = PartitionId::new(TopicNumber(1), 0);
        let mut repairs = Repairs::default();
        assert!(!repairs.has_committed(partition, 0), "a predecessor's transaction");
        repairs.last.insert(partition, Last::Committed(9));
        assert!(repairs.has_committed(partition, 9) && !repairs.has_committed(partition, 10));
        repairs.closed(partition);
        assert!(!repairs.has_committed(partition, 9) && !repairs.is_committed(partition));
    }
}
