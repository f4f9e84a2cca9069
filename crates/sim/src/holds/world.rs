//! The world of a run: the log, the store, the nodes, and each single step that can happen. A seed or a scene chooses the steps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_cluster::Machine as _;
use whimbrel_cluster::owner_clock::ClockReading;
use whimbrel_holds::HoldsSettings;
use whimbrel_holds::shard::{CommitResult, Decision, HoldEffect, HoldInput, HoldRequestId, HoldShard, WrittenDecision};
use whimbrel_model::clock::StepLimits;
use whimbrel_model::ports::{HoldReply, HoldRequest, HoldsError, LogError, ReadBatch, TimersWrite};
use whimbrel_model::{Hold, HoldEndKind, HoldRecord, Record, StoredRecord, Timestamp, TopicNumber};

use super::answers::HoldCall;
use super::log::SimHoldsLog;
use super::node::{HoldsNode, HoldsOwner, NodeCall, NodeSave, Startup, name_of, name_of_answer};
use super::store::SimStore;
use super::truth::{HoldsTruth, UNWRITABLE};
use crate::CheckResult;
use crate::trace::Trace;

/// The fault of a commit under a valid fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    None,
    NotNow,
    /// The commit is written, and the caller gets an unknown outcome.
    UnknownLanded,
    /// The caller gets an unknown outcome. The commit may be written later, until a fence is opened.
    UnknownAtLarge,
}

/// The clock of an owner may be ahead of its process's clock by twice the allowed clock skew, and a little.
const OWNER_AHEAD_MS: i64 = 1_100;
/// The maximum time by which a hold may fire early in true time: the usual skew of a node, the step that its process's clock follows at
/// once, and the owner's clock.
const EARLY_MAX_MS: i64 = 250 + 2 * 500 + OWNER_AHEAD_MS;

fn after(time: Timestamp, duration: Duration) -> Timestamp {
    Timestamp::from_millis(time.as_millis().saturating_add(duration.as_millis() as i64))
}

/// A commit without a waiting caller.
#[derive(Debug)]
struct Stray {
    fence: u64,
    decisions: Vec<Decision>,
    at: Timestamp,
}

#[derive(Debug)]
pub struct HoldsWorld {
    pub settings: Arc<HoldsSettings>,
    pub time: i64,
    pub log: SimHoldsLog,
    pub store: SimStore,
    pub truth: HoldsTruth,
    pub nodes: Vec<HoldsNode>,
    /// The owner of the shard and its epoch, in the coordination.
    pub owner: (usize, u64),
    pub questions: Vec<HoldCall>,
    /// The topics that accept no messages now.
    pub closed: BTreeSet<TopicNumber>,
    strays: Vec<Stray>,
    stray_writes: Vec<TimersWrite>,
    /// The records of one read of the log, and the holds of one page of the store.
    pub page_records: usize,
    pub page_holds: usize,
    pub trace: Trace,
}

impl HoldsWorld {
    pub fn new(settings: HoldsSettings, stepout: Duration, nodes: usize, trace: Trace) -> Self {
        let limits = StepLimits { skew: settings.clock_skew, stepout };
        let time = 1_000_000;
        Self {
            settings: Arc::new(settings),
            time,
            log: SimHoldsLog::default(),
            store: SimStore::default(),
            truth: HoldsTruth { latest_clock: Timestamp::from_millis(i64::MIN), ..HoldsTruth::default() },
            nodes: (0..nodes).map(|_| HoldsNode::new(limits, time)).collect(),
            owner: (0, 0),
            questions: Vec::new(),
            closed: BTreeSet::new(),
            strays: Vec::new(),
            stray_writes: Vec::new(),
            page_records: 1000,
            page_holds: 1000,
            trace,
        }
    }

    pub fn note(&mut self, what: impl FnOnce() -> String) {
        let (step, time) = (self.truth.step, self.time);
        self.trace.note(|| format!("{step:5} {time:8} {}", what()));
    }

    /// Lets time pass.
    pub fn pass(&mut self, ms: i64) {
        self.time += ms;
        self.truth.latest_clock = Timestamp::from_millis(self.truth.latest_clock.as_millis().saturating_add(ms));
    }

