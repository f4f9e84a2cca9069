//! Appending: callers put records into the queue of their partition; one task sends them as an idempotent producer.
//!
//! At most one batch of a partition is in flight, so a retry cannot reorder. A batch keeps its producer id, epoch and sequence number until
//! it is answered: the broker recognises a repeat and writes it once. A batch that may have been received and is not acknowledged in time
//! has the outcome `Unknown`, and its partition continues with a new producer id.

mod call;
mod outgoing_batch;
mod partition_sender;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use whimbrel_model::ports::{AppendOutcome, Entry, LogError};
use whimbrel_model::{PartitionId, Record, TopicNumber};

use self::call::AppendCall;
use self::outgoing_batch::RecordChunk;
use self::sender::AppendSender;
use super::client::cluster::KafkaCluster;
use super::known_topics::{KnownTopic, KnownTopics};
use super::queries::Queries;
use super::settings::KafkaSettings;

/// The time beyond `message_timeout` for which a caller waits for the answer to its append.
const ANSWER_GRACE: Duration = Duration::from_secs(5);
/// The delay before a batch is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The minimum time for the answer to a request. A record with less time left is not sent for the first time.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(500);
/// The maximum time from the first deadline of a request's records to the end of the request. It is below `ANSWER_GRACE`: the callers still
/// wait.
const REQUEST_GRACE: Duration = Duration::from_secs(4);
/// The maximum difference between the deadlines of one batch's records. A batch that may have been written is sent again until its last
/// deadline: this is far below `ANSWER_GRACE`.
const DEADLINE_SPREAD_MAX: Duration = Duration::from_secs(1);
/// The time for which a partition may be unknown to its broker before the sender asks the cluster whether it exists.
const UNKNOWN_MAX: Duration = Duration::from_secs(1);

pub(super) struct Appender {
    shared: Arc<AppendShared>,
    answer_timeout: Duration,
}

/// The state that callers and the sending task share.
struct AppendShared {
    settings: KafkaSettings,
    queues: RwLock<HashMap<PartitionId, Arc<PartitionQueue>>>,
    /// Queues with records that the sending task has not picked up yet.
    ready: Mutex<Vec<Arc<PartitionQueue>>>,
    /// Deleted topics whose queues the sending task has not ended yet.
    forgotten: Mutex<Vec<TopicNumber>>,
    wake: Notify,
    /// The number and bytes of records that are not settled.
    records: AtomicUsize,
    bytes: AtomicUsize,
}

impl Appender {
    /// Starts the sending task on the current runtime. The task ends with the runtime.
    pub fn start(settings: &KafkaSettings, cluster: Arc<KafkaCluster>, queries: Arc<Queries>) -> Self {
        let shared = Arc::new(AppendShared {
            settings: settings.clone(),
            queues: RwLock::default(),
            ready: Mutex::default(),
            forgotten: Mutex::default(),
            wake: Notify::new(),
            records: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        });
        let sender = AppendSender::new(shared.clone(), settings, cluster, queries);
        tokio::spawn(sender.run());
        Self { shared, answer_timeout: settings.message_timeout + ANSWER_GRACE }
    }

    /// Appends to topics that are known. One answer per entry.
    pub async fn append(&self, known: &KnownTopics, entries: Vec<Entry>) -> AppendOutcome {
        if entries.is_empty() {
            return Vec::new();
        }
        let (call, answered) = AppendCall::new(entries.len());
        self.enqueue(known, entries, &call);
        match tokio::time::timeout(self.answer_timeout, answered).await {
            Ok(Ok(outcome)) => outcome,
            _ => call.give_up(),
        }
    }

    fn enqueue(&self, known: &KnownTopics, entries: Vec<Entry>, call: &Arc<AppendCall>) {
        let now = Instant::now();
        let mut chunks: Vec<(Arc<KnownTopic>, PartitionId, RecordChunk)> = Vec::new();
        let mut is_full = false;
        for (index, Entry { partition, record }) in entries.into_iter().enumerate() {
            let at = match chunks.last() {
                Some((_, last, _)) if *last == partition => chunks.len() - 1,
                _ => match chunks.iter().position(|(_, each, _)| *each == partition) {
                    Some(at) => at,
                    None => match known.of(partition) {
                        Ok(topic) => {
                            let deadline = now + self.shared.settings.message_timeout;
                            chunks.push((topic, partition, RecordChunk::new(call.clone(), now, deadline)));
                            chunks.len() - 1
                        }
                        Err(error) => {
                            call.settle(&[index as u32], Err(error));
                            continue;
                        }
                    },
                },
            };
            let (topic, _, chunk) = &mut chunks[at];
            // After a record that does not fit, the rest of the call is rejected too, so that no record overtakes it.
            let checked = check_record(&record, topic.record_bytes_max);
            match checked
                .and_then(|()| if is_full { Err(full(&self.shared.settings)) } else { self.shared.reserve(&record) })
            {
                Ok(()) => chunk.push(index as u32, record),
                Err(error) => {
                    is_full |= matches!(error, LogError::Overloaded(_));
                    call.settle(&[index as u32], Err(error));
                }
            }
        }
        for (topic, partition, chunk) in chunks {
            if !chunk.records.is_empty() {
                self.shared.put(topic, partition, chunk);
            }
        }
    }

