//! The engine: connects its parts, and implements the two ports.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;
use whimbrel_model::ports::{
    AppendOutcome, Bounds, CommitOutcome, Entry, ExactTopic, Fence, Log, LogError, LogTopics, PortFuture, ReadBatch,
    ReadLimits, TopicStatus,
};
use whimbrel_model::{EventSink, ExistingTopic, NamedBounds, PartitionId, Timestamp, TopicNumber, TopicSpec};

use super::append::Appender;
use super::client::cluster::KafkaCluster;
use super::client::connection::CallError;
use super::client::dial::BrokerDialer;
use super::fence::{FenceContext, FenceHandle};
use super::fetch::Fetcher;
use super::known_topics::{KnownTopic, KnownTopics};
use super::queries::{LogEnd, Queries};
use super::read::{PartitionReader, ReadAhead};
use super::settings::{KafkaSettings, KafkaStartError};
use super::stall_sweep::StallSweep;
use super::stalled_partitions::StalledPartitions;
use super::tail::PartitionTails;
use super::topics::KafkaTopics;

/// Threads that own all connections to Kafka and encode and decode batches.
const THREADS: usize = 2;
/// Threads for name lookups, which block. A thread ends when it has had no lookup for 10 s.
const LOOKUP_THREADS_MAX: usize = 4;
/// The error of a start attempt shorter than this is ignored: it is only a timeout.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);
/// The pause before a start requests the cluster's metadata again.
const START_PAUSE: Duration = Duration::from_millis(100);

/// The log on Apache Kafka.
///
/// `append` is an idempotent producer with `acks=all`; `commit` is a transaction under the fence's `transactional.id`; reading is
/// `read_committed`; `bounds` counts written records, visible or not.
///
/// # Notes
/// - A record behind an open transaction is durable and not yet visible. A dead owner's open transaction holds the readers of
///   its partitions back until its successor opens the fence (0.06 to 1 s) or `transaction_timeout` is over, which therefore
///   belongs near the session timeout of Coordination.
/// - Consumers of other applications must use `isolation.level=read_committed`, or they see records of aborted transactions.
/// - `acks=all` with `min.insync.replicas=1` on a replicated topic acknowledges a record that only one broker has. It is allowed;
///   the engine logs a warning and emits `acknowledged_not_durable` whenever such a topic is made known.
/// - A topic's retention, replicas and limits are Kafka's. If another application created it with a `max.message.bytes` below ours,
///   that is its limit.
/// - A fence uses one task, and one connection to each broker that is its coordinator or leads one of its partitions.
/// - Records with a time before 1970-01-01T00:00:00.001Z are refused.
/// - While Kafka is unreachable, calls return `Unavailable` or `Unknown` within `message_timeout` plus 5 s (appends),
///   `transaction_timeout` plus 5 s (commits) or `request_timeout` (all others). They succeed again after the brokers are back, without a restart.
pub struct KafkaLog {
    /// Runs every task of the client. The first field, so that its shutdown begins before the other parts are dropped.
    runtime: ClientRuntime,
    settings: KafkaSettings,
    cluster: Arc<KafkaCluster>,
    known: Arc<KnownTopics>,
    appender: Arc<Appender>,
    queries: Arc<Queries>,
    fetcher: Arc<Fetcher>,
    reader: Arc<PartitionReader>,
    topics: KafkaTopics,
    hanging: Arc<StalledPartitions>,
    events: EventSink,
}

/// The runtime of the client. Dropping it does not block: a log, or a start that failed, may be dropped in an async context, where
/// dropping a [`Runtime`] panics.
struct ClientRuntime {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl ClientRuntime {
    fn start() -> Result<Self, KafkaStartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(LOOKUP_THREADS_MAX)
            .thread_name("kafka")
            .enable_all()
            .build()
            .map_err(|error| KafkaStartError::Client(format!("cannot start its threads: {error}")))?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }
}

impl Drop for ClientRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl KafkaLog {
    /// Connects to Kafka and starts the engine. Waits no longer than `request_timeout`.
    pub async fn connect(settings: KafkaSettings, events: EventSink) -> Result<Arc<Self>, KafkaStartError> {
        settings.check()?;
        let runtime = ClientRuntime::start()?;
        let handle = runtime.handle.clone();
        // Reading certificates blocks on files.
        let reading = (settings.clone(), handle.clone());
        let dialer = tokio::task::spawn_blocking(move || BrokerDialer::new(&reading.0, reading.1)).await;
        let dialer = dialer.map_err(|error| KafkaStartError::Client(error.to_string()))??;
        let cluster = Arc::new(KafkaCluster::new(dialer, &settings.bootstrap));
        let log = {
            let _on_the_runtime = handle.enter();
            Self::start(settings, cluster, events, runtime)
        };
        log.reach().await?;
        Ok(Arc::new(log))
    }

