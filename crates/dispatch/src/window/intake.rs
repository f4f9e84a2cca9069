//! The reads of a window, and their results: new messages are admitted to their lanes, and dropped bodies are returned to theirs.

use whimbrel_model::subscription::Ordering;
use whimbrel_model::{PartitionId, Timestamp};

use super::partition::{LaneKey, LaneState, LoadedMessage, LoadedState, OrderedLane};
use super::{DeliveryWindow, ReadMessage, ReadRequest};

/// Bytes of one read. It is large enough to be efficient, and small enough that partitions take turns.
const READ_BYTES: usize = 256 << 10;

const ONE_MESSAGE: usize = 1;

impl<B: Clone> DeliveryWindow<B> {
    /// The next read to start. It ends with [`DeliveryWindow::take_in`], [`DeliveryWindow::take_again`] or [`DeliveryWindow::end_read`].
    pub fn next_read(&mut self) -> Option<ReadRequest> {
        let wants = |id: &&PartitionId| {
            let partition = &self.partitions[*id];
            !partition.reading_again && self.bodies.have_room(partition.is_retry)
        };
        if let Some(id) = self.awaiting_body.iter().find(wants).copied() {
            let partition = self.partitions.get_mut(&id).expect("the partition is open");
            let (from, is_one) = partition.wanted_again().expect("the set is not empty");
            partition.reading_again = true;
            let max_bytes = if is_one { ONE_MESSAGE } else { READ_BYTES };
            return Some(ReadRequest { partition: id, from, max_bytes, again: true });
        }
        for _ in 0..self.unread.len() {
            let id = self.unread.pop_front()?;
            let Some(partition) = self.partitions.get_mut(&id) else { continue };
            if partition.is_at_end() {
                continue;
            }
            let room = self.bodies.room_to_read(partition.is_retry, !self.awaiting_body.is_empty());
            if room == 0 || partition.parked_bytes() > self.limits.parked_bytes {
                self.unread.push_back(id);
                continue;
            }
            partition.reading = true;
            let max_bytes = READ_BYTES.min(room);
            return Some(ReadRequest { partition: id, from: partition.read_to, max_bytes, again: false });
        }
        None
    }

    /// Ends a read without a result. It may be started again.
    pub fn end_read(&mut self, wanted: ReadRequest) {
        let Some(partition) = self.partitions.get_mut(&wanted.partition) else { return };
        if wanted.again {
            partition.reading_again = false;
        } else if std::mem::replace(&mut partition.reading, false) {
            self.unread.push_back(wanted.partition);
        }
    }

    /// Whether the result of this read continues the messages that were taken in. A read from before a partition was closed and reopened
    /// may start at a later offset, and would leave a gap.
    pub fn joins_on(&self, wanted: &ReadRequest) -> bool {
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

    /// Takes in the next messages of a partition, in order. `next` is where the following read starts. It takes messages while there is
    /// space; the last one may exceed it.
    pub fn take_in(&mut self, id: PartitionId, arrivals: Vec<ReadMessage<B>>, next: u64) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        if !std::mem::replace(&mut partition.reading, false) {
            return;
        }
        let (before, mut next) = (partition.read_to, next);
        for arrival in arrivals {
            let partition = self.partitions.get_mut(&id).expect("the partition is open");
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
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
        partition.read_to = partition.read_to.max(next);
        if let Some(until) = partition.until {
            partition.read_to = partition.read_to.min(until.max(before));
        }
        partition.drop_finished_resume();
        self.unread.push_back(id);
        if self.crossed_barrier(id, before) {
            self.recheck_all_barriers();
        }
    }

    /// Admits a message that is not done to its lane, or without a lane.
    pub(super) fn admit(&mut self, id: PartitionId, arrival: ReadMessage<B>) {
        let lane_key = self.lane_of(&arrival);
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
        let offset = arrival.offset;
        partition.unfinished.insert(offset);
        let retry = partition.resumed_retry(offset);
        let is_retry = partition.is_retry;
        let Some(body) = arrival.body else { return };
        let loaded = LoadedMessage { body, size: arrival.size, lane: lane_key.clone(), place: LoadedState::Waiting };
        match (lane_key, retry) {
            (None, None) => {
                *self.bodies.of(is_retry) += loaded.size;
                partition.loaded.insert(offset, loaded);
                self.make_ready(id, offset);
            }
            (None, Some((attempts, until))) => {
                let lane = OrderedLane::parked(offset, attempts, until);
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
        loaded: LoadedMessage<B>,
        retry: Option<(u32, Timestamp)>,
    ) {
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
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
            partition.add_lane(key.clone(), OrderedLane::parked(offset, attempts, until));
            self.parked.insert((until, id, key));
            return;
        }
        if self.is_behind(id, offset, &key) {
            let partition = self.partitions.get_mut(&id).expect("the partition is open");
            partition.add_lane(key.clone(), OrderedLane::behind(offset));
            self.behind.entry(key).or_default().push(id);
            return;
        }
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
        partition.add_lane(key, OrderedLane::ready(offset));
        *self.bodies.of(partition.is_retry) += loaded.size;
        partition.loaded.insert(offset, loaded);
        self.make_ready(id, offset);
    }

    /// Returns a dropped body to its lane, if the lane needs it now.
    pub(super) fn return_body(&mut self, id: PartitionId, arrival: ReadMessage<B>) {
        let offset = arrival.offset;
        let by_order = self.lane_of(&arrival);
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
        let single = LaneKey::Single(offset);
        let key = if partition.lanes.contains_key(&single) { single } else { by_order.unwrap_or(single) };
        let Some(lane) = partition.lanes.get_mut(&key) else { return };
        if lane.backlog.min() != Some(offset) || lane.state != LaneState::AwaitingBody && !lane.has_room_behind() {
            return;
        }
        let Some(body) = arrival.body else { return self.finish_filtered(id, offset, &key) };
        let became_ready = lane.state == LaneState::AwaitingBody;
        // A head is accepted if there is any space, so that it is not read repeatedly in vain. Other bodies must fit.
        let wanted = if became_ready { 1 } else { arrival.size };
        if self.bodies.room(partition.is_retry) < wanted {
            return;
        }
        lane.waiting.push_back(offset);
        if became_ready {
            lane.state = LaneState::Ready;
            partition.awaiting_body.remove(&(offset, key.clone()));
        }
        partition.take_out(&key, offset);
        *self.bodies.of(partition.is_retry) += arrival.size;
        let loaded = LoadedMessage { body, size: arrival.size, lane: Some(key), place: LoadedState::Waiting };
        partition.loaded.insert(offset, loaded);
        self.update_awaiting_body(id);
        if became_ready {
            self.make_ready(id, offset);
        }
    }

    /// Completes a message without a body that the filter now drops.
    pub(super) fn finish_filtered(&mut self, id: PartitionId, offset: u64, key: &LaneKey) {
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
        let was_head = partition.awaiting_body.remove(&(offset, key.clone()));
        partition.take_out(key, offset);
        partition.unfinished.remove(offset);
        partition.changed = true;
        if was_head {
            self.advance_lane(id, key);
            self.recheck_barriers(key);
        }
        self.update_awaiting_body(id);
    }

    /// The lane of a message by the order of the subscription; `None` without order.
    pub(super) fn lane_of(&self, arrival: &ReadMessage<B>) -> Option<LaneKey> {
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

    pub(super) fn update_awaiting_body(&mut self, id: PartitionId) {
        if self.partitions[&id].awaiting_body.is_empty() {
            self.awaiting_body.remove(&id);
        } else {
            self.awaiting_body.insert(id);
        }
    }
}
