//! Requests about holds, on their way to an answer.
//!
//! A command about a hold that memory or the store has as pending is decided at once, under the fence. Every other answer follows a fold
//! to the log's end as of the request's arrival. A request about a hold that the commit in progress decides about waits for the outcome.

use std::mem::take;
use std::sync::Arc;

use whimbrel_model::ports::{
    AtOffset, HoldReply, HoldRequest, HoldView, HoldsError, LogError, NewDueTime, StoredHold, TimersError,
};
use whimbrel_model::{Hold, HoldEndKind, HoldRecord, Timestamp};

use super::super::settings::DELAY_MAX;
use super::pending_commit::{Decision, DecisionMark};
use super::request_queues::{HoldRequestId, WaitingRequest};
use super::{CallToken, HoldEffect, HoldShard, ShardPhase, StoreRead, after};

/// The result of checking a command against the state of its hold.
pub(super) enum CommandVerdict {
    Answer(Result<HoldReply, HoldsError>),
    Commit(Decision),
    /// Fold the log to its end before the decision.
    FoldFirst,
}

impl HoldShard {
    pub(super) fn asked(&mut self, ask: HoldRequestId, what: HoldRequest, effects: &mut Vec<HoldEffect>) {
        if self.requests.count >= self.settings.commands_waiting {
            effects.push(HoldEffect::Answer { ask, told: Err(HoldsError::Overloaded(0)) });
            return;
        }
        let now = self.time.now();
        self.requests.push(WaitingRequest::new(ask, what, after(now, self.settings.answer_within)), now);
    }

    pub(super) fn answer(
        &mut self,
        waiting: WaitingRequest,
        told: Result<HoldReply, HoldsError>,
        effects: &mut Vec<HoldEffect>,
    ) {
        self.requests.count = self.requests.count.saturating_sub(1);
        match waiting.sweep {
            Some(sweep) => self.swept_one(sweep, told, effects),
            None => effects.push(HoldEffect::Answer { ask: waiting.ask, told }),
        }
    }

    /// Moves arrived requests to the queue for which each must wait.
    pub(super) fn advance_commands(&mut self, effects: &mut Vec<HoldEffect>) {
        if self.commits.pending.is_none() {
            self.sweep_on();
        }
        let (mut to_end, mut to_get) = (Vec::new(), Vec::new());
        for waiting in take(&mut self.requests.arrived) {
            let Some(id) = waiting.id() else {
                if waiting.is_folded {
                    self.look(waiting, effects);
                } else {
                    to_end.push(waiting);
                }
                continue;
            };
            if self.memory.deciding.contains_key(id) {
                self.requests.blocked.push(waiting);
                continue;
            }
            // A hold that is pending in the store, without a newer state in memory, can be decided at once.
            match self.state_for(&waiting) {
                Some(state) => match self.judge_command(&waiting, state.as_ref()) {
                    CommandVerdict::Answer(told) => self.answer(waiting, told, effects),
                    CommandVerdict::Commit(_) => self.requests.decidable.push_back(waiting),
                    CommandVerdict::FoldFirst => to_end.push(waiting),
                },
                None => to_get.push(waiting),
            }
        }
        if !to_end.is_empty() {
            let token = self.token();
            self.requests.asking_end.insert(token, to_end);
            effects.push(HoldEffect::End { token });
        }
        if !to_get.is_empty() {
            let token = self.token();
            let ids = to_get.iter().filter_map(|waiting| waiting.id().cloned()).collect();
            to_get.iter_mut().for_each(|waiting| waiting.asked_after = self.store.saves);
            self.requests.getting.insert(token, to_get);
            effects.push(HoldEffect::Get { token, ids });
        }
    }

    /// The log's end is known. The requests that asked for it wait until the log is folded to it.
    pub(super) fn end_known(&mut self, token: CallToken, end: Result<u64, LogError>, effects: &mut Vec<HoldEffect>) {
        let Some(asked) = self.requests.asking_end.remove(&token) else { return };
        match end {
            Ok(end) => {
                self.requests.to_fold.entry(end).or_default().extend(asked);
                self.commands_folded(effects);
            }
            Err(error) => {
                for waiting in asked {
                    self.answer(waiting, Err(HoldsError::Unavailable(error.to_string())), effects);
                }
            }
        }
    }

