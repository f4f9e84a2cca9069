//! The window of one line of deliveries, over all its partitions: what was read and is not done, what is in flight, what waits and for
//! what. Pure: time is passed in, bodies are brought and asked for again, nothing is read or called here.
//!
//! A *lane* is what must stay in order: the messages of a key, or of a partition; a message without order is a lane of its own once it
//! has to wait. Of a lane one message is out at a time. A lane whose message failed is *parked*: it costs no slot, its bodies are
//! dropped, its offsets are a compressed set, and when its time has come its bodies are asked for again. A lane whose key lived in
//! another partition before its topic grew waits *behind* what that partition held at that moment.
//!
//! Bounds: bodies in memory are bounded for the whole window, see [`room`]; what is parked, for each partition. At either, reading stops
//! and goes on by itself when there is room.
//!
//! What is saved says which offsets are not done; which lanes they belong to is found out by reading them again.

mod barriers;
mod looking;
mod losing;
mod partition;
mod reading;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use roaring::RoaringTreemap;
use whimbrel_model::subscription::Ordering;
use whimbrel_model::{PartitionId, Timestamp, TopicNumber};

pub use partition::Resume;
use partition::{Lane, LaneKey, LaneState, Partition, Place};
use room::Bodies;
use whimbrel_catalogue::topics::Growth;

/// Names one delivery. An answer under a ticket that is no longer out changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A message as it was read.
#[derive(Debug, Clone)]
pub struct Arrival<B> {
    pub offset: u64,
    pub key: Option<Bytes>,
    /// Bytes that the body takes.
    pub size: usize,
    /// `None`: it is not for this line, and done at once.
    pub body: Option<B>,
}

/// A message to deliver now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<B> {
    pub ticket: Ticket,
    pub partition: PartitionId,
    pub offset: u64,
    /// Attempts that were made before this one.
    pub attempts: u32,
    pub body: B,
}

/// A read that the window wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadWanted {
    pub partition: PartitionId,
    pub from: u64,
    /// Bytes that there is room for, about.
    pub max_bytes: usize,
    /// Bodies that were dropped are wanted again; otherwise it is what comes next, and may be waited for.
    pub again: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLimits {
    /// Bodies in memory, all partitions together.
    pub body_bytes: usize,
    /// What is parked, of each partition.
    pub parked_bytes: usize,
}

/// What of a message is where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
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

/// What a partition's progress is, to be saved.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    pub watermark: u64,
    pub read_to: u64,
    pub unfinished: RoaringTreemap,
    /// Offset, attempts, when next.
    pub retries: Vec<(u64, u32, Timestamp)>,
}

pub struct Window<B> {
    ordering: Ordering,
    limits: WindowLimits,
    bodies: Bodies,
    partitions: HashMap<PartitionId, Partition<B>>,
    growths: HashMap<TopicNumber, Vec<Growth>>,
    out: HashMap<Ticket, (PartitionId, u64)>,
    last_ticket: u64,
    in_flight: usize,
    /// Heads that can go now, those of retry partitions apart: they go first, and also where nothing fresh may.
    ready: VecDeque<(PartitionId, u64)>,
    ready_retries: VecDeque<(PartitionId, u64)>,
    parked: BTreeSet<(Timestamp, PartitionId, LaneKey)>,
    /// Partitions from which the next messages could be read.
    unread: VecDeque<PartitionId>,
    /// Partitions with lanes whose bodies are wanted again.
    hungry: BTreeSet<PartitionId>,
    /// Partitions with lanes of this key that wait behind a barrier.
    behind: HashMap<LaneKey, Vec<PartitionId>>,
}

impl<B: Clone> Window<B> {
    pub fn new(ordering: Ordering, limits: WindowLimits) -> Self {
        Self {
            ordering,
            limits,
            bodies: Bodies::new(limits.body_bytes),
            partitions: HashMap::new(),
            growths: HashMap::new(),
            out: HashMap::new(),
            last_ticket: 0,
            in_flight: 0,
            ready: VecDeque::new(),
            ready_retries: VecDeque::new(),
            parked: BTreeSet::new(),
            unread: VecDeque::new(),
            hungry: BTreeSet::new(),
            behind: HashMap::new(),
        }
    }

