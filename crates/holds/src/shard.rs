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
mod pending_commit;
mod queries;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use whimbrel_model::ports::{
    ApplyOutcome, AtOffset, CountQuery, DueCursor, HoldQuery, HoldReply, HoldRequest, HoldsError, LogError, ReadBatch,
    StoredHold, TimersError, TimersWrite,
};
use whimbrel_model::{Hold, HoldEnd, HoldId, Timestamp};

use super::IdMap;
use super::aside::AsideHolds;
use super::settings::HoldsSettings;
use super::unsaved_holds::UnsavedHolds;
use super::window::HoldWindow;
use whimbrel_cluster::Machine;
use whimbrel_cluster::owner_clock::{ClockReading, OwnerClock};

pub use commands::HoldRequestId;
pub use pending_commit::{CommitResult, Decision, WrittenDecision};

use carry::Carry;
use commands::WaitingRequest;
use fold::FoldPage;
use pending_commit::PendingCommit;
use queries::{PendingQuery, Sweep};

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

#[derive(Debug)]
pub struct HoldShard {
    settings: Arc<HoldsSettings>,
    epoch: u64,
    clock: OwnerClock,
    wall: Timestamp,
    /// The time for decisions about expiry.
    expiry: Timestamp,
    phase: ShardPhase,
    next_token: CallToken,

    /// The offset up to which the log is folded without a gap.
    folded: u64,
    is_reading: bool,
    page: Option<FoldPage>,
    page_again_at: Timestamp,

    /// The store's offset, and the number of its changes so far.
    saved: u64,
    saves: u64,
    /// The offset of the last synced checkpoint, whether the one in progress is synced, and when the next one must be.
    synced: u64,
    saving_synced: bool,
    sync_at: Timestamp,
    unsaved: UnsavedHolds,
    saving: Option<u64>,
    /// The next checkpoint must empty the store first: its contents cannot be folded upon.
    must_reset: bool,
    last_saved_at: Timestamp,
    save_again_at: Option<Timestamp>,
    /// The store is at an unexpected offset.
    has_fallen: bool,

    window: HoldWindow,
    filling: Option<(CallToken, u64)>,
    /// The range that the read in progress covers: after a place, until a time.
    filling_after: DueCursor,
    filling_until: Timestamp,
    fill_again_at: Option<Timestamp>,

    pending_commit: Option<PendingCommit>,
    /// Holds that the commit in progress decides about, with the store's row of those that only the store has.
    deciding: IdMap<Option<Arc<Hold>>>,
    commit_again_at: Option<Timestamp>,
    /// Holds that can never be written, with the reason.
    doomed: Vec<(Arc<Hold>, Box<str>)>,
    /// Holds whose topic cannot accept messages now, and the request to the store for a page of them.
    aside: AsideHolds,
    scanning: Option<(CallToken, u64)>,

    arrived: Vec<WaitingRequest>,
    /// Requests that wait for the outcome of the commit in progress.
    blocked: Vec<WaitingRequest>,
    asking_end: BTreeMap<CallToken, Vec<WaitingRequest>>,
    to_fold: BTreeMap<u64, Vec<WaitingRequest>>,
    getting: BTreeMap<CallToken, Vec<WaitingRequest>>,
    decidable: VecDeque<WaitingRequest>,
    queries: BTreeMap<CallToken, PendingQuery>,
    sweeps: BTreeMap<HoldRequestId, Sweep>,
    waiting: usize,
    expire_at: Timestamp,

    carry: Option<Carry>,
    carry_at: Timestamp,
    /// The log could not be trimmed, and that has been reported.
    told_not_trimmed: bool,
}

/// The number of turns over which the shards' checkpoints are spread within their interval.
const TURNS: u64 = 16;
/// How often the shard checks for requests that have waited too long, in milliseconds.
const EXPIRE_EVERY_MS: i64 = 250;

fn after(time: Timestamp, duration: std::time::Duration) -> Timestamp {
    let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(time.as_millis().saturating_add(ms))
}

impl HoldShard {
    /// A shard that was just taken over, under an open fence and a checked ownership. The first input must be `Started`.
    pub fn new(settings: Arc<HoldsSettings>, shards: u32, epoch: u64, reading: ClockReading) -> Self {
        let skew = i64::try_from(settings.clock_skew.as_millis()).unwrap_or(i64::MAX);
        let now = reading.wall;
        let window = HoldWindow::new(now, settings.window_bytes / shards.max(1) as usize);
        let aside = AsideHolds::new(now, window.bytes_max() / aside_retry::WINDOW_PART);
        Self {
            epoch,
            clock: OwnerClock::new(reading, skew),
            wall: now,
            expiry: reading.expiry,
            phase: ShardPhase::Starting,
            next_token: 0,
            folded: 0,
            is_reading: false,
            page: None,
            page_again_at: now,
            saved: 0,
            saves: 0,
            synced: 0,
            saving_synced: false,
            sync_at: now,
            unsaved: UnsavedHolds::default(),
            saving: None,
            must_reset: false,
            last_saved_at: now,
            save_again_at: None,
            has_fallen: false,
            filling_after: window.horizon().clone(),
            filling_until: now,
            window,
            filling: None,
            fill_again_at: None,
            pending_commit: None,
            deciding: IdMap::default(),
            commit_again_at: None,
            doomed: Vec::new(),
            aside,
            scanning: None,
            arrived: Vec::new(),
            blocked: Vec::new(),
            asking_end: BTreeMap::new(),
            to_fold: BTreeMap::new(),
            getting: BTreeMap::new(),
            decidable: VecDeque::new(),
            queries: BTreeMap::new(),
            sweeps: BTreeMap::new(),
            waiting: 0,
            expire_at: now,
            carry: None,
            carry_at: after(now, settings.trim_interval),
            told_not_trimmed: false,
            settings,
        }
    }

