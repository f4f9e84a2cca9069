//! The world of a run: the log, the store, the endpoint, the owners, and each single step that can happen. A seed or a scene chooses the
//! steps. The world itself only draws the endpoint's behaviour.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_dispatch::call_verdict::{CallVerdict, DeliveryFailure, classify_response};
use whimbrel_dispatch::delivery_line::{AfterAttempt, DeliveryLine, LineRules};
use whimbrel_dispatch::outbound_message::{OutboundMessage, RetryData, RetryTopic, dead_letter_origin};
use whimbrel_dispatch::window::{DeliveryTicket, ReadMessage, WindowLimits};
use whimbrel_model::ports::{LogError, ProgressError};
use whimbrel_model::subscription::{Mode, OnExhausted, Ordering, RetryPolicy};
use whimbrel_model::{Headers, PartitionId, Record, SubscriptionNumber, SubscriptionSpec, Timestamp};

use super::endpoint::SimEndpoint;
use super::log::{DEAD, RETRIES, SimHolds, SimTopic, TOPIC};
use super::owner::{AppendBody, DeliveryOwner, OpenAppend, OpenCall, OpenDelivery, SimCatalogue};
use super::store::{OwnerMemory, SimProgress};
use super::truth::{DeliveryTruth, Starts};
use crate::trace::Trace;
use crate::{CheckResult, Rng};

const NUMBER: SubscriptionNumber = SubscriptionNumber(1);
const NAME: &str = "billing";
/// Limit of the messages removed by retention that become dead letters at one time.
const LOST_AT_ONCE: usize = 3;
/// Time for which a message waits after no worker could call.
const NO_WORKER_MS: i64 = 500;

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
    pub steps: u64,
    pub calls: u64,
    pub trace: Trace,
}

