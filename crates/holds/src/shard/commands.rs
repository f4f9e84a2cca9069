//! Commands and questions on their way to an answer.
//!
//! A command about a hold that memory or the store knows as pending is decided at once, under the fence. Every other answer follows
//! a fold to the end as it is when the question comes. What meets a commit under way about the same hold waits for its outcome.

use std::mem::take;
use std::sync::Arc;

use whimbrel_model::ports::{Ask, At, HoldView, HoldsError, Known, LogError, NewDue, TimersError, Told};
use whimbrel_model::{Ending, Hold, HoldId, HoldRecord, Timestamp};

use super::super::settings::DELAY_MAX;
use super::committing::{Decided, Decision};
use super::{EXPIRE_EVERY_MS, Effect, Judged, Phase, Shard, Token, after};

/// Names who asked.
pub type AskId = u64;

/// One command or question.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) ask: AskId,
    pub(super) what: Ask,
    /// When it gets an error instead of an answer.
    pub(super) expires_at: Timestamp,
    /// Everything was folded that was there when it came.
    pub(super) is_folded: bool,
    /// What the store had, and after how many saves.
    pub(super) got: Option<(u64, Option<Known>)>,
    /// The number of saves when the store was asked.
    pub(super) asked_after: u64,
    /// The version that a move was decided upon.
    pub(super) version_before: Option<u64>,
    /// It was committed with an outcome that nobody knows yet.
    pub(super) doubt: Option<Decided>,
    /// It is part of the withdrawal of a whole topic.
    pub(super) sweep: Option<AskId>,
}

/// What is to be done about a command.
pub(super) enum Verdict {
    Answer(Result<Told, HoldsError>),
    Commit(Decision),
    /// Not before everything is folded.
    FoldFirst,
}

impl Waiting {
    /// The hold that it is about.
    pub(super) fn id(&self) -> Option<&HoldId> {
        match &self.what {
            Ask::Accept(hold) => Some(&hold.id),
            Ask::Extend { id, .. } | Ask::Withdraw { id } | Ask::Fire { id } | Ask::Look { id } => Some(id),
            Ask::List(_) | Ask::Dead(_) | Ask::Count(_) | Ask::WithdrawTopic { .. } => None,
        }
    }
}

impl Shard {
    pub(super) fn asked(&mut self, ask: AskId, what: Ask, effects: &mut Vec<Effect>) {
        if self.waiting >= self.settings.commands_waiting {
            effects.push(Effect::Answer { ask, told: Err(HoldsError::Overloaded(0)) });
            return;
        }
        self.waiting += 1;
        let now = self.clock.now();
        if self.waiting == 1 {
            self.expire_at = Timestamp::from_millis(now.as_millis() + EXPIRE_EVERY_MS);
        }
        self.arrived.push(Waiting {
            ask,
            what,
            expires_at: after(now, self.settings.answer_within),
            is_folded: false,
            got: None,
            asked_after: 0,
            version_before: None,
            doubt: None,
            sweep: None,
        });
    }

    pub(super) fn answer(&mut self, waiting: Waiting, told: Result<Told, HoldsError>, effects: &mut Vec<Effect>) {
        self.waiting = self.waiting.saturating_sub(1);
        match waiting.sweep {
            Some(sweep) => self.swept_one(sweep, told, effects),
            None => effects.push(Effect::Answer { ask: waiting.ask, told }),
        }
    }