    /// Whether the log is folded to its end as of the takeover.
    pub fn is_ready(&self) -> bool {
        self.phase == ShardPhase::Ready
    }

    /// Whether a commit, a request or the start of the shard waits for the log to be folded.
    pub fn is_urgent(&self) -> bool {
        self.phase != ShardPhase::Ready || self.pending_commit.is_some() || !self.to_fold.is_empty()
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn metrics(&self) -> HoldShardMetrics {
        HoldShardMetrics {
            window_holds: self.window.count() + self.aside.count(),
            window_bytes: self.window.bytes() + self.aside.bytes(),
            unsaved_bytes: self.unsaved.bytes_in_all(),
            commands: self.waiting,
            folded: self.folded,
            saved: self.saved,
        }
    }
}

impl Machine for HoldShard {
    type Now = ClockReading;
    type Input = HoldInput;
    type Effect = HoldEffect;

    fn step(&mut self, reading: ClockReading, input: HoldInput) -> Vec<HoldEffect> {
        let step_ms = self.clock.read(reading);
        (self.wall, self.expiry) = (reading.wall, reading.expiry.min(self.clock.now()));
        if let Some(step_ms) = step_ms {
            // The step does not change how long a command has waited.
            let expires_at = after(self.clock.now(), self.settings.answer_within);
            self.everyone_waiting_mut().for_each(|waiting| waiting.expires_at = expires_at);
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
        if self.waiting > 0 {
            times.push(self.expire_at);
        }
        times.extend(self.save_at());
        times.extend(self.page_at());
        if self.phase == ShardPhase::Ready {
            if self.pending_commit.is_none() {
                times.extend(match self.commit_again_at {
                    Some(again_at) => Some(again_at),
                    None => self.window.next_due().into_iter().chain(self.aside.retry_at()).min(),
                });
                times.extend(self.aside.scan_at().filter(|_| self.scanning.is_none()));
            }
            times.extend(self.fill_at());
            if self.carry.is_none() {
                times.push(self.carry_at);
            }
        }
        times.into_iter().min()
    }
}

impl HoldShard {
    /// Performs all work that is possible now, whatever the input was.
    fn go_on(&mut self, effects: &mut Vec<HoldEffect>) {
        self.expire(effects);
        if self.has_fallen && !self.pending_commit.as_ref().is_some_and(PendingCommit::is_open) {
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
        self.saved = applied;
        self.saves += 1;
        self.synced = applied;
        // A store that is behind the kept log or beyond its end does not belong to this log.
        if applied < first || applied > end || self.must_reset {
            self.must_reset = true;
            self.folded = first;
        } else {
            self.folded = applied;
        }
        self.phase = ShardPhase::Folding { goal: end };
        // Shards that were taken over together spread their checkpoints over the interval.
        let turn = self.settings.checkpoint_interval * (self.epoch % TURNS) as u32 / TURNS as u32;
        self.last_saved_at = self.clock.now().saturating_sub(turn);
        self.is_ready_now();
    }

    /// Enters `Ready` if the log is folded to the goal.
    fn is_ready_now(&mut self) {
        if let ShardPhase::Folding { goal } = self.phase
            && self.folded >= goal
            && !self.must_reset
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
        let now = self.clock.now();
        (self.page_again_at, self.sync_at, self.last_saved_at, self.expire_at) = (now, now, now, now);
        (self.save_again_at, self.fill_again_at, self.commit_again_at) = (None, None, None);
        self.carry_at = after(now, self.settings.trim_interval);
        if self.phase != ShardPhase::Starting {
            self.has_fallen = true;
        } else {
            self.window = HoldWindow::new(now, self.window.bytes_max());
        }
    }

    fn open_fence(&mut self, effects: &mut Vec<HoldEffect>) {
        self.forget();
        effects.push(HoldEffect::OpenFence);
    }

    fn forget(&mut self) {
        self.phase = ShardPhase::Starting;
        self.has_fallen = false;
        self.is_reading = false;
        self.page = None;
        self.unsaved = UnsavedHolds::default();
        (self.saving, self.save_again_at) = (None, None);
        self.window = HoldWindow::new(self.clock.now(), self.window.bytes_max());
        (self.filling, self.fill_again_at) = (None, None);
        self.carry = None;
        self.doomed.clear();
        self.aside = AsideHolds::new(self.clock.now(), self.aside.bytes_max());
        self.scanning = None;
        self.deciding.clear();
        self.pending_commit = None;
        self.commit_again_at = None;
        self.commands_start_over();
    }

    /// Checks the result of a store read by the offset at which the store was.
    fn check_read(&self, at: u64, saves_when_asked: u64) -> StoreRead {
        if at == self.saved || self.saving == Some(at) {
            StoreRead::Sound
        } else if saves_when_asked != self.saves {
            // The read began before a checkpoint ended.
            StoreRead::AskAgain
        } else {
            StoreRead::Fallen
        }
    }

    fn token(&mut self) -> CallToken {
        self.next_token += 1;
        self.next_token
    }
}

/// Whether the result of a store read is usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreRead {
    Sound,
    AskAgain,
    Fallen,
}
