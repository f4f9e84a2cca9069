//! The engine: its parts put together, and the two ports over them.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use whimbrel_model::ports::{
    AppendOutcome, Bounds, CommitOutcome, Entry, Fence, Log, LogError, LogTopics, PortFuture, ReadBatch, ReadLimits,
    TopicStatus,
};
use whimbrel_model::{EventSink, PartitionId, Timestamp, TopicNumber, TopicSpec};

use rdkafka::admin::AdminOptions;
use rdkafka::{Offset, TopicPartitionList};

use super::append::Appender;
use super::commit::{FenceContext, FenceHandle};
use super::context::Consumer;
use super::cursors::Cursors;
use super::hanging::Hanging;
use super::known::{KnownTopic, KnownTopics};
use super::outcome;
use super::queries::{End, Queries};
use super::read::Reader;
use super::settings::{KafkaSettings, KafkaStartError};
use super::topics::Topics;

/// How often idle readers are let go and the clients' log lines are taken.
const HOUSEKEEPING: Duration = Duration::from_millis(200);
/// Log lines of one client that are taken at a time.
const LINES_AT_A_TIME: usize = 100;

/// The log on Apache Kafka.
///
/// `append` is an idempotent producer with `acks=all`; `commit` is a transaction under the fence's `transactional.id`; reading is
/// `read_committed`; `bounds` counts what is written, visible or not.
///
/// # What to know
/// - A record behind an open transaction is durable and not yet visible. A dead owner's open transaction holds the readers of
///   its partitions back until its successor opens the fence (0.06 to 1 s) or `transaction_timeout` is over, which therefore
///   belongs near the session timeout of Coordination.
/// - Other people's consumers must read committed, or they see records of transactions that were aborted.
/// - `acks=all` with `min.insync.replicas=1` on a replicated topic acknowledges what one broker has. It is allowed, and said
///   loudly whenever such a topic is made known.
/// - A topic's retention, copies and limits are Kafka's. A topic that others made with a `max.message.bytes` below ours
///   has that as its limit.
/// - A fence costs a producer, which is about six threads and a connection to each broker it writes to.
/// - Readers have a group's name (`whimbrel-readers`), since librdkafka assigns no partitions without one; they never join the
///   group and never commit to it.
/// - Times before 1970-01-01T00:00:00.001Z cannot be kept.
/// - When Kafka goes away, calls are answered within `message_timeout` (appends), `transaction_timeout` (commits) or
///   `request_timeout` (the rest) with `Unavailable` or `Unknown`; when it is back, they succeed again by themselves.
pub struct KafkaLog {
    parts: DroppedElsewhere<Parts>,
}

struct Parts {
    settings: KafkaSettings,
    known: Arc<KnownTopics>,
    appender: Appender,
    queries: Arc<Queries>,
    reader: Reader,
    topics: Topics,
    hanging: Arc<Hanging>,
    events: EventSink,
    /// Ends the housekeeping thread when it is dropped.
    _housekeeping: mpsc::Sender<()>,
}

impl KafkaLog {
    /// Reaches Kafka and starts the engine. Waits no longer than `request_timeout`.
    pub async fn connect(settings: KafkaSettings, events: EventSink) -> Result<Arc<Self>, KafkaStartError> {
        settings.check()?;
        // Making a client reads files and starts threads.
        let making = tokio::task::spawn_blocking(move || Parts::make(settings, events));
        let parts = making.await.map_err(|error| KafkaStartError::Client(error.to_string()))??;
        Ok(Arc::new(Self { parts: DroppedElsewhere(Some(parts)) }))
    }

    /// Every partition of the topics that were made known.
    pub fn partitions(&self) -> Vec<PartitionId> {
        self.parts().known.partitions()
    }

    /// Waits for the answers to what is under way, no longer than an append may take. Nobody needs to call it: what was
    /// acknowledged is durable.
    pub async fn close(&self) {
        self.parts().appender.flush().await;
    }

    fn parts(&self) -> &Parts {
        self.parts.0.as_ref().expect("the parts are there until the log is dropped")
    }
}

