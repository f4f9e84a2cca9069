//! Carries records forward. Before an old range of the log is trimmed, the owner writes its pending holds again, in their current state.
//! It also writes the outcome of every hold whose id may be held again.
//!
//! The owner reads the range page by page beside its other work; each page takes its share of the commits. The range ends at the last
//! checkpoint that was synced before the walk began. So a trim never passes a synced checkpoint.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use whimbrel_model::ports::{AtOffset, LogError, ReadBatch, StoredHold, TimersError};
use whimbrel_model::{Hold, HoldId, HoldRecord, MessageId, Timestamp};

use super::{CallToken, HoldEffect, HoldShard, ShardPhase, StoreRead, after};

/// The trims of the log.
#[derive(Debug)]
pub(super) struct Trim {
    pub(super) carry: Option<Carry>,
    /// When the next trim begins.
    pub(super) at: Timestamp,
    /// The log could not be trimmed, and that has been reported.
    was_reported: bool,
}

impl Trim {
    pub(super) fn new(at: Timestamp) -> Self {
        Self { carry: None, at, was_reported: false }
    }
}

#[derive(Debug)]
pub(super) struct Carry {
    stage: CarryStage,
    /// The offset before which the log is trimmed.
    cut: u64,
    /// The offset up to which the range was read.
    walked: u64,
    /// Ids of the page that may have to be carried.
    ids: VecDeque<HoldId>,
    /// The ids in the store query, in its order.
    asked: Vec<HoldId>,
    /// The store's states of the ids that memory does not have, and the number of saves at that time.
    got: HashMap<HoldId, Option<StoredHold>>,
    got_after: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CarryStage {
    Finding,
    ClockReading,
    /// A page was read. Its ids are looked up in the store, then committed.
    Asking(CallToken),
    Page,
    Trimming,
}

/// The fewest offsets that make a trim worthwhile.
const STRETCH_MIN: u64 = 1;

/// Whether a later `held` record may use the id again. Ids that were minted for a hold are never held again.
fn can_be_held_again(id: &HoldId) -> bool {
    let minted = id.as_str().parse::<MessageId>().ok().and_then(MessageId::place);
    minted.is_none_or(|place| place.partition.is_some())
}

impl HoldShard {
    pub(super) fn carry_on(&mut self, effects: &mut Vec<HoldEffect>) {
        if self.phase != ShardPhase::Ready || self.store.has_fallen {
            return;
        }
        let now = self.time.now();
        let Some(carry) = &mut self.trim.carry else {
            if now >= self.trim.at {
                let keep = i64::try_from(self.settings.keep_log.as_millis()).unwrap_or(i64::MAX);
                let kept_since = Timestamp::from_millis(self.time.expiry.as_millis().saturating_sub(keep));
                effects.push(HoldEffect::Cut { kept_since });
                self.trim.carry = Some(Carry {
                    stage: CarryStage::Finding,
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
        // A page is done when all its ids are committed and folded.
        if carry.stage == CarryStage::Page && carry.ids.is_empty() && self.commits.pending.is_none() {
            if carry.walked < carry.cut {
                carry.stage = CarryStage::ClockReading;
                effects.push(HoldEffect::Walk { from: carry.walked, upto: carry.cut });
            } else {
                carry.stage = CarryStage::Trimming;
                effects.push(HoldEffect::Trim { before: carry.cut });
            }
        } else if carry.stage == CarryStage::Page && !carry.ids.is_empty() && carry.got_after != self.store.saves {
            self.ask_for_carried(effects);
        }
    }

    pub(super) fn cut_found(&mut self, cut: Result<(u64, u64), LogError>, effects: &mut Vec<HoldEffect>) {
        let synced = self.store.synced;
        let Some(carry) = &mut self.trim.carry else { return };
        match cut {
            Ok((first, cut)) if cut.min(synced) >= first + STRETCH_MIN => {
                carry.cut = cut.min(synced);
                carry.walked = first;
                carry.stage = CarryStage::ClockReading;
                effects.push(HoldEffect::Walk { from: first, upto: carry.cut });
            }
            Ok(_) => self.carry_is_over(),
            Err(error) => self.carry_failed(&error, effects),
        }
    }

    /// Gives up this trim. A log that cannot be trimmed fills the disk in the end, so the failure is reported.
    fn carry_failed(&mut self, error: &LogError, effects: &mut Vec<HoldEffect>) {
        let is_loss = matches!(error, LogError::Trimmed { .. } | LogError::BeyondEnd { .. });
        if !is_loss && !std::mem::replace(&mut self.trim.was_reported, true) {
            effects.push(HoldEffect::NotTrimmed { why: error.to_string() });
        }
        self.carry_is_over();
    }

    fn carry_is_over(&mut self) {
        self.trim.carry = None;
        self.trim.at = after(self.time.now(), self.settings.trim_interval);
    }

    pub(super) fn walked(&mut self, read: Result<ReadBatch, LogError>, effects: &mut Vec<HoldEffect>) {
        let oldest_end = self.time.expiry.saturating_sub(self.settings.remember);
        let Some(carry) = &mut self.trim.carry else { return };
        let batch = match read {
            Ok(batch) => batch,
            Err(error) => return self.carry_failed(&error, effects),
        };
        // A range that was not read must not be trimmed. If the read makes no progress, the trim is retried after the interval.
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

    pub(super) fn ask_for_carried(&mut self, effects: &mut Vec<HoldEffect>) {
        let Some(carry) = &self.trim.carry else { return };
        let unknown: Vec<HoldId> = carry.ids.iter().filter(|id| self.memory.resolve(id).is_none()).cloned().collect();
        let (token, saves) = (self.token(), self.store.saves);
        let Some(carry) = &mut self.trim.carry else { return };
        carry.got.clear();
        carry.got_after = saves;
        if unknown.is_empty() {
            carry.stage = CarryStage::Page;
            return;
        }
        carry.stage = CarryStage::Asking(token);
        carry.asked = unknown.clone();
        effects.push(HoldEffect::Get { token, ids: unknown });
    }

    pub(super) fn carry_got(
        &mut self,
        token: CallToken,
        found: &Result<AtOffset<Vec<Option<StoredHold>>>, TimersError>,
    ) -> bool {
        let Some(carry) = &self.trim.carry else { return false };
        if carry.stage != CarryStage::Asking(token) {
            return false;
        }
        match found {
            Ok(at) => match self.store.check_read(at.applied, carry.got_after) {
                StoreRead::Sound => {
                    let saves = self.store.saves;
                    let Some(carry) = &mut self.trim.carry else { return true };
                    carry.got = std::mem::take(&mut carry.asked).into_iter().zip(at.found.iter().cloned()).collect();
                    carry.got_after = saves;
                    carry.stage = CarryStage::Page;
                }
                StoreRead::AskAgain => {
                    if let Some(carry) = &mut self.trim.carry {
                        // `carry_on` detects that the query was too early.
                        carry.stage = CarryStage::Page;
                        carry.got_after = u64::MAX;
                    }
                }
                StoreRead::Fallen => self.store.has_fallen = true,
            },
            Err(error) => {
                self.store.failed(error);
                self.carry_is_over();
            }
        }
        true
    }

    pub(super) fn trimmed(&mut self, trimmed: Result<(), LogError>, effects: &mut Vec<HoldEffect>) {
        match trimmed {
            Ok(()) => {
                self.trim.was_reported = false;
                self.carry_is_over();
            }
            Err(error) => self.carry_failed(&error, effects),
        }
    }

    pub(super) fn next_to_carry(&mut self) -> Option<HoldId> {
        let carry = self.trim.carry.as_mut().filter(|carry| carry.stage == CarryStage::Page)?;
        carry.ids.pop_front()
    }

    pub(super) fn carry_later(&mut self, ids: Vec<HoldId>) {
        if let Some(carry) = &mut self.trim.carry {
            carry.ids.extend(ids);
        }
    }

    /// The pending hold, if only the store has it.
    pub(super) fn carried_from_store(&self, id: &HoldId) -> Option<Arc<Hold>> {
        if self.memory.resolve(id).is_some() {
            return None;
        }
        match self.trim.carry.as_ref()?.got.get(id)? {
            Some(StoredHold::Pending(hold)) => Some(Arc::clone(hold)),
            _ => None,
        }
    }

    /// The record to carry for an id, or `Some(None)` if its hold needs none. `None`: the store must be queried again.
    pub(super) fn carried_now(&self, id: &HoldId) -> Option<Option<HoldRecord>> {
        let state = match self.memory.resolve(id) {
            Some(resolved) => resolved.state,
            None => {
                let carry = self.trim.carry.as_ref()?;
                if carry.got_after != self.store.saves {
                    return None;
                }
                // The query left out ids that memory had then. Memory may have dropped such an id since.
                carry.got.get(id)?.clone()
            }
        };
        Some(match state {
            Some(StoredHold::Pending(hold)) => Some(HoldRecord::Carried(Hold::clone(&hold))),
            Some(StoredHold::Ended(end)) if can_be_held_again(id) => {
                Some(HoldRecord::CarriedEnd { id: id.clone(), end })
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::settings::HoldsSettings;
    use super::super::HoldInput;
    use super::*;
    use whimbrel_cluster::Machine as _;
    use whimbrel_cluster::owner_clock::ClockReading;

    fn at(ms: i64) -> ClockReading {
        ClockReading::exact(Timestamp::from_millis(ms))
    }

    #[test]
    fn a_log_that_cannot_be_trimmed_is_reported_once_until_a_trim_succeeds() {
        let settings = HoldsSettings::default();
        let every = settings.trim_interval.as_millis() as i64;
        let mut shard = HoldShard::new(Arc::new(settings), 1, 1, at(0));
        shard.step(at(0), HoldInput::Started { applied: 10, first: 0, end: 10 });
        let reports = |effects: &[HoldEffect]| {
            effects.iter().filter(|effect| matches!(effect, HoldEffect::NotTrimmed { .. })).count()
        };
        let unavailable = || LogError::Unavailable("the disk is unavailable".to_owned());
        let mut reported = Vec::new();
        for round in 1..=3 {
            let effects = shard.step(at(round * every), HoldInput::Tick);
            assert!(effects.iter().any(|effect| matches!(effect, HoldEffect::Cut { .. })), "{effects:?}");
            reported.push(reports(&shard.step(at(round * every), HoldInput::Cut(Err(unavailable())))));
        }
        assert_eq!(reported, [1, 0, 0]);
        shard.step(at(4 * every), HoldInput::Tick);
        shard.step(at(4 * every), HoldInput::Cut(Ok((0, 10))));
        shard.step(at(4 * every), HoldInput::Trimmed(Ok(())));
        shard.step(at(5 * every), HoldInput::Tick);
        assert_eq!(
            reports(&shard.step(at(5 * every), HoldInput::Cut(Err(unavailable())))),
            1,
            "the next failure is reported"
        );
    }
}
