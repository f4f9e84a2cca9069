//! Reads of a shard, each from one snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use fjall::{Guard, Keyspace, Readable, Snapshot};
use whimbrel_model::ports::timers::bucket_start;
use whimbrel_model::ports::{AtOffset, CountQuery, DueCursor, HoldQuery, StoredHold};
use whimbrel_model::{Hold, HoldEnd, HoldEndKind, HoldId, Timestamp, TopicNumber};

use super::keys::{ALL_TOPICS, MINUTE, Minute, TimerShardState, due_of, minute_of, unsortable};
use super::{TimerStore, TimersFault, damaged};
use crate::embedded::lsm::Generation;

/// The maximum bytes of holds in one list, except for a single larger hold; callers continue until a list is empty.
const LIST_BYTES: usize = 1 << 20;
/// Later than every due time.
const END_OF_TIME: Timestamp = Timestamp::from_millis(i64::MAX);

const START_OF_TIME: Timestamp = Timestamp::from_millis(i64::MIN);

pub(super) type ReadResult<T> = Result<AtOffset<T>, TimersFault>;

struct ShardView<'a> {
    inner: &'a TimerStore,
    snapshot: Snapshot,
    place: Generation,
    state: TimerShardState,
}

/// A range of due order: at or after `from` and before `to`, after a cursor.
#[derive(Clone, Copy)]
struct HoldRange<'a> {
    from: Timestamp,
    to: Timestamp,
    after: Option<&'a DueCursor>,
}

impl TimerStore {
    fn view(&self, shard: u32) -> Result<ShardView<'_>, TimersFault> {
        let snapshot = self.database.snapshot();
        let state = self.state(&snapshot, shard)?.unwrap_or(TimerShardState::UNKNOWN);
        Ok(ShardView { inner: self, snapshot, place: Generation { part: shard, generation: state.generation }, state })
    }

    pub fn due(
        &self,
        shard: u32,
        after: Option<&DueCursor>,
        until: Timestamp,
        limit: usize,
        max_bytes: usize,
    ) -> ReadResult<Vec<Arc<Hold>>> {
        let view = self.view(shard)?;
        let stretch = view.stretch(None, Some(until), after);
        Ok(AtOffset { applied: view.state.applied, found: view.rows(stretch, limit, max_bytes)? })
    }

    pub fn list(&self, shard: u32, query: &HoldQuery) -> ReadResult<Vec<Arc<Hold>>> {
        let view = self.view(shard)?;
        let stretch = view.stretch(query.from, query.to, query.after.as_ref());
        let found = match query.topic {
            None => view.rows(stretch, query.limit, LIST_BYTES)?,
            Some(topic) => view.rows_of_topic(topic, stretch, query.limit)?,
        };
        Ok(AtOffset { applied: view.state.applied, found })
    }

    pub fn get(&self, shard: u32, ids: &[HoldId]) -> ReadResult<Vec<Option<StoredHold>>> {
        let view = self.view(shard)?;
        let found = ids.iter().map(|id| view.known(id)).collect::<Result<_, _>>()?;
        Ok(AtOffset { applied: view.state.applied, found })
    }

    pub fn dead(&self, shard: u32, query: &HoldQuery) -> ReadResult<Vec<(HoldId, HoldEnd)>> {
        let view = self.view(shard)?;
        let mut found = BTreeMap::new();
        // The floor does not apply to dead holds.
        let stretch = HoldRange {
            from: query.from.unwrap_or(START_OF_TIME),
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
                let key = entry.key()?;
                let place = due_of(&key).ok_or_else(|| damaged("a dead hold cannot be decoded"))?;
                // The hold may have another outcome by now.
                let Some(StoredHold::Ended(end)) = view.known(&place.id)? else { continue };
                let is_this = matches!(end.how, HoldEndKind::Dead { .. }) && end.due == place.due;
                if is_this && query.topic.is_none_or(|topic| topic == end.topic) {
                    of_slice += usize::from(found.insert(place, end).is_none());
                }
            }
        }
        let found = found.into_iter().map(|(place, end)| (place.id, end)).take(query.limit).collect();
        Ok(AtOffset { applied: view.state.applied, found })
    }

    pub fn count(&self, shard: u32, query: &CountQuery) -> ReadResult<Vec<(Timestamp, u64)>> {
        let view = self.view(shard)?;
        let topic = query.topic.unwrap_or(ALL_TOPICS);
        let from = query.from.unwrap_or(START_OF_TIME);
        let mut counts = BTreeMap::new();
        for counted in view.minutes(topic, from, query.to.unwrap_or(END_OF_TIME)) {
            let (minute, counted) = counted?;
            *counts.entry(bucket_start(minute, query.bucket)).or_insert(0) += counted.count;
        }
        Ok(AtOffset { applied: view.state.applied, found: counts.into_iter().collect() })
    }

    /// Whether an end is older than the time for which ends are remembered.
    pub fn is_forgotten(&self, end: &HoldEnd, state: &TimerShardState) -> bool {
        end.at <= state.now.saturating_sub(self.settings.remember)
    }
}

impl HoldRange<'_> {
    /// The first key of the range and its end, encoded by `key`. `None` if the range is empty.
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

