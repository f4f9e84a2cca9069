//! Ending what Kafka has left open. A coordinator of Kafka 4.3 that meets a partition without a leader takes it for deleted: it calls
//! the transaction finished without having written its end there (KAFKA-20734). The partition then stands still for readers, for good.
//!
//! An end that the same producer writes later ends what it left open before, so whoever holds the fence can do it: with a transaction
//! of one record that readers pass over, committed where the coordinator has committed, aborted where it has aborted. **The
//! coordinator's word is what counts**: to abort what was committed would lose it, to commit what was aborted would show it.
//!
//! For the same reason a fence begins nothing in a partition while it is not certain that its last transaction there has its end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use whimbrel_model::ports::{CommitOutcome, Entry, LogError};
use whimbrel_model::{Clock as _, Event, Headers, PartitionId, Record, SystemClock};

use super::coordinator::{self, Decision, Finding, Verdict};
use super::fence::{FencedProducer, WriteError};
use super::fetch::FetchError;

/// What a record that only carries an end has as its key and as the name of a header. The key lets a compacted topic take it.
const END_MARK: &str = "whimbrel-transaction-end";
/// How long a commit is remembered as one that may have no end yet, while no connection is lost.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// How long a fence that was opened or has lost a connection suspects partitions that stand still soon.
const SUSPECTS_FOR: Duration = Duration::from_secs(60);
/// How long a partition must stand still before such a fence reads what the coordinator has decided.
const SUSPECTS_AFTER: Duration = Duration::from_secs(1);
/// How long a place that this fence could do nothing about is left alone.
const EXAMINES_AGAIN_AFTER: Duration = Duration::from_secs(5);
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
pub(super) struct Ends {
    /// The last offset that was committed to a partition, and when.
    recent: HashMap<PartitionId, (u64, Instant)>,
    /// Commits that may have no end: a connection was lost since.
    doubtful: HashMap<PartitionId, u64>,
    /// Places that this fence has nothing to do with or has mended, and when that was found.
    examined: HashMap<(PartitionId, u64), Instant>,
    suspects_until: Instant,
}

impl Ends {
    /// The memory of a fence that is opened now: its predecessor may have lost a connection.
    pub fn new(now: Instant) -> Self {
        Self {
            recent: HashMap::new(),
            doubtful: HashMap::new(),
            examined: HashMap::new(),
            suspects_until: now + SUSPECTS_FOR,
        }
    }

    /// Whether a connection was lost of late, or the fence is new.
    pub fn suspects(&self, now: Instant) -> bool {
        now < self.suspects_until
    }

    pub fn committed(&mut self, partitions: &[PartitionId], offsets: &[u64], now: Instant) {
        for (partition, offset) in partitions.iter().zip(offsets) {
            self.recent.insert(*partition, (*offset, now));
        }
    }

    /// Doubts everything of late where a connection was lost, and otherwise forgets what is older.
    pub fn look(&mut self, lost_a_connection: bool, now: Instant) {
        self.recent.retain(|_, (_, at)| now.saturating_duration_since(*at) < ENDS_WITHIN);
        if lost_a_connection {
            self.suspects_until = now + SUSPECTS_FOR;
            self.doubtful.extend(self.recent.drain().map(|(partition, (offset, _))| (partition, offset)));
        }
    }

    fn certain(&mut self, partition: PartitionId) {
        self.doubtful.remove(&partition);
    }
}

