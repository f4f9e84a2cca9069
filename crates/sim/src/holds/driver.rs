//! Runs a seed of holds: the driver chooses the steps of a world, and finally lets the world settle.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_cluster::Machine as _;
use whimbrel_model::ports::{CountQuery, HoldQuery, HoldRequest, NewDueTime};
use whimbrel_model::record::HEADER_FINGERPRINT;
use whimbrel_model::{Headers, Hold, HoldId, IdMint, MessageBody, Timestamp, TopicNumber};

use super::node::{NodeCall, NodeSave};
use super::profile::{HoldsFaults, HoldsProfile};
use super::report::HoldsCounts;
use super::truth::UNWRITABLE;
use super::world::{CommitFault, HoldsWorld};
use crate::simulation::{SeedRun, Simulation};
use crate::trace::Trace;
use crate::{CheckResult, Rng};

const NODES: usize = 3;
const TOPICS: u64 = 3;
const STEPS_MIN: u64 = 400;
const STEPS_MAX: u64 = 1_500;
/// Limit of steps without any time passing. A world with more is in a loop.
const STEPS_AT_ONE_TIME_MAX: u64 = 4_000;
/// Limit of time steps until everything must have settled.
const SETTLE_ROUNDS_MAX: u64 = 20_000;
/// The maximum distance of a node's clock from the true time. Two nodes differ at most by the allowed skew.
const SKEW_MAX_MS: u64 = 250;

pub struct HoldsDriver {
    rng: Rng,
    world: HoldsWorld,
    faults: HoldsFaults,
    mint: IdMint,
    /// All created holds, for requests about them and for repeated ones.
    made: Vec<Hold>,
    next_name: u64,
    counts: HoldsCounts,
    first_kept: u64,
    /// The state at the last check. An unchanged state is not checked again.
    watched: (usize, u64, u64),
}

impl Simulation for HoldsProfile {
    const PART: &'static str = "holds";
    type Run = HoldsDriver;

    fn start(self, mut rng: Rng, trace: Trace) -> CheckResult<HoldsDriver> {
        let settings = Self::settings(&mut rng);
        let faults = self.faults(&mut rng);
        let stepout = Duration::from_millis(*rng.pick(&[300, 1_000, 3_000]));
        let mut world = HoldsWorld::new(settings, stepout, NODES, trace);
        world.log.has_markers = rng.one_in(2);
        world.page_records = *rng.pick(&[1, 2, 5, 100]);
        world.page_holds = *rng.pick(&[1, 2]);
        for node in &mut world.nodes {
            node.usual_skew_ms = rng.between(0, 2 * SKEW_MAX_MS) as i64 - SKEW_MAX_MS as i64;
            node.set_skew(node.usual_skew_ms, world.time);
        }
        Ok(HoldsDriver {
            rng,
            world,
            faults,
            mint: IdMint::new(1, 0),
            made: Vec::new(),
            next_name: 0,
            counts: HoldsCounts::default(),
            first_kept: 0,
            watched: (0, 0, 0),
        })
    }
}

impl SeedRun for HoldsDriver {
    type Counts = HoldsCounts;

    fn trace(&self) -> &Trace {
        &self.world.trace
    }

    fn steps(&self) -> u64 {
        self.world.truth.step
    }

    fn counts(&self) -> HoldsCounts {
        let (world, truth) = (&self.world, &self.world.truth);
        HoldsCounts {
            holds: truth.stories.values().filter(|story| story.now().is_some()).count() as u64,
            fired: truth.fired,
            withdrawn: truth.withdrawn,
            dead: truth.dead,
            moved: truth.moved,
            carried: truth.carried,
            questions: world.questions.len() as u64,
            answered: world.questions.iter().filter(|question| matches!(question.reply, Some(Ok(_)))).count() as u64,
            ..self.counts
        }
    }

