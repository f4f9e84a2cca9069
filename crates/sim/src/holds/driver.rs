//! A run of holds: what a seed makes of a world, step by step, and how it settles.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::ports::{Ask, CountQuery, HoldQuery, NewDue};
use whimbrel_model::record::HEADER_FINGERPRINT;
use whimbrel_model::{Headers, HeldMessage, Hold, HoldId, IdMint, Timestamp, TopicNumber};

use super::Check;
use super::node::{Call, Saving};
use super::profile::{HoldsProfile, Trouble};
use super::report::{HoldsFailure, HoldsReport};
use super::truth::UNWRITABLE;
use super::world::{CommitFault, World};
use crate::Rng;
use crate::trace::{Trace, panic_text};

const NODES: usize = 3;
const TOPICS: u64 = 3;
const STEPS_MIN: u64 = 400;
const STEPS_MAX: u64 = 1_500;
/// How much a world does without time passing before that is called spinning.
const STEPS_AT_ONE_TIME_MAX: u64 = 4_000;
/// How often time may pass until everything has settled.
const SETTLE_ROUNDS_MAX: u64 = 20_000;
/// Nodes' clocks are at most so far from the true time, so that two are apart by the allowed skew at most.
const SKEW_MAX_MS: u64 = 250;

/// Runs one seed.
pub fn run_holds(seed: u64, profile: HoldsProfile) -> Result<HoldsReport, Box<HoldsFailure>> {
    run_with(seed, profile, false)
}

/// Runs one seed and prints each step.
pub fn run_holds_traced(seed: u64, profile: HoldsProfile) -> Result<HoldsReport, Box<HoldsFailure>> {
    run_with(seed, profile, true)
}

fn run_with(seed: u64, profile: HoldsProfile, print: bool) -> Result<HoldsReport, Box<HoldsFailure>> {
    let mut driver = Driver::new(seed, profile, print);
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| driver.run()));
    let outcome = outcome.unwrap_or_else(|panic| Err(format!("a panic: {}", panic_text(&*panic))));
    match outcome {
        Ok(()) => Ok(driver.report()),
        Err(message) => Err(Box::new(HoldsFailure { seed, profile, message, trace: driver.world.trace.last() })),
    }
}

struct Driver {
    rng: Rng,
    world: World,
    trouble: Trouble,
    mint: IdMint,
    /// Holds that were made: to ask about them, and to accept them again.
    made: Vec<Hold>,
    next_name: u64,
    report: HoldsReport,
    first_kept: u64,
    /// What had changed when it was last looked at: nothing is looked at twice.
    watched: (usize, u64, u64),
}

impl Driver {
    fn new(seed: u64, profile: HoldsProfile, print: bool) -> Self {
        let mut rng = Rng::new(seed);
        let settings = HoldsProfile::settings(&mut rng);
        let trouble = profile.trouble(&mut rng);
        let stepout = Duration::from_millis(*rng.pick(&[300, 1_000, 3_000]));
        let mut world = World::new(settings, stepout, NODES, Trace::new(print));
        world.log.has_markers = rng.one_in(2);
        world.page_records = *rng.pick(&[1, 2, 5, 100]);
        world.page_holds = *rng.pick(&[1, 2]);
        for node in &mut world.nodes {
            node.usual_skew_ms = rng.between(0, 2 * SKEW_MAX_MS) as i64 - SKEW_MAX_MS as i64;
            node.set_skew(node.usual_skew_ms, world.time);
        }
        Self {
            rng,
            world,
            trouble,
            mint: IdMint::new(1, 0),
            made: Vec::new(),
            next_name: 0,
            report: HoldsReport::default(),
            first_kept: 0,
            watched: (0, 0, 0),
        }
    }

    fn report(&self) -> HoldsReport {
        let (world, truth) = (&self.world, &self.world.truth);
        HoldsReport {
            seeds: 1,
            steps: truth.step,
            holds: truth.stories.values().filter(|story| story.now().is_some()).count() as u64,
            fired: truth.fired,
            withdrawn: truth.withdrawn,
            dead: truth.dead,
            moved: truth.moved,
            carried: truth.carried,
            questions: world.questions.len() as u64,
            answered: world.questions.iter().filter(|question| matches!(question.told, Some(Ok(_)))).count() as u64,
            fingerprint: world.trace.fingerprint(),
            ..self.report
        }
    }