    fn begin_step(&mut self) {
        self.truth.step += 1;
    }

    // ---- accepting and owning -----------------------------------------------------------------------------------

    /// Appends a hold, as any node may, also repeatedly.
    pub fn append(&mut self, hold: &Hold) -> CheckResult {
        self.begin_step();
        self.note(|| format!("accepted: {} due {}", hold.id, hold.due.as_millis()));
        let now = Timestamp::from_millis(self.time);
        let record = HoldRecord::Held(hold.clone()).to_record(now);
        let offset = self.log.append(record.clone());
        self.truth.landed(&StoredRecord { offset, record }, false)
    }

    /// Moves the ownership to that node; the previous owner does not notice.
    pub fn take(&mut self, node: usize) {
        self.begin_step();
        self.owner = (node, self.owner.1 + 1);
        let epoch = self.owner.1;
        self.note(|| format!("node {node} owns the shard with epoch {epoch}"));
        self.crash_quietly(node);
        let reading = self.nodes[node].reading(self.time);
        self.truth.latest_clock = self.truth.latest_clock.max(reading.wall);
        let shard = HoldShard::new(Arc::clone(&self.settings), 1, epoch, reading);
        self.nodes[node].owner = Some(HoldsOwner {
            shard,
            epoch,
            fence: 0,
            start: Some(Startup::Fence),
            calls: Vec::new(),
            saving: None,
            asks: Default::default(),
            next_ask: 0,
        });
    }

    pub fn crash(&mut self, node: usize) {
        self.begin_step();
        self.note(|| format!("node {node} crashes"));
        self.crash_quietly(node);
        self.nodes[node].restart_clock();
    }

    /// Ends the owner. Its calls in progress may still take effect. Its open requests are never answered.
    fn crash_quietly(&mut self, node: usize) {
        let Some(owner) = self.nodes[node].owner.take() else { return };
        for call in owner.calls {
            if let NodeCall::Waiting(HoldEffect::Commit { decisions, at }) = call {
                self.strays.push(Stray { fence: owner.fence, decisions, at });
            }
        }
        if let Some(NodeSave::Waiting(write)) = owner.saving {
            self.stray_writes.push(write);
        }
        owner.asks.values().for_each(|question| self.questions[*question].is_open = false);
    }

    pub fn strays(&self) -> usize {
        self.strays.len() + self.stray_writes.len()
    }

    /// Executes a call of an ended owner, or drops it.
    pub fn stray_lands(&mut self, index: usize, happens: bool) -> CheckResult {
        self.begin_step();
        if index < self.strays.len() {
            let stray = self.strays.remove(index);
            let is_writable = !stray.decisions.iter().any(|decision| self.is_unwritable(decision));
            if happens && is_writable && self.log.stands(stray.fence) {
                self.note(|| "a stray commit lands".to_owned());
                self.write(&stray.decisions, stray.at)?;
            }
        } else {
            let write = self.stray_writes.remove(index - self.strays.len());
            if happens {
                let applied = self.store.apply(write)?;
                self.note(|| format!("a stray checkpoint: {applied:?}"));
            }
        }
        Ok(())
    }

    // ---- steps of a node -----------------------------------------------------------------------------------------

    pub fn is_starting(&self, node: usize) -> bool {
        self.nodes[node].owner.as_ref().is_some_and(|owner| owner.start.is_some())
    }

