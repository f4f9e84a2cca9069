//! The commit in progress: its decisions and its outcome.
//!
//! A commit takes commands first, then carried records, then due holds, up to its bounds. Commands take at most half of it, so that
//! neither commands nor due holds starve.

use std::mem::take;
use std::sync::Arc;

use whimbrel_model::ports::{HoldReply, HoldRequest, HoldsError, LogError, StoredHold};
use whimbrel_model::{Hold, HoldEndKind, HoldId, HoldRecord, Timestamp};

use super::super::settings::RETRY_AFTER;
use super::commands::CommandVerdict;
use super::request_queues::{HoldRequestId, WaitingRequest};
use super::{HoldEffect, HoldShard, ShardPhase, after};

/// One decision. It takes effect when its commit succeeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The message in its topic, and the `fired` record in the shard.
    Fire(Arc<Hold>),
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

/// The offsets of a committed decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenDecision {
    /// The offset of its record in the shard.
    pub offset: u64,
    /// The partition and offset of its message in the topic.
    pub message: Option<(u32, u64)>,
}

/// The outcome of a commit.
#[derive(Debug, Clone)]
pub enum CommitResult {
    /// The offsets of each decision. `None` for a message that was left out because its topic cannot accept messages now.
    Done(Vec<Option<WrittenDecision>>),
    Fenced,
    /// The decisions at `indexes` (ascending) can never be written. Nothing was written.
    Refused {
        indexes: Vec<usize>,
        why: String,
    },
    /// Nothing was written. A retry may succeed.
    NotNow(LogError),
    Unknown(String),
}

/// The decision of a command, to be recognised in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DecisionMark {
    Held,
    /// A move of the hold of this version to this time.
    Moved {
        version: u64,
        due: Timestamp,
    },
    Ended {
        at: Timestamp,
    },
}

#[derive(Debug)]
pub(super) struct PendingCommit {
    at: Timestamp,
    /// Each decision with the request that caused it.
    decisions: Vec<(Decision, Option<WaitingRequest>)>,
    /// After the commit: the offset after its last record in the shard.
    end: Option<u64>,
}

/// The commit in progress, and what the next one waits for or must contain.
#[derive(Debug, Default)]
pub(super) struct Commits {
    pub(super) pending: Option<PendingCommit>,
    pub(super) again_at: Option<Timestamp>,
    /// Holds that can never be written, with the reason.
    doomed: Vec<(Arc<Hold>, Box<str>)>,
}

impl Commits {
    /// Whether a commit has no outcome yet.
    pub(super) fn is_open(&self) -> bool {
        self.pending.as_ref().is_some_and(PendingCommit::is_open)
    }
}

impl PendingCommit {
    fn is_open(&self) -> bool {
        self.end.is_none()
    }
}

struct CommitBatch {
    decisions: Vec<(Decision, Option<WaitingRequest>)>,
    bytes: usize,
}

impl CommitBatch {
    fn is_within(&self, holds: usize, bytes: usize) -> bool {
        self.decisions.is_empty() || self.decisions.len() < holds && self.bytes < bytes
    }
}

impl HoldShard {
    /// Begins a commit if none is in progress and there is a decision to make.
    pub(super) fn decide(&mut self, effects: &mut Vec<HoldEffect>) {
        let now = self.time.now();
        if self.commits.pending.is_some()
            || self.store.has_fallen
            || self.phase != ShardPhase::Ready
            || self.commits.again_at.is_some_and(|at| now < at)
        {
            return;
        }
        self.commits.again_at = None;
        let mut batch = CommitBatch { decisions: Vec::new(), bytes: 0 };
        for (hold, reason) in take(&mut self.commits.doomed) {
            let end = hold.ended(HoldEndKind::Dead { reason }, now);
            let record = HoldRecord::Ended { id: hold.id.clone(), end };
            self.gather(&mut batch, Decision::Write(record), None);
        }
        self.gather_commands(&mut batch, effects);
        self.gather_carried(&mut batch, effects);
        let (holds_max, bytes_max) = (self.settings.commit_holds, self.settings.commit_bytes);
        self.retry_aside(now);
        let mut decided_upon = Vec::new();
        while batch.is_within(holds_max, bytes_max)
            && let Some(hold) = self.memory.window.pop_due(now)
        {
            if self.memory.deciding.contains_key(&hold.id) {
                decided_upon.push(hold);
            } else {
                self.gather(&mut batch, Decision::Fire(hold), None);
            }
        }
        // Holds that a command decides about are due again if they are still pending after the commit.
        decided_upon.iter().rev().for_each(|hold| self.memory.window.put_back(hold));
        if batch.decisions.is_empty() {
            return;
        }
        let decisions = batch.decisions.iter().map(|(decision, _)| decision.clone()).collect();
        effects.push(HoldEffect::Commit { decisions, at: now });
        self.commits.pending = Some(PendingCommit { at: now, decisions: batch.decisions, end: None });
    }