    fn drive(&mut self) -> CheckResult {
        self.world.take(0);
        for _ in 0..self.rng.between(STEPS_MIN, STEPS_MAX) {
            self.inject_faults()?;
            match self.rng.below(100) {
                0..3 => self.accept()?,
                3..9 => self.ask()?,
                9..15 => self.pass_time()?,
                _ => {
                    let busy: Vec<usize> = (0..NODES).filter(|node| self.world.nodes[*node].owner.is_some()).collect();
                    if !busy.is_empty() {
                        let node = *self.rng.pick(&busy);
                        self.advance(node)?;
                    }
                }
            }
            self.watch()?;
        }
        self.settle()
    }
}

impl HoldsDriver {
    /// Checks the rules that hold after every step.
    fn watch(&mut self) -> CheckResult {
        let first = self.world.log.bounds().first;
        self.counts.trims += u64::from(first > self.first_kept);
        self.first_kept = first;
        let changes = (self.world.truth.landings.len(), self.world.store.changes(), first);
        if changes == self.watched {
            return Ok(());
        }
        self.watched = changes;
        self.world.truth.is_rebuilt_from(&self.world.store, &self.world.log)
    }

    // ---- events of nodes ------------------------------------------------------------------------------------

    /// Advances one random operation of a node. Returns false if there is none.
    fn advance(&mut self, node: usize) -> CheckResult<bool> {
        if self.world.is_starting(node) {
            self.world.start_on(node)?;
            return Ok(true);
        }
        let calls = self.world.calls(node).len() as u64;
        let saving = self.world.is_saving(node).is_some();
        if calls == 0 && !saving {
            return Ok(false);
        }
        let chosen = self.rng.below(calls + u64::from(saving)) as usize;
        if chosen == calls as usize {
            return self.advance_saving(node).map(|()| true);
        }
        match self.world.calls(node)[chosen] {
            NodeCall::Answered(_) => self.world.deliver(node, chosen).map(|()| true),
            NodeCall::Waiting(_) => {
                let fault = self.commit_fault();
                let empty = self.rng.one_in(self.faults.empty_read);
                self.world.answer_call(node, chosen, fault, empty)
            }
        }
    }

    fn advance_saving(&mut self, node: usize) -> CheckResult {
        match self.world.is_saving(node) {
            Some(NodeSave::Waiting(_)) => {
                let is_lost = self.rng.one_in(self.faults.lost_answer);
                self.world.answer_saving(node, is_lost)
            }
            _ => self.world.deliver_saving(node),
        }
    }

    fn commit_fault(&mut self) -> CommitFault {
        if self.rng.one_in(self.faults.unknown) {
            self.counts.unknown_commits += 1;
            return *self.rng.pick(&[CommitFault::UnknownLanded, CommitFault::UnknownAtLarge]);
        }
        if self.rng.one_in(self.faults.not_now) { CommitFault::NotNow } else { CommitFault::None }
    }

    fn pass_time(&mut self) -> CheckResult {
        let by = *self.rng.pick(&[0, 1, 3, 10, 50, 250]);
        self.world.pass(by);
        self.tick_all()
    }

    fn tick_all(&mut self) -> CheckResult {
        for node in 0..NODES {
            if self.world.nodes[node].owner.is_some() {
                self.world.tick(node)?;
            }
        }
        Ok(())
    }

