//! The requests of a transactional producer.
//!
//! It uses version 1 of the transaction protocol, in which the client adds partitions itself: with version 2 a broker
//! waits `add.partitions.to.txn.retry.backoff.ms` (20 ms) between two transactions of one id. Version 2 adds an epoch per transaction.
//! This client gets the same safety in another way: **after any request that was not answered the fence takes a new epoch** before
//! its next transaction, so that a request which arrives late has a stale epoch and is rejected. It also takes one after every abort.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, EndTxnRequest, InitProducerIdRequest,
    InitProducerIdResponse, ProduceResponse, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use whimbrel_model::PartitionId;
use whimbrel_model::ports::{CommitOutcome, Entry, LogError};

pub(super) use self::marker::MarkerError;
use super::FenceContext;
use super::part::FencePart;
use super::repair::Repairs;
use crate::kafka::client::batch::{BatchIdentity, next_sequence};
use crate::kafka::client::cluster::ANSWER_MAX;
use crate::kafka::client::connection::CallError;
use crate::kafka::client::link::BrokerLinks;
use crate::kafka::coordinator::TransactionOutcome;
use crate::kafka::known_topics::{KnownTopic, TopicPartition};
use crate::kafka::outcome;
use crate::kafka::requests::{self, group_by_topic};

mod coordination;
mod marker;

/// The pause before the coordinator or a leader is asked again while the previous transaction is being finished.
const PREVIOUS_TRANSACTION_PAUSE_MIN: Duration = Duration::from_micros(500);
const PREVIOUS_TRANSACTION_PAUSE_MAX: Duration = Duration::from_millis(20);
/// The pause before a leader or coordinator that is moving is asked again.
pub(super) const MOVING_PAUSE: Duration = Duration::from_millis(20);
/// The time for which a partition may be unknown to its broker before the fence asks the cluster whether it exists.
pub(super) const UNKNOWN_MAX: Duration = Duration::from_secs(1);
/// The timeout of one attempt to end an open transaction.
const ENDING_MAX: Duration = Duration::from_secs(3);
/// The interval at which a slow step is logged.
const SLOW_STEP: Duration = Duration::from_secs(1);

/// The reason why a request to the coordinator failed.
enum CoordinatorError {
    /// The coordinator answered with a code. `is_certain` is false where an earlier attempt was not answered and may have been accepted.
    Code { code: Code, is_certain: bool },
    /// There was no answer in time.
    Late { why: String, is_certain: bool },
}

/// The reason why records could not be written.
#[derive(Debug)]
pub(super) enum FenceError {
    Fenced,
    /// The entry at `index` cannot be written now, or never.
    Entry {
        index: usize,
        error: LogError,
    },
    /// These partitions cannot be written now, others of the commit can.
    Blocked {
        partitions: Vec<PartitionId>,
        error: LogError,
    },
}

impl FenceError {
    /// Converts the index of the error from an index into `some` to an index into `places`, which contains them.
    pub(super) fn blamed_in(self, some: &[TopicPartition], places: &[TopicPartition]) -> Self {
        match self {
            Self::Entry { index, error } => {
                let blamed = some.get(index).map(|(_, partition)| *partition);
                let index = places.iter().position(|(_, partition)| Some(*partition) == blamed).unwrap_or(0);
                Self::Entry { index, error }
            }
            other => other,
        }
    }
}

/// A transaction that Kafka may have open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenState {
    /// It has no records. If it was begun to close a hanging transaction, it ends with the outcome of that one.
    Empty(TransactionOutcome),
    /// Records may have been written. It is aborted unless all of them are.
    WithRecords,
}

pub(super) struct FencedProducer {
    pub(super) context: FenceContext,
    pub(super) links: Arc<BrokerLinks>,
    pub(super) repairs: Repairs,
    coordinator: Option<i32>,
    producer_id: i64,
    epoch: i16,
    sequences: HashMap<PartitionId, i32>,
    open: Option<OpenState>,
    /// Whether a request of this epoch was not answered, and may arrive late.
    needs_new_epoch: bool,
    /// Whether a transaction was begun under this epoch. Its markers may arrive late.
    is_epoch_used: bool,
}

