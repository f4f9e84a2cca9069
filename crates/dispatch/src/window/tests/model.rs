//! A naive model of a window: a list of all messages with their states.

use std::collections::HashSet;

use super::*;
use crate::progress_format;

pub type MessagePlace = (PartitionId, u64);

/// A message of the log, and its state in the line.
#[derive(Debug, Clone)]
pub struct ModelMessage {
    pub spot: MessagePlace,
    pub key: Option<u64>,
    pub size: usize,
    pub is_wanted: bool,
    pub is_gone: bool,
    /// Whether any owner finished it.
    pub ever_done: bool,
    /// The present owner's state, and the saved state.
    pub now: MessageProgress,
    pub saved: MessageProgress,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MessageProgress {
    pub is_done: bool,
    pub attempts: u32,
    pub until: i64,
}

/// The messages are in the order of publishing.
#[derive(Debug, Default)]
pub struct WindowModel {
    pub messages: Vec<ModelMessage>,
    pub at: HashMap<MessagePlace, usize>,
    pub next: HashMap<PartitionId, u64>,
    pub first: HashMap<PartitionId, u64>,
    pub until: HashMap<PartitionId, u64>,
    pub out: HashMap<DeliveryTicket, MessagePlace>,
    pub settling: HashMap<DeliveryTicket, MessagePlace>,
    pub over: Vec<DeliveryTicket>,
    /// The offset up to which each partition was read at its last save.
    pub saved_to: HashMap<PartitionId, u64>,
    pub rows: HashMap<PartitionId, Vec<u8>>,
}

impl WindowModel {
    pub fn publish(&mut self, id: PartitionId, key: Option<u64>, size: usize, is_wanted: bool) {
        let next = self.next.entry(id).or_default();
        let spot = (id, *next);
        *next += 1;
        let (now, saved) = Default::default();
        self.at.insert(spot, self.messages.len());
        let message = ModelMessage { spot, key, size, is_wanted, is_gone: false, ever_done: false, now, saved };
        self.messages.push(message);
    }

    pub fn message(&mut self, spot: MessagePlace) -> &mut ModelMessage {
        let index = self.at[&spot];
        &mut self.messages[index]
    }

    fn is_in_range(&self, message: &ModelMessage) -> bool {
        let (id, offset) = message.spot;
        message.is_wanted && self.until.get(&id).is_none_or(|until| offset < *until)
    }

    pub fn finish(&mut self, spot: MessagePlace) {
        let message = self.message(spot);
        message.now = MessageProgress { is_done: true, ..MessageProgress::default() };
        message.ever_done = true;
    }

    pub fn check_delivery(&self, delivery: &ReadyDelivery<u64>, ordering: Ordering, now: Timestamp) {
        let spot = (delivery.partition, delivery.offset);
        let index = self.at[&spot];
        let message = &self.messages[index];
        assert_eq!(delivery.body, delivery.offset);
        assert!(self.is_in_range(message), "{spot:?} is not in the line's range");
        assert!(!message.now.is_done, "{spot:?} was done before");
        assert_eq!(delivery.attempts, message.now.attempts, "{spot:?}");
        assert!(message.now.until <= now.as_millis(), "{spot:?} is delivered before its time");
        let busy: HashSet<MessagePlace> = self.out.values().chain(self.settling.values()).copied().collect();
        assert!(!busy.contains(&spot), "{spot:?} is in flight twice");
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
            assert!(!busy.contains(&other.spot) || is_lost, "{spot:?} is delivered concurrently with {:?}", other.spot);
            if other_index < index {
                assert!(other.ever_done || other.is_gone, "{spot:?} is delivered before {:?}", other.spot);
            }
        }
    }

