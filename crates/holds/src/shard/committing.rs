//! The commit under way: what it decides, what became of it.
//!
//! Commands come first, then what is carried, then what is due, as far as one commit takes them: commands take half of it at
//! most, so that neither can starve the other.

use std::mem::take;
use std::sync::Arc;

use whimbrel_model::ports::{Ask, HoldsError, Known, LogError, Told};
use whimbrel_model::{Ending, Hold, HoldId, HoldRecord, Timestamp};

use super::super::settings::RETRY_AFTER;
use super::commands::{AskId, Verdict, Waiting};
use super::{Effect, Phase, Shard, after};

/// One decision: it is true when the commit is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The message in its topic, and the record that it fired.
    Fire(Arc<Hold>),
    /// A record of the shard.
    Write(HoldRecord),
}

impl Decision {
    pub fn id(&self) -> &HoldId {
        match self {
            Self::Fire(hold) => &hold.id,
            Self::Write(record) => record.id(),
        }
    }

    fn bytes(&self) -> usize {
        const RECORD: usize = 200;
        match self {
            Self::Fire(hold) => hold.size() + RECORD,
            Self::Write(HoldRecord::Held(hold) | HoldRecord::Carried(hold)) => hold.size() + RECORD,
            Self::Write(_) => RECORD,
        }
    }
}

/// Where a decision was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Of its record in the shard.
    pub offset: u64,
    /// Of its message in the topic.
    pub message: Option<(u32, u64)>,
}

/// What became of a commit.
#[derive(Debug, Clone)]
pub enum Committed {
    /// Where each decision was written; `None` for a message whose topic takes nothing at this moment, which was left out.
    Done(Vec<Option<Written>>),
    Fenced,
    /// Those decisions, in ascending order, can never be written. Nothing was.
    Refused {
        indexes: Vec<usize>,
        why: String,
    },
    /// Nothing was written; later, perhaps.
    NotNow(LogError),
    Unknown(String),
}

/// What a command's decision was, to recognise it in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decided {
    Held,
    /// From that version to that time.
    Moved {
        version: u64,
        due: Timestamp,
    },
    Ended {
        at: Timestamp,
    },
}

#[derive(Debug)]
pub(super) struct UnderWay {
    at: Timestamp,
    /// Each with the command that asked for it.
    decisions: Vec<(Decision, Option<Waiting>)>,
    /// Once it is written: the offset behind its last record of the shard.
    end: Option<u64>,
}

impl UnderWay {
    /// Whether its outcome is still open.
    pub(super) fn is_open(&self) -> bool {
        self.end.is_none()
    }
}

/// What gathers for one commit.
struct Gathering {
    decisions: Vec<(Decision, Option<Waiting>)>,
    bytes: usize,
}

impl Gathering {
    fn is_within(&self, holds: usize, bytes: usize) -> bool {
        self.decisions.is_empty() || self.decisions.len() < holds && self.bytes < bytes
    }
}

impl Shard {
    /// Begins a commit, where none is under way and there is something to decide.
    pub(super) fn decide(&mut self, effects: &mut Vec<Effect>) {
        let now = self.clock.now();
        if self.under_way.is_some()
            || self.has_fallen
            || self.phase != Phase::Ready
            || self.commit_again_at.is_some_and(|at| now < at)
        {
            return;
        }
        self.commit_again_at = None;
        let mut gathering = Gathering { decisions: Vec::new(), bytes: 0 };
        for (hold, reason) in take(&mut self.doomed) {
            let end = hold.ended(Ending::Dead { reason }, now);
            let record = HoldRecord::Ended { id: hold.id.clone(), end };
            self.gather(&mut gathering, Decision::Write(record), None);
        }
        self.gather_commands(&mut gathering, effects);
        self.gather_carried(&mut gathering, effects);
        let (holds_max, bytes_max) = (self.settings.commit_holds, self.settings.commit_bytes);
        self.retry_aside(now);
        let mut decided_upon = Vec::new();
        while gathering.is_within(holds_max, bytes_max)
            && let Some(hold) = self.window.pop_due(now)
        {
            if self.deciding.contains_key(&hold.id) {
                decided_upon.push(hold);
            } else {
                self.gather(&mut gathering, Decision::Fire(hold), None);
            }
        }
        // Those that a command decides upon are due again, if they are still pending when that is over.
        decided_upon.iter().rev().for_each(|hold| self.window.put_back(hold));
        if gathering.decisions.is_empty() {
            return;
        }
        let decisions = gathering.decisions.iter().map(|(decision, _)| decision.clone()).collect();
        effects.push(Effect::Commit { decisions, at: now });
        self.under_way = Some(UnderWay { at: now, decisions: gathering.decisions, end: None });
    }