impl Parts {
    fn make(settings: KafkaSettings, events: EventSink) -> Result<Self, KafkaStartError> {
        let queries = Arc::new(Queries::new(&settings)?);
        reach(&settings, queries.clients()[0])?;
        let known = Arc::new(KnownTopics::default());
        let appender = Appender::new(&settings)?;
        let cursors = Arc::new(Cursors::new(&settings)?);
        let topics = Topics::new(&settings, known.clone(), queries.clone(), cursors.clone(), events.clone())?;
        let housekeeping = keep_house(cursors.clone(), queries.clone())?;
        let request_timeout = settings.request_timeout;
        let hanging = Arc::new(Hanging::new(settings.transaction_timeout));
        let reader = Reader {
            known: known.clone(),
            cursors,
            queries: queries.clone(),
            request_timeout,
            hanging: hanging.clone(),
            events: events.clone(),
        };
        Ok(Self { settings, known, appender, queries, reader, topics, hanging, events, _housekeeping: housekeeping })
    }

    /// The topic of a partition. One that seems to lack the partition may have been grown by somebody else.
    async fn topic_of(&self, partition: PartitionId) -> Result<Arc<KnownTopic>, LogError> {
        if let Some(topic) = self.known.get(partition.topic)
            && !topic.has(partition.index)
        {
            self.topics.look_for_growth(&topic).await;
        }
        self.known.of(partition)
    }

    async fn append(&self, entries: Vec<Entry>) -> AppendOutcome {
        for entry in &entries {
            if self.known.of(entry.partition).is_err() {
                // What is still unknown afterwards is answered with its record.
                let _ = self.topic_of(entry.partition).await;
            }
        }
        self.appender.append(&self.known, entries).await
    }

    async fn fence(&self, name: &str, epoch: u64) -> Result<Fence, LogError> {
        let context = FenceContext {
            config: self.settings.commit_producer(name, epoch),
            known: self.known.clone(),
            timeout: self.settings.transaction_timeout,
            transactional_id: self.settings.transactional_id(name),
            coordinator: self.settings.inspector(),
            queries: self.queries.clone(),
            hanging: self.hanging.clone(),
            events: self.events.clone(),
        };
        let handle = FenceHandle::open(name, context).await?;
        Ok(Fence { name: name.into(), epoch, handle: Arc::new(handle) })
    }

    async fn trim(&self, partition: PartitionId, before: u64) -> Result<(), LogError> {
        let topic = self.topic_of(partition).await?;
        let bounds = self.queries.bounds(&topic, partition, End::Written).await?;
        let before = before.min(bounds.next);
        if before <= bounds.first {
            return Ok(());
        }
        let mut list = TopicPartitionList::with_capacity(1);
        let offset = Offset::Offset(i64::try_from(before).unwrap_or(i64::MAX));
        list.add_partition_offset(&topic.name, partition.index as i32, offset)
            .map_err(|error| outcome::question_error(&error, partition))?;
        let options = AdminOptions::new().request_timeout(Some(self.settings.request_timeout));
        let trimmed = self.topics.admin.delete_records(&list, &options).await;
        let trimmed = trimmed.map_err(|error| outcome::question_error(&error, partition))?;
        for element in trimmed.elements() {
            element.error().map_err(|error| outcome::question_error(&error, partition))?;
        }
        self.reader.cursors.forget_before(partition, before);
        Ok(())
    }
}

impl Log for KafkaLog {
    fn largest_record(&self, topic: TopicNumber) -> usize {
        self.parts().known.get(topic).map_or(usize::MAX, |topic| topic.record_bytes_max)
    }

