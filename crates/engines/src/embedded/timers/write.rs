//! One write of a shard: its changes of every index, in one batch.

use std::collections::BTreeMap;

use fjall::{Keyspace, OwnedWriteBatch as WriteBatch, PersistMode};
use whimbrel_model::ports::timers::bucket_start;
use whimbrel_model::ports::{ApplyOutcome, DueKey, TimerChange, TimersWrite};
use whimbrel_model::{Hold, HoldEnd, HoldEndKind, HoldId, Timestamp, TopicNumber};

use super::keys::{ALL_TOPICS, MINUTE, Minute, TimerShardState, second_of, sortable};
use super::shard_eraser::EraserTask;
use super::{MEMTABLE_BYTES, ROWS_MEMTABLE_BYTES, TimerStore, TimersFault, damaged};
use crate::embedded::lsm::{Generation, LsmStore as _};

/// The typical number of keys per change, for the capacity of a batch.
const KEYS_PER_CHANGE: usize = 2;

type CountChanges = BTreeMap<(TopicNumber, Timestamp), CountChange>;

/// The change of a minute's count, and the seconds that get new holds.
#[derive(Default)]
struct CountChange {
    more: i64,
    seconds: u64,
}

impl TimerStore {
    /// Writes. Returns the background work that the write causes. Only for the writer thread: a write reads the state and the counts of the
    /// shard, and then commits.
    pub fn apply(&self, shard: u32, write: TimersWrite) -> Result<(ApplyOutcome, Option<EraserTask>), TimersFault> {
        let before = self.state(&self.database.snapshot(), shard)?.unwrap_or(TimerShardState::UNKNOWN);
        if write.epoch < before.epoch {
            return Ok((ApplyOutcome::OlderEpoch, None));
        }
        if write.expected != before.applied {
            return Ok((ApplyOutcome::Behind { at: before.applied }, None));
        }
        let state = state_after(&before, &write);
        let line_before = if write.reset { TimerShardState::UNKNOWN.line } else { before.line };
        let place = Generation { part: shard, generation: state.generation };
        let keys = write.changes.len() * KEYS_PER_CHANGE + 2;
        // A write without a sync survives a crash of the process. After a crash of the machine, the log has it.
        let durability = if write.synced { PersistMode::SyncData } else { PersistMode::Buffer };
        let batch = WriteBatch::with_capacity(self.database.clone(), keys).durability(Some(durability));
        let mut pen = BatchWriter { inner: self, batch, place, line_before, state, counted: CountChanges::new() };
        for change in &write.changes {
            match change {
                TimerChange::Put { hold, was } => pen.put(hold, *was),
                TimerChange::End { id, end, was } => pen.end(id, end, *was)?,
            }
        }
        pen.count()?;
        let mut batch = pen.batch;
        batch.insert(&self.shards, shard.to_be_bytes(), state.encode());
        let emptied = write.reset.then_some(Generation { part: shard, generation: before.generation });
        if let Some(emptied) = emptied {
            batch.insert(&self.shards, emptied.prefix(), []);
        }
        batch.commit()?;
        self.seal()?;
        self.ends.drop_before(state.now)?;
        self.dead.drop_before(state.now)?;
        // Merges may drop rows below the line only after the line is on disk. Otherwise, after a power failure, the store could be in a
        // state in which those holds are pending, without their rows.
        let has_risen = write.synced && self.lines.note(place, state.line);
        let opening = self.opening;
        let erase = emptied.map(|place| EraserTask::Erase { place, opening });
        let chore = erase.or(has_risen.then_some(EraserTask::Drop { place, below: state.line, opening }));
        Ok((ApplyOutcome::Done, chore))
    }

    fn seal(&self) -> Result<(), TimersFault> {
        let keyspaces = self.keyspaces();
        let bound = |keyspace: &Keyspace| if *keyspace == self.rows { ROWS_MEMTABLE_BYTES } else { MEMTABLE_BYTES };
        let bounded: Vec<_> = keyspaces.iter().map(|keyspace| (keyspace, bound(keyspace))).collect();
        Ok(self.sealing.after_write(&self.database, &bounded)?)
    }
}

