//! The true history of each hold, from all records ever written, and the check that it was allowed.
//!
//! The truth receives every record as it lands, in order, and every request. It depends on no owner, no store and no fence.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use whimbrel_model::ports::StoredHold;
use whimbrel_model::{Hold, HoldEndKind, HoldId, HoldRecord, StoredRecord, Timestamp, TopicNumber};

use super::log::SimHoldsLog;
use super::store::SimStore;
use crate::CheckResult;

/// A moment of the run: the number of steps.
pub type StepNumber = u64;

/// The body of a message that the log rejects permanently.
pub const UNWRITABLE: &str = "unwritable";

#[derive(Debug, Default)]
pub struct HoldHistory {
    /// The states, each with the step at which it began. Before the first one the hold does not exist.
    states: Vec<(StepNumber, StoredHold)>,
    /// Commands to fire or to withdraw the hold that were, or may have been, executed.
    pub fires_asked: u32,
    pub withdrawals_asked: u32,
}

impl HoldHistory {
    pub fn now(&self) -> Option<&StoredHold> {
        self.states.last().map(|(_, known)| known)
    }

    pub fn pending(&self) -> Option<&Arc<Hold>> {
        match self.now() {
            Some(StoredHold::Pending(hold)) => Some(hold),
            _ => None,
        }
    }

    pub fn at(&self, step: StepNumber) -> Option<&StoredHold> {
        self.states.iter().rev().find(|(from, _)| *from <= step).map(|(_, known)| known)
    }

    /// The state at a step, and all later states.
    pub fn since(&self, step: StepNumber) -> impl Iterator<Item = Option<&StoredHold>> {
        let later = self.states.iter().filter(move |(from, _)| *from > step).map(|(_, known)| Some(known));
        std::iter::once(self.at(step)).chain(later)
    }
}

#[derive(Debug, Default)]
pub struct HoldsTruth {
    pub stories: BTreeMap<HoldId, HoldHistory>,
    pub step: StepNumber,
    /// The steps at which records landed.
    pub landings: Vec<StepNumber>,
    /// An upper bound of all owners' clocks: the latest time of any wall clock, plus the time since then.
    pub latest_clock: Timestamp,
    /// The store has lost writes. The end of an id that is not used again is then known only while the log has it.
    pub has_forgotten: bool,
    /// Topics that were deleted.
    pub gone: BTreeSet<TopicNumber>,
    /// The topics with a request to withdraw their holds.
    pub withdrawn_topics: BTreeSet<TopicNumber>,
    pub fired: u64,
    pub withdrawn: u64,
    pub dead: u64,
    pub moved: u64,
    pub carried: u64,
}