    fn append(&self, entries: Vec<Entry>) -> PortFuture<'_, AppendOutcome> {
        Box::pin(self.parts().append(entries))
    }

    fn fence<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<Fence, LogError>> {
        Box::pin(self.parts().fence(name, epoch))
    }

    fn commit<'a>(&'a self, fence: &'a Fence, entries: Vec<Entry>) -> PortFuture<'a, CommitOutcome> {
        match fence.handle.downcast_ref::<FenceHandle>() {
            Some(handle) => Box::pin(handle.commit(entries)),
            // A fence of another engine was never open here.
            None => Box::pin(std::future::ready(CommitOutcome::Fenced)),
        }
    }

    fn read(
        &self,
        partition: PartitionId,
        from: u64,
        limits: ReadLimits,
    ) -> PortFuture<'_, Result<ReadBatch, LogError>> {
        Box::pin(async move {
            let parts = self.parts();
            parts.topic_of(partition).await?;
            parts.reader.read(partition, from, limits).await
        })
    }

    fn bounds(&self, partition: PartitionId) -> PortFuture<'_, Result<Bounds, LogError>> {
        Box::pin(async move {
            let parts = self.parts();
            let topic = parts.topic_of(partition).await?;
            parts.queries.bounds(&topic, partition, End::Written).await
        })
    }

    fn offset_at(&self, partition: PartitionId, time: Timestamp) -> PortFuture<'_, Result<u64, LogError>> {
        Box::pin(async move {
            let parts = self.parts();
            let topic = parts.topic_of(partition).await?;
            match parts.queries.offset_at(&topic, partition, time).await? {
                Some(offset) => Ok(offset),
                None => Ok(parts.queries.bounds(&topic, partition, End::Written).await?.next),
            }
        })
    }

    fn trim(&self, partition: PartitionId, before: u64) -> PortFuture<'_, Result<(), LogError>> {
        Box::pin(self.parts().trim(partition, before))
    }
}

impl LogTopics for KafkaLog {
    fn create<'a>(&'a self, spec: &'a TopicSpec) -> PortFuture<'a, Result<u32, LogError>> {
        Box::pin(self.parts().topics.create(spec))
    }

    fn alter<'a>(&'a self, spec: &'a TopicSpec) -> PortFuture<'a, Result<(), LogError>> {
        Box::pin(self.parts().topics.alter(spec))
    }

    fn delete(&self, topic: TopicNumber) -> PortFuture<'_, Result<(), LogError>> {
        Box::pin(self.parts().topics.delete(topic))
    }

    fn describe(&self, topic: TopicNumber) -> PortFuture<'_, Result<TopicStatus, LogError>> {
        Box::pin(self.parts().topics.describe(topic))
    }

    fn found(&self) -> PortFuture<'_, Result<Vec<(String, u32)>, LogError>> {
        Box::pin(self.parts().topics.found())
    }
}

/// Asks Kafka for anything at all, within the time that a start may take.
fn reach(settings: &KafkaSettings, client: &Consumer) -> Result<(), KafkaStartError> {
    let began = Instant::now();
    // librdkafka says why it cannot connect in log lines and events; the last of them is the best reason there is.
    let answered = client.client().fetch_cluster_id(settings.request_timeout);
    if answered.is_some() {
        return Ok(());
    }
    let mut reason = "no broker answers".to_owned();
    while let Some(event) = client.poll(Duration::ZERO) {
        if let Err(error) = event {
            reason = error.to_string();
        }
    }
    let waited_ms = began.elapsed().as_millis();
    Err(KafkaStartError::Unreachable { bootstrap: settings.bootstrap.clone(), waited_ms, reason })
}

/// Starts the thread that lets idle readers go. It ends when the sender is dropped.
fn keep_house(cursors: Arc<Cursors>, queries: Arc<Queries>) -> Result<mpsc::Sender<()>, KafkaStartError> {
    let (running, ended) = mpsc::channel();
    let work = move || {
        while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(HOUSEKEEPING) {
            cursors.retire_idle(Instant::now());
            cursors.clients().iter().chain(queries.clients()).for_each(|client| take_lines(client));
        }
    };
    let thread = std::thread::Builder::new().name("kafka-readers".to_owned());
    thread.spawn(work).map_err(|error| KafkaStartError::Client(format!("no thread can be started: {error}")))?;
    Ok(running)
}

/// Hands a client's log lines and errors to its context. Records never come this way: partitions have queues of their own.
fn take_lines(client: &Consumer) {
    for _ in 0..LINES_AT_A_TIME {
        if client.poll(Duration::ZERO).is_none() {
            return;
        }
    }
}

/// Closing a client of librdkafka waits for its threads, and a log may be dropped on a thread that must not wait.
struct DroppedElsewhere<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Drop for DroppedElsewhere<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            // Without a thread to be had, it is dropped here after all.
            let _ = std::thread::Builder::new().name("kafka-closing".to_owned()).spawn(move || drop(value));
        }
    }
}