impl FencedProducer {
    pub(super) async fn open(context: FenceContext) -> Result<Self, LogError> {
        let deadline = Instant::now() + context.timeout;
        let mut fence = Self {
            context,
            links: Arc::default(),
            repairs: Repairs::default(),
            coordinator: None,
            producer_id: -1,
            epoch: -1,
            sequences: HashMap::new(),
            open: None,
            needs_new_epoch: false,
            is_epoch_used: false,
        };
        match fence.init(deadline).await {
            Ok(()) => {
                let in_use = fence.context.cluster.topics_in_use();
                let in_use: Vec<&str> = in_use.iter().map(String::as_str).collect();
                fence.learn_leaders(&in_use, deadline).await.map_err(|error| outcome::unavailable(&error))?;
                Ok(fence)
            }
            Err(CoordinatorError::Code { code, .. }) if outcome::is_refused_for_good(code) => {
                Err(LogError::Unsupported(format!(
                    "cannot open the fence: {code}; check the ACLs of transactional id `{}`",
                    fence.context.transactional_id
                )))
            }
            Err(CoordinatorError::Code { code, .. }) => Err(outcome::unavailable(&code)),
            Err(CoordinatorError::Late { why, .. }) => Err(outcome::unavailable(&why)),
        }
    }

    pub(super) fn producer_id(&self) -> i64 {
        self.producer_id
    }

    pub(super) fn identity(&self) -> (i64, i16) {
        (self.producer_id, self.epoch)
    }

    /// Whether a request of this epoch may arrive late.
    pub(super) fn needs_new_epoch(&self) -> bool {
        self.needs_new_epoch
    }

    /// Takes a new epoch before the next transaction.
    pub(super) fn demand_new_epoch(&mut self) {
        self.needs_new_epoch = true;
    }

    /// Takes a new epoch if a transaction was begun under the current one. The leaders then reject markers of that transaction that
    /// arrive late.
    pub(super) async fn leave_used_epoch(&mut self, deadline: Instant) -> Result<(), FenceError> {
        self.needs_new_epoch |= self.is_epoch_used;
        self.settle(deadline).await
    }

    /// Begins a transaction and writes all records: not yet visible, each with its offset.
    pub(super) async fn begin_and_write(
        &mut self,
        topics: &[Arc<KnownTopic>],
        entries: &[Entry],
        deadline: Instant,
    ) -> Result<Vec<u64>, FenceError> {
        let mut parts = FencePart::of(topics, entries);
        let places: Vec<TopicPartition> = parts.iter().map(|part| (part.topic.clone(), part.partition)).collect();
        self.begin(&places, deadline).await.map_err(|error| match error {
            FenceError::Entry { index, error } => FenceError::Entry { index: parts[index].first, error },
            other => other,
        })?;
        self.open = Some(OpenState::WithRecords);
        self.repairs.forget(&places);
        self.write(&mut parts, entries, deadline).await.inspect_err(|_| {
            // The broker's sequence numbers of this producer may not be those known here: a new epoch begins at zero everywhere.
            self.needs_new_epoch = true;
        })
    }

    /// Ends the open transaction, and takes a new epoch if a request of the current one may arrive late.
    pub(super) async fn settle(&mut self, deadline: Instant) -> Result<(), FenceError> {
        self.end_open(deadline).await?;
        if !self.needs_new_epoch {
            return Ok(());
        }
        self.init(deadline).await.map_err(|refusal| match refusal {
            CoordinatorError::Code { code, .. } if outcome::is_fenced(code) => FenceError::Fenced,
            CoordinatorError::Code { code, .. } => not_now(0, code),
            CoordinatorError::Late { why, .. } => not_now(0, why),
        })
    }