    /// Takes a partition in, from where it was left. `until` is where a replay ends. `is_retry`: what it has were delivered before.
    pub fn open(&mut self, id: PartitionId, resume: Resume, until: Option<u64>, is_retry: bool) {
        if self.partitions.contains_key(&id) {
            return;
        }
        self.partitions.insert(id, Partition::new(resume, until, is_retry));
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

    /// Lets a partition go with everything of it: its topic is no longer read.
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
        self.hungry.remove(&id);
        self.behind.retain(|_, waiting| {
            waiting.retain(|of| *of != id);
            !waiting.is_empty()
        });
        self.look_at_all_behind();
    }

    /// The next message to deliver now; what was never delivered only where `fresh` is allowed.
    pub fn next_delivery(&mut self, now: Timestamp, fresh: bool) -> Option<Delivery<B>> {
        self.wake(now);
        let (id, offset) = match self.ready_retries.pop_front() {
            Some(place) => place,
            None if fresh => self.ready.pop_front()?,
            None => return None,
        };
        let ticket = self.new_ticket();
        let partition = self.partitions.get_mut(&id).expect("what is ready is open");
        let attempts = partition.attempts_at(offset);
        partition.goes_out(offset, ticket);
        let body = partition.loaded[&offset].body.clone();
        self.out.insert(ticket, (id, offset));
        self.in_flight += 1;
        Some(Delivery { ticket, partition: id, offset, attempts, body })
    }

    /// Whether something could be delivered now.
    pub fn has_ready(&mut self, now: Timestamp, fresh: bool) -> bool {
        self.wake(now);
        !self.ready_retries.is_empty() || fresh && !self.ready.is_empty()
    }

    /// When something that is parked can go on.
    pub fn next_time(&self) -> Option<Timestamp> {
        self.parked.first().map(|(until, ..)| *until)
    }

    /// What is parked need not wait for its time any more: somebody says that what it waited for was mended.
    pub fn hurry(&mut self, now: Timestamp) {
        self.replan(|until| until.min(now));
    }

    /// The clock was set back by so much: what is parked waits as long as it would have.
    pub fn set_back(&mut self, by: Duration) {
        self.replan(|until| until.saturating_sub(by));
    }

    fn replan(&mut self, plan: impl Fn(Timestamp) -> Timestamp) {
        for (until, id, key) in std::mem::take(&mut self.parked) {
            let until = plan(until);
            let partition = self.partitions.get_mut(&id).expect("what is parked is open");
            if let Some(lane) = partition.lanes.get_mut(&key) {
                lane.state = LaneState::Parked(until);
                partition.changed = true;
            }
            self.parked.insert((until, id, key));
        }
    }

    /// Whether a ticket is out, and not being settled.
    pub fn is_in_flight(&self, ticket: Ticket) -> bool {
        let Some((id, offset)) = self.out.get(&ticket) else { return false };
        self.partitions.get(id).is_some_and(|partition| !partition.is_settling(*offset))
    }

    /// The delivery is over and the message is done. `false`: the ticket is not out.
    pub fn done(&mut self, ticket: Ticket) -> bool {
        let Some((id, offset)) = self.out.remove(&ticket) else { return false };
        let partition = self.partitions.get_mut(&id).expect("what is out is open");
        let was_settling = partition.is_settling(offset);
        self.in_flight -= usize::from(!was_settling);
        self.finish(id, offset);
        true
    }

    /// The delivery failed, and is tried again at `until`: the lane is parked. `counts`: it was an attempt.
    pub fn park(&mut self, ticket: Ticket, until: Timestamp, counts: bool) -> bool {
        if !self.is_in_flight(ticket) {
            return false;
        }
        let (id, offset) = self.out.remove(&ticket).expect("it is out");
        self.in_flight -= 1;
        let partition = self.partitions.get_mut(&id).expect("what is out is open");
        let key = partition.park(offset, until, counts, self.bodies.of(partition.is_retry));
        self.parked.insert((until, id, key));
        true
    }