    /// Takes one step of a start, which finds the positions of store and log.
    pub fn start_on(&mut self, node: usize) -> CheckResult {
        self.begin_step();
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
        // A checkpoint in progress must end first. The start then reads the position of the store.
        if let Some(NodeSave::Waiting(_)) = owner.saving {
            return self.answer_saving(node, false);
        }
        owner.saving = None;
        let Some(start) = owner.start else { return Ok(()) };
        let is_owner = self.owner == (node, owner.epoch);
        match start {
            Startup::Fence => {
                owner.fence = self.log.open_fence();
                owner.start = Some(Startup::Check);
                self.note(|| format!("node {node} opens the fence"));
            }
            Startup::Check if is_owner => owner.start = Some(Startup::Store { with_fence: true }),
            Startup::Check => return self.give_up(node, "another node owns the shard"),
            Startup::Store { with_fence } => match self.store.open(owner.epoch) {
                Ok(Some(applied)) => {
                    owner.start = Some(Startup::Bounds { applied });
                    self.note(|| format!("node {node} finds the store at {applied}"));
                }
                Ok(None) => return self.give_up(node, "a newer owner uses the shard's store"),
                Err(_) => owner.start = Some(if with_fence { Startup::Fence } else { start }),
            },
            Startup::Bounds { applied } => {
                owner.start = None;
                let bounds = self.log.bounds();
                return self.step(node, HoldInput::Started { applied, first: bounds.first, end: bounds.next });
            }
        }
        Ok(())
    }

    pub fn calls(&self, node: usize) -> &[NodeCall] {
        self.nodes[node].owner.as_ref().map_or(&[], |owner| &owner.calls)
    }

