//! The deciding part: one shard of holds, as its owner has it in memory. No I/O, no clock of its own.
//!
//! [`Shard::step`] takes what happened with a reading of the clocks and returns what to do: read on, ask the store, commit,
//! answer. What it is told about a call that it asked for comes back as an [`Input`]. One commit is under way at a time, with
//! many decisions in it; a decision enters memory as every record does, by folding the log up to it, and until then nothing else
//! is decided about its hold.
//!
//! - Nothing is decided before the log was folded to its end as it was when the shard was taken, or taken anew.
//! - An answer that needs no commit follows a fold to the end as it was when the question came.
//! - Whatever is read from the store says where the store was. Where that is not where it was left, everything in memory is
//!   dropped and folded again.
//! - After a commit with an unknown outcome the fence is opened anew and everything is folded again; nothing is resubmitted
//!   before the log has told what became of it.

mod carrying;
mod commands;
mod committing;
mod folding;
mod looking;
mod saving;
mod setting_aside;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use whimbrel_model::ports::{
    Applied, Ask, At, CountQuery, DueCursor, HoldQuery, HoldsError, Known, LogError, ReadBatch, TimersError, Told,
    Write,
};
use whimbrel_model::{Hold, HoldEnd, HoldId, Timestamp};

use super::IdMap;
use super::aside::Aside;
use super::settings::HoldsSettings;
use super::unsaved::Unsaved;
use super::window::Window;
use whimbrel_cluster::owner_clock::{OwnerClock, Reading};

pub use commands::AskId;
pub use committing::{Committed, Decision, Written};

use carrying::Carry;
use commands::Waiting;
use committing::UnderWay;
use folding::Page;
use looking::{Looking, Sweep};

/// Names a call, so that its answer is known again.
pub type Token = u64;

/// What to do.
#[derive(Debug)]
pub enum Effect {
    /// Read the shard's partition on from there, waiting where there is nothing yet. One at a time.
    Read {
        from: u64,
    },
    /// Ask for the partition's end, as the log has it and not as readers see it.
    End {
        token: Token,
    },
    Get {
        token: Token,
        ids: Vec<HoldId>,
    },
    Due {
        token: Token,
        after: Option<DueCursor>,
        until: Timestamp,
    },
    List {
        token: Token,
        query: HoldQuery,
    },
    Dead {
        token: Token,
        query: HoldQuery,
    },
    Count {
        token: Token,
        query: CountQuery,
    },
    /// Write a checkpoint. One at a time.
    Apply(Write),
    /// Commit under the fence. One at a time.
    Commit {
        decisions: Vec<Decision>,
        at: Timestamp,
    },
    /// Find the first kept offset, and the first one that is not older than that.
    Cut {
        kept_since: Timestamp,
    },
    /// Read a page of an old stretch of the log.
    Walk {
        from: u64,
        upto: u64,
    },
    Trim {
        before: u64,
    },
    Answer {
        ask: AskId,
        told: Result<Told, HoldsError>,
    },
    /// Forget every call under way (a write to the store is waited for), then find out where store and log are.
    StartOver,
    /// The same, but open the fence anew and check the ownership first.
    OpenAnew,
    /// A record was passed over: say so.
    Report {
        offset: u64,
        why: String,
    },
    /// The log cannot be trimmed now: an operator wants to know. Once, until a trim succeeds.
    NotTrimmed {
        why: String,
    },
    /// This owner can go on no longer.
    Resign {
        why: String,
    },
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// Store and log were found: where the store is, the partition's first kept offset and its end.
    Started {
        applied: u64,
        first: u64,
        end: u64,
    },
    Asked {
        ask: AskId,
        what: Ask,
    },
    Read(Result<ReadBatch, LogError>),
    End {
        token: Token,
        end: Result<u64, LogError>,
    },
    Got {
        token: Token,
        found: Result<At<Vec<Option<Known>>>, TimersError>,
    },
    Due {
        token: Token,
        found: Result<At<Vec<Arc<Hold>>>, TimersError>,
    },
    Listed {
        token: Token,
        found: Result<At<Vec<Arc<Hold>>>, TimersError>,
    },
    ListedDead {
        token: Token,
        found: Result<At<Vec<(HoldId, HoldEnd)>>, TimersError>,
    },
    Counted {
        token: Token,
        found: Result<At<Vec<(Timestamp, u64)>>, TimersError>,
    },
    Applied(Result<Applied, TimersError>),
    Committed(Committed),
    /// First kept offset, and the one to cut at.
    Cut(Result<(u64, u64), LogError>),
    Walked(Result<ReadBatch, LogError>),
    Trimmed(Result<(), LogError>),
    /// Time has passed.
    Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Store and log are being looked for.
    Starting,
    /// Up to there must be folded before anything is decided.
    Folding {
        goal: u64,
    },
    Ready,
}

/// Figures for whoever watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardFigures {
    pub window_holds: usize,
    pub window_bytes: usize,
    pub unsaved_bytes: usize,
    pub commands: usize,
    pub folded: u64,
    pub saved: u64,
}