    /// Sends everyone who arrived where they must wait.
    pub(super) fn advance_commands(&mut self, effects: &mut Vec<Effect>) {
        if self.under_way.is_none() {
            self.sweep_on();
        }
        let (mut to_end, mut to_get) = (Vec::new(), Vec::new());
        for waiting in take(&mut self.arrived) {
            let Some(id) = waiting.id() else {
                if waiting.is_folded {
                    self.look(waiting, effects);
                } else {
                    to_end.push(waiting);
                }
                continue;
            };
            if self.deciding.contains_key(id) {
                self.blocked.push(waiting);
                continue;
            }
            // What the store has as pending, and memory does not know otherwise, can be decided upon at once.
            match self.state_for(&waiting) {
                Some(state) => match self.judge_command(&waiting, state.as_ref()) {
                    Verdict::Answer(told) => self.answer(waiting, told, effects),
                    Verdict::Commit(_) => self.decidable.push_back(waiting),
                    Verdict::FoldFirst => to_end.push(waiting),
                },
                None => to_get.push(waiting),
            }
        }
        if !to_end.is_empty() {
            let token = self.token();
            self.asking_end.insert(token, to_end);
            effects.push(Effect::End { token });
        }
        if !to_get.is_empty() {
            let token = self.token();
            let ids = to_get.iter().filter_map(|waiting| waiting.id().cloned()).collect();
            to_get.iter_mut().for_each(|waiting| waiting.asked_after = self.saves);
            self.getting.insert(token, to_get);
            effects.push(Effect::Get { token, ids });
        }
    }

    /// The log's end is known: whoever asked for it waits until that is folded.
    pub(super) fn end_known(&mut self, token: Token, end: Result<u64, LogError>, effects: &mut Vec<Effect>) {
        let Some(asked) = self.asking_end.remove(&token) else { return };
        match end {
            Ok(end) => {
                self.to_fold.entry(end).or_default().extend(asked);
                self.commands_folded(effects);
            }
            Err(error) => {
                for waiting in asked {
                    self.answer(waiting, Err(HoldsError::Unavailable(error.to_string())), effects);
                }
            }
        }
    }

    /// More is folded: those who waited for that much go on.
    pub(super) fn commands_folded(&mut self, _: &mut Vec<Effect>) {
        if self.phase != Phase::Ready {
            return;
        }
        while let Some(entry) = self.to_fold.first_entry()
            && *entry.key() <= self.folded
        {
            let folded = entry.remove();
            self.arrived.extend(folded.into_iter().map(|waiting| Waiting { is_folded: true, ..waiting }));
        }
    }

    /// The store answered: a page of the fold, what is to be carried, or commands.
    pub(super) fn got(
        &mut self,
        token: Token,
        found: Result<At<Vec<Option<Known>>>, TimersError>,
        effects: &mut Vec<Effect>,
    ) {
        if self.page_got(token, &found, effects) || self.carry_got(token, &found) {
            return;
        }
        let Some(asked) = self.getting.remove(&token) else { return };
        let at = match found {
            Ok(at) => at,
            Err(error) => {
                self.store_failed(&error);
                for waiting in asked {
                    self.answer(waiting, Err(HoldsError::Unavailable(error.to_string())), effects);
                }
                return;
            }
        };
        let asked_after = asked.first().map_or(self.saves, |waiting| waiting.asked_after);
        match self.judge(at.applied, asked_after) {
            Judged::Sound => {
                let saves = self.saves;
                let known = asked.into_iter().zip(at.found);
                self.decidable.extend(known.map(|(waiting, known)| Waiting { got: Some((saves, known)), ..waiting }));
                self.answer_decidable(effects);
            }
            Judged::AskAgain => self.arrived.extend(asked),
            Judged::Fallen => {
                self.has_fallen = true;
                self.arrived.extend(asked);
            }
        }
    }

    /// What is known of a command's hold by now: from memory, or what the store had if that still counts. `None`: ask again.
    pub(super) fn state_for(&self, waiting: &Waiting) -> Option<Option<Known>> {
        let id = waiting.id()?;
        if let Some(resolved) = self.resolve(id) {
            return Some(resolved.state);
        }
        waiting.got.as_ref().filter(|(saves, _)| *saves == self.saves).map(|(_, known)| known.clone())
    }

    /// Answers those who need no commit, at once, and leaves the others for the next commit.
    fn answer_decidable(&mut self, effects: &mut Vec<Effect>) {
        for waiting in take(&mut self.decidable) {
            if waiting.id().is_some_and(|id| self.deciding.contains_key(id)) {
                self.blocked.push(waiting);
                continue;
            }
            match self.state_for(&waiting) {
                None => self.arrived.push(Waiting { got: None, ..waiting }),
                Some(state) => match self.judge_command(&waiting, state.as_ref()) {
                    Verdict::Answer(told) => self.answer(waiting, told, effects),
                    Verdict::Commit(_) => self.decidable.push_back(waiting),
                    Verdict::FoldFirst => self.arrived.push(waiting),
                },
            }
        }
    }