    /// The log or the store answers a call; the answer has not arrived yet. Returns false if a read waits at the tail.
    pub fn answer_call(&mut self, node: usize, index: usize, fault: CommitFault, empty: bool) -> CheckResult<bool> {
        self.begin_step();
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(false) };
        let NodeCall::Waiting(effect) = &owner.calls[index] else { return Ok(false) };
        if let HoldEffect::Read { from } = effect
            && !empty
            && self.log.read(*from, 1).is_ok_and(|batch| batch.next == *from)
        {
            return Ok(false);
        }
        let NodeCall::Waiting(effect) = owner.calls.remove(index) else { return Ok(false) };
        let name = name_of(&effect);
        let fence = owner.fence;
        let input = self.carry_out(effect, fence, fault, empty)?;
        self.note(|| format!("node {node}: {name} is answered"));
        if let Some(owner) = &mut self.nodes[node].owner {
            owner.calls.push(NodeCall::Answered(input));
        }
        Ok(true)
    }

    /// An answer arrives at the node.
    pub fn deliver(&mut self, node: usize, index: usize) -> CheckResult {
        self.begin_step();
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
        if !matches!(owner.calls[index], NodeCall::Answered(_)) {
            return Ok(());
        }
        let NodeCall::Answered(input) = owner.calls.remove(index) else { return Ok(()) };
        self.note(|| format!("node {node} receives: {}", name_of_answer(&input)));
        self.step(node, input)
    }

    pub fn is_saving(&self, node: usize) -> Option<&NodeSave> {
        self.nodes[node].owner.as_ref().and_then(|owner| owner.saving.as_ref())
    }

    /// Executes the checkpoint. With `is_lost`, its answer is lost.
    pub fn answer_saving(&mut self, node: usize, is_lost: bool) -> CheckResult {
        self.begin_step();
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
        let Some(NodeSave::Waiting(_)) = owner.saving else { return Ok(()) };
        let Some(NodeSave::Waiting(write)) = owner.saving.take() else { return Ok(()) };
        let (expected, upto, changes) = (write.expected, write.applied, write.changes.len());
        let mut applied = self.store.apply(write)?;
        self.note(|| format!("node {node}: checkpoint from {expected} to {upto} with {changes} changes: {applied:?}"));
        if is_lost {
            applied = Err(whimbrel_model::ports::TimersError::Unavailable("simulated: the answer is lost".to_owned()));
        }
        if let Some(owner) = &mut self.nodes[node].owner {
            owner.saving = Some(NodeSave::Answered(applied));
        }
        Ok(())
    }

    pub fn deliver_saving(&mut self, node: usize) -> CheckResult {
        self.begin_step();
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
        if !matches!(owner.saving, Some(NodeSave::Answered(_))) || owner.start.is_some() {
            return Ok(());
        }
        let Some(NodeSave::Answered(applied)) = owner.saving.take() else { return Ok(()) };
        self.step(node, HoldInput::Applied(applied))
    }

    pub fn tick(&mut self, node: usize) -> CheckResult {
        self.begin_step();
        self.step(node, HoldInput::Tick)
    }

    /// A client sends a request to the node.
    pub fn ask(&mut self, node: usize, ask: HoldRequest) -> CheckResult<usize> {
        self.begin_step();
        let number = self.questions.len();
        self.note(|| format!("question {number} to node {node}: {ask:?}"));
        self.questions.push(HoldCall::new(ask.clone(), self.truth.step));
        self.truth.asked(&ask);
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(number) };
        owner.next_ask += 1;
        let ask_id = owner.next_ask;
        owner.asks.insert(ask_id, number);
        self.step(node, HoldInput::Asked { ask: ask_id, what: ask })?;
        Ok(number)
    }

    fn step(&mut self, node: usize, input: HoldInput) -> CheckResult {
        let reading = self.nodes[node].reading(self.time);
        self.truth.latest_clock = self.truth.latest_clock.max(reading.wall);
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
        let is_starting = owner.start.is_some();
        let effects = owner.shard.step(reading, input);
        self.check_times(node, reading, &effects)?;
        // During a start, the node executes only answers.
        for effect in effects.into_iter().filter(|effect| !is_starting || matches!(effect, HoldEffect::Answer { .. })) {
            let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
            match effect {
                HoldEffect::StartOver | HoldEffect::OpenFence => {
                    let with_fence = matches!(effect, HoldEffect::OpenFence);
                    owner.calls.clear();
                    owner.start = Some(if with_fence { Startup::Fence } else { Startup::Store { with_fence: false } });
                    self.note(|| {
                        format!("node {node} starts over{}", if with_fence { ", with a new fence" } else { "" })
                    });
                }
                HoldEffect::Resign { why } => return self.give_up(node, &why),
                HoldEffect::Answer { ask, told: reply } => self.answer(node, ask, reply)?,
                HoldEffect::Apply(write) => owner.saving = Some(NodeSave::Waiting(write)),
                HoldEffect::Report { offset, why } => return Err(format!("the record at {offset} was skipped: {why}")),
                HoldEffect::NotTrimmed { why } => self.note(|| format!("node {node} cannot trim: {why}")),
                effect => {
                    if let HoldEffect::Commit { decisions, .. } = &effect {
                        let ids: Vec<_> = decisions.iter().map(Decision::id).cloned().collect();
                        self.trace.note(|| format!("               node {node} commits {ids:?}"));
                    }
                    owner.calls.push(NodeCall::Waiting(effect));
                }
            }
        }
        Ok(())
    }

    /// Checks that no hold fires and no record is removed before the true time allows it, for any wall clock. A clock that was wrong for
    /// longer than the stepout is excepted.
    fn check_times(&self, node: usize, reading: ClockReading, effects: &[HoldEffect]) -> CheckResult {
        let followed_ms = reading.wall.as_millis() - self.time;
        let early_max =
            if self.nodes[node].has_lasted { EARLY_MAX_MS.max(followed_ms + OWNER_AHEAD_MS) } else { EARLY_MAX_MS };
        let is_early = |at: Timestamp| at.as_millis() > self.time + early_max;
        for effect in effects {
            match effect {
                HoldEffect::Commit { decisions, .. } => {
                    for decision in decisions {
                        let Decision::Fire(hold) = decision else { continue };
                        let is_asked = self.truth.stories.get(&hold.id).is_some_and(|story| story.fires_asked > 0);
                        if is_early(hold.due) && !is_asked {
                            return Err(format!(
                                "node {node} fires {} at {}, true time, and it is due at {}",
                                hold.id,
                                self.time,
                                hold.due.as_millis()
                            ));
                        }
                    }
                }
                HoldEffect::Apply(write) if is_early(write.now) => {
                    return Err(format!(
                        "node {node} removes ends by {} at {}, true time",
                        write.now.as_millis(),
                        self.time
                    ));
                }
                HoldEffect::Cut { kept_since } if is_early(after(*kept_since, self.settings.keep_log)) => {
                    return Err(format!(
                        "node {node} trims up to {} at {}, true time",
                        kept_since.as_millis(),
                        self.time
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn answer(&mut self, node: usize, ask: HoldRequestId, reply: Result<HoldReply, HoldsError>) -> CheckResult {
        let asks = self.nodes[node].owner.as_mut().map(|owner| &mut owner.asks);
        let Some(number) = asks.and_then(|asks| asks.remove(&ask)) else {
            return Err(format!("node {node} answers a request twice, or an unknown one"));
        };
        self.note(|| format!("node {node} answers question {number}: {reply:?}"));
        let asked_at = self.questions[number].asked_at;
        self.questions[number].is_open = false;
        let what = self.questions[number].what.clone();
        self.questions[number].reply = Some(reply.clone());
        self.truth.answered(&what, asked_at, &reply).map_err(|wrong| format!("question {number}: {wrong}"))
    }

    /// Gives up the shard: waits for a commit in progress, and answers the other requests with an error.
    fn give_up(&mut self, node: usize, why: &str) -> CheckResult {
        self.note(|| format!("node {node} gives the shard up: {why}"));
        let commit = self.calls(node).iter().position(|call| {
            matches!(call, NodeCall::Waiting(HoldEffect::Commit { .. }) | NodeCall::Answered(HoldInput::Committed(_)))
        });
        if let Some(index) = commit {
            self.answer_call(node, index, CommitFault::None, false)?;
            let reading = self.nodes[node].reading(self.time);
            let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
            let input = owner.calls.iter().position(|call| matches!(call, NodeCall::Answered(HoldInput::Committed(_))));
            let Some(NodeCall::Answered(input)) = input.map(|index| owner.calls.remove(index)) else {
                return Ok(());
            };
            for effect in owner.shard.step(reading, input) {
                if let HoldEffect::Answer { ask, told: reply } = effect {
                    self.answer(node, ask, reply)?;
                }
            }
        }
        let doubted = self.nodes[node].owner.as_ref().map(|owner| owner.shard.asks_in_doubt()).unwrap_or_default();
        for ask in doubted {
            let is_open = self.nodes[node].owner.as_ref().is_some_and(|owner| owner.asks.contains_key(&ask));
            if is_open {
                self.answer(node, ask, Err(HoldsError::OutcomeUnknown("simulated".to_owned())))?;
            }
        }
        let rest: Vec<HoldRequestId> =
            self.nodes[node].owner.iter().flat_map(|owner| owner.asks.keys().copied()).collect();
        for ask in rest {
            self.answer(node, ask, Err(HoldsError::NoOwner(0)))?;
        }
        self.crash_quietly(node);
        Ok(())
    }

    /// Stops the node: gives up the shard after a last checkpoint.
    pub fn stop(&mut self, node: usize) -> CheckResult {
        self.begin_step();
        if self.is_saving(node).is_some() {
            self.answer_saving(node, false)?;
            self.deliver_saving(node)?;
        }
        let write = self.nodes[node].owner.as_mut().filter(|owner| owner.start.is_none());
        let write = write.and_then(|owner| owner.shard.last_checkpoint());
        self.give_up(node, "it stops")?;
        if let Some(write) = write {
            let applied = self.store.apply(write)?;
            self.note(|| format!("node {node}: a last checkpoint: {applied:?}"));
        }
        Ok(())
    }

    // ---- answers of log and store -------------------------------------------------------------------------------

    fn carry_out(&mut self, effect: HoldEffect, fence: u64, fault: CommitFault, empty: bool) -> CheckResult<HoldInput> {
        let (page_records, page_holds) = (self.page_records, self.page_holds);
        Ok(match effect {
            HoldEffect::Read { from } if empty => match self.log.read(from, 1) {
                Ok(_) => HoldInput::Read(Ok(ReadBatch { records: Vec::new(), next: from })),
                Err(error) => HoldInput::Read(Err(error)),
            },
            HoldEffect::Read { from } => HoldInput::Read(self.log.read(from, page_records)),
            HoldEffect::End { token } => HoldInput::End { token, end: Ok(self.log.bounds().next) },
            HoldEffect::Get { token, ids } => HoldInput::Got { token, found: self.store.get(&ids) },
            HoldEffect::Due { token, after, until } => {
                HoldInput::Due { token, found: self.store.due(after.as_ref(), until, page_holds) }
            }
            HoldEffect::List { token, query } => HoldInput::Listed { token, found: self.store.list(&query) },
            HoldEffect::Dead { token, query } => HoldInput::ListedDead { token, found: self.store.dead(&query) },
            HoldEffect::Count { token, query } => HoldInput::Counted { token, found: self.store.count(&query) },
            HoldEffect::Commit { decisions, at } => HoldInput::Committed(self.commit(decisions, at, fence, fault)?),
            HoldEffect::Cut { kept_since } => {
                HoldInput::Cut(Ok((self.log.bounds().first, self.log.offset_at(kept_since))))
            }
            HoldEffect::Walk { from, .. } if empty => {
                HoldInput::Walked(Ok(ReadBatch { records: Vec::new(), next: from }))
            }
            HoldEffect::Walk { from, .. } => HoldInput::Walked(self.log.read(from, page_records)),
            HoldEffect::Trim { before } => {
                self.log.trim(before);
                HoldInput::Trimmed(Ok(()))
            }
            other => return Err(format!("{} is not a call", name_of(&other))),
        })
    }

    fn commit(
        &mut self,
        decisions: Vec<Decision>,
        at: Timestamp,
        fence: u64,
        fault: CommitFault,
    ) -> CheckResult<CommitResult> {
        if let Some(index) = decisions.iter().position(|decision| self.is_unwritable(decision)) {
            return Ok(CommitResult::Refused {
                indexes: vec![index],
                why: "simulated: it can never be written".to_owned(),
            });
        }
        if decisions.iter().all(|decision| self.is_left_out(decision)) {
            return Ok(CommitResult::Done(vec![None; decisions.len()]));
        }
        if fault == CommitFault::NotNow {
            return Ok(CommitResult::NotNow(LogError::DiskFull("simulated".to_owned())));
        }
        if fault == CommitFault::UnknownAtLarge {
            self.strays.push(Stray { fence, decisions, at });
            return Ok(CommitResult::Unknown("simulated".to_owned()));
        }
        if !self.log.stands(fence) {
            return Ok(CommitResult::Fenced);
        }
        let written = self.write(&decisions, at)?;
        Ok(match fault {
            CommitFault::UnknownLanded => CommitResult::Unknown("simulated".to_owned()),
            _ => CommitResult::Done(written),
        })
    }

    fn is_unwritable(&self, decision: &Decision) -> bool {
        match decision {
            Decision::Fire(hold) => self.truth.gone.contains(&hold.topic) || hold.message.value == UNWRITABLE,
            Decision::Write(_) => false,
        }
    }

    fn is_left_out(&self, decision: &Decision) -> bool {
        matches!(decision, Decision::Fire(hold) if self.closed.contains(&hold.topic))
    }

    /// Writes the decisions to the log, all at once. The record of a fire stands for the message in its topic.
    fn write(&mut self, decisions: &[Decision], at: Timestamp) -> CheckResult<Vec<Option<WrittenDecision>>> {
        let mut records: Vec<Record> = Vec::new();
        let mut written = Vec::new();
        for decision in decisions {
            if self.is_left_out(decision) {
                written.push(None);
                continue;
            }
            written.push(Some(records.len()));
            records.push(match decision {
                Decision::Write(record) => record.to_record(at),
                Decision::Fire(hold) => {
                    let end = hold.ended(HoldEndKind::Fired { partition: 0 }, at);
                    HoldRecord::Ended { id: hold.id.clone(), end }.to_record(at)
                }
            });
        }
        let offsets = self.log.commit(records.clone());
        for (record, offset) in records.into_iter().zip(&offsets) {
            self.truth.landed(&StoredRecord { offset: *offset, record }, true)?;
        }
        let is_fired = |index: usize| matches!(decisions.get(index), Some(Decision::Fire(_)));
        let places = written.iter().enumerate().map(|(index, place)| {
            place.map(|place| WrittenDecision { offset: offsets[place], message: is_fired(index).then_some((0, 0)) })
        });
        Ok(places.collect())
    }
}
