//! Fences and commits. A fence is a transactional producer whose `transactional.id` is the fence's name: opening one makes Kafka abort
//! whatever its predecessor left open and refuse it from then on. A commit is one transaction.
//!
//! A fence is a task with connections of its own, which takes commits one after the other: their order is that of the calls.
//!
//! It speaks the first version of the transaction protocol, in which the client adds partitions itself: with the second one a broker
//! waits `add.partitions.to.txn.retry.backoff.ms` (20 ms) between two transactions of one id. What the second version adds in safety,
//! an epoch per transaction, is had where it matters: **after any request that was not answered the fence takes a new epoch** before
//! its next transaction, so that a request which arrives late belongs to an epoch that is over.

mod part;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, EndTxnRequest, FindCoordinatorRequest,
    InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProduceResponse, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::{Request, StrBytes};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::oneshot;
use whimbrel_model::ports::{CommitOutcome, Entry, LogError};
use whimbrel_model::{EventSink, PartitionId};

use self::part::Part;
use super::append::check_record;
use super::client::batch::{BatchIdentity, next_sequence};
use super::client::cluster::{ANSWER_MAX, Cluster, Links};
use super::client::connection::CallError;
use super::fetch::Fetcher;
use super::hanging::Hanging;
use super::known::{KnownTopic, KnownTopics};
use super::mend::Ends;
use super::outcome;
use super::queries::Queries;
use super::settings::Compression;

/// Commits of one fence that wait for their turn; beyond, a commit is `NotNow`.
const COMMITS_WAITING_MAX: usize = 64;
/// How often a fence without commits looks after transactions that hang, and how often while it suspects one.
const IDLE_LOOK: Duration = Duration::from_secs(1);
const SUSPICIOUS_LOOK: Duration = Duration::from_millis(300);
/// How long the coordinator is given to finish the previous transaction of the id before it is asked again.
const PREVIOUS_TRANSACTION_PAUSE: Duration = Duration::from_micros(500);
/// How long a leader or coordinator that is moving is given before it is asked again.
const MOVING_PAUSE: Duration = Duration::from_millis(20);
/// How long a partition may be unknown to its broker before the cluster is asked whether it exists.
const UNKNOWN_MAX: Duration = Duration::from_secs(1);
/// How long undoing a transaction may take before the next look at it.
const ABORTING_MAX: Duration = Duration::from_secs(3);
/// How often a step that takes long is logged.
const SLOW_STEP: Duration = Duration::from_secs(1);
/// What `FindCoordinator` takes for a transactional id.
const TRANSACTION_KEY: i8 = 1;

/// What a fence works with.
#[derive(Clone)]
pub(super) struct FenceContext {
    pub cluster: Arc<Cluster>,
    pub known: Arc<KnownTopics>,
    pub queries: Arc<Queries>,
    pub fetcher: Arc<Fetcher>,
    pub hanging: Arc<Hanging>,
    pub events: EventSink,
    pub transactional_id: String,
    /// How long opening or one commit may take; also when Kafka aborts a transaction that was left open.
    pub timeout: Duration,
    /// How long writing the records of a commit may take.
    pub write_timeout: Duration,
    pub compression: Compression,
}

/// An open fence, as [`whimbrel_model::ports::Fence`] carries it. Its task ends when the last clone is dropped.
pub(super) struct FenceHandle {
    commits: mpsc::Sender<Commit>,
}

struct Commit {
    entries: Vec<Entry>,
    answer: oneshot::Sender<CommitOutcome>,
}

impl FenceHandle {
    /// Opens the fence on the current runtime.
    pub async fn open(context: FenceContext) -> Result<Self, LogError> {
        let fence = FencedProducer::open(context).await?;
        let (commits, waiting) = mpsc::channel(COMMITS_WAITING_MAX);
        tokio::spawn(fence.serve(waiting));
        Ok(Self { commits })
    }

