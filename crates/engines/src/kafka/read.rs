//! Reading: from memory where the records are there, else from the partition's leader; at the end of a partition readers wait at its
//! tail. A read never answers that nothing is there without having asked the leader.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kafka_protocol::ResponseError as Code;
use whimbrel_model::ports::{LogError, ReadBatch, ReadLimits};
use whimbrel_model::{PartitionId, StoredRecord, TopicNumber};

use super::fetch::{FetchError, FetchQuery, Fetched, Fetcher};
use super::hanging::Hanging;
use super::known::{KnownTopic, KnownTopics};
use super::mend;
use super::queries::{End, Queries, Question};
use super::tail::Tails;
use super::window::Window;

/// Bytes that one fetch asks for: what the reader wants, within these bounds. The rest of the last batch is kept for the next read.
const FETCH_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=2 << 20;
/// Fetched records that wait for the next read of their reader: pieces and bytes, of all readers together.
const AHEAD_PIECES_MAX: usize = 64;
const AHEAD_BYTES_MAX: usize = 64 << 20;

pub(super) struct Reader {
    pub known: Arc<KnownTopics>,
    pub queries: Arc<Queries>,
    pub fetcher: Arc<Fetcher>,
    pub tails: Arc<Tails>,
    pub hanging: Arc<Hanging>,
    pub request_timeout: Duration,
    pub ahead: ReadAhead,
}

impl Reader {
    pub async fn read(&self, partition: PartitionId, from: u64, limits: ReadLimits) -> Result<ReadBatch, LogError> {
        let wait_until = Instant::now() + limits.wait;
        loop {
            // Asked for each time: a topic that was deleted meanwhile must not be read on under its name, which may be another
            // topic's by now.
            let topic = self.known.of(partition)?;
            if let Some(batch) = self.ahead.read(partition, from, &limits) {
                return Ok(batch);
            }
            if let Some(tail) = self.tails.get(partition) {
                let mut arrived = std::pin::pin!(tail.arrived());
                arrived.as_mut().enable();
                match tail.read(&self.tails, from, &limits) {
                    // Also where nothing but markers was passed: a reader that waits for the end has waited for that.
                    Some(batch) if !batch.records.is_empty() || batch.next > from => return Ok(batch),
                    Some(_)
                        if Instant::now() < wait_until
                            && tokio::time::timeout_at(wait_until.into(), arrived).await.is_ok() =>
                    {
                        continue;
                    }
                    _ => {}
                }
            }
            let fetched = self.fetch(&topic, partition, from, &limits).await?;
            if let Some(first) = topic.trimmed(partition.index).filter(|first| from < *first) {
                // The answer is from before a trim of this process.
                return Err(LogError::Trimmed { asked: from, first });
            }
            if fetched.next > from {
                return Ok(self.ahead.take(partition, from, fetched, &limits));
            }
            if Instant::now() >= wait_until {
                let visible_end = fetched.visible_end.max(from);
                self.hanging.observe(topic.name(), partition, visible_end, fetched.written_end);
                return Ok(ReadBatch { records: Vec::new(), next: from });
            }
            self.tails.follow(&topic, partition, from);
        }
    }