    fn gather(&mut self, batch: &mut CommitBatch, decision: Decision, waiting: Option<WaitingRequest>) {
        let id = decision.id().clone();
        // The state that only the store has is kept until the decision is folded, so that the store need not be queried again.
        let only_stored = match waiting.as_ref().and_then(|waiting| waiting.got.as_ref()) {
            Some((_, Some(StoredHold::Pending(hold)))) if self.memory.resolve(&id).is_none() => Some(Arc::clone(hold)),
            _ => None,
        };
        self.memory.deciding.insert(id, only_stored);
        batch.bytes += decision.bytes();
        batch.decisions.push((decision, waiting));
    }

    fn gather_commands(&mut self, batch: &mut CommitBatch, effects: &mut Vec<HoldEffect>) {
        let (holds_max, bytes_max) = (self.settings.commit_holds / 2, self.settings.commit_bytes / 2);
        while batch.is_within(holds_max, bytes_max)
            && let Some(waiting) = self.requests.decidable.pop_front()
        {
            if waiting.id().is_some_and(|id| self.memory.deciding.contains_key(id)) {
                self.requests.blocked.push(waiting);
                continue;
            }
            match self.state_for(&waiting) {
                None => self.requests.arrived.push(WaitingRequest { got: None, ..waiting }),
                Some(state) => match self.judge_command(&waiting, state.as_ref()) {
                    CommandVerdict::Answer(told) => self.answer(waiting, told, effects),
                    CommandVerdict::Commit(decision) => {
                        let version_before = match &state {
                            Some(StoredHold::Pending(hold)) => Some(hold.version),
                            _ => None,
                        };
                        self.gather(batch, decision, Some(WaitingRequest { version_before, ..waiting }));
                    }
                    CommandVerdict::FoldFirst => self.requests.arrived.push(waiting),
                },
            }
        }
        // Requests that must query again do so now, not after the next input.
        if !self.requests.arrived.is_empty() {
            self.advance_commands(effects);
        }
    }

