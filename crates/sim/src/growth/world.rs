//! Nodes, publishers, the log and the coordination, and each step that can happen to them.

use std::collections::BTreeMap;

use whimbrel_catalogue::topics::Growth;
use whimbrel_catalogue::topics::agreement::{Confirmations, GrowthStep, GrowthView, PendingGrowth};
use whimbrel_model::TopicNumber;
use whimbrel_model::partitioner::partition_of;

use super::coordination::{LEASE_MS, SimCoordination, SimEntry};
use super::node::{ReaderPage, SimNode};
use super::profile::{GrowthFaults, GrowthProfile};
use super::report::GrowthCounts;
use super::truth::{GrowthTruth, key_text};
use crate::trace::Trace;
use crate::{CheckResult, Rng};

pub const TICK_MS: u64 = 20;
const NODES: u16 = 3;
const KEYS: usize = 6;
const PARTITIONS_FIRST: u32 = 2;
const PARTITIONS_MAX: u32 = 64;
const TOPIC: TopicNumber = TopicNumber(1);
const KEEP_ALIVE_EVERY_MS: u64 = LEASE_MS / 5;
/// The time for which a publisher waits for its answer.
const PATIENCE_MS: u64 = 8_000;
/// The time for which a node waits for the answer to a write.
const ANSWER_WITHIN_MS: u64 = 1_000;
const SLOW_MS_MAX: u64 = 6_000;

/// An append that a node has begun.
#[derive(Debug)]
struct Append {
    node: usize,
    life: u64,
    /// The session under which the node began it.
    session: u64,
    key: usize,
    number: u64,
    /// The mapping of the append, by its number of partitions.
    mapping: u32,
    partition: u32,
    /// The time of the next stage: the node sends the append, then the log writes it, then the node receives the answer.
    next_at: u64,
    state: AppendState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AppendState {
    NotSent,
    Sent,
    Landed(u64),
}

/// Publishes the messages of one key, one after the other.
#[derive(Debug, Default)]
struct Publisher {
    number: u64,
    /// Waits for an answer until this time.
    waits_until: Option<u64>,
    /// Messages acknowledged since the count was last cleared, by node.
    acknowledged_by: BTreeMap<usize, u64>,
}

/// A write on its way to the coordination.
#[derive(Debug)]
struct PendingWrite {
    at: u64,
    node: usize,
    life: u64,
    is_made: bool,
    is_answered: bool,
    what: WriteKind,
}

#[derive(Debug)]
enum WriteKind {
    Own { name: String, session: u64 },
    Put { expected: u64, entry: SimEntry },
}

pub struct GrowthWorld {
    pub now: u64,
    pub faults: GrowthFaults,
    pub nodes: Vec<SimNode>,
    pub coordination: SimCoordination,
    pub trace: Trace,
    pub counts: GrowthCounts,
    profile: GrowthProfile,
    rng: Rng,
    log: Vec<u64>,
    appends: Vec<Append>,
    publishers: Vec<Publisher>,
    writes: Vec<PendingWrite>,
    truth: GrowthTruth,
    next_session: u64,
}

impl GrowthWorld {
    pub fn new(faults: GrowthFaults, profile: GrowthProfile, rng: Rng, trace: Trace) -> Self {
        let coordination = SimCoordination::new(PARTITIONS_FIRST);
        let nodes = (0..NODES).map(|number| SimNode::new(number, coordination.entry().clone())).collect();
        Self {
            now: 1,
            faults,
            nodes,
            coordination,
            trace,
            counts: GrowthCounts::default(),
            profile,
            rng,
            log: vec![0; PARTITIONS_FIRST as usize],
            appends: Vec::new(),
            publishers: (0..KEYS).map(|_| Publisher::default()).collect(),
            writes: Vec::new(),
            truth: GrowthTruth::new(PARTITIONS_FIRST),
            next_session: 1,
        }
    }

    pub fn tick(&mut self) -> CheckResult {
        self.now += TICK_MS;
        self.trace.steps += 1;
        self.coordination.expire(self.now);
        for at in 0..self.nodes.len() {
            if self.nodes[at].runs(self.now) {
                self.keep_session(at);
                self.follow(at);
                self.drive(at);
                self.read(at)?;
            }
        }
        self.make_writes()?;
        self.move_appends();
        self.publish();
        Ok(())
    }

