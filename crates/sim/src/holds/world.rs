//! The world of a run: the log, the store, the nodes, and each single step that can happen in it. It chooses nothing: a seed or
//! a script does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_cluster::owner_clock::Reading;
use whimbrel_holds::HoldsSettings;
use whimbrel_holds::shard::{AskId, Committed, Decision, Effect, Input, Shard, Written};
use whimbrel_model::clock::StepLimits;
use whimbrel_model::ports::{Ask, HoldsError, LogError, ReadBatch, Told, Write};
use whimbrel_model::{Ending, Hold, HoldRecord, Record, StoredRecord, Timestamp, TopicNumber};

use super::Check;
use super::answers::Question;
use super::log::SimLog;
use super::node::{Call, Node, Owner, Saving, Start, name_of, name_of_answer};
use super::store::SimStore;
use super::truth::{Truth, UNWRITABLE};
use crate::trace::Trace;

/// How the log answers a commit under a fence that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    None,
    NotNow,
    /// The caller hears that nobody knows; it was written.
    UnknownLanded,
    /// The same; it may be written later, until a fence is opened.
    UnknownAtLarge,
}

/// An owner's clock may be ahead of its process's by twice the allowed skew of clocks, and a little.
const OWNER_AHEAD_MS: i64 = 1_100;
/// So early may a hold fire by true time: the usual skew of a node, what its process's clock follows at once, and the owner's clock.
const EARLY_MAX_MS: i64 = 250 + 2 * 500 + OWNER_AHEAD_MS;

fn after(time: Timestamp, duration: Duration) -> Timestamp {
    Timestamp::from_millis(time.as_millis().saturating_add(duration.as_millis() as i64))
}

/// A commit that nobody waits for.
#[derive(Debug)]
struct Stray {
    fence: u64,
    decisions: Vec<Decision>,
    at: Timestamp,
}

#[derive(Debug)]
pub struct World {
    pub settings: Arc<HoldsSettings>,
    pub time: i64,
    pub log: SimLog,
    pub store: SimStore,
    pub truth: Truth,
    pub nodes: Vec<Node>,
    /// Who owns the shard, and since which epoch: what coordination says.
    pub owner: (usize, u64),
    pub questions: Vec<Question>,
    /// Topics that take nothing at the moment.
    pub closed: BTreeSet<TopicNumber>,
    strays: Vec<Stray>,
    stray_writes: Vec<Write>,
    /// Records of one read of the log, and holds of one page of the store.
    pub page_records: usize,
    pub page_holds: usize,
    pub trace: Trace,
}