    async fn init(&mut self, deadline: Instant) -> Result<(), CoordinatorError> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(self.transactional_id()))
            .with_transaction_timeout_ms(i32::try_from(self.context.timeout.as_millis()).unwrap_or(i32::MAX))
            .with_producer_id(ProducerId(self.producer_id))
            .with_producer_epoch(self.epoch);
        let answer = self.coordinate(&request, |answer: &InitProducerIdResponse| answer.error_code, deadline).await?;
        if answer.producer_id.0 != self.producer_id {
            self.repairs.forget_all();
        }
        (self.producer_id, self.epoch) = (answer.producer_id.0, answer.producer_epoch);
        self.sequences.clear();
        (self.needs_new_epoch, self.is_epoch_used) = (false, false);
        Ok(())
    }

    /// Begins a transaction, which is empty until records are written. Success also means that the coordinator has finished every
    /// earlier transaction of the fence.
    pub(super) async fn add_partitions(
        &mut self,
        places: &[TopicPartition],
        ends_as: TransactionOutcome,
        deadline: Instant,
    ) -> Result<(), FenceError> {
        let partitions = places.iter().map(|(topic, partition)| (topic.wire_name(), partition.index as i32));
        let topics = group_by_topic(partitions).into_iter();
        let topics =
            topics.map(|(name, indexes)| AddPartitionsToTxnTopic::default().with_name(name).with_partitions(indexes));
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(self.transactional_id())
            .with_v3_and_below_producer_id(ProducerId(self.producer_id))
            .with_v3_and_below_producer_epoch(self.epoch)
            .with_v3_and_below_topics(topics.collect());
        let culprit: Mutex<Option<(String, i32)>> = Mutex::new(None);
        let code_of = |answer: &AddPartitionsToTxnResponse| {
            let Some((topic, index, code)) = culprit_of(answer) else { return 0 };
            *culprit.lock().unwrap_or_else(PoisonError::into_inner) = Some((topic.to_owned(), index));
            code
        };
        let mut unknown_since = None;
        loop {
            self.open = Some(OpenState::Empty(ends_as));
            self.is_epoch_used = true;
            let refusal = match self.coordinate(&request, code_of, deadline).await {
                Ok(_) => return Ok(()),
                Err(refusal) => refusal,
            };
            let code = match refusal {
                CoordinatorError::Late { why, .. } => return Err(not_now(0, why)),
                CoordinatorError::Code { code, .. } => code,
            };
            if outcome::is_fenced(code) {
                return Err(FenceError::Fenced);
            }
            if !outcome::is_unknown_partition(code) {
                let culprit = culprit.into_inner().unwrap_or_else(PoisonError::into_inner);
                let is_it = |(topic, partition): &TopicPartition| {
                    culprit
                        .as_ref()
                        .is_some_and(|(name, index)| topic.name() == name && partition.index as i32 == *index)
                };
                let at = places.iter().position(is_it).unwrap_or(0);
                return Err(refused(&places[at], at, code, 0));
            }
            // A broker that has just started knows no topic yet.
            let is_late = Instant::now() >= deadline;
            if is_late || unknown_since.get_or_insert_with(Instant::now).elapsed() >= UNKNOWN_MAX {
                let gone = self.are_gone(places).await;
                if let Some(at) = gone.iter().position(|is_gone| *is_gone) {
                    return Err(refused(&places[at], at, code, 0));
                }
            }
            if is_late {
                return Err(not_now(0, code));
            }
            tokio::time::sleep(MOVING_PAUSE).await;
        }
    }

    /// Writes the records of all partitions. Repeats those that were not accepted until the deadline.
    async fn write(
        &mut self,
        parts: &mut [FencePart],
        entries: &[Entry],
        deadline: Instant,
    ) -> Result<Vec<u64>, FenceError> {
        let mut offsets = vec![0; entries.len()];
        let mut slow = SlowStep::begin("a partition's leader");
        loop {
            slow.log(&self.context.transactional_id);
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
            // All answers are handled before the first error is returned: each one updates the sequence numbers of its partitions.
            let mut error = None;
            for ((_, places), answer) in by_leader.iter().zip(answers) {
                match answer {
                    Ok(answer) => {
                        for at in places {
                            match self.take_answer(&mut parts[*at], &answer, &mut offsets).await {
                                Ok(Some(why)) => failed = Some((*at, why)),
                                Ok(None) => {}
                                Err(refused) => error = error.or(Some(refused)),
                            }
                        }
                    }
                    Err(error) => {
                        self.needs_new_epoch |= error.may_have_been_received();
                        failed = Some((places[0], error.to_string()));
                    }
                }
            }
            if let Some(error) = error {
                return Err(error);
            }
            let Some((at, why)) = failed else { continue };
            if Instant::now() >= deadline {
                let part = &parts[at];
                let is_gone = self.context.queries.is_missing(&part.topic, part.partition.index).await;
                return Err(match is_gone {
                    Ok(true) => part.refused(part.first_index(), Code::UnknownTopicOrPartition),
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
        parts: Vec<&FencePart>,
        deadline: Instant,
    ) -> impl Future<Output = Result<ProduceResponse, CallError>> + Send {
        let overall = deadline.saturating_duration_since(Instant::now()).max(MOVING_PAUSE);
        let left = overall.min(ANSWER_MAX);
        let batches = parts.into_iter().map(|part| {
            let records = part.prepared.as_ref().map(|(_, bytes)| bytes.clone());
            (&*part.topic, part.partition, records)
        });
        let request = requests::produce(batches, left).with_transactional_id(Some(self.transactional_id()));
        async move {
            let connection = self.links.to(&self.context.cluster, leader).await?;
            connection.call_within(&request, left, overall).await
        }
    }

    /// Handles the answer about one partition. Returns the reason if its batch must be sent again.
    async fn take_answer(
        &mut self,
        part: &mut FencePart,
        answer: &ProduceResponse,
        offsets: &mut [u64],
    ) -> Result<Option<String>, FenceError> {
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
            return Err(FenceError::Fenced);
        }
        self.needs_new_epoch |= outcome::may_be_written(code);
        if outcome::is_unknown_partition(code) {
            if part.unknown_since.get_or_insert_with(Instant::now).elapsed() >= UNKNOWN_MAX
                && self.context.queries.is_missing(&part.topic, part.partition.index).await.unwrap_or(false)
            {
                return Err(part.refused(part.first_index(), code));
            }
            return Ok(Some(code.to_string()));
        }
        if outcome::is_passing(code) || outcome::may_be_written(code) {
            return Ok(Some(code.to_string()));
        }
        // The topic's limit is lower than it was when the topic became known. An attempt that was not answered may have been accepted.
        if matches!(code, Code::MessageTooLarge | Code::RecordListTooLarge) && part.has_several_records() {
            if self.needs_new_epoch {
                return Err(not_now(part.first_index(), code));
            }
            part.split();
            return Ok(Some(code.to_string()));
        }
        let culprit = found.record_errors.first().map(|error| error.batch_index.max(0) as usize);
        Err(part.refused(part.index_in_batch(culprit.unwrap_or(0)), code))
    }

    pub(super) async fn end(&mut self, offsets: Vec<u64>, deadline: Instant) -> CommitOutcome {
        match self.end_as(TransactionOutcome::Committed, deadline).await {
            Ok(()) => CommitOutcome::Done(offsets),
            Err(CoordinatorError::Code { code: Code::TransactionAbortable, is_certain: true }) => {
                match self.end_open(deadline).await {
                    Ok(()) | Err(FenceError::Entry { .. } | FenceError::Blocked { .. }) => {
                        CommitOutcome::NotNow(LogError::Unavailable("Kafka aborted the transaction".to_owned()))
                    }
                    Err(FenceError::Fenced) => CommitOutcome::Fenced,
                }
            }
            Err(CoordinatorError::Code { code, is_certain: true }) if outcome::is_fenced(code) => CommitOutcome::Fenced,
            Err(CoordinatorError::Code { code, .. }) => CommitOutcome::Unknown(format!("Kafka: {code}")),
            // The coordinator has not received it. The transaction is aborted before the next one begins.
            Err(CoordinatorError::Late { why, is_certain: true }) => {
                CommitOutcome::NotNow(LogError::Unavailable(format!("Kafka: {why}")))
            }
            Err(CoordinatorError::Late { why, is_certain: false }) => CommitOutcome::Unknown(format!("Kafka: {why}")),
        }
    }

    /// Ends the open transaction: one with records is aborted. If the coordinator cannot be reached in time, it stays open, and no other
    /// transaction begins.
    pub(super) async fn end_open(&mut self, deadline: Instant) -> Result<(), FenceError> {
        let ends_as = match self.open {
            None => return Ok(()),
            Some(OpenState::Empty(outcome)) => outcome,
            Some(OpenState::WithRecords) => TransactionOutcome::Aborted,
        };
        match self.end_as(ends_as, deadline.min(Instant::now() + ENDING_MAX)).await {
            Ok(()) => Ok(()),
            // No transaction was open. One with records was: it is committed, or another process has ended it.
            Err(CoordinatorError::Code { code: Code::InvalidTxnState, .. })
                if self.open != Some(OpenState::WithRecords) =>
            {
                self.open = None;
                self.needs_new_epoch = true;
                Ok(())
            }
            // The fence is void, or its state differs from the coordinator's.
            Err(CoordinatorError::Code { .. }) => Err(FenceError::Fenced),
            Err(CoordinatorError::Late { why, .. }) => {
                self.needs_new_epoch = true;
                Err(not_now(0, format!("the previous transaction has not been ended yet: {why}")))
            }
        }
    }

    async fn end_as(&mut self, outcome: TransactionOutcome, deadline: Instant) -> Result<(), CoordinatorError> {
        let request = EndTxnRequest::default()
            .with_transactional_id(self.transactional_id())
            .with_producer_id(ProducerId(self.producer_id))
            .with_producer_epoch(self.epoch)
            .with_committed(outcome == TransactionOutcome::Committed);
        self.coordinate(&request, |answer| answer.error_code, deadline).await?;
        self.open = None;
        // After a lost connection a coordinator sends its markers again. A second copy of this one would abort the next transaction.
        self.needs_new_epoch |= outcome == TransactionOutcome::Aborted;
        Ok(())
    }

    fn transactional_id(&self) -> TransactionalId {
        TransactionalId(StrBytes::from_string(self.context.transactional_id.clone()))
    }
}

/// A step that is repeated until it succeeds, and logged every [`SLOW_STEP`].
struct SlowStep {
    waits_for: &'static str,
    why: String,
    log_at: Instant,
}

impl SlowStep {
    fn begin(waits_for: &'static str) -> Self {
        Self { waits_for, why: String::new(), log_at: Instant::now() + SLOW_STEP }
    }

    fn log(&mut self, id: &str) {
        if Instant::now() >= self.log_at {
            self.log_at += SLOW_STEP;
            tracing::debug!(id, why = self.why, "the fence waits for {}", self.waits_for);
        }
    }
}

/// The partition that made the coordinator reject a request, with its error: one that names a cause rather than a partition that was not
/// tried.
fn culprit_of(answer: &AddPartitionsToTxnResponse) -> Option<(&str, i32, i16)> {
    let topics = answer.results_by_topic_v3_and_below.iter();
    let results = topics.flat_map(|topic| {
        let name = topic.name.as_str();
        topic.results_by_partition.iter().map(move |each| (name, each.partition_index, each.partition_error_code))
    });
    let failed = results.filter(|(_, _, code)| *code != 0);
    failed.min_by_key(|(_, _, code)| *code == Code::OperationNotAttempted.code())
}

/// The pause grows with the time waited, so that little of it is wasted.
pub(super) fn pause_after(waited: Duration) -> Duration {
    (waited / 8).clamp(PREVIOUS_TRANSACTION_PAUSE_MIN, PREVIOUS_TRANSACTION_PAUSE_MAX)
}

pub(super) fn not_now(index: usize, why: impl std::fmt::Display) -> FenceError {
    FenceError::Entry { index, error: LogError::Unavailable(format!("Kafka did not accept the records: {why}")) }
}

pub(super) fn blocked(places: &[TopicPartition], why: impl std::fmt::Display) -> FenceError {
    let error = LogError::Unavailable(format!("Kafka did not accept the records: {why}"));
    FenceError::Blocked { partitions: places.iter().map(|(_, partition)| *partition).collect(), error }
}

/// The refusal of the entry at `index`, of `size` bytes.
pub(super) fn refused((topic, partition): &TopicPartition, index: usize, code: Code, size: usize) -> FenceError {
    FenceError::Entry { index, error: outcome::append_error(code, *partition, size, topic.record_bytes_max) }
}