    pub fn check(&self) -> CheckResult {
        self.truth.check(self.coordination.entry())
    }

    /// The process ends. Requests that it has sent continue.
    pub fn crash(&mut self, at: usize) {
        let entry = self.coordination.entry().clone();
        self.nodes[at].restart(entry, self.now);
        self.appends.retain(|append| append.node != at || append.state != AppendState::NotSent);
        self.counts.crashes += 1;
        self.trace.note(|| format!("{}: node {at} crashed", self.now));
    }

    fn keep_session(&mut self, at: usize) {
        let (now, node) = (self.now, &mut self.nodes[at]);
        if node.session.is_some() && node.standing(now).is_none() {
            node.session = None;
            self.counts.sessions_lost += 1;
            self.trace.note(|| format!("{now}: node {at} lost its session"));
        }
        if !node.reaches(now) {
            return;
        }
        match node.session {
            Some(session) if now >= node.next_keep_alive => {
                node.next_keep_alive = now + KEEP_ALIVE_EVERY_MS;
                if self.coordination.keep_alive(node.number, session.id, now) {
                    node.kept_alive(now);
                }
            }
            None if self.rng.one_in(5) => {
                let id = self.next_session;
                self.next_session += 1;
                self.coordination.join(node.number, id, now);
                node.joined(id, now);
                node.next_keep_alive = now + KEEP_ALIVE_EVERY_MS;
                if self.profile == GrowthProfile::StaleJoin {
                    node.confirmed_under = Some(id);
                }
                self.trace.note(|| format!("{now}: node {at} joined under session {id}"));
            }
            _ => {}
        }
    }

    /// Receives changes of the entry and of the members, now or later. Reads the entry under a new session.
    fn follow(&mut self, at: usize) {
        let (now, node) = (self.now, &mut self.nodes[at]);
        if !node.reaches(now) {
            return;
        }
        let id = node.standing(now).map(|session| session.id);
        if id.is_some() && node.confirmed_under != id && self.rng.one_in(5) {
            node.take(self.coordination.entry().clone(), now);
            node.confirmed_under = id;
        }
        if self.rng.one_in(4) {
            let last = self.coordination.pictures().len() - 1;
            node.picture = self.rng.between(node.picture as u64, last as u64) as usize;
        }
        if now >= node.stale_until && self.rng.one_in(6) {
            let later = self.coordination.entries().iter().filter(|entry| entry.version > node.entry.version);
            let later: Vec<&SimEntry> = later.collect();
            if !later.is_empty() {
                node.take((*self.rng.pick(&later)).clone(), now);
            }
        }
    }

    /// Does the part of the node in a growth.
    fn drive(&mut self, at: usize) {
        let (now, node) = (self.now, &self.nodes[at]);
        let (Some(participant), Some(session)) = (node.participant, node.standing(now)) else { return };
        if now < node.busy_until {
            return;
        }
        let growing = participant.growing;
        let mut roll = Confirmations::of(&self.coordination.pictures()[node.picture], TOPIC, &growing);
        if self.profile == GrowthProfile::Unconfirmed {
            roll.members.retain(|member| *member == node.number);
        }
        let is_mine = |append: &&Append| append.node == at && append.life == node.life;
        let is_drained = !self.appends.iter().filter(is_mine).any(|append| append.mapping == node.entry.partitions);
        let step = participant.step(GrowthView { now_ms: now, me: node.number, is_drained, roll: &roll });
        let (version, entry) = (node.entry.version, node.entry.clone());
        let what = match step {
            GrowthStep::Wait => return,
            GrowthStep::Confirm => {
                WriteKind::Own { name: growing.confirmation(TOPIC, node.number), session: session.id }
            }
            GrowthStep::Finish => {
                self.log.resize(self.log.len().max(growing.to as usize), 0);
                let ends = self.log[..entry.partitions as usize].to_vec();
                let growth = Growth { at_ms: now as i64, from: entry.partitions, to: growing.to, ends };
                let growths = entry.growths.iter().cloned().chain([growth]).collect();
                let entry = SimEntry { partitions: growing.to, growing: None, growths, ..entry };
                WriteKind::Put { expected: version, entry }
            }
            GrowthStep::RollBack => WriteKind::Put { expected: version, entry: SimEntry { growing: None, ..entry } },
        };
        self.trace.note(|| format!("{now}: node {at} takes the step {step:?}"));
        self.write(at, what);
    }

