//! The state machine of one shard of holds, as its owner has it in memory. No I/O, no clock of its own.
//!
//! [`HoldShard::step`] takes an input with a reading of the clocks and returns effects: read the log, query the store, commit, answer. The
//! result of an effect comes back as an [`HoldInput`]. One commit is in progress at a time; it contains many decisions. A decision enters
//! memory as every record does, when the log is folded up to it. Until then the shard decides nothing else about that hold.
//!
//! - The shard decides nothing before it has folded the log to its end as of the last start.
//! - An answer that needs no commit follows a fold to the log's end as of the request's arrival.
//! - Every read of the store returns the store's offset. At an unexpected offset, the shard drops its memory and folds again.
//! - After a commit with an unknown outcome the shell opens a new fence, and the shard folds everything again. It resubmits nothing
//!   before the log shows the outcome.

mod aside_retry;
mod carry;
mod checkpoint;
mod commands;
mod fold;
mod memory;
mod pending_commit;
mod queries;
mod request_queues;
mod store_state;
mod time;
mod window_fill;

use std::sync::Arc;

use whimbrel_model::ports::{
    ApplyOutcome, AtOffset, CountQuery, DueCursor, HoldQuery, HoldReply, HoldRequest, HoldsError, LogError, ReadBatch,
    StoredHold, TimersError, TimersWrite,
};
use whimbrel_model::{Hold, HoldEnd, HoldId, Timestamp};

use super::settings::HoldsSettings;
use whimbrel_cluster::Machine;
use whimbrel_cluster::owner_clock::ClockReading;

pub use pending_commit::{CommitResult, Decision, WrittenDecision};
pub use request_queues::HoldRequestId;

use carry::Trim;
use fold::ShardFold;
use memory::HoldMemory;
use pending_commit::Commits;
use request_queues::RequestQueues;
use store_state::{StoreRead, StoreState};
use time::ShardTime;
use window_fill::WindowFill;

/// Identifies a call, so that its result can be matched to it.
pub type CallToken = u64;

#[derive(Debug)]
pub enum HoldEffect {
    /// Read the shard's partition from there; wait at its end. One read at a time.
    Read {
        from: u64,
    },
    /// Read the partition's end as the log has it, not as readers see it.
    End {
        token: CallToken,
    },
    Get {
        token: CallToken,
        ids: Vec<HoldId>,
    },
    Due {
        token: CallToken,
        after: Option<DueCursor>,
        until: Timestamp,
    },
    List {
        token: CallToken,
        query: HoldQuery,
    },
    Dead {
        token: CallToken,
        query: HoldQuery,
    },
    Count {
        token: CallToken,
        query: CountQuery,
    },
    /// Write a checkpoint. One at a time.
    Apply(TimersWrite),
    /// Commit under the fence. One at a time.
    Commit {
        decisions: Vec<Decision>,
        at: Timestamp,
    },
    /// Find the first kept offset, and the first one that is not older than `kept_since`.
    Cut {
        kept_since: Timestamp,
    },
    /// Read a page of an old range of the log.
    Walk {
        from: u64,
        upto: u64,
    },
    Trim {
        before: u64,
    },
    Answer {
        ask: HoldRequestId,
        told: Result<HoldReply, HoldsError>,
    },
    /// Drop all calls in progress, but wait for a write to the store. Then read the offsets of store and log.
    StartOver,
    /// The same, but open a new fence and check the ownership first.
    OpenFence,
    Report {
        offset: u64,
        why: String,
    },
    /// Report that the log cannot be trimmed now. Once, until a trim succeeds.
    NotTrimmed {
        why: String,
    },
    /// Give up the shard: this owner cannot continue.
    Resign {
        why: String,
    },
}

