//! What really happened to each hold, by all that was ever written; and whether it was allowed to.
//!
//! It is told of every record as it lands, in order, and of what was asked. It knows no owner, no store and no fence.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use whimbrel_model::ports::Known;
use whimbrel_model::{Ending, Hold, HoldId, HoldRecord, StoredRecord, Timestamp, TopicNumber};

use super::Check;
use super::log::SimLog;
use super::store::SimStore;

/// A moment of the run: how many steps were taken.
pub type Step = u64;

/// The body of a message that the log refuses for good.
pub const UNWRITABLE: &str = "unwritable";

#[derive(Debug, Default)]
pub struct Story {
    /// What it was, from which step on. Nothing before the first.
    states: Vec<(Step, Known)>,
    /// Commands to fire or to withdraw it that were, or may have been, followed.
    pub fires_asked: u32,
    pub withdrawals_asked: u32,
}

impl Story {
    pub fn now(&self) -> Option<&Known> {
        self.states.last().map(|(_, known)| known)
    }

    pub fn pending(&self) -> Option<&Arc<Hold>> {
        match self.now() {
            Some(Known::Pending(hold)) => Some(hold),
            _ => None,
        }
    }

    pub fn at(&self, step: Step) -> Option<&Known> {
        self.states.iter().rev().find(|(from, _)| *from <= step).map(|(_, known)| known)
    }

    /// Everything that it was from that step on.
    pub fn since(&self, step: Step) -> impl Iterator<Item = Option<&Known>> {
        let later = self.states.iter().filter(move |(from, _)| *from > step).map(|(_, known)| Some(known));
        std::iter::once(self.at(step)).chain(later)
    }
}

#[derive(Debug, Default)]
pub struct Truth {
    pub stories: BTreeMap<HoldId, Story>,
    pub step: Step,
    /// The steps at which something was written.
    pub landings: Vec<Step>,
    /// No owner's clock can be later than this: the latest that any wall clock was, and the time that has passed since.
    pub latest_clock: Timestamp,
    /// The store has forgotten something: ends of ids that never come again are then known only as long as the log has them.
    pub has_forgotten: bool,
    /// Topics that were deleted.
    pub gone: BTreeSet<TopicNumber>,
    /// Topics whose holds somebody asked to withdraw.
    pub withdrawn_topics: BTreeSet<TopicNumber>,
    pub fired: u64,
    pub withdrawn: u64,
    pub dead: u64,
    pub moved: u64,
    pub carried: u64,
}

impl Truth {
    /// A record is in the log. Those of owners must be true decisions; anyone may write `held`, also twice.
    pub fn landed(&mut self, stored: &StoredRecord, by_owner: bool) -> Check {
        let record = HoldRecord::of(&stored.record, stored.offset).map_err(|error| error.to_string())?;
        // Each record is a moment of its own: readers may stand between two records of one commit.
        self.step += 1;
        self.landings.push(self.step);
        let id = record.id().clone();
        let story = self.stories.entry(id.clone()).or_default();
        let now = story.now().cloned();
        let pending = match &now {
            Some(Known::Pending(hold)) => Some(Arc::clone(hold)),
            _ => None,
        };
        let state = match record {
            HoldRecord::Held(hold) => match &now {
                None => Known::Pending(Arc::new(hold)),
                Some(_) if by_owner => return Err(format!("{id} is held by its owner although it is {now:?}")),
                Some(_) => return Ok(()),
            },
            HoldRecord::Moved { due, key, .. } => {
                let Some(hold) = pending else { return Err(format!("{id} is moved, but it is {now:?}")) };
                self.moved += 1;
                Known::Pending(Arc::new(hold.moved(due, key.as_deref(), stored.offset)))
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
                if now != Some(Known::Ended(end.clone())) {
                    return Err(format!("{id} is carried as {end:?}, but it is {now:?}"));
                }
                return Ok(());
            }
            HoldRecord::Ended { end, .. } => {
                let Some(hold) = pending else { return Err(format!("{id} ends as {end:?}, but it is {now:?}")) };
                let is_writable = !self.gone.contains(&hold.topic) && hold.message.value != UNWRITABLE;
                match &end.how {
                    Ending::Fired { .. } => {
                        self.fired += 1;
                        let is_asked = story.fires_asked > 0;
                        if end.due != hold.due {
                            return Err(format!("{id} fires as due at {}, but it is due at {}", end.due, hold.due));
                        }
                        if end.at < hold.due && !is_asked {
                            return Err(format!("{id} fires at {}, but it is due at {}", end.at, hold.due));
                        }
                        if end.at > self.latest_clock {
                            return Err(format!("{id} fires at {}, when no clock was there yet", end.at));
                        }
                        if !is_writable {
                            return Err(format!("{id} fires, but its message cannot be written"));
                        }
                    }
                    Ending::Withdrawn
                        if story.withdrawals_asked == 0 && !self.withdrawn_topics.contains(&hold.topic) =>
                    {
                        return Err(format!("{id} is withdrawn, and nobody asked for that"));
                    }
                    Ending::Withdrawn => self.withdrawn += 1,
                    Ending::Dead { .. } if is_writable => {
                        return Err(format!("{id} is dead, but its message can be written"));
                    }
                    Ending::Dead { .. } => self.dead += 1,
                }
                Known::Ended(end)
            }
        };
        story.states.push((self.step, state));
        Ok(())
    }

    pub fn pending(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.stories.values().filter_map(Story::pending)
    }

    /// Store and kept log together must give exactly the pending holds.
    pub fn is_rebuilt_from(&self, store: &SimStore, log: &SimLog) -> Check {
        let bounds = log.bounds();
        let is_usable = store.applied() >= bounds.first && !store.is_damaged;
        let mut known = if is_usable { store.known().clone() } else { BTreeMap::new() };
        for stored in log.from(if is_usable { store.applied() } else { bounds.first }) {
            fold(&mut known, stored)?;
        }
        for (id, story) in &self.stories {
            let rebuilt = match known.remove(id) {
                Some(Known::Pending(hold)) => Some(hold),
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

/// The fold of the log in its plainest form.
fn fold(known: &mut BTreeMap<HoldId, Known>, stored: &StoredRecord) -> Check {
    let record = HoldRecord::of(&stored.record, stored.offset).map_err(|error| error.to_string())?;
    let id = record.id().clone();
    match record {
        HoldRecord::Held(hold) => {
            known.entry(id).or_insert_with(|| Known::Pending(Arc::new(hold)));
        }
        HoldRecord::Moved { due, key, .. } => {
            if let Some(Known::Pending(hold)) = known.get_mut(&id) {
                *hold = Arc::new(hold.moved(due, key.as_deref(), stored.offset));
            }
        }
        HoldRecord::Carried(hold) => {
            known.insert(id, Known::Pending(Arc::new(hold)));
        }
        HoldRecord::Ended { end, .. } | HoldRecord::CarriedEnd { end, .. } => {
            known.insert(id, Known::Ended(end));
        }
    }
    Ok(())
}