    fn run(&mut self) -> Check {
        self.world.take(0);
        for _ in 0..self.rng.between(STEPS_MIN, STEPS_MAX) {
            self.make_trouble()?;
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

    /// What must be true after every step.
    fn watch(&mut self) -> Check {
        let first = self.world.log.bounds().first;
        self.report.trims += u64::from(first > self.first_kept);
        self.first_kept = first;
        let changes = (self.world.truth.landings.len(), self.world.store.changes(), first);
        if changes == self.watched {
            return Ok(());
        }
        self.watched = changes;
        self.world.truth.is_rebuilt_from(&self.world.store, &self.world.log)
    }

    // ---- what happens to nodes ------------------------------------------------------------------------------------

    /// One random thing of a node goes on. False where there is nothing.
    fn advance(&mut self, node: usize) -> Check<bool> {
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
            Call::Answered(_) => self.world.deliver(node, chosen).map(|()| true),
            Call::Waiting(_) => {
                let fault = self.commit_fault();
                let empty = self.rng.one_in(self.trouble.empty_read);
                self.world.answer_call(node, chosen, fault, empty)
            }
        }
    }

    fn advance_saving(&mut self, node: usize) -> Check {
        match self.world.is_saving(node) {
            Some(Saving::Waiting(_)) => {
                let is_lost = self.rng.one_in(self.trouble.lost_answer);
                self.world.answer_saving(node, is_lost)
            }
            _ => self.world.deliver_saving(node),
        }
    }

    fn commit_fault(&mut self) -> CommitFault {
        if self.rng.one_in(self.trouble.unknown) {
            self.report.unknown_commits += 1;
            return *self.rng.pick(&[CommitFault::UnknownLanded, CommitFault::UnknownAtLarge]);
        }
        if self.rng.one_in(self.trouble.not_now) { CommitFault::NotNow } else { CommitFault::None }
    }

    fn pass_time(&mut self) -> Check {
        let by = *self.rng.pick(&[0, 1, 3, 10, 50, 250]);
        self.world.pass(by);
        self.tick_all()
    }

    fn tick_all(&mut self) -> Check {
        for node in 0..NODES {
            if self.world.nodes[node].owner.is_some() {
                self.world.tick(node)?;
            }
        }
        Ok(())
    }

    fn make_trouble(&mut self) -> Check {
        let trouble = self.trouble;
        let node = self.rng.below(NODES as u64) as usize;
        let has_owner = self.world.nodes[self.world.owner.0].owner.is_some();
        if self.rng.one_in(trouble.crash) && self.world.nodes[node].owner.is_some() {
            self.report.crashes += 1;
            self.world.crash(node);
        }
        if self.rng.one_in(trouble.stop) {
            self.world.stop(node)?;
        }
        if self.rng.one_in(trouble.take_over) || !has_owner && self.rng.one_in(20) {
            self.report.takeovers += 1;
            self.world.take(node);
        }
        if self.rng.one_in(trouble.stall) {
            self.world.log.stall();
        } else if self.world.log.is_stalled() && self.rng.one_in(15) {
            self.world.log.show_all();
        }
        let past = self.world.store.past() as u64;
        if past > 0 && self.rng.one_in(trouble.fall_back) {
            let to = self.rng.below(past) as usize;
            self.world.store.fall_back(to);
            self.report.store_falls += 1;
            self.world.truth.has_forgotten = true;
            let at = self.world.store.applied();
            self.world.note(|| format!("the store falls back to {at}"));
        }
        if self.rng.one_in(trouble.away) || self.world.store.is_away && self.rng.one_in(15) {
            self.world.store.is_away = !self.world.store.is_away;
            let is_away = self.world.store.is_away;
            self.world.note(|| format!("the store is {}", if is_away { "away" } else { "back" }));
        }
        if self.rng.one_in(trouble.damage) {
            self.world.store.is_damaged = true;
            self.world.truth.has_forgotten = true;
            self.world.note(|| "the store cannot be understood".to_owned());
        }
        if self.rng.one_in(trouble.clock_jump) {
            self.set_clock(node);
        }
        let strays = self.world.strays() as u64;
        if strays > 0 && self.rng.one_in(10) {
            let (index, happens) = (self.rng.below(strays) as usize, !self.rng.one_in(3));
            self.world.stray_lands(index, happens)?;
        }
        self.trouble_topics();
        Ok(())
    }

    /// Sets a node's wall clock: somewhere, or back to where it is usually. How long it stays there is chance, and so whether that is
    /// longer than the stepout.
    fn set_clock(&mut self, node: usize) {
        const HOUR: i64 = 3_600_000;
        const FAR: [i64; 10] = [-200 * HOUR, -60_000, -5_000, -700, -100, 100, 700, 5_000, 60_000, 200 * HOUR];
        let (usual, time) = (self.world.nodes[node].usual_skew_ms, self.world.time);
        let is_away = self.world.nodes[node].skew_ms() != usual;
        let skew_ms = if is_away && !self.rng.one_in(3) { usual } else { usual + self.rng.pick(&FAR) };
        self.world.nodes[node].set_skew(skew_ms, time);
        self.report.clock_steps += 1;
        self.world.note(|| format!("the clock of node {node} is set to {skew_ms} ms from the true time"));
    }

    fn trouble_topics(&mut self) {
        if self.rng.one_in(self.trouble.topic) {
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

    // ---- what clients do ------------------------------------------------------------------------------------------

    fn accept(&mut self) -> Check {
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

    /// Minted ids come once; those made of what is retried (`r`) come again, and those that were brought (`b`) are accepted by the
    /// owner.
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
        let message = HeldMessage { key: None, value: Bytes::from_static(body.as_bytes()), headers: headers.take() };
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

    fn ask(&mut self) -> Check {
        let askable: Vec<usize> = (0..NODES).filter(|node| self.world.nodes[*node].owner.is_some()).collect();
        if askable.is_empty() {
            return Ok(());
        }
        let node = *self.rng.pick(&askable);
        let ask = self.new_ask();
        self.world.ask(node, ask)?;
        Ok(())
    }

    fn new_ask(&mut self) -> Ask {
        // A command whose answer was lost is repeated as it was.
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
                return Ask::Accept(Arc::new(hold));
            }
            4 => return Ask::List(query),
            5 => return Ask::Count(CountQuery { topic: query.topic, from: None, to: query.to, bucket }),
            6 => return Ask::Dead(query),
            7 if self.rng.one_in(6) => return Ask::WithdrawTopic { topic: self.topic() },
            _ => {}
        }
        let id = match self.rng.below(12) {
            0 => HoldId::new("nobody"),
            _ if self.made.is_empty() => HoldId::new("nobody"),
            // Most of the time about a recent one, which is still pending.
            1..8 => self.made[self.made.len() - 1 - self.rng.below(self.made.len().min(6) as u64) as usize].id.clone(),
            _ => self.rng.pick(&self.made).id.clone(),
        };
        match self.rng.below(10) {
            0..3 => Ask::Withdraw { id },
            3..5 => Ask::Fire { id },
            5 => Ask::Look { id },
            _ => self.new_extend(id),
        }
    }

    fn new_extend(&mut self, id: HoldId) -> Ask {
        let current = self.world.truth.stories.get(&id).and_then(|story| story.pending()).map(|hold| hold.version);
        let if_version = match self.rng.below(4) {
            0 => current,
            1 if self.rng.one_in(3) => Some(self.rng.below(50)),
            _ => None,
        };
        let key = self.rng.one_in(3).then(|| format!("k{}", self.rng.below(3)).into_boxed_str());
        let to = if self.rng.one_in(2) {
            NewDue::By(self.rng.below(4_000) as i64 - 1_500)
        } else {
            NewDue::Until(self.due())
        };
        Ask::Extend { id, to, if_version, key }
    }

    // ---- the end --------------------------------------------------------------------------------------------------

    /// From here on nothing fails: the owner, and then a successor, bring everything to its end.
    fn settle(&mut self) -> Check {
        self.trouble = Trouble::default();
        self.world.store.is_away = false;
        self.world.log.show_all();
        self.world.closed.clear();
        let time = self.world.time;
        self.world.nodes.iter_mut().for_each(|node| node.set_skew(node.usual_skew_ms, time));
        self.world.note(|| "from here on nothing fails".to_owned());
        while self.world.strays() > 0 {
            self.world.stray_lands(0, false)?;
        }
        if self.world.nodes[self.world.owner.0].owner.is_none() {
            self.world.take(self.world.owner.0);
        }
        self.come_to_rest()?;
        let open = self.world.questions.iter().position(|question| question.is_open);
        if let Some(open) = open {
            return Err(format!("question {open} is never answered: {:?}", self.world.questions[open].what));
        }
        let successor = (self.world.owner.0 + 1) % NODES;
        self.world.take(successor);
        self.come_to_rest()
    }

    /// Until nothing is pending and nobody waits.
    fn come_to_rest(&mut self) -> Check {
        for _ in 0..SETTLE_ROUNDS_MAX {
            let mut steps = 0;
            while self.advance_any()? {
                steps += 1;
                self.watch()?;
                if steps > STEPS_AT_ONE_TIME_MAX {
                    return Err("it does not come to rest: it goes on and on without time passing".to_owned());
                }
            }
            let owner = self.world.nodes[self.world.owner.0].owner.as_ref();
            let is_ready = owner.is_some_and(|owner| owner.shard.is_ready() && owner.shard.figures().commands == 0);
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

    /// Milliseconds until some owner has something to do, and at least one.
    fn until_next_wake(&self) -> i64 {
        let owners = self.world.nodes.iter().filter_map(|node| node.owner.as_ref());
        let wakes = owners
            .filter_map(|owner| Some(owner.shard.wake_at()?.as_millis().saturating_sub(owner.shard.now().as_millis())));
        wakes.min().unwrap_or(1).clamp(1, 5_000)
    }

    /// Everything that does not wait for time goes on.
    fn advance_any(&mut self) -> Check<bool> {
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
                let went_on = match self.world.calls(node)[index] {
                    Call::Answered(_) => self.world.deliver(node, index).map(|()| true)?,
                    Call::Waiting(_) => self.world.answer_call(node, index, CommitFault::None, false)?,
                };
                if went_on {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