    fn gather(&mut self, gathering: &mut Gathering, decision: Decision, waiting: Option<Waiting>) {
        let id = decision.id().clone();
        // What only the store knows is kept until the decision is folded, so that it need not be asked again.
        let only_stored = match waiting.as_ref().and_then(|waiting| waiting.got.as_ref()) {
            Some((_, Some(Known::Pending(hold)))) if self.resolve(&id).is_none() => Some(Arc::clone(hold)),
            _ => None,
        };
        self.deciding.insert(id, only_stored);
        gathering.bytes += decision.bytes();
        gathering.decisions.push((decision, waiting));
    }

    fn gather_commands(&mut self, gathering: &mut Gathering, effects: &mut Vec<Effect>) {
        let (holds_max, bytes_max) = (self.settings.commit_holds / 2, self.settings.commit_bytes / 2);
        while gathering.is_within(holds_max, bytes_max)
            && let Some(waiting) = self.decidable.pop_front()
        {
            if waiting.id().is_some_and(|id| self.deciding.contains_key(id)) {
                self.blocked.push(waiting);
                continue;
            }
            match self.state_for(&waiting) {
                None => self.arrived.push(Waiting { got: None, ..waiting }),
                Some(state) => match self.judge_command(&waiting, state.as_ref()) {
                    Verdict::Answer(told) => self.answer(waiting, told, effects),
                    Verdict::Commit(decision) => {
                        let version_before = match &state {
                            Some(Known::Pending(hold)) => Some(hold.version),
                            _ => None,
                        };
                        self.gather(gathering, decision, Some(Waiting { version_before, ..waiting }));
                    }
                    Verdict::FoldFirst => self.arrived.push(waiting),
                },
            }
        }
        // Whoever must ask again does so now, not when something else happens.
        if !self.arrived.is_empty() {
            self.advance_commands(effects);
        }
    }

    /// What must be carried forward next, as it is now.
    fn gather_carried(&mut self, gathering: &mut Gathering, effects: &mut Vec<Effect>) {
        let (holds_max, bytes_max) = (self.settings.commit_holds / 2, self.settings.commit_bytes / 2);
        let (mut later, mut must_ask) = (Vec::new(), false);
        while gathering.is_within(holds_max, bytes_max)
            && let Some(id) = self.next_to_carry()
        {
            if self.deciding.contains_key(&id) {
                later.push(id);
                continue;
            }
            match self.carried_now(&id) {
                Some(Some(record)) => {
                    let stored = self.carried_from_store(&id);
                    self.gather(gathering, Decision::Write(record), None);
                    if stored.is_some() {
                        self.deciding.insert(id, stored);
                    }
                }
                Some(None) => {}
                None => {
                    later.push(id);
                    must_ask = true;
                    break;
                }
            }
        }
        self.carry_later(later);
        if must_ask {
            self.ask_for_carried(effects);
        }
    }