    /// Takes its place in the order of commits when it is called, not when it is polled.
    pub fn commit(&self, entries: Vec<Entry>) -> impl Future<Output = CommitOutcome> + Send + use<> {
        let (answer, answered) = oneshot::channel();
        let sent = self.commits.try_send(Commit { entries, answer });
        async move {
            match sent {
                Ok(()) => {
                    answered.await.unwrap_or_else(|_| CommitOutcome::Unknown("the fence's task ended".to_owned()))
                }
                Err(TrySendError::Full(_)) => {
                    CommitOutcome::NotNow(LogError::Overloaded("too many commits of this fence are waiting".to_owned()))
                }
                Err(TrySendError::Closed(_)) => CommitOutcome::Fenced,
            }
        }
    }
}

/// Why a request to the coordinator did not succeed.
enum Refusal {
    /// The coordinator answered so. `is_certain` is false where an earlier attempt was not answered and may have been accepted.
    Code { code: Code, is_certain: bool },
    /// There was no answer in time.
    Late { why: String, is_certain: bool },
}

/// Why records could not be written.
pub(super) enum WriteError {
    Fenced,
    /// The entry at `index` cannot be written now, or never.
    Entry {
        index: usize,
        error: LogError,
    },
}

pub(super) struct FencedProducer {
    pub(super) context: FenceContext,
    links: Links,
    coordinator: Option<i32>,
    producer_id: i64,
    epoch: i16,
    sequences: HashMap<PartitionId, i32>,
    /// Whether Kafka may have a transaction open.
    is_open: bool,
    /// Whether a request of this epoch was not answered, and may arrive late.
    needs_new_epoch: bool,
    /// Whether a connection was lost since this was looked at last.
    has_lost_a_connection: bool,
}

impl FencedProducer {
    async fn open(context: FenceContext) -> Result<Self, LogError> {
        let deadline = Instant::now() + context.timeout;
        let mut fence = Self {
            context,
            links: Links::default(),
            coordinator: None,
            producer_id: -1,
            epoch: -1,
            sequences: HashMap::new(),
            is_open: false,
            needs_new_epoch: false,
            has_lost_a_connection: false,
        };
        match fence.init(deadline).await {
            Ok(()) => Ok(fence),
            Err(Refusal::Code { code, .. }) if outcome::is_refused_for_good(code) => {
                Err(LogError::Unsupported(format!("Kafka refused the fence: {code}")))
            }
            Err(Refusal::Code { code, .. }) => Err(outcome::unavailable(&code)),
            Err(Refusal::Late { why, .. }) => Err(outcome::unavailable(&why)),
        }
    }

    /// Takes commits until the fence is dropped or void. Commits that wait behind a void fence are told so.
    async fn serve(mut self, mut waiting: mpsc::Receiver<Commit>) {
        let mut ends = Ends::new(Instant::now());
        loop {
            let look_after = if ends.suspects(Instant::now()) { SUSPICIOUS_LOOK } else { IDLE_LOOK };
            let commit = match tokio::time::timeout(look_after, waiting.recv()).await {
                Ok(Some(commit)) => Some(commit),
                Ok(None) => return,
                Err(_) => None,
            };
            let outcome = match (self.prepare(&mut ends).await, &commit) {
                (Ok(()), Some(commit)) => self.commit_remembered(&commit.entries, &mut ends).await,
                (Ok(()), None) | (Err(CommitOutcome::NotNow(_)), None) => continue,
                // A failed repair is not the outcome of a commit that was not begun.
                (Err(CommitOutcome::Unknown(_)), _) => CommitOutcome::Fenced,
                (Err(outcome), _) => outcome,
            };
            if !matches!(outcome, CommitOutcome::Done(_)) {
                tracing::debug!(id = self.context.transactional_id, ?outcome, "a commit of the fence was not done");
            }
            let stands = !matches!(outcome, CommitOutcome::Fenced | CommitOutcome::Unknown(_));
            if let Some(commit) = commit {
                let _ = commit.answer.send(outcome);
            }
            if !stands {
                break;
            }
        }
        // The connections go at once; the fence itself may be held for long.
        drop(self);
        waiting.close();
        while let Some(commit) = waiting.recv().await {
            let _ = commit.answer.send(CommitOutcome::Fenced);
        }
    }

