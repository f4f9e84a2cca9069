//! Ending what Kafka has left open. A coordinator of Kafka 4.3 that meets a partition without a leader takes it for deleted: it calls
//! the transaction finished without having written its end there (KAFKA-20734). The partition then stands still for readers, for good.
//!
//! An end that the same producer writes later ends what it left open before, so whoever holds the fence can do it: with a transaction
//! of one record that readers pass over, committed where the coordinator has committed, aborted where it has aborted. **The
//! coordinator's word is what counts**: to abort what was committed would lose it, to commit what was aborted would show it.
//!
//! For the same reason a fence begins nothing in a partition while it is not certain that its last transaction there has its end.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::producer::Producer as _;
use whimbrel_model::ports::{CommitOutcome, Entry, LogError};
use whimbrel_model::{Clock as _, Event, Headers, PartitionId, Record, SystemClock};

use super::commit::FencedProducer;
use super::coordinator::{self, Decision, Finding, Verdict};

/// What a record that only carries an end has as its key and as the name of a header. The key lets a compacted topic take it.
const END_MARK: &str = "whimbrel-transaction-end";
/// How long a commit is remembered as one that may have no end yet, while no connection is lost.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// How long looking for a decision and ending one transaction may take.
const MENDING_MAX: Duration = Duration::from_secs(10);
/// How long a partition beside the one that hangs must stand still to be taken for one that hangs too.
const STANDS_STILL: Duration = Duration::from_secs(1);

/// Whether it is a record that only carries an end, and nobody's message.
pub(super) fn is_only_an_end(record: &Record) -> bool {
    record.value.is_empty()
        && record.key.as_deref() == Some(END_MARK.as_bytes())
        && record.headers.get(END_MARK).is_some()
}

fn only_an_end(partition: PartitionId) -> Entry {
    let mut headers = Headers::builder();
    headers.push(END_MARK, b"");
    let (key, value) = (Some(END_MARK.as_bytes().into()), Default::default());
    Entry { partition, record: Record { key, value, headers: headers.take(), timestamp: SystemClock.now() } }
}

/// What a fence remembers of its own transactions and of what it has tried to mend.
#[derive(Default)]
pub(super) struct Ends {
    /// The last offset that was committed to a partition, and when.
    recent: HashMap<PartitionId, (u64, Instant)>,
    /// Commits that may have no end: a connection was lost since.
    doubtful: HashMap<PartitionId, u64>,
    /// Places that this fence has nothing to do with, or has mended.
    tried: HashSet<(PartitionId, u64)>,
}

impl Ends {
    pub fn committed(&mut self, partitions: &[PartitionId], offsets: &[u64], now: Instant) {
        for (partition, offset) in partitions.iter().zip(offsets) {
            self.recent.insert(*partition, (*offset, now));
        }
    }

    /// Doubts everything of late where a connection was lost, and otherwise forgets what is older.
    pub fn look(&mut self, lost_a_connection: bool, now: Instant) {
        self.recent.retain(|_, (_, at)| now.saturating_duration_since(*at) < ENDS_WITHIN);
        if lost_a_connection {
            self.doubtful.extend(self.recent.drain().map(|(partition, (offset, _))| (partition, offset)));
        }
    }

    fn certain(&mut self, partition: PartitionId) {
        self.doubtful.remove(&partition);
    }
}

impl FencedProducer {
    /// Looks whether the fence's commits have their ends and mends what hangs. An error says why nothing can be begun now; a fence
    /// that was lost at it says so.
    pub(super) fn mend(&self, ends: &mut Ends) -> Result<(), CommitOutcome> {
        let asked = self.ask_for_doubtful(ends);
        let overdue = self.hanging.overdue();
        if overdue.is_empty() {
            ends.tried.clear();
        }
        for (partition, at) in overdue {
            if ends.tried.contains(&(partition, at)) {
                continue;
            }
            match self.mend_one(partition, at) {
                Ok(Some(mended)) => {
                    mended.into_iter().chain([partition]).for_each(|each| ends.certain(each));
                    ends.tried.insert((partition, at));
                }
                // The coordinator is not done with it.
                Ok(None) => {}
                Err(Failed::Passing(error)) => {
                    tracing::warn!(%partition, at, %error, "what hangs there cannot be looked into yet");
                }
                Err(Failed::Fence(outcome)) => return Err(outcome),
            }
        }
        asked.map_err(CommitOutcome::NotNow)?;
        if ends.doubtful.is_empty() {
            return Ok(());
        }
        let why = "Kafka has not finished an earlier commit".to_owned();
        Err(CommitOutcome::NotNow(LogError::Unavailable(why)))
    }

    fn ask_for_doubtful(&self, ends: &mut Ends) -> Result<(), LogError> {
        let doubtful: Vec<(PartitionId, u64)> = ends.doubtful.iter().map(|(each, offset)| (*each, *offset)).collect();
        for (partition, offset) in doubtful {
            let Some(topic) = self.known.get(partition.topic) else {
                ends.certain(partition);
                continue;
            };
            let (visible, written) = self
                .queries
                .ends_now(&topic.name, partition.index)
                .map_err(|error| super::outcome::question_error(&error, partition))?;
            self.hanging.found(partition, visible, written, Instant::now());
            if visible > offset {
                ends.certain(partition);
            }
        }
        Ok(())
    }