    fn inject_faults(&mut self) -> CheckResult {
        let faults = self.faults;
        let node = self.rng.below(NODES as u64) as usize;
        let has_owner = self.world.nodes[self.world.owner.0].owner.is_some();
        if self.rng.one_in(faults.crash) && self.world.nodes[node].owner.is_some() {
            self.counts.crashes += 1;
            self.world.crash(node);
        }
        if self.rng.one_in(faults.stop) {
            self.world.stop(node)?;
        }
        if self.rng.one_in(faults.take_over) || !has_owner && self.rng.one_in(20) {
            self.counts.takeovers += 1;
            self.world.take(node);
        }
        if self.rng.one_in(faults.stall) {
            self.world.log.stall();
        } else if self.world.log.is_stalled() && self.rng.one_in(15) {
            self.world.log.show_all();
        }
        let past = self.world.store.past() as u64;
        if past > 0 && self.rng.one_in(faults.fall_back) {
            let to = self.rng.below(past) as usize;
            self.world.store.fall_back(to);
            self.counts.store_falls += 1;
            self.world.truth.has_forgotten = true;
            let at = self.world.store.applied();
            self.world.note(|| format!("the store falls back to {at}"));
        }
        if self.rng.one_in(faults.away) || self.world.store.is_away && self.rng.one_in(15) {
            self.world.store.is_away = !self.world.store.is_away;
            let is_away = self.world.store.is_away;
            self.world.note(|| format!("the store is {}", if is_away { "away" } else { "back" }));
        }
        if self.rng.one_in(faults.damage) {
            self.world.store.is_damaged = true;
            self.world.truth.has_forgotten = true;
            self.world.note(|| "the store is damaged".to_owned());
        }
        if self.rng.one_in(faults.clock_jump) {
            self.set_clock(node);
        }
        let strays = self.world.strays() as u64;
        if strays > 0 && self.rng.one_in(10) {
            let (index, happens) = (self.rng.below(strays) as usize, !self.rng.one_in(3));
            self.world.stray_lands(index, happens)?;
        }
        self.change_topics();
        Ok(())
    }

    /// Sets the wall clock of a node to a random time, or back to its usual skew. The time until the next change is random too, so a wrong
    /// clock may or may not last longer than the stepout.
    fn set_clock(&mut self, node: usize) {
        const HOUR: i64 = 3_600_000;
        const FAR: [i64; 10] = [-200 * HOUR, -60_000, -5_000, -700, -100, 100, 700, 5_000, 60_000, 200 * HOUR];
        let (usual, time) = (self.world.nodes[node].usual_skew_ms, self.world.time);
        let is_away = self.world.nodes[node].skew_ms() != usual;
        let skew_ms = if is_away && !self.rng.one_in(3) { usual } else { usual + self.rng.pick(&FAR) };
        self.world.nodes[node].set_skew(skew_ms, time);
        self.counts.clock_steps += 1;
        self.world.note(|| format!("the clock of node {node} is set to {skew_ms} ms from the true time"));
    }

    fn change_topics(&mut self) {
        if self.rng.one_in(self.faults.topic) {
            let topic = self.topic();
            if !self.world.closed.remove(&topic) {
                self.world.closed.insert(topic);
            }
            if self.rng.one_in(8) {
                self.world.truth.gone.insert(topic);
            }
            let (closed, gone) = (self.world.closed.clone(), self.world.truth.gone.clone());
            self.world.note(|| format!("topics closed {closed:?}, gone {gone:?}"));
        }
    }

    fn topic(&mut self) -> TopicNumber {
        TopicNumber(self.rng.between(1, TOPICS) as u32)
    }

    // ---- actions of clients ------------------------------------------------------------------------------------------

    fn accept(&mut self) -> CheckResult {
        let repeated: Vec<Hold> = self.made.iter().filter(|hold| hold.id.as_str().starts_with('r')).cloned().collect();
        if !repeated.is_empty() && self.rng.one_in(4) {
            let hold = self.rng.pick(&repeated).clone();
            return self.world.append(&hold);
        }
        let kind = if self.rng.one_in(2) { 'm' } else { 'r' };
        let hold = self.new_hold(kind);
        self.made.push(hold.clone());
        self.world.append(&hold)
    }

    fn due(&mut self) -> Timestamp {
        let ahead = match self.rng.below(6) {
            0 => -(self.rng.below(500) as i64),
            1 | 2 => self.rng.below(60) as i64,
            3 | 4 => self.rng.below(3_000) as i64,
            _ if self.rng.one_in(3) => self.rng.below(100_000) as i64,
            _ => self.rng.below(6_000) as i64,
        };
        Timestamp::from_millis(self.world.time + ahead)
    }

