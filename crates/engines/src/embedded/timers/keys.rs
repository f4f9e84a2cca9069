//! The format of the holds of a shard in the LSM. All keys begin with their shard and its generation. A shard that is emptied continues in
//! the next generation, and no read sees the rows of the earlier one.
//!
//! ```text
//! shards   shard                                      -> format, epoch, applied, generation, floor, line, now
//!          shard, generation                          -> empty: that generation must be erased
//! rows     shard, generation, due, id                 -> the hold, with its payload
//! ids      shard, generation, id                      -> due, of rows and of garbage
//! late     shard, generation, due, id                 -> the hold, for holds that were put below the line
//! late_ids shard, generation, id                      -> due, of late holds
//! counts   shard, generation, topic, minute           -> the number of holds due, and the seconds that had any
//! ends-*   shard, generation, id                      -> applied, the end
//! dead-*   shard, generation, due, id                 -> empty
//! ```
//!
//! The counts are the index by topic: a list of a topic scans only the seconds in which the topic has holds. So a hold costs two keys and
//! not three.
//!
//! Numbers in keys are big-endian, and times have their sign bit inverted, so that keys sort as the numbers do. An id is the last part of
//! its key, so it needs no length.

use std::time::Duration;

use bytes::Buf as _;
use whimbrel_model::ports::DueCursor;
use whimbrel_model::{HoldId, Timestamp, TopicNumber};

use crate::embedded::lsm::Generation;

const FORMAT: u8 = 2;
/// The unit of the counts.
pub(super) const MINUTE: Duration = Duration::from_secs(60);
const SIGN: u64 = 1 << 63;
/// Stands for a topic where all topics are counted together; no topic has this number.
pub(super) const ALL_TOPICS: TopicNumber = TopicNumber(u32::MAX);
const _: () = assert!(whimbrel_model::limits::TOPIC_NUMBER_MAX < ALL_TOPICS.0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimerShardState {
    pub epoch: u64,
    pub applied: u64,
    pub generation: u32,
    /// No row is due below this time.
    pub floor: Timestamp,
    /// Below this time, pending holds are in the keyspaces for late holds, and rows are garbage.
    pub line: Timestamp,
    /// The `now` of the last write.
    pub now: Timestamp,
}

impl TimerShardState {
    /// A shard that was never opened.
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
        let (&FORMAT, mut rest) = value.split_first()? else { return None };
        let state = Self {
            epoch: rest.try_get_u64_le().ok()?,
            applied: rest.try_get_u64_le().ok()?,
            generation: rest.try_get_u32_le().ok()?,
            floor: Timestamp::from_millis(rest.try_get_i64_le().ok()?),
            line: Timestamp::from_millis(rest.try_get_i64_le().ok()?),
            now: Timestamp::from_millis(rest.try_get_i64_le().ok()?),
        };
        rest.is_empty().then_some(state)
    }
}

/// The keys of a shard.
impl Generation {
    pub fn by_id(self, id: &HoldId) -> Vec<u8> {
        self.key(&[id.as_str().as_bytes()])
    }

    pub fn by_due(self, due: Timestamp, id: &str) -> Vec<u8> {
        self.key(&[&sortable(due), id.as_bytes()])
    }

    pub fn count(self, topic: TopicNumber, minute: Timestamp) -> Vec<u8> {
        self.key(&[&topic.0.to_be_bytes(), &sortable(minute)])
    }
}

/// The pending holds of a topic in a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Minute {
    pub count: u64,
    /// A bit for each second that had holds since the count of the minute was last zero.
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

    /// The ranges of seconds that may have holds, in milliseconds of the minute: from, to.
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

/// The bit of the second of a time within its minute.
pub(super) fn second_of(time: Timestamp) -> u64 {
    1 << time.as_millis().rem_euclid(60_000).div_euclid(1000)
}

/// The place in due order at the end of a key of [`Generation::by_due`].
pub(super) fn due_of(key: &[u8]) -> Option<DueCursor> {
    let (due, id) = key.get(8..)?.split_first_chunk::<8>()?;
    Some(DueCursor { due: unsortable(*due), id: HoldId::new(std::str::from_utf8(id).ok()?) })
}

/// The minute at the end of a key of [`Generation::count`].
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

    const PLACE: Generation = Generation { part: 3, generation: 9 };

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
    fn a_key_contains_its_due_time_and_id() {
        let expected = Some(DueCursor { due: at(-7), id: HoldId::new("order-1") });
        assert_eq!(due_of(&PLACE.by_due(at(-7), "order-1")), expected);
        assert_eq!(due_of(&PLACE.prefix()), None);
        assert_eq!(minute_of(&PLACE.count(TopicNumber(1), at(60_000))), Some(at(60_000)));
        assert_eq!(Generation::of_prefix(PLACE.prefix()), PLACE);
    }

    #[test]
    fn a_minute_lists_the_seconds_that_may_have_holds() {
        let seconds = [at(0), at(59_999), at(-1), at(3_000), at(4_999)].map(second_of);
        let minute = Minute { count: 4, seconds: seconds.into_iter().fold(0, |all, bit| all | bit) };
        assert_eq!(minute.stretches().collect::<Vec<_>>(), [(0, 1_000), (3_000, 5_000), (59_000, 60_000)]);
        assert_eq!(Minute { count: 1, seconds: u64::MAX }.stretches().count(), 1);
        assert_eq!(Minute::EMPTY.stretches().count(), 0);
        assert_eq!(Minute::decode(&minute.encode()), Some(minute));
        assert_eq!(Minute::decode(b"short"), None);
    }

    #[test]
    fn a_state_is_read_as_written_and_a_damaged_one_is_rejected() {
        let state = TimerShardState { epoch: 1, applied: 2, generation: 3, floor: at(-4), line: at(-6), now: at(5) };
        let value = state.encode();
        assert_eq!(TimerShardState::decode(&value), Some(state));
        for len in 0..value.len() {
            assert_eq!(TimerShardState::decode(&value[..len]), None);
        }
        assert_eq!(TimerShardState::decode(&[&value[..], b"x"].concat()), None);
    }
}
