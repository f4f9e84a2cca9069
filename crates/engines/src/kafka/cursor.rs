//! A cursor: one place in one partition, where a consumer of librdkafka fetches ahead and readers take records from memory.
//!
//! Nothing here waits: what has not arrived is waited for with [`Cursor::arrived`]. Only placing a cursor talks to librdkafka's own
//! threads, and is for a thread that may block.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::Notify;
use whimbrel_model::ports::{ReadBatch, ReadLimits};
use whimbrel_model::{PartitionId, Record, StoredRecord, Timestamp, TopicNumber};

use super::context::{Consumer, Quiet};
use super::known::KnownTopic;
use super::mend;
use super::native;
use super::outcome;
use super::window::{OutsideWindow, Window};

/// How long librdkafka may take to let go of a place. It is a matter of its own threads, not of the network.
const LETTING_GO_MAX: Duration = Duration::from_secs(5);
/// How long a consumer may take to hear that a topic has grown.
const REFRESH_MAX: Duration = Duration::from_secs(5);
const LETTING_GO_STEP: Duration = Duration::from_micros(200);

/// Why a cursor is of no use any more where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CursorLost {
    /// It was let go; the topic may have been deleted.
    Retired,
    /// The consumer does not know the partition. It may not have heard yet that the topic has grown.
    UnknownPartition,
    /// It has gone on without the reader, which came too late for what the cursor keeps or stands at what was trimmed.
    Passed,
    Failed(Code),
}

impl From<OutsideWindow> for CursorLost {
    fn from(OutsideWindow: OutsideWindow) -> Self {
        Self::Passed
    }
}

impl From<Code> for CursorLost {
    fn from(code: Code) -> Self {
        if outcome::is_unknown_partition(code) { Self::UnknownPartition } else { Self::Failed(code) }
    }
}

pub(super) struct Cursor {
    client: Arc<Consumer>,
    arrived: Arc<Notify>,
    state: Mutex<State>,
}

struct State {
    partition: PartitionId,
    topic: Arc<KnownTopic>,
    window: Window,
    /// `None` until the cursor is placed, and while it is being placed anew.
    queue: Option<PartitionQueue<Quiet>>,
    /// The place that the consumer is assigned to. It stays assigned when the cursor is lost.
    assigned: Option<(Arc<KnownTopic>, PartitionId)>,
    lost: Option<CursorLost>,
    /// Whether the consumer must ask for the topic again before it is placed.
    must_refresh: bool,
}

impl Cursor {
    /// A cursor that will stand at `from` once it is placed. Readers may wait at it already; the one that it is made for holds
    /// the place.
    pub fn new(client: Arc<Consumer>, topic: Arc<KnownTopic>, partition: PartitionId, from: u64) -> Self {
        let window = Window::held_at(from);
        let state = State { partition, topic, window, queue: None, assigned: None, lost: None, must_refresh: false };
        Self { client, arrived: Arc::new(Notify::new()), state: Mutex::new(state) }
    }

    pub fn client(&self) -> &Arc<Consumer> {
        &self.client
    }

    /// Wakes when there may be more to take. Register before taking, then wait.
    pub fn arrived(&self) -> &Arc<Notify> {
        &self.arrived
    }

    pub fn topic(&self) -> TopicNumber {
        self.state().partition.topic
    }

    /// Keeps what a reader at `from` has still to read, where the cursor covers that place; says whether it does. Until it is
    /// released, the place is left behind only by a trim, or by others who read on far while the reader does not come.
    pub fn hold(&self, partition: PartitionId, from: u64) -> bool {
        let mut state = self.state();
        let covers = state.lost.is_none() && state.partition == partition && state.window.covers(from);
        if covers {
            state.window.hold(from);
        }
        covers
    }

    /// The reader that held `from` has left.
    pub fn release(&self, from: u64) {
        self.state().window.release(from);
    }

    /// The reader that held `from` goes on to `next`.
    pub fn move_hold(&self, from: u64, next: u64) {
        let mut state = self.state();
        state.window.hold(next);
        state.window.release(from);
    }

    /// Takes what is there for a reader at `from`, which may be nothing; `next` then passes the markers that are known of.
    pub fn take(&self, from: u64, limits: &ReadLimits) -> Result<ReadBatch, CursorLost> {
        let mut state = self.state();
        let batch = state.window.read(from, limits)?;
        if !batch.records.is_empty() {
            return Ok(batch);
        }
        self.pull(&mut state, limits);
        let batch = state.window.read(from, limits)?;
        if let (true, Some(lost)) = (batch.records.is_empty(), state.lost) {
            return Err(lost);
        }
        state.window.forget_read();
        Ok(batch)
    }