    /// Ids that the service mints are used once. Ids of retries (`r`) are repeated. Ids of publishers (`b`) are accepted by the owner.
    fn new_hold(&mut self, kind: char) -> Hold {
        self.next_name += 1;
        let (topic, due) = (self.topic(), self.due());
        let now = Timestamp::from_millis(self.world.time);
        let is_minted = kind == 'm';
        let id =
            if is_minted { self.mint.mint_held(now, topic).to_string() } else { format!("{kind}{}", self.next_name) };
        let mut headers = Headers::builder();
        if kind == 'b' {
            headers.push(HEADER_FINGERPRINT, format!("{:016x}", self.rng.below(2)).as_bytes());
        }
        let body = if self.rng.one_in(20) { UNWRITABLE } else { "a body" };
        let message = MessageBody { key: None, value: Bytes::from_static(body.as_bytes()), headers: headers.take() };
        Hold {
            id: HoldId::new(&id),
            topic,
            topic_name: "orders".into(),
            due,
            published_at: now,
            version: 0,
            fresh: is_minted,
            moves: Vec::new(),
            message,
        }
    }

    fn ask(&mut self) -> CheckResult {
        let askable: Vec<usize> = (0..NODES).filter(|node| self.world.nodes[*node].owner.is_some()).collect();
        if askable.is_empty() {
            return Ok(());
        }
        let node = *self.rng.pick(&askable);
        let ask = self.new_ask();
        self.world.ask(node, ask)?;
        Ok(())
    }

    fn new_ask(&mut self) -> HoldRequest {
        // Repeats a command whose answer was lost, unchanged.
        if !self.world.questions.is_empty() && self.rng.one_in(8) {
            let index = self.rng.below(self.world.questions.len() as u64) as usize;
            return self.world.questions[index].what.clone();
        }
        let query = HoldQuery {
            topic: self.rng.one_in(2).then_some(TopicNumber(1)),
            from: None,
            to: self.rng.one_in(3).then(|| Timestamp::from_millis(self.world.time + 1_000)),
            after: None,
            limit: *self.rng.pick(&[1, 3, 100]),
        };
        let bucket = Duration::from_secs(60);
        match self.rng.below(20) {
            0..4 => {
                let mut hold = self.new_hold('b');
                let brought: Vec<&Hold> = self.made.iter().filter(|hold| hold.id.as_str().starts_with('b')).collect();
                if !brought.is_empty() && self.rng.one_in(3) {
                    hold.id = self.rng.pick(&brought).id.clone();
                } else {
                    self.made.push(hold.clone());
                }
                return HoldRequest::Accept(Arc::new(hold));
            }
            4 => return HoldRequest::List(query),
            5 => return HoldRequest::Count(CountQuery { topic: query.topic, from: None, to: query.to, bucket }),
            6 => return HoldRequest::Dead(query),
            7 if self.rng.one_in(6) => return HoldRequest::WithdrawTopic { topic: self.topic() },
            _ => {}
        }
        let id = match self.rng.below(12) {
            0 => HoldId::new("no-such-hold"),
            _ if self.made.is_empty() => HoldId::new("no-such-hold"),
            // Most requests concern a recent hold, which is still pending.
            1..8 => self.made[self.made.len() - 1 - self.rng.below(self.made.len().min(6) as u64) as usize].id.clone(),
            _ => self.rng.pick(&self.made).id.clone(),
        };
        match self.rng.below(10) {
            0..3 => HoldRequest::Withdraw { id },
            3..5 => HoldRequest::Fire { id },
            5 => HoldRequest::Look { id },
            _ => self.new_extend(id),
        }
    }

