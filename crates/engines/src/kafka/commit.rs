//! Fences and commits. A fence is a transactional producer whose `transactional.id` is the fence's name: opening one makes
//! Kafka end whatever its predecessor left open and refuse it from then on. A commit is one transaction.
//!
//! Each fence has a thread, which owns the producer and takes commits one after the other: their order is that of the calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, Producer, ProducerContext};
use tokio::sync::oneshot;
use whimbrel_model::ports::{CommitOutcome, Entry, LogError};
use whimbrel_model::{EventSink, PartitionId};

use super::append::{base_record, check_record};
use super::hanging::Hanging;
use super::known::{KnownTopic, KnownTopics};
use super::mend::Ends;
use super::native::Persistence;
use super::queries::Queries;
use super::{context, outcome};

/// Commits of one fence that wait for their turn; beyond, a commit is not now.
const COMMITS_WAITING_MAX: usize = 64;
const PAUSE_BEFORE_OPENING_AGAIN: Duration = Duration::from_millis(50);
/// How often a fence without commits looks after its producer's log lines.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// How often the fence's thread looks for deliveries while a transaction is under way.
const DELIVERY_LOOK: Duration = Duration::from_micros(200);
/// How long an ended transaction's deliveries are polled for at a time.
const ABORT_POLL: Duration = Duration::from_millis(5);

/// What a fence's thread works with.
pub(super) struct FenceContext {
    pub config: ClientConfig,
    pub known: Arc<KnownTopics>,
    /// How long opening or one commit may take.
    pub timeout: Duration,
    pub transactional_id: String,
    /// The options of a consumer that reads the coordinator's log.
    pub coordinator: ClientConfig,
    pub queries: Arc<Queries>,
    pub hanging: Arc<Hanging>,
    pub events: EventSink,
}

/// An open fence, as [`whimbrel_model::ports::Fence`] carries it. Its thread ends when the last clone is dropped.
pub(super) struct FenceHandle {
    commits: SyncSender<Commit>,
}

struct Commit {
    entries: Vec<Entry>,
    answer: oneshot::Sender<CommitOutcome>,
}

impl FenceHandle {
    /// Opens the fence on a thread of its own.
    pub async fn open(name: &str, context: FenceContext) -> Result<Self, LogError> {
        let (commits, waiting) = mpsc::sync_channel(COMMITS_WAITING_MAX);
        let (opened, open) = oneshot::channel();
        let thread = std::thread::Builder::new().name(format!("kafka-fence-{name}"));
        let run = move || match FencedProducer::open(context) {
            Ok(producer) => {
                if opened.send(Ok(())).is_ok() {
                    producer.serve(&waiting);
                }
            }
            Err(error) => {
                let _ = opened.send(Err(error));
            }
        };
        thread.spawn(run).map_err(|error| LogError::Unavailable(format!("no thread can be started: {error}")))?;
        match open.await {
            Ok(Ok(())) => Ok(Self { commits }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(LogError::Unavailable("the fence's thread ended".to_owned())),
        }
    }

    /// Gets in line at once, whenever the answer is waited for.
    pub fn commit(&self, entries: Vec<Entry>) -> impl Future<Output = CommitOutcome> + use<> {
        let (answer, answered) = oneshot::channel();
        let queued = self.commits.try_send(Commit { entries, answer });
        async move {
            match queued {
                Ok(()) => {
                    let ended = |_| CommitOutcome::Unknown("the fence's thread ended".to_owned());
                    answered.await.unwrap_or_else(ended)
                }
                Err(TrySendError::Full(_)) => {
                    CommitOutcome::NotNow(LogError::Overloaded("too many commits of this fence are waiting".to_owned()))
                }
                Err(TrySendError::Disconnected(_)) => CommitOutcome::Unknown("the fence's thread ended".to_owned()),
            }
        }
    }
}

pub(super) struct FencedProducer {
    pub(super) producer: BaseProducer<Deliveries>,
    pub(super) known: Arc<KnownTopics>,
    timeout: Duration,
    pub(super) transactional_id: String,
    pub(super) coordinator: ClientConfig,
    pub(super) queries: Arc<Queries>,
    pub(super) hanging: Arc<Hanging>,
    pub(super) events: EventSink,
}

impl FencedProducer {
    fn open(context: FenceContext) -> Result<Self, LogError> {
        let FenceContext { config, known, timeout, transactional_id, coordinator, queries, hanging, events } = context;
        let unavailable = |error: KafkaError| outcome::unavailable(&error);
        let producer = BaseProducer::from_config_and_context(&config, Deliveries::default()).map_err(unavailable)?;
        let deadline = Instant::now() + timeout;
        loop {
            let error = match producer.init_transactions(left(deadline)) {
                Ok(()) => {
                    return Ok(Self {
                        producer,
                        known,
                        timeout,
                        transactional_id,
                        coordinator,
                        queries,
                        hanging,
                        events,
                    });
                }
                Err(error) => error,
            };
            let may_retry = matches!(&error, KafkaError::Transaction(why) if why.is_retriable());
            if !may_retry || Instant::now() >= deadline {
                return Err(unavailable(error));
            }
            std::thread::sleep(PAUSE_BEFORE_OPENING_AGAIN);
        }
    }