    /// Undoes what an earlier commit left open, and looks for transactions that hang. An error says why nothing can be begun now, or that
    /// the fence is void.
    async fn prepare(&mut self, ends: &mut Ends) -> Result<(), CommitOutcome> {
        // An own transaction that is still open holds readers back too: it must be gone before anything is taken for hanging.
        self.settle(Instant::now() + ABORTING_MAX).await.map_err(|error| match error {
            WriteError::Fenced => CommitOutcome::Fenced,
            WriteError::Entry { error, .. } => CommitOutcome::NotNow(error),
        })?;
        ends.look(std::mem::take(&mut self.has_lost_a_connection), Instant::now());
        self.mend(ends).await
    }

    /// Undoes the transaction that is open, and takes a new epoch where a request of this one may arrive late.
    async fn settle(&mut self, deadline: Instant) -> Result<(), WriteError> {
        if self.is_open {
            self.abort().await.map_err(|_| WriteError::Fenced)?;
        }
        if self.is_open {
            return Err(not_now(0, "an earlier transaction is not undone yet"));
        }
        if !self.needs_new_epoch {
            return Ok(());
        }
        self.init(deadline).await.map_err(|refusal| match refusal {
            Refusal::Code { code, .. } if outcome::is_fenced(code) => WriteError::Fenced,
            Refusal::Code { code, .. } => not_now(0, code),
            Refusal::Late { why, .. } => not_now(0, why),
        })
    }

    async fn commit_remembered(&mut self, entries: &[Entry], ends: &mut Ends) -> CommitOutcome {
        let outcome = self.commit(entries).await;
        if let CommitOutcome::Done(offsets) = &outcome {
            let partitions: Vec<PartitionId> = entries.iter().map(|entry| entry.partition).collect();
            ends.committed(&partitions, offsets, Instant::now());
        }
        outcome
    }

