//! A simulated store of timers: the contract of the port as plain data, and the ways in which a store fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use whimbrel_model::ports::{
    ApplyOutcome, AtOffset, CountQuery, DueCursor, DueKey, HoldQuery, StoredHold, TimerChange, TimersError,
    TimersWrite, bucket_start,
};
use whimbrel_model::{Hold, HoldEnd, HoldEndKind, HoldId, Timestamp};

use crate::CheckResult;

/// Limit of earlier states to which the store can fall back.
const PAST_MAX: usize = 12;

#[derive(Debug, Clone)]
struct TimersState {
    epoch: u64,
    applied: u64,
    known: BTreeMap<HoldId, StoredHold>,
    rows: BTreeMap<(Timestamp, HoldId), Arc<Hold>>,
    floor: Timestamp,
}

#[derive(Debug)]
pub struct SimStore {
    now: TimersState,
    past: Vec<TimersState>,
    changes: u64,
    /// The store does not respond.
    pub is_away: bool,
    /// The rows are damaged until the store is emptied.
    pub is_damaged: bool,
}

impl Default for SimStore {
    fn default() -> Self {
        let floor = Timestamp::from_millis(i64::MIN);
        let now = TimersState { epoch: 0, applied: 0, known: BTreeMap::new(), rows: BTreeMap::new(), floor };
        Self { now, past: Vec::new(), changes: 0, is_away: false, is_damaged: false }
    }
}

impl SimStore {
    pub fn applied(&self) -> u64 {
        self.now.applied
    }

    /// The number of changes.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn known(&self) -> &BTreeMap<HoldId, StoredHold> {
        &self.now.known
    }

    fn reach(&self) -> Result<(), TimersError> {
        if self.is_away { Err(TimersError::Unavailable("simulated".to_owned())) } else { Ok(()) }
    }

    fn readable(&self) -> Result<(), TimersError> {
        self.reach()?;
        if self.is_damaged { Err(TimersError::Damaged("simulated".to_owned())) } else { Ok(()) }
    }

    fn remember(&mut self) {
        if self.past.len() == PAST_MAX {
            self.past.remove(1);
        }
        self.changes += 1;
        self.past.push(self.now.clone());
    }

    pub fn past(&self) -> usize {
        self.past.len()
    }

    /// The offset of an earlier state.
    pub fn past_applied(&self, index: usize) -> u64 {
        self.past[index].applied
    }

    /// Simulates a failover that loses writes: the store returns to an earlier state.
    pub fn fall_back(&mut self, to: usize) {
        self.changes += 1;
        self.now = self.past[to].clone();
        self.past.truncate(to.max(1));
    }

    pub fn open(&mut self, epoch: u64) -> Result<Option<u64>, TimersError> {
        self.reach()?;
        if epoch < self.now.epoch {
            return Ok(None);
        }
        if epoch > self.now.epoch {
            self.remember();
            self.now.epoch = epoch;
        }
        Ok(Some(self.now.applied))
    }

    /// Applies a write. The outer error is a write that violates the contract of the port.
    pub fn apply(&mut self, write: TimersWrite) -> CheckResult<Result<ApplyOutcome, TimersError>> {
        if let Err(away) = self.reach() {
            return Ok(Err(away));
        }
        if write.epoch < self.now.epoch {
            return Ok(Ok(ApplyOutcome::OlderEpoch));
        }
        if write.expected != self.now.applied {
            return Ok(Ok(ApplyOutcome::Behind { at: self.now.applied }));
        }
        if self.is_damaged && !write.reset {
            return Ok(self.readable().map(|()| ApplyOutcome::Done));
        }
        self.remember();
        let state = &mut self.now;
        if write.reset {
            (state.known, state.rows) = (BTreeMap::new(), BTreeMap::new());
            self.is_damaged = false;
            // After a reset, an earlier state at the same offset could not be distinguished from the emptied store. This is a known limit
            // of the protocol, and is not simulated.
            self.past.retain(|earlier| earlier.applied != write.applied);
        }
        let mut floor = write.floor;
        for change in write.changes {
            let (id, was) = match &change {
                TimerChange::Put { hold, was } => (hold.id.clone(), *was),
                TimerChange::End { id, was, .. } => (id.clone(), *was),
            };
            let has = match state.known.get(&id) {
                Some(StoredHold::Pending(hold)) => Some(DueKey { due: hold.due, topic: hold.topic }),
                _ => None,
            };
            if has != was {
                return Err(format!("a write says that the store has {was:?} of {id}, and it has {has:?}"));
            }
            if let Some(row) = was {
                state.rows.remove(&(row.due, id.clone()));
            }
            match change {
                TimerChange::Put { hold, .. } => {
                    floor = floor.min(hold.due);
                    state.rows.insert((hold.due, id.clone()), Arc::clone(&hold));
                    state.known.insert(id, StoredHold::Pending(hold));
                }
                TimerChange::End { end, .. } => {
                    state.known.insert(id, StoredHold::Ended(end));
                }
            }
        }
        if let Some(((due, id), _)) = state.rows.first_key_value()
            && *due < floor
        {
            return Err(format!("a write has the floor {floor}, and {id} is due at {due}"));
        }
        (state.epoch, state.applied, state.floor) = (write.epoch, write.applied, floor);
        Ok(Ok(ApplyOutcome::Done))
    }

    fn at<T>(&self, found: T) -> Result<AtOffset<T>, TimersError> {
        self.readable()?;
        Ok(AtOffset { applied: self.now.applied, found })
    }

    pub fn due(
        &self,
        after: Option<&DueCursor>,
        until: Timestamp,
        limit: usize,
    ) -> Result<AtOffset<Vec<Arc<Hold>>>, TimersError> {
        let rows = self.now.rows.iter().filter(|((due, id), _)| match after {
            Some(after) => (*due, id) > (after.due, &after.id),
            None => *due >= self.now.floor,
        });
        let page = rows.filter(|((due, _), _)| *due < until).take(limit).map(|(_, hold)| Arc::clone(hold));
        self.at(page.collect())
    }

    pub fn get(&self, ids: &[HoldId]) -> Result<AtOffset<Vec<Option<StoredHold>>>, TimersError> {
        self.at(ids.iter().map(|id| self.now.known.get(id).cloned()).collect())
    }

    pub fn list(&self, query: &HoldQuery) -> Result<AtOffset<Vec<Arc<Hold>>>, TimersError> {
        let rows = self.now.rows.values().filter(|hold| is_asked_for(query, hold));
        self.at(rows.take(query.limit).cloned().collect())
    }

    pub fn dead(&self, query: &HoldQuery) -> Result<AtOffset<Vec<(HoldId, HoldEnd)>>, TimersError> {
        self.at(dead_of(query, self.now.known.iter()))
    }

    pub fn count(&self, query: &CountQuery) -> Result<AtOffset<Vec<(Timestamp, u64)>>, TimersError> {
        self.at(count_of(query, self.now.rows.values()))
    }
}