    /// Takes commits until the fence is dropped or void. What waits behind a void fence is told so.
    fn serve(self, waiting: &mpsc::Receiver<Commit>) {
        let mut ends = Ends::default();
        loop {
            let commit = match waiting.recv_timeout(IDLE_LOOK) {
                Ok(commit) => Some(commit),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.producer.poll(Duration::ZERO);
            ends.look(self.producer.context().has_lost_a_connection(), Instant::now());
            let outcome = match (self.mend(&mut ends), &commit) {
                (Ok(()), Some(commit)) => self.commit_remembered(&commit.entries, &mut ends),
                (Ok(()), None) => continue,
                // What was mended in vain is not the outcome of a commit that was not begun.
                (Err(CommitOutcome::Unknown(_)), _) => CommitOutcome::Fenced,
                (Err(outcome), _) => outcome,
            };
            let stands = !matches!(outcome, CommitOutcome::Fenced | CommitOutcome::Unknown(_));
            if let Some(commit) = commit {
                let _ = commit.answer.send(outcome);
            }
            if !stands {
                break;
            }
        }
        // The producer's threads and connections go at once; the fence itself may be held for long.
        drop(self);
        for commit in waiting {
            let _ = commit.answer.send(CommitOutcome::Fenced);
        }
    }

    fn commit_remembered(&self, entries: &[Entry], ends: &mut Ends) -> CommitOutcome {
        let outcome = self.commit(entries);
        if let CommitOutcome::Done(offsets) = &outcome {
            let partitions: Vec<PartitionId> = entries.iter().map(|entry| entry.partition).collect();
            ends.committed(&partitions, offsets, Instant::now());
        }
        outcome
    }

    fn commit(&self, entries: &[Entry]) -> CommitOutcome {
        if entries.is_empty() {
            return CommitOutcome::Done(Vec::new());
        }
        let mut topics = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            match self.check(entry) {
                Ok(topic) => topics.push(topic),
                Err(error) => return CommitOutcome::Refused { index, error },
            }
        }
        let deadline = Instant::now() + self.timeout;
        if let Err(error) = self.producer.begin_transaction() {
            return self.lost(&error);
        }
        match self.deliver(&topics, entries, deadline) {
            Ok(offsets) => self.end(offsets, deadline),
            Err(failure) => self.abort(failure, &topics, entries, deadline),
        }
    }

    /// What can be said of an entry before anything is sent. A partition that is new to this process is looked for once.
    fn check(&self, entry: &Entry) -> Result<Arc<KnownTopic>, LogError> {
        let unknown = LogError::UnknownPartition(entry.partition);
        let topic = self.known.get(entry.partition.topic).ok_or(unknown.clone())?;
        if !topic.has(entry.partition.index) && topic.may_look_up(Instant::now()) {
            self.refresh(&topic);
        }
        if !topic.has(entry.partition.index) {
            return Err(unknown);
        }
        check_record(&entry.record, topic.record_bytes_max)?;
        Ok(topic)
    }

