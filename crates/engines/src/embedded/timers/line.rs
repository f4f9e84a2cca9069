//! The line of a shard: a time below which everything has come due and ended, but for a few that were put there late.
//!
//! Nearly every hold ends when its time has come, in due order. Deleting each of them by its time and by its id would make three
//! keys of the one that its end is, so below the line nothing is deleted and nothing is read: what lies there is garbage, which
//! merges of tables leave out and which goes by whole tables where it fills them. An id that points below the line is garbage
//! too. The line only rises (an emptied shard begins anew, in the next generation). A hold that is put below it is kept apart,
//! in keyspaces for late ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};
use whimbrel_model::Timestamp;

use super::keys::{Place, unsortable};

/// How far a line rises before whole tables below it are dropped.
const DROP_STEP_MS: i64 = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    generation: u32,
    below: Timestamp,
    dropped_below: Timestamp,
}

/// The lines of all shards, as they are on disk or lower.
#[derive(Default)]
pub(super) struct Lines(Mutex<HashMap<u32, Line>>);

impl Lines {
    /// Notes a line that is on disk; true where it is worth dropping tables below it.
    pub fn note(&self, place: Place, below: Timestamp) -> bool {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Line { generation: place.generation, below, dropped_below: Timestamp::from_millis(i64::MIN) };
        let line = lines.entry(place.shard).or_insert(new);
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

    fn copy(&self) -> HashMap<u32, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where an entry has the time that decides. Its key begins with its place in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeIn {
    /// After the place.
    Key,
    Value,
}

/// Leaves out what lies below the lines when tables are merged.
pub(super) struct BelowTheLine {
    pub lines: Arc<Lines>,
    pub time_in: TimeIn,
}

impl Factory for BelowTheLine {
    fn name(&self) -> &str {
        "below the line"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Sieve { lines: self.lines.copy(), time_in: self.time_in })
    }
}

struct Sieve {
    lines: HashMap<u32, Line>,
    time_in: TimeIn,
}

impl Sieve {
    fn is_garbage(&self, key: &[u8], value: &[u8]) -> bool {
        let Some((prefix, rest)) = key.split_first_chunk() else { return false };
        let time = match self.time_in {
            TimeIn::Key => rest.first_chunk(),
            TimeIn::Value => value.first_chunk(),
        };
        let (place, Some(time)) = (Place::of_prefix(*prefix), time) else { return false };
        self.lines.get(&place.shard).is_some_and(|line| {
            let is_below = place.generation == line.generation && unsortable(*time) < line.below;
            place.generation < line.generation || is_below
        })
    }
}

impl CompactionFilter for Sieve {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        let is_garbage = match self.time_in {
            TimeIn::Key => self.is_garbage(item.key(), &[]),
            TimeIn::Value => self.is_garbage(item.key(), &item.value()?),
        };
        // Without a tombstone. An older value of the same key that shows through is a row below the line as well, or tells where
        // a hold was before it moved, where it has no row any more.
        Ok(if is_garbage { Verdict::Destroy } else { Verdict::Keep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::timers::keys::sortable;
    use crate::embedded::timers::keys::tests::at;
    use whimbrel_model::HoldId;

    const PLACE: Place = Place { shard: 3, generation: 9 };

    fn sieve(time_in: TimeIn) -> Sieve {
        let lines = Lines::default();
        lines.note(PLACE, at(100));
        Sieve { lines: lines.copy(), time_in }
    }

    #[test]
    fn what_is_due_below_the_line_is_garbage_and_nothing_else() {
        let sieve = sieve(TimeIn::Key);
        let is_garbage = |place: Place, due| sieve.is_garbage(&place.by_due(at(due), "a"), b"");
        assert!(is_garbage(PLACE, 99));
        assert!(!is_garbage(PLACE, 100));
        assert!(!is_garbage(Place { shard: 4, ..PLACE }, 0), "a shard without a line");
        assert!(!is_garbage(Place { generation: 10, ..PLACE }, 0), "a line that is not known yet");
        assert!(is_garbage(Place { generation: 8, ..PLACE }, 500), "what was emptied");
        assert!(!sieve.is_garbage(b"short", b""));
    }

    #[test]
    fn an_id_is_garbage_by_the_time_that_it_points_to() {
        let (sieve, key) = (sieve(TimeIn::Value), PLACE.by_id(&HoldId::new("a")));
        assert!(sieve.is_garbage(&key, &sortable(at(99))));
        assert!(!sieve.is_garbage(&key, &sortable(at(100))));
        assert!(!sieve.is_garbage(&key, b"short"));
    }

    #[test]
    fn a_line_asks_for_dropping_from_step_to_step() {
        let lines = Lines::default();
        assert!(lines.note(PLACE, at(0)), "whatever an earlier process left");
        assert!(!lines.note(PLACE, at(DROP_STEP_MS - 1)));
        assert!(lines.note(PLACE, at(DROP_STEP_MS)));
        assert!(!lines.note(PLACE, at(DROP_STEP_MS)));
    }
}
