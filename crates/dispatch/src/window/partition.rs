//! One partition of a window: its messages that were read and are not done, and its lanes.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use roaring::RoaringTreemap;
use whimbrel_model::Timestamp;

use super::{DeliveryTicket, PartitionProgress, WindowMessageState};

/// The approximate cost of a waiting lane beside its key and offsets. Most of it is the frame of a compressed set.
const LANE_BYTES: usize = 1024;
/// The cost of a lane's offsets for each container of the compressed set. A container covers 2^16 offsets.
const STRETCH_BYTES: usize = 128;
const STRETCH_BITS: u32 = 16;
/// The most that a parked offset costs, in the lane's set and in the partition's set of unfinished offsets.
const OFFSET_BYTES: usize = 4;

/// Dropped bodies within this distance are read again together.
const NEARBY_OFFSETS: u64 = 1_000;

/// A unit of order. `Single` is the first in the order of keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum LaneKey {
    /// One message without order that has to wait.
    Single(u64),
    Whole,
    Key(Bytes),
}

impl LaneKey {
    /// A copy of the key: a lane outlives the read buffers of its messages.
    pub fn detached(&self) -> Self {
        match self {
            Self::Key(key) => Self::Key(Bytes::copy_from_slice(key)),
            other => other.clone(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Single(_) | Self::Whole => 0,
            Self::Key(key) => key.len(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneState {
    /// The head is in the ready queue.
    Ready,
    /// The head is in flight, or being settled.
    Out,
    Parked(Timestamp),
    /// The head's body is being requested again.
    AwaitingBody,
    /// The lane waits for earlier messages of its key in another partition.
    Behind,
}

#[derive(Debug)]
pub(super) struct OrderedLane {
    pub state: LaneState,
    /// Attempts at the head.
    pub attempts: u32,
    /// Offsets with bodies, in order. The first is the head.
    pub waiting: VecDeque<u64>,
    /// Offsets without bodies, all above those in `waiting`.
    pub backlog: RoaringTreemap,
}

impl OrderedLane {
    pub fn ready(offset: u64) -> Self {
        Self { state: LaneState::Ready, attempts: 0, waiting: VecDeque::from([offset]), backlog: RoaringTreemap::new() }
    }

    pub fn parked(offset: u64, attempts: u32, until: Timestamp) -> Self {
        Self { attempts, ..Self::without_body(offset, LaneState::Parked(until)) }
    }

    pub fn behind(offset: u64) -> Self {
        Self::without_body(offset, LaneState::Behind)
    }

    fn without_body(offset: u64, state: LaneState) -> Self {
        Self { state, attempts: 0, waiting: VecDeque::new(), backlog: RoaringTreemap::from_iter([offset]) }
    }

    pub fn head(&self) -> Option<u64> {
        self.waiting.front().copied().or_else(|| self.backlog.min())
    }

    /// Whether the lane keeps bodies after its head. A lane whose head was attempted would drop them again.
    pub fn has_room_behind(&self) -> bool {
        matches!(self.state, LaneState::Ready | LaneState::Out) && self.attempts == 0
    }

    /// Whether a message that was just read keeps its body. It must not precede messages without bodies.
    pub fn takes_bodies(&self) -> bool {
        self.backlog.is_empty() && self.has_room_behind()
    }
}

/// Whether a set has an offset in the same container.
fn has_near(offsets: &RoaringTreemap, offset: u64) -> bool {
    let stretch = offset >> STRETCH_BITS;
    let ends = offsets.max().into_iter().chain(offsets.min());
    if ends.into_iter().any(|end| end >> STRETCH_BITS == stretch) {
        return true;
    }
    let mut from = offsets.iter();
    from.advance_to(stretch << STRETCH_BITS);
    from.next().is_some_and(|next| next >> STRETCH_BITS == stretch)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadedState {
    Waiting,
    Out(DeliveryTicket),
    Settling,
}

#[derive(Debug)]
pub(super) struct LoadedMessage<B> {
    pub body: B,
    pub size: usize,
    pub lane: Option<LaneKey>,
    pub place: LoadedState,
}

/// The saved progress from which a partition continues.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PartitionResume {
    pub watermark: u64,
    pub read_to: u64,
    pub unfinished: RoaringTreemap,
    /// Offset, attempts, and time of the next attempt.
    pub retries: Vec<(u64, u32, Timestamp)>,
}

impl PartitionResume {
    /// A partition without progress.
    pub fn at(offset: u64) -> Self {
        Self { watermark: offset, read_to: offset, ..Self::default() }
    }
}

/// The part of the saved progress that was not read again yet.
#[derive(Debug)]
struct UnreadProgress {
    read_to: u64,
    unfinished: RoaringTreemap,
    retries: HashMap<u64, (u32, Timestamp)>,
}

#[derive(Debug)]
pub(super) struct WindowPartition<B> {
    pub read_to: u64,
    pub until: Option<u64>,
    pub is_retry: bool,
    /// Offsets that were read and are not done.
    pub unfinished: RoaringTreemap,
    pub loaded: HashMap<u64, LoadedMessage<B>, foldhash::fast::RandomState>,
    pub lanes: HashMap<LaneKey, OrderedLane, foldhash::fast::RandomState>,
    /// Heads whose bodies are requested again.
    pub awaiting_body: BTreeSet<(u64, LaneKey)>,
    /// The number of offsets without bodies, in all lanes.
    pub backlog_len: u64,
    /// The number of set containers with such offsets, in all lanes.
    backlog_stretches: usize,
    /// The cost of the lanes with such offsets.
    backlog_lane_bytes: usize,
    /// Offsets that the log no longer has and that are being settled.
    lost: HashSet<u64>,
    ahead: Option<UnreadProgress>,
    pub reading: bool,
    pub reading_again: bool,
    /// Whether the progress changed since it was last taken to be saved.
    pub changed: bool,
}

impl<B> WindowPartition<B> {
    pub fn new(resume: PartitionResume, until: Option<u64>, is_retry: bool) -> Self {
        let retries = resume.retries.into_iter().map(|(offset, attempts, until)| (offset, (attempts, until)));
        let ahead =
            UnreadProgress { read_to: resume.read_to, unfinished: resume.unfinished, retries: retries.collect() };
        Self {
            read_to: resume.watermark,
            until,
            is_retry,
            unfinished: RoaringTreemap::new(),
            loaded: HashMap::default(),
            lanes: HashMap::default(),
            awaiting_body: BTreeSet::new(),
            backlog_len: 0,
            backlog_stretches: 0,
            backlog_lane_bytes: 0,
            lost: HashSet::new(),
            ahead: Some(ahead).filter(|ahead| ahead.read_to > resume.watermark),
            reading: false,
            reading_again: false,
            changed: true,
        }
    }

    pub fn is_at_end(&self) -> bool {
        self.until.is_some_and(|until| self.read_to >= until)
    }

    /// The offset, or the end of the replay if that is lower.
    pub fn up_to(&self, offset: u64) -> u64 {
        self.until.map_or(offset, |until| until.min(offset))
    }

    /// Whether an earlier owner had finished this offset.
    pub fn was_done(&self, offset: u64) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| offset < ahead.read_to && !ahead.unfinished.contains(offset))
    }

    pub fn saved_retry(&self, offset: u64) -> Option<&(u32, Timestamp)> {
        self.ahead.as_ref()?.retries.get(&offset)
    }

    pub fn saved_retry_mut(&mut self, offset: u64) -> Option<&mut (u32, Timestamp)> {
        self.ahead.as_mut()?.retries.get_mut(&offset)
    }

    pub fn resumed_retry(&mut self, offset: u64) -> Option<(u32, Timestamp)> {
        self.ahead.as_mut()?.retries.remove(&offset)
    }

    /// Offsets below `first` that an earlier owner had not finished and that were not read again yet.
    pub fn unfinished_ahead(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        let from = self.read_to;
        let ahead = self.ahead.iter().flat_map(move |ahead| {
            let mut offsets = ahead.unfinished.iter();
            offsets.advance_to(from);
            offsets
        });
        ahead.take_while(move |offset| *offset < first)
    }

    pub fn adopt_lost(&mut self, offset: u64) {
        self.unfinished.insert(offset);
        self.lost.insert(offset);
    }

    /// Drops the saved progress once all of it was read again.
    pub fn drop_finished_resume(&mut self) {
        self.changed = true;
        if self.ahead.as_ref().is_some_and(|ahead| self.read_to >= ahead.read_to) {
            self.ahead = None;
        }
    }

    pub fn watermark(&self) -> u64 {
        let ahead = self.ahead.as_ref();
        let end = ahead.map_or(self.read_to, |ahead| ahead.read_to.max(self.read_to));
        let ahead = ahead.and_then(|ahead| {
            let mut offsets = ahead.unfinished.iter();
            offsets.advance_to(self.read_to);
            offsets.next()
        });
        self.unfinished.min().into_iter().chain(ahead).min().unwrap_or(end)
    }

    pub fn progress(&self) -> PartitionProgress {
        let mut unfinished = self.unfinished.clone();
        let mut read_to = self.read_to;
        let lanes = self.lanes.values().filter(|lane| lane.attempts > 0);
        let mut retries: Vec<_> = lanes
            .filter_map(|lane| {
                let until = match lane.state {
                    LaneState::Parked(until) => until,
                    _ => Timestamp::from_millis(0),
                };
                lane.head().map(|head| (head, lane.attempts, until))
            })
            .collect();
        if let Some(ahead) = &self.ahead {
            let mut offsets = ahead.unfinished.iter();
            offsets.advance_to(self.read_to);
            unfinished.extend(offsets);
            read_to = read_to.max(ahead.read_to);
            let left = ahead.retries.iter().filter(|(offset, _)| **offset >= self.read_to);
            retries.extend(left.map(|(offset, (attempts, until))| (*offset, *attempts, *until)));
        }
        retries.sort_unstable();
        PartitionProgress { watermark: self.watermark(), read_to, unfinished, retries }
    }

    pub fn message_state(&self, offset: u64) -> WindowMessageState {
        if offset >= self.read_to {
            return if self.was_done(offset) { WindowMessageState::Done } else { WindowMessageState::Ahead };
        }
        if !self.unfinished.contains(offset) {
            return WindowMessageState::Done;
        }
        match self.loaded.get(&offset).map(|loaded| loaded.place) {
            Some(LoadedState::Out(_) | LoadedState::Settling) => return WindowMessageState::InFlight,
            Some(LoadedState::Waiting) => return WindowMessageState::Waiting,
            None => {}
        }
        let parked = self.lanes.values().find_map(|lane| match lane.state {
            LaneState::Parked(until) if lane.head() == Some(offset) => Some((until, lane.attempts)),
            _ => None,
        });
        parked.map_or(WindowMessageState::Waiting, |(until, attempts)| WindowMessageState::Retrying { until, attempts })
    }

    pub fn body_bytes(&self) -> usize {
        self.loaded.values().map(|loaded| loaded.size).sum()
    }

    pub fn parked_bytes(&self) -> usize {
        let offsets = self.backlog_len as usize * OFFSET_BYTES + self.backlog_stretches * STRETCH_BYTES;
        self.backlog_lane_bytes + offsets
    }

    /// The same, computed from all lanes.
    #[cfg(test)]
    pub fn parked_bytes_counted(&self) -> usize {
        let waiting = self.lanes.iter().filter(|(_, lane)| !lane.backlog.is_empty());
        let of = waiting.map(|(key, lane)| {
            let stretches: HashSet<u64> = lane.backlog.iter().map(|offset| offset >> STRETCH_BITS).collect();
            let offsets = lane.backlog.len() as usize * OFFSET_BYTES + stretches.len() * STRETCH_BYTES;
            LANE_BYTES + key.bytes() + offsets
        });
        of.sum()
    }

    /// The number of lanes that are parked or behind a barrier.
    pub fn waiting_lanes(&self) -> u64 {
        let waits = |lane: &&OrderedLane| matches!(lane.state, LaneState::Parked(_) | LaneState::Behind);
        self.lanes.values().filter(waits).count() as u64
    }

    /// The offset from which bodies are requested again, and whether only one is: a lane whose head was attempted needs only its head,
    /// and no other lane needs a body nearby.
    pub fn wanted_again(&self) -> Option<(u64, bool)> {
        let mut awaiting_body = self.awaiting_body.iter();
        let (from, key) = awaiting_body.next()?;
        let was_attempted = self.lanes.get(key).is_some_and(|lane| lane.attempts > 0);
        let is_alone = awaiting_body.next().is_none_or(|(next, _)| next - from > NEARBY_OFFSETS);
        Some((*from, was_attempted && is_alone))
    }

    pub fn add_lane(&mut self, key: LaneKey, lane: OrderedLane) {
        if !lane.backlog.is_empty() {
            debug_assert_eq!(lane.backlog.len(), 1, "a lane starts with one message");
            self.backlog_len += lane.backlog.len();
            self.backlog_stretches += 1;
            self.backlog_lane_bytes += LANE_BYTES + key.bytes();
        }
        self.lanes.insert(key, lane);
    }

    pub fn drop_lane(&mut self, key: &LaneKey) {
        if let Some(lane) = self.lanes.remove(key) {
            debug_assert!(lane.waiting.is_empty() && lane.backlog.is_empty(), "only an empty lane is removed");
        }
    }

    /// Adds an offset to those without bodies of a lane.
    pub fn put_back(&mut self, key: &LaneKey, offset: u64) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.backlog.is_empty() {
            self.backlog_lane_bytes += LANE_BYTES + key.bytes();
        }
        self.backlog_stretches += usize::from(!has_near(&lane.backlog, offset));
        self.backlog_len += u64::from(lane.backlog.insert(offset));
    }

    /// Removes an offset from those without bodies of a lane.
    pub fn take_out(&mut self, key: &LaneKey, offset: u64) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if !lane.backlog.remove(offset) {
            return;
        }
        self.backlog_len -= 1;
        self.backlog_stretches -= usize::from(!has_near(&lane.backlog, offset));
        if lane.backlog.is_empty() {
            self.backlog_lane_bytes -= LANE_BYTES + key.bytes();
        }
    }

    /// Drops the bodies of a lane. Its offsets stay.
    pub fn drop_bodies(&mut self, key: &LaneKey, body_bytes: &mut usize) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        for offset in std::mem::take(&mut lane.waiting) {
            if let Some(loaded) = self.loaded.remove(&offset) {
                *body_bytes -= loaded.size;
            }
            self.put_back(key, offset);
        }
    }

