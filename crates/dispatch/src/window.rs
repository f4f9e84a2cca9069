//! The window of one line of deliveries, over all its partitions: messages that were read and are not done, with their states. Pure: the
//! time is passed in, bodies are passed in on request, and nothing is read or called here.
//!
//! A *lane* is a unit of order: the messages of a key, or of a partition. A message without order gets a lane of its own once it has to
//! wait. One message of a lane is in flight at a time. A lane whose message failed is *parked*: it takes no slot, its bodies are dropped,
//! and its offsets are a compressed set. When its time has come, its bodies are requested again. A lane waits *behind* a barrier if its
//! key was in another partition before the topic grew.
//!
//! Bodies in memory are bounded for the whole window, see [`body_budget`]; parked state is bounded for each partition. At either bound,
//! reading pauses until there is space again.
//!
//! Saved progress has the offsets that are not done. Their lanes are found by reading them again.

mod barriers;
mod body_budget;
mod intake;
mod lost_messages;
mod partition;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use roaring::RoaringTreemap;
use whimbrel_model::subscription::Ordering;
use whimbrel_model::{PartitionId, Timestamp, TopicNumber};

use body_budget::BodyBudget;
pub use partition::PartitionResume;
use partition::{LaneKey, LaneState, LoadedState, OrderedLane, WindowPartition};
use whimbrel_catalogue::topics::Growth;

/// Identifies one delivery. An answer with a ticket that is not in flight is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryTicket(pub u64);