    fn refresh(&self, topic: &KnownTopic) {
        if let Ok(metadata) = self.producer.client().fetch_metadata(Some(&topic.name), self.timeout)
            && let Some(found) = metadata.topics().iter().find(|found| found.name() == topic.name)
        {
            topic.learn_partitions(found.partitions().len() as u32);
        }
    }

    /// Sends all, and waits until all are written: not yet visible, each with its offset.
    pub(super) fn deliver(
        &self,
        topics: &[Arc<KnownTopic>],
        entries: &[Entry],
        deadline: Instant,
    ) -> Result<Vec<u64>, Failure> {
        let deliveries = self.producer.context();
        deliveries.begin(entries.len());
        for (index, (topic, entry)) in topics.iter().zip(entries).enumerate() {
            self.send(topic, entry, index, deadline).map_err(|code| Failure { index, code })?;
        }
        let mut open_before = entries.len();
        loop {
            self.producer.poll(Duration::ZERO);
            match deliveries.progress() {
                Progress::Delivered(offsets) => return Ok(offsets),
                Progress::Failed(failure) => return Err(failure),
                Progress::UnderWay { first_open, .. } if Instant::now() >= deadline => {
                    return Err(Failure { index: first_open, code: Code::MessageTimedOut });
                }
                // Where one report came, the next may be there already.
                Progress::UnderWay { open, .. } if open < open_before => open_before = open,
                Progress::UnderWay { .. } => std::thread::sleep(DELIVERY_LOOK),
            }
        }
    }

    fn send(&self, topic: &KnownTopic, entry: &Entry, index: usize, deadline: Instant) -> Result<(), Code> {
        let mut refreshed = false;
        loop {
            let Err((error, _)) = self.producer.send(base_record(&topic.name, entry, index)) else { return Ok(()) };
            match error.rdkafka_error_code().unwrap_or(Code::Fail) {
                Code::QueueFull if Instant::now() < deadline => {
                    self.producer.poll(Duration::ZERO);
                    std::thread::sleep(DELIVERY_LOOK);
                }
                Code::UnknownPartition | Code::UnknownTopic if !refreshed => {
                    refreshed = true;
                    self.refresh(topic);
                }
                code => return Err(code),
            }
        }
    }

    /// Makes the transaction visible.
    pub(super) fn end(&self, offsets: Vec<u64>, deadline: Instant) -> CommitOutcome {
        loop {
            let error = match self.producer.commit_transaction(left(deadline)) {
                Ok(()) => return CommitOutcome::Done(offsets),
                Err(error) => error,
            };
            match &error {
                KafkaError::Transaction(why) if why.is_retriable() && Instant::now() < deadline => {}
                // Kafka has refused to end it: it is not visible, and never will be once it is aborted.
                KafkaError::Transaction(why) if why.txn_requires_abort() => {
                    return match self.abort_transaction() {
                        Ok(()) => CommitOutcome::NotNow(LogError::Unavailable(format!("Kafka: {error}"))),
                        Err(error) => self.lost(&error),
                    };
                }
                _ => return self.lost(&error),
            }
        }
    }

    /// Undoes a transaction of which a record could not be written.
    fn abort(
        &self,
        failure: Failure,
        topics: &[Arc<KnownTopic>],
        entries: &[Entry],
        deadline: Instant,
    ) -> CommitOutcome {
        if let Some(fenced) = self.fenced() {
            return fenced;
        }
        if let Err(error) = self.abort_transaction() {
            return self.lost(&error);
        }
        let Failure { index, code } = failure;
        let (topic, entry) = (&topics[index], &entries[index]);
        // A topic that somebody else has deleted shows as records that find no leader until their time is over. One that a broker
        // does not know may only be unknown to a broker that was started a moment ago: nothing is given up for that.
        let may_be_gone = matches!(code, Code::MessageTimedOut) || outcome::is_unknown_partition(code);
        let is_gone =
            may_be_gone && Instant::now() < deadline + self.timeout && self.is_gone(topic, entry.partition.index);
        let code = match code {
            _ if is_gone => Code::UnknownTopicOrPartition,
            _ if may_be_gone => Code::LeaderNotAvailable,
            code => code,
        };
        let error = outcome::append_error(
            code,
            Persistence::Excluded,
            entry.partition,
            entry.record.size(),
            topic.record_bytes_max,
        );
        match error {
            LogError::Unavailable(_) | LogError::Overloaded(_) | LogError::Unknown(_) => CommitOutcome::NotNow(error),
            refused => CommitOutcome::Refused { index, error: refused },
        }
    }

