//! A write of the `Timers` port as the arguments of one script. Pure: it has no connection.

use std::collections::HashMap;
use std::time::Duration;

use redis::Cmd;
use whimbrel_model::ports::{DueKey, TimerChange, TimersWrite};
use whimbrel_model::{HoldEndKind, HoldId};

use super::connection::RedisCallError;
use super::layout::{PLACE_BYTES, kept_at_most, member, minute_fields, place, ring_time};

/// The maximum number of arguments of one script. Redis rejects a command of 1 048 576 arguments, and a dozen belong to the header.
pub(super) const ARGUMENTS_MAX: usize = 1_000_000;

/// The parts of a write, in the order in which the script takes them.
#[derive(Debug, Default, PartialEq, Eq)]
struct WriteParts {
    puts: Vec<Vec<u8>>,
    ends: Vec<Vec<u8>>,
    dead: Vec<Vec<u8>>,
    removed: Vec<Vec<u8>>,
    added: Vec<Vec<u8>>,
    counts: HashMap<[u8; PLACE_BYTES], i64>,
}

/// Offsets and epochs as text of fixed width, so that the text sorts as the numbers do.
pub(super) fn decimal(number: u64) -> String {
    format!("{number:020}")
}

/// Adds the arguments of `apply.lua` to the call.
pub(super) fn add_arguments(call: &mut Cmd, write: &TimersWrite, remember: Duration) -> Result<(), RedisCallError> {
    let parts = WriteParts::of(&write.changes);
    if parts.len() > ARGUMENTS_MAX {
        return Err(RedisCallError::TooLarge { changes: write.changes.len() });
    }
    let WriteParts { puts, ends, dead, removed, added, counts } = &parts;
    call.arg(decimal(write.epoch))
        .arg(decimal(write.expected))
        .arg(decimal(write.applied))
        .arg(u8::from(write.reset))
        .arg(write.now.as_millis())
        .arg(ring_time(remember).as_millis().max(1).to_string())
        .arg(kept_at_most(remember).as_millis().to_string())
        .arg(puts.len() / 2)
        .arg(ends.len() / 2)
        .arg(dead.len() / 2)
        .arg(removed.len())
        .arg(added.len())
        .arg(counts.len());
    for argument in [puts, ends, dead, removed, added].into_iter().flatten() {
        call.arg(argument);
    }
    for (field, difference) in counts {
        call.arg(field).arg(*difference);
    }
    Ok(())
}

impl WriteParts {
    fn of(changes: &[TimerChange]) -> Self {
        let mut parts = Self::default();
        for change in changes {
            match change {
                TimerChange::Put { hold, was } => {
                    parts.puts.extend([hold.id.as_str().into(), hold.encode()]);
                    let row = DueKey { due: hold.due, topic: hold.topic };
                    if *was != Some(row) {
                        parts.remove_row(&hold.id, *was);
                        parts.added.push(member(row.topic, row.due, &hold.id));
                        parts.count(row, 1);
                    }
                }
                TimerChange::End { id, end, was } => {
                    let text = id.as_str().as_bytes().to_vec();
                    if matches!(end.how, HoldEndKind::Dead { .. }) {
                        parts.dead.extend([text, [&place(end.topic, end.due)[..], &end.encode()].concat()]);
                    } else {
                        parts.ends.extend([text, end.encode()]);
                    }
                    parts.remove_row(id, *was);
                }
            }
        }
        parts.counts.retain(|_, difference| *difference != 0);
        parts
    }

    fn remove_row(&mut self, id: &HoldId, was: Option<DueKey>) {
        if let Some(row) = was {
            self.removed.push(member(row.topic, row.due, id));
            self.count(row, -1);
        }
    }

    fn count(&mut self, row: DueKey, difference: i64) {
        for field in minute_fields(row.topic, row.due) {
            *self.counts.entry(field).or_default() += difference;
        }
    }

    fn len(&self) -> usize {
        let lists = [&self.puts, &self.ends, &self.dead, &self.removed, &self.added];
        lists.into_iter().map(Vec::len).sum::<usize>() + self.counts.len() * 2
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use whimbrel_model::TopicNumber;

    use super::*;
    use crate::conformance::timers::{at, hold};

    fn row(due: i64) -> Option<DueKey> {
        Some(DueKey { due: at(due), topic: TopicNumber(7) })
    }

    fn put(due: i64, was: Option<DueKey>) -> WriteParts {
        WriteParts::of(&[TimerChange::Put { hold: Arc::new(hold("a", due)), was }])
    }

    #[test]
    fn a_hold_with_an_unchanged_due_time_touches_no_index() {
        let parts = put(5, row(5));
        assert_eq!((parts.puts.len(), parts.len()), (2, 2));
    }

    #[test]
    fn a_move_within_a_minute_changes_no_count() {
        let parts = put(5, row(59_999));
        assert_eq!((parts.added.len(), parts.removed.len(), parts.counts.len()), (1, 1, 0));
        assert_eq!(put(5, row(60_000)).counts.len(), 4, "of its topic and of all, in both minutes");
    }

    #[test]
    fn decimals_compare_as_their_numbers() {
        let numbers = [0, 9, 10, 1 << 53, (1 << 53) + 1, u64::MAX];
        assert!(numbers.map(decimal).is_sorted());
        assert_eq!(decimal(u64::MAX).len(), decimal(0).len());
    }
}