impl ShardView<'_> {
    /// A range that excludes the times below the floor, which have only deleted rows.
    fn stretch<'a>(
        &self,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
        after: Option<&'a DueCursor>,
    ) -> HoldRange<'a> {
        let from = from.map_or(self.state.floor, |from| from.max(self.state.floor));
        HoldRange { from, to: to.unwrap_or(END_OF_TIME), after }
    }

    /// Splits a range at the line: late holds are due below it, all others at or after it.
    fn late_and_others<'a>(&self, stretch: HoldRange<'a>) -> (HoldRange<'a>, HoldRange<'a>) {
        let line = self.state.line;
        (stretch.within(START_OF_TIME, line), stretch.within(line, END_OF_TIME))
    }

    fn range(&self, keyspace: &Keyspace, stretch: HoldRange<'_>) -> impl Iterator<Item = Guard> + use<> {
        let keys = stretch.keys(|due, id| self.place.by_due(due, id));
        keys.map(|(first, end)| self.snapshot.range(keyspace, first..end)).into_iter().flatten()
    }

    fn rows(&self, stretch: HoldRange<'_>, limit: usize, max_bytes: usize) -> Result<Vec<Arc<Hold>>, TimersFault> {
        let (mut holds, mut bytes) = (Vec::new(), 0);
        let (late, others) = self.late_and_others(stretch);
        let late = self.range(&self.inner.late, late);
        for entry in late.chain(self.range(&self.inner.rows, others)).take(limit) {
            let hold = decode_row(&entry.value()?)?;
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
        stretch: HoldRange<'_>,
        limit: usize,
    ) -> Result<Vec<Arc<Hold>>, TimersFault> {
        let (late, others) = self.late_and_others(stretch);
        let (mut holds, mut bytes) = (Vec::new(), 0);
        // Late holds are few, and have no index by topic.
        for entry in self.range(&self.inner.late, late) {
            if holds.len() == limit || bytes > LIST_BYTES {
                return Ok(holds);
            }
            let hold = decode_row(&entry.value()?)?;
            if hold.topic == topic {
                bytes += hold.size();
                holds.push(Arc::new(hold));
            }
        }
        let first = others.after.map_or(others.from, |after| after.due.max(others.from));
        for counted in self.minutes(topic, first, others.to) {
            let (minute, counted) = counted?;
            for (from, to) in counted.stretches() {
                let [from, to] = [from, to].map(|ms| Timestamp::from_millis(minute.as_millis().saturating_add(ms)));
                for entry in self.range(&self.inner.rows, others.within(from, to)) {
                    if holds.len() == limit || bytes > LIST_BYTES {
                        return Ok(holds);
                    }
                    let hold = decode_row(&entry.value()?)?;
                    if hold.topic == topic {
                        bytes += hold.size();
                        holds.push(Arc::new(hold));
                    }
                }
            }
        }
        Ok(holds)
    }

    /// The pending holds of a topic in each minute that overlaps the range.
    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = Result<(Timestamp, Minute), TimersFault>> + use<> {
        let (first, end) = (self.place.count(topic, bucket_start(from, MINUTE)), self.place.count(topic, to));
        let range = (first < end).then(|| self.snapshot.range(&self.inner.counts, first..end));
        range.into_iter().flatten().map(|entry| {
            let (key, value) = entry.into_inner()?;
            minute_of(&key).zip(Minute::decode(&value)).ok_or_else(|| damaged("a count cannot be decoded"))
        })
    }

    /// The row, due at or after `from`, to which an entry of an index by id points. Without a row, the entry is garbage.
    fn pending(
        &self,
        ids: &Keyspace,
        rows: &Keyspace,
        from: Timestamp,
        id: &HoldId,
    ) -> Result<Option<StoredHold>, TimersFault> {
        let Some(due) = self.snapshot.get(ids, self.place.by_id(id))? else { return Ok(None) };
        let due = unsortable(<[u8; 8]>::try_from(&due[..]).map_err(|_| damaged("a due time cannot be decoded"))?);
        if due < from {
            return Ok(None);
        }
        let row = self.snapshot.get(rows, self.place.by_due(due, id.as_str()))?;
        row.map(|row| Ok(StoredHold::Pending(Arc::new(decode_row(&row)?)))).transpose()
    }

    fn known(&self, id: &HoldId) -> Result<Option<StoredHold>, TimersFault> {
        let inner = self.inner;
        if let Some(pending) = self.pending(&inner.ids, &inner.rows, self.state.line, id)? {
            return Ok(Some(pending));
        }
        if let Some(pending) = self.pending(&inner.late_ids, &inner.late, START_OF_TIME, id)? {
            return Ok(Some(pending));
        }
        let key = self.place.by_id(id);
        let mut latest: Option<(u64, Bytes)> = None;
        // Listed after the snapshot was taken, so it includes every slice with rows that the snapshot sees.
        for slice in self.inner.ends.newest_first() {
            let Some(value) = self.snapshot.get(&slice, &key)? else { continue };
            let (applied, end) = value.split_first_chunk().ok_or_else(|| damaged("an end cannot be decoded"))?;
            let applied = u64::from_le_bytes(*applied);
            if latest.as_ref().is_none_or(|(other, _)| applied > *other) {
                latest = Some((applied, Bytes::copy_from_slice(end)));
            }
        }
        let Some((_, end)) = latest else { return Ok(None) };
        let end = HoldEnd::decode(end).map_err(|error| damaged(&error.to_string()))?;
        Ok((!self.inner.is_forgotten(&end, &self.state)).then_some(StoredHold::Ended(end)))
    }
}

/// The first key after this one: the same key with a zero byte at its end.
fn successor(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

/// Decodes a hold into a buffer of its own, so that the hold does not keep the LSM's block in memory.
fn decode_row(row: &[u8]) -> Result<Hold, TimersFault> {
    Hold::decode(Bytes::copy_from_slice(row)).map_err(|error| damaged(&error.to_string()))
}