    /// Decides against what is known of the hold.
    pub(super) fn judge_command(&self, waiting: &Waiting, state: Option<&Known>) -> Verdict {
        if let Some(decided) = &waiting.doubt
            && let Some(told) = settle_doubt(&waiting.what, decided, state)
        {
            return Verdict::Answer(told);
        }
        let answer = |told| Verdict::Answer(Ok(told));
        let hold = match (state, &waiting.what) {
            (Some(Known::Pending(hold)), _) => hold,
            (Some(Known::Ended(end)), Ask::Accept(new)) => {
                let is_same = end.topic == new.topic && end.fingerprint == new.fingerprint();
                return answer(if is_same { Told::Held { due: end.due } } else { Told::Taken });
            }
            (Some(Known::Ended(end)), _) => return answer(Told::Ended(end.clone())),
            (None, _) if !waiting.is_folded => return Verdict::FoldFirst,
            (None, Ask::Accept(new)) => return Verdict::Commit(Decision::Write(HoldRecord::Held(Hold::clone(new)))),
            (None, _) => return answer(Told::Unknown),
        };
        match &waiting.what {
            Ask::Accept(new) => {
                let is_same = hold.topic == new.topic && hold.fingerprint() == new.fingerprint();
                answer(if is_same { Told::Held { due: hold.due } } else { Told::Taken })
            }
            Ask::Extend { id, to, if_version, key } => {
                let repeated = key.as_ref().and_then(|key| hold.moves.iter().find(|earlier| earlier.key == *key));
                if let Some(earlier) = repeated {
                    return answer(Told::Rescheduled { due: earlier.due, version: earlier.version });
                }
                if if_version.is_some_and(|version| version != hold.version) {
                    let told = Told::OtherVersion { version: hold.version, due: hold.due };
                    return if waiting.is_folded { answer(told) } else { Verdict::FoldFirst };
                }
                let due = match to {
                    NewDue::By(ms) => Timestamp::from_millis(hold.due.as_millis().saturating_add(*ms)),
                    NewDue::Until(due) => *due,
                };
                if due > after(self.clock.now(), DELAY_MAX) {
                    return answer(Told::TooFar);
                }
                Verdict::Commit(Decision::Write(HoldRecord::Moved { id: id.clone(), due, key: key.clone() }))
            }
            Ask::Withdraw { id } => {
                let end = hold.ended(Ending::Withdrawn, self.clock.now());
                Verdict::Commit(Decision::Write(HoldRecord::Ended { id: id.clone(), end }))
            }
            Ask::Fire { .. } => Verdict::Commit(Decision::Fire(Arc::clone(hold))),
            Ask::Look { .. } if waiting.is_folded => answer(Told::Pending(HoldView::of(hold))),
            Ask::Look { .. } => Verdict::FoldFirst,
            Ask::List(_) | Ask::Dead(_) | Ask::Count(_) | Ask::WithdrawTopic { .. } => answer(Told::Unknown),
        }
    }

    /// Everyone who waits, but those in the commit under way.
    pub(super) fn everyone_waiting(&self) -> impl Iterator<Item = &Waiting> {
        let lists = [&self.arrived, &self.blocked].into_iter();
        let lists = lists.chain(self.asking_end.values()).chain(self.to_fold.values()).chain(self.getting.values());
        let looking = self.looking.values().map(|looking| &looking.waiting);
        lists.flatten().chain(&self.decidable).chain(looking)
    }

