//! A node that owns the shard, or is a zombie: the real deciding part, with the calls for which it waits.
//!
//! The node does the work of the shell around a shard step by step, so that any event can happen between two steps. First the log or the
//! store answers a call; later the answer reaches the shard, or never does.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use whimbrel_cluster::owner_clock::ClockReading;
use whimbrel_holds::shard::{HoldEffect, HoldInput, HoldRequestId, HoldShard};
use whimbrel_model::clock::{ClockSample, ClockSource, StepLimits};
use whimbrel_model::ports::{ApplyOutcome, TimersError, TimersWrite};
use whimbrel_model::{Clock as _, GuardedClock};

/// A call in progress.
#[derive(Debug)]
pub enum NodeCall {
    Waiting(HoldEffect),
    Answered(HoldInput),
}

/// A checkpoint in progress.
#[derive(Debug)]
pub enum NodeSave {
    Waiting(TimersWrite),
    Answered(Result<ApplyOutcome, TimersError>),
}

/// The stages of a start, which finds the positions of store and log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Startup {
    /// Opens the fence.
    Fence,
    /// Checks the ownership.
    Check,
    /// Opens the store. `with_fence`: the fence was opened in this start, not earlier.
    Store { with_fence: bool },
    /// Asks the log for its bounds.
    Bounds { applied: u64 },
}

#[derive(Debug)]
pub struct HoldsOwner {
    pub shard: HoldShard,
    pub epoch: u64,
    pub fence: u64,
    pub start: Option<Startup>,
    pub calls: Vec<NodeCall>,
    pub saving: Option<NodeSave>,
    /// The number of the request behind each id.
    pub asks: BTreeMap<HoldRequestId, usize>,
    pub next_ask: HoldRequestId,
}

/// A machine with a process. Its wall clock can be set; its steady clock is the true time.
pub struct HoldsNode {
    /// `None` after a crash, or after the node gave up the shard.
    pub owner: Option<HoldsOwner>,
    hands: Arc<NodeClocks>,
    limits: StepLimits,
    clock: GuardedClock<Arc<NodeClocks>>,
    /// The normal distance of its wall clock from the true time.
    pub usual_skew_ms: i64,
    /// The time of the last change of its wall clock. `has_lasted`: the clock was once wrong for longer than the stepout.
    set_at: i64,
    pub has_lasted: bool,
}

/// The clocks of a machine, in milliseconds.
#[derive(Default)]
struct NodeClocks {
    time_ms: AtomicI64,
    skew_ms: AtomicI64,
}

impl ClockSource for NodeClocks {
    fn steady_us(&self) -> i64 {
        self.time_ms.load(Ordering::Relaxed) * 1000
    }

    fn sample(&self) -> ClockSample {
        let steady_us = self.steady_us();
        ClockSample { wall_us: steady_us + self.skew_ms.load(Ordering::Relaxed) * 1000, steady_us }
    }
}

impl fmt::Debug for HoldsNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("owner", &self.owner).field("skew_ms", &self.skew_ms()).finish_non_exhaustive()
    }
}

impl HoldsNode {
    pub fn new(limits: StepLimits, time: i64) -> Self {
        let hands = Arc::new(NodeClocks { time_ms: AtomicI64::new(time), skew_ms: AtomicI64::new(0) });
        let clock = GuardedClock::start(Arc::clone(&hands), limits, None);
        Self { owner: None, hands, limits, clock, usual_skew_ms: 0, set_at: time, has_lasted: false }
    }

    /// The distance of its wall clock from the true time.
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

    /// Restarts the process with the clock state that an earlier process recorded.
    pub fn restart_clock(&mut self) {
        let settled_us = self.clock.settled_us();
        self.clock = GuardedClock::start(Arc::clone(&self.hands), self.limits, settled_us);
    }

    pub fn reading(&mut self, time: i64) -> ClockReading {
        self.pass(time);
        self.clock.check();
        let (wall, expiry) = (self.clock.now(), self.clock.expiry_now());
        ClockReading { wall, expiry, steady_ms: u64::try_from(time).unwrap_or(0) }
    }
}

/// A short name of a call, for the trace.
pub fn name_of(effect: &HoldEffect) -> &'static str {
    match effect {
        HoldEffect::Read { .. } => "read",
        HoldEffect::End { .. } => "end",
        HoldEffect::Get { .. } => "get",
        HoldEffect::Due { .. } => "due",
        HoldEffect::List { .. } => "list",
        HoldEffect::Dead { .. } => "dead",
        HoldEffect::Count { .. } => "count",
        HoldEffect::Apply(_) => "apply",
        HoldEffect::Commit { .. } => "commit",
        HoldEffect::Cut { .. } => "cut",
        HoldEffect::Walk { .. } => "walk",
        HoldEffect::Trim { .. } => "trim",
        HoldEffect::Answer { .. } => "answer",
        HoldEffect::StartOver => "start over",
        HoldEffect::OpenFence => "open fence",
        HoldEffect::Report { .. } => "report",
        HoldEffect::NotTrimmed { .. } => "not trimmed",
        HoldEffect::Resign { .. } => "resign",
    }
}

/// A short name of an answer, for the trace.
pub fn name_of_answer(input: &HoldInput) -> &'static str {
    match input {
        HoldInput::Started { .. } => "started",
        HoldInput::Asked { .. } => "asked",
        HoldInput::Read(_) => "read",
        HoldInput::End { .. } => "end",
        HoldInput::Got { .. } => "get",
        HoldInput::Due { .. } => "due",
        HoldInput::Listed { .. } => "list",
        HoldInput::ListedDead { .. } => "dead",
        HoldInput::Counted { .. } => "count",
        HoldInput::Applied(_) => "apply",
        HoldInput::Committed(_) => "commit",
        HoldInput::Cut(_) => "cut",
        HoldInput::Walked(_) => "walk",
        HoldInput::Trimmed(_) => "trim",
        HoldInput::Tick => "tick",
    }
}