    async fn commit(&mut self, entries: &[Entry]) -> CommitOutcome {
        if entries.is_empty() {
            return CommitOutcome::Done(Vec::new());
        }
        let mut topics = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            match self.check(entry).await {
                Ok(topic) => topics.push(topic),
                Err(error) => return CommitOutcome::Refused { index, error },
            }
        }
        let began = Instant::now();
        let (deadline, write_deadline) = (began + self.context.timeout, began + self.context.write_timeout);
        match self.begin_and_write(&topics, entries, write_deadline).await {
            Ok(offsets) => self.end(offsets, deadline).await,
            Err(WriteError::Fenced) => CommitOutcome::Fenced,
            Err(WriteError::Entry { index, error }) => {
                if let Err(fenced) = self.abort().await {
                    return fenced;
                }
                match error {
                    LogError::Unavailable(_) | LogError::Overloaded(_) | LogError::Unknown(_) => {
                        CommitOutcome::NotNow(error)
                    }
                    refused => CommitOutcome::Refused { index, error: refused },
                }
            }
        }
    }

    /// What can be said of an entry before anything is sent. A partition that is new to this process is looked for once.
    async fn check(&self, entry: &Entry) -> Result<Arc<KnownTopic>, LogError> {
        let unknown = LogError::UnknownPartition(entry.partition);
        let topic = self.context.known.get(entry.partition.topic).ok_or(unknown.clone())?;
        if !topic.has(entry.partition.index)
            && topic.may_look_up(Instant::now())
            && let Ok(metadata) = self.context.queries.metadata(Some(topic.name())).await
            && let Some(found) = metadata.topics.first()
        {
            topic.learn_partitions(found.partitions.len() as u32);
        }
        if !topic.has(entry.partition.index) {
            return Err(unknown);
        }
        check_record(&entry.record, topic.record_bytes_max)?;
        Ok(topic)
    }

    /// Begins a transaction and writes all records: not yet visible, each with its offset.
    pub(super) async fn begin_and_write(
        &mut self,
        topics: &[Arc<KnownTopic>],
        entries: &[Entry],
        deadline: Instant,
    ) -> Result<Vec<u64>, WriteError> {
        self.settle(deadline).await?;
        let mut parts = Part::of(topics, entries);
        self.add_partitions(&parts, deadline).await?;
        self.write(&mut parts, entries, deadline).await
    }

    async fn init(&mut self, deadline: Instant) -> Result<(), Refusal> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(self.transactional_id()))
            .with_transaction_timeout_ms(i32::try_from(self.context.timeout.as_millis()).unwrap_or(i32::MAX))
            .with_producer_id(ProducerId(self.producer_id))
            .with_producer_epoch(self.epoch);
        let answer = self.coordinate(&request, |answer: &InitProducerIdResponse| answer.error_code, deadline).await?;
        (self.producer_id, self.epoch) = (answer.producer_id.0, answer.producer_epoch);
        self.sequences.clear();
        self.needs_new_epoch = false;
        Ok(())
    }

    async fn add_partitions(&mut self, parts: &[Part], deadline: Instant) -> Result<(), WriteError> {
        let mut topics: Vec<AddPartitionsToTxnTopic> = Vec::new();
        for part in parts {
            let (name, index) = (part.topic.wire_name(), part.partition.index as i32);
            match topics.iter_mut().find(|topic| topic.name == name) {
                Some(topic) => topic.partitions.push(index),
                None => topics.push(AddPartitionsToTxnTopic::default().with_name(name).with_partitions(vec![index])),
            }
        }
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(self.transactional_id())
            .with_v3_and_below_producer_id(ProducerId(self.producer_id))
            .with_v3_and_below_producer_epoch(self.epoch)
            .with_v3_and_below_topics(topics);
        let mut unknown_since = None;
        loop {
            self.is_open = true;
            let refusal = match self.coordinate(&request, worst_of, deadline).await {
                Ok(_) => return Ok(()),
                Err(refusal) => refusal,
            };
            let code = match refusal {
                Refusal::Late { why, .. } => return Err(not_now(0, why)),
                Refusal::Code { code, .. } => code,
            };
            if outcome::is_fenced(code) {
                return Err(WriteError::Fenced);
            }
            if !outcome::is_unknown_partition(code) {
                return Err(refused(&parts[0], code));
            }
            // A broker that has just started knows no topic yet.
            if unknown_since.get_or_insert_with(Instant::now).elapsed() >= UNKNOWN_MAX {
                for part in parts {
                    if self.context.queries.is_gone(part.topic.name(), part.partition.index).await.unwrap_or(false) {
                        return Err(refused(part, code));
                    }
                }
            }
            if Instant::now() >= deadline {
                return Err(not_now(0, code));
            }
            tokio::time::sleep(MOVING_PAUSE).await;
        }
    }

    /// Writes the records of all partitions, and again what was not accepted, until the deadline.
    async fn write(
        &mut self,
        parts: &mut [Part],
        entries: &[Entry],
        deadline: Instant,
    ) -> Result<Vec<u64>, WriteError> {
        let mut offsets = vec![0; entries.len()];
        let mut slow = SlowStep::begin("a partition's leader");
        loop {
            slow.tell(&self.context.transactional_id);
            let mut by_leader: HashMap<i32, Vec<usize>> = HashMap::new();
            let mut without_leader = None;
            for (at, part) in parts.iter_mut().enumerate() {
                if !part.prepare(entries, self.identity_for(part.partition), self.context.compression)? {
                    continue;
                }
                match self.context.cluster.leader(part.topic.name(), part.partition.index) {
                    Some(leader) => by_leader.entry(leader).or_default().push(at),
                    None => without_leader = Some(at),
                }
            }
            if by_leader.is_empty() && without_leader.is_none() {
                return Ok(offsets);
            }
            let mut failed = without_leader.map(|at| (at, "the partition has no leader".to_owned()));
            let sent: Vec<_> = by_leader
                .iter()
                .map(|(leader, places)| self.produce(*leader, places.iter().map(|at| &parts[*at]).collect(), deadline))
                .collect();
            let answers = futures_util::future::join_all(sent).await;
            for ((_, places), answer) in by_leader.iter().zip(answers) {
                match answer {
                    Ok(answer) => {
                        for at in places {
                            let part = &mut parts[*at];
                            if let Some(why) = self.take_answer(part, &answer, &mut offsets).await? {
                                failed = Some((*at, why));
                            }
                        }
                    }
                    Err(error) => {
                        self.note_loss(&error);
                        failed = Some((places[0], error.to_string()));
                    }
                }
            }
            let Some((at, why)) = failed else { continue };
            if Instant::now() >= deadline {
                let part = &parts[at];
                let is_gone = self.context.queries.is_gone(part.topic.name(), part.partition.index).await;
                return Err(match is_gone {
                    Ok(true) => refused(part, Code::UnknownTopicOrPartition),
                    _ => not_now(part.first_index(), why),
                });
            }
            slow.why = why;
            tokio::time::sleep(MOVING_PAUSE).await;
            self.context.cluster.refresh(parts[at].topic.name()).await;
        }
    }

    fn identity_for(&self, partition: PartitionId) -> BatchIdentity {
        BatchIdentity {
            producer_id: self.producer_id,
            producer_epoch: self.epoch,
            base_sequence: self.sequences.get(&partition).copied().unwrap_or(0),
            is_transactional: true,
        }
    }

    fn produce(
        &self,
        leader: i32,
        parts: Vec<&Part>,
        deadline: Instant,
    ) -> impl Future<Output = Result<ProduceResponse, CallError>> + Send {
        let left = deadline.saturating_duration_since(Instant::now()).clamp(MOVING_PAUSE, ANSWER_MAX);
        let mut topics: Vec<TopicProduceData> = Vec::new();
        for part in parts {
            let data = PartitionProduceData::default()
                .with_index(part.partition.index as i32)
                .with_records(part.prepared.as_ref().map(|(_, bytes)| bytes.clone()));
            let name = part.topic.wire_name();
            match topics.iter_mut().find(|topic| topic.name == name) {
                Some(topic) => topic.partition_data.push(data),
                None => topics.push(TopicProduceData::default().with_name(name).with_partition_data(vec![data])),
            }
        }
        let request = ProduceRequest::default()
            .with_transactional_id(Some(self.transactional_id()))
            .with_acks(-1)
            .with_timeout_ms(i32::try_from(left.as_millis()).unwrap_or(i32::MAX))
            .with_topic_data(topics);
        async move {
            let connection = self.links.to(&self.context.cluster, leader).await?;
            connection.call(&request, left).await
        }
    }

    /// Takes in the answer about one partition. Answers why it has to be sent again, where it has.
    async fn take_answer(
        &mut self,
        part: &mut Part,
        answer: &ProduceResponse,
        offsets: &mut [u64],
    ) -> Result<Option<String>, WriteError> {
        let topic = answer.responses.iter().find(|topic| topic.name.as_str() == part.topic.name());
        let found = topic
            .and_then(|topic| topic.partition_responses.iter().find(|each| each.index == part.partition.index as i32));
        let Some(found) = found else {
            self.needs_new_epoch = true;
            return Ok(Some("the answer lacks a partition".to_owned()));
        };
        let Some(code) = Code::try_from_code(found.error_code) else {
            let base = self.identity_for(part.partition).base_sequence;
            let written = part.written(found.base_offset.max(0) as u64, offsets);
            self.sequences.insert(part.partition, next_sequence(base, written));
            return Ok(None);
        };
        if outcome::is_fenced(code) {
            return Err(WriteError::Fenced);
        }
        self.needs_new_epoch |= outcome::may_be_written(code);
        if outcome::is_unknown_partition(code) {
            if part.unknown_since.get_or_insert_with(Instant::now).elapsed() >= UNKNOWN_MAX
                && self.context.queries.is_gone(part.topic.name(), part.partition.index).await.unwrap_or(false)
            {
                return Err(refused(part, code));
            }
            return Ok(Some(code.to_string()));
        }
        if outcome::is_passing(code) || outcome::may_be_written(code) {
            return Ok(Some(code.to_string()));
        }
        // What the broker has of this producer is not what was sent: a new epoch begins at zero everywhere.
        self.needs_new_epoch |= !outcome::is_refused_for_good(code);
        Err(refused(part, code))
    }

    /// Makes the transaction visible.
    pub(super) async fn end(&mut self, offsets: Vec<u64>, deadline: Instant) -> CommitOutcome {
        match self.end_as(true, deadline).await {
            Ok(()) => CommitOutcome::Done(offsets),
            Err(Refusal::Code { code: Code::TransactionAbortable, is_certain: true }) => match self.abort().await {
                Ok(()) => CommitOutcome::NotNow(LogError::Unavailable("Kafka aborted the transaction".to_owned())),
                Err(outcome) => outcome,
            },
            Err(Refusal::Code { code, is_certain: true }) if outcome::is_fenced(code) => CommitOutcome::Fenced,
            Err(Refusal::Code { code, .. }) => CommitOutcome::Unknown(format!("Kafka: {code}")),
            // The coordinator has not received it. The transaction is undone before the next one begins.
            Err(Refusal::Late { why, is_certain: true }) => {
                CommitOutcome::NotNow(LogError::Unavailable(format!("Kafka: {why}")))
            }
            Err(Refusal::Late { why, is_certain: false }) => CommitOutcome::Unknown(format!("Kafka: {why}")),
        }
    }

    /// Undoes the transaction. Where the coordinator cannot be reached in time, it stays to be undone before the next one begins. An
    /// error says that the fence is void.
    pub(super) async fn abort(&mut self) -> Result<(), CommitOutcome> {
        if !self.is_open {
            return Ok(());
        }
        match self.end_as(false, Instant::now() + ABORTING_MAX).await {
            Ok(()) => Ok(()),
            Err(Refusal::Code { code, .. }) if outcome::is_fenced(code) => Err(CommitOutcome::Fenced),
            // There was nothing to undo.
            Err(Refusal::Code { code: Code::InvalidTxnState, .. }) => {
                self.is_open = false;
                self.needs_new_epoch = true;
                Ok(())
            }
            Err(Refusal::Code { code, .. }) => Err(CommitOutcome::Unknown(format!("Kafka: {code}"))),
            Err(Refusal::Late { .. }) => {
                self.needs_new_epoch = true;
                Ok(())
            }
        }
    }

    async fn end_as(&mut self, is_commit: bool, deadline: Instant) -> Result<(), Refusal> {
        let request = EndTxnRequest::default()
            .with_transactional_id(self.transactional_id())
            .with_producer_id(ProducerId(self.producer_id))
            .with_producer_epoch(self.epoch)
            .with_committed(is_commit);
        self.coordinate(&request, |answer| answer.error_code, deadline).await?;
        self.is_open = false;
        Ok(())
    }

    /// Asks the coordinator until it answers with something definite, or the deadline is over.
    async fn coordinate<R: Request>(
        &mut self,
        request: &R,
        code_of: fn(&R::Response) -> i16,
        deadline: Instant,
    ) -> Result<R::Response, Refusal> {
        let mut is_certain = true;
        let mut slow = SlowStep::begin("the coordinator");
        loop {
            slow.tell(&self.context.transactional_id);
            let left = deadline.saturating_duration_since(Instant::now()).clamp(MOVING_PAUSE, ANSWER_MAX);
            let (why, pause) = match self.call_coordinator(request, left).await {
                Ok(answer) => match Code::try_from_code(code_of(&answer)) {
                    None => return Ok(answer),
                    Some(Code::ConcurrentTransactions) => {
                        (Code::ConcurrentTransactions.to_string(), PREVIOUS_TRANSACTION_PAUSE)
                    }
                    Some(code) if outcome::is_passing(code) => {
                        // A coordinator that could not replicate its decision in time answers so too, and may yet have made it.
                        if code != Code::CoordinatorLoadInProgress {
                            is_certain = false;
                            self.needs_new_epoch = true;
                        }
                        self.coordinator = None;
                        (code.to_string(), MOVING_PAUSE)
                    }
                    Some(code) => return Err(Refusal::Code { code, is_certain }),
                },
                Err(error) => {
                    self.note_loss(&error);
                    is_certain &= !error.may_have_been_received();
                    self.coordinator = None;
                    (error.to_string(), MOVING_PAUSE)
                }
            };
            if Instant::now() >= deadline {
                return Err(Refusal::Late { why, is_certain });
            }
            slow.why = why;
            tokio::time::sleep(pause).await;
        }
    }

    async fn call_coordinator<R: Request>(&mut self, request: &R, timeout: Duration) -> Result<R::Response, CallError> {
        let coordinator = match self.coordinator {
            Some(coordinator) => coordinator,
            None => self.find_coordinator(timeout).await?,
        };
        let connection = self.links.to(&self.context.cluster, coordinator).await?;
        self.coordinator = Some(coordinator);
        connection.call(request, timeout).await
    }

    async fn find_coordinator(&self, timeout: Duration) -> Result<i32, CallError> {
        let request = FindCoordinatorRequest::default()
            .with_key(StrBytes::from_string(self.context.transactional_id.clone()))
            .with_key_type(TRANSACTION_KEY);
        let answer = self.context.cluster.ask_any(&request, timeout).await;
        // The question itself changes nothing.
        let answer = answer.map_err(|error| CallError::NotSent(error.to_string()))?;
        if let Some(code) = Code::try_from_code(answer.error_code) {
            return Err(CallError::NotSent(format!("the coordinator is not known: {code}")));
        }
        self.context.cluster.learn_broker(answer.node_id.0, &answer.host, answer.port);
        Ok(answer.node_id.0)
    }

    fn note_loss(&mut self, error: &CallError) {
        self.has_lost_a_connection = true;
        self.needs_new_epoch |= error.may_have_been_received();
    }

    fn transactional_id(&self) -> TransactionalId {
        TransactionalId(StrBytes::from_string(self.context.transactional_id.clone()))
    }
}

