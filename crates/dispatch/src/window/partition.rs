//! One partition of a window: what was read of it and is not done, and its lanes.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use roaring::RoaringTreemap;
use whimbrel_model::Timestamp;

use super::{Standing, Ticket, Whereabouts};

/// What a lane that waits costs beside its key and its offsets, about: most of it is the frame of a compressed set.
const LANE_BYTES: usize = 1024;
/// What the offsets of a lane cost for each stretch of the partition that has some of them: a compressed set has a part for each.
const STRETCH_BYTES: usize = 128;
const STRETCH_BITS: u32 = 16;
/// What a parked offset costs at most, in the lane's set and in that of all that is unfinished.
const OFFSET_BYTES: usize = 4;

/// Bodies that are no farther apart than this are read together.
const NEARBY_OFFSETS: u64 = 1_000;

/// What is kept in order. `Single` comes first in the order of keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum LaneKey {
    /// One message without an order that has to wait.
    Single(u64),
    /// The whole partition.
    Whole,
    Key(Bytes),
}

impl LaneKey {
    /// The same key in a buffer of its own: a lane outlives the bodies of its messages.
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
    /// Its head is among the ready.
    Ready,
    /// Its head is out, or being settled.
    Out,
    Parked(Timestamp),
    /// Its head's body is wanted again.
    Hungry,
    /// Its key's earlier messages, in another partition, come first.
    Behind,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub state: LaneState,
    /// Attempts made at the head.
    pub attempts: u32,
    /// Offsets with bodies, in order; the head is the first.
    pub waiting: VecDeque<u64>,
    /// Offsets without bodies, all above those of `waiting`.
    pub backlog: RoaringTreemap,
}

impl Lane {
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

    /// Whether bodies behind the head are worth keeping: a lane on trial would drop them again.
    pub fn has_room_behind(&self) -> bool {
        matches!(self.state, LaneState::Ready | LaneState::Out) && self.attempts == 0
    }

    /// Whether a message that was just read stays with its body: not in front of those without.
    pub fn takes_bodies(&self) -> bool {
        self.backlog.is_empty() && self.has_room_behind()
    }
}

/// Whether a set has an offset in the same stretch.
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
pub(super) enum Place {
    Waiting,
    Out(Ticket),
    Settling,
}

#[derive(Debug)]
pub(super) struct Loaded<B> {
    pub body: B,
    pub size: usize,
    pub lane: Option<LaneKey>,
    pub place: Place,
}

/// Where a partition was left.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Resume {
    pub watermark: u64,
    pub read_to: u64,
    pub unfinished: RoaringTreemap,
    /// Offset, attempts, when next.
    pub retries: Vec<(u64, u32, Timestamp)>,
}

impl Resume {
    /// A partition that nothing was done of yet.
    pub fn at(offset: u64) -> Self {
        Self { watermark: offset, read_to: offset, ..Self::default() }
    }
}

/// What is still to be read again of where the partition was left.
#[derive(Debug)]
struct Ahead {
    read_to: u64,
    unfinished: RoaringTreemap,
    retries: HashMap<u64, (u32, Timestamp)>,
}

#[derive(Debug)]
pub(super) struct Partition<B> {
    pub read_to: u64,
    pub until: Option<u64>,
    pub is_retry: bool,
    /// Read, and not done.
    pub unfinished: RoaringTreemap,
    pub loaded: HashMap<u64, Loaded<B>, foldhash::fast::RandomState>,
    pub lanes: HashMap<LaneKey, Lane, foldhash::fast::RandomState>,
    /// Heads whose bodies are wanted again.
    pub hungry: BTreeSet<(u64, LaneKey)>,
    /// Offsets without bodies, of all lanes.
    pub backlog_len: u64,
    /// Stretches of the partition that have such offsets, of all lanes.
    backlog_stretches: usize,
    /// What lanes that have such offsets cost.
    backlog_lane_bytes: usize,
    /// Not in the log any more, and being settled.
    lost: HashSet<u64>,
    ahead: Option<Ahead>,
    pub reading: bool,
    pub reading_again: bool,
    /// Since it was last given out to be saved.
    pub changed: bool,
}