    /// Attempts at an offset that has its body.
    pub fn attempts_at(&self, offset: u64) -> u32 {
        let key = self.loaded.get(&offset).and_then(|loaded| loaded.lane.as_ref());
        key.and_then(|key| self.lanes.get(key)).map_or(0, |lane| lane.attempts)
    }

    pub fn is_settling(&self, offset: u64) -> bool {
        self.lost.contains(&offset)
            || self.loaded.get(&offset).is_some_and(|loaded| loaded.place == LoadedState::Settling)
    }

    /// Marks the head of a lane as in flight.
    pub fn send_out(&mut self, offset: u64, ticket: DeliveryTicket) {
        let loaded = self.loaded.get_mut(&offset).expect("a message to deliver is loaded");
        loaded.place = LoadedState::Out(ticket);
        if let Some(lane) = loaded.lane.as_ref().and_then(|key| self.lanes.get_mut(key)) {
            lane.state = LaneState::Out;
        }
    }

    /// Parks the lane of an offset in flight, and drops its bodies.
    pub fn park(&mut self, offset: u64, until: Timestamp, counts: bool, body_bytes: &mut usize) -> LaneKey {
        self.changed = true;
        let lane = self.loaded.get_mut(&offset).expect("a message in flight is loaded").lane.clone();
        let key = lane.unwrap_or_else(|| {
            let key = LaneKey::Single(offset);
            self.lanes.insert(key.clone(), OrderedLane::ready(offset));
            key
        });
        self.drop_bodies(&key, body_bytes);
        let lane = self.lanes.get_mut(&key).expect("the lane exists");
        lane.attempts += u32::from(counts);
        lane.state = LaneState::Parked(until);
        key
    }