fn state_after(before: &TimerShardState, write: &TimersWrite) -> TimerShardState {
    let puts = write.changes.iter().filter_map(|change| match change {
        TimerChange::Put { hold, .. } => Some(hold.due),
        TimerChange::End { .. } => None,
    });
    // A floor above the due time of a hold in the same write would hide that hold.
    let floor = puts.fold(write.floor, Timestamp::min);
    // Not the maximum of both: after a clock was ahead for a while, ends would expire at once until the real time reaches that value.
    let now = write.now;
    let line_before = if write.reset { TimerShardState::UNKNOWN.line } else { before.line };
    TimerShardState {
        epoch: write.epoch,
        applied: write.applied,
        generation: before.generation.wrapping_add(u32::from(write.reset)),
        floor,
        // Holds that are put after now are not late, so the line does not pass now.
        line: line_before.max(floor.min(now)),
        now,
    }
}

struct BatchWriter<'a> {
    inner: &'a TimerStore,
    batch: WriteBatch,
    place: Generation,
    /// The line before the write: pending holds below it are late holds.
    line_before: Timestamp,
    /// The state of the shard after the write.
    state: TimerShardState,
    counted: CountChanges,
}

impl BatchWriter<'_> {
    fn put(&mut self, hold: &Hold, was: Option<DueKey>) {
        let (inner, place, id) = (self.inner, self.place, hold.id.as_str());
        let row = DueKey { due: hold.due, topic: hold.topic };
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

    fn end(&mut self, id: &HoldId, end: &HoldEnd, was: Option<DueKey>) -> Result<(), TimersFault> {
        let (inner, place, state) = (self.inner, self.place, self.state);
        if let Some(was) = was {
            self.remove_ordered(id.as_str(), was);
            self.remove_id(id, was);
        }
        if inner.is_forgotten(end, &state) {
            return Ok(());
        }
        // A clock that is ahead must not create slices in the future.
        let slice_of = end.at.min(state.now);
        let slice = inner.ends.at(slice_of)?;
        self.batch.insert(&slice, place.by_id(id), encode_end(state.applied, end));
        if matches!(end.how, HoldEndKind::Dead { .. }) {
            let slice = inner.dead.at(slice_of)?;
            self.batch.insert(&slice, place.by_due(end.due, id.as_str()), []);
        }
        Ok(())
    }

    /// The line never passes a pending hold. So a hold below it was put there after the line had passed.
    fn is_late(&self, row: DueKey) -> bool {
        row.due < self.line_before
    }

    /// Removes a row from every index in due order.
    fn remove_ordered(&mut self, id: &str, was: DueKey) {
        let (inner, place) = (self.inner, self.place);
        self.counts(was, -1);
        let key = place.by_due(was.due, id);
        if self.is_late(was) {
            self.batch.remove(&inner.late, key);
        } else if was.due >= self.state.line {
            self.batch.remove(&inner.rows, key);
        }
    }

    fn remove_id(&mut self, id: &HoldId, was: DueKey) {
        if self.is_late(was) {
            self.batch.remove(&self.inner.late_ids, self.place.by_id(id));
        } else if was.due >= self.state.line {
            self.batch.remove(&self.inner.ids, self.place.by_id(id));
        }
    }

    fn counts(&mut self, row: DueKey, by: i64) {
        let minute = bucket_start(row.due, MINUTE);
        for topic in [row.topic, ALL_TOPICS] {
            let counts = self.counted.entry((topic, minute)).or_default();
            counts.more += by;
            if by > 0 {
                counts.seconds |= second_of(row.due);
            }
        }
    }

    fn count(&mut self) -> Result<(), TimersFault> {
        let (counts, place) = (&self.inner.counts, self.place);
        for ((topic, minute), CountChange { more, seconds }) in std::mem::take(&mut self.counted) {
            if more == 0 && seconds == 0 {
                continue;
            }
            let key = place.count(topic, minute);
            let before = counts.get(&key)?;
            let before = before.map_or(Some(Minute::EMPTY), |value| Minute::decode(&value));
            let before = before.ok_or_else(|| damaged("a count cannot be decoded"))?;
            let Some(count) = before.count.checked_add_signed(more) else {
                let before = before.count;
                return Err(damaged(&format!("the count of {minute} is {before} and cannot change by {more}")));
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

/// An end with the offset of its write. If different slices have ends of one id, the one with the higher offset counts.
fn encode_end(applied: u64, end: &HoldEnd) -> Vec<u8> {
    let mut value = applied.to_le_bytes().to_vec();
    value.extend_from_slice(&end.encode());
    value
}