    /// Every partition of the topics that were made known.
    pub fn partitions(&self) -> Vec<PartitionId> {
        self.known.partitions()
    }

    /// Waits until appends under way are answered, no longer than an append may take. Calling it is optional: acknowledged records are
    /// durable.
    pub async fn close(&self) {
        self.appender.flush().await;
    }

    /// Starts the tasks on the current runtime, which is the engine's.
    fn start(settings: KafkaSettings, cluster: Arc<KafkaCluster>, events: EventSink, runtime: ClientRuntime) -> Self {
        let staying_current = cluster.clone();
        tokio::spawn(async move { staying_current.stay_current().await });
        let queries = Arc::new(Queries::new(cluster.clone(), settings.request_timeout, events.clone()));
        let known = Arc::new(KnownTopics::default());
        let appender = Arc::new(Appender::start(&settings, cluster.clone(), queries.clone()));
        let fetcher = Arc::new(Fetcher::new(cluster.clone(), settings.fetches_at_once_max));
        let hanging = Arc::new(StalledPartitions::new(settings.transaction_timeout, events.clone()));
        let sweep = StallSweep { cluster: cluster.clone(), known: known.clone(), hanging: hanging.clone() };
        tokio::spawn(sweep.run());
        let reader = Arc::new(PartitionReader {
            known: known.clone(),
            queries: queries.clone(),
            fetcher: fetcher.clone(),
            tails: PartitionTails::start(cluster.clone(), hanging.clone()),
            hanging: hanging.clone(),
            request_timeout: settings.request_timeout,
            ahead: ReadAhead::default(),
        });
        let topics = KafkaTopics {
            cluster: cluster.clone(),
            known: known.clone(),
            queries: queries.clone(),
            reader: reader.clone(),
            appender: appender.clone(),
            settings: settings.clone(),
            events: events.clone(),
        };
        Self { runtime, settings, cluster, known, appender, queries, fetcher, reader, topics, hanging, events }
    }

    /// Waits until a broker returns the metadata of the cluster.
    async fn reach(&self) -> Result<(), KafkaStartError> {
        let (began, timeout) = (Instant::now(), self.settings.request_timeout);
        let mut reason: Option<String> = None;
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            match self.cluster.metadata(Some(&[]), left).await {
                Ok(answer) if !answer.brokers.is_empty() => return Ok(()),
                Ok(_) => {
                    reason = Some("the broker returned no cluster metadata; it may still be starting".to_owned());
                }
                // The error of a short attempt is only its timeout: the one before names the cause.
                Err(_) if left < ATTEMPT_MIN && reason.is_some() => {}
                // A listener that wants SASL closes the connection at the first request.
                Err(error @ CallError::NoAnswer(_)) => {
                    reason = Some(format!("{error}; {}", self.cluster.listener_hint()));
                }
                Err(error) => reason = Some(error.to_string()),
            }
            if began.elapsed() + START_PAUSE >= timeout {
                let bootstrap = self.settings.bootstrap.clone();
                let reason = reason.unwrap_or_else(|| "no broker answered".to_owned());
                return Err(KafkaStartError::Unreachable { bootstrap, timeout, reason });
            }
            tokio::time::sleep(START_PAUSE).await;
        }
    }

    /// The topic of a partition. If it seems to lack the partition, another client may have grown it.
    async fn topic_of(&self, partition: PartitionId) -> Result<Arc<KnownTopic>, LogError> {
        if let Some(topic) = self.known.get(partition.topic)
            && !topic.has(partition.index)
        {
            self.topics.look_for_growth(&topic).await;
        }
        self.known.of(partition)
    }

    async fn append_now(&self, entries: Vec<Entry>) -> AppendOutcome {
        let absent: HashSet<PartitionId> =
            entries.iter().map(|entry| entry.partition).filter(|each| self.known.of(*each).is_err()).collect();
        let checks = absent.iter().filter_map(|partition| Some((self.known.get(partition.topic)?, *partition)));
        let checks = checks.map(|(topic, partition)| async move { self.queries.check_exists(&topic, partition).await });
        // A partition that does not exist is answered with its record.
        let mut errors = join_all(checks).await.into_iter().filter_map(Result::err);
        if let Some(error) = errors.find(|error| !matches!(error, LogError::UnknownPartition(_))) {
            return vec![Err(error); entries.len()];
        }
        self.appender.append(&self.known, entries).await
    }

    async fn fence_now(&self, name: &str, epoch: u64) -> Result<Fence, LogError> {
        let closing = || LogError::Unavailable("the log is shutting down".to_owned());
        let context = FenceContext {
            cluster: self.cluster.clone(),
            known: self.known.clone(),
            queries: self.queries.clone(),
            fetcher: self.fetcher.clone(),
            hanging: self.hanging.clone(),
            events: self.events.clone(),
            transactional_id: self.settings.transactional_id(name),
            timeout: self.settings.transaction_timeout,
            write_timeout: self.settings.message_timeout.min(self.settings.transaction_timeout),
            compression: self.settings.compression,
            stalled_after: self.settings.stalled_after,
        };
        // The set ends the task when it is dropped: an opening whose caller has stopped waiting must not void a later fence of the same
        // name.
        let mut opening = JoinSet::new();
        opening.spawn_on(FenceHandle::open(context), &self.runtime.handle);
        let handle = opening.join_next().await.and_then(Result::ok).ok_or_else(closing)??;
        Ok(Fence { name: name.into(), epoch, handle: Arc::new(handle) })
    }

    async fn trim_now(&self, partition: PartitionId, before: u64) -> Result<(), LogError> {
        let topic = self.topic_of(partition).await?;
        let bounds = self.queries.bounds(&topic, partition, LogEnd::Written).await?;
        let before = before.min(bounds.next);
        if before <= bounds.first {
            return Ok(());
        }
        self.topics.delete_records(&topic, partition, before).await?;
        topic.trim(partition.index, before);
        self.reader.forget_before(partition, before);
        Ok(())
    }
}