/// A step that is repeated until it succeeds, and logged where that takes long.
struct SlowStep {
    waits_for: &'static str,
    why: String,
    tell_at: Instant,
}

impl SlowStep {
    fn begin(waits_for: &'static str) -> Self {
        Self { waits_for, why: String::new(), tell_at: Instant::now() + SLOW_STEP }
    }

    fn tell(&mut self, id: &str) {
        if Instant::now() >= self.tell_at {
            self.tell_at += SLOW_STEP;
            tracing::debug!(id, why = self.why, "the fence waits for {}", self.waits_for);
        }
    }
}

/// The most telling error of an answer: one that names a cause rather than a partition that was not tried.
fn worst_of(answer: &AddPartitionsToTxnResponse) -> i16 {
    let topics = answer.results_by_topic_v3_and_below.iter();
    let codes = topics.flat_map(|topic| &topic.results_by_partition).map(|each| each.partition_error_code);
    let not_tried = Code::OperationNotAttempted.code();
    let (mut worst, mut any) = (0, 0);
    for code in codes.filter(|code| *code != 0) {
        any = code;
        if code != not_tried {
            worst = code;
        }
    }
    if worst != 0 { worst } else { any }
}

fn not_now(index: usize, why: impl std::fmt::Display) -> WriteError {
    WriteError::Entry { index, error: LogError::Unavailable(format!("Kafka did not accept the records: {why}")) }
}

fn refused(part: &Part, code: Code) -> WriteError {
    let error = outcome::append_error(code, part.partition, part.largest, part.topic.record_bytes_max);
    WriteError::Entry { index: part.first_index(), error }
}