impl<B> Partition<B> {
    pub fn new(resume: Resume, until: Option<u64>, is_retry: bool) -> Self {
        let retries = resume.retries.into_iter().map(|(offset, attempts, until)| (offset, (attempts, until)));
        let ahead = Ahead { read_to: resume.read_to, unfinished: resume.unfinished, retries: retries.collect() };
        Self {
            read_to: resume.watermark,
            until,
            is_retry,
            unfinished: RoaringTreemap::new(),
            loaded: HashMap::default(),
            lanes: HashMap::default(),
            hungry: BTreeSet::new(),
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

    /// That offset, or where the partition ends for this window where that is earlier.
    pub fn up_to(&self, offset: u64) -> u64 {
        self.until.map_or(offset, |until| until.min(offset))
    }

    /// Whether an earlier run had finished this offset.
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

    /// Offsets below `first` that an earlier run had not finished and that were not read again.
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

    /// Forgets where it was left, once everything of that was read again.
    pub fn left_behind(&mut self) {
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

    pub fn standing(&self) -> Standing {
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
        Standing { watermark: self.watermark(), read_to, unfinished, retries }
    }

    pub fn whereabouts(&self, offset: u64) -> Whereabouts {
        if offset >= self.read_to {
            return if self.was_done(offset) { Whereabouts::Done } else { Whereabouts::Ahead };
        }
        if !self.unfinished.contains(offset) {
            return Whereabouts::Done;
        }
        match self.loaded.get(&offset).map(|loaded| loaded.place) {
            Some(Place::Out(_) | Place::Settling) => return Whereabouts::InFlight,
            Some(Place::Waiting) => return Whereabouts::Waiting,
            None => {}
        }
        let parked = self.lanes.values().find_map(|lane| match lane.state {
            LaneState::Parked(until) if lane.head() == Some(offset) => Some((until, lane.attempts)),
            _ => None,
        });
        parked.map_or(Whereabouts::Waiting, |(until, attempts)| Whereabouts::Retrying { until, attempts })
    }

    // ---- bytes ----

    pub fn body_bytes(&self) -> usize {
        self.loaded.values().map(|loaded| loaded.size).sum()
    }

    pub fn parked_bytes(&self) -> usize {
        let offsets = self.backlog_len as usize * OFFSET_BYTES + self.backlog_stretches * STRETCH_BYTES;
        self.backlog_lane_bytes + offsets
    }

    /// The same, counted from nothing.
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

    /// Lanes that wait for a time or behind a barrier.
    pub fn waiting_lanes(&self) -> u64 {
        let waits = |lane: &&Lane| matches!(lane.state, LaneState::Parked(_) | LaneState::Behind);
        self.lanes.values().filter(waits).count() as u64
    }

    /// From where on bodies are wanted again, and whether only the first: a lane on trial takes its head and nothing behind it, and no
    /// other wants one nearby.
    pub fn wanted_again(&self) -> Option<(u64, bool)> {
        let mut hungry = self.hungry.iter();
        let (from, key) = hungry.next()?;
        let is_on_trial = self.lanes.get(key).is_some_and(|lane| lane.attempts > 0);
        let is_alone = hungry.next().is_none_or(|(next, _)| next - from > NEARBY_OFFSETS);
        Some((*from, is_on_trial && is_alone))
    }

    // ---- lanes ----

    pub fn add_lane(&mut self, key: LaneKey, lane: Lane) {
        if !lane.backlog.is_empty() {
            debug_assert_eq!(lane.backlog.len(), 1, "a lane begins with one message");
            self.backlog_len += lane.backlog.len();
            self.backlog_stretches += 1;
            self.backlog_lane_bytes += LANE_BYTES + key.bytes();
        }
        self.lanes.insert(key, lane);
    }

    pub fn drop_lane(&mut self, key: &LaneKey) {
        if let Some(lane) = self.lanes.remove(key) {
            debug_assert!(lane.waiting.is_empty() && lane.backlog.is_empty(), "only an empty lane ends");
        }
    }

    /// Adds an offset to the lane's without bodies.
    pub fn put_back(&mut self, key: &LaneKey, offset: u64) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.backlog.is_empty() {
            self.backlog_lane_bytes += LANE_BYTES + key.bytes();
        }
        self.backlog_stretches += usize::from(!has_near(&lane.backlog, offset));
        self.backlog_len += u64::from(lane.backlog.insert(offset));
    }

    /// Takes an offset from the lane's without bodies.
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

    /// Drops the bodies of a lane; its offsets stay.
    pub fn drop_bodies(&mut self, key: &LaneKey, body_bytes: &mut usize) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        for offset in std::mem::take(&mut lane.waiting) {
            if let Some(loaded) = self.loaded.remove(&offset) {
                *body_bytes -= loaded.size;
            }
            self.put_back(key, offset);
        }
    }

    /// Attempts made at an offset that has its body.
    pub fn attempts_at(&self, offset: u64) -> u32 {
        let key = self.loaded.get(&offset).and_then(|loaded| loaded.lane.as_ref());
        key.and_then(|key| self.lanes.get(key)).map_or(0, |lane| lane.attempts)
    }

    pub fn is_settling(&self, offset: u64) -> bool {
        self.lost.contains(&offset) || self.loaded.get(&offset).is_some_and(|loaded| loaded.place == Place::Settling)
    }

    /// The head of a lane goes out.
    pub fn goes_out(&mut self, offset: u64, ticket: Ticket) {
        let loaded = self.loaded.get_mut(&offset).expect("what goes out is loaded");
        loaded.place = Place::Out(ticket);
        if let Some(lane) = loaded.lane.as_ref().and_then(|key| self.lanes.get_mut(key)) {
            lane.state = LaneState::Out;
        }
    }

    /// Parks the lane of an offset that was out, and drops its bodies.
    pub fn park(&mut self, offset: u64, until: Timestamp, counts: bool, body_bytes: &mut usize) -> LaneKey {
        self.changed = true;
        let lane = self.loaded.get_mut(&offset).expect("what was out is loaded").lane.clone();
        let key = lane.unwrap_or_else(|| {
            let key = LaneKey::Single(offset);
            self.lanes.insert(key.clone(), Lane::ready(offset));
            key
        });
        self.drop_bodies(&key, body_bytes);
        let lane = self.lanes.get_mut(&key).expect("a lane that was out is there");
        lane.attempts += u32::from(counts);
        lane.state = LaneState::Parked(until);
        key
    }

    /// An offset is done. Answers with its lane, which goes on.
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
            debug_assert_eq!(lane.waiting.front(), Some(&offset), "only the head of a lane is out");
            lane.waiting.pop_front();
        }
        Some(key)
    }

    /// The lowest offsets among these that have no body, with their lanes, in order.
    pub fn without_body(&self, among: &Range<u64>, most: usize) -> Vec<(u64, LaneKey)> {
        let of = |(key, lane): (&LaneKey, &Lane)| {
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

    /// An offset without a body can never have one again: it leaves its lane.
    pub fn lose(&mut self, offset: u64, key: &LaneKey) {
        self.changed = true;
        self.take_out(key, offset);
        self.hungry.remove(&(offset, key.clone()));
        self.lost.insert(offset);
    }
}
