//! The line of a shard: a time below which every hold has come due and ended, except for the few that were put there late.
//!
//! Nearly every hold ends after its due time, in due order. Deleting each of them by its time and by its id would write three keys instead
//! of the one of its end. So below the line the store deletes nothing and reads nothing. The rows there are garbage: merges of tables drop
//! them, and tables that contain only garbage are dropped whole. An id that points below the line is garbage too. The line only increases
//! (an emptied shard starts a new line in the next generation). A hold that is put below the line is late, and goes to the keyspaces for
//! late holds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};
use whimbrel_model::Timestamp;

use super::keys::unsortable;
use crate::embedded::lsm::Generation;

/// The distance by which a line rises before tables below it are dropped.
const DROP_STEP_MS: i64 = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ShardLine {
    generation: u32,
    below: Timestamp,
    dropped_below: Timestamp,
}

/// The lines of all shards, as they are on disk or lower.
#[derive(Default)]
pub(super) struct ShardLines(Mutex<HashMap<u32, ShardLine>>);

impl ShardLines {
    /// Records a line that is on disk. Returns true if tables below it are worth dropping.
    pub fn note(&self, place: Generation, below: Timestamp) -> bool {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = ShardLine { generation: place.generation, below, dropped_below: Timestamp::from_millis(i64::MIN) };
        let line = lines.entry(place.part).or_insert(new);
        if line.generation != place.generation {
            *line = new;
        }
        line.below = below;
        let has_risen = below.as_millis().saturating_sub(line.dropped_below.as_millis()) >= DROP_STEP_MS;
        if has_risen {
            line.dropped_below = below;
        }
        has_risen
    }

    fn copy(&self) -> HashMap<u32, ShardLine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The location of the time that decides about an entry. Its key begins with its place in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeIn {
    /// In the key, after the place.
    Key,
    Value,
}

/// Drops entries below the lines when tables are merged.
pub(super) struct BelowTheLine {
    pub lines: Arc<ShardLines>,
    pub time_in: TimeIn,
}

impl Factory for BelowTheLine {
    fn name(&self) -> &str {
        "below the line"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(LineFilter { lines: self.lines.copy(), time_in: self.time_in })
    }
}

struct LineFilter {
    lines: HashMap<u32, ShardLine>,
    time_in: TimeIn,
}

impl LineFilter {
    fn is_garbage(&self, key: &[u8], value: &[u8]) -> bool {
        let Some((prefix, rest)) = key.split_first_chunk() else { return false };
        let time = match self.time_in {
            TimeIn::Key => rest.first_chunk(),
            TimeIn::Value => value.first_chunk(),
        };
        let (place, Some(time)) = (Generation::of_prefix(*prefix), time) else { return false };
        self.lines.get(&place.part).is_some_and(|line| {
            let is_below = place.generation == line.generation && unsortable(*time) < line.below;
            place.generation < line.generation || is_below
        })
    }
}

impl CompactionFilter for LineFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        let is_garbage = match self.time_in {
            TimeIn::Key => self.is_garbage(item.key(), &[]),
            TimeIn::Value => self.is_garbage(item.key(), &item.value()?),
        };
        // Without a tombstone. An older value of the same key may become visible. It is a row below the line too, or an earlier due time of
        // a moved hold, for which there is no row any more.
        Ok(if is_garbage { Verdict::Destroy } else { Verdict::Keep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::timers::keys::sortable;
    use crate::embedded::timers::keys::tests::at;
    use whimbrel_model::HoldId;

    const PLACE: Generation = Generation { part: 3, generation: 9 };

    fn sieve(time_in: TimeIn) -> LineFilter {
        let lines = ShardLines::default();
        lines.note(PLACE, at(100));
        LineFilter { lines: lines.copy(), time_in }
    }

    #[test]
    fn only_rows_due_below_the_line_are_garbage() {
        let sieve = sieve(TimeIn::Key);
        let is_garbage = |place: Generation, due| sieve.is_garbage(&place.by_due(at(due), "a"), b"");
        assert!(is_garbage(PLACE, 99));
        assert!(!is_garbage(PLACE, 100));
        assert!(!is_garbage(Generation { part: 4, ..PLACE }, 0), "a shard without a line");
        assert!(!is_garbage(Generation { generation: 10, ..PLACE }, 0), "a generation without a line");
        assert!(is_garbage(Generation { generation: 8, ..PLACE }, 500), "an emptied generation");
        assert!(!sieve.is_garbage(b"short", b""));
    }

    #[test]
    fn an_id_that_points_below_the_line_is_garbage() {
        let (sieve, key) = (sieve(TimeIn::Value), PLACE.by_id(&HoldId::new("a")));
        assert!(sieve.is_garbage(&key, &sortable(at(99))));
        assert!(!sieve.is_garbage(&key, &sortable(at(100))));
        assert!(!sieve.is_garbage(&key, b"short"));
    }

    #[test]
    fn tables_are_dropped_after_each_step_of_the_line() {
        let lines = ShardLines::default();
        assert!(lines.note(PLACE, at(0)), "the first line drops the garbage of an earlier process");
        assert!(!lines.note(PLACE, at(DROP_STEP_MS - 1)));
        assert!(lines.note(PLACE, at(DROP_STEP_MS)));
        assert!(!lines.note(PLACE, at(DROP_STEP_MS)));
    }
}