    /// Moves what librdkafka has fetched into the window, up to about what one reader wants.
    fn pull(&self, state: &mut State, limits: &ReadLimits) {
        let State { window, queue: Some(queue), lost, topic, partition, .. } = state else { return };
        let (mut records, mut bytes) = (0, 0);
        while records < limits.max_records.max(1) && bytes < limits.max_bytes.max(1) {
            match queue.poll(Duration::ZERO) {
                Some(Ok(message)) => {
                    let stored = stored_record(&message);
                    if mend::is_only_an_end(&stored.record) {
                        continue;
                    }
                    records += 1;
                    bytes += stored.record.size();
                    window.push(stored);
                }
                Some(Err(error)) => match error {
                    KafkaError::PartitionEOF(_) => {}
                    error => {
                        *lost = Some(code_of(&error).into());
                        return;
                    }
                },
                None => {
                    if let Some(position) = native::position(&self.client, &topic.name, partition.index) {
                        window.pass_to(position);
                    }
                    return;
                }
            }
        }
    }

    /// The log has dropped what lies before `first`. Readers that stand there find out.
    pub fn forget_before(&self, partition: PartitionId, first: u64) {
        let mut state = self.state();
        if state.partition == partition {
            state.window.forget_before(first);
            drop(state);
            self.arrived.notify_waiters();
        }
    }

    /// Says where the cursor will stand: from now on readers of that place may wait at it, and the one that it is aimed for holds
    /// the place. Nobody may hold another one, and placing must follow.
    pub fn aim(&self, topic: Arc<KnownTopic>, partition: PartitionId, from: u64) {
        let mut state = self.state();
        // The queue's callback is switched off when it is dropped, which must be before a new one is switched on.
        state.queue = None;
        state.must_refresh = state.lost == Some(CursorLost::UnknownPartition);
        (state.partition, state.topic, state.window, state.lost) = (partition, topic, Window::held_at(from), None);
    }

    /// Makes the consumer fetch from the place that was aimed at. Blocks for as long as librdkafka's threads need.
    pub fn place(&self) {
        let placed = self.let_go().and_then(|()| self.assign());
        let mut state = self.state();
        match placed {
            Ok(queue) => state.queue = Some(queue),
            Err(code) => {
                state.lost.get_or_insert(code.into());
            }
        }
        drop(state);
        self.arrived.notify_waiters();
    }

    fn assign(&self) -> Result<PartitionQueue<Quiet>, Code> {
        let (topic, partition, from, must_refresh) = {
            let state = self.state();
            (state.topic.clone(), state.partition, state.window.next(), state.must_refresh)
        };
        if must_refresh {
            self.client.fetch_metadata(Some(&topic.name), REFRESH_MAX).map_err(|error| code_of(&error))?;
        }
        let (name, index) = (&topic.name, partition.index as i32);
        // Records go to the partition's own queue from the first one only if it is split off before the assignment.
        let mut queue = self.client.split_partition_queue(name, index).ok_or(Code::UnknownPartition)?;
        let arrived = self.arrived.clone();
        queue.set_nonempty_callback(move || arrived.notify_waiters());
        let mut list = TopicPartitionList::with_capacity(1);
        let from = i64::try_from(from).map_err(|_| Code::OffsetOutOfRange)?;
        list.add_partition_offset(name, index, Offset::Offset(from)).map_err(|_| Code::InvalidArgument)?;
        self.client.incremental_assign(&list).map_err(|error| code_of(&error))?;
        self.state().assigned = Some((topic, partition));
        Ok(queue)
    }

    /// Stops fetching the place that is assigned, and waits until librdkafka has forgotten its position there: a position that is
    /// left over would be taken for that of the next place.
    fn let_go(&self) -> Result<(), Code> {
        let Some((topic, partition)) = self.state().assigned.clone() else { return Ok(()) };
        let mut list = TopicPartitionList::with_capacity(1);
        list.add_partition(&topic.name, partition.index as i32);
        self.client.incremental_unassign(&list).map_err(|error| code_of(&error))?;
        let began = Instant::now();
        while native::position(&self.client, &topic.name, partition.index).is_some() {
            if began.elapsed() > LETTING_GO_MAX {
                return Err(Code::OperationTimedOut);
            }
            std::thread::sleep(LETTING_GO_STEP);
        }
        self.state().assigned = None;
        Ok(())
    }

    /// Stops fetching, for good. Blocks as [`Cursor::place`] does.
    pub fn retire(&self) {
        {
            let mut state = self.state();
            state.queue = None;
            state.lost = Some(CursorLost::Retired);
        }
        self.arrived.notify_waiters();
        if let Err(code) = self.let_go() {
            tracing::debug!("a Kafka reader does not let go of its partition: {code}");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn code_of(error: &KafkaError) -> Code {
    error.rdkafka_error_code().unwrap_or(Code::Fail)
}

fn stored_record(message: &BorrowedMessage<'_>) -> StoredRecord {
    let (key, value) = native::key_and_value_of(message);
    let headers = native::headers_of(message);
    let timestamp = Timestamp::from_millis(message.timestamp().to_millis().unwrap_or(0));
    StoredRecord { offset: message.offset().max(0) as u64, record: Record { key, value, headers, timestamp } }
}