    /// An operator requests a growth of the topic from this node.
    pub fn begin_growth(&mut self, at: usize) {
        let (now, node) = (self.now, &self.nodes[at]);
        let entry = node.entry.clone();
        if !node.runs(now) || now < node.busy_until || entry.growing.is_some() || entry.partitions >= PARTITIONS_MAX {
            return;
        }
        let growing = PendingGrowth { to: entry.partitions + self.rng.between(1, 3) as u32, base: entry.version };
        self.nodes[at].began = Some(growing.base);
        self.trace.note(|| format!("{now}: node {at} begins a growth to {} partitions", growing.to));
        self.write(at, WriteKind::Put { expected: entry.version, entry: SimEntry { growing: Some(growing), ..entry } });
    }

    fn write(&mut self, at: usize, what: WriteKind) {
        let (now, faults, node) = (self.now, self.faults, &mut self.nodes[at]);
        node.busy_until = now + ANSWER_WITHIN_MS;
        let is_made = node.reaches(now) && !self.rng.one_in(faults.lost);
        let is_slow = self.rng.one_in(faults.slow);
        let after = if is_slow { self.rng.below(SLOW_MS_MAX) } else { self.rng.below(100) };
        let is_answered = is_made && after < ANSWER_WITHIN_MS && !self.rng.one_in(faults.unanswered);
        let life = node.life;
        if self.profile == GrowthProfile::Reopen && !is_answered && matches!(what, WriteKind::Put { .. }) {
            // The node uses the old mapping again, although the new one may be in force.
            node.participant = None;
            node.entry.growing = None;
        }
        self.writes.push(PendingWrite { at: now + after, node: at, life, is_made, is_answered, what });
    }

    fn make_writes(&mut self) -> CheckResult {
        let now = self.now;
        let due: Vec<PendingWrite> = self.writes.extract_if(.., |write| write.at <= now).collect();
        for PendingWrite { node: at, life, is_made, is_answered, what, .. } in due {
            if !is_made {
                continue;
            }
            let number = self.nodes[at].number;
            match what {
                WriteKind::Own { name, session } => self.coordination.own(&name, number, session),
                WriteKind::Put { expected, entry } => {
                    let was_growing = self.coordination.entry().growing;
                    if self.coordination.put(expected, entry) {
                        self.count_put(at, was_growing);
                        self.check()?;
                    }
                }
            }
            let node = &mut self.nodes[at];
            if is_answered && node.life == life && node.runs(now) && node.reaches(now) {
                node.busy_until = now;
                // A writer that lost reads the current entry.
                node.take(self.coordination.entry().clone(), now);
            }
        }
        Ok(())
    }

    fn count_put(&mut self, at: usize, was_growing: Option<PendingGrowth>) {
        let (now, entry) = (self.now, self.coordination.entry().clone());
        match (was_growing, entry.growing) {
            (None, _) => self.counts.begun += 1,
            (Some(growing), _) => {
                let is_finished = entry.partitions == growing.to;
                *(if is_finished { &mut self.counts.finished } else { &mut self.counts.rolled_back }) += 1;
                self.counts.taken_over += u64::from(self.nodes[at].began != Some(growing.base));
            }
        }
        self.trace.note(|| format!("{now}: node {at} wrote {entry:?}"));
    }