    /// Completes an offset. Returns its lane, which then advances.
    pub fn finish(&mut self, offset: u64, body_bytes: &mut usize) -> Option<LaneKey> {
        self.changed = true;
        self.unfinished.remove(offset);
        if self.lost.remove(&offset) {
            return None;
        }
        let loaded = self.loaded.remove(&offset)?;
        *body_bytes -= loaded.size;
        let key = loaded.lane?;
        if let Some(lane) = self.lanes.get_mut(&key) {
            debug_assert_eq!(lane.waiting.front(), Some(&offset), "only the head of a lane is in flight");
            lane.waiting.pop_front();
        }
        Some(key)
    }

    /// The lowest offsets in a range without bodies, with their lanes, in order.
    pub fn without_body(&self, among: &Range<u64>, most: usize) -> Vec<(u64, LaneKey)> {
        let of = |(key, lane): (&LaneKey, &OrderedLane)| {
            let mut offsets = lane.backlog.iter();
            offsets.advance_to(among.start);
            let below: Vec<u64> = offsets.take_while(|offset| *offset < among.end).take(most).collect();
            let key = key.clone();
            below.into_iter().map(move |offset| (offset, key.clone()))
        };
        let mut offsets: Vec<(u64, LaneKey)> = self.lanes.iter().flat_map(of).collect();
        offsets.sort_unstable();
        offsets.truncate(most);
        offsets
    }

    /// Removes an offset from its lane because its body is lost.
    pub fn lose(&mut self, offset: u64, key: &LaneKey) {
        self.changed = true;
        self.take_out(key, offset);
        self.awaiting_body.remove(&(offset, key.clone()));
        self.lost.insert(offset);
    }
}
