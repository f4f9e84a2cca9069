//! A reference model of a store of holds, simple and unbounded, with which the engines are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::ports::timers::bucket_start;
use whimbrel_model::ports::{CountQuery, DueCursor, DueKey, HoldQuery, StoredHold, TimerChange};
use whimbrel_model::{Hold, HoldEnd, HoldEndKind, HoldId, Timestamp};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Default)]
pub struct NaiveTimers {
    known: BTreeMap<HoldId, StoredHold>,
}

impl NaiveTimers {
    pub fn change(&mut self, change: &TimerChange) {
        match change {
            TimerChange::Put { hold, .. } => self.known.insert(hold.id.clone(), StoredHold::Pending(Arc::clone(hold))),
            TimerChange::End { id, end, .. } => self.known.insert(id.clone(), StoredHold::Ended(end.clone())),
        };
    }

    pub fn empty(&mut self) {
        self.known.clear();
    }

    pub fn get(&self, id: &HoldId) -> Option<StoredHold> {
        self.known.get(id).cloned()
    }

    pub fn row(&self, id: &HoldId) -> Option<DueKey> {
        match self.known.get(id)? {
            StoredHold::Pending(hold) => Some(DueKey { due: hold.due, topic: hold.topic }),
            StoredHold::Ended(_) => None,
        }
    }

    pub fn ids(&self) -> Vec<HoldId> {
        self.known.keys().cloned().collect()
    }

    /// All pending holds, in due order.
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
        // The minute of `to` is counted whole, unless `to` is the start of that minute.
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

    /// The earliest due time of a pending hold, or a time after all others if there is none.
    pub fn floor(&self) -> Timestamp {
        let dues: BTreeSet<_> = self.known.values().filter_map(pending_of).map(|hold| hold.due).collect();
        dues.first().copied().unwrap_or(Timestamp::from_millis(FLOOR_OF_NOTHING_MS))
    }
}

/// The floor of a shard without holds: later than any due time of the suite.
const FLOOR_OF_NOTHING_MS: i64 = 1 << 42;

pub fn cursor_of(hold: &Hold) -> DueCursor {
    DueCursor { due: hold.due, id: hold.id.clone() }
}

fn in_range(query: &HoldQuery, place: DueCursor) -> bool {
    query.from.is_none_or(|from| place.due >= from)
        && query.to.is_none_or(|to| place.due < to)
        && query.after.as_ref().is_none_or(|after| place > *after)
}

fn pending_of(known: &StoredHold) -> Option<Arc<Hold>> {
    match known {
        StoredHold::Pending(hold) => Some(Arc::clone(hold)),
        StoredHold::Ended(_) => None,
    }
}

fn dead_of(known: &StoredHold) -> Option<HoldEnd> {
    match known {
        StoredHold::Ended(end) if matches!(end.how, HoldEndKind::Dead { .. }) => Some(end.clone()),
        StoredHold::Ended(_) | StoredHold::Pending(_) => None,
    }
}
