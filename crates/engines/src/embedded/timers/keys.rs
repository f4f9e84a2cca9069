//! How the holds of a shard are written in the LSM. All keys begin with their shard and its generation: a shard that is emptied
//! goes on in the next generation, and what the earlier one left is out of sight at once.
//!
//! ```text
//! shards   shard                                      -> format, epoch, applied, generation, floor, line, now
//!          shard, generation                          -> nothing: that generation is to be erased
//! rows     shard, generation, due, id                 -> the hold, with its payload
//! ids      shard, generation, id                      -> due, of rows and of garbage
//! late     shard, generation, due, id                 -> the hold, of holds that were put below the line
//! late_ids shard, generation, id                      -> due, of late ones
//! counts   shard, generation, topic, minute           -> how many are due in it, and in which of its seconds there were any
//! ends-*   shard, generation, id                      -> applied, the end
//! dead-*   shard, generation, due, id                 -> nothing
//! ```
//!
//! What a topic has is found through its counts: only the seconds in which it has something are looked through. So a hold costs
//! two keys and not three.
//!
//! Numbers in keys are big endian, and times have their sign turned, so that the order of bytes is the order of numbers. An id
//! stands last in its key, so it needs no length.

use std::time::Duration;

use whimbrel_model::ports::DueCursor;
use whimbrel_model::{HoldId, Timestamp, TopicNumber};

const FORMAT: u8 = 2;
/// What counts are kept by.
pub(super) const MINUTE: Duration = Duration::from_secs(60);
const SIGN: u64 = 1 << 63;
/// In place of a topic where all topics are counted together; no topic has this number.
pub(super) const ALL_TOPICS: TopicNumber = TopicNumber(u32::MAX);
const _: () = assert!(whimbrel_model::limits::TOPIC_NUMBER_MAX < ALL_TOPICS.0);

/// Where a shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShardState {
    pub epoch: u64,
    pub applied: u64,
    pub generation: u32,
    /// No row is due below this.
    pub floor: Timestamp,
    /// Below this, what is pending is among the late ones, and rows are garbage.
    pub line: Timestamp,
    /// The latest time of a write.
    pub now: Timestamp,
}

impl ShardState {
    /// A shard that nobody took yet.
    pub const UNKNOWN: Self = Self {
        epoch: 0,
        applied: 0,
        generation: 0,
        floor: Timestamp::from_millis(i64::MAX),
        line: Timestamp::from_millis(i64::MIN),
        now: Timestamp::from_millis(i64::MIN),
    };

    pub fn encode(&self) -> Vec<u8> {
        let mut value = vec![FORMAT];
        value.extend_from_slice(&self.epoch.to_le_bytes());
        value.extend_from_slice(&self.applied.to_le_bytes());
        value.extend_from_slice(&self.generation.to_le_bytes());
        value.extend_from_slice(&self.floor.as_millis().to_le_bytes());
        value.extend_from_slice(&self.line.as_millis().to_le_bytes());
        value.extend_from_slice(&self.now.as_millis().to_le_bytes());
        value
    }

    pub fn decode(value: &[u8]) -> Option<Self> {
        let (&FORMAT, rest) = value.split_first()? else { return None };
        let (epoch, rest) = rest.split_first_chunk()?;
        let (applied, rest) = rest.split_first_chunk()?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (floor, rest) = rest.split_first_chunk()?;
        let (line, rest) = rest.split_first_chunk()?;
        let (now, []) = rest.split_first_chunk()? else { return None };
        Some(Self {
            epoch: u64::from_le_bytes(*epoch),
            applied: u64::from_le_bytes(*applied),
            generation: u32::from_le_bytes(*generation),
            floor: Timestamp::from_millis(i64::from_le_bytes(*floor)),
            line: Timestamp::from_millis(i64::from_le_bytes(*line)),
            now: Timestamp::from_millis(i64::from_le_bytes(*now)),
        })
    }
}

/// What all keys of a generation of a shard begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub shard: u32,
    pub generation: u32,
}

impl Place {
    pub fn prefix(self) -> [u8; 8] {
        (u64::from(self.shard) << 32 | u64::from(self.generation)).to_be_bytes()
    }

    /// The place whose prefix this is.
    pub fn of_prefix(prefix: [u8; 8]) -> Self {
        let both = u64::from_be_bytes(prefix);
        Self { shard: (both >> 32) as u32, generation: both as u32 }
    }

    fn key(self, rest_len: usize) -> Vec<u8> {
        let mut key = Vec::with_capacity(8 + rest_len);
        key.extend_from_slice(&self.prefix());
        key
    }

    pub fn by_id(self, id: &HoldId) -> Vec<u8> {
        let mut key = self.key(id.as_str().len());
        key.extend_from_slice(id.as_str().as_bytes());
        key
    }

    pub fn by_due(self, due: Timestamp, id: &str) -> Vec<u8> {
        let mut key = self.key(8 + id.len());
        key.extend_from_slice(&sortable(due));
        key.extend_from_slice(id.as_bytes());
        key
    }

