//! Reads of a shard, each from one snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use fjall::{Guard, Keyspace, Readable, Snapshot};
use whimbrel_model::ports::timers::bucket_start;
use whimbrel_model::ports::{At, CountQuery, DueCursor, HoldQuery, Known, TimersError};
use whimbrel_model::{Ending, Hold, HoldEnd, HoldId, Timestamp, TopicNumber};

use super::keys::{ALL_TOPICS, MINUTE, Place, ShardState, due_in_topic, due_of, minute_of, unsortable};
use super::write::decode_count;
use super::{Inner, unavailable};

/// No hold is due then.
const END_OF_TIME: Timestamp = Timestamp::from_millis(i64::MAX);

type Read<T> = Result<At<T>, TimersError>;

/// A shard as it was at one moment.
struct View<'a> {
    inner: &'a Inner,
    snapshot: Snapshot,
    place: Place,
    state: ShardState,
}

/// A stretch of due order: at or after `from` and before `to`, after a cursor.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    from: Timestamp,
    to: Timestamp,
    after: Option<&'a DueCursor>,
}

impl Inner {
    fn view(&self, shard: u32) -> Result<View<'_>, TimersError> {
        let snapshot = self.database.snapshot();
        let state = self.state(&snapshot, shard)?.unwrap_or(ShardState::UNKNOWN);
        Ok(View { inner: self, snapshot, place: Place { shard, generation: state.generation }, state })
    }

    pub fn due(
        &self,
        shard: u32,
        after: Option<&DueCursor>,
        until: Timestamp,
        limit: usize,
        max_bytes: usize,
    ) -> Read<Vec<Arc<Hold>>> {
        let view = self.view(shard)?;
        let stretch = view.stretch(None, Some(until), after);
        Ok(At { applied: view.state.applied, found: view.rows(stretch, limit, max_bytes)? })
    }

    pub fn list(&self, shard: u32, query: &HoldQuery) -> Read<Vec<Arc<Hold>>> {
        let view = self.view(shard)?;
        let stretch = view.stretch(query.from, query.to, query.after.as_ref());
        let found = match query.topic {
            None => view.rows(stretch, query.limit, usize::MAX)?,
            Some(topic) => view.rows_of_topic(topic, stretch, query.limit)?,
        };
        Ok(At { applied: view.state.applied, found })
    }

    pub fn get(&self, shard: u32, ids: &[HoldId]) -> Read<Vec<Option<Known>>> {
        let view = self.view(shard)?;
        let found = ids.iter().map(|id| view.known(id)).collect::<Result<_, _>>()?;
        Ok(At { applied: view.state.applied, found })
    }

    pub fn dead(&self, shard: u32, query: &HoldQuery) -> Read<Vec<(HoldId, HoldEnd)>> {
        let view = self.view(shard)?;
        let mut found = BTreeMap::new();
        // What is dead has no floor.
        let stretch = Stretch {
            from: query.from.unwrap_or(Timestamp::from_millis(i64::MIN)),
            to: query.to.unwrap_or(END_OF_TIME),
            after: query.after.as_ref(),
        };
        for slice in self.dead.newest_first() {
            let Some((first, end)) = stretch.keys(|due, id| view.place.by_due(due, id)) else { break };
            let mut of_slice = 0;
            for entry in view.snapshot.range(&slice, first..end) {
                if of_slice == query.limit {
                    break;
                }
                let key = entry.key().map_err(unavailable)?;
                let place = due_of(&key).ok_or_else(|| damaged("a dead hold"))?;
                // Something else may have become of it since.
                let Some(Known::Ended(end)) = view.known(&place.id)? else { continue };
                let is_this = matches!(end.how, Ending::Dead { .. }) && end.due == place.due;
                if is_this && query.topic.is_none_or(|topic| topic == end.topic) {
                    of_slice += usize::from(found.insert(place, end).is_none());
                }
            }
        }
        let found = found.into_iter().map(|(place, end)| (place.id, end)).take(query.limit).collect();
        Ok(At { applied: view.state.applied, found })
    }

    pub fn count(&self, shard: u32, query: &CountQuery) -> Read<Vec<(Timestamp, u64)>> {
        let view = self.view(shard)?;
        let topic = query.topic.unwrap_or(ALL_TOPICS);
        let from = query.from.unwrap_or(Timestamp::from_millis(i64::MIN));
        let mut counts = BTreeMap::new();
        for counted in view.minutes(topic, from, query.to.unwrap_or(END_OF_TIME)) {
            let (minute, count) = counted?;
            *counts.entry(bucket_start(minute, query.bucket)).or_insert(0) += count;
        }
        Ok(At { applied: view.state.applied, found: counts.into_iter().collect() })
    }

    /// Whether the time is over that an end is remembered for.
    pub fn is_forgotten(&self, end: &HoldEnd, state: &ShardState) -> bool {
        end.at <= state.now.saturating_sub(self.settings.remember)
    }
}

impl Stretch<'_> {
    /// The keys of the stretch as `key` writes them, where there can be any.
    fn keys(self, key: impl Fn(Timestamp, &str) -> Vec<u8>) -> Option<(Vec<u8>, Vec<u8>)> {
        let first = match self.after {
            Some(after) if after.due >= self.from => successor(key(after.due, after.id.as_str())),
            _ => key(self.from, ""),
        };
        let end = key(self.to, "");
        (first < end).then_some((first, end))
    }

    fn within(self, from: Timestamp, to: Timestamp) -> Self {
        Self { from: self.from.max(from), to: self.to.min(to), after: self.after }
    }
}

