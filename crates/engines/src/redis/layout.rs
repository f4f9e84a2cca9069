//! The keys of a shard of holds in Redis.
//!
//! | key | content |
//! | --- | --- |
//! | `meta` | a hash: the epoch, the applied offset, the position of the ring and the time since when it has that position |
//! | `rows` | a hash: id → the pending hold |
//! | `due`, `topic_due` | sorted sets of equal scores, so that members sort by their bytes: (due, id) and (topic, due, id) |
//! | `counts`, `minutes` | (topic, minute of the due time) → the number of pending holds, and a sorted set of the non-zero ones. Each hold
//! counts for its topic and for all topics |
//! | `ends:0` … | hashes: id → outcome of the hold, in a ring that turns with time. The oldest hash is dropped whole |
//! | `dead`, `dead_due`, `dead_topic_due`, `dead_since` | the same for dead holds, which can never be appended. There are few of them, and
//! they can be listed |
//!
//! Every key is `<prefix>:{h<shard>}:<name>`.

use std::time::Duration;

use whimbrel_model::ports::{CountQuery, DueCursor, HoldQuery};
use whimbrel_model::{HoldId, Timestamp, TopicNumber};

/// Positions of the ring of ends. One is being filled and one may have just begun; the others cover the time for which ends are remembered.
pub(super) const RING: usize = 8;
/// Bytes of a member of `due` before the id.
pub(super) const TIME_BYTES: usize = 8;
/// Bytes of a place: the topic, then the due time.
pub(super) const PLACE_BYTES: usize = 4 + TIME_BYTES;
const ALL_TOPICS: u32 = u32::MAX;
const MS_PER_MINUTE: i64 = 60_000;

/// Every key of a shard except the ring of ends, in the order in which `apply.lua` expects them.
const NAMES: [&str; 10] =
    ["meta", "rows", "due", "topic_due", "counts", "minutes", "dead", "dead_due", "dead_topic_due", "dead_since"];

pub(super) struct ShardKeys {
    begin: String,
}

impl ShardKeys {
    pub fn new(prefix: &str, shard: u32) -> Self {
        Self { begin: format!("{prefix}:{{h{shard}}}:") }
    }

    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.begin)
    }

    pub fn keys(&self, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| self.key(name)).collect()
    }

    pub fn all(&self) -> Vec<String> {
        self.keys_and_ring(&NAMES)
    }

    /// The keys with these names, then the keys of the ring of ends.
    pub fn keys_and_ring(&self, names: &[&str]) -> Vec<String> {
        let mut keys = self.keys(names);
        keys.extend((0..RING).map(|place| self.key(&format!("ends:{place}"))));
        keys
    }
}

/// The time for which one position of the ring is filled. Ends that leave the ring are older than `remember`.
pub(super) fn ring_time(remember: Duration) -> Duration {
    remember / (RING as u32 - 2)
}

/// The maximum time for which an end is stored.
pub(super) fn kept_at_most(remember: Duration) -> Duration {
    ring_time(remember) * (RING as u32 - 1)
}

/// Encodes a signed number so that the bytes sort as the numbers do.
fn sortable(number: i64) -> [u8; TIME_BYTES] {
    (number as u64 ^ 1 << 63).to_be_bytes()
}

pub(super) fn place(topic: TopicNumber, due: Timestamp) -> [u8; PLACE_BYTES] {
    let mut place = [0; PLACE_BYTES];
    place[..4].copy_from_slice(&topic.0.to_be_bytes());
    place[4..].copy_from_slice(&sortable(due.as_millis()));
    place
}

/// A member of an index by topic. Without its first 4 bytes it is a member of the index by time.
pub(super) fn member(topic: TopicNumber, due: Timestamp, id: &HoldId) -> Vec<u8> {
    [&place(topic, due), id.as_str().as_bytes()].concat()
}

/// The fields in which a pending hold is counted.
pub(super) fn minute_fields(topic: TopicNumber, due: Timestamp) -> [[u8; PLACE_BYTES]; 2] {
    let minute = Timestamp::from_millis(due.as_millis().div_euclid(MS_PER_MINUTE));
    [place(topic, minute), place(TopicNumber(ALL_TOPICS), minute)]
}

/// A range of an index, as `ZRANGEBYLEX` takes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LexRange {
    pub from: Vec<u8>,
    pub to: Vec<u8>,
}

fn bound(mark: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut bound = vec![mark];
    parts.iter().for_each(|part| bound.extend_from_slice(part));
    bound
}

impl LexRange {
    /// All members after a cursor that are due before `until`.
    pub fn due(after: Option<&DueCursor>, until: Timestamp) -> Self {
        Self::of(None, None, Some(until), after)
    }