/// A request, the result of an effect, or a tick.
#[derive(Debug)]
pub enum HoldInput {
    /// The offsets of store and log: the store's offset, the partition's first kept offset and its end.
    Started {
        applied: u64,
        first: u64,
        end: u64,
    },
    Asked {
        ask: HoldRequestId,
        what: HoldRequest,
    },
    Read(Result<ReadBatch, LogError>),
    End {
        token: CallToken,
        end: Result<u64, LogError>,
    },
    Got {
        token: CallToken,
        found: Result<AtOffset<Vec<Option<StoredHold>>>, TimersError>,
    },
    Due {
        token: CallToken,
        found: Result<AtOffset<Vec<Arc<Hold>>>, TimersError>,
    },
    Listed {
        token: CallToken,
        found: Result<AtOffset<Vec<Arc<Hold>>>, TimersError>,
    },
    ListedDead {
        token: CallToken,
        found: Result<AtOffset<Vec<(HoldId, HoldEnd)>>, TimersError>,
    },
    Counted {
        token: CallToken,
        found: Result<AtOffset<Vec<(Timestamp, u64)>>, TimersError>,
    },
    Applied(Result<ApplyOutcome, TimersError>),
    Committed(CommitResult),
    /// The first kept offset, and the offset to cut at.
    Cut(Result<(u64, u64), LogError>),
    Walked(Result<ReadBatch, LogError>),
    Trimmed(Result<(), LogError>),
    Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShardPhase {
    /// The shell is reading the offsets of store and log.
    Starting,
    /// The log is folded up to `goal` before the shard decides anything.
    Folding {
        goal: u64,
    },
    Ready,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldShardMetrics {
    pub window_holds: usize,
    pub window_bytes: usize,
    pub unsaved_bytes: usize,
    pub commands: usize,
    pub folded: u64,
    pub saved: u64,
}

/// A shard in memory: what it knows, and what it waits for.
#[derive(Debug)]
pub struct HoldShard {
    settings: Arc<HoldsSettings>,
    epoch: u64,
    time: ShardTime,
    phase: ShardPhase,
    next_token: CallToken,
    fold: ShardFold,
    store: StoreState,
    memory: HoldMemory,
    filling: WindowFill,
    /// The request to the store for a page of holds that are set aside, and the number of saves before it.
    scanning: Option<(CallToken, u64)>,
    commits: Commits,
    requests: RequestQueues,
    trim: Trim,
}

/// The number of turns over which the shards' checkpoints are spread within their interval.
const TURNS: u64 = 16;

fn after(time: Timestamp, duration: std::time::Duration) -> Timestamp {
    let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(time.as_millis().saturating_add(ms))
}

impl HoldShard {
    /// A shard that was just taken over, under an open fence and a checked ownership. The first input must be `Started`.
    pub fn new(settings: Arc<HoldsSettings>, shards: u32, epoch: u64, reading: ClockReading) -> Self {
        let skew = i64::try_from(settings.clock_skew.as_millis()).unwrap_or(i64::MAX);
        let now = reading.wall;
        let memory = HoldMemory::new(now, settings.window_bytes / shards.max(1) as usize);
        Self {
            epoch,
            time: ShardTime::new(reading, skew),
            phase: ShardPhase::Starting,
            next_token: 0,
            fold: ShardFold::default(),
            store: StoreState::default(),
            filling: WindowFill::new(&memory.window),
            memory,
            scanning: None,
            commits: Commits::default(),
            requests: RequestQueues::default(),
            trim: Trim::new(after(now, settings.trim_interval)),
            settings,
        }
    }

    /// Whether the log is folded to its end as of the takeover.
    pub fn is_ready(&self) -> bool {
        self.phase == ShardPhase::Ready
    }

    /// Whether a commit, a request or the start of the shard waits for the log to be folded.
    pub fn is_urgent(&self) -> bool {
        self.phase != ShardPhase::Ready || self.commits.pending.is_some() || !self.requests.to_fold.is_empty()
    }

    pub fn now(&self) -> Timestamp {
        self.time.now()
    }

    pub fn metrics(&self) -> HoldShardMetrics {
        HoldShardMetrics {
            window_holds: self.memory.window.count() + self.memory.aside.count(),
            window_bytes: self.memory.window.bytes() + self.memory.aside.bytes(),
            unsaved_bytes: self.memory.unsaved.bytes_in_all(),
            commands: self.requests.count,
            folded: self.fold.folded,
            saved: self.store.saved,
        }
    }
}

impl Machine for HoldShard {
    type Now = ClockReading;
    type Input = HoldInput;
    type Effect = HoldEffect;

    fn step(&mut self, reading: ClockReading, input: HoldInput) -> Vec<HoldEffect> {
        if let Some(step_ms) = self.time.read(reading) {
            // The step does not change how long a command has waited.
            let expires_at = after(self.time.now(), self.settings.answer_within);
            self.requests.all_mut().for_each(|waiting| waiting.expires_at = expires_at);
            if step_ms < 0 {
                self.plan_again();
            }
        }
        let mut effects = Vec::new();
        match input {
            HoldInput::Started { applied, first, end } => self.started(applied, first, end),
            HoldInput::Asked { ask, what } => self.asked(ask, what, &mut effects),
            HoldInput::Read(read) => self.read(read, &mut effects),
            HoldInput::End { token, end } => self.end_known(token, end, &mut effects),
            HoldInput::Got { token, found } => self.got(token, found, &mut effects),
            HoldInput::Due { token, found } => {
                if !self.scanned(token, &found) {
                    self.filled(token, found, &mut effects);
                }
            }
            HoldInput::Listed { token, found } => self.listed(token, found, &mut effects),
            HoldInput::ListedDead { token, found } => self.listed_dead(token, found, &mut effects),
            HoldInput::Counted { token, found } => self.counted(token, found, &mut effects),
            HoldInput::Applied(applied) => self.applied(applied, &mut effects),
            HoldInput::Committed(outcome) => self.committed(outcome, &mut effects),
            HoldInput::Cut(cut) => self.cut_found(cut, &mut effects),
            HoldInput::Walked(read) => self.walked(read, &mut effects),
            HoldInput::Trimmed(trimmed) => self.trimmed(trimmed, &mut effects),
            HoldInput::Tick => {}
        }
        self.go_on(&mut effects);
        effects
    }

    fn wake_at(&self) -> Option<Timestamp> {
        if self.phase == ShardPhase::Starting {
            return None;
        }
        let mut times = Vec::with_capacity(6);
        if self.requests.count > 0 {
            times.push(self.requests.expire_at);
        }
        times.extend(self.save_at());
        times.extend(self.page_at());
        if self.phase == ShardPhase::Ready {
            if self.commits.pending.is_none() {
                times.extend(match self.commits.again_at {
                    Some(again_at) => Some(again_at),
                    None => self.memory.window.next_due().into_iter().chain(self.memory.aside.retry_at()).min(),
                });
                times.extend(self.memory.aside.scan_at().filter(|_| self.scanning.is_none()));
            }
            times.extend(self.fill_at());
            if self.trim.carry.is_none() {
                times.push(self.trim.at);
            }
        }
        times.into_iter().min()
    }
}

impl HoldShard {
    /// Performs all work that is possible now, whatever the input was.
    fn go_on(&mut self, effects: &mut Vec<HoldEffect>) {
        self.expire(effects);
        if self.store.has_fallen && !self.commits.is_open() {
            self.start_over(effects);
        }
        if self.phase == ShardPhase::Starting {
            return;
        }
        self.ask_for_page_again(effects);
        self.read_on(effects);
        self.save(effects);
        if self.phase != ShardPhase::Ready {
            return;
        }
        self.advance_commands(effects);
        self.fill(effects);
        self.scan_aside(effects);
        self.carry_on(effects);
        self.decide(effects);
    }

    fn started(&mut self, applied: u64, first: u64, end: u64) {
        // Shards that were taken over together spread their checkpoints over the interval.
        let turn = self.settings.checkpoint_interval * (self.epoch % TURNS) as u32 / TURNS as u32;
        let is_of_this_log = self.store.started(applied, first, end, self.time.now().saturating_sub(turn));
        self.fold.folded = if is_of_this_log { applied } else { first };
        self.phase = ShardPhase::Folding { goal: end };
        self.is_ready_now();
    }

    /// Enters `Ready` if the log is folded to the goal.
    fn is_ready_now(&mut self) {
        if let ShardPhase::Folding { goal } = self.phase
            && self.fold.folded >= goal
            && !self.store.must_reset
        {
            self.phase = ShardPhase::Ready;
        }
    }

    /// Drops all folded state and has the offsets of store and log read again.
    fn start_over(&mut self, effects: &mut Vec<HoldEffect>) {
        self.forget();
        effects.push(HoldEffect::StartOver);
    }

    /// The clock was set back, so all planned times and the wheel are wrong. The shard drops its memory and folds again, as after a store
    /// that lost writes.
    fn plan_again(&mut self) {
        let now = self.time.now();
        self.store.plan_again(now);
        (self.fold.again_at, self.requests.expire_at) = (now, now);
        (self.filling.again_at, self.commits.again_at) = (None, None);
        self.trim.at = after(now, self.settings.trim_interval);
        if self.phase != ShardPhase::Starting {
            self.store.has_fallen = true;
        } else {
            self.memory.forget_window(now);
        }
    }

    fn open_fence(&mut self, effects: &mut Vec<HoldEffect>) {
        self.forget();
        effects.push(HoldEffect::OpenFence);
    }

    fn forget(&mut self) {
        let now = self.time.now();
        self.phase = ShardPhase::Starting;
        self.fold.forget();
        self.store.forget();
        self.memory.forget(now);
        self.filling.forget();
        self.scanning = None;
        self.commits = Commits::default();
        self.trim.carry = None;
        self.requests.start_over();
    }

    fn token(&mut self) -> CallToken {
        self.next_token += 1;
        self.next_token
    }
}
