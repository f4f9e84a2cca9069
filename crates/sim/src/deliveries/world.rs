//! The world of a run: the log, the store, the endpoint, the owners, and each single step that can happen. A seed or a scene chooses the
//! steps. The world itself only draws the endpoint's behaviour.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_cluster::Machine as _;
use whimbrel_cluster::owner_clock::ClockReading;
use whimbrel_dispatch::DispatchSettings;
use whimbrel_dispatch::line_set::{CURSOR, OutgoingMessage};
use whimbrel_dispatch::pending_appends::{AppendDone, Settlement};
use whimbrel_dispatch::runner::{
    CallDone, RETRY_AFTER, ReadDone, RunnerEffect, RunnerInput, RunnerStart, SaveDone, SubscriptionRunner,
};
use whimbrel_dispatch::source_topics::SubscriptionTopics;
use whimbrel_dispatch::window::WindowLimits;
use whimbrel_model::ports::{
    AfterFailure, AttemptOutcome, AttemptRecord, CallReport, LogError, ProgressError, ProgressKey, ProgressRow,
};
use whimbrel_model::subscription::{Mode, OnExhausted, Ordering, RetryPolicy, RunState, TopicStart};
use whimbrel_model::{
    Headers, HoldRecord, PartitionId, Record, StoredSubscription, SubscriptionNumber, SubscriptionSpec, Timestamp,
};

use super::endpoint::SimEndpoint;
use super::log::{DEAD, HOLDS, RETRIES, SimHolds, SimTopic, TOPIC};
use super::owner::{AnsweredCall, DeliveryOwner, OpenAppend, OpenCall, OpenSave, ReadPlace, SimCatalogue};
use super::store::{OwnerMemory, SavedRow, SavedRows, SimProgress};
use super::truth::{DeliveryTruth, Starts};
use crate::trace::Trace;
use crate::{CheckResult, Rng};

const NUMBER: SubscriptionNumber = SubscriptionNumber(1);
const NAME: &str = "billing";
/// Limit of the messages removed by retention that become dead letters at one time.
const LOST_AT_ONCE: usize = 3;

/// How the subscription delivers.
#[derive(Debug, Clone)]
pub struct RunSettings {
    pub ordering: Ordering,
    pub retry: RetryPolicy,
    pub on_exhausted: OnExhausted,
    pub blocked_sleep_ms: u64,
    pub concurrency: usize,
    pub limits: WindowLimits,
    pub save_every_ms: i64,
    pub timeout_ms: i64,
    pub retry_holds: usize,
}

/// The fault of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFault {
    None,
    /// Nothing is written.
    Fails,
    /// The record is written, and the answer is lost.
    AnswerLost,
}

pub struct DeliveryWorld {
    pub settings: RunSettings,
    spec: SubscriptionSpec,
    pub time: i64,
    pub log: SimTopic,
    /// The catalogue's entries of the log's topics.
    topics: SubscriptionTopics,
    pub holds: SimHolds,
    pub store: SimProgress,
    pub endpoint: SimEndpoint,
    pub catalogue: SimCatalogue,
    /// The previous entry, which a node may still use.
    pub earlier: SimCatalogue,
    pub nodes: Vec<Option<DeliveryOwner>>,
    pub epoch: u64,
    pub truth: DeliveryTruth,
    pub rng: Rng,
    /// The future receipts of the endpoint: message and run.
    taking: BTreeMap<(i64, u64), (usize, u32)>,
    takings: u64,
    pub largest: usize,
    pub calls: u64,
    pub trace: Trace,
}

