//! The sender of one partition: selects the next batch, assigns its producer id and sequence number, and handles its outcome.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka_protocol::ResponseError as Code;
use whimbrel_model::Record;
use whimbrel_model::ports::LogError;

use super::outgoing_batch::{RecordChunk, SendBatch};
use super::{AppendShared, DEADLINE_SPREAD_MAX, PartitionQueue, RETRY_PAUSE, ROUND_TRIP_MIN};
use crate::kafka::client::batch::{self, BatchIdentity, next_sequence};
use crate::kafka::client::connection::CallError;
use crate::kafka::known_topics::KnownTopic;
use crate::kafka::outcome;
use crate::kafka::settings::KafkaSettings;

/// The queue of one partition with its producer id and sequence number.
#[derive(Default)]
pub(super) struct PartitionSender {
    pub(super) queues: VecDeque<Arc<PartitionQueue>>,
    /// Batches to send before the queue: batches that must be sent again, and parts of batches that were split.
    pub(super) again: VecDeque<SendBatch>,
    pub(super) not_before: Option<Instant>,
    /// The error of the last request, if records of this partition wait because of it.
    pub(super) last_error: Option<String>,
    pub(super) is_under_way: bool,
    pub(super) is_sendable: bool,
    pub(super) identity: Option<ProducerIdentity>,
    pub(super) next_sequence: i32,
    /// Producer ids up to this number must not be used for this partition again.
    pub(super) expired_producer_number: u64,
    /// Whether the topic was deleted while a batch was in flight.
    pub(super) is_over: bool,
}

/// A producer id with its epoch; each has a higher number than the one before.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProducerIdentity {
    pub(super) number: u64,
    pub(super) producer_id: i64,
    pub(super) epoch: i16,
}

/// The outcome of one attempt to send a batch.
pub(super) enum SendOutcome {
    Written(u64),
    Failed(Code, Vec<usize>),
    Gone,
    NotAnswered(CallError),
}

impl PartitionSender {
    pub(super) fn topic(&mut self) -> Option<Arc<KnownTopic>> {
        if let Some(batch) = self.again.front() {
            return Some(batch.topic.clone());
        }
        // Under the queue's lock: a later append signals the sending task again.
        while let Some(queue) = self.queues.front() {
            let mut state = queue.state();
            if !state.chunks.is_empty() {
                return Some(queue.topic.clone());
            }
            state.is_signalled = false;
            drop(state);
            self.queues.pop_front();
        }
        None
    }

    /// The time until which the records in the queue wait for more records.
    pub(super) fn lingers_until(&self, linger: Duration) -> Option<Instant> {
        if linger.is_zero() {
            return None;
        }
        let queue = self.queues.front()?;
        let state = queue.state();
        let first = state.chunks.front()?;
        (state.bytes < queue.topic.batch_bytes_max()).then(|| first.put_at + linger)
    }

    /// Fails records that no broker has received and that have less than `ROUND_TRIP_MIN` left, and a batch that may have been written
    /// after its last deadline.
    pub(super) fn expire(&mut self, now: Instant, shared: &AppendShared) {
        let unsent_until = now + ROUND_TRIP_MIN;
        let why = self.last_error.as_deref().unwrap_or("the partition's leader cannot be reached");
        let mut is_in_doubt = false;
        for mut batch in std::mem::take(&mut self.again) {
            if !batch.may_be_written {
                batch.expire_records(unsent_until, why, shared);
                if batch.count > 0 {
                    self.again.push_back(batch);
                }
            } else if batch.send_by().is_none_or(|send_by| send_by <= now) {
                is_in_doubt = true;
                batch.expired(why, shared);
            } else {
                self.again.push_back(batch);
            }
        }
        for queue in &self.queues {
            loop {
                let mut state = queue.state();
                let Some(chunk) = state.chunks.pop_front_if(|chunk| chunk.deadline <= unsent_until) else { break };
                state.bytes -= chunk.bytes;
                drop(state);
                let batch = SendBatch::new(queue.topic.clone(), queue.partition, vec![chunk]);
                batch.expired(why, shared);
            }
        }
        if is_in_doubt {
            self.discard_producer_id();
        }
    }

    /// Fails all waiting records, because the topic no longer exists. They must not be sent: another topic may have the name by now.
    pub(super) fn end(&mut self, shared: &AppendShared) {
        for batch in self.again.drain(..) {
            if batch.may_be_written {
                batch.expired("the topic was deleted", shared);
            } else {
                let partition = batch.partition;
                batch.failed(&LogError::UnknownPartition(partition), shared);
            }
        }
        for queue in self.queues.drain(..) {
            let mut state = queue.state();
            let chunks: Vec<_> = state.chunks.drain(..).collect();
            state.bytes = 0;
            state.is_signalled = false;
            drop(state);
            if !chunks.is_empty() {
                let batch = SendBatch::new(queue.topic.clone(), queue.partition, chunks);
                batch.failed(&LogError::UnknownPartition(queue.partition), shared);
            }
        }
    }

    /// Makes the following batches use another producer id, because the sequence number of this partition is in doubt.
    pub(super) fn discard_producer_id(&mut self) {
        if let Some(identity) = self.identity.take() {
            self.expired_producer_number = identity.number;
        }
        // Batches that wait were numbered under the old id and have certainly not been written.
        self.again.iter_mut().for_each(|batch| batch.encoded = None);
    }