    pub(super) fn committed(&mut self, outcome: Committed, effects: &mut Vec<Effect>) {
        let Some(mut under_way) = self.under_way.take() else { return };
        match outcome {
            Committed::Done(written) => {
                let end = written.iter().flatten().map(|each| each.offset + 1).max().unwrap_or(0);
                let at = under_way.at;
                for ((decision, waiting), written) in under_way.decisions.iter_mut().zip(written) {
                    match (waiting.take(), written) {
                        (Some(waiting), Some(written)) => {
                            let told = told_of(&waiting.what, decision, written, at);
                            self.answer(waiting, Ok(told), effects);
                        }
                        (None, Some(_)) => {}
                        (waiting, None) => self.postpone(decision, waiting, effects),
                    }
                }
                under_way.end = Some(end);
                self.under_way = Some(under_way);
                self.commit_is_folded();
            }
            Committed::Fenced => {
                self.take_back(under_way, false);
                self.open_anew(effects);
            }
            Committed::Unknown(_) => {
                self.take_back(under_way, true);
                self.open_anew(effects);
            }
            Committed::Refused { indexes, why } => {
                let (mut kept, mut is_any_refused) = (Vec::new(), false);
                for (index, (decision, waiting)) in take(&mut under_way.decisions).into_iter().enumerate() {
                    // What the shard itself has to say (that a hold is dead, what is carried) is never given up: it is said again.
                    let is_own = matches!(decision, Decision::Write(_)) && waiting.is_none();
                    if is_own || indexes.binary_search(&index).is_err() {
                        kept.push((decision, waiting));
                    } else {
                        is_any_refused = true;
                        self.refused(decision, waiting, &why, effects);
                    }
                }
                if !is_any_refused {
                    self.commit_again_at = Some(after(self.clock.now(), RETRY_AFTER));
                }
                self.take_back(UnderWay { decisions: kept, ..under_way }, false);
            }
            Committed::NotNow(error) => {
                self.commit_again_at = Some(after(self.clock.now(), RETRY_AFTER));
                for (_, waiting) in &mut under_way.decisions {
                    if let Some(waiting) = waiting.take() {
                        self.answer(waiting, Err(HoldsError::Unavailable(error.to_string())), effects);
                    }
                }
                self.take_back(under_way, false);
            }
        }
    }

    /// A decision that can never be written: its hold is dead, alone.
    fn refused(&mut self, decision: Decision, waiting: Option<Waiting>, why: &str, effects: &mut Vec<Effect>) {
        self.deciding.remove(decision.id());
        if let Decision::Fire(hold) = decision {
            let mut end = why.len().min(whimbrel_model::hold::REASON_MAX_BYTES);
            while !why.is_char_boundary(end) {
                end -= 1;
            }
            self.doomed.push((hold, why[..end].into()));
            // Whoever asked to fire it hears that it is dead, once it is.
            self.arrived.extend(waiting);
        } else if let Some(waiting) = waiting {
            self.answer(waiting, Err(HoldsError::Unavailable(why.to_owned())), effects);
        }
    }

    /// Nothing of the commit is known to be written: what was due is due again, and who asked is asked again.
    fn take_back(&mut self, under_way: UnderWay, in_doubt: bool) {
        // The last one first, so that what is put back stands in its order.
        for (decision, waiting) in under_way.decisions.into_iter().rev() {
            self.deciding.remove(decision.id());
            match waiting {
                Some(mut waiting) => {
                    if in_doubt {
                        waiting.doubt = Some(decided(&decision, &waiting, under_way.at));
                    }
                    self.arrived.push(waiting);
                }
                None => match decision {
                    Decision::Fire(hold) => self.window.put_back(&hold),
                    Decision::Write(HoldRecord::Carried(Hold { id, .. }) | HoldRecord::CarriedEnd { id, .. }) => {
                        self.carry_later(vec![id]);
                    }
                    Decision::Write(HoldRecord::Ended { id, end }) => {
                        if let (Some(hold), Ending::Dead { reason }) = (self.window.get(&id), end.how) {
                            self.doomed.push((Arc::clone(hold), reason));
                        }
                    }
                    Decision::Write(_) => {}
                },
            }
        }
        self.arrived.extend(take(&mut self.blocked));
    }

    /// Whether a commit is under way whose outcome nobody knows yet.
    pub fn is_committing(&self) -> bool {
        self.under_way.as_ref().is_some_and(UnderWay::is_open)
    }

    /// Whose decision may have been committed, without anybody knowing.
    pub fn asks_in_doubt(&self) -> Vec<AskId> {
        let decisions = self.under_way.iter().filter(|under_way| under_way.is_open());
        let in_commit =
            decisions.flat_map(|under_way| &under_way.decisions).filter_map(|(_, waiting)| waiting.as_ref());
        let doubted = self.everyone_waiting().filter(|waiting| waiting.doubt.is_some());
        in_commit.chain(doubted).map(|waiting| waiting.sweep.unwrap_or(waiting.ask)).collect()
    }