impl FencedProducer {
    /// Checks whether the fence's commits have their ends and ends transactions that hang. An error says why nothing can be begun now;
    /// a fence that was lost on the way says so.
    pub(super) async fn mend(&mut self, ends: &mut Ends) -> Result<(), CommitOutcome> {
        let asked = self.ask_for_doubtful(ends).await;
        // The coordinator finishes a transaction after it has written its ends, so a finished one whose end is missing hangs for good.
        let patience = if ends.suspects(Instant::now()) { SUSPECTS_AFTER } else { self.context.timeout };
        let overdue = self.context.hanging.overdue(patience);
        ends.examined.retain(|place, at| at.elapsed() < EXAMINES_AGAIN_AFTER && overdue.contains(place));
        for (partition, at) in overdue {
            if ends.examined.contains_key(&(partition, at)) {
                continue;
            }
            match self.mend_one(partition, at).await {
                Ok(Some(mended)) => {
                    tracing::debug!(id = self.context.transactional_id, %partition, at, ?mended, "a partition that stands still was examined");
                    mended.into_iter().for_each(|each| ends.certain(each));
                    ends.examined.insert((partition, at), Instant::now());
                }
                // The coordinator is not done with it.
                Ok(None) => {
                    tracing::debug!(id = self.context.transactional_id, %partition, at, "the coordinator is not done with a transaction");
                }
                Err(Failed::Passing(error)) => {
                    tracing::warn!(%partition, at, %error, "a hanging transaction cannot be examined yet");
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

    async fn ask_for_doubtful(&self, ends: &mut Ends) -> Result<(), LogError> {
        let doubtful: Vec<(PartitionId, u64)> = ends.doubtful.iter().map(|(each, offset)| (*each, *offset)).collect();
        for (partition, offset) in doubtful {
            let Some(topic) = self.context.known.get(partition.topic) else {
                ends.certain(partition);
                continue;
            };
            let asked = self.context.queries.ends_now(topic.name(), partition.index).await;
            let (visible, written) = match asked {
                Ok(asked) => asked,
                Err(error) => {
                    self.context.cluster.refresh(topic.name()).await;
                    return Err(super::outcome::question_error(&error, partition));
                }
            };
            self.context.hanging.found(partition, visible, written, Instant::now());
            if visible > offset {
                ends.certain(partition);
            }
        }
        Ok(())
    }

    /// Ends what hangs in the partition at `at`, and in the others of the same transaction, where it is this fence's. Answers with the
    /// partitions that were ended, or with nothing where it is too early to say.
    async fn mend_one(&mut self, partition: PartitionId, at: u64) -> Result<Option<Vec<PartitionId>>, Failed> {
        let context = self.context.clone();
        let Some(topic) = context.known.get(partition.topic) else { return Ok(Some(Vec::new())) };
        let deadline = Instant::now() + MENDING_MAX;
        let place = (topic.name(), partition.index);
        let looked_up =
            coordinator::look_up(&context.queries, &context.fetcher, &context.transactional_id, place, at, deadline);
        let decision = match looked_up.await? {
            Finding::Nothing => return Ok(Some(Vec::new())),
            Finding::UnderWay => return Ok(None),
            Finding::Finished(decision) => decision,
        };
        let _turn = context.hanging.one_at_a_time().await;
        let standing = self.standing(&decision).await?;
        if !standing.contains(&partition) {
            return Ok(Some(Vec::new()));
        }
        tracing::warn!(%partition, at, verdict = ?decision.verdict, "Kafka has left a transaction open; the fence ends it");
        self.end_hanging(decision.verdict, &standing, Instant::now() + MENDING_MAX).await.map_err(Failed::Fence)?;
        for each in &standing {
            self.tell(*each, at, decision.verdict);
        }
        Ok(Some(standing))
    }

    /// The partitions of a transaction that stand still.
    async fn standing(&self, decision: &Decision) -> Result<Vec<PartitionId>, FetchError> {
        let (known, queries) = (&self.context.known, &self.context.queries);
        let mut behind = Vec::new();
        for (name, index) in &decision.partitions {
            if let Some(topic) = known.by_name(name) {
                let (visible, written) = queries.ends_now(name, *index).await?;
                if visible < written {
                    behind.push((PartitionId::new(topic.number, *index), name, visible));
                }
            }
        }
        tokio::time::sleep(STANDS_STILL).await;
        let mut standing = Vec::new();
        for (partition, name, before) in behind {
            let (visible, written) = queries.ends_now(name, partition.index).await?;
            if visible == before && visible < written {
                standing.push(partition);
            }
        }
        Ok(standing)
    }

    async fn end_hanging(
        &mut self,
        verdict: Verdict,
        partitions: &[PartitionId],
        deadline: Instant,
    ) -> Result<(), CommitOutcome> {
        let entries: Vec<Entry> = partitions.iter().map(|partition| only_an_end(*partition)).collect();
        let topics = partitions.iter().filter_map(|partition| self.context.known.get(partition.topic));
        let topics: Vec<_> = topics.collect();
        if topics.len() < entries.len() {
            // One was deleted a moment ago.
            return Ok(());
        }
        let written = self.begin_and_write(&topics, &entries, deadline).await;
        let ended = match (verdict, written) {
            (_, Err(WriteError::Fenced)) => Err(CommitOutcome::Fenced),
            (Verdict::Committed, Ok(offsets)) => match self.end(offsets, deadline).await {
                CommitOutcome::Done(_) => Ok(()),
                outcome => Err(outcome),
            },
            (Verdict::Aborted, _) => self.abort().await,
            // It is not aborted here, which would void what was committed. Kafka does so when the time is over, unless the next fence
            // comes first; no other client can end it any more.
            (Verdict::Committed, Err(_)) => Err(CommitOutcome::Unknown("a hanging commit was not ended".to_owned())),
        };
        if let Err(outcome) = &ended {
            tracing::warn!(?outcome, "a transaction that Kafka has left open could not be ended");
        }
        ended
    }

    fn tell(&self, partition: PartitionId, at: u64, verdict: Verdict) {
        let Some(topic) = self.context.known.get(partition.topic) else { return };
        let (name, index) = (topic.name(), partition.index);
        let as_what = match verdict {
            Verdict::Committed => "committed",
            Verdict::Aborted => "aborted",
        };
        let detail = format!(
            "partition {index} of `{name}` stood still behind a transaction that Kafka had {as_what} and not ended; it was ended so"
        );
        let event = Event::warning("hanging_transaction_ended", detail);
        (self.context.events)(
            event.with("topic", name).with("partition", index).with("offset", at).with("as", as_what),
        );
    }
}

/// Why a transaction was not ended.
enum Failed {
    Passing(FetchError),
    /// The fence is void.
    Fence(CommitOutcome),
}

impl From<FetchError> for Failed {
    fn from(error: FetchError) -> Self {
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
        let mut ends = Ends::new(now);
        ends.committed(&[partition, partition], &[4, 5], now);
        ends.look(false, now);
        assert!(ends.doubtful.is_empty());
        ends.look(true, now);
        assert_eq!(ends.doubtful.get(&partition), Some(&5));

        let mut ends = Ends::new(now);
        ends.committed(&[partition], &[4], now);
        ends.look(true, now + ENDS_WITHIN);
        assert!(ends.doubtful.is_empty());
    }
}