    /// Gathers the records that must be carried next, in their current state.
    fn gather_carried(&mut self, batch: &mut CommitBatch, effects: &mut Vec<HoldEffect>) {
        let (holds_max, bytes_max) = (self.settings.commit_holds / 2, self.settings.commit_bytes / 2);
        let (mut later, mut must_ask) = (Vec::new(), false);
        while batch.is_within(holds_max, bytes_max)
            && let Some(id) = self.next_to_carry()
        {
            if self.memory.deciding.contains_key(&id) {
                later.push(id);
                continue;
            }
            match self.carried_now(&id) {
                Some(Some(record)) => {
                    let stored = self.carried_from_store(&id);
                    self.gather(batch, Decision::Write(record), None);
                    if stored.is_some() {
                        self.memory.deciding.insert(id, stored);
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

    pub(super) fn committed(&mut self, outcome: CommitResult, effects: &mut Vec<HoldEffect>) {
        let Some(mut pending_commit) = self.commits.pending.take() else { return };
        match outcome {
            CommitResult::Done(written) => {
                let end = written.iter().flatten().map(|each| each.offset + 1).max().unwrap_or(0);
                let at = pending_commit.at;
                for ((decision, waiting), written) in pending_commit.decisions.iter_mut().zip(written) {
                    match (waiting.take(), written) {
                        (Some(waiting), Some(written)) => {
                            let told = told_of(&waiting.what, decision, written, at);
                            self.answer(waiting, Ok(told), effects);
                        }
                        (None, Some(_)) => {}
                        (waiting, None) => self.postpone(decision, waiting, effects),
                    }
                }
                pending_commit.end = Some(end);
                self.commits.pending = Some(pending_commit);
                self.commit_is_folded();
            }
            CommitResult::Fenced => {
                self.take_back(pending_commit, false);
                self.open_fence(effects);
            }
            CommitResult::Unknown(_) => {
                self.take_back(pending_commit, true);
                self.open_fence(effects);
            }
            CommitResult::Refused { indexes, why } => {
                let (mut kept, mut is_any_refused) = (Vec::new(), false);
                for (index, (decision, waiting)) in take(&mut pending_commit.decisions).into_iter().enumerate() {
                    // The shard's own records (dead holds, carried records) are never given up. They are written again later.
                    let is_own = matches!(decision, Decision::Write(_)) && waiting.is_none();
                    if is_own || indexes.binary_search(&index).is_err() {
                        kept.push((decision, waiting));
                    } else {
                        is_any_refused = true;
                        self.refused(decision, waiting, &why, effects);
                    }
                }
                if !is_any_refused {
                    self.commits.again_at = Some(after(self.time.now(), RETRY_AFTER));
                }
                self.take_back(PendingCommit { decisions: kept, ..pending_commit }, false);
            }
            CommitResult::NotNow(error) => {
                self.commits.again_at = Some(after(self.time.now(), RETRY_AFTER));
                for (_, waiting) in &mut pending_commit.decisions {
                    if let Some(waiting) = waiting.take() {
                        self.answer(waiting, Err(HoldsError::Unavailable(error.to_string())), effects);
                    }
                }
                self.take_back(pending_commit, false);
            }
        }
    }

    /// Handles a decision that can never be written. A fired hold becomes dead; other holds are not affected.
    fn refused(
        &mut self,
        decision: Decision,
        waiting: Option<WaitingRequest>,
        why: &str,
        effects: &mut Vec<HoldEffect>,
    ) {
        self.memory.deciding.remove(decision.id());
        if let Decision::Fire(hold) = decision {
            let mut end = why.len().min(whimbrel_model::hold::REASON_MAX_BYTES);
            while !why.is_char_boundary(end) {
                end -= 1;
            }
            self.commits.doomed.push((hold, why[..end].into()));
            // The request to fire it gets the answer that the hold is dead, after that is committed.
            self.requests.arrived.extend(waiting);
        } else if let Some(waiting) = waiting {
            self.answer(waiting, Err(HoldsError::Unavailable(why.to_owned())), effects);
        }
    }

    /// Reverts the decisions of a commit that was not written, or may not have been. Due holds are due again, and requests are decided
    /// again.
    fn take_back(&mut self, pending_commit: PendingCommit, in_doubt: bool) {
        // In reverse, so that holds that are put back keep their order.
        for (decision, waiting) in pending_commit.decisions.into_iter().rev() {
            self.memory.deciding.remove(decision.id());
            match waiting {
                Some(mut waiting) => {
                    if in_doubt {
                        waiting.doubt = Some(decided(&decision, &waiting, pending_commit.at));
                    }
                    self.requests.arrived.push(waiting);
                }
                None => match decision {
                    Decision::Fire(hold) => self.memory.window.put_back(&hold),
                    Decision::Write(HoldRecord::Carried(Hold { id, .. }) | HoldRecord::CarriedEnd { id, .. }) => {
                        self.carry_later(vec![id]);
                    }
                    Decision::Write(HoldRecord::Ended { id, end }) => {
                        if let (Some(hold), HoldEndKind::Dead { reason }) = (self.memory.window.get(&id), end.how) {
                            self.commits.doomed.push((Arc::clone(hold), reason));
                        }
                    }
                    Decision::Write(_) => {}
                },
            }
        }
        self.requests.arrived.extend(take(&mut self.requests.blocked));
    }

    pub fn is_committing(&self) -> bool {
        self.commits.is_open()
    }

    /// The requests whose decision may have been committed without a known outcome.
    pub fn asks_in_doubt(&self) -> Vec<HoldRequestId> {
        let decisions = self.commits.pending.iter().filter(|pending_commit| pending_commit.is_open());
        let in_commit =
            decisions.flat_map(|pending_commit| &pending_commit.decisions).filter_map(|(_, waiting)| waiting.as_ref());
        let doubted = self.requests.all().filter(|waiting| waiting.doubt.is_some());
        in_commit.chain(doubted).map(|waiting| waiting.sweep.unwrap_or(waiting.ask)).collect()
    }

    /// Ends the commit once its own records are folded, and resumes the requests that waited for it.
    pub(super) fn commit_is_folded(&mut self) {
        if self
            .commits
            .pending
            .as_ref()
            .and_then(|pending_commit| pending_commit.end)
            .is_some_and(|end| end <= self.fold.folded)
        {
            self.commits.pending = None;
            self.memory.deciding.clear();
            self.requests.arrived.extend(take(&mut self.requests.blocked));
        }
    }
}

fn told_of(what: &HoldRequest, decision: &Decision, written: WrittenDecision, at: Timestamp) -> HoldReply {
    match decision {
        Decision::Fire(_) => {
            let (partition, offset) = written.message.unzip();
            HoldReply::Fired { at, partition: partition.unwrap_or(0), offset }
        }
        Decision::Write(HoldRecord::Moved { due, .. }) => HoldReply::Rescheduled { due: *due, version: written.offset },
        Decision::Write(HoldRecord::Held(hold)) => HoldReply::Held { due: hold.due },
        Decision::Write(_) => {
            debug_assert!(matches!(what, HoldRequest::Withdraw { .. }), "{what:?}");
            HoldReply::Withdrawn
        }
    }
}

fn decided(decision: &Decision, waiting: &WaitingRequest, at: Timestamp) -> DecisionMark {
    match decision {
        Decision::Write(HoldRecord::Moved { due, .. }) => {
            let version = waiting.version_before.unwrap_or(u64::MAX);
            DecisionMark::Moved { version, due: *due }
        }
        Decision::Write(HoldRecord::Held(_)) => DecisionMark::Held,
        _ => DecisionMark::Ended { at },
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::StoredRecord;
    use whimbrel_model::ports::{AtOffset, ReadBatch};

    use super::super::super::settings::HoldsSettings;
    use super::super::super::testing::hold;
    use super::super::HoldInput;
    use super::*;
    use whimbrel_cluster::Machine as _;
    use whimbrel_cluster::owner_clock::ClockReading;

    fn at(ms: i64) -> ClockReading {
        ClockReading::exact(Timestamp::from_millis(ms))
    }

    fn decisions(effects: &[HoldEffect]) -> Option<&[Decision]> {
        effects.iter().find_map(|effect| match effect {
            HoldEffect::Commit { decisions, .. } => Some(&decisions[..]),
            _ => None,
        })
    }

    /// A shard with one due hold, whose fire is being committed.
    fn firing() -> HoldShard {
        let mut shard = HoldShard::new(Arc::new(HoldsSettings::default()), 1, 1, at(1_000));
        let started = shard.step(at(1_000), HoldInput::Started { applied: 0, first: 0, end: 0 });
        let token = started.iter().find_map(|effect| match effect {
            HoldEffect::Due { token, .. } => Some(*token),
            _ => None,
        });
        let record = HoldRecord::Held(Hold { fresh: true, ..Hold::clone(&hold("a", 900)) });
        let record = record.to_record(Timestamp::from_millis(900));
        let records = vec![StoredRecord { offset: 0, record }];
        shard.step(at(1_000), HoldInput::Read(Ok(ReadBatch { records, next: 1 })));
        let found = Ok(AtOffset { applied: 0, found: Vec::new() });
        let effects = shard.step(at(1_000), HoldInput::Due { token: token.expect("the window is filled"), found });
        assert!(matches!(decisions(&effects), Some([Decision::Fire(_)])), "{effects:?}");
        shard
    }

    #[test]
    fn a_death_that_the_log_rejected_is_written_again() {
        let is_death = |effects: &[HoldEffect]| matches!(decisions(effects), Some([Decision::Write(HoldRecord::Ended { end, .. })]) if matches!(end.how, HoldEndKind::Dead { .. }));
        let refused = || HoldInput::Committed(CommitResult::Refused { indexes: vec![0], why: "never".to_owned() });
        let mut shard = firing();
        assert!(is_death(&shard.step(at(1_001), refused())));
        assert!(decisions(&shard.step(at(1_002), refused())).is_none(), "not at once");
        let wake_at = shard.wake_at().expect("it is retried");
        assert!(is_death(&shard.step(at(wake_at.as_millis()), HoldInput::Tick)));
    }
}
