//! What a window wants to read, and what becomes of it: admitted to its lane, or fed to the lane that had dropped it.

use whimbrel_model::subscription::Ordering;
use whimbrel_model::{PartitionId, Timestamp};

use super::partition::{Lane, LaneKey, LaneState, Loaded, Place};
use super::{Arrival, ReadWanted, Window};

/// Bytes of one read: large enough that reading is cheap, small enough that partitions take turns.
const READ_BYTES: usize = 256 << 10;

/// Bytes of a read for one message: a read has at least one.
const ONE_MESSAGE: usize = 1;

impl<B: Clone> Window<B> {
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

    /// Whether the message at this offset has a saved retry time and was not read again yet.
    pub fn has_saved_retry(&self, id: PartitionId, offset: u64) -> bool {
        self.partitions.get(&id).is_some_and(|partition| partition.saved_retry(offset).is_some())
    }

    /// Changes the saved retry time of a message before the window takes it in. `plan` gets the number of attempts and the saved time.
    pub fn replan_saved_retry(&mut self, id: PartitionId, offset: u64, plan: impl FnOnce(u32, Timestamp) -> Timestamp) {
        if let Some((attempts, until)) =
            self.partitions.get_mut(&id).and_then(|partition| partition.saved_retry_mut(offset))
        {
            *until = plan(*attempts, *until);
        }
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
    pub(super) fn admit(&mut self, id: PartitionId, arrival: Arrival<B>) {
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

    pub(super) fn join_lane(
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
    pub(super) fn feed(&mut self, id: PartitionId, arrival: Arrival<B>) {
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
    pub(super) fn left_out(&mut self, id: PartitionId, offset: u64, key: &LaneKey) {
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
    pub(super) fn lane_of(&self, arrival: &Arrival<B>) -> Option<LaneKey> {
        match self.ordering {
            Ordering::Key => arrival.key.clone().map(LaneKey::Key),
            Ordering::Partition => Some(LaneKey::Whole),
            Ordering::None => None,
        }
    }

    pub(super) fn make_ready(&mut self, id: PartitionId, offset: u64) {
        if self.partitions[&id].is_retry {
            self.ready_retries.push_back((id, offset));
        } else {
            self.ready.push_back((id, offset));
        }
    }

    pub(super) fn note_hunger(&mut self, id: PartitionId) {
        if self.partitions[&id].hungry.is_empty() {
            self.hungry.remove(&id);
        } else {
            self.hungry.insert(id);
        }
    }
}