    /// Resumes the requests that waited for this much of the log to be folded.
    pub(super) fn commands_folded(&mut self, _: &mut Vec<HoldEffect>) {
        if self.phase != ShardPhase::Ready {
            return;
        }
        self.requests.folded(self.fold.folded);
    }

    /// Dispatches the store's reply to a page of the fold, the carry, or requests.
    pub(super) fn got(
        &mut self,
        token: CallToken,
        found: Result<AtOffset<Vec<Option<StoredHold>>>, TimersError>,
        effects: &mut Vec<HoldEffect>,
    ) {
        if self.page_got(token, &found, effects) || self.carry_got(token, &found) {
            return;
        }
        let Some(asked) = self.requests.getting.remove(&token) else { return };
        let at = match found {
            Ok(at) => at,
            Err(error) => {
                self.store.failed(&error);
                for waiting in asked {
                    self.answer(waiting, Err(HoldsError::Unavailable(error.to_string())), effects);
                }
                return;
            }
        };
        let asked_after = asked.first().map_or(self.store.saves, |waiting| waiting.asked_after);
        match self.store.check_read(at.applied, asked_after) {
            StoreRead::Sound => {
                let saves = self.store.saves;
                let known = asked.into_iter().zip(at.found);
                self.requests
                    .decidable
                    .extend(known.map(|(waiting, known)| WaitingRequest { got: Some((saves, known)), ..waiting }));
                self.answer_decidable(effects);
            }
            StoreRead::AskAgain => self.requests.arrived.extend(asked),
            StoreRead::Fallen => {
                self.store.has_fallen = true;
                self.requests.arrived.extend(asked);
            }
        }
    }

    /// The current state of a request's hold: from memory, or from the store if that reply is still valid. `None`: query the store again.
    pub(super) fn state_for(&self, waiting: &WaitingRequest) -> Option<Option<StoredHold>> {
        let id = waiting.id()?;
        if let Some(resolved) = self.memory.resolve(id) {
            return Some(resolved.state);
        }
        waiting.got.as_ref().filter(|(saves, _)| *saves == self.store.saves).map(|(_, known)| known.clone())
    }

    /// Answers the requests that need no commit, and leaves the others for the next commit.
    fn answer_decidable(&mut self, effects: &mut Vec<HoldEffect>) {
        for waiting in take(&mut self.requests.decidable) {
            if waiting.id().is_some_and(|id| self.memory.deciding.contains_key(id)) {
                self.requests.blocked.push(waiting);
                continue;
            }
            match self.state_for(&waiting) {
                None => self.requests.arrived.push(WaitingRequest { got: None, ..waiting }),
                Some(state) => match self.judge_command(&waiting, state.as_ref()) {
                    CommandVerdict::Answer(told) => self.answer(waiting, told, effects),
                    CommandVerdict::Commit(_) => self.requests.decidable.push_back(waiting),
                    CommandVerdict::FoldFirst => self.requests.arrived.push(waiting),
                },
            }
        }
    }

