//! Reading: from memory if the records are there, else from the partition's leader. At the end of a partition readers wait at its tail. An
//! empty batch is returned only after the leader has reported that there are no records.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kafka_protocol::ResponseError as Code;
use whimbrel_model::ports::{LogError, ReadBatch, ReadLimits};
use whimbrel_model::{PartitionId, StoredRecord, TopicNumber};

use super::fetch::{FetchError, FetchPage, FetchQuery, Fetcher};
use super::known_topics::{KnownTopic, KnownTopics};
use super::marker_record;
use super::queries::{Attempt, LogEnd, Queries};
use super::stalled_partitions::StalledPartitions;
use super::tail::PartitionTails;
use super::window::RecordWindow;

/// The bytes that one fetch requests: the reader's limit, within these bounds. The rest of the last batch is kept for the next read.
const FETCH_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=2 << 20;
/// The interval at which a reader beyond the visible end of a partition looks for records.
const BEYOND_END_PAUSE: Duration = Duration::from_millis(50);
/// Fetched records that wait for the next read of their reader: pieces, and bytes of the answers that they are parts of, of all readers
/// together.
const AHEAD_PIECES_MAX: usize = 64;
const AHEAD_BYTES_MAX: usize = 64 << 20;

pub(super) struct PartitionReader {
    pub known: Arc<KnownTopics>,
    pub queries: Arc<Queries>,
    pub fetcher: Arc<Fetcher>,
    pub tails: Arc<PartitionTails>,
    pub hanging: Arc<StalledPartitions>,
    pub request_timeout: Duration,
    pub ahead: ReadAhead,
}

impl PartitionReader {
    pub async fn read(&self, partition: PartitionId, from: u64, limits: ReadLimits) -> Result<ReadBatch, LogError> {
        let wait_until = Instant::now() + limits.wait;
        loop {
            // Looked up in each round: if the topic was deleted meanwhile, another topic may have its name by now, and must not be
            // read in its place.
            let topic = self.known.of(partition)?;
            if let Some(batch) = self.ahead.read(partition, from, &limits) {
                return Ok(batch);
            }
            if let Some(tail) = self.tails.get(partition) {
                let mut arrived = std::pin::pin!(tail.arrived());
                arrived.as_mut().enable();
                match tail.read(&self.tails, from, &limits) {
                    // Also if only markers were skipped: a reader that waits for that offset has reached it.
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
                // The answer is older than a trim by this process.
                return Err(LogError::Trimmed { asked: from, first });
            }
            if fetched.next > from {
                return Ok(self.ahead.take(partition, from, fetched, &limits));
            }
            self.hanging.observe(topic.name(), partition, fetched.visible_end, fetched.written_end);
            if Instant::now() >= wait_until {
                return Ok(ReadBatch { records: Vec::new(), next: from });
            }
            if from > fetched.visible_end {
                // A transaction is open before `from`. The tail is for readers at the visible end.
                tokio::time::sleep(BEYOND_END_PAUSE.min(wait_until.saturating_duration_since(Instant::now()))).await;
                continue;
            }
            self.tails.follow(&topic, partition, from);
        }
    }

    /// Fetches the records that the partition has now from its leader.
    async fn fetch(
        &self,
        topic: &Arc<KnownTopic>,
        partition: PartitionId,
        from: u64,
        limits: &ReadLimits,
    ) -> Result<FetchPage, LogError> {
        let query = FetchQuery {
            topic: topic.wire_name(),
            index: partition.index,
            from,
            bytes_max: limits.max_bytes.clamp(*FETCH_BYTES.start(), *FETCH_BYTES.end()),
        };
        let began = Instant::now();
        loop {
            let attempt = |left| -> Attempt<'_, Result<FetchPage, FetchError>> {
                let fetch = self.fetcher.fetch(&query, LogEnd::Visible, left);
                Box::pin(async move {
                    match fetch.await {
                        Err(FetchError::Kafka(error)) if error.code() != Some(Code::OffsetOutOfRange) => Err(error),
                        answer => Ok(answer),
                    }
                })
            };
            let error = match self.queries.ask(topic, partition, attempt).await? {
                Ok(mut fetched) => {
                    fetched.records.retain(|stored| !marker_record::is_marker_record(&stored.record));
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
            let bounds = self.queries.bounds(topic, partition, LogEnd::Written).await?;
            if from < bounds.first {
                return Err(LogError::Trimmed { asked: from, first: bounds.first });
            }
            if from > bounds.next {
                return Err(LogError::BeyondEnd { asked: from, next: bounds.next });
            }
            // A leader that was elected a moment ago may lack the high watermark of its log.
            if began.elapsed() >= self.request_timeout {
                return Err(super::outcome::unavailable(&error));
            }
            tokio::time::sleep(super::queries::PAUSE_BEFORE_ASKING_AGAIN).await;
        }
    }

    /// Removes the records before `first`, which the log has dropped.
    pub fn forget_before(&self, partition: PartitionId, first: u64) {
        self.ahead.forget(|each, window| each == partition && window.start() < first);
        self.tails.forget_before(partition, first);
    }

    /// Removes a topic that no longer exists.
    pub fn retire_topic(&self, topic: TopicNumber) {
        self.ahead.forget(|each, _| each.topic == topic);
        self.tails.retire_topic(topic);
    }
}

/// Records that were fetched together with others and not read yet.
#[derive(Default)]
pub(super) struct ReadAhead(Mutex<VecDeque<ReadAheadPiece>>);

struct ReadAheadPiece {
    partition: PartitionId,
    window: RecordWindow,
    /// The memory of the whole answer: its records share its bytes, so the last one of them keeps all.
    answer_bytes: usize,
}

impl ReadAhead {
    fn read(&self, partition: PartitionId, from: u64, limits: &ReadLimits) -> Option<ReadBatch> {
        let mut pieces = self.pieces();
        let at = pieces.iter().position(|piece| {
            piece.partition == partition && piece.window.covers(from) && from < piece.window.next()
        })?;
        let mut piece = pieces.remove(at)?;
        let batch = piece.window.read(from, limits).ok()?;
        if batch.next < piece.window.next() {
            pieces.push_back(piece);
        }
        Some(batch)
    }

    /// Returns the fetched records that the limits allow, and keeps the rest.
    fn take(&self, partition: PartitionId, from: u64, fetched: FetchPage, limits: &ReadLimits) -> ReadBatch {
        let FetchPage { mut records, next, bytes: answer_bytes, .. } = fetched;
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
        let mut window = RecordWindow::at(resume_at);
        rest.into_iter().for_each(|stored| window.push(stored));
        window.pass_to(next);
        let mut pieces = self.pieces();
        pieces.push_back(ReadAheadPiece { partition, window, answer_bytes });
        let mut kept: usize = pieces.iter().map(|piece| piece.answer_bytes).sum();
        // The newest piece stays, whatever its size: otherwise it would be fetched and decompressed again for every few of its records.
        while pieces.len() > AHEAD_PIECES_MAX || (kept > AHEAD_BYTES_MAX && pieces.len() > 1) {
            let Some(oldest) = pieces.pop_front() else { break };
            kept -= oldest.answer_bytes;
        }
        ReadBatch { records, next: resume_at }
    }

    fn forget(&self, is_over: impl Fn(PartitionId, &RecordWindow) -> bool) {
        self.pieces().retain(|piece| !is_over(piece.partition, &piece.window));
    }

    fn pieces(&self) -> MutexGuard<'_, VecDeque<ReadAheadPiece>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