impl Log for KafkaLog {
    fn largest_record(&self, topic: TopicNumber) -> usize {
        self.known.get(topic).map_or(usize::MAX, |topic| topic.record_bytes_max)
    }

    fn append(&self, entries: Vec<Entry>) -> PortFuture<'_, AppendOutcome> {
        Box::pin(self.append_now(entries))
    }

    fn fence<'a>(&'a self, name: &'a str, epoch: u64) -> PortFuture<'a, Result<Fence, LogError>> {
        Box::pin(self.fence_now(name, epoch))
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
            self.topic_of(partition).await?;
            self.reader.read(partition, from, limits).await
        })
    }

    fn bounds(&self, partition: PartitionId) -> PortFuture<'_, Result<Bounds, LogError>> {
        Box::pin(async move {
            let topic = self.topic_of(partition).await?;
            self.queries.bounds(&topic, partition, LogEnd::Written).await
        })
    }

    fn offset_at(&self, partition: PartitionId, time: Timestamp) -> PortFuture<'_, Result<u64, LogError>> {
        Box::pin(async move {
            let topic = self.topic_of(partition).await?;
            self.queries.offset_at(&topic, partition, time).await
        })
    }

    fn trim(&self, partition: PartitionId, before: u64) -> PortFuture<'_, Result<(), LogError>> {
        Box::pin(self.trim_now(partition, before))
    }
}

impl LogTopics for KafkaLog {
    fn create<'a>(&'a self, spec: &'a TopicSpec) -> PortFuture<'a, Result<u32, LogError>> {
        Box::pin(self.topics.create(spec))
    }

    fn alter<'a>(&'a self, spec: &'a TopicSpec, named: NamedBounds) -> PortFuture<'a, Result<(), LogError>> {
        Box::pin(self.topics.alter(spec, named))
    }

    fn identity<'a>(&'a self, _: TopicNumber, name: &'a str) -> PortFuture<'a, Result<Option<String>, LogError>> {
        Box::pin(self.topics.identity(name))
    }

    fn delete<'a>(&'a self, topic: ExactTopic<'a>) -> PortFuture<'a, Result<(), LogError>> {
        Box::pin(self.topics.delete(topic))
    }

    fn expect_deletion(&self, topic: TopicNumber) {
        if let Some(topic) = self.known.get(topic) {
            topic.missing.expect();
        }
    }

    fn describe(&self, topic: TopicNumber) -> PortFuture<'_, Result<TopicStatus, LogError>> {
        Box::pin(self.topics.describe(topic))
    }

    fn exists<'a>(&'a self, name: &'a str) -> PortFuture<'a, Result<bool, LogError>> {
        Box::pin(async move { Ok(self.topics.identity(name).await?.is_some()) })
    }

    fn found<'a>(
        &'a self,
        is_skipped: &'a (dyn Fn(&str) -> bool + Sync),
    ) -> PortFuture<'a, Result<Vec<ExistingTopic>, LogError>> {
        Box::pin(self.topics.found(is_skipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_start_with_a_short_timeout_names_the_reason_of_its_attempts() {
        let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let request_timeout = Duration::from_millis(300);
        let settings = KafkaSettings { request_timeout, ..KafkaSettings::new(unused.to_string()) };
        let error = KafkaLog::connect(settings, Arc::new(|_| {})).await.err().expect("nothing listens").to_string();
        assert!(error.contains("refused") && error.contains("300ms (`kafka.request_timeout`)"), "{error}");
    }
}
