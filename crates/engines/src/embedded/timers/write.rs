//! One write of a shard: what it changes in every index, in one batch.

use std::collections::BTreeMap;

use fjall::{Keyspace, OwnedWriteBatch as WriteBatch, PersistMode};
use whimbrel_model::ports::timers::bucket_start;
use whimbrel_model::ports::{Applied, Change, Row, Write};
use whimbrel_model::{Ending, Hold, HoldEnd, HoldId, Timestamp, TopicNumber};

use super::erase::Chore;
use super::keys::{ALL_TOPICS, MINUTE, Minute, Place, ShardState, second_of, sortable};
use super::{Fault, Inner, MEMTABLE_BYTES, ROWS_MEMTABLE_BYTES, damaged};
use crate::embedded::lsm::LsmStore as _;

/// Keys that most changes write, for the capacity of a batch.
const KEYS_PER_CHANGE: usize = 2;

/// By topic and minute, what has changed there.
type Counted = BTreeMap<(TopicNumber, Timestamp), Counts>;

/// How many more are due in a minute, and in which of its seconds there are new ones.
#[derive(Default)]
struct Counts {
    more: i64,
    seconds: u64,
}

impl Inner {
    /// Writes, and tells what there is to tidy up afterwards. For the writer's thread alone: a write reads where the shard is and
    /// what it counts, and then commits.
    pub fn apply(&self, shard: u32, write: Write) -> Result<(Applied, Option<Chore>), Fault> {
        let before = self.state(&self.database.snapshot(), shard)?.unwrap_or(ShardState::UNKNOWN);
        if write.epoch < before.epoch {
            return Ok((Applied::OlderEpoch, None));
        }
        if write.expected != before.applied {
            return Ok((Applied::Behind { at: before.applied }, None));
        }
        let state = state_after(&before, &write);
        let line_before = if write.reset { ShardState::UNKNOWN.line } else { before.line };
        let place = Place { shard, generation: state.generation };
        let keys = write.changes.len() * KEYS_PER_CHANGE + 2;
        // What is not synced survives the process: the log is what survives the machine.
        let durability = if write.synced { PersistMode::SyncData } else { PersistMode::Buffer };
        let batch = WriteBatch::with_capacity(self.database.clone(), keys).durability(Some(durability));
        let mut pen = Pen { inner: self, batch, place, line_before, state, counted: Counted::new() };
        for change in &write.changes {
            match change {
                Change::Put { hold, was } => pen.put(hold, *was),
                Change::End { id, end, was } => pen.end(id, end, *was)?,
            }
        }
        pen.count()?;
        let mut batch = pen.batch;
        batch.insert(&self.shards, shard.to_be_bytes(), state.encode());
        let emptied = write.reset.then_some(Place { shard, generation: before.generation });
        if let Some(emptied) = emptied {
            batch.insert(&self.shards, emptied.prefix(), []);
        }
        batch.commit()?;
        self.seal()?;
        self.ends.drop_before(state.now)?;
        self.dead.drop_before(state.now)?;
        // Merges may leave out what is below the line only when the line is on disk: were the power cut before, the store would be where
        // those holds are pending, without their rows.
        let has_risen = write.synced && self.lines.note(place, state.line);
        let opening = self.opening;
        let erase = emptied.map(|place| Chore::Erase { place, opening });
        let chore = erase.or(has_risen.then_some(Chore::Drop { place, below: state.line, opening }));
        Ok((Applied::Done, chore))
    }

    fn seal(&self) -> Result<(), Fault> {
        let keyspaces = self.keyspaces();
        let bound = |keyspace: &Keyspace| if *keyspace == self.rows { ROWS_MEMTABLE_BYTES } else { MEMTABLE_BYTES };
        let bounded: Vec<_> = keyspaces.iter().map(|keyspace| (keyspace, bound(keyspace))).collect();
        Ok(self.sealing.after_write(&self.database, &bounded)?)
    }
}

/// Where the shard is after this write.
fn state_after(before: &ShardState, write: &Write) -> ShardState {
    let puts = write.changes.iter().filter_map(|change| match change {
        Change::Put { hold, .. } => Some(hold.due),
        Change::End { .. } => None,
    });
    // A floor above what the same write puts would hide it.
    let floor = puts.fold(write.floor, Timestamp::min);
    // Not the later of the two: where a clock was ahead for a while, ends would be forgotten as they come until it is that late.
    let now = write.now;
    let line_before = if write.reset { ShardState::UNKNOWN.line } else { before.line };
    ShardState {
        epoch: write.epoch,
        applied: write.applied,
        generation: before.generation.wrapping_add(u32::from(write.reset)),
        floor,
        // Beyond now lie holds that are yet to be put, which are not late.
        line: line_before.max(floor.min(now)),
        now,
    }
}