#[derive(Debug)]
pub struct Shard {
    settings: Arc<HoldsSettings>,
    epoch: u64,
    clock: OwnerClock,
    wall: Timestamp,
    /// The time that expiry goes by.
    expiry: Timestamp,
    phase: Phase,
    next_token: Token,

    /// Folded up to there without a hole.
    folded: u64,
    is_reading: bool,
    page: Option<Page>,
    page_again_at: Timestamp,

    /// Where the store was left, and how often that has changed.
    saved: u64,
    saves: u64,
    /// Up to where a checkpoint is on disk for sure, whether the one under way will be, and when the next one shall.
    synced: u64,
    saving_synced: bool,
    sync_at: Timestamp,
    unsaved: Unsaved,
    /// The checkpoint under way: up to where.
    saving: Option<u64>,
    /// Empties the store: what it has cannot be folded upon.
    must_reset: bool,
    last_saved_at: Timestamp,
    save_again_at: Option<Timestamp>,
    /// The store is not where it was left.
    has_fallen: bool,

    window: Window,
    filling: Option<(Token, u64)>,
    /// What the page under way was asked for: after a place, until a time.
    filling_after: DueCursor,
    filling_until: Timestamp,
    fill_again_at: Option<Timestamp>,

    under_way: Option<UnderWay>,
    /// Holds that a commit under way decides upon, with what the store has of those that only it knew.
    deciding: IdMap<Option<Arc<Hold>>>,
    commit_again_at: Option<Timestamp>,
    /// Holds that can never be written, with the reason.
    doomed: Vec<(Arc<Hold>, Box<str>)>,
    /// Holds whose topic cannot accept messages now, and the request to the store for a page of them.
    aside: Aside,
    scanning: Option<(Token, u64)>,

    arrived: Vec<Waiting>,
    /// Wait for the outcome of the commit under way.
    blocked: Vec<Waiting>,
    asking_end: BTreeMap<Token, Vec<Waiting>>,
    to_fold: BTreeMap<u64, Vec<Waiting>>,
    getting: BTreeMap<Token, Vec<Waiting>>,
    decidable: VecDeque<Waiting>,
    looking: BTreeMap<Token, Looking>,
    sweeps: BTreeMap<AskId, Sweep>,
    waiting: usize,
    expire_at: Timestamp,

    carry: Option<Carry>,
    carry_at: Timestamp,
    /// An operator was told that the log cannot be trimmed.
    told_not_trimmed: bool,
}

/// Turns in which checkpoints of shards are made within their interval.
const TURNS: u64 = 16;
/// Every so often, commands that waited for too long are answered.
const EXPIRE_EVERY_MS: i64 = 250;

fn after(time: Timestamp, duration: std::time::Duration) -> Timestamp {
    let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(time.as_millis().saturating_add(ms))
}

impl Shard {
    /// A shard that was just taken: the fence is open and the ownership was checked after that. The first input is `Started`.
    pub fn new(settings: Arc<HoldsSettings>, shards: u32, epoch: u64, reading: Reading) -> Self {
        let skew = i64::try_from(settings.clock_skew.as_millis()).unwrap_or(i64::MAX);
        let now = reading.wall;
        let window = Window::new(now, settings.window_bytes / shards.max(1) as usize);
        let aside = Aside::new(now, window.bytes_max() / setting_aside::WINDOW_PART);
        Self {
            epoch,
            clock: OwnerClock::new(reading, skew),
            wall: now,
            expiry: reading.expiry,
            phase: Phase::Starting,
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
            unsaved: Unsaved::default(),
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
            under_way: None,
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
            looking: BTreeMap::new(),
            sweeps: BTreeMap::new(),
            waiting: 0,
            expire_at: now,
            carry: None,
            carry_at: after(now, settings.trim_interval),
            told_not_trimmed: false,
            settings,
        }
    }

    /// Whether everything was folded that was there when the shard was taken.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether somebody waits for the log to be folded: a commit, a question, or the shard itself.
    pub fn is_urgent(&self) -> bool {
        self.phase != Phase::Ready || self.under_way.is_some() || !self.to_fold.is_empty()
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn figures(&self) -> ShardFigures {
        ShardFigures {
            window_holds: self.window.count() + self.aside.count(),
            window_bytes: self.window.bytes() + self.aside.bytes(),
            unsaved_bytes: self.unsaved.bytes_in_all(),
            commands: self.waiting,
            folded: self.folded,
            saved: self.saved,
        }
    }

    pub fn step(&mut self, reading: Reading, input: Input) -> Vec<Effect> {
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
            Input::Started { applied, first, end } => self.started(applied, first, end),
            Input::Asked { ask, what } => self.asked(ask, what, &mut effects),
            Input::Read(read) => self.read(read, &mut effects),
            Input::End { token, end } => self.end_known(token, end, &mut effects),
            Input::Got { token, found } => self.got(token, found, &mut effects),
            Input::Due { token, found } => {
                if !self.scanned(token, &found) {
                    self.filled(token, found, &mut effects);
                }
            }
            Input::Listed { token, found } => self.listed(token, found, &mut effects),
            Input::ListedDead { token, found } => self.listed_dead(token, found, &mut effects),
            Input::Counted { token, found } => self.counted(token, found, &mut effects),
            Input::Applied(applied) => self.applied(applied, &mut effects),
            Input::Committed(outcome) => self.committed(outcome, &mut effects),
            Input::Cut(cut) => self.cut_found(cut, &mut effects),
            Input::Walked(read) => self.walked(read, &mut effects),
            Input::Trimmed(trimmed) => self.trimmed(trimmed, &mut effects),
            Input::Tick => {}
        }
        self.go_on(&mut effects);
        effects
    }