    /// Ends what hangs in the partition at `at`, and in the others of the same transaction, where it is this fence's. Answers with the
    /// partitions that were ended, or with nothing where it is too early to say.
    fn mend_one(&self, partition: PartitionId, at: u64) -> Result<Option<Vec<PartitionId>>, Failed> {
        let Some(topic) = self.known.get(partition.topic) else { return Ok(Some(Vec::new())) };
        let deadline = Instant::now() + MENDING_MAX;
        let place = (topic.name.as_str(), partition.index);
        let decision = match coordinator::look_up(&self.coordinator, &self.transactional_id, place, at, deadline)? {
            Finding::Nothing => return Ok(Some(Vec::new())),
            Finding::UnderWay => return Ok(None),
            Finding::Finished(decision) => decision,
        };
        let _turn = self.hanging.one_at_a_time();
        let standing = self.standing(&decision)?;
        if !standing.contains(&partition) {
            return Ok(Some(Vec::new()));
        }
        tracing::warn!(%partition, at, verdict = ?decision.verdict, "Kafka has left a transaction open; it is ended");
        self.end_as(decision.verdict, &standing, Instant::now() + MENDING_MAX).map_err(Failed::Fence)?;
        for each in &standing {
            self.tell(*each, at, decision.verdict);
        }
        Ok(Some(standing))
    }

    /// The partitions of a transaction that stand still.
    fn standing(&self, decision: &Decision) -> Result<Vec<PartitionId>, KafkaError> {
        let mut behind = Vec::new();
        for (name, index) in &decision.partitions {
            if let Some(topic) = self.known.by_name(name) {
                let (visible, written) = self.queries.ends_now(name, *index)?;
                if visible < written {
                    behind.push((PartitionId::new(topic.number, *index), name, visible));
                }
            }
        }
        std::thread::sleep(STANDS_STILL);
        let mut standing = Vec::new();
        for (partition, name, before) in behind {
            let (visible, written) = self.queries.ends_now(name, partition.index)?;
            if visible == before && visible < written {
                standing.push(partition);
            }
        }
        Ok(standing)
    }

    fn end_as(&self, verdict: Verdict, partitions: &[PartitionId], deadline: Instant) -> Result<(), CommitOutcome> {
        let entries: Vec<Entry> = partitions.iter().map(|partition| only_an_end(*partition)).collect();
        let topics: Vec<_> = partitions.iter().filter_map(|partition| self.known.get(partition.topic)).collect();
        if topics.len() < entries.len() {
            // One was deleted a moment ago.
            return Ok(());
        }
        self.producer.begin_transaction().map_err(|error| self.lost(&error))?;
        let delivered = self.deliver(&topics, &entries, deadline);
        let ended = match (verdict, delivered) {
            (Verdict::Committed, Ok(offsets)) => match self.end(offsets, deadline) {
                CommitOutcome::Done(_) => Ok(()),
                outcome => Err(outcome),
            },
            (Verdict::Aborted, _) => self.abort_transaction().map_err(|error| self.lost(&error)),
            // It is not aborted here, which would void what was committed. Kafka does so when the time is over, unless the next fence
            // comes first, and nobody else can end it any more.
            (Verdict::Committed, Err(_)) => Err(CommitOutcome::Unknown("a hanging commit was not ended".to_owned())),
        };
        if let Err(outcome) = &ended {
            tracing::warn!(?outcome, "a transaction that Kafka has left open could not be ended");
        }
        ended
    }

    fn tell(&self, partition: PartitionId, at: u64, verdict: Verdict) {
        let Some(topic) = self.known.get(partition.topic) else { return };
        let (name, index) = (&topic.name, partition.index);
        let as_what = match verdict {
            Verdict::Committed => "committed",
            Verdict::Aborted => "aborted",
        };
        let detail = format!(
            "partition {index} of `{name}` stood still behind a transaction that Kafka had {as_what} and not ended; it was ended so"
        );
        let event = Event::warning("hanging_transaction_ended", detail);
        (self.events)(event.with("topic", name).with("partition", index).with("offset", at).with("as", as_what));
    }
}

/// Why something was not mended.
enum Failed {
    Passing(KafkaError),
    /// The fence is void.
    Fence(CommitOutcome),
}

impl From<KafkaError> for Failed {
    fn from(error: KafkaError) -> Self {
        Self::Passing(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::TopicNumber;

    #[test]
    fn a_record_that_only_carries_an_end_is_known_and_a_message_is_not_taken_for_one() {
        let partition = PartitionId::new(TopicNumber(1), 0);
        let end = only_an_end(partition).record;
        assert!(is_only_an_end(&end));
        assert!(!is_only_an_end(&Record { headers: Headers::EMPTY, ..end.clone() }));
        assert!(!is_only_an_end(&Record { key: None, ..end.clone() }));
        assert!(!is_only_an_end(&Record { value: "x".into(), ..end }));
    }

    #[test]
    fn a_commit_is_doubted_when_a_connection_is_lost_soon_after_it() {
        let (partition, now) = (PartitionId::new(TopicNumber(1), 0), Instant::now());
        let mut ends = Ends::default();
        ends.committed(&[partition, partition], &[4, 5], now);
        ends.look(false, now);
        assert!(ends.doubtful.is_empty());
        ends.look(true, now);
        assert_eq!(ends.doubtful.get(&partition), Some(&5));

        let mut ends = Ends::default();
        ends.committed(&[partition], &[4], now);
        ends.look(true, now + ENDS_WITHIN);
        assert!(ends.doubtful.is_empty());
    }
}
