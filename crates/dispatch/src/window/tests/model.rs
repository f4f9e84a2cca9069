//! A naive model of a window: every message with what became of it, looked through one by one.

use std::collections::HashSet;

use super::*;
use crate::saved;

pub type Spot = (PartitionId, u64);

/// A message of the log, and what the line knows of it.
#[derive(Debug, Clone)]
pub struct Message {
    pub spot: Spot,
    pub key: Option<u64>,
    pub size: usize,
    pub is_wanted: bool,
    /// Retention took it.
    pub is_gone: bool,
    /// Some owner finished it.
    pub ever_done: bool,
    /// What the present owner knows, and what was saved of that.
    pub now: Known,
    pub saved: Known,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    pub is_done: bool,
    pub attempts: u32,
    pub until: i64,
}

/// In the order of publishing.
#[derive(Debug, Default)]
pub struct Model {
    pub messages: Vec<Message>,
    pub at: HashMap<Spot, usize>,
    pub next: HashMap<PartitionId, u64>,
    pub first: HashMap<PartitionId, u64>,
    pub until: HashMap<PartitionId, u64>,
    pub out: HashMap<Ticket, Spot>,
    pub settling: HashMap<Ticket, Spot>,
    pub over: Vec<Ticket>,
    /// How far each partition was read when it was last saved.
    pub saved_to: HashMap<PartitionId, u64>,
    /// What was saved, in bytes.
    pub rows: HashMap<PartitionId, Vec<u8>>,
}

impl Model {
    pub fn publish(&mut self, id: PartitionId, key: Option<u64>, size: usize, is_wanted: bool) {
        let next = self.next.entry(id).or_default();
        let spot = (id, *next);
        *next += 1;
        let (now, saved) = Default::default();
        self.at.insert(spot, self.messages.len());
        let message = Message { spot, key, size, is_wanted, is_gone: false, ever_done: false, now, saved };
        self.messages.push(message);
    }

    pub fn message(&mut self, spot: Spot) -> &mut Message {
        let index = self.at[&spot];
        &mut self.messages[index]
    }

    fn is_in_range(&self, message: &Message) -> bool {
        let (id, offset) = message.spot;
        message.is_wanted && self.until.get(&id).is_none_or(|until| offset < *until)
    }

    pub fn finish(&mut self, spot: Spot) {
        let message = self.message(spot);
        message.now = Known { is_done: true, ..Known::default() };
        message.ever_done = true;
    }

    /// What must be true of a delivery at the moment that it starts.
    pub fn check_delivery(&self, delivery: &Delivery<u64>, ordering: Ordering, now: Timestamp) {
        let spot = (delivery.partition, delivery.offset);
        let index = self.at[&spot];
        let message = &self.messages[index];
        assert_eq!(delivery.body, delivery.offset);
        assert!(self.is_in_range(message), "{spot:?} is not for this line");
        assert!(!message.now.is_done, "{spot:?} was done");
        assert_eq!(delivery.attempts, message.now.attempts, "{spot:?}");
        assert!(message.now.until <= now.as_millis(), "{spot:?} comes before its time");
        let busy: HashSet<Spot> = self.out.values().chain(self.settling.values()).copied().collect();
        assert!(!busy.contains(&spot), "{spot:?} is out twice");
        for (other_index, other) in self.messages.iter().enumerate() {
            let same_key = other.key.is_some() && other.key == message.key && other.spot.0.topic == spot.0.topic;
            let same_lane = match ordering {
                Ordering::Key => same_key,
                Ordering::Partition => same_key || other.spot.0 == spot.0,
                Ordering::None => false,
            };
            if !same_lane || other.spot == spot || !self.is_in_range(other) {
                continue;
            }
            let is_lost = other.is_gone && self.settling.values().any(|settling| *settling == other.spot);
            assert!(!busy.contains(&other.spot) || is_lost, "{spot:?} goes out beside {:?}", other.spot);
            if other_index < index {
                assert!(other.ever_done || other.is_gone, "{spot:?} goes out before {:?}", other.spot);
            }
        }
    }