    /// Everything that is to do by now, whatever happened.
    fn go_on(&mut self, effects: &mut Vec<Effect>) {
        self.expire(effects);
        if self.has_fallen && !self.under_way.as_ref().is_some_and(UnderWay::is_open) {
            self.start_over(effects);
        }
        if self.phase == Phase::Starting {
            return;
        }
        self.ask_for_page_again(effects);
        self.read_on(effects);
        self.save(effects);
        if self.phase != Phase::Ready {
            return;
        }
        self.advance_commands(effects);
        self.fill(effects);
        self.scan_aside(effects);
        self.carry_on(effects);
        self.decide(effects);
    }

    /// When there is something to do although nothing happens.
    pub fn wake_at(&self) -> Option<Timestamp> {
        if self.phase == Phase::Starting {
            return None;
        }
        let mut times = Vec::with_capacity(6);
        if self.waiting > 0 {
            times.push(self.expire_at);
        }
        times.extend(self.save_at());
        times.extend(self.page_at());
        if self.phase == Phase::Ready {
            if self.under_way.is_none() {
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

    fn started(&mut self, applied: u64, first: u64, end: u64) {
        self.saved = applied;
        self.saves += 1;
        self.synced = applied;
        // A store from before the kept log, or from beyond it, is not of this log any more.
        if applied < first || applied > end || self.must_reset {
            self.must_reset = true;
            self.folded = first;
        } else {
            self.folded = applied;
        }
        self.phase = Phase::Folding { goal: end };
        // Shards that were taken together make their checkpoints one after the other, not all at once.
        let turn = self.settings.checkpoint_interval * (self.epoch % TURNS) as u32 / TURNS as u32;
        self.last_saved_at = self.clock.now().saturating_sub(turn);
        self.is_ready_now();
    }

    /// The goal may be reached by what was folded.
    fn is_ready_now(&mut self) {
        if let Phase::Folding { goal } = self.phase
            && self.folded >= goal
            && !self.must_reset
        {
            self.phase = Phase::Ready;
        }
    }

    /// Drops everything that was folded and looks where store and log are.
    fn start_over(&mut self, effects: &mut Vec<Effect>) {
        self.forget();
        effects.push(Effect::StartOver);
    }

    /// The clock was set back: every time that was planned is meant by a time that is not true any more, and so is the wheel's.
    /// What is in memory is dropped and read again, as after a store that fell back.
    fn plan_again(&mut self) {
        let now = self.clock.now();
        (self.page_again_at, self.sync_at, self.last_saved_at, self.expire_at) = (now, now, now, now);
        (self.save_again_at, self.fill_again_at, self.commit_again_at) = (None, None, None);
        self.carry_at = after(now, self.settings.trim_interval);
        if self.phase != Phase::Starting {
            self.has_fallen = true;
        } else {
            self.window = Window::new(now, self.window.bytes_max());
        }
    }

    fn open_anew(&mut self, effects: &mut Vec<Effect>) {
        self.forget();
        effects.push(Effect::OpenAnew);
    }

    fn forget(&mut self) {
        self.phase = Phase::Starting;
        self.has_fallen = false;
        self.is_reading = false;
        self.page = None;
        self.unsaved = Unsaved::default();
        (self.saving, self.save_again_at) = (None, None);
        self.window = Window::new(self.clock.now(), self.window.bytes_max());
        (self.filling, self.fill_again_at) = (None, None);
        self.carry = None;
        self.doomed.clear();
        self.aside = Aside::new(self.clock.now(), self.aside.bytes_max());
        self.scanning = None;
        self.deciding.clear();
        self.under_way = None;
        self.commit_again_at = None;
        self.commands_start_over();
    }

    /// Judges a read of the store by where the store was.
    fn judge(&self, at: u64, saves_when_asked: u64) -> Judged {
        if at == self.saved || self.saving == Some(at) {
            Judged::Sound
        } else if saves_when_asked != self.saves {
            // It was asked before a checkpoint of our own was there.
            Judged::AskAgain
        } else {
            Judged::Fallen
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        self.next_token
    }
}

/// What a read of the store is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judged {
    Sound,
    AskAgain,
    Fallen,
}