impl DeliveryWorld {
    pub fn new(settings: RunSettings, nodes: usize, partitions: u32, rng: Rng, trace: Trace) -> Self {
        let spec = SubscriptionSpec {
            ordering: settings.ordering,
            ..SubscriptionSpec::new(vec!["orders".to_owned()], Mode::Push, None)
        };
        Self {
            truth: DeliveryTruth::new(settings.ordering),
            spec,
            settings,
            time: 1_000_000,
            log: SimTopic::new(partitions),
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
            steps: 0,
            calls: 0,
            trace,
        }
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.time)
    }

    pub fn note(&mut self, what: impl FnOnce() -> String) {
        self.steps += 1;
        let (step, time) = (self.steps, self.time);
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
        let owner = DeliveryOwner {
            epoch,
            line: self.make_line(followed.run, epoch << 32),
            followed,
            reads: Vec::new(),
            calls: Vec::new(),
            settling: Vec::new(),
            save_due: self.time + self.settings.save_every_ms,
            rows,
            memory: Default::default(),
            looked_at: Default::default(),
        };
        self.nodes[node] = Some(owner);
        self.open_partitions(node);
        self.turn(node)?;
        Ok(true)
    }

    pub fn crash(&mut self, node: usize) {
        self.note(|| format!("node {node} crashes"));
        self.nodes[node] = None;
    }

    fn make_line(&self, run: u32, incarnation: u64) -> DeliveryLine<Record> {
        let settings = &self.settings;
        let rules = LineRules {
            retry: settings.retry.clone(),
            on_exhausted: settings.on_exhausted,
            blocked_sleep: Duration::from_millis(settings.blocked_sleep_ms),
            in_place: settings.ordering != Ordering::None,
        };
        DeliveryLine::new(0, run, incarnation, settings.ordering, settings.limits, rules)
    }

    fn open_partitions(&mut self, node: usize) {
        let Some(owner) = &mut self.nodes[node] else { return };
        self.log.ids().chain([RETRIES]).for_each(|id| owner.open(id));
        owner.line.window.set_growths(TOPIC, &self.log.growths);
    }

    // ---- steps of a node -----------------------------------------------------------------------------------------

    /// The node reads the current entry of the catalogue and the growths of the topic.
    pub fn follow(&mut self, node: usize) -> CheckResult {
        if let Some(mut owner) = self.nodes[node].take() {
            owner.follow(&self.catalogue, |run, incarnation| self.make_line(run, incarnation));
            self.nodes[node] = Some(owner);
            self.open_partitions(node);
        }
        self.turn(node)
    }

    /// Begins every operation that can begin now.
    pub fn turn(&mut self, node: usize) -> CheckResult {
        let Some(mut owner) = self.nodes[node].take() else { return Ok(()) };
        let in_place = self.settings.ordering != Ordering::None;
        let outcome = (|| {
            loop {
                while let Some(wanted) = owner.line.window.next_read() {
                    owner.reads.push((owner.line.incarnation, wanted));
                }
                let fresh = in_place || self.holds.waiting() < self.settings.retry_holds;
                if owner.line.window.in_flight() >= self.settings.concurrency {
                    return Ok(());
                }
                let Some(delivery) = owner.line.window.next_delivery(self.now(), fresh) else { return Ok(()) };
                let read_at = (delivery.partition, delivery.offset);
                let parcel = if delivery.partition == RETRIES {
                    OutboundMessage::from_origin_record(&delivery.body)
                        .ok_or("a record of the retry topic is not a retry")?
                        .0
                } else {
                    OutboundMessage::of(
                        &"orders".into(),
                        delivery.partition,
                        delivery.offset,
                        owner.line.run,
                        delivery.body,
                    )
                };
                let attempt = parcel.attempts_before + delivery.attempts + 1;
                let (incarnation, run) = (owner.line.incarnation, owner.line.run);
                let out = OpenDelivery { incarnation, run, ticket: delivery.ticket, read_at, attempt, parcel };
                self.call(node, &mut owner, out, delivery.attempts)?;
            }
        })();
        let sound = self.is_sound(&mut owner);
        self.nodes[node] = Some(owner);
        outcome.and(sound)
    }

    fn call(&mut self, node: usize, owner: &mut DeliveryOwner, out: OpenDelivery, attempts: u32) -> CheckResult {
        self.calls += 1;
        let (id, offset) = out.read_at;
        if owner.memory.get(&id).is_some_and(|memory| memory.done.contains(offset)) {
            return Err(format!("{id}:{offset} is delivered again, although it was saved as done"));
        }
        let (tries, until) = owner.tries_of(out.read_at);
        if attempts != tries || self.time < until {
            return Err(format!(
                "{id}:{offset} is delivered with {attempts} attempts at {}, not {tries} at {until}",
                self.time
            ));
        }
        if self.settings.ordering == Ordering::Key && out.parcel.record.key.is_some() && id != RETRIES {
            let mut others = owner.calls.iter().filter(|call| owner.is_current(&call.out));
            let is_beside = |call: &OpenCall| {
                call.out.parcel.record.key == out.parcel.record.key
                    && call.out.read_at.0 != RETRIES
                    && owner.line.window.is_in_flight(call.out.ticket)
            };
            if others.any(is_beside) {
                return Err(format!("{id}:{offset} is in flight together with another message of its key"));
            }
        }
        let message = message_number(&out.parcel.record);
        let key = out.parcel.record.key.as_deref();
        let planned = self.endpoint.call(key, self.time, self.settings.timeout_ms, &mut self.rng);
        self.note(|| format!("node {node} calls with message {message}, attempt {}: {planned:?}", out.attempt));
        if let Some(after) = planned.taken_after_ms {
            self.takings += 1;
            self.taking.insert((self.time + after, self.takings), (message, out.run));
        }
        let answered_at = self.time + planned.after_ms;
        let calling = OpenCall { out, outcome: planned.outcome, answered_at };
        if planned.is_twice {
            owner.calls.push(OpenCall { answered_at: answered_at + 5, ..calling.clone() });
        }
        owner.calls.push(calling);
        Ok(())
    }

    /// Checks the rules that hold for an owner at every moment.
    fn is_sound(&self, owner: &mut DeliveryOwner) -> CheckResult {
        let window = &owner.line.window;
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
            self.truth.check_watermark(owner.line.run, id, from, watermark, &self.log)?;
        }
        Ok(())
    }

    /// A read is answered. Returns false if it waits at the tail.
    pub fn finish_read(&mut self, node: usize, index: usize, fails: bool) -> CheckResult<bool> {
        let now = self.now();
        let Some(owner) = &mut self.nodes[node] else { return Ok(false) };
        let (incarnation, wanted) = owner.reads[index];
        if incarnation != owner.line.incarnation {
            owner.reads.swap_remove(index);
            return Ok(true);
        }
        if !wanted.again && !fails && self.log.end(wanted.partition) <= wanted.from {
            return Ok(false);
        }
        owner.reads.swap_remove(index);
        let read = self.log.read(wanted.partition, wanted.from, wanted.max_bytes);
        let lost = match read {
            _ if fails => {
                owner.line.window.end_read(wanted);
                Vec::new()
            }
            Ok(batch) => {
                // The growths of the topic are applied, and its partitions are open, before any later message is taken in.
                self.log.ids().for_each(|id| owner.open(id));
                owner.line.window.set_growths(TOPIC, &self.log.growths);
                for stored in batch.records.iter().filter(|_| !wanted.again) {
                    let brought = match wanted.partition {
                        RETRIES => RetryData::from_origin_record(&stored.record),
                        _ => RetryData::of(&stored.record),
                    };
                    owner.line.judge_saved_retry(wanted.partition, stored.offset, &brought, now);
                }
                let arrivals = batch.records.into_iter().map(|stored| ReadMessage {
                    offset: stored.offset,
                    key: stored.record.key.clone(),
                    size: stored.record.size() + MESSAGE_BYTES,
                    body: Some(stored.record),
                });
                if wanted.again {
                    owner.line.window.take_again(wanted, arrivals.collect(), batch.next)
                } else {
                    owner.line.window.take_in(wanted.partition, arrivals.collect(), batch.next);
                    Vec::new()
                }
            }
            Err(LogError::Trimmed { first, .. }) => {
                owner.line.window.end_read(wanted);
                owner.line.window.gone(wanted.partition, 0..first, LOST_AT_ONCE)
            }
            Err(error) => return Err(format!("a read fails: {error}")),
        };
        lost.into_iter().for_each(|(ticket, offset)| self.bury_lost(node, ticket, wanted.partition, offset));
        self.note(|| format!("node {node} has read {} from {}", wanted.partition, wanted.from));
        self.turn(node).map(|()| true)
    }

    fn bury_lost(&mut self, node: usize, ticket: DeliveryTicket, id: PartitionId, offset: u64) {
        let now = self.now();
        let Some(owner) = &mut self.nodes[node] else { return };
        let parcel = OutboundMessage::lost(&"orders".into(), id, offset, owner.line.run, now);
        let letter = dead_letter_origin(parcel.origin(NAME, 0), "retention", None, now);
        let letter = AppendBody::Dead(Box::new(parcel.origin_record(&letter, now)));
        let (incarnation, run) = (owner.line.incarnation, owner.line.run);
        let out = OpenDelivery { incarnation, run, ticket, read_at: (id, offset), attempt: 0, parcel };
        owner.settling.push(OpenAppend { out, letter });
    }

    /// The answer of a call arrives. Returns false if it is not due.
    pub fn finish_call(&mut self, node: usize, index: usize) -> CheckResult<bool> {
        // Earlier receipts of the endpoint come first.
        self.pass(0)?;
        let now = self.now();
        let random = self.rng.draw();
        let Some(owner) = &mut self.nodes[node] else { return Ok(false) };
        if owner.calls[index].answered_at > self.time {
            return Ok(false);
        }
        let OpenCall { out, outcome, .. } = owner.calls.swap_remove(index);
        if !owner.is_current(&out) {
            self.note(|| format!("node {node} hears of an earlier line"));
            return Ok(true);
        }
        match classify_response(&self.spec, None, outcome) {
            CallVerdict::Success { .. } => {
                if owner.line.succeeded(out.ticket) == AfterAttempt::Done {
                    owner.remember_done(out.read_at);
                    self.truth.settled(out.run, out.read_at.0, out.read_at.1);
                }
            }
            CallVerdict::Failure(failure) => self.failed(node, out, &failure, random),
            CallVerdict::NotTried { .. } | CallVerdict::Gone => {
                let until = Timestamp::from_millis(now.as_millis() + NO_WORKER_MS);
                if owner.line.not_tried(out.ticket, until) != AfterAttempt::Stale {
                    owner.remember_try(out.read_at, false, until);
                }
            }
        }
        self.note(|| format!("node {node} hears an answer"));
        self.turn(node).map(|()| true)
    }

    fn failed(&mut self, node: usize, out: OpenDelivery, failure: &DeliveryFailure, random: u64) {
        let now = self.now();
        let Some(owner) = &mut self.nodes[node] else { return };
        let message = message_number(&out.parcel.record);
        let own = out.parcel.own_retry();
        match owner.line.failed(out.ticket, out.attempt, failure, own, now, random) {
            AfterAttempt::Parked(until) => owner.remember_try(out.read_at, true, until),
            AfterAttempt::Hold(due) => {
                let topic: Arc<str> = "_retry.billing".into();
                let to = RetryTopic { number: RETRIES.topic, name: &topic };
                let hold = out.parcel.hold(NUMBER, &out.parcel.origin(NAME, out.attempt), to, due);
                owner.settling.push(OpenAppend { out, letter: AppendBody::Hold(Box::new(hold)) });
            }
            AfterAttempt::Bury => {
                let origin = dead_letter_origin(out.parcel.origin(NAME, out.attempt), "simulated", Some(failure), now);
                let letter = AppendBody::Dead(Box::new(out.parcel.origin_record(&origin, now)));
                owner.settling.push(OpenAppend { out, letter });
            }
            AfterAttempt::Done => {
                owner.remember_done(out.read_at);
                self.truth.settled(out.run, out.read_at.0, out.read_at.1);
                self.truth.messages[message].is_dropped = true;
                self.truth.dropped += 1;
            }
            AfterAttempt::Stale => {}
        }
    }

    /// A hold or a dead letter is written, or fails, or its answer is lost.
    pub fn finish_append(&mut self, node: usize, index: usize, fault: AppendFault) -> CheckResult {
        let Some(owner) = &mut self.nodes[node] else { return Ok(()) };
        let settling = owner.settling.swap_remove(index);
        let out = settling.out.clone();
        let is_lost = out.attempt == 0;
        if fault != AppendFault::Fails {
            match settling.letter.clone() {
                AppendBody::Hold(hold) => {
                    self.truth.held += u64::from(self.holds.accept(*hold));
                    self.truth.messages[message_number(&out.parcel.record)].is_held = true;
                }
                AppendBody::Dead(record) => {
                    self.log.append(DEAD, *record);
                    self.truth.buried += 1;
                    if !is_lost {
                        self.truth.messages[message_number(&out.parcel.record)].is_buried = true;
                    }
                }
            }
            self.truth.settled(out.run, out.read_at.0, out.read_at.1);
        }
        let Some(owner) = &mut self.nodes[node] else { return Ok(()) };
        if owner.is_current(&out) {
            if fault == AppendFault::None {
                owner.line.settled(out.ticket);
                owner.remember_done(out.read_at);
            } else {
                owner.settling.push(settling);
            }
        }
        self.note(|| format!("node {node}: what became of {}:{} is written: {fault:?}", out.read_at.0, out.read_at.1));
        self.turn(node)
    }

    /// Saves the progress. With `is_lost`, the answer is lost. A fenced owner stops.
    pub fn save(&mut self, node: usize, is_lost: bool) -> CheckResult {
        let Some(owner) = &mut self.nodes[node] else { return Ok(()) };
        owner.save_due = self.time + self.settings.save_every_ms;
        let rows = owner.unsaved();
        if rows.is_empty() {
            return Ok(());
        }
        let ids: Vec<PartitionId> = rows.keys().copied().collect();
        let (epoch, newest) = (owner.epoch, self.epoch);
        let outcome = self.store.save(epoch, rows);
        if outcome.is_err() || is_lost {
            owner.line.window.not_saved(ids);
        }
        match outcome {
            Ok(()) if epoch < newest => return Err("an earlier owner has saved".to_owned()),
            Err(ProgressError::Fenced { .. }) => {
                self.nodes[node] = None;
                self.note(|| format!("node {node} gives up: another owns it"));
            }
            outcome => self.note(|| format!("node {node} saves: {outcome:?}")),
        }
        Ok(())
    }

    /// The recorded memory of a node's owner about a partition.
    pub fn memory(&self, node: usize, id: PartitionId) -> OwnerMemory {
        self.nodes[node].as_ref().and_then(|owner| owner.memory.get(&id)).cloned().unwrap_or_default()
    }

    /// The next time at which an answer arrives, a parked message is due or a hold fires.
    pub fn next_time(&self) -> Option<i64> {
        let of = |owner: &DeliveryOwner| {
            let answered = owner.calls.iter().map(|call| call.answered_at).min();
            let parked = owner.line.window.next_time().map(Timestamp::as_millis);
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