    /// A reader on the node reads messages, and processes them when the rules allow it.
    fn read(&mut self, at: usize) -> CheckResult {
        let (now, growths) = (self.now, self.coordination.entry().growths.len());
        let is_blind = self.profile == GrowthProfile::BlindReader;
        let node = &mut self.nodes[at];
        let session = match self.profile {
            GrowthProfile::HastyReader => node.standing(now).map(|session| session.id),
            _ => node.lease(now),
        };
        let Some(session) = session else {
            node.page = None;
            return Ok(());
        };
        match node.page {
            None if self.rng.one_in(10) => node.page = Some(ReaderPage { growths, session }),
            Some(page) if node.participant.is_none() || is_blind => {
                node.page = None;
                self.counts.pages += 1;
                if page.session == session && node.entry.growths.len() < page.growths {
                    return Err(format!("node {at} took in messages of growth {} with an older entry", page.growths));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn move_appends(&mut self) {
        let now = self.now;
        for append in &mut self.appends {
            if now < append.next_at {
                continue;
            }
            let runs = self.nodes[append.node].runs(now);
            match append.state {
                AppendState::NotSent if runs => {
                    (append.state, append.next_at) = (AppendState::Sent, now + self.rng.below(200));
                }
                AppendState::Sent => {
                    let end = &mut self.log[append.partition as usize];
                    (append.state, append.next_at) = (AppendState::Landed(*end), now + self.rng.below(100));
                    *end += 1;
                }
                _ => {}
            }
        }
        let nodes = &self.nodes;
        let is_over = |append: &mut Append| {
            matches!(append.state, AppendState::Landed(_)) && now >= append.next_at && nodes[append.node].runs(now)
        };
        let over: Vec<Append> = self.appends.extract_if(.., is_over).collect();
        for append in over {
            self.answer(&append);
        }
    }

    /// The log has answered. The node answers the publisher if it is still the same process.
    fn answer(&mut self, append: &Append) {
        let (now, node) = (self.now, &self.nodes[append.node]);
        let AppendState::Landed(offset) = append.state else { return };
        let publisher = &mut self.publishers[append.key];
        if node.life != append.life || publisher.number != append.number || publisher.waits_until.is_none() {
            self.counts.unknown += 1;
            return;
        }
        publisher.waits_until = None;
        publisher.number += 1;
        let is_checked = !matches!(self.profile, GrowthProfile::EarlyAck | GrowthProfile::NoLease);
        if is_checked && !node.stands_under(append.session, now) {
            self.counts.unknown += 1;
            return;
        }
        *publisher.acknowledged_by.entry(append.node).or_default() += 1;
        self.truth.acknowledge(append.key, append.number, append.partition, offset);
        self.counts.acknowledged += 1;
    }

    fn publish(&mut self) {
        for key in 0..self.publishers.len() {
            let (now, publisher) = (self.now, &mut self.publishers[key]);
            match publisher.waits_until {
                Some(until) if now < until => continue,
                // The outcome is unknown: the publisher continues with the next message.
                Some(_) => (publisher.waits_until, publisher.number) = (None, publisher.number + 1),
                None => {}
            }
            let number = publisher.number;
            let at = self.rng.below(self.nodes.len() as u64) as usize;
            let node = &self.nodes[at];
            if !node.runs(now) {
                continue;
            }
            let lease = match self.profile {
                GrowthProfile::NoLease => Some(0),
                _ => node.lease(now),
            };
            let (Some(session), None) = (lease, node.participant) else {
                self.counts.refused += 1;
                continue;
            };
            let (mapping, life) = (node.entry.partitions, node.life);
            let partition = partition_of(key_text(key).as_bytes(), mapping);
            let next_at = now + self.rng.below(150);
            self.publishers[key].waits_until = Some(now + PATIENCE_MS);
            let state = AppendState::NotSent;
            self.appends.push(Append { node: at, life, session, key, number, mapping, partition, next_at, state });
        }
    }

    /// Checks that no growth is stuck and that each node accepts each key. Call this after a long time without faults.
    pub fn is_settled(&mut self) -> CheckResult {
        let entry = self.coordination.entry().clone();
        if entry.growing.is_some() {
            return Err(format!("the growth is stuck: {entry:?}"));
        }
        for node in &self.nodes {
            if node.entry != entry || node.participant.is_some() || node.lease(self.now).is_none() {
                return Err(format!("node {} does not publish by the entry", node.number));
            }
        }
        let is_silent = |publisher: &Publisher| publisher.acknowledged_by.len() < self.nodes.len();
        match self.publishers.iter().position(is_silent) {
            Some(key) => Err(format!("key {key} was not accepted by every node")),
            None => Ok(()),
        }
    }
}