    fn is_gone(&self, topic: &KnownTopic, index: u32) -> bool {
        let metadata = self.producer.client().fetch_metadata(Some(&topic.name), self.timeout);
        metadata.is_ok_and(|metadata| outcome::is_without(&metadata, &topic.name, index))
    }

    /// Aborting waits for the reports of everything that was sent, so somebody must poll meanwhile.
    pub(super) fn abort_transaction(&self) -> Result<(), KafkaError> {
        let aborted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !aborted.load(Ordering::Acquire) {
                    self.producer.poll(ABORT_POLL);
                }
            });
            let deadline = Instant::now() + self.timeout;
            let result = loop {
                match self.producer.abort_transaction(left(deadline)) {
                    Err(KafkaError::Transaction(why)) if why.is_retriable() && Instant::now() < deadline => {}
                    result => break result,
                }
            };
            aborted.store(true, Ordering::Release);
            result
        })
    }

    /// The outcome after an error that leaves the fence unusable.
    pub(super) fn lost(&self, error: &KafkaError) -> CommitOutcome {
        let by_code = matches!(error, KafkaError::Transaction(why) if outcome::is_fenced(why.code()));
        match self.fenced() {
            Some(fenced) => fenced,
            None if by_code => CommitOutcome::Fenced,
            None => CommitOutcome::Unknown(format!("Kafka: {error}")),
        }
    }

    fn fenced(&self) -> Option<CommitOutcome> {
        let (code, _) = self.producer.client().fatal_error()?;
        outcome::is_fenced(code).then_some(CommitOutcome::Fenced)
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The first entry that could not be written.
pub(super) struct Failure {
    index: usize,
    code: Code,
}

enum Progress {
    UnderWay { open: usize, first_open: usize },
    Delivered(Vec<u64>),
    Failed(Failure),
}

/// The delivery reports of the transaction under way, by the entries' indexes.
#[derive(Default)]
pub(super) struct Deliveries {
    reports: Mutex<Reports>,
    has_lost_a_connection: AtomicBool,
}

#[derive(Default)]
struct Reports {
    offsets: Vec<Option<u64>>,
    open: usize,
    failed: Option<(usize, Code)>,
}

impl Deliveries {
    fn begin(&self, entries: usize) {
        *self.reports() = Reports { offsets: vec![None; entries], open: entries, failed: None };
    }

    /// Whether a connection was lost since this was asked last.
    fn has_lost_a_connection(&self) -> bool {
        self.has_lost_a_connection.swap(false, Ordering::AcqRel)
    }

    fn progress(&self) -> Progress {
        let mut reports = self.reports();
        if let Some((index, code)) = reports.failed {
            return Progress::Failed(Failure { index, code });
        }
        if reports.open > 0 {
            let first_open = reports.offsets.iter().position(Option::is_none).unwrap_or(0);
            return Progress::UnderWay { open: reports.open, first_open };
        }
        Progress::Delivered(std::mem::take(&mut reports.offsets).into_iter().flatten().collect())
    }

    fn reports(&self) -> std::sync::MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        context::log_line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        if matches!(code, Some(Code::BrokerTransportFailure | Code::AllBrokersDown | Code::OperationTimedOut)) {
            self.has_lost_a_connection.store(true, Ordering::Release);
        }
        context::log_error(&error, reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        let mut reports = self.reports();
        match result {
            Ok(message) => {
                if let Some(place @ None) = reports.offsets.get_mut(index) {
                    *place = Some(message.offset().max(0) as u64);
                    reports.open -= 1;
                }
            }
            Err((error, _)) => {
                let code = error.rdkafka_error_code().unwrap_or(Code::Fail);
                // The first failure is the cause; what follows it was purged.
                reports.failed.get_or_insert((index, code));
            }
        }
    }
}