    /// The delivery failed for good, or becomes a hold: until that is durable the message is not done, and its lane waits. It takes no
    /// slot any more. `false`: the ticket is not out.
    pub fn settle(&mut self, ticket: Ticket) -> bool {
        if !self.is_in_flight(ticket) {
            return false;
        }
        let (id, offset) = self.out[&ticket];
        self.in_flight -= 1;
        let partition = self.partitions.get_mut(&id).expect("what is out is open");
        partition.loaded.get_mut(&offset).expect("what is out is loaded").place = Place::Settling;
        true
    }

    /// What was to become of the message cannot be: it waits where it is, until then. The attempt counts.
    pub fn park_settling(&mut self, ticket: Ticket, until: Timestamp) -> bool {
        let Some((id, offset)) = self.out.get(&ticket).copied() else { return false };
        let partition = self.partitions.get_mut(&id).expect("what is out is open");
        let Some(loaded) = partition.loaded.get_mut(&offset).filter(|loaded| loaded.place == Place::Settling) else {
            return false;
        };
        loaded.place = Place::Out(ticket);
        self.in_flight += 1;
        self.park(ticket, until, true)
    }

    /// A message is done: the watermark may move, its lane goes on.
    fn finish(&mut self, id: PartitionId, offset: u64) {
        let partition = self.partitions.get_mut(&id).expect("it is open");
        match partition.finish(offset, self.bodies.of(partition.is_retry)) {
            Some(key) => {
                self.lane_goes_on(id, &key);
                self.look_behind(&key);
            }
            // Of what was lost no lane is left; but a whole partition is waited for by its watermark, which may have moved.
            None => self.look_behind(&LaneKey::Whole),
        }
    }

    /// The next message of a lane, or its end.
    fn lane_goes_on(&mut self, id: PartitionId, key: &LaneKey) {
        let partition = self.partitions.get_mut(&id).expect("it is open");
        let Some(lane) = partition.lanes.get_mut(key) else { return };
        lane.attempts = 0;
        let Some(head) = lane.head() else {
            partition.drop_lane(key);
            return;
        };
        if self.is_behind(id, head, key) {
            self.wait_behind(id, key);
        } else {
            self.lane_wants(id, key, head);
        }
    }

    /// The lane waits for others of its key in another partition, without bodies.
    fn wait_behind(&mut self, id: PartitionId, key: &LaneKey) {
        let partition = self.partitions.get_mut(&id).expect("it is open");
        partition.drop_bodies(key, self.bodies.of(partition.is_retry));
        partition.lanes.get_mut(key).expect("it was there").state = LaneState::Behind;
        self.behind.entry(key.clone()).or_default().push(id);
    }

    /// The lane's head is to be delivered: it is ready, or its body is wanted again.
    fn lane_wants(&mut self, id: PartitionId, key: &LaneKey, head: u64) {
        let partition = self.partitions.get_mut(&id).expect("it is open");
        let lane = partition.lanes.get_mut(key).expect("it is there");
        if lane.waiting.front() == Some(&head) {
            lane.state = LaneState::Ready;
            self.make_ready(id, head);
        } else {
            lane.state = LaneState::Hungry;
            partition.hungry.insert((head, key.clone()));
            self.hungry.insert(id);
        }
    }

    /// Lanes whose time has come want their heads again.
    fn wake(&mut self, now: Timestamp) {
        while let Some((until, ..)) = self.parked.first()
            && *until <= now
        {
            let (_, id, key) = self.parked.pop_first().expect("there is a first one");
            let Some(head) = self.partitions[&id].lanes.get(&key).and_then(Lane::head) else { continue };
            // It was not when it was parked; but where progress of its old partition was lost since, it is again.
            if self.is_behind(id, head, &key) {
                self.wait_behind(id, &key);
            } else {
                self.lane_wants(id, &key, head);
            }
        }
    }

    fn new_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }
}