    /// What must be true after every step.
    pub fn check(&self, window: &Window<u64>, largest: usize, limits: WindowLimits) {
        assert_eq!(window.in_flight(), self.out.len(), "in flight");
        let loaded = window.partitions.values().map(Partition::body_bytes).sum::<usize>();
        assert_eq!(window.body_bytes(), loaded, "bytes of bodies");
        assert!(loaded < limits.body_bytes + 2 * largest, "{loaded} bytes of bodies");
        for (id, partition) in &window.partitions {
            let backlog: u64 = partition.lanes.values().map(|lane| lane.backlog.len()).sum();
            assert_eq!(partition.backlog_len, backlog, "without bodies");
            assert_eq!(partition.parked_bytes(), partition.parked_bytes_counted(), "bytes of what is parked");
            let watermark = partition.watermark();
            for message in self.messages.iter().filter(|message| message.spot.0 == *id) {
                let is_known = message.spot.1 < partition.read_to && !message.is_gone;
                let is_left = message.spot.1 < watermark && self.is_in_range(message) && !message.now.is_done;
                assert!(!is_left || !is_known, "the watermark {watermark} passed {:?}", message.spot);
            }
        }
    }

    /// Whenever something is unfinished, there is something that brings it on: a read that is answered with, where it takes one.
    pub fn check_not_stuck(&self, window: &mut Window<u64>, reads: usize, now: Timestamp) -> Option<ReadWanted> {
        let is_moving = reads > 0
            || !self.out.is_empty()
            || !self.settling.is_empty()
            || window.next_time().is_some()
            || window.has_ready(now, true);
        if is_moving {
            return None;
        }
        let left: Vec<Spot> = self.left(window);
        let wanted = window.next_read();
        assert!(left.is_empty() || wanted.is_some(), "stuck with {left:?}");
        wanted
    }

    /// What is to be delivered still, of the partitions that are open.
    pub fn left(&self, window: &Window<u64>) -> Vec<Spot> {
        let is_left = |message: &&Message| {
            self.is_in_range(message) && !message.now.is_done && !message.is_gone && window.has(message.spot.0)
        };
        self.messages.iter().filter(is_left).map(|message| message.spot).collect()
    }

    /// What the present owner has come to is saved.
    pub fn save(&mut self, window: &mut Window<u64>) {
        for (id, standing) in window.unsaved() {
            self.saved_to.insert(id, standing.read_to);
            self.rows.insert(id, saved::encode(&standing, None));
        }
        self.messages.iter_mut().for_each(|message| message.saved = message.now);
    }

    /// Another owner takes over what was saved.
    pub fn crash(&mut self) {
        self.over.extend(self.out.drain().chain(self.settling.drain()).map(|(ticket, _)| ticket));
        for message in &mut self.messages {
            message.now = message.saved;
            if message.now.attempts == 0 {
                // What was not an attempt is not saved.
                message.now.until = 0;
            }
        }
    }

    pub fn resume(&self, id: PartitionId) -> Resume {
        self.rows.get(&id).map_or_else(|| Resume::at(0), |row| saved::decode(row).unwrap().0)
    }

    /// Which messages below `first` must come out as lost: known as unfinished, and without a body.
    pub fn lost_below(&self, window: &Window<u64>, id: PartitionId, first: u64) -> Vec<u64> {
        let partition = &window.partitions[&id];
        let was_saved = self.saved_to.get(&id).copied().unwrap_or(0);
        let settling: HashSet<Spot> = self.settling.values().copied().collect();
        let is_lost = |message: &&Message| {
            let (of, offset) = message.spot;
            let is_known = offset < partition.read_to && partition.unfinished.contains(offset)
                || offset >= partition.read_to && offset < was_saved && !message.saved.is_done;
            of == id
                && offset < first
                && is_known
                && self.is_in_range(message)
                && !partition.loaded.contains_key(&offset)
                && !settling.contains(&message.spot)
        };
        let mut lost: Vec<u64> = self.messages.iter().filter(is_lost).map(|message| message.spot.1).collect();
        lost.sort_unstable();
        lost
    }

    /// What retention took before it was ever read is nobody's any more.
    pub fn pass_over(&mut self, window: &Window<u64>, id: PartitionId, first: u64) {
        let partition = &window.partitions[&id];
        for message in self.messages.iter_mut().filter(|message| message.spot.0 == id && message.spot.1 < first) {
            message.now.is_done |= !partition.unfinished.contains(message.spot.1);
        }
    }
}