    /// Checks the invariants that hold after every step.
    pub fn check(&self, window: &DeliveryWindow<u64>, largest: usize, limits: WindowLimits) {
        assert_eq!(window.in_flight(), self.out.len(), "in flight");
        let loaded = window.partitions.values().map(WindowPartition::body_bytes).sum::<usize>();
        assert_eq!(window.body_bytes(), loaded, "bytes of bodies");
        assert!(loaded < limits.body_bytes + 2 * largest, "{loaded} bytes of bodies");
        for (id, partition) in &window.partitions {
            let backlog: u64 = partition.lanes.values().map(|lane| lane.backlog.len()).sum();
            assert_eq!(partition.backlog_len, backlog, "without bodies");
            assert_eq!(partition.parked_bytes(), partition.parked_bytes_counted(), "bytes of parked state");
            let watermark = partition.watermark();
            for message in self.messages.iter().filter(|message| message.spot.0 == *id) {
                let is_known = message.spot.1 < partition.read_to && !message.is_gone;
                let is_left = message.spot.1 < watermark && self.is_in_range(message) && !message.now.is_done;
                assert!(!is_left || !is_known, "the watermark {watermark} passed {:?}", message.spot);
            }
        }
    }

    /// Checks that unfinished messages can make progress. Returns the read that makes it, if it takes one.
    pub fn check_not_stuck(
        &self,
        window: &mut DeliveryWindow<u64>,
        reads: usize,
        now: Timestamp,
    ) -> Option<ReadRequest> {
        let is_moving = reads > 0
            || !self.out.is_empty()
            || !self.settling.is_empty()
            || window.next_time().is_some()
            || window.has_ready(now, true);
        if is_moving {
            return None;
        }
        let left: Vec<MessagePlace> = self.left(window);
        let wanted = window.next_read();
        assert!(left.is_empty() || wanted.is_some(), "no progress with {left:?} left");
        wanted
    }

    /// The undelivered messages of open partitions.
    pub fn left(&self, window: &DeliveryWindow<u64>) -> Vec<MessagePlace> {
        let is_left = |message: &&ModelMessage| {
            self.is_in_range(message) && !message.now.is_done && !message.is_gone && window.has(message.spot.0)
        };
        self.messages.iter().filter(is_left).map(|message| message.spot).collect()
    }

    pub fn save(&mut self, window: &mut DeliveryWindow<u64>) {
        for (id, progress) in window.unsaved() {
            self.saved_to.insert(id, progress.read_to);
            self.rows.insert(id, progress_format::encode(&progress, None));
        }
        self.messages.iter_mut().for_each(|message| message.saved = message.now);
    }

    /// Replaces the owner by one that starts from the saved state.
    pub fn crash(&mut self) {
        self.over.extend(self.out.drain().chain(self.settling.drain()).map(|(ticket, _)| ticket));
        for message in &mut self.messages {
            message.now = message.saved;
            if message.now.attempts == 0 {
                // A delivery that was not an attempt is not saved.
                message.now.until = 0;
            }
        }
    }

    pub fn resume(&self, id: PartitionId) -> PartitionResume {
        self.rows.get(&id).map_or_else(|| PartitionResume::at(0), |row| progress_format::decode(row).unwrap().0)
    }

    /// The messages below `first` that must be reported as lost: known as unfinished, and without a body.
    pub fn lost_below(&self, window: &DeliveryWindow<u64>, id: PartitionId, first: u64) -> Vec<u64> {
        let partition = &window.partitions[&id];
        let was_saved = self.saved_to.get(&id).copied().unwrap_or(0);
        let settling: HashSet<MessagePlace> = self.settling.values().copied().collect();
        let is_lost = |message: &&ModelMessage| {
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

    /// Marks messages that retention removed before they were read as done.
    pub fn skip_unread(&mut self, window: &DeliveryWindow<u64>, id: PartitionId, first: u64) {
        let partition = &window.partitions[&id];
        for message in self.messages.iter_mut().filter(|message| message.spot.0 == id && message.spot.1 < first) {
            message.now.is_done |= !partition.unfinished.contains(message.spot.1);
        }
    }
}
