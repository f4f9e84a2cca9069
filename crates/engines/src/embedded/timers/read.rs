//! Reads of a shard, each from one snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use fjall::{Readable, Snapshot};
use whimbrel_model::ports::timers::bucket_start;
use whimbrel_model::ports::{At, CountQuery, DueCursor, HoldQuery, Known, TimersError};
use whimbrel_model::{Ending, Hold, HoldEnd, HoldId, Timestamp};

use super::keys::{ALL_TOPICS, Place, ShardState, due_of, unsortable};
use super::write::{MINUTE, decode_count};
use super::{Inner, unavailable};

type Read<T> = Result<At<T>, TimersError>;

/// A shard as it was at one moment.
struct View<'a> {
    inner: &'a Inner,
    snapshot: Snapshot,
    place: Place,
    state: ShardState,
}

/// Keys from the first to before the second.
type Range = (Vec<u8>, Vec<u8>);

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
        let range = view.range(None, Some(until), after, |due, id| view.place.by_due(due, id));
        Ok(At { applied: view.state.applied, found: view.rows(range, limit, max_bytes)? })
    }

    pub fn list(&self, shard: u32, query: &HoldQuery) -> Read<Vec<Arc<Hold>>> {
        let view = self.view(shard)?;
        let (from, to, after) = (query.from, query.to, query.after.as_ref());
        let found = match query.topic {
            None => {
                let range = view.range(from, to, after, |due, id| view.place.by_due(due, id));
                view.rows(range, query.limit, usize::MAX)?
            }
            Some(topic) => {
                let range = view.range(from, to, after, |due, id| view.place.by_topic(topic, due, id));
                view.rows_of_topic(range, query.limit)?
            }
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
        for slice in self.dead.newest_first() {
            let first = key_after(view.place, query.from, query.after.as_ref());
            let end = view.place.by_due(query.to.unwrap_or(Timestamp::from_millis(i64::MAX)), "");
            if first >= end {
                break;
            }
            let mut of_slice = 0;
            for entry in view.snapshot.range(&slice, first..end) {
                if of_slice == query.limit {
                    break;
                }
                let key = entry.key().map_err(unavailable)?;
                let place = due_of(&key, false).ok_or_else(|| damaged("a dead hold"))?;
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
        let from = query.from.map_or(i64::MIN, |from| bucket_start(from, MINUTE).as_millis());
        let to = query.to.map_or(i64::MAX, Timestamp::as_millis);
        let (first, end) = (
            view.place.count(topic, Timestamp::from_millis(from)),
            view.place.count(topic, Timestamp::from_millis(to)),
        );
        let mut counts = BTreeMap::new();
        if first < end {
            for entry in view.snapshot.range(&self.counts, first..end) {
                let (key, value) = entry.into_inner().map_err(unavailable)?;
                let minute = due_of(&key, true).ok_or_else(|| damaged("a count"))?.due;
                *counts.entry(bucket_start(minute, query.bucket)).or_insert(0) += decode_count(&value)?;
            }
        }
        Ok(At { applied: view.state.applied, found: counts.into_iter().collect() })
    }

    /// Whether the time is over that an end is remembered for.
    pub fn is_forgotten(&self, end: &HoldEnd, state: &ShardState) -> bool {
        end.at <= state.now.saturating_sub(self.settings.remember)
    }
}

impl View<'_> {
    /// The keys between these, as `key` writes them; never from below the floor, where only deleted ones are.
    fn range(
        &self,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
        after: Option<&DueCursor>,
        key: impl Fn(Timestamp, &str) -> Vec<u8>,
    ) -> Range {
        let from = from.map_or(self.state.floor, |from| from.max(self.state.floor));
        let first = match after {
            Some(after) if after.due >= from => successor(key(after.due, after.id.as_str())),
            _ => key(from, ""),
        };
        // A hold is never due at the end of time.
        (first, key(to.unwrap_or(Timestamp::from_millis(i64::MAX)), ""))
    }

    fn rows(&self, (first, end): Range, limit: usize, max_bytes: usize) -> Result<Vec<Arc<Hold>>, TimersError> {
        let (mut holds, mut bytes) = (Vec::new(), 0);
        if first >= end {
            return Ok(holds);
        }
        for entry in self.snapshot.range(&self.inner.rows, first..end).take(limit) {
            let hold = decode_row(&entry.value().map_err(unavailable)?)?;
            bytes += hold.size();
            if bytes > max_bytes && !holds.is_empty() {
                break;
            }
            holds.push(Arc::new(hold));
        }
        Ok(holds)
    }

    fn rows_of_topic(&self, (first, end): Range, limit: usize) -> Result<Vec<Arc<Hold>>, TimersError> {
        let mut holds = Vec::new();
        if first >= end {
            return Ok(holds);
        }
        for entry in self.snapshot.range(&self.inner.topics, first..end).take(limit) {
            let key = entry.key().map_err(unavailable)?;
            let place = due_of(&key, true).ok_or_else(|| damaged("a hold of a topic"))?;
            holds.push(Arc::new(self.row(place.due, &place.id)?));
        }
        Ok(holds)
    }

    /// The row that another index points to.
    fn row(&self, due: Timestamp, id: &HoldId) -> Result<Hold, TimersError> {
        let row = self.snapshot.get(&self.inner.rows, self.place.by_due(due, id.as_str())).map_err(unavailable)?;
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

/// Where a list begins that has no floor.
fn key_after(place: Place, from: Option<Timestamp>, after: Option<&DueCursor>) -> Vec<u8> {
    let from = place.by_due(from.unwrap_or(Timestamp::from_millis(i64::MIN)), "");
    after.map_or(from.clone(), |after| from.max(successor(place.by_due(after.due, after.id.as_str()))))
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