#[derive(Debug, Clone)]
pub struct ReadMessage<B> {
    pub offset: u64,
    pub key: Option<Bytes>,
    pub size: usize,
    /// `None`: the filter dropped the message, so it is done at once.
    pub body: Option<B>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyDelivery<B> {
    pub ticket: DeliveryTicket,
    pub partition: PartitionId,
    pub offset: u64,
    pub attempts: u32,
    pub body: B,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    pub partition: PartitionId,
    pub from: u64,
    /// The approximate space in bytes.
    pub max_bytes: usize,
    /// Whether it reads dropped bodies again. Otherwise it reads the next messages, and may wait for them.
    pub again: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLimits {
    /// The most bytes of bodies in memory, all partitions together.
    pub body_bytes: usize,
    /// The most bytes of parked state, for each partition.
    pub parked_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowMessageState {
    /// Not read yet.
    Ahead,
    Waiting,
    InFlight,
    Retrying {
        until: Timestamp,
        attempts: u32,
    },
    Done,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PartitionProgress {
    pub watermark: u64,
    pub read_to: u64,
    pub unfinished: RoaringTreemap,
    /// Offset, attempts, and time of the next attempt.
    pub retries: Vec<(u64, u32, Timestamp)>,
}

pub struct DeliveryWindow<B> {
    ordering: Ordering,
    limits: WindowLimits,
    bodies: BodyBudget,
    partitions: HashMap<PartitionId, WindowPartition<B>>,
    growths: HashMap<TopicNumber, Vec<Growth>>,
    out: HashMap<DeliveryTicket, (PartitionId, u64)>,
    last_ticket: u64,
    in_flight: usize,
    /// Heads that can be delivered now. Those of retry partitions are separate: they go first, and also while no new message may go.
    ready: VecDeque<(PartitionId, u64)>,
    ready_retries: VecDeque<(PartitionId, u64)>,
    parked: BTreeSet<(Timestamp, PartitionId, LaneKey)>,
    /// Partitions from which the next messages may be read.
    unread: VecDeque<PartitionId>,
    /// Partitions with lanes that need dropped bodies again.
    awaiting_body: BTreeSet<PartitionId>,
    /// Partitions with lanes of this key that wait behind a barrier.
    behind: HashMap<LaneKey, Vec<PartitionId>>,
}

impl<B: Clone> DeliveryWindow<B> {
    pub fn new(ordering: Ordering, limits: WindowLimits) -> Self {
        Self {
            ordering,
            limits,
            bodies: BodyBudget::new(limits.body_bytes),
            partitions: HashMap::new(),
            growths: HashMap::new(),
            out: HashMap::new(),
            last_ticket: 0,
            in_flight: 0,
            ready: VecDeque::new(),
            ready_retries: VecDeque::new(),
            parked: BTreeSet::new(),
            unread: VecDeque::new(),
            awaiting_body: BTreeSet::new(),
            behind: HashMap::new(),
        }
    }

    /// Opens a partition at its saved progress. `until` is the end of a replay. `is_retry`: its messages were attempted before.
    pub fn open(&mut self, id: PartitionId, resume: PartitionResume, until: Option<u64>, is_retry: bool) {
        if self.partitions.contains_key(&id) {
            return;
        }
        self.partitions.insert(id, WindowPartition::new(resume, until, is_retry));
        self.bodies.opened(is_retry);
        self.unread.push_back(id);
    }

    pub fn ordering(&self) -> Ordering {
        self.ordering
    }

    pub fn has(&self, id: PartitionId) -> bool {
        self.partitions.contains_key(&id)
    }

    pub fn partition_ids(&self) -> Vec<PartitionId> {
        let mut ids: Vec<_> = self.partitions.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Removes a partition: its topic is no longer read.
    pub fn close(&mut self, id: PartitionId) {
        let Some(partition) = self.partitions.remove(&id) else { return };
        *self.bodies.of(partition.is_retry) -= partition.body_bytes();
        self.bodies.closed(partition.is_retry);
        let out = std::mem::take(&mut self.out);
        self.in_flight -= out.values().filter(|(of, offset)| *of == id && !partition.is_settling(*offset)).count();
        self.out = out.into_iter().filter(|(_, (of, _))| *of != id).collect();
        self.ready.retain(|(of, _)| *of != id);
        self.ready_retries.retain(|(of, _)| *of != id);
        self.parked.retain(|(_, of, _)| *of != id);
        self.unread.retain(|of| *of != id);
        self.awaiting_body.remove(&id);
        self.behind.retain(|_, waiting| {
            waiting.retain(|of| *of != id);
            !waiting.is_empty()
        });
        self.recheck_all_barriers();
    }

    /// The next message to deliver now. A message without earlier attempts only if `fresh`.
    pub fn next_delivery(&mut self, now: Timestamp, fresh: bool) -> Option<ReadyDelivery<B>> {
        self.wake(now);
        let (id, offset) = match self.ready_retries.pop_front() {
            Some(place) => place,
            None if fresh => self.ready.pop_front()?,
            None => return None,
        };
        let ticket = self.new_ticket();
        let partition = self.partitions.get_mut(&id).expect("a ready partition is open");
        let attempts = partition.attempts_at(offset);
        partition.send_out(offset, ticket);
        let body = partition.loaded[&offset].body.clone();
        self.out.insert(ticket, (id, offset));
        self.in_flight += 1;
        Some(ReadyDelivery { ticket, partition: id, offset, attempts, body })
    }

    pub fn has_ready(&mut self, now: Timestamp, fresh: bool) -> bool {
        self.wake(now);
        !self.ready_retries.is_empty() || fresh && !self.ready.is_empty()
    }

    /// When the next parked lane is due.
    pub fn next_time(&self) -> Option<Timestamp> {
        self.parked.first().map(|(until, ..)| *until)
    }

    /// Makes all parked lanes due at `now`: an operator repaired the endpoint.
    pub fn hurry(&mut self, now: Timestamp) {
        self.replan(|until| until.min(now));
    }

    /// Moves the times of parked lanes after the clock was set back by `by`.
    pub fn set_back(&mut self, by: Duration) {
        self.replan(|until| until.saturating_sub(by));
    }

    fn replan(&mut self, plan: impl Fn(Timestamp) -> Timestamp) {
        for (until, id, key) in std::mem::take(&mut self.parked) {
            let until = plan(until);
            let partition = self.partitions.get_mut(&id).expect("a parked partition is open");
            if let Some(lane) = partition.lanes.get_mut(&key) {
                lane.state = LaneState::Parked(until);
                partition.changed = true;
            }
            self.parked.insert((until, id, key));
        }
    }

    /// Whether a ticket is in flight, and not being settled.
    pub fn is_in_flight(&self, ticket: DeliveryTicket) -> bool {
        let Some((id, offset)) = self.out.get(&ticket) else { return false };
        self.partitions.get(id).is_some_and(|partition| !partition.is_settling(*offset))
    }

    /// Completes the message of a delivery. Returns false if the ticket is not in flight.
    pub fn done(&mut self, ticket: DeliveryTicket) -> bool {
        let Some((id, offset)) = self.out.remove(&ticket) else { return false };
        let partition = self.partitions.get_mut(&id).expect("a partition in flight is open");
        let was_settling = partition.is_settling(offset);
        self.in_flight -= usize::from(!was_settling);
        self.finish(id, offset);
        true
    }

    /// Parks the lane of a failed delivery until `until`. `counts`: it was an attempt.
    pub fn park(&mut self, ticket: DeliveryTicket, until: Timestamp, counts: bool) -> bool {
        if !self.is_in_flight(ticket) {
            return false;
        }
        let (id, offset) = self.out.remove(&ticket).expect("the ticket is in flight");
        self.in_flight -= 1;
        let partition = self.partitions.get_mut(&id).expect("a partition in flight is open");
        let key = partition.park(offset, until, counts, self.bodies.of(partition.is_retry));
        self.parked.insert((until, id, key));
        true
    }

    /// Marks a failed message as settling: it becomes a hold or a dead letter. It is not done before that is durable, and its lane waits.
    /// It takes no slot. Returns false if the ticket is not in flight.
    pub fn settle(&mut self, ticket: DeliveryTicket) -> bool {
        if !self.is_in_flight(ticket) {
            return false;
        }
        let (id, offset) = self.out[&ticket];
        self.in_flight -= 1;
        let partition = self.partitions.get_mut(&id).expect("a partition in flight is open");
        partition.loaded.get_mut(&offset).expect("a message in flight is loaded").place = LoadedState::Settling;
        true
    }

    /// Parks a settling message until `until`, because it could not be settled. The attempt counts.
    pub fn park_settling(&mut self, ticket: DeliveryTicket, until: Timestamp) -> bool {
        let Some((id, offset)) = self.out.get(&ticket).copied() else { return false };
        let partition = self.partitions.get_mut(&id).expect("a partition in flight is open");
        let Some(loaded) = partition.loaded.get_mut(&offset).filter(|loaded| loaded.place == LoadedState::Settling)
        else {
            return false;
        };
        loaded.place = LoadedState::Out(ticket);
        self.in_flight += 1;
        self.park(ticket, until, true)
    }

    /// Completes a message: the watermark may move, and the lane advances.
    fn finish(&mut self, id: PartitionId, offset: u64) {
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
        match partition.finish(offset, self.bodies.of(partition.is_retry)) {
            Some(key) => {
                self.advance_lane(id, &key);
                self.recheck_barriers(&key);
            }
            // A lost message has no lane. But barriers of whole partitions wait for the watermark, which may have moved.
            None => self.recheck_barriers(&LaneKey::Whole),
        }
    }

    /// Advances a lane to its next message, or removes an empty lane.
    fn advance_lane(&mut self, id: PartitionId, key: &LaneKey) {
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
        let Some(lane) = partition.lanes.get_mut(key) else { return };
        lane.attempts = 0;
        let Some(head) = lane.head() else {
            partition.drop_lane(key);
            return;
        };
        if self.is_behind(id, head, key) {
            self.wait_behind(id, key);
        } else {
            self.activate_lane(id, key, head);
        }
    }

    /// Makes a lane wait for its key's messages in another partition, without bodies.
    fn wait_behind(&mut self, id: PartitionId, key: &LaneKey) {
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
        partition.drop_bodies(key, self.bodies.of(partition.is_retry));
        partition.lanes.get_mut(key).expect("the lane exists").state = LaneState::Behind;
        self.behind.entry(key.clone()).or_default().push(id);
    }

    /// Makes the lane's head ready, or requests its body again.
    fn activate_lane(&mut self, id: PartitionId, key: &LaneKey, head: u64) {
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
        let lane = partition.lanes.get_mut(key).expect("the lane exists");
        if lane.waiting.front() == Some(&head) {
            lane.state = LaneState::Ready;
            self.make_ready(id, head);
        } else {
            lane.state = LaneState::AwaitingBody;
            partition.awaiting_body.insert((head, key.clone()));
            self.awaiting_body.insert(id);
        }
    }

    /// Activates the parked lanes whose time has come.
    fn wake(&mut self, now: Timestamp) {
        while let Some((until, ..)) = self.parked.first()
            && *until <= now
        {
            let (_, id, key) = self.parked.pop_first().expect("the set is not empty");
            let Some(head) = self.partitions[&id].lanes.get(&key).and_then(OrderedLane::head) else { continue };
            // It was not behind when it was parked. If the progress of the old partition was lost since, it is behind again.
            if self.is_behind(id, head, &key) {
                self.wait_behind(id, &key);
            } else {
                self.activate_lane(id, &key, head);
            }
        }
    }

    fn new_ticket(&mut self) -> DeliveryTicket {
        self.last_ticket += 1;
        DeliveryTicket(self.last_ticket)
    }
}