    /// Fetches what is there now from the partition's leader.
    async fn fetch(
        &self,
        topic: &Arc<KnownTopic>,
        partition: PartitionId,
        from: u64,
        limits: &ReadLimits,
    ) -> Result<Fetched, LogError> {
        let query = FetchQuery {
            topic: topic.wire_name(),
            index: partition.index,
            from,
            bytes_max: limits.max_bytes.clamp(*FETCH_BYTES.start(), *FETCH_BYTES.end()),
        };
        let began = Instant::now();
        loop {
            let question = |left| -> Question<'_, Result<Fetched, FetchError>> {
                let fetch = self.fetcher.fetch(&query, End::Visible, left);
                Box::pin(async move {
                    match fetch.await {
                        Err(FetchError::Kafka(error)) if error.code() != Some(Code::OffsetOutOfRange) => Err(error),
                        answer => Ok(answer),
                    }
                })
            };
            let error = match self.queries.ask(topic, partition, question).await? {
                Ok(mut fetched) => {
                    fetched.records.retain(|stored| !mend::is_only_an_end(&stored.record));
                    return Ok(fetched);
                }
                Err(FetchError::Damaged(damage)) => {
                    return Err(LogError::Damaged {
                        what: damage.what,
                        file: format!("{}-{}", topic.name(), partition.index),
                        position: damage.offset,
                        resume_at: damage.resume_at,
                    });
                }
                Err(FetchError::Kafka(error)) => error,
            };
            let bounds = self.queries.bounds(topic, partition, End::Written).await?;
            if from < bounds.first {
                return Err(LogError::Trimmed { asked: from, first: bounds.first });
            }
            if from > bounds.next {
                return Err(LogError::BeyondEnd { asked: from, next: bounds.next });
            }
            // A leader that was elected a moment ago may not know yet how far its log is committed.
            if began.elapsed() >= self.request_timeout {
                return Err(super::outcome::unavailable(&error));
            }
            tokio::time::sleep(super::queries::PAUSE_BEFORE_ASKING_AGAIN).await;
        }
    }

    /// The log has dropped what lies before `first`.
    pub fn forget_before(&self, partition: PartitionId, first: u64) {
        self.ahead.forget(|each, window| each == partition && window.start() < first);
        self.tails.forget_before(partition, first);
    }

    /// The topic is gone.
    pub fn retire_topic(&self, topic: TopicNumber) {
        self.ahead.forget(|each, _| each.topic == topic);
        self.tails.retire_topic(topic);
    }
}

/// Records that were fetched with others and not read yet.
#[derive(Default)]
pub(super) struct ReadAhead(Mutex<VecDeque<(PartitionId, Window)>>);

impl ReadAhead {
    fn read(&self, partition: PartitionId, from: u64, limits: &ReadLimits) -> Option<ReadBatch> {
        let mut pieces = self.pieces();
        let at = pieces
            .iter()
            .position(|(each, window)| *each == partition && window.covers(from) && from < window.next())?;
        let (_, mut window) = pieces.remove(at)?;
        let batch = window.read(from, limits).ok()?;
        if batch.next < window.next() {
            pieces.push_back((partition, window));
        }
        Some(batch)
    }

    /// The part of what was fetched that the limits allow; the rest is kept.
    fn take(&self, partition: PartitionId, from: u64, fetched: Fetched, limits: &ReadLimits) -> ReadBatch {
        let Fetched { mut records, next, .. } = fetched;
        let mut bytes = 0;
        let within = |stored: &&StoredRecord| {
            bytes += stored.record.size();
            bytes <= limits.max_bytes
        };
        let count = records.iter().take(limits.max_records.max(1)).take_while(within).count().max(1);
        if count >= records.len() {
            return ReadBatch { records, next };
        }
        let rest = records.split_off(count);
        let resume_at = records.last().map_or(from, |last| last.offset + 1);
        let mut window = Window::at(resume_at);
        rest.into_iter().for_each(|stored| window.push(stored));
        window.pass_to(next);
        let mut pieces = self.pieces();
        pieces.push_back((partition, window));
        let mut kept: usize = pieces.iter().map(|(_, window)| window.bytes()).sum();
        while pieces.len() > AHEAD_PIECES_MAX || kept > AHEAD_BYTES_MAX {
            let Some((_, oldest)) = pieces.pop_front() else { break };
            kept -= oldest.bytes();
        }
        ReadBatch { records, next: resume_at }
    }

    fn forget(&self, is_over: impl Fn(PartitionId, &Window) -> bool) {
        self.pieces().retain(|(partition, window)| !is_over(*partition, window));
    }

    fn pieces(&self) -> MutexGuard<'_, VecDeque<(PartitionId, Window)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
