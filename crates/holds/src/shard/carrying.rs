//! Carrying forward: before an old stretch of the log is trimmed, what is still pending in it is written once more, as it is now,
//! and so is the outcome of every hold whose `held` may still come again.
//!
//! The stretch is walked page by page beside everything else; each page takes its turn in the commits. It ends where the store was
//! synced before the walk began, so the trim is always behind a checkpoint that is on disk.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use whimbrel_model::ports::{At, Known, LogError, ReadBatch, TimersError};
use whimbrel_model::{Hold, HoldId, HoldRecord, MessageId};

use super::{Effect, Judged, Phase, Shard, Token, after};

#[derive(Debug)]
pub(super) struct Carry {
    stage: Stage,
    /// Everything before it goes.
    cut: u64,
    /// Walked up to there.
    walked: u64,
    /// Ids of the page that may have to be carried.
    ids: VecDeque<HoldId>,
    /// Those that the store is asked for, in that order.
    asked: Vec<HoldId>,
    /// What the store has of those that memory does not know, after how many saves.
    got: HashMap<HoldId, Option<Known>>,
    got_after: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Finding,
    Reading,
    /// A page is there: what it needs is asked for, then committed.
    Asking(Token),
    Page,
    Trimming,
}

/// Below this, a trim is not worth its walk.
const STRETCH_MIN: u64 = 1;

/// Ids that were minted for a held message are never held again.
fn can_be_held_again(id: &HoldId) -> bool {
    let minted = id.as_str().parse::<MessageId>().ok().and_then(MessageId::place);
    minted.is_none_or(|place| place.partition.is_some())
}

impl Shard {
    pub(super) fn carry_on(&mut self, effects: &mut Vec<Effect>) {
        if self.phase != Phase::Ready || self.has_fallen {
            return;
        }
        let now = self.clock.now();
        let Some(carry) = &mut self.carry else {
            if now >= self.carry_at {
                let keep = i64::try_from(self.settings.keep_log.as_millis()).unwrap_or(i64::MAX);
                let kept_since = whimbrel_model::Timestamp::from_millis(self.expiry.as_millis().saturating_sub(keep));
                effects.push(Effect::Cut { kept_since });
                self.carry = Some(Carry {
                    stage: Stage::Finding,
                    cut: 0,
                    walked: 0,
                    ids: VecDeque::new(),
                    asked: Vec::new(),
                    got: HashMap::new(),
                    got_after: 0,
                });
            }
            return;
        };
        // A page is done when nothing of it is left to commit and what was committed is folded.
        if carry.stage == Stage::Page && carry.ids.is_empty() && self.under_way.is_none() {
            if carry.walked < carry.cut {
                carry.stage = Stage::Reading;
                effects.push(Effect::Walk { from: carry.walked, upto: carry.cut });
            } else {
                carry.stage = Stage::Trimming;
                effects.push(Effect::Trim { before: carry.cut });
            }
        } else if carry.stage == Stage::Page && !carry.ids.is_empty() && carry.got_after != self.saves {
            self.ask_for_carried(effects);
        }
    }

    pub(super) fn cut_found(&mut self, cut: Result<(u64, u64), LogError>, effects: &mut Vec<Effect>) {
        let synced = self.synced;
        let Some(carry) = &mut self.carry else { return };
        match cut {
            Ok((first, cut)) if cut.min(synced) >= first + STRETCH_MIN => {
                carry.cut = cut.min(synced);
                carry.walked = first;
                carry.stage = Stage::Reading;
                effects.push(Effect::Walk { from: first, upto: carry.cut });
            }
            Ok(_) => self.carry_is_over(),
            Err(error) => self.carry_failed(&error, effects),
        }
    }

    /// Gives up this time. A log that cannot be trimmed fills the disk in the end.
    fn carry_failed(&mut self, error: &LogError, effects: &mut Vec<Effect>) {
        let is_loss = matches!(error, LogError::Trimmed { .. } | LogError::BeyondEnd { .. });
        if !is_loss && !std::mem::replace(&mut self.told_not_trimmed, true) {
            effects.push(Effect::NotTrimmed { why: error.to_string() });
        }
        self.carry_is_over();
    }

    fn carry_is_over(&mut self) {
        self.carry = None;
        self.carry_at = after(self.clock.now(), self.settings.trim_interval);
    }

    pub(super) fn walked(&mut self, read: Result<ReadBatch, LogError>, effects: &mut Vec<Effect>) {
        let oldest_end = self.expiry.saturating_sub(self.settings.remember);
        let Some(carry) = &mut self.carry else { return };
        let batch = match read {
            Ok(batch) => batch,
            Err(error) => return self.carry_failed(&error, effects),
        };
        // A stretch that is not walked must not be trimmed: where reading does not get on, it is tried again another time.
        if batch.next <= carry.walked {
            return self.carry_is_over();
        }
        for stored in batch.records.iter().filter(|stored| stored.offset < carry.cut) {
            let Ok(record) = HoldRecord::of(&stored.record, stored.offset) else { continue };
            let may_matter = match &record {
                HoldRecord::Held(_) | HoldRecord::Carried(_) => true,
                HoldRecord::Ended { id, end } | HoldRecord::CarriedEnd { id, end } => {
                    end.at >= oldest_end && can_be_held_again(id)
                }
                HoldRecord::Moved { .. } => false,
            };
            if may_matter {
                carry.ids.push_back(record.id().clone());
            }
        }
        carry.walked = batch.next.min(carry.cut);
        carry.ids.make_contiguous().sort_unstable();
        let mut ids: Vec<HoldId> = std::mem::take(&mut carry.ids).into();
        ids.dedup();
        carry.ids = ids.into();
        self.ask_for_carried(effects);
    }