impl View<'_> {
    /// Never from below the floor, where only deleted ones are.
    fn stretch<'a>(&self, from: Option<Timestamp>, to: Option<Timestamp>, after: Option<&'a DueCursor>) -> Stretch<'a> {
        let from = from.map_or(self.state.floor, |from| from.max(self.state.floor));
        Stretch { from, to: to.unwrap_or(END_OF_TIME), after }
    }

    /// Late ones are due below the line, all others at or after it: the former come first.
    fn late_and_others<'a>(&self, stretch: Stretch<'a>) -> (Stretch<'a>, Stretch<'a>) {
        let line = self.state.line;
        (stretch.within(Timestamp::from_millis(i64::MIN), line), stretch.within(line, END_OF_TIME))
    }

    fn range(&self, keyspace: &Keyspace, stretch: Stretch<'_>) -> impl Iterator<Item = Guard> + use<> {
        let keys = stretch.keys(|due, id| self.place.by_due(due, id));
        keys.map(|(first, end)| self.snapshot.range(keyspace, first..end)).into_iter().flatten()
    }

    fn rows(&self, stretch: Stretch<'_>, limit: usize, max_bytes: usize) -> Result<Vec<Arc<Hold>>, TimersError> {
        let (mut holds, mut bytes) = (Vec::new(), 0);
        let (late, others) = self.late_and_others(stretch);
        let late = self.range(&self.inner.late, late);
        for entry in late.chain(self.range(&self.inner.rows, others)).take(limit) {
            let hold = decode_row(&entry.value().map_err(unavailable)?)?;
            bytes += hold.size();
            if bytes > max_bytes && !holds.is_empty() {
                break;
            }
            holds.push(Arc::new(hold));
        }
        Ok(holds)
    }

    fn rows_of_topic(
        &self,
        topic: TopicNumber,
        stretch: Stretch<'_>,
        limit: usize,
    ) -> Result<Vec<Arc<Hold>>, TimersError> {
        let (late, others) = self.late_and_others(stretch);
        let mut holds = Vec::new();
        // They are few, and have no index by topic.
        for entry in self.range(&self.inner.late, late) {
            let hold = decode_row(&entry.value().map_err(unavailable)?)?;
            if hold.topic == topic {
                holds.push(Arc::new(hold));
            }
        }
        holds.truncate(limit);
        let first = others.after.map_or(others.from, |after| after.due.max(others.from));
        for counted in self.minutes(topic, first, others.to) {
            let (minute, _) = counted?;
            if holds.len() == limit {
                break;
            }
            let keys = others.within(minute, END_OF_TIME).keys(|due, id| self.place.by_topic(topic, due, id));
            let Some((first, end)) = keys else { continue };
            let range = first..end.min(self.place.end_of_minute(topic, minute));
            for entry in self.snapshot.range(&self.inner.topics, range).take(limit - holds.len()) {
                let key = entry.key().map_err(unavailable)?;
                let place = due_in_topic(&key).ok_or_else(|| damaged("a hold of a topic"))?;
                holds.push(Arc::new(self.row(place.due, &place.id)?));
            }
        }
        Ok(holds)
    }

    /// How many of a topic are due in each minute that is in the range, also in part.
    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = Result<(Timestamp, u64), TimersError>> + use<> {
        let (first, end) = (self.place.count(topic, bucket_start(from, MINUTE)), self.place.count(topic, to));
        let range = (first < end).then(|| self.snapshot.range(&self.inner.counts, first..end));
        range.into_iter().flatten().map(|entry| {
            let (key, value) = entry.into_inner().map_err(unavailable)?;
            Ok((minute_of(&key).ok_or_else(|| damaged("a count"))?, decode_count(&value)?))
        })
    }

    /// The row that another index points to.
    fn row(&self, due: Timestamp, id: &HoldId) -> Result<Hold, TimersError> {
        let rows = if due < self.state.line { &self.inner.late } else { &self.inner.rows };
        let row = self.snapshot.get(rows, self.place.by_due(due, id.as_str())).map_err(unavailable)?;
        decode_row(&row.ok_or_else(|| TimersError::Damaged(format!("the hold {id:?} has no row")))?)
    }

    fn known(&self, id: &HoldId) -> Result<Option<Known>, TimersError> {
        let key = self.place.by_id(id);
        if let Some(due) = self.snapshot.get(&self.inner.ids, &key).map_err(unavailable)? {
            let due = <[u8; 8]>::try_from(&due[..]).map_err(|_| damaged("where a hold is"))?;
            return Ok(Some(Known::Pending(Arc::new(self.row(unsortable(due), id)?))));
        }
        let mut latest: Option<(u64, Bytes)> = None;
        // Listed after the snapshot was taken: a slice that it can see something in is among them.
        for slice in self.inner.ends.newest_first() {
            let Some(value) = self.snapshot.get(&slice, &key).map_err(unavailable)? else { continue };
            let (applied, end) = value.split_first_chunk().ok_or_else(|| damaged("an end"))?;
            let applied = u64::from_le_bytes(*applied);
            if latest.as_ref().is_none_or(|(other, _)| applied > *other) {
                latest = Some((applied, Bytes::copy_from_slice(end)));
            }
        }
        let Some((_, end)) = latest else { return Ok(None) };
        let end = HoldEnd::decode(end).map_err(|error| TimersError::Damaged(error.to_string()))?;
        Ok((!self.inner.is_forgotten(&end, &self.state)).then_some(Known::Ended(end)))
    }
}

/// The first key after this one: nothing lies between a key and the same with a zero byte.
fn successor(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

/// The hold in a buffer of its own: the LSM's block must not stay in memory as long as it.
fn decode_row(row: &[u8]) -> Result<Hold, TimersError> {
    Hold::decode(Bytes::copy_from_slice(row)).map_err(|error| TimersError::Damaged(error.to_string()))
}

fn damaged(what: &str) -> TimersError {
    TimersError::Damaged(format!("{what} cannot be read"))
}