/// Writes changes into a batch.
struct Pen<'a> {
    inner: &'a Inner,
    batch: WriteBatch,
    place: Place,
    /// The line as it was: pending holds below it are among the late ones.
    line_before: Timestamp,
    /// The shard after the write.
    state: ShardState,
    counted: Counted,
}

impl Pen<'_> {
    fn put(&mut self, hold: &Hold, was: Option<Row>) {
        let (inner, place, id) = (self.inner, self.place, hold.id.as_str());
        let row = Row { due: hold.due, topic: hold.topic };
        let is_late = self.is_late(row);
        if let Some(was) = was.filter(|was| *was != row) {
            self.remove_ordered(id, was);
        }
        if was != Some(row) {
            if let Some(was) = was.filter(|was| self.is_late(*was) != is_late) {
                self.remove_id(&hold.id, was);
            }
            let ids = if is_late { &inner.late_ids } else { &inner.ids };
            self.batch.insert(ids, place.by_id(&hold.id), sortable(hold.due));
            self.counts(row, 1);
        }
        let rows = if is_late { &inner.late } else { &inner.rows };
        self.batch.insert(rows, place.by_due(hold.due, id), hold.encode());
    }

    fn end(&mut self, id: &HoldId, end: &HoldEnd, was: Option<Row>) -> Result<(), Fault> {
        let (inner, place, state) = (self.inner, self.place, self.state);
        if let Some(was) = was {
            self.remove_ordered(id.as_str(), was);
            self.remove_id(id, was);
        }
        if inner.is_forgotten(end, &state) {
            return Ok(());
        }
        // A clock that is ahead must not make slices of a time to come.
        let slice_of = end.at.min(state.now);
        let slice = inner.ends.at(slice_of)?;
        self.batch.insert(&slice, place.by_id(id), encode_end(state.applied, end));
        if matches!(end.how, Ending::Dead { .. }) {
            let slice = inner.dead.at(slice_of)?;
            self.batch.insert(&slice, place.by_due(end.due, id.as_str()), []);
        }
        Ok(())
    }

    /// The line never passes what is pending, so what is below it was put there when it was below already.
    fn is_late(&self, row: Row) -> bool {
        row.due < self.line_before
    }

    /// Takes a row out of everything that is in due order.
    fn remove_ordered(&mut self, id: &str, was: Row) {
        let (inner, place) = (self.inner, self.place);
        self.counts(was, -1);
        let key = place.by_due(was.due, id);
        if self.is_late(was) {
            self.batch.remove(&inner.late, key);
        } else if was.due >= self.state.line {
            self.batch.remove(&inner.rows, key);
        }
    }

    fn remove_id(&mut self, id: &HoldId, was: Row) {
        if self.is_late(was) {
            self.batch.remove(&self.inner.late_ids, self.place.by_id(id));
        } else if was.due >= self.state.line {
            self.batch.remove(&self.inner.ids, self.place.by_id(id));
        }
    }

    fn counts(&mut self, row: Row, by: i64) {
        let minute = bucket_start(row.due, MINUTE);
        for topic in [row.topic, ALL_TOPICS] {
            let counts = self.counted.entry((topic, minute)).or_default();
            counts.more += by;
            if by > 0 {
                counts.seconds |= second_of(row.due);
            }
        }
    }

    fn count(&mut self) -> Result<(), Fault> {
        let (counts, place) = (&self.inner.counts, self.place);
        for ((topic, minute), Counts { more, seconds }) in std::mem::take(&mut self.counted) {
            if more == 0 && seconds == 0 {
                continue;
            }
            let key = place.count(topic, minute);
            let before = counts.get(&key)?;
            let before = before.map_or(Some(Minute::EMPTY), |value| Minute::decode(&value));
            let before = before.ok_or_else(|| damaged("a count cannot be read"))?;
            let Some(count) = before.count.checked_add_signed(more) else {
                let before = before.count;
                return Err(damaged(&format!("{before} are due in {minute} and {more} more would be")));
            };
            if count == 0 {
                self.batch.remove(counts, key);
            } else {
                let now = Minute { count, seconds: before.seconds | seconds };
                self.batch.insert(counts, key, now.encode());
            }
        }
        Ok(())
    }
}

/// An end with the offset of its write: of two ends of one id in different slices the later written counts.
fn encode_end(applied: u64, end: &HoldEnd) -> Vec<u8> {
    let mut value = applied.to_le_bytes().to_vec();
    value.extend_from_slice(&end.encode());
    value
}