    pub(super) fn ask_for_carried(&mut self, effects: &mut Vec<Effect>) {
        let Some(carry) = &self.carry else { return };
        let unknown: Vec<HoldId> = carry.ids.iter().filter(|id| self.resolve(id).is_none()).cloned().collect();
        let (token, saves) = (self.token(), self.saves);
        let Some(carry) = &mut self.carry else { return };
        carry.got.clear();
        carry.got_after = saves;
        if unknown.is_empty() {
            carry.stage = Stage::Page;
            return;
        }
        carry.stage = Stage::Asking(token);
        carry.asked = unknown.clone();
        effects.push(Effect::Get { token, ids: unknown });
    }

    pub(super) fn carry_got(&mut self, token: Token, found: &Result<At<Vec<Option<Known>>>, TimersError>) -> bool {
        let Some(carry) = &self.carry else { return false };
        if carry.stage != Stage::Asking(token) {
            return false;
        }
        match found {
            Ok(at) => match self.judge(at.applied, carry.got_after) {
                Judged::Sound => {
                    let saves = self.saves;
                    let Some(carry) = &mut self.carry else { return true };
                    carry.got = std::mem::take(&mut carry.asked).into_iter().zip(at.found.iter().cloned()).collect();
                    carry.got_after = saves;
                    carry.stage = Stage::Page;
                }
                Judged::AskAgain => {
                    if let Some(carry) = &mut self.carry {
                        // `carry_on` sees that it was asked too early.
                        carry.stage = Stage::Page;
                        carry.got_after = u64::MAX;
                    }
                }
                Judged::Fallen => self.has_fallen = true,
            },
            Err(error) => {
                self.store_failed(error);
                self.carry_is_over();
            }
        }
        true
    }

    pub(super) fn trimmed(&mut self, trimmed: Result<(), LogError>, effects: &mut Vec<Effect>) {
        match trimmed {
            Ok(()) => {
                self.told_not_trimmed = false;
                self.carry_is_over();
            }
            Err(error) => self.carry_failed(&error, effects),
        }
    }

    pub(super) fn next_to_carry(&mut self) -> Option<HoldId> {
        let carry = self.carry.as_mut().filter(|carry| carry.stage == Stage::Page)?;
        carry.ids.pop_front()
    }

    pub(super) fn carry_later(&mut self, ids: Vec<HoldId>) {
        if let Some(carry) = &mut self.carry {
            carry.ids.extend(ids);
        }
    }

    /// The hold that only the store knows.
    pub(super) fn carried_from_store(&self, id: &HoldId) -> Option<Arc<Hold>> {
        if self.resolve(id).is_some() {
            return None;
        }
        match self.carry.as_ref()?.got.get(id)? {
            Some(Known::Pending(hold)) => Some(Arc::clone(hold)),
            _ => None,
        }
    }

    /// What is written for an id: nothing where nothing of it must be kept; `None` where the store must be asked again.
    pub(super) fn carried_now(&self, id: &HoldId) -> Option<Option<HoldRecord>> {
        let state = match self.resolve(id) {
            Some(resolved) => resolved.state,
            None => {
                let carry = self.carry.as_ref()?;
                if carry.got_after != self.saves {
                    return None;
                }
                // The store was not asked for what memory knew then; memory may have let go of it since.
                carry.got.get(id)?.clone()
            }
        };
        Some(match state {
            Some(Known::Pending(hold)) => Some(HoldRecord::Carried(Hold::clone(&hold))),
            Some(Known::Ended(end)) if can_be_held_again(id) => Some(HoldRecord::CarriedEnd { id: id.clone(), end }),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::Timestamp;

    use super::super::super::settings::HoldsSettings;
    use super::super::Input;
    use super::*;
    use whimbrel_cluster::owner_clock::Reading;

    fn at(ms: i64) -> Reading {
        let wall = Timestamp::from_millis(ms);
        Reading { wall, expiry: wall, steady_ms: ms as u64 }
    }

    #[test]
    fn a_log_that_cannot_be_trimmed_is_reported_once_until_it_could_be() {
        let settings = HoldsSettings::default();
        let every = settings.trim_interval.as_millis() as i64;
        let mut shard = Shard::new(Arc::new(settings), 1, 1, at(0));
        shard.step(at(0), Input::Started { applied: 10, first: 0, end: 10 });
        let reports =
            |effects: &[Effect]| effects.iter().filter(|effect| matches!(effect, Effect::NotTrimmed { .. })).count();
        let unavailable = || LogError::Unavailable("the disk is away".to_owned());
        let mut told = Vec::new();
        for round in 1..=3 {
            let effects = shard.step(at(round * every), Input::Tick);
            assert!(effects.iter().any(|effect| matches!(effect, Effect::Cut { .. })), "{effects:?}");
            told.push(reports(&shard.step(at(round * every), Input::Cut(Err(unavailable())))));
        }
        assert_eq!(told, [1, 0, 0]);
        shard.step(at(4 * every), Input::Tick);
        shard.step(at(4 * every), Input::Cut(Ok((0, 10))));
        shard.step(at(4 * every), Input::Trimmed(Ok(())));
        shard.step(at(5 * every), Input::Tick);
        assert_eq!(reports(&shard.step(at(5 * every), Input::Cut(Err(unavailable())))), 1, "a new incident");
    }
}