    /// Returns the next batch, numbered and encoded. Fails a batch that cannot be encoded and continues with the next one.
    pub(super) fn take(
        &mut self,
        identity: ProducerIdentity,
        settings: &KafkaSettings,
        shared: &AppendShared,
    ) -> Option<SendBatch> {
        loop {
            let mut batch = self.again.pop_front().or_else(|| self.gather())?;
            if batch.count == 0 {
                continue;
            }
            if batch.encoded.is_some() {
                return Some(batch);
            }
            let numbered = BatchIdentity {
                producer_id: identity.producer_id,
                producer_epoch: identity.epoch,
                base_sequence: self.next_sequence,
                is_transactional: false,
            };
            match batch::encode(batch.records(), numbered, settings.compression) {
                Ok(bytes) => {
                    batch.encoded = Some((numbered, bytes));
                    return Some(batch);
                }
                Err(error) => {
                    batch.failed(&LogError::Unsupported(format!("the batch cannot be encoded: {error}")), shared);
                }
            }
        }
    }

    pub(super) fn gather(&mut self) -> Option<SendBatch> {
        let queue = self.queues.front()?;
        let mut state = queue.state();
        let (mut room, mut chunks) = (queue.topic.batch_bytes_max(), Vec::<RecordChunk>::new());
        while let Some(first) = state.chunks.front_mut() {
            if chunks.first().is_some_and(|earliest| first.deadline > earliest.deadline + DEADLINE_SPREAD_MAX) {
                break;
            }
            let Some(chunk) = first.split(room, chunks.is_empty()) else { break };
            room = room.saturating_sub(chunk.records.iter().map(batch::encoded_bytes_max).sum());
            state.bytes -= chunk.bytes;
            chunks.push(chunk);
            if state.chunks.front().is_some_and(|first| !first.records.is_empty()) {
                break;
            }
            state.chunks.pop_front();
        }
        drop(state);
        (!chunks.is_empty()).then(|| SendBatch::new(queue.topic.clone(), queue.partition, chunks))
    }

    /// Handles the outcome of one attempt. Returns whether the leader must be looked up again.
    pub(super) fn handle_attempt(
        &mut self,
        mut batch: SendBatch,
        attempt: SendOutcome,
        shared: &Arc<AppendShared>,
    ) -> bool {
        let now = Instant::now();
        match attempt {
            SendOutcome::Written(base) => {
                if let Some((identity, _)) = batch.encoded {
                    self.next_sequence = next_sequence(identity.base_sequence, batch.count);
                }
                self.not_before = None;
                self.last_error = None;
                batch.written_at(base, shared);
                false
            }
            SendOutcome::Gone => {
                if batch.may_be_written {
                    self.discard_producer_id();
                    batch.expired("the topic no longer exists", shared);
                } else {
                    let partition = batch.partition;
                    batch.failed(&LogError::UnknownPartition(partition), shared);
                }
                false
            }
            SendOutcome::NotAnswered(error) => {
                self.last_error = Some(error.to_string());
                batch.may_be_written |= error.may_have_been_received();
                batch.is_repeat = true;
                self.retry(batch, now);
                true
            }
            SendOutcome::Failed(code, places) => self.failed(batch, code, &places, now, shared),
        }
    }

    pub(super) fn failed(
        &mut self,
        mut batch: SendBatch,
        code: Code,
        places: &[usize],
        now: Instant,
        shared: &Arc<AppendShared>,
    ) -> bool {
        self.last_error = Some(code.to_string());
        batch.may_be_written |= outcome::may_be_written(code);
        batch.is_repeat = true;
        match code {
            Code::OutOfOrderSequenceNumber
            | Code::UnknownProducerId
            | Code::InvalidProducerEpoch
            | Code::InvalidProducerIdMapping
            | Code::DuplicateSequenceNumber => {
                tracing::warn!(partition = %batch.partition, %code, "the broker rejected the producer's sequence or epoch; a new producer id is requested");
                let is_duplicate = code == Code::DuplicateSequenceNumber;
                self.discard_producer_id();
                batch.encoded = None;
                if batch.may_be_written || is_duplicate {
                    batch.may_be_written = true;
                    batch.expired(&code.to_string(), shared);
                } else {
                    self.retry(batch, now);
                }
                false
            }
            _ if outcome::is_unknown_partition(code) => {
                batch.unknown_since.get_or_insert(now);
                self.retry(batch, now);
                true
            }
            // The broker rejected this attempt, but it may have accepted an earlier attempt that was not answered.
            _ if batch.may_be_written && !outcome::is_passing(code) && !outcome::may_be_written(code) => {
                self.discard_producer_id();
                batch.expired(&code.to_string(), shared);
                false
            }
            Code::InvalidRecord if !places.is_empty() && places.len() < batch.count => {
                let refused = LogError::Unsupported(format!("Kafka refused the record: {code}"));
                batch.refuse_some(places, &refused, shared);
                self.again.push_front(batch);
                false
            }
            // The topic's limit is lower than it was when the topic became known.
            Code::MessageTooLarge | Code::RecordListTooLarge if batch.count > 1 => {
                let second = batch.halve();
                self.again.push_front(second);
                self.again.push_front(batch);
                false
            }
            _ if outcome::is_passing(code) || outcome::may_be_written(code) || code == Code::InvalidTimestamp => {
                self.retry(batch, now);
                true
            }
            _ => {
                let size = batch.records().map(Record::size).max().unwrap_or(0);
                let error = outcome::append_error(code, batch.partition, size, batch.topic.record_bytes_max);
                batch.failed(&error, shared);
                false
            }
        }
    }

    pub(super) fn retry(&mut self, batch: SendBatch, now: Instant) {
        self.not_before = Some(now + RETRY_PAUSE);
        self.again.push_front(batch);
    }
}