    /// Once the commit's own records are folded, it is over, and who waited for it goes on.
    pub(super) fn commit_is_folded(&mut self) {
        if self.under_way.as_ref().and_then(|under_way| under_way.end).is_some_and(|end| end <= self.folded) {
            self.under_way = None;
            self.deciding.clear();
            self.arrived.extend(take(&mut self.blocked));
        }
    }
}

fn told_of(what: &Ask, decision: &Decision, written: Written, at: Timestamp) -> Told {
    match decision {
        Decision::Fire(_) => {
            let (partition, offset) = written.message.unzip();
            Told::Fired { at, partition: partition.unwrap_or(0), offset }
        }
        Decision::Write(HoldRecord::Moved { due, .. }) => Told::Rescheduled { due: *due, version: written.offset },
        Decision::Write(HoldRecord::Held(hold)) => Told::Held { due: hold.due },
        Decision::Write(_) => {
            debug_assert!(matches!(what, Ask::Withdraw { .. }), "{what:?}");
            Told::Withdrawn
        }
    }
}

fn decided(decision: &Decision, waiting: &Waiting, at: Timestamp) -> Decided {
    match decision {
        Decision::Write(HoldRecord::Moved { due, .. }) => {
            let version = waiting.version_before.unwrap_or(u64::MAX);
            Decided::Moved { version, due: *due }
        }
        Decision::Write(HoldRecord::Held(_)) => Decided::Held,
        _ => Decided::Ended { at },
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::StoredRecord;
    use whimbrel_model::ports::{At, ReadBatch};

    use super::super::super::settings::HoldsSettings;
    use super::super::super::testing::hold;
    use super::super::Input;
    use super::*;
    use whimbrel_cluster::owner_clock::Reading;

    fn at(ms: i64) -> Reading {
        let wall = Timestamp::from_millis(ms);
        Reading { wall, expiry: wall, steady_ms: ms as u64 }
    }

    fn decisions(effects: &[Effect]) -> Option<&[Decision]> {
        effects.iter().find_map(|effect| match effect {
            Effect::Commit { decisions, .. } => Some(&decisions[..]),
            _ => None,
        })
    }

    /// A shard with one hold that is due, on its way into its topic.
    fn firing() -> Shard {
        let mut shard = Shard::new(Arc::new(HoldsSettings::default()), 1, 1, at(1_000));
        let started = shard.step(at(1_000), Input::Started { applied: 0, first: 0, end: 0 });
        let token = started.iter().find_map(|effect| match effect {
            Effect::Due { token, .. } => Some(*token),
            _ => None,
        });
        let record = HoldRecord::Held(Hold { fresh: true, ..Hold::clone(&hold("a", 900)) });
        let record = record.to_record(Timestamp::from_millis(900));
        let records = vec![StoredRecord { offset: 0, record }];
        shard.step(at(1_000), Input::Read(Ok(ReadBatch { records, next: 1 })));
        let found = Ok(At { applied: 0, found: Vec::new() });
        let effects = shard.step(at(1_000), Input::Due { token: token.expect("the window is filled"), found });
        assert!(matches!(decisions(&effects), Some([Decision::Fire(_)])), "{effects:?}");
        shard
    }

    #[test]
    fn that_a_hold_is_dead_is_said_again_where_the_log_did_not_take_it() {
        let is_death = |effects: &[Effect]| matches!(decisions(effects), Some([Decision::Write(HoldRecord::Ended { end, .. })]) if matches!(end.how, Ending::Dead { .. }));
        let refused = || Input::Committed(Committed::Refused { indexes: vec![0], why: "never".to_owned() });
        let mut shard = firing();
        assert!(is_death(&shard.step(at(1_001), refused())));
        assert!(decisions(&shard.step(at(1_002), refused())).is_none(), "not at once");
        let wake_at = shard.wake_at().expect("it is tried again");
        assert!(is_death(&shard.step(at(wake_at.as_millis()), Input::Tick)));
    }
}