    /// Waits until all accepted records are settled, for `message_timeout` plus `ANSWER_GRACE` at most.
    pub async fn flush(&self) {
        let deadline = Instant::now() + self.answer_timeout;
        while self.shared.records.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Forgets a topic that no longer exists. Records that wait for it are answered by the sending task.
    pub fn forget(&self, topic: TopicNumber) {
        self.shared.queues.write().unwrap_or_else(PoisonError::into_inner).retain(|id, _| id.topic != topic);
        self.shared.forgotten.lock().unwrap_or_else(PoisonError::into_inner).push(topic);
        self.shared.wake.notify_one();
    }
}

fn full(settings: &KafkaSettings) -> LogError {
    let (records, mib) = (settings.queue_records_max, settings.queue_bytes_max >> 20);
    LogError::Overloaded(format!("the send queue to Kafka is full: the limit is {records} records or {mib} MiB"))
}

/// Validates a record before it is sent.
pub(super) fn check_record(record: &Record, limit: usize) -> Result<(), LogError> {
    let size = record.size();
    if size > limit {
        return Err(LogError::TooLarge { size, limit });
    }
    if record.timestamp.as_millis() <= 0 {
        return Err(LogError::Unsupported(format!(
            "the record's time is {} ms since 1970; Kafka stores times from 1 ms (1970-01-01T00:00:00.001Z) on",
            record.timestamp.as_millis()
        )));
    }
    Ok(())
}

impl AppendShared {
    fn reserve(&self, record: &Record) -> Result<(), LogError> {
        let size = record.size();
        let records = self.records.fetch_add(1, Ordering::AcqRel);
        let bytes = self.bytes.fetch_add(size, Ordering::AcqRel);
        if records >= self.settings.queue_records_max || bytes + size > self.settings.queue_bytes_max {
            self.release(1, size);
            return Err(full(&self.settings));
        }
        Ok(())
    }

    fn release(&self, records: usize, bytes: usize) {
        self.records.fetch_sub(records, Ordering::AcqRel);
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    fn put(&self, topic: Arc<KnownTopic>, partition: PartitionId, chunk: RecordChunk) {
        let queue = self.queue(topic, partition);
        let must_signal = {
            let mut state = queue.state();
            state.bytes += chunk.bytes;
            state.chunks.push_back(chunk);
            !std::mem::replace(&mut state.is_signalled, true)
        };
        if must_signal {
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).push(queue);
        }
        if must_signal || !self.settings.linger.is_zero() {
            self.wake.notify_one();
        }
    }

    fn queue(&self, topic: Arc<KnownTopic>, partition: PartitionId) -> Arc<PartitionQueue> {
        let is_same = |queue: &&Arc<PartitionQueue>| Arc::ptr_eq(&queue.topic, &topic);
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&partition).filter(is_same) {
            return queue.clone();
        }
        drop(queues);
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&partition).filter(is_same) {
            return queue.clone();
        }
        // A changed topic has another limit. The sending task drains the queue of the earlier topic first.
        let queue = Arc::new(PartitionQueue { partition, topic: topic.clone(), state: Mutex::default() });
        queues.insert(partition, queue.clone());
        queue
    }
}

/// The records of one partition that wait for the sending task.
struct PartitionQueue {
    partition: PartitionId,
    topic: Arc<KnownTopic>,
    state: Mutex<PartitionQueueState>,
}

#[derive(Default)]
struct PartitionQueueState {
    chunks: VecDeque<RecordChunk>,
    bytes: usize,
    /// Whether the sending task has been notified of the records in this queue.
    is_signalled: bool,
}

impl PartitionQueue {
    fn state(&self) -> MutexGuard<'_, PartitionQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