impl DeliveryWorld {
    pub fn new(settings: RunSettings, nodes: usize, partitions: u32, rng: Rng, trace: Trace) -> Self {
        let spec = SubscriptionSpec {
            ordering: settings.ordering,
            concurrency: settings.concurrency as u32,
            retry: settings.retry.clone(),
            on_exhausted: settings.on_exhausted,
            blocked_sleep_ms: settings.blocked_sleep_ms,
            ..SubscriptionSpec::new(vec!["orders".to_owned()], Mode::Push, None)
        };
        let log = SimTopic::new(partitions);
        Self {
            truth: DeliveryTruth::new(settings.ordering),
            spec,
            settings,
            time: 1_000_000,
            topics: log.view(),
            log,
            holds: SimHolds::default(),
            store: SimProgress::default(),
            endpoint: SimEndpoint::default(),
            catalogue: SimCatalogue { run: 1, starts: Starts::new() },
            earlier: SimCatalogue { run: 1, starts: Starts::new() },
            nodes: (0..nodes).map(|_| None).collect(),
            epoch: 0,
            rng,
            taking: BTreeMap::new(),
            takings: 0,
            largest: 0,
            calls: 0,
            trace,
        }
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.time)
    }

    pub fn note(&mut self, what: impl FnOnce() -> String) {
        self.trace.steps += 1;
        let (step, time) = (self.trace.steps, self.time);
        self.trace.note(|| format!("{step:5} {time:8} {}", what()));
    }

    // ---- the environment ----------------------------------------------------------------------------------------

    pub fn publish(&mut self, key: Option<&str>, size: usize) {
        self.publish_with(key, size, Headers::EMPTY);
    }

    pub fn publish_with(&mut self, key: Option<&str>, size: usize, headers: Headers) {
        let number = self.truth.messages.len();
        let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
        let id = self.log.place_of(key.as_deref(), number as u64);
        let mut value = format!("{number} ").into_bytes();
        value.resize(value.len().max(size), b'.');
        let record = Record { key: key.clone(), value: value.into(), headers, timestamp: self.now() };
        self.largest = self.largest.max(record.size());
        let offset = self.log.append(id, record);
        self.truth.published(id, offset, key.map(|key| key.to_vec()), self.time);
        self.note(|| format!("message {number} is published at {id}:{offset}"));
    }

    /// Lets time pass: due holds fire, and the endpoint receives the messages of earlier calls.
    pub fn pass(&mut self, ms: i64) -> CheckResult {
        let until = self.time + ms;
        while let Some(entry) = self.taking.first_entry()
            && entry.key().0 <= until
        {
            let ((at, _), (message, run)) = entry.remove_entry();
            self.time = self.time.max(at);
            self.note(|| format!("the endpoint takes message {message}"));
            self.truth.taken(message, run, at, &self.log)?;
        }
        self.time = until;
        while self.holds.fire(self.now(), &mut self.log) {
            let fired = self.log.records(RETRIES).last().map_or(0, |stored| stored.record.size());
            self.largest = self.largest.max(fired);
            self.note(|| "a retry is due".to_owned());
        }
        Ok(())
    }

    pub fn seek(&mut self, starts: Starts) {
        self.note(|| format!("the cursor is set to {starts:?}"));
        self.truth.runs.push(starts.clone());
        let catalogue = SimCatalogue { run: self.truth.run(), starts };
        self.earlier = std::mem::replace(&mut self.catalogue, catalogue);
    }

    pub fn grow(&mut self, to: u32) {
        self.note(|| format!("the topic has {to} partitions"));
        self.log.grow(to);
        self.topics = self.log.view();
    }

    /// Makes the node own the subscription; the previous owner does not notice. Returns `false` if the store is unavailable.
    pub fn take(&mut self, node: usize) -> CheckResult<bool> {
        self.take_behind(node, self.catalogue.clone())
    }

    /// The same for a node that uses this entry of the catalogue until it follows.
    pub fn take_behind(&mut self, node: usize, followed: SimCatalogue) -> CheckResult<bool> {
        let epoch = self.epoch + 1;
        let rows = match self.store.open(epoch) {
            Ok(rows) => rows,
            Err(ProgressError::Unavailable(_)) => return Ok(false),
            Err(error) => return Err(format!("the newest epoch is rejected: {error}")),
        };
        self.epoch = epoch;
        self.note(|| format!("node {node} owns the subscription with epoch {epoch}"));
        let row = |(id, row): (&PartitionId, &SavedRow)| ProgressRow {
            place: ProgressKey { line: CURSOR, partition: *id },
            run: row.run,
            state: row.state.clone(),
        };
        let start = RunnerStart {
            settings: self.dispatch_settings(),
            epoch,
            subscription: self.subscription(&followed),
            topics: self.topics.clone(),
            rows: rows.iter().map(row).collect(),
        };
        let mut owner = DeliveryOwner {
            epoch,
            runner: SubscriptionRunner::new(start, self.reading()),
            followed,
            topics: self.topics.clone(),
            reads: Vec::new(),
            calls: Vec::new(),
            settling: Vec::new(),
            saving: None,
            save_due: self.time + self.settings.save_every_ms,
            rows,
            memory: Default::default(),
            looked_at: Default::default(),
            opened: Default::default(),
            answering: None,
        };
        owner.load_memory();
        self.nodes[node] = Some(owner);
        self.turn(node)?;
        Ok(true)
    }

    fn dispatch_settings(&self) -> DispatchSettings {
        DispatchSettings {
            prefetch_bytes: self.settings.limits.body_bytes,
            parked_bytes: self.settings.limits.parked_bytes,
            retry_holds: self.settings.retry_holds as u64,
            lost_at_once: LOST_AT_ONCE,
            save_interval: Duration::from_millis(self.settings.save_every_ms as u64),
            ..DispatchSettings::default()
        }
    }

    /// The subscription as an entry of the catalogue has it.
    fn subscription(&self, catalogue: &SimCatalogue) -> Arc<Subscription> {
        let offsets = self.log.ids().map(|id| catalogue.starts.get(&id).copied().unwrap_or(0)).collect();
        let stored = StoredSubscription {
            number: NUMBER,
            spec: self.spec.clone(),
            state: RunState::Active,
            run: catalogue.run,
            last_run: catalogue.run,
            starts: vec![TopicStart { topic: "orders".to_owned(), number: TOPIC, offsets }],
            replays: Vec::new(),
            created_at_ms: 0,
            deleting: false,
        };
        Arc::new(Subscription { name: NAME.into(), stored, version: catalogue.run.into() })
    }

    fn reading(&self) -> ClockReading {
        ClockReading { wall: self.now(), expiry: self.now(), steady_ms: self.time as u64 }
    }

    pub fn crash(&mut self, node: usize) {
        self.note(|| format!("node {node} crashes"));
        self.nodes[node] = None;
    }

    // ---- steps of a node -----------------------------------------------------------------------------------------

    /// The node reads the current entry of the catalogue and the growths of the topic.
    pub fn follow(&mut self, node: usize) -> CheckResult {
        let catalogue = self.catalogue.clone();
        let Some(owner) = &mut self.nodes[node] else { return Ok(()) };
        owner.followed = catalogue;
        let input = self.catalogue_of(node);
        self.step(node, input.into_iter().collect())
    }

    /// The entry that the node follows, with the present topics.
    fn catalogue_of(&mut self, node: usize) -> Option<RunnerInput> {
        let topics = self.topics.clone();
        let owner = self.nodes[node].as_mut()?;
        owner.topics = topics.clone();
        let followed = owner.followed.clone();
        Some(RunnerInput::Catalogue { subscription: self.subscription(&followed), topics })
    }

    /// Begins every operation that can begin now.
    pub fn turn(&mut self, node: usize) -> CheckResult {
        self.step(node, Vec::new())
    }

    /// Passes inputs to the node's runner, performs its effects, and checks the rules.
    fn step(&mut self, node: usize, mut inputs: Vec<RunnerInput>) -> CheckResult {
        let Some(mut owner) = self.nodes[node].take() else { return Ok(()) };
        if owner.save_due <= self.time {
            owner.save_due = self.time + self.settings.save_every_ms;
        }
        let mut has_ended = false;
        loop {
            let effects = owner.runner.step(self.reading(), std::mem::take(&mut inputs));
            owner.load_memory();
            for effect in effects {
                has_ended |= matches!(effect, RunnerEffect::End(_));
                inputs.extend(self.perform(node, &mut owner, effect)?);
            }
            if inputs.is_empty() {
                break;
            }
        }
        let sound = self.is_sound(&mut owner);
        if has_ended {
            self.note(|| format!("node {node} gives up: another owns it"));
        } else {
            self.nodes[node] = Some(owner);
        }
        sound
    }

    /// Performs an effect. Returns its result, if it is known at once.
    fn perform(
        &mut self,
        node: usize,
        owner: &mut DeliveryOwner,
        effect: RunnerEffect,
    ) -> CheckResult<Option<RunnerInput>> {
        match effect {
            RunnerEffect::Read { incarnation, wanted, .. } => owner.reads.push((incarnation, wanted)),
            RunnerEffect::Call(outgoing) => self.call(node, owner, outgoing)?,
            RunnerEffect::Append(settlements) => {
                let window = &owner.line().window;
                let place = |each: &Settlement| window.place_of(each.out.ticket).unwrap_or((DEAD, 0));
                let read_at = settlements.iter().map(place).collect();
                owner.settling.push(OpenAppend { settlements, read_at });
            }
            RunnerEffect::Save(rows) => {
                let saved = owner.saved(&rows);
                owner.saving = Some(OpenSave { rows, saved });
            }
            RunnerEffect::RecordAttempts(records) => {
                records.into_iter().for_each(|record| self.attempted(owner, record));
            }
            RunnerEffect::CountRetryHolds(_) => {
                return Ok(Some(RunnerInput::RetryHoldsCounted(self.holds.waiting() as u64)));
            }
            RunnerEffect::CheckRetryHolds { .. } => return Ok(Some(RunnerInput::RetryHoldsChecked(true))),
            RunnerEffect::SkippedRetry { .. } => return Err("a record of the retry topic is not a retry".to_owned()),
            RunnerEffect::Publish(_)
            | RunnerEffect::Count(_)
            | RunnerEffect::Gauges(_)
            | RunnerEffect::BehindSeek
            | RunnerEffect::End(_) => {}
            _ => return Err("the runner has an effect that nothing asked for".to_owned()),
        }
        Ok(None)
    }

    /// The runner has recorded the attempt whose answer it handles.
    fn attempted(&mut self, owner: &mut DeliveryOwner, record: AttemptRecord) {
        let Some(answered) = &mut owner.answering else { return };
        answered.is_recorded = true;
        let (read_at, run, message) = (answered.read_at, answered.run, answered.message);
        let is_dropped = matches!(record.outcome, AttemptOutcome::Failed { next: AfterFailure::Dropped, .. });
        match record.outcome {
            AttemptOutcome::Failed { next: AfterFailure::RetryAt(until), .. } if self.spec.retries_in_place() => {
                owner.remember_try(read_at, true, until);
            }
            AttemptOutcome::Failed { next: AfterFailure::RetryAt(_) | AfterFailure::DeadLetter, .. } => {}
            AttemptOutcome::Delivered { .. } | AttemptOutcome::Failed { .. } => {
                owner.remember_done(read_at);
                self.truth.settled(run, read_at.0, read_at.1);
                self.truth.messages[message].is_dropped |= is_dropped;
                self.truth.dropped += u64::from(is_dropped);
            }
        }
    }

    fn call(&mut self, node: usize, owner: &mut DeliveryOwner, outgoing: OutgoingMessage) -> CheckResult {
        self.calls += 1;
        let read_at = owner.line().window.place_of(outgoing.out.ticket).ok_or("a call has no ticket in flight")?;
        let (id, offset) = read_at;
        if owner.memory.get(&id).is_some_and(|memory| memory.done.contains(offset)) {
            return Err(format!("{id}:{offset} is delivered again, although it was saved as done"));
        }
        let attempts = outgoing.attempt - 1 - outgoing.message.attempts_before;
        let (tries, until) = owner.tries_of(read_at);
        if attempts != tries || self.time < until {
            return Err(format!(
                "{id}:{offset} is delivered with {attempts} attempts at {}, not {tries} at {until}",
                self.time
            ));
        }
        let key = outgoing.message.record.key.clone();
        if self.settings.ordering == Ordering::Key && key.is_some() && id != RETRIES {
            let is_beside = |call: &OpenCall| {
                call.outgoing.message.record.key == key
                    && call.read_at.0 != RETRIES
                    && owner.is_in_flight(call.outgoing.out)
            };
            if owner.calls.iter().any(is_beside) {
                return Err(format!("{id}:{offset} is in flight together with another message of its key"));
            }
        }
        let message = message_number(&outgoing.message.record);
        let planned = self.endpoint.call(key.as_deref(), self.time, self.settings.timeout_ms, &mut self.rng);
        self.note(|| format!("node {node} calls with message {message}, attempt {}: {planned:?}", outgoing.attempt));
        if let Some(after) = planned.taken_after_ms {
            self.takings += 1;
            self.taking.insert((self.time + after, self.takings), (message, outgoing.message.run));
        }
        let answered_at = self.time + planned.after_ms;
        let calling = OpenCall { outgoing, read_at, outcome: planned.outcome, answered_at };
        if planned.is_twice {
            owner.calls.push(OpenCall { answered_at: answered_at + 5, ..calling.clone() });
        }
        owner.calls.push(calling);
        Ok(())
    }

    /// Checks the rules that hold for an owner at every moment.
    fn is_sound(&self, owner: &mut DeliveryOwner) -> CheckResult {
        let window = &owner.line().window;
        let limits = self.settings.limits;
        if window.body_bytes() >= limits.body_bytes + 2 * (self.largest + MESSAGE_BYTES) {
            return Err(format!("{} bytes of bodies in memory, largest {}", window.body_bytes(), self.largest));
        }
        // Bodies that were in memory when the limit was reached may be parked as well.
        let loaded = limits.body_bytes / MESSAGE_BYTES + self.log.page + 2;
        let partitions = window.partition_ids().len();
        if window.parked_bytes() > partitions * (limits.parked_bytes + loaded * (LANE_BYTES_MAX + self.largest)) {
            return Err(format!("{} bytes of parked messages", window.parked_bytes()));
        }
        for (id, watermark) in owner.watermarks() {
            let from = owner.looked_at.insert(id, watermark).unwrap_or(0);
            self.truth.check_watermark(owner.line().run, id, from, watermark, &self.log)?;
        }
        Ok(())
    }

    /// A read is answered. Returns false if it waits at the tail.
    pub fn finish_read(&mut self, node: usize, index: usize, fails: bool) -> CheckResult<bool> {
        let Some(owner) = &mut self.nodes[node] else { return Ok(false) };
        let (incarnation, wanted) = owner.reads[index];
        let is_current = incarnation == owner.line().incarnation;
        if is_current && !wanted.again && !fails && self.log.end(wanted.partition) <= wanted.from {
            return Ok(false);
        }
        owner.reads.swap_remove(index);
        let outcome = if fails {
            Err(LogError::Unavailable("simulated".to_owned()))
        } else {
            self.log.read(wanted.partition, wanted.from, wanted.max_bytes)
        };
        self.note(|| format!("node {node} has read {} from {}", wanted.partition, wanted.from));
        // The growths of the topic are passed before any later message.
        let mut inputs = Vec::new();
        if self.nodes[node].as_ref().is_some_and(|owner| !owner.topics.is_same(&self.topics)) {
            inputs.extend(self.catalogue_of(node));
        }
        inputs.push(RunnerInput::Read(ReadDone { line: CURSOR, incarnation, wanted, outcome }));
        self.step(node, inputs).map(|()| true)
    }

    /// The answer of a call arrives. Returns false if it is not due.
    pub fn finish_call(&mut self, node: usize, index: usize) -> CheckResult<bool> {
        // Earlier receipts of the endpoint come first.
        self.pass(0)?;
        let Some(owner) = &mut self.nodes[node] else { return Ok(false) };
        if owner.calls[index].answered_at > self.time {
            return Ok(false);
        }
        let OpenCall { outgoing, read_at, outcome, .. } = owner.calls.swap_remove(index);
        if owner.is_in_flight(outgoing.out) {
            let (run, message) = (outgoing.message.run, message_number(&outgoing.message.record));
            owner.answering = Some(AnsweredCall { read_at, run, message, is_recorded: false });
        }
        let called = CallReport { outcome, took: Duration::ZERO };
        self.note(|| format!("node {node} receives an answer"));
        self.step(node, vec![RunnerInput::Called(CallDone { outgoing, called }), RunnerInput::RecordAttempts])?;
        let now = self.now();
        if let Some(owner) = &mut self.nodes[node]
            && let Some(answered) = owner.answering.take()
            && !answered.is_recorded
        {
            let until = Timestamp::from_millis(now.as_millis() + RETRY_AFTER.as_millis() as i64);
            owner.remember_try(answered.read_at, false, until);
        }
        Ok(true)
    }

    /// Holds and dead letters are written, or fail, or their answer is lost.
    pub fn finish_append(&mut self, node: usize, index: usize, fault: AppendFault) -> CheckResult {
        let Some(owner) = &mut self.nodes[node] else { return Ok(()) };
        let OpenAppend { settlements, read_at } = owner.settling.swap_remove(index);
        for (settlement, place) in settlements.iter().zip(&read_at) {
            if fault != AppendFault::Fails {
                self.write(settlement, *place)?;
            }
            if let Some(owner) = &mut self.nodes[node]
                && fault == AppendFault::None
                && owner.is_current(settlement.out)
            {
                owner.remember_done(*place);
            }
            self.note(|| format!("node {node}: the settlement of {}:{} is written: {fault:?}", place.0, place.1));
        }
        let outcome = || match fault {
            AppendFault::None => Ok(0),
            AppendFault::Fails | AppendFault::AnswerLost => Err(LogError::Unavailable("simulated".to_owned())),
        };
        let outcomes = settlements.iter().map(|_| outcome()).collect();
        self.step(node, vec![RunnerInput::Appended(AppendDone { settlements, outcomes })])
    }

    /// Writes a hold or a dead letter.
    fn write(&mut self, settlement: &Settlement, (id, offset): ReadPlace) -> CheckResult {
        let entry = settlement.entry.clone().ok_or("a settlement has no topic")?;
        let message = message_number(&settlement.message.record);
        if entry.partition == HOLDS {
            let Ok(HoldRecord::Held(hold)) = HoldRecord::of(&entry.record, 0) else {
                return Err("the record of a retry is not a hold".to_owned());
            };
            self.truth.held += u64::from(self.holds.accept(hold));
            self.truth.messages[message].is_held = true;
        } else {
            self.log.append(DEAD, entry.record);
            self.truth.buried += 1;
            // A lost message was not attempted, and its record is gone.
            if settlement.origin.attempts > 0 {
                self.truth.messages[message].is_buried = true;
            }
        }
        self.truth.settled(settlement.message.run, id, offset);
        Ok(())
    }

    /// Begins a save of everything that is not saved, and returns its rows.
    pub fn begin_save(&mut self, node: usize) -> CheckResult<SavedRows> {
        self.step(node, vec![RunnerInput::SaveNow])?;
        let saving = self.nodes[node].as_ref().and_then(|owner| owner.saving.as_ref());
        Ok(saving.map(|saving| saving.saved.clone()).unwrap_or_default())
    }

    /// Saves the progress. With `is_lost`, the answer is lost. A fenced owner stops.
    pub fn save(&mut self, node: usize, is_lost: bool) -> CheckResult {
        self.finish_save(node, is_lost)?;
        self.begin_save(node)?;
        self.finish_save(node, is_lost)
    }

    /// Ends the save in progress.
    pub fn finish_save(&mut self, node: usize, is_lost: bool) -> CheckResult {
        let Some(owner) = &mut self.nodes[node] else { return Ok(()) };
        let Some(OpenSave { rows, saved }) = owner.saving.take() else { return Ok(()) };
        let (epoch, newest) = (owner.epoch, self.epoch);
        let outcome = self.store.save(epoch, saved);
        if outcome.is_ok() && epoch < newest {
            return Err("an earlier owner has saved".to_owned());
        }
        self.note(|| format!("node {node} saves: {outcome:?}"));
        let lost = || ProgressError::Unavailable("the answer is lost".to_owned());
        let outcome = if is_lost { outcome.and(Err(lost())) } else { outcome };
        self.step(node, vec![RunnerInput::Saved(SaveDone { rows, outcome })])
    }

    /// The recorded memory of a node's owner about a partition.
    pub fn memory(&self, node: usize, id: PartitionId) -> OwnerMemory {
        self.nodes[node].as_ref().and_then(|owner| owner.memory.get(&id)).cloned().unwrap_or_default()
    }

    /// The next time at which an answer arrives, a parked message is due or a hold fires.
    pub fn next_time(&self) -> Option<i64> {
        let of = |owner: &DeliveryOwner| {
            let answered = owner.calls.iter().map(|call| call.answered_at).min();
            let parked = owner.line().window.next_time().map(Timestamp::as_millis);
            answered.into_iter().chain(parked).min()
        };
        let owners = self.nodes.iter().flatten().filter_map(of);
        owners.chain(self.holds.next_time().map(Timestamp::as_millis)).min()
    }
}

/// The memory cost of a message beside its bytes, as the shell counts it.
const MESSAGE_BYTES: usize = 200;
/// Limit of the memory cost of one more parked lane beside its key.
const LANE_BYTES_MAX: usize = 1_200;

/// The number of the message in a record, from its value.
fn message_number(record: &Record) -> usize {
    let text = record.value.split(|byte| *byte == b' ').next().unwrap_or_default();
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}