    pub fn count(self, topic: TopicNumber, minute: Timestamp) -> Vec<u8> {
        let mut key = self.key(12);
        key.extend_from_slice(&topic.0.to_be_bytes());
        key.extend_from_slice(&sortable(minute));
        key
    }
}

/// What a topic has in a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Minute {
    pub count: u64,
    /// A bit for each second in which there was any since there was none in the whole minute.
    pub seconds: u64,
}

impl Minute {
    pub const EMPTY: Self = Self { count: 0, seconds: 0 };

    pub fn encode(self) -> Vec<u8> {
        [self.count.to_le_bytes(), self.seconds.to_le_bytes()].concat()
    }

    pub fn decode(value: &[u8]) -> Option<Self> {
        let (count, rest) = value.split_first_chunk()?;
        let seconds = rest.try_into().ok()?;
        Some(Self { count: u64::from_le_bytes(*count), seconds: u64::from_le_bytes(seconds) })
    }

    /// Stretches of seconds, in milliseconds of the minute, that may have some: from, to.
    pub fn stretches(self) -> impl Iterator<Item = (i64, i64)> {
        let mut seconds = self.seconds;
        std::iter::from_fn(move || {
            if seconds == 0 {
                return None;
            }
            let first = seconds.trailing_zeros();
            let len = (seconds >> first).trailing_ones();
            seconds = seconds.checked_shr(first + len).map_or(0, |rest| rest << (first + len));
            Some((i64::from(first) * 1000, i64::from(first + len) * 1000))
        })
    }
}

/// The bit of the second of its minute that a time is in.
pub(super) fn second_of(time: Timestamp) -> u64 {
    1 << time.as_millis().rem_euclid(60_000).div_euclid(1000)
}

/// The place in due order that a key of [`Place::by_due`] ends with.
pub(super) fn due_of(key: &[u8]) -> Option<DueCursor> {
    let (due, id) = key.get(8..)?.split_first_chunk::<8>()?;
    Some(DueCursor { due: unsortable(*due), id: HoldId::new(std::str::from_utf8(id).ok()?) })
}

/// The minute that a key of [`Place::count`] ends with.
pub(super) fn minute_of(key: &[u8]) -> Option<Timestamp> {
    key.get(12..)?.first_chunk().map(|minute| unsortable(*minute))
}

pub(super) fn sortable(time: Timestamp) -> [u8; 8] {
    (time.as_millis() as u64 ^ SIGN).to_be_bytes()
}

pub(super) fn unsortable(bytes: [u8; 8]) -> Timestamp {
    Timestamp::from_millis((u64::from_be_bytes(bytes) ^ SIGN) as i64)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const PLACE: Place = Place { shard: 3, generation: 9 };

    pub fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn keys_are_ordered_by_time_and_then_by_id() {
        let times = [i64::MIN, -60_000, -1, 0, 1, 255, 256, 1 << 40, i64::MAX];
        let keys: Vec<_> =
            times.iter().flat_map(|time| ["", "a", "ab", "b"].map(|id| PLACE.by_due(at(*time), id))).collect();
        assert!(keys.is_sorted());
    }

    #[test]
    fn a_key_tells_its_due_time_and_id() {
        let expected = Some(DueCursor { due: at(-7), id: HoldId::new("order-1") });
        assert_eq!(due_of(&PLACE.by_due(at(-7), "order-1")), expected);
        assert_eq!(due_of(&PLACE.prefix()), None);
        assert_eq!(minute_of(&PLACE.count(TopicNumber(1), at(60_000))), Some(at(60_000)));
        assert_eq!(Place::of_prefix(PLACE.prefix()), PLACE);
    }

    #[test]
    fn a_minute_tells_in_which_seconds_there_may_be_some() {
        let seconds = [at(0), at(59_999), at(-1), at(3_000), at(4_999)].map(second_of);
        let minute = Minute { count: 4, seconds: seconds.into_iter().fold(0, |all, bit| all | bit) };
        assert_eq!(minute.stretches().collect::<Vec<_>>(), [(0, 1_000), (3_000, 5_000), (59_000, 60_000)]);
        assert_eq!(Minute { count: 1, seconds: u64::MAX }.stretches().count(), 1);
        assert_eq!(Minute::EMPTY.stretches().count(), 0);
        assert_eq!(Minute::decode(&minute.encode()), Some(minute));
        assert_eq!(Minute::decode(b"short"), None);
    }

    #[test]
    fn a_state_survives_and_a_broken_one_is_refused() {
        let state = ShardState { epoch: 1, applied: 2, generation: 3, floor: at(-4), line: at(-6), now: at(5) };
        let value = state.encode();
        assert_eq!(ShardState::decode(&value), Some(state));
        for len in 0..value.len() {
            assert_eq!(ShardState::decode(&value[..len]), None);
        }
        assert_eq!(ShardState::decode(&[&value[..], b"x"].concat()), None);
    }
}