    fn new_extend(&mut self, id: HoldId) -> HoldRequest {
        let current = self.world.truth.stories.get(&id).and_then(|story| story.pending()).map(|hold| hold.version);
        let if_version = match self.rng.below(4) {
            0 => current,
            1 if self.rng.one_in(3) => Some(self.rng.below(50)),
            _ => None,
        };
        let key = self.rng.one_in(3).then(|| format!("k{}", self.rng.below(3)).into_boxed_str());
        let to = if self.rng.one_in(2) {
            NewDueTime::By(self.rng.below(4_000) as i64 - 1_500)
        } else {
            NewDueTime::Until(self.due())
        };
        HoldRequest::Extend { id, to, if_version, key }
    }

    // ---- the end --------------------------------------------------------------------------------------------------

    /// Ends all faults. The owner, and then a successor, must finish everything.
    fn settle(&mut self) -> CheckResult {
        self.faults = HoldsFaults::default();
        self.world.store.is_away = false;
        self.world.log.show_all();
        self.world.closed.clear();
        let time = self.world.time;
        self.world.nodes.iter_mut().for_each(|node| node.set_skew(node.usual_skew_ms, time));
        self.world.note(|| "faults end here".to_owned());
        while self.world.strays() > 0 {
            self.world.stray_lands(0, false)?;
        }
        if self.world.nodes[self.world.owner.0].owner.is_none() {
            self.world.take(self.world.owner.0);
        }
        self.run_until_idle()?;
        let open = self.world.questions.iter().position(|question| question.is_open);
        if let Some(open) = open {
            return Err(format!("question {open} is never answered: {:?}", self.world.questions[open].what));
        }
        let successor = (self.world.owner.0 + 1) % NODES;
        self.world.take(successor);
        self.run_until_idle()
    }

    /// Advances the world until no hold is pending and no request is open.
    fn run_until_idle(&mut self) -> CheckResult {
        for _ in 0..SETTLE_ROUNDS_MAX {
            let mut steps = 0;
            while self.advance_any()? {
                steps += 1;
                self.watch()?;
                if steps > STEPS_AT_ONE_TIME_MAX {
                    return Err("it does not settle: it loops without time passing".to_owned());
                }
            }
            let owner = self.world.nodes[self.world.owner.0].owner.as_ref();
            let is_ready = owner.is_some_and(|owner| owner.shard.is_ready() && owner.shard.metrics().commands == 0);
            let is_open = self.world.questions.iter().any(|question| question.is_open);
            if is_ready && !is_open && self.world.truth.pending().next().is_none() {
                return Ok(());
            }
            self.world.pass(self.until_next_wake());
            self.tick_all()?;
        }
        let pending: Vec<_> = self.world.truth.pending().map(|hold| (hold.id.clone(), hold.due)).collect();
        Err(format!("it does not settle: {pending:?} are still pending"))
    }

    /// Milliseconds until the next owner wakes, at least one.
    fn until_next_wake(&self) -> i64 {
        let owners = self.world.nodes.iter().filter_map(|node| node.owner.as_ref());
        let wakes = owners
            .filter_map(|owner| Some(owner.shard.wake_at()?.as_millis().saturating_sub(owner.shard.now().as_millis())));
        wakes.min().unwrap_or(1).clamp(1, 5_000)
    }

    /// Advances the first operation that does not wait for time. Returns false if there is none.
    fn advance_any(&mut self) -> CheckResult<bool> {
        for node in 0..NODES {
            if self.world.is_starting(node) {
                self.world.start_on(node)?;
                return Ok(true);
            }
            if self.world.is_saving(node).is_some() {
                self.advance_saving(node)?;
                return Ok(true);
            }
            for index in 0..self.world.calls(node).len() {
                let advanced = match self.world.calls(node)[index] {
                    NodeCall::Answered(_) => self.world.deliver(node, index).map(|()| true)?,
                    NodeCall::Waiting(_) => self.world.answer_call(node, index, CommitFault::None, false)?,
                };
                if advanced {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
