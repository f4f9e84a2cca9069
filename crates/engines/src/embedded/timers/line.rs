//! The line of a shard: a time below which everything has come due and ended, but for a few that were put there late.
//!
//! Nearly every hold ends when its time has come, in due order. Deleting each of them from what is kept in due order would cost
//! more than all the rest of its end, so below the line nothing is deleted and nothing is read: what lies there is garbage, which
//! merges of tables leave out and which goes by whole tables where it fills them. The line only rises (an emptied shard
//! begins anew, in the next generation). A hold that is put below it is kept apart, in a keyspace for late ones.

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

/// Leaves out what lies below the lines when tables are merged. Keys begin with their place and a time.
pub(super) struct BelowTheLine {
    pub lines: Arc<Lines>,
    /// What the keys' times stand for: a key may go when its time and all that follow it for so long are below the line.
    pub span_ms: i64,
}

impl Factory for BelowTheLine {
    fn name(&self) -> &str {
        "below the line"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Sieve { lines: self.lines.copy(), span_ms: self.span_ms })
    }
}

struct Sieve {
    lines: HashMap<u32, Line>,
    span_ms: i64,
}

impl Sieve {
    fn is_garbage(&self, key: &[u8]) -> bool {
        let Some((prefix, rest)) = key.split_first_chunk() else { return false };
        let (place, Some(time)) = (Place::of_prefix(*prefix), rest.first_chunk()) else { return false };
        let last = unsortable(*time).as_millis().saturating_add(self.span_ms);
        self.lines.get(&place.shard).is_some_and(|line| {
            place.generation < line.generation || (place.generation == line.generation && last < line.below.as_millis())
        })
    }
}

impl CompactionFilter for Sieve {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        // Without a tombstone: an older value of the same key that shows through lies below the line as well.
        Ok(if self.is_garbage(item.key()) { Verdict::Destroy } else { Verdict::Keep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::timers::keys::tests::at;

    const PLACE: Place = Place { shard: 3, generation: 9 };

    fn sieve(span_ms: i64) -> Sieve {
        let lines = Lines::default();
        lines.note(PLACE, at(100));
        Sieve { lines: lines.copy(), span_ms }
    }

    #[test]
    fn what_is_due_below_the_line_is_garbage_and_nothing_else() {
        let sieve = sieve(0);
        assert!(sieve.is_garbage(&PLACE.by_due(at(99), "a")));
        assert!(!sieve.is_garbage(&PLACE.by_due(at(100), "a")));
        assert!(!sieve.is_garbage(&Place { shard: 4, ..PLACE }.by_due(at(0), "a")), "a shard without a line");
        assert!(
            !sieve.is_garbage(&Place { generation: 10, ..PLACE }.by_due(at(0), "a")),
            "a line that is not known yet"
        );
        assert!(sieve.is_garbage(&Place { generation: 8, ..PLACE }.by_due(at(500), "a")), "what was emptied");
        assert!(!sieve.is_garbage(b"short"));
    }

    #[test]
    fn a_key_of_a_while_stays_until_all_of_it_is_below_the_line() {
        assert!(!sieve(50).is_garbage(&PLACE.by_due(at(50), "a")));
        assert!(sieve(50).is_garbage(&PLACE.by_due(at(49), "a")));
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
