//! A node that owns the shard, or believes so: the real deciding part, with the calls that it waits for.
//!
//! What the shell around a shard does is done here step by step, so that anything can happen between two of them: a call is
//! first answered by the log or the store, and the answer reaches the shard later, or never.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use whimbrel_cluster::owner_clock::Reading;
use whimbrel_holds::shard::{AskId, Effect, Input, Shard};
use whimbrel_model::clock::{ClockSource, Sample, StepLimits};
use whimbrel_model::ports::{Applied, TimersError, Write};
use whimbrel_model::{Clock as _, GuardedClock};

/// A call on its way.
#[derive(Debug)]
pub enum Call {
    Waiting(Effect),
    Answered(Input),
}

/// A checkpoint on its way.
#[derive(Debug)]
pub enum Saving {
    Waiting(Write),
    Answered(Result<Applied, TimersError>),
}

/// Finding out where store and log are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Opens the fence.
    Fence,
    /// Checks the ownership.
    Check,
    /// Opens the store; the fence was opened in this start, or earlier.
    Store { anew: bool },
    /// Asks for the log's bounds.
    Bounds { applied: u64 },
}

#[derive(Debug)]
pub struct Owner {
    pub shard: Shard,
    pub epoch: u64,
    pub fence: u64,
    pub start: Option<Start>,
    pub calls: Vec<Call>,
    pub saving: Option<Saving>,
    /// Who asked: the number of the question.
    pub asks: BTreeMap<AskId, usize>,
    pub next_ask: AskId,
}

/// A machine with a process: its wall clock can be set, its steady clock is the true time.
pub struct Node {
    /// There is none after a crash, and where the shard was given up.
    pub owner: Option<Owner>,
    hands: Arc<Hands>,
    limits: StepLimits,
    clock: GuardedClock<Arc<Hands>>,
    /// How far its wall clock is from the true time while nothing is wrong with it.
    pub usual_skew_ms: i64,
    /// When its wall clock was last set, and whether it has ever been left for longer than the stepout where it is wrong.
    set_at: i64,
    pub has_lasted: bool,
}

/// The clocks of a machine, in milliseconds.
#[derive(Default)]
struct Hands {
    time_ms: AtomicI64,
    skew_ms: AtomicI64,
}

impl ClockSource for Hands {
    fn steady_us(&self) -> i64 {
        self.time_ms.load(Ordering::Relaxed) * 1000
    }

    fn sample(&self) -> Sample {
        let steady_us = self.steady_us();
        Sample { wall_us: steady_us + self.skew_ms.load(Ordering::Relaxed) * 1000, steady_us }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("owner", &self.owner).field("skew_ms", &self.skew_ms()).finish_non_exhaustive()
    }
}

impl Node {
    pub fn new(limits: StepLimits, time: i64) -> Self {
        let hands = Arc::new(Hands { time_ms: AtomicI64::new(time), skew_ms: AtomicI64::new(0) });
        let clock = GuardedClock::start(Arc::clone(&hands), limits, None);
        Self { owner: None, hands, limits, clock, usual_skew_ms: 0, set_at: time, has_lasted: false }
    }

    /// How far its wall clock is from the true time.
    pub fn skew_ms(&self) -> i64 {
        self.hands.skew_ms.load(Ordering::Relaxed)
    }

    pub fn set_skew(&mut self, skew_ms: i64, time: i64) {
        self.pass(time);
        self.hands.skew_ms.store(skew_ms, Ordering::Relaxed);
        self.set_at = time;
    }

    fn pass(&mut self, time: i64) {
        self.hands.time_ms.store(time, Ordering::Relaxed);
        let is_wrong = self.skew_ms() != self.usual_skew_ms;
        self.has_lasted |= is_wrong && (time - self.set_at) as u128 >= self.limits.stepout.as_millis();
    }

    /// The process starts again, with what an earlier one has noted of the clock.
    pub fn restart_clock(&mut self) {
        let settled_us = self.clock.settled_us();
        self.clock = GuardedClock::start(Arc::clone(&self.hands), self.limits, settled_us);
    }

    pub fn reading(&mut self, time: i64) -> Reading {
        self.pass(time);
        self.clock.check();
        let (wall, expiry) = (self.clock.now(), self.clock.expiry_now());
        Reading { wall, expiry, steady_ms: u64::try_from(time).unwrap_or(0) }
    }
}

/// A short name of what a call is for.
pub fn name_of(effect: &Effect) -> &'static str {
    match effect {
        Effect::Read { .. } => "read",
        Effect::End { .. } => "end",
        Effect::Get { .. } => "get",
        Effect::Due { .. } => "due",
        Effect::List { .. } => "list",
        Effect::Dead { .. } => "dead",
        Effect::Count { .. } => "count",
        Effect::Apply(_) => "apply",
        Effect::Commit { .. } => "commit",
        Effect::Cut { .. } => "cut",
        Effect::Walk { .. } => "walk",
        Effect::Trim { .. } => "trim",
        Effect::Answer { .. } => "answer",
        Effect::StartOver => "start over",
        Effect::OpenAnew => "open anew",
        Effect::Report { .. } => "report",
        Effect::NotTrimmed { .. } => "not trimmed",
        Effect::Resign { .. } => "resign",
    }
}

/// The same for an answer.
pub fn name_of_answer(input: &Input) -> &'static str {
    match input {
        Input::Started { .. } => "started",
        Input::Asked { .. } => "asked",
        Input::Read(_) => "read",
        Input::End { .. } => "end",
        Input::Got { .. } => "get",
        Input::Due { .. } => "due",
        Input::Listed { .. } => "list",
        Input::ListedDead { .. } => "dead",
        Input::Counted { .. } => "count",
        Input::Applied(_) => "apply",
        Input::Committed(_) => "commit",
        Input::Cut(_) => "cut",
        Input::Walked(_) => "walk",
        Input::Trimmed(_) => "trim",
        Input::Tick => "tick",
    }
}