    pub fn listed(query: &HoldQuery) -> Self {
        Self::of(query.topic, query.from, query.to, query.after.as_ref())
    }

    fn of(
        topic: Option<TopicNumber>,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
        after: Option<&DueCursor>,
    ) -> Self {
        let topic_bytes = topic.map(|topic| topic.0.to_be_bytes());
        let topic_bytes: &[u8] = topic_bytes.as_ref().map_or(&[], |bytes| bytes);
        let from = match (from, after) {
            (from, Some(cursor)) if from.is_none_or(|from| cursor.due >= from) => {
                bound(b'(', &[topic_bytes, &sortable(cursor.due.as_millis()), cursor.id.as_str().as_bytes()])
            }
            (Some(from), _) => bound(b'[', &[topic_bytes, &sortable(from.as_millis())]),
            (None, _) => Self::beginning(topic),
        };
        let to = match to {
            Some(to) => bound(b'(', &[topic_bytes, &sortable(to.as_millis())]),
            None => Self::end(topic),
        };
        Self { from, to }
    }

    /// The minutes of a count. The bounds of the query are widened to whole minutes.
    pub fn counted(query: &CountQuery) -> Self {
        let topic = query.topic.unwrap_or(TopicNumber(ALL_TOPICS));
        let at = |mark, minute: i64| bound(mark, &[&place(topic, Timestamp::from_millis(minute))]);
        let (from, to) = (query.from.map(Timestamp::as_millis), query.to.map(Timestamp::as_millis));
        let up = |ms: i64| ms.div_euclid(MS_PER_MINUTE) + i64::from(ms.rem_euclid(MS_PER_MINUTE) > 0);
        Self {
            from: from.map_or(Self::beginning(Some(topic)), |ms| at(b'[', ms.div_euclid(MS_PER_MINUTE))),
            to: to.map_or(Self::end(Some(topic)), |ms| at(b'(', up(ms))),
        }
    }

    fn beginning(topic: Option<TopicNumber>) -> Vec<u8> {
        topic.map_or(b"-".to_vec(), |topic| bound(b'[', &[&topic.0.to_be_bytes()]))
    }

    fn end(topic: Option<TopicNumber>) -> Vec<u8> {
        match topic.and_then(|topic| topic.0.checked_add(1)) {
            Some(next) => bound(b'(', &[&next.to_be_bytes()]),
            None => b"+".to_vec(),
        }
    }
}

/// The width of a bucket in minutes: a whole number, at least one.
pub(super) fn bucket_minutes(query: &CountQuery) -> u64 {
    u64::try_from(query.bucket.as_millis() / MS_PER_MINUTE as u128).unwrap_or(u64::MAX).max(1)
}

/// The start of the bucket whose first minute is `minute`.
pub(super) fn minute_start(minute: i64) -> Timestamp {
    Timestamp::from_millis(minute.saturating_mul(MS_PER_MINUTE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_sort_by_topic_then_time_then_id() {
        let of = |topic, due, id| member(TopicNumber(topic), Timestamp::from_millis(due), &HoldId::new(id));
        let sorted = [of(1, -5, "z"), of(1, 0, "a"), of(1, 0, "ab"), of(1, 0, "b"), of(1, 300, "a"), of(256, -9, "a")];
        assert!(sorted.is_sorted(), "{sorted:?}");
    }

    #[test]
    fn all_keys_of_a_shard_have_its_hash_tag() {
        let keys = ShardKeys::new("whimbrel", 3).keys_and_ring(&["meta"]);
        assert_eq!(keys.len(), 1 + RING);
        assert!(keys.iter().all(|key| key.starts_with("whimbrel:{h3}:")), "{keys:?}");
    }

    #[test]
    fn a_cursor_before_the_range_does_not_widen_it() {
        let at = Timestamp::from_millis;
        let after = |due| Some(DueCursor { due: at(due), id: HoldId::new("x") });
        let query = |after| HoldQuery { topic: None, from: Some(at(10)), to: None, after, limit: 1 };
        assert_eq!(LexRange::listed(&query(after(9))), LexRange::listed(&query(None)));
        assert_ne!(LexRange::listed(&query(after(10))), LexRange::listed(&query(None)));
    }

    #[test]
    fn ends_are_kept_for_at_least_the_remembered_time_and_less_than_twice_that_time() {
        let remember = Duration::from_secs(3600);
        assert!(ring_time(remember) * (RING as u32 - 2) >= remember);
        assert!(kept_at_most(remember) < remember * 2);
    }
}