impl World {
    pub fn new(settings: HoldsSettings, stepout: Duration, nodes: usize, trace: Trace) -> Self {
        let limits = StepLimits { skew: settings.clock_skew, stepout };
        let time = 1_000_000;
        Self {
            settings: Arc::new(settings),
            time,
            log: SimLog::default(),
            store: SimStore::default(),
            truth: Truth { latest_clock: Timestamp::from_millis(i64::MIN), ..Truth::default() },
            nodes: (0..nodes).map(|_| Node::new(limits, time)).collect(),
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

    /// Time passes for everyone.
    pub fn pass(&mut self, ms: i64) {
        self.time += ms;
        self.truth.latest_clock = Timestamp::from_millis(self.truth.latest_clock.as_millis().saturating_add(ms));
    }

    fn begin_step(&mut self) {
        self.truth.step += 1;
    }

    // ---- accepting and owning -----------------------------------------------------------------------------------

    /// Anyone accepts a hold; also again.
    pub fn append(&mut self, hold: &Hold) -> Check {
        self.begin_step();
        self.note(|| format!("accepted: {} due {}", hold.id, hold.due.as_millis()));
        let now = Timestamp::from_millis(self.time);
        let record = HoldRecord::Held(hold.clone()).to_record(now);
        let offset = self.log.append(record.clone());
        self.truth.landed(&StoredRecord { offset, record }, false)
    }

    /// Ownership moves to that node; whoever had it does not notice.
    pub fn take(&mut self, node: usize) {
        self.begin_step();
        self.owner = (node, self.owner.1 + 1);
        let epoch = self.owner.1;
        self.note(|| format!("node {node} owns the shard with epoch {epoch}"));
        self.crash_quietly(node);
        let reading = self.nodes[node].reading(self.time);
        self.truth.latest_clock = self.truth.latest_clock.max(reading.wall);
        let shard = Shard::new(Arc::clone(&self.settings), 1, epoch, reading);
        self.nodes[node].owner = Some(Owner {
            shard,
            epoch,
            fence: 0,
            start: Some(Start::Fence),
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

    /// What it waited for may still happen; who asked never hears.
    fn crash_quietly(&mut self, node: usize) {
        let Some(owner) = self.nodes[node].owner.take() else { return };
        for call in owner.calls {
            if let Call::Waiting(Effect::Commit { decisions, at }) = call {
                self.strays.push(Stray { fence: owner.fence, decisions, at });
            }
        }
        if let Some(Saving::Waiting(write)) = owner.saving {
            self.stray_writes.push(write);
        }
        owner.asks.values().for_each(|question| self.questions[*question].is_open = false);
    }

    pub fn strays(&self) -> usize {
        self.strays.len() + self.stray_writes.len()
    }

    /// Something that nobody waits for any more happens after all, or never.
    pub fn stray_lands(&mut self, index: usize, happens: bool) -> Check {
        self.begin_step();
        if index < self.strays.len() {
            let stray = self.strays.remove(index);
            let is_writable = !stray.decisions.iter().any(|decision| self.is_unwritable(decision));
            if happens && is_writable && self.log.stands(stray.fence) {
                self.note(|| "a commit that nobody waits for lands".to_owned());
                self.write(&stray.decisions, stray.at)?;
            }
        } else {
            let write = self.stray_writes.remove(index - self.strays.len());
            if happens {
                let applied = self.store.apply(write)?;
                self.note(|| format!("a checkpoint that nobody waits for: {applied:?}"));
            }
        }
        Ok(())
    }

    // ---- steps of a node -----------------------------------------------------------------------------------------

    pub fn is_starting(&self, node: usize) -> bool {
        self.nodes[node].owner.as_ref().is_some_and(|owner| owner.start.is_some())
    }

    /// One step of finding out where store and log are.
    pub fn start_on(&mut self, node: usize) -> Check {
        self.begin_step();
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
        // A checkpoint under way is waited for, and what became of it is found by looking.
        if let Some(Saving::Waiting(_)) = owner.saving {
            return self.answer_saving(node, false);
        }
        owner.saving = None;
        let Some(start) = owner.start else { return Ok(()) };
        let is_owner = self.owner == (node, owner.epoch);
        match start {
            Start::Fence => {
                owner.fence = self.log.open_fence();
                owner.start = Some(Start::Check);
                self.note(|| format!("node {node} opens the fence"));
            }
            Start::Check if is_owner => owner.start = Some(Start::Store { anew: true }),
            Start::Check => return self.give_up(node, "another node owns the shard"),
            Start::Store { anew } => match self.store.open(owner.epoch) {
                Ok(Some(applied)) => {
                    owner.start = Some(Start::Bounds { applied });
                    self.note(|| format!("node {node} finds the store at {applied}"));
                }
                Ok(None) => return self.give_up(node, "a newer owner has the shard's store"),
                Err(_) => owner.start = Some(if anew { Start::Fence } else { start }),
            },
            Start::Bounds { applied } => {
                owner.start = None;
                let bounds = self.log.bounds();
                return self.step(node, Input::Started { applied, first: bounds.first, end: bounds.next });
            }
        }
        Ok(())
    }

    pub fn calls(&self, node: usize) -> &[Call] {
        self.nodes[node].owner.as_ref().map_or(&[], |owner| &owner.calls)
    }

    /// The log or the store answers a call; the answer has not arrived yet. False where a read waits at the tail.
    pub fn answer_call(&mut self, node: usize, index: usize, fault: CommitFault, empty: bool) -> Check<bool> {
        self.begin_step();
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(false) };
        let Call::Waiting(effect) = &owner.calls[index] else { return Ok(false) };
        if let Effect::Read { from } = effect
            && !empty
            && self.log.read(*from, 1).is_ok_and(|batch| batch.next == *from)
        {
            return Ok(false);
        }
        let Call::Waiting(effect) = owner.calls.remove(index) else { return Ok(false) };
        let name = name_of(&effect);
        let fence = owner.fence;
        let input = self.carry_out(effect, fence, fault, empty)?;
        self.note(|| format!("node {node}: {name} is answered"));
        if let Some(owner) = &mut self.nodes[node].owner {
            owner.calls.push(Call::Answered(input));
        }
        Ok(true)
    }

    /// An answer arrives.
    pub fn deliver(&mut self, node: usize, index: usize) -> Check {
        self.begin_step();
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
        if !matches!(owner.calls[index], Call::Answered(_)) {
            return Ok(());
        }
        let Call::Answered(input) = owner.calls.remove(index) else { return Ok(()) };
        self.note(|| format!("node {node} hears: {}", name_of_answer(&input)));
        self.step(node, input)
    }

    pub fn is_saving(&self, node: usize) -> Option<&Saving> {
        self.nodes[node].owner.as_ref().and_then(|owner| owner.saving.as_ref())
    }

    /// The checkpoint happens; with `is_lost`, its answer does not arrive.
    pub fn answer_saving(&mut self, node: usize, is_lost: bool) -> Check {
        self.begin_step();
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
        let Some(Saving::Waiting(_)) = owner.saving else { return Ok(()) };
        let Some(Saving::Waiting(write)) = owner.saving.take() else { return Ok(()) };
        let (expected, upto, changes) = (write.expected, write.applied, write.changes.len());
        let mut applied = self.store.apply(write)?;
        self.note(|| format!("node {node}: checkpoint from {expected} to {upto} with {changes} changes: {applied:?}"));
        if is_lost {
            applied = Err(whimbrel_model::ports::TimersError::Unavailable("simulated: the answer is lost".to_owned()));
        }
        if let Some(owner) = &mut self.nodes[node].owner {
            owner.saving = Some(Saving::Answered(applied));
        }
        Ok(())
    }

    pub fn deliver_saving(&mut self, node: usize) -> Check {
        self.begin_step();
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
        if !matches!(owner.saving, Some(Saving::Answered(_))) || owner.start.is_some() {
            return Ok(());
        }
        let Some(Saving::Answered(applied)) = owner.saving.take() else { return Ok(()) };
        self.step(node, Input::Applied(applied))
    }

    pub fn tick(&mut self, node: usize) -> Check {
        self.begin_step();
        self.step(node, Input::Tick)
    }

    /// A client asks that node.
    pub fn ask(&mut self, node: usize, ask: Ask) -> Check<usize> {
        self.begin_step();
        let number = self.questions.len();
        self.note(|| format!("question {number} to node {node}: {ask:?}"));
        self.questions.push(Question::new(ask.clone(), self.truth.step));
        self.truth.asked(&ask);
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(number) };
        owner.next_ask += 1;
        let ask_id = owner.next_ask;
        owner.asks.insert(ask_id, number);
        self.step(node, Input::Asked { ask: ask_id, what: ask })?;
        Ok(number)
    }

    fn step(&mut self, node: usize, input: Input) -> Check {
        let reading = self.nodes[node].reading(self.time);
        self.truth.latest_clock = self.truth.latest_clock.max(reading.wall);
        let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
        let is_starting = owner.start.is_some();
        let effects = owner.shard.step(reading, input);
        self.check_times(node, reading, &effects)?;
        // Until store and log are found, it only answers.
        for effect in effects.into_iter().filter(|effect| !is_starting || matches!(effect, Effect::Answer { .. })) {
            let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
            match effect {
                Effect::StartOver | Effect::OpenAnew => {
                    let anew = matches!(effect, Effect::OpenAnew);
                    owner.calls.clear();
                    owner.start = Some(if anew { Start::Fence } else { Start::Store { anew: false } });
                    self.note(|| format!("node {node} starts over{}", if anew { ", with a new fence" } else { "" }));
                }
                Effect::Resign { why } => return self.give_up(node, &why),
                Effect::Answer { ask, told } => self.answer(node, ask, told)?,
                Effect::Apply(write) => owner.saving = Some(Saving::Waiting(write)),
                Effect::Report { offset, why } => return Err(format!("the record at {offset} was passed over: {why}")),
                Effect::NotTrimmed { why } => self.note(|| format!("node {node} cannot trim: {why}")),
                effect => {
                    if let Effect::Commit { decisions, .. } = &effect {
                        let ids: Vec<_> = decisions.iter().map(Decision::id).cloned().collect();
                        self.trace.note(|| format!("               node {node} commits {ids:?}"));
                    }
                    owner.calls.push(Call::Waiting(effect));
                }
            }
        }
        Ok(())
    }

    /// Nothing fires and nothing is forgotten by a time that has not truly come, whatever the wall clock says: not unless it has kept
    /// a wrong time for the stepout.
    fn check_times(&self, node: usize, reading: Reading, effects: &[Effect]) -> Check {
        let followed_ms = reading.wall.as_millis() - self.time;
        let early_max =
            if self.nodes[node].has_lasted { EARLY_MAX_MS.max(followed_ms + OWNER_AHEAD_MS) } else { EARLY_MAX_MS };
        let is_early = |at: Timestamp| at.as_millis() > self.time + early_max;
        for effect in effects {
            match effect {
                Effect::Commit { decisions, .. } => {
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
                Effect::Apply(write) if is_early(write.now) => {
                    return Err(format!(
                        "node {node} forgets by {} at {}, true time",
                        write.now.as_millis(),
                        self.time
                    ));
                }
                Effect::Cut { kept_since } if is_early(after(*kept_since, self.settings.keep_log)) => {
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

    fn answer(&mut self, node: usize, ask: AskId, told: Result<Told, HoldsError>) -> Check {
        let asks = self.nodes[node].owner.as_mut().map(|owner| &mut owner.asks);
        let Some(number) = asks.and_then(|asks| asks.remove(&ask)) else {
            return Err(format!("node {node} answers a question twice, or one that nobody asked"));
        };
        self.note(|| format!("node {node} answers question {number}: {told:?}"));
        let asked_at = self.questions[number].asked_at;
        self.questions[number].is_open = false;
        let what = self.questions[number].what.clone();
        self.questions[number].told = Some(told.clone());
        self.truth.answered(&what, asked_at, &told).map_err(|wrong| format!("question {number}: {wrong}"))
    }

    /// The shard is given up: a commit under way is waited for, and who waits hears that the shard is elsewhere.
    fn give_up(&mut self, node: usize, why: &str) -> Check {
        self.note(|| format!("node {node} gives the shard up: {why}"));
        let commit = self.calls(node).iter().position(|call| {
            matches!(call, Call::Waiting(Effect::Commit { .. }) | Call::Answered(Input::Committed(_)))
        });
        if let Some(index) = commit {
            self.answer_call(node, index, CommitFault::None, false)?;
            let reading = self.nodes[node].reading(self.time);
            let Some(owner) = &mut self.nodes[node].owner else { return Ok(()) };
            let input = owner.calls.iter().position(|call| matches!(call, Call::Answered(Input::Committed(_))));
            let Some(Call::Answered(input)) = input.map(|index| owner.calls.remove(index)) else { return Ok(()) };
            for effect in owner.shard.step(reading, input) {
                if let Effect::Answer { ask, told } = effect {
                    self.answer(node, ask, told)?;
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
        let rest: Vec<AskId> = self.nodes[node].owner.iter().flat_map(|owner| owner.asks.keys().copied()).collect();
        for ask in rest {
            self.answer(node, ask, Err(HoldsError::NoOwner(0)))?;
        }
        self.crash_quietly(node);
        Ok(())
    }

    /// The node is told to stop: the same, with a last checkpoint.
    pub fn stop(&mut self, node: usize) -> Check {
        self.begin_step();
        if self.is_saving(node).is_some() {
            self.answer_saving(node, false)?;
            self.deliver_saving(node)?;
        }
        let write = self.nodes[node].owner.as_mut().filter(|owner| owner.start.is_none());
        let write = write.and_then(|owner| owner.shard.last_checkpoint());
        self.give_up(node, "it is told to stop")?;
        if let Some(write) = write {
            let applied = self.store.apply(write)?;
            self.note(|| format!("node {node}: a last checkpoint: {applied:?}"));
        }
        Ok(())
    }

    // ---- what log and store answer -------------------------------------------------------------------------------

    fn carry_out(&mut self, effect: Effect, fence: u64, fault: CommitFault, empty: bool) -> Check<Input> {
        let (page_records, page_holds) = (self.page_records, self.page_holds);
        Ok(match effect {
            Effect::Read { from } if empty => match self.log.read(from, 1) {
                Ok(_) => Input::Read(Ok(ReadBatch { records: Vec::new(), next: from })),
                Err(error) => Input::Read(Err(error)),
            },
            Effect::Read { from } => Input::Read(self.log.read(from, page_records)),
            Effect::End { token } => Input::End { token, end: Ok(self.log.bounds().next) },
            Effect::Get { token, ids } => Input::Got { token, found: self.store.get(&ids) },
            Effect::Due { token, after, until } => {
                Input::Due { token, found: self.store.due(after.as_ref(), until, page_holds) }
            }
            Effect::List { token, query } => Input::Listed { token, found: self.store.list(&query) },
            Effect::Dead { token, query } => Input::ListedDead { token, found: self.store.dead(&query) },
            Effect::Count { token, query } => Input::Counted { token, found: self.store.count(&query) },
            Effect::Commit { decisions, at } => Input::Committed(self.commit(decisions, at, fence, fault)?),
            Effect::Cut { kept_since } => Input::Cut(Ok((self.log.bounds().first, self.log.offset_at(kept_since)))),
            Effect::Walk { from, .. } if empty => Input::Walked(Ok(ReadBatch { records: Vec::new(), next: from })),
            Effect::Walk { from, .. } => Input::Walked(self.log.read(from, page_records)),
            Effect::Trim { before } => {
                self.log.trim(before);
                Input::Trimmed(Ok(()))
            }
            other => return Err(format!("{} is not a call", name_of(&other))),
        })
    }

    fn commit(&mut self, decisions: Vec<Decision>, at: Timestamp, fence: u64, fault: CommitFault) -> Check<Committed> {
        if let Some(index) = decisions.iter().position(|decision| self.is_unwritable(decision)) {
            return Ok(Committed::Refused {
                indexes: vec![index],
                why: "simulated: it can never be written".to_owned(),
            });
        }
        if decisions.iter().all(|decision| self.is_left_out(decision)) {
            return Ok(Committed::Done(vec![None; decisions.len()]));
        }
        if fault == CommitFault::NotNow {
            return Ok(Committed::NotNow(LogError::DiskFull("simulated".to_owned())));
        }
        if fault == CommitFault::UnknownAtLarge {
            self.strays.push(Stray { fence, decisions, at });
            return Ok(Committed::Unknown("simulated".to_owned()));
        }
        if !self.log.stands(fence) {
            return Ok(Committed::Fenced);
        }
        let written = self.write(&decisions, at)?;
        Ok(match fault {
            CommitFault::UnknownLanded => Committed::Unknown("simulated".to_owned()),
            _ => Committed::Done(written),
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

    /// The decisions are in the log, all of them at once. A message is in its topic by its record that it fired.
    fn write(&mut self, decisions: &[Decision], at: Timestamp) -> Check<Vec<Option<Written>>> {
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
                    let end = hold.ended(Ending::Fired { partition: 0 }, at);
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
            place.map(|place| Written { offset: offsets[place], message: is_fired(index).then_some((0, 0)) })
        });
        Ok(places.collect())
    }
}
