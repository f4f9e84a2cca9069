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
mod losing;
mod partition;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use roaring::RoaringTreemap;
use whimbrel_model::subscription::Ordering;
use whimbrel_model::{PartitionId, Timestamp, TopicNumber};

use crate::topics::Growth;
pub use partition::Resume;
use partition::{Lane, LaneKey, LaneState, Loaded, Partition, Place};
use room::Bodies;

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

/// Bytes of one read: large enough that reading is cheap, small enough that partitions take turns.
const READ_BYTES: usize = 256 << 10;

/// Bytes of a read for one message: a read has at least one.
const ONE_MESSAGE: usize = 1;

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

    // ---- reading ----

    /// A read to make now. Each is answered by [`Window::take_in`], [`Window::take_again`], or given back.
    pub fn next_read(&mut self) -> Option<ReadWanted> {
        let wants = |id: &&PartitionId| {
            let partition = &self.partitions[*id];
            !partition.reading_again && self.bodies.have_room(partition.is_retry)
        };
        if let Some(id) = self.hungry.iter().find(wants).copied() {
            let partition = self.partitions.get_mut(&id).expect("hungry partitions are open");
            let (from, is_one) = partition.wanted_again().expect("a hungry partition wants something");
            partition.reading_again = true;
            let max_bytes = if is_one { ONE_MESSAGE } else { READ_BYTES };
            return Some(ReadWanted { partition: id, from, max_bytes, again: true });
        }
        for _ in 0..self.unread.len() {
            let id = self.unread.pop_front()?;
            let Some(partition) = self.partitions.get_mut(&id) else { continue };
            if partition.is_at_end() {
                continue;
            }
            let room = self.bodies.room_to_read(partition.is_retry, !self.hungry.is_empty());
            if room == 0 || partition.parked_bytes() > self.limits.parked_bytes {
                self.unread.push_back(id);
                continue;
            }
            partition.reading = true;
            let max_bytes = READ_BYTES.min(room);
            return Some(ReadWanted { partition: id, from: partition.read_to, max_bytes, again: false });
        }
        None
    }

    /// A read for what comes next has failed or was given up: it may be made again.
    pub fn read_over(&mut self, wanted: ReadWanted) {
        let Some(partition) = self.partitions.get_mut(&wanted.partition) else { return };
        if wanted.again {
            partition.reading_again = false;
        } else if std::mem::replace(&mut partition.reading, false) {
            self.unread.push_back(wanted.partition);
        }
    }

    /// Whether what was read for this continues what was taken in. A read from before a partition was closed and opened again may begin
    /// further on, and would leave out what lies between.
    pub fn joins_on(&self, wanted: &ReadWanted) -> bool {
        self.partitions.get(&wanted.partition).is_some_and(|partition| wanted.from <= partition.read_to)
    }

    /// What comes next was read: messages in order, and where to read on. As many are taken as there is room for; the last
    /// one may go beyond it.
    pub fn take_in(&mut self, id: PartitionId, arrivals: Vec<Arrival<B>>, next: u64) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        if !std::mem::replace(&mut partition.reading, false) {
            return;
        }
        let (before, mut next) = (partition.read_to, next);
        for arrival in arrivals {
            let partition = self.partitions.get_mut(&id).expect("it is open");
            if arrival.offset < partition.read_to {
                continue;
            }
            if partition.until.is_some_and(|until| arrival.offset >= until) {
                break;
            }
            let is_done = arrival.body.is_none() || partition.was_done(arrival.offset);
            if !is_done && !self.bodies.have_room(partition.is_retry) {
                next = arrival.offset;
                break;
            }
            partition.read_to = arrival.offset + 1;
            if !is_done {
                self.admit(id, arrival);
            }
        }
        let partition = self.partitions.get_mut(&id).expect("it is open");
        partition.read_to = partition.read_to.max(next);
        if let Some(until) = partition.until {
            partition.read_to = partition.read_to.min(until.max(before));
        }
        partition.left_behind();
        self.unread.push_back(id);
        if self.crossed_barrier(id, before) {
            self.look_at_all_behind();
        }
    }

    /// Admits a message that is not done: to its lane, or alone.
    fn admit(&mut self, id: PartitionId, arrival: Arrival<B>) {
        let lane_key = self.lane_of(&arrival);
        let partition = self.partitions.get_mut(&id).expect("it is open");
        let offset = arrival.offset;
        partition.unfinished.insert(offset);
        let retry = partition.resumed_retry(offset);
        let is_retry = partition.is_retry;
        let Some(body) = arrival.body else { return };
        let loaded = Loaded { body, size: arrival.size, lane: lane_key.clone(), place: Place::Waiting };
        match (lane_key, retry) {
            (None, None) => {
                *self.bodies.of(is_retry) += loaded.size;
                partition.loaded.insert(offset, loaded);
                self.make_ready(id, offset);
            }
            (None, Some((attempts, until))) => {
                let lane = Lane::parked(offset, attempts, until);
                partition.add_lane(LaneKey::Single(offset), lane);
                self.parked.insert((until, id, LaneKey::Single(offset)));
            }
            (Some(key), retry) => self.join_lane(id, key, offset, loaded, retry),
        }
    }

    fn join_lane(
        &mut self,
        id: PartitionId,
        key: LaneKey,
        offset: u64,
        loaded: Loaded<B>,
        retry: Option<(u32, Timestamp)>,
    ) {
        let partition = self.partitions.get_mut(&id).expect("it is open");
        if let Some(lane) = partition.lanes.get_mut(&key) {
            if lane.takes_bodies() {
                lane.waiting.push_back(offset);
                *self.bodies.of(partition.is_retry) += loaded.size;
                partition.loaded.insert(offset, loaded);
            } else {
                partition.put_back(&key, offset);
            }
            return;
        }
        let key = key.detached();
        if let Some((attempts, until)) = retry {
            partition.add_lane(key.clone(), Lane::parked(offset, attempts, until));
            self.parked.insert((until, id, key));
            return;
        }
        if self.is_behind(id, offset, &key) {
            let partition = self.partitions.get_mut(&id).expect("it is open");
            partition.add_lane(key.clone(), Lane::behind(offset));
            self.behind.entry(key).or_default().push(id);
            return;
        }
        let partition = self.partitions.get_mut(&id).expect("it is open");
        partition.add_lane(key, Lane::ready(offset));
        *self.bodies.of(partition.is_retry) += loaded.size;
        partition.loaded.insert(offset, loaded);
        self.make_ready(id, offset);
    }

    /// A body that was dropped has come again. It is taken where its lane wants it now.
    fn feed(&mut self, id: PartitionId, arrival: Arrival<B>) {
        let offset = arrival.offset;
        let by_order = self.lane_of(&arrival);
        let partition = self.partitions.get_mut(&id).expect("it is open");
        let single = LaneKey::Single(offset);
        let key = if partition.lanes.contains_key(&single) { single } else { by_order.unwrap_or(single) };
        let Some(lane) = partition.lanes.get_mut(&key) else { return };
        if lane.backlog.min() != Some(offset) || lane.state != LaneState::Hungry && !lane.has_room_behind() {
            return;
        }
        let Some(body) = arrival.body else { return self.left_out(id, offset, &key) };
        let became_ready = lane.state == LaneState::Hungry;
        // A head is taken wherever there is room at all, so that it is not read in vain again and again; others where they fit.
        let wanted = if became_ready { 1 } else { arrival.size };
        if self.bodies.room(partition.is_retry) < wanted {
            return;
        }
        lane.waiting.push_back(offset);
        if became_ready {
            lane.state = LaneState::Ready;
            partition.hungry.remove(&(offset, key.clone()));
        }
        partition.take_out(&key, offset);
        *self.bodies.of(partition.is_retry) += arrival.size;
        let loaded = Loaded { body, size: arrival.size, lane: Some(key), place: Place::Waiting };
        partition.loaded.insert(offset, loaded);
        self.note_hunger(id);
        if became_ready {
            self.make_ready(id, offset);
        }
    }

    /// What a lane has without a body turned out not to be for this line any more: it is done.
    fn left_out(&mut self, id: PartitionId, offset: u64, key: &LaneKey) {
        let partition = self.partitions.get_mut(&id).expect("it is open");
        let was_head = partition.hungry.remove(&(offset, key.clone()));
        partition.take_out(key, offset);
        partition.unfinished.remove(offset);
        partition.changed = true;
        if was_head {
            self.lane_goes_on(id, key);
            self.look_behind(key);
        }
        self.note_hunger(id);
    }

    /// Which lane a message belongs to by its order; `None` where it has none.
    fn lane_of(&self, arrival: &Arrival<B>) -> Option<LaneKey> {
        match self.ordering {
            Ordering::Key => arrival.key.clone().map(LaneKey::Key),
            Ordering::Partition => Some(LaneKey::Whole),
            Ordering::None => None,
        }
    }

    fn make_ready(&mut self, id: PartitionId, offset: u64) {
        if self.partitions[&id].is_retry {
            self.ready_retries.push_back((id, offset));
        } else {
            self.ready.push_back((id, offset));
        }
    }

    fn note_hunger(&mut self, id: PartitionId) {
        if self.partitions[&id].hungry.is_empty() {
            self.hungry.remove(&id);
        } else {
            self.hungry.insert(id);
        }
    }

    // ---- delivering ----

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

    // ---- looking ----

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn body_bytes(&self) -> usize {
        self.bodies.all()
    }

    pub fn parked_bytes(&self) -> usize {
        self.partitions.values().map(Partition::parked_bytes).sum()
    }

    /// Lanes that wait for a retry or behind a barrier, and messages without a body behind them.
    pub fn parked(&self) -> (u64, u64) {
        let lanes = self.partitions.values().map(|partition| partition.waiting_lanes()).sum();
        (lanes, self.partitions.values().map(|partition| partition.backlog_len).sum())
    }

    /// Whether reading has stopped at the bound of what is parked.
    pub fn is_full(&self) -> bool {
        self.partitions.values().any(|partition| partition.parked_bytes() > self.limits.parked_bytes)
    }

    /// Whether every partition is at its end with nothing unfinished: a replay is over.
    pub fn is_over(&self) -> bool {
        self.partitions.values().all(|partition| partition.is_at_end() && partition.unfinished.is_empty())
    }

    pub fn watermark(&self, id: PartitionId) -> Option<u64> {
        self.partitions.get(&id).map(Partition::watermark)
    }

    pub fn read_to(&self, id: PartitionId) -> Option<u64> {
        self.partitions.get(&id).map(|partition| partition.read_to)
    }

    pub fn unfinished(&self, id: PartitionId) -> u64 {
        self.partitions.get(&id).map_or(0, |partition| partition.standing().unfinished.len())
    }

    /// What is not done yet of a partition that has an end.
    pub fn left(&self, id: PartitionId) -> u64 {
        let Some(partition) = self.partitions.get(&id) else { return 0 };
        let ahead = partition.until.map_or(0, |until| until.saturating_sub(partition.read_to));
        partition.unfinished.len() + ahead
    }

    pub fn whereabouts(&self, id: PartitionId, offset: u64) -> Whereabouts {
        self.partitions.get(&id).map_or(Whereabouts::Ahead, |partition| partition.whereabouts(offset))
    }

    /// How far a partition has come.
    pub fn standing(&self, id: PartitionId) -> Option<Standing> {
        self.partitions.get(&id).map(Partition::standing)
    }

    /// What is to be saved of a partition that changed since it was last asked for.
    pub fn unsaved(&mut self) -> Vec<(PartitionId, Standing)> {
        let mut unsaved = Vec::new();
        for (id, partition) in &mut self.partitions {
            if std::mem::take(&mut partition.changed) {
                unsaved.push((*id, partition.standing()));
            }
        }
        unsaved
    }

    /// What was given out to be saved was not.
    pub fn not_saved(&mut self, ids: impl IntoIterator<Item = PartitionId>) {
        for id in ids {
            if let Some(partition) = self.partitions.get_mut(&id) {
                partition.changed = true;
            }
        }
    }
}