    /// The same, to be changed, and those of withdrawals of a whole topic.
    pub(super) fn everyone_waiting_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        let lists = [&mut self.arrived, &mut self.blocked].into_iter();
        let lists = lists.chain(self.asking_end.values_mut()).chain(self.to_fold.values_mut());
        let lists = lists.chain(self.getting.values_mut());
        let looking = self.looking.values_mut().map(|looking| &mut looking.waiting);
        let sweeps = self.sweeps.values_mut().filter_map(|sweep| sweep.waiting.as_mut());
        lists.flatten().chain(&mut self.decidable).chain(looking).chain(sweeps)
    }

    /// Everything that was found out counts no more.
    pub(super) fn commands_start_over(&mut self) {
        let mut all = take(&mut self.arrived);
        all.extend(take(&mut self.blocked));
        all.extend(take(&mut self.asking_end).into_values().flatten());
        all.extend(take(&mut self.to_fold).into_values().flatten());
        all.extend(take(&mut self.getting).into_values().flatten());
        all.extend(take(&mut self.decidable));
        all.extend(take(&mut self.looking).into_values().map(|looking| looking.waiting));
        self.arrived = all.into_iter().map(|waiting| Waiting { is_folded: false, got: None, ..waiting }).collect();
    }

    /// Answers with an error who has waited too long. What is in a commit under way waits for its outcome.
    pub(super) fn expire(&mut self, effects: &mut Vec<Effect>) {
        let now = self.clock.now();
        if self.waiting == 0 || now < self.expire_at {
            return;
        }
        self.expire_at = Timestamp::from_millis(now.as_millis() + EXPIRE_EVERY_MS);
        let mut expired = Vec::new();
        let mut sort = |list: &mut Vec<Waiting>| {
            expired.extend(list.extract_if(.., |waiting| waiting.expires_at <= now));
        };
        sort(&mut self.arrived);
        sort(&mut self.blocked);
        self.asking_end.values_mut().for_each(&mut sort);
        self.to_fold.values_mut().for_each(&mut sort);
        self.to_fold.retain(|_, list| !list.is_empty());
        self.asking_end.retain(|_, list| !list.is_empty());
        let mut decidable = Vec::from(take(&mut self.decidable));
        sort(&mut decidable);
        self.decidable = decidable.into();
        // A list that the store is asked for must keep its order; all of it came at about the same time.
        let late: Vec<Token> = self
            .getting
            .iter()
            .filter(|(_, list)| list.iter().all(|waiting| waiting.expires_at <= now))
            .map(|(token, _)| *token)
            .collect();
        expired.extend(late.into_iter().filter_map(|token| self.getting.remove(&token)).flatten());
        let late: Vec<Token> = self
            .looking
            .iter()
            .filter(|(_, looking)| looking.waiting.expires_at <= now)
            .map(|(token, _)| *token)
            .collect();
        expired.extend(late.into_iter().filter_map(|token| self.looking.remove(&token)).map(|looking| looking.waiting));
        for waiting in expired {
            let error = match waiting.doubt {
                Some(_) => HoldsError::OutcomeUnknown("the log has not told in time what became of it".to_owned()),
                None => HoldsError::Unavailable("the log or the store of holds did not answer in time".to_owned()),
            };
            self.answer(waiting, Err(error), effects);
        }
    }
}

/// What the log tells about a decision whose commit had an unknown outcome: the answer, or `None` where it was not written and is
/// decided afresh.
fn settle_doubt(what: &Ask, decided: &Decided, state: Option<&Known>) -> Option<Result<Told, HoldsError>> {
    let unknown = || Some(Err(HoldsError::OutcomeUnknown("the hold was changed again meanwhile".to_owned())));
    match (decided, state) {
        // It may have ended at the same time in another way than this command asked for.
        (Decided::Ended { at }, Some(Known::Ended(end))) if end.at == *at => Some(Ok(match (what, &end.how) {
            (Ask::Withdraw { .. }, Ending::Withdrawn) => Told::Withdrawn,
            (Ask::Fire { .. }, Ending::Fired { partition }) => {
                Told::Fired { at: end.at, partition: *partition, offset: None }
            }
            _ => Told::Ended(end.clone()),
        })),
        (Decided::Moved { version, .. }, Some(Known::Pending(hold))) if hold.version == *version => None,
        (Decided::Moved { due, .. }, Some(Known::Pending(hold))) if hold.due == *due => {
            Some(Ok(Told::Rescheduled { due: *due, version: hold.version }))
        }
        (Decided::Moved { .. }, Some(_)) => unknown(),
        // Accepting again finds itself; anything else was not written.
        _ => None,
    }
}