impl HoldsTruth {
    /// Checks a record that landed. Records of owners must be true decisions. Any client may write `held`, also twice.
    pub fn landed(&mut self, stored: &StoredRecord, by_owner: bool) -> CheckResult {
        let record = HoldRecord::of(&stored.record, stored.offset).map_err(|error| error.to_string())?;
        // Each record is a moment of its own: readers may see only the first records of a commit.
        self.step += 1;
        self.landings.push(self.step);
        let id = record.id().clone();
        let story = self.stories.entry(id.clone()).or_default();
        let now = story.now().cloned();
        let pending = match &now {
            Some(StoredHold::Pending(hold)) => Some(Arc::clone(hold)),
            _ => None,
        };
        let state = match record {
            HoldRecord::Held(hold) => match &now {
                None => StoredHold::Pending(Arc::new(hold)),
                Some(_) if by_owner => return Err(format!("{id} is held by its owner although it is {now:?}")),
                Some(_) => return Ok(()),
            },
            HoldRecord::Moved { due, key, .. } => {
                let Some(hold) = pending else { return Err(format!("{id} is moved, but it is {now:?}")) };
                self.moved += 1;
                StoredHold::Pending(Arc::new(hold.moved(due, key.as_deref(), stored.offset)))
            }
            HoldRecord::Carried(hold) => {
                self.carried += 1;
                if pending.as_deref() != Some(&hold) {
                    return Err(format!("{id} is carried as {hold:?}, but it is {now:?}"));
                }
                return Ok(());
            }
            HoldRecord::CarriedEnd { end, .. } => {
                self.carried += 1;
                if now != Some(StoredHold::Ended(end.clone())) {
                    return Err(format!("{id} is carried as {end:?}, but it is {now:?}"));
                }
                return Ok(());
            }
            HoldRecord::Ended { end, .. } => {
                let Some(hold) = pending else { return Err(format!("{id} ends as {end:?}, but it is {now:?}")) };
                let is_writable = !self.gone.contains(&hold.topic) && hold.message.value != UNWRITABLE;
                match &end.how {
                    HoldEndKind::Fired { .. } => {
                        self.fired += 1;
                        let is_asked = story.fires_asked > 0;
                        if end.due != hold.due {
                            return Err(format!("{id} fires as due at {}, but it is due at {}", end.due, hold.due));
                        }
                        if end.at < hold.due && !is_asked {
                            return Err(format!("{id} fires at {}, but it is due at {}", end.at, hold.due));
                        }
                        if end.at > self.latest_clock {
                            return Err(format!("{id} fires at {}, which no clock has reached", end.at));
                        }
                        if !is_writable {
                            return Err(format!("{id} fires, but its message cannot be written"));
                        }
                    }
                    HoldEndKind::Withdrawn
                        if story.withdrawals_asked == 0 && !self.withdrawn_topics.contains(&hold.topic) =>
                    {
                        return Err(format!("{id} is withdrawn without a request"));
                    }
                    HoldEndKind::Withdrawn => self.withdrawn += 1,
                    HoldEndKind::Dead { .. } if is_writable => {
                        return Err(format!("{id} is dead, but its message can be written"));
                    }
                    HoldEndKind::Dead { .. } => self.dead += 1,
                }
                StoredHold::Ended(end)
            }
        };
        story.states.push((self.step, state));
        Ok(())
    }

    pub fn pending(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.stories.values().filter_map(HoldHistory::pending)
    }

    /// Checks that store and kept log together give exactly the pending holds.
    pub fn is_rebuilt_from(&self, store: &SimStore, log: &SimHoldsLog) -> CheckResult {
        let bounds = log.bounds();
        let is_usable = store.applied() >= bounds.first && !store.is_damaged;
        let mut known = if is_usable { store.known().clone() } else { BTreeMap::new() };
        for stored in log.from(if is_usable { store.applied() } else { bounds.first }) {
            fold(&mut known, stored)?;
        }
        for (id, story) in &self.stories {
            let rebuilt = match known.remove(id) {
                Some(StoredHold::Pending(hold)) => Some(hold),
                _ => None,
            };
            if rebuilt.as_ref() != story.pending() {
                let is = story.now();
                return Err(format!("{id} is {is:?}, but store and kept log give {rebuilt:?}"));
            }
        }
        Ok(())
    }
}

/// Folds the log in the simplest way.
fn fold(known: &mut BTreeMap<HoldId, StoredHold>, stored: &StoredRecord) -> CheckResult {
    let record = HoldRecord::of(&stored.record, stored.offset).map_err(|error| error.to_string())?;
    let id = record.id().clone();
    match record {
        HoldRecord::Held(hold) => {
            known.entry(id).or_insert_with(|| StoredHold::Pending(Arc::new(hold)));
        }
        HoldRecord::Moved { due, key, .. } => {
            if let Some(StoredHold::Pending(hold)) = known.get_mut(&id) {
                *hold = Arc::new(hold.moved(due, key.as_deref(), stored.offset));
            }
        }
        HoldRecord::Carried(hold) => {
            known.insert(id, StoredHold::Pending(Arc::new(hold)));
        }
        HoldRecord::Ended { end, .. } | HoldRecord::CarriedEnd { end, .. } => {
            known.insert(id, StoredHold::Ended(end));
        }
    }
    Ok(())
}