pub fn is_asked_for(query: &HoldQuery, hold: &Hold) -> bool {
    query.topic.is_none_or(|topic| topic == hold.topic) && is_in_range(query, hold.due, &hold.id)
}

fn is_in_range(query: &HoldQuery, due: Timestamp, id: &HoldId) -> bool {
    query.from.is_none_or(|from| due >= from)
        && query.to.is_none_or(|to| due < to)
        && query.after.as_ref().is_none_or(|after| (due, id) > (after.due, &after.id))
}

pub fn dead_of<'a>(
    query: &HoldQuery,
    known: impl Iterator<Item = (&'a HoldId, &'a StoredHold)>,
) -> Vec<(HoldId, HoldEnd)> {
    let mut dead: Vec<(HoldId, HoldEnd)> = known
        .filter_map(|(id, known)| match known {
            StoredHold::Ended(end @ HoldEnd { how: HoldEndKind::Dead { .. }, .. })
                if query.topic.is_none_or(|topic| topic == end.topic) && is_in_range(query, end.due, id) =>
            {
                Some((id.clone(), end.clone()))
            }
            _ => None,
        })
        .collect();
    dead.sort_by(|a, b| (a.1.due, &a.0).cmp(&(b.1.due, &b.0)));
    dead.truncate(query.limit);
    dead
}

/// Counts by whole minutes, like the stores.
pub fn count_of<'a>(query: &CountQuery, holds: impl Iterator<Item = &'a Arc<Hold>>) -> Vec<(Timestamp, u64)> {
    let minute = |time: i64| time.div_euclid(60_000);
    let mut buckets = BTreeMap::new();
    for hold in holds {
        let at = minute(hold.due.as_millis());
        if query.topic.is_none_or(|topic| topic == hold.topic)
            && query.from.is_none_or(|from| at >= minute(from.as_millis()))
            && query.to.is_none_or(|to| at <= minute(to.as_millis() - 1))
        {
            *buckets.entry(bucket_start(hold.due, query.bucket)).or_default() += 1;
        }
    }
    buckets.into_iter().collect()
}
