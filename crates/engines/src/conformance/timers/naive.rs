//! A store of holds as anyone would write it who had all memory and all time: what the engines are compared with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::ports::timers::bucket_start;
use whimbrel_model::ports::{Change, CountQuery, DueCursor, HoldQuery, Known, Row};
use whimbrel_model::{Ending, Hold, HoldEnd, HoldId, Timestamp};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Default)]
pub struct Naive {
    known: BTreeMap<HoldId, Known>,
}

impl Naive {
    pub fn change(&mut self, change: &Change) {
        match change {
            Change::Put { hold, .. } => self.known.insert(hold.id.clone(), Known::Pending(Arc::clone(hold))),
            Change::End { id, end, .. } => self.known.insert(id.clone(), Known::Ended(end.clone())),
        };
    }

    pub fn empty(&mut self) {
        self.known.clear();
    }

    pub fn get(&self, id: &HoldId) -> Option<Known> {
        self.known.get(id).cloned()
    }

    /// The row of a pending hold.
    pub fn row(&self, id: &HoldId) -> Option<Row> {
        match self.known.get(id)? {
            Known::Pending(hold) => Some(Row { due: hold.due, topic: hold.topic }),
            Known::Ended(_) => None,
        }
    }

    pub fn ids(&self) -> Vec<HoldId> {
        self.known.keys().cloned().collect()
    }

    /// Everything that is pending, in due order.
    pub fn pending(&self) -> Vec<Arc<Hold>> {
        let mut pending: Vec<_> = self.known.values().filter_map(pending_of).collect();
        pending.sort_by_key(|hold| cursor_of(hold));
        pending
    }

    pub fn due(&self, after: Option<&DueCursor>, until: Timestamp, limit: usize) -> Vec<Arc<Hold>> {
        let wanted = |hold: &Arc<Hold>| hold.due < until && after.is_none_or(|after| cursor_of(hold) > *after);
        self.pending().into_iter().filter(wanted).take(limit).collect()
    }

    pub fn list(&self, query: &HoldQuery) -> Vec<Arc<Hold>> {
        let wanted =
            |hold: &Arc<Hold>| query.topic.is_none_or(|topic| topic == hold.topic) && in_range(query, cursor_of(hold));
        self.pending().into_iter().filter(wanted).take(query.limit).collect()
    }

    pub fn dead(&self, query: &HoldQuery) -> Vec<(HoldId, HoldEnd)> {
        let mut dead: Vec<_> =
            self.known.iter().filter_map(|(id, known)| Some((id.clone(), dead_of(known)?))).collect();
        dead.retain(|(_, end)| query.topic.is_none_or(|topic| topic == end.topic));
        dead.retain(|(id, end)| in_range(query, DueCursor { due: end.due, id: id.clone() }));
        dead.sort_by_key(|(id, end)| (end.due, id.clone()));
        dead.truncate(query.limit);
        dead
    }

    pub fn count(&self, query: &CountQuery) -> Vec<(Timestamp, u64)> {
        let from = query.from.map(|from| bucket_start(from, MINUTE));
        // The minute that `to` lies in is counted whole, unless it lies at its very beginning.
        let to = query.to.map(|to| bucket_start(Timestamp::from_millis(to.as_millis() - 1), MINUTE));
        let mut counts = BTreeMap::new();
        for hold in self.pending() {
            let minute = bucket_start(hold.due, MINUTE);
            let wanted = query.topic.is_none_or(|topic| topic == hold.topic)
                && from.is_none_or(|from| minute >= from)
                && to.is_none_or(|to| minute <= to);
            if wanted {
                *counts.entry(bucket_start(hold.due, query.bucket)).or_insert(0) += 1;
            }
        }
        counts.into_iter().collect()
    }

    /// The earliest due time of what is pending, or a time beyond all where there is none.
    pub fn floor(&self) -> Timestamp {
        let dues: BTreeSet<_> = self.known.values().filter_map(pending_of).map(|hold| hold.due).collect();
        dues.first().copied().unwrap_or(Timestamp::from_millis(FLOOR_OF_NOTHING_MS))
    }
}

/// Where a shard without holds has its floor: later than any due time of the suite.
const FLOOR_OF_NOTHING_MS: i64 = 1 << 42;

pub fn cursor_of(hold: &Hold) -> DueCursor {
    DueCursor { due: hold.due, id: hold.id.clone() }
}

fn in_range(query: &HoldQuery, place: DueCursor) -> bool {
    query.from.is_none_or(|from| place.due >= from)
        && query.to.is_none_or(|to| place.due < to)
        && query.after.as_ref().is_none_or(|after| place > *after)
}

fn pending_of(known: &Known) -> Option<Arc<Hold>> {
    match known {
        Known::Pending(hold) => Some(Arc::clone(hold)),
        Known::Ended(_) => None,
    }
}

fn dead_of(known: &Known) -> Option<HoldEnd> {
    match known {
        Known::Ended(end) if matches!(end.how, Ending::Dead { .. }) => Some(end.clone()),
        Known::Ended(_) | Known::Pending(_) => None,
    }
}