    /// Decides about a command by the state of its hold.
    pub(super) fn judge_command(&self, waiting: &WaitingRequest, state: Option<&StoredHold>) -> CommandVerdict {
        if let Some(decided) = &waiting.doubt
            && let Some(told) = settle_doubt(&waiting.what, decided, state)
        {
            return CommandVerdict::Answer(told);
        }
        let answer = |told| CommandVerdict::Answer(Ok(told));
        let hold = match (state, &waiting.what) {
            (Some(StoredHold::Pending(hold)), _) => hold,
            (Some(StoredHold::Ended(end)), HoldRequest::Accept(new)) => {
                let is_same = end.topic == new.topic && end.fingerprint == new.fingerprint();
                return answer(if is_same { HoldReply::Held { due: end.due } } else { HoldReply::Taken });
            }
            (Some(StoredHold::Ended(end)), _) => return answer(HoldReply::Ended(end.clone())),
            (None, _) if !waiting.is_folded => return CommandVerdict::FoldFirst,
            (None, HoldRequest::Accept(new)) => {
                return CommandVerdict::Commit(Decision::Write(HoldRecord::Held(Hold::clone(new))));
            }
            (None, _) => return answer(HoldReply::Unknown),
        };
        match &waiting.what {
            HoldRequest::Accept(new) => {
                let is_same = hold.topic == new.topic && hold.fingerprint() == new.fingerprint();
                answer(if is_same { HoldReply::Held { due: hold.due } } else { HoldReply::Taken })
            }
            HoldRequest::Extend { id, to, if_version, key } => {
                let repeated = key.as_ref().and_then(|key| hold.moves.iter().find(|earlier| earlier.key == *key));
                if let Some(earlier) = repeated {
                    return answer(HoldReply::Rescheduled { due: earlier.due, version: earlier.version });
                }
                if if_version.is_some_and(|version| version != hold.version) {
                    let told = HoldReply::OtherVersion { version: hold.version, due: hold.due };
                    return if waiting.is_folded { answer(told) } else { CommandVerdict::FoldFirst };
                }
                let due = match to {
                    NewDueTime::By(ms) => Timestamp::from_millis(hold.due.as_millis().saturating_add(*ms)),
                    NewDueTime::Until(due) => *due,
                };
                if due > after(self.time.now(), DELAY_MAX) {
                    return answer(HoldReply::TooFar);
                }
                CommandVerdict::Commit(Decision::Write(HoldRecord::Moved { id: id.clone(), due, key: key.clone() }))
            }
            HoldRequest::Withdraw { id } => {
                let end = hold.ended(HoldEndKind::Withdrawn, self.time.now());
                CommandVerdict::Commit(Decision::Write(HoldRecord::Ended { id: id.clone(), end }))
            }
            HoldRequest::Fire { .. } => CommandVerdict::Commit(Decision::Fire(Arc::clone(hold))),
            HoldRequest::Look { .. } if waiting.is_folded => answer(HoldReply::Pending(HoldView::of(hold))),
            HoldRequest::Look { .. } => CommandVerdict::FoldFirst,
            HoldRequest::List(_) | HoldRequest::Dead(_) | HoldRequest::Count(_) | HoldRequest::WithdrawTopic { .. } => {
                answer(HoldReply::Unknown)
            }
        }
    }

    /// Answers requests that have waited too long with an error. Requests in the commit in progress wait for its outcome.
    pub(super) fn expire(&mut self, effects: &mut Vec<HoldEffect>) {
        for waiting in self.requests.take_expired(self.time.now()) {
            let error = match waiting.doubt {
                Some(_) => HoldsError::OutcomeUnknown("the log did not show the outcome in time".to_owned()),
                None => HoldsError::Unavailable("the log or the store of holds did not answer in time".to_owned()),
            };
            self.answer(waiting, Err(error), effects);
        }
    }
}

/// The answer that the log gives about a decision whose commit had an unknown outcome. `None`: the decision was not written, and the
/// request is decided again.
fn settle_doubt(
    what: &HoldRequest,
    decided: &DecisionMark,
    state: Option<&StoredHold>,
) -> Option<Result<HoldReply, HoldsError>> {
    let unknown = || Some(Err(HoldsError::OutcomeUnknown("the hold was changed again after the commit".to_owned())));
    match (decided, state) {
        // Another decision may have ended the hold at the same time, in another way than this command.
        (DecisionMark::Ended { at }, Some(StoredHold::Ended(end))) if end.at == *at => {
            Some(Ok(match (what, &end.how) {
                (HoldRequest::Withdraw { .. }, HoldEndKind::Withdrawn) => HoldReply::Withdrawn,
                (HoldRequest::Fire { .. }, HoldEndKind::Fired { partition }) => {
                    HoldReply::Fired { at: end.at, partition: *partition, offset: None }
                }
                _ => HoldReply::Ended(end.clone()),
            }))
        }
        (DecisionMark::Moved { version, .. }, Some(StoredHold::Pending(hold))) if hold.version == *version => None,
        (DecisionMark::Moved { due, .. }, Some(StoredHold::Pending(hold))) if hold.due == *due => {
            Some(Ok(HoldReply::Rescheduled { due: *due, version: hold.version }))
        }
        (DecisionMark::Moved { .. }, Some(_)) => unknown(),
        // A repeated `Accept` finds its own hold. Any other decision was not written.
        _ => None,
    }
}
