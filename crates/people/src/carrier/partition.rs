//! One partition of `_push` as its owner sees it: who is there, what they were sent, what is stored for them. Pure: time and everything
//! that happened come in, what to do goes out.
//!
//! Everything about a user passes through one queue in order: the records of the log, arrivals, questions. What is at its head waits until
//! the boxes of its users are in memory; boxes of users with a session stay there. Acknowledgements and departures are about users that are
//! in memory, and are taken at once.

mod acking;
mod admitting;
mod asking;
mod coming;
mod folding;
mod kicking;
mod loading;
mod reading;
mod saving;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;
use whimbrel_model::people::{GatewayId, Platform, Uid};
use whimbrel_model::ports::{
    Announced, Applied, Arrival, At, InboxError, InboxWrite, LogError, OutMessage, PeopleAsk, PeopleError, PeopleTold,
    ReadBatch, RowKey, ToCarrier, ToGateway,
};
use whimbrel_model::push::{BadPush, Notice, PushTask, offset_of};
use whimbrel_model::{Record, Timestamp};

use super::settings::{CarrierSettings, WORK_RECORDS_MAX};
use super::user_box::{Exhausted, Expired, PlatformRules, UserBox};
use coming::Coming;
use saving::{InFlight, Unsaved};

pub type AskId = u64;
pub type RowsToken = u64;

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// The store is at `applied`, the log begins at `first` and ends at `end`.
    Started {
        applied: u64,
        first: u64,
        end: u64,
    },
    Read(Result<ReadBatch, LogError>),
    /// The boxes that were asked for, in that order.
    Loaded(Result<At<Vec<Option<Bytes>>>, InboxError>),
    Rows {
        token: RowsToken,
        found: Result<At<Vec<Option<Bytes>>>, InboxError>,
    },
    /// What was to be appended is durable.
    Appended,
    Applied(Result<Applied, InboxError>),
    From {
        gateway: GatewayId,
        messages: Vec<ToCarrier>,
    },
    /// The gateways that live, and no others.
    Living(Arc<Vec<GatewayId>>),
    /// A gateway that could not be told something: that incarnation is not there any more.
    GatewayGone(GatewayId),
    /// A question, and where the log ended when it came.
    Asked {
        ask: AskId,
        what: PeopleAsk,
        end: u64,
    },
    /// Users whose boxes may be of no use any more.
    Reclaimable(Vec<Uid>),
    /// The store is to be on disk up to what is folded now.
    SyncWanted,
    /// Nothing more is to be read: what is in memory is saved, and that is all.
    Ending,
    Tick,
}

/// What to do.
#[derive(Debug, PartialEq)]
pub enum Effect {
    Read {
        from: u64,
    },
    Load {
        uids: Vec<Uid>,
    },
    Rows {
        token: RowsToken,
        keys: Vec<RowKey>,
        /// Pages of seats that read on wait for their turn; what a person asked for does not.
        is_page: bool,
    },
    /// Until it is durable: nothing that it came from counts as done before.
    Append(Vec<Letter>),
    Apply(InboxWrite),
    Tell {
        gateway: GatewayId,
        news: Vec<ToGateway>,
    },
    Answer {
        ask: AskId,
        told: Result<PeopleTold, PeopleError>,
    },
    Report(Trouble),
    /// It cannot go on: whoever takes the partition next begins from store and log.
    Resign {
        why: String,
    },
}

/// A record that the partition writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Letter {
    /// A task that comes back at that time.
    Hold {
        id: String,
        uid: Uid,
        task: PushTask,
        due: Timestamp,
    },
    Notice(Notice),
    Dead {
        offset: u64,
        record: Record,
        reason: String,
    },
    /// A message of one user that expired after its last retry. Its record is in the log, at that offset.
    Exhausted {
        offset: u64,
        uid: Uid,
        platforms: Vec<Platform>,
        reason: String,
    },
}

/// What an operator wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Records that were trimmed before they were folded.
    Gap {
        from: u64,
        to: u64,
    },
    /// The store knew more than the log has: it is of another log, and was emptied.
    OtherLog {
        applied: u64,
        end: u64,
    },
    /// A place of the log that cannot be read.
    Damaged {
        resume_at: u64,
        what: String,
    },
    NotUnderstood {
        offset: u64,
        why: String,
    },
    /// A box that could not be understood: its user begins anew.
    BadBox {
        uid: Uid,
        why: String,
    },
    /// A stored message whose row was not there.
    RowMissing {
        uid: Uid,
        seq: u64,
    },
    NoAck {
        uid: Uid,
        platform: Platform,
    },
}

/// What was counted since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub taken: u64,
    pub stored: u64,
    pub delivered_stored: u64,
    pub delivered_ephemeral: u64,
    pub acknowledged: u64,
    pub repeats: u64,
    pub retries: u64,
    pub no_acks: u64,
    pub dropped: u64,
    pub expired: u64,
    pub lost: u64,
    pub notices: u64,
    pub dead: u64,
}

/// A user in memory.
#[derive(Debug, Default)]
struct User {
    state: UserBox,
    lives: Vec<Live>,
    is_stored: bool,
    is_dirty: bool,
}

/// A session: a seat with somebody on it.
#[derive(Debug)]
struct Live {
    gateway: GatewayId,
    session: u64,
    platform: Platform,
    /// The seat's device, not the session's.
    device: Box<str>,
    arrived: Timestamp,
    /// An earlier owner let it in.
    was_announced: bool,
    /// The highest number that it was sent, or told that it lost.
    sent: u64,
    unacked: VecDeque<(u64, u32)>,
    unacked_bytes: usize,
    /// When the oldest of those was sent, or sent again.
    since: Timestamp,
    attempt: u32,
    /// There is a deadline for it among the others.
    is_watched: bool,
    /// A retry is under way as a hold.
    is_held: bool,
    /// The rows that are being read for it.
    reading: Option<RowsToken>,
    /// There is more for it than it was sent.
    is_behind: bool,
}

enum Work {
    Record { offset: u64, record: Record, task: Result<Box<PushTask>, BadPush> },
    Arrive { gateway: GatewayId, arrival: Box<Arrival> },
    Announce { gateway: GatewayId, announced: Box<Announced> },
    Ask { ask: AskId, what: PeopleAsk, end: u64 },
    Reclaim(Uid),
}

type Deadline = Reverse<(Timestamp, Uid, GatewayId, u64)>;

pub struct Partition {
    settings: Arc<CarrierSettings>,
    rules: Arc<PlatformRules>,
    epoch: u64,
    inbox_epoch: Arc<str>,
    began: Timestamp,
    /// What the clock said last.
    clock: Timestamp,
    /// Nothing later than this expires: a step of the wall clock is in doubt since then.
    expiry_max: Timestamp,
    users: HashMap<Uid, Box<User>, RandomState>,
    work: VecDeque<Work>,
    records_waiting: usize,
    /// Sessions whose arrival or announcement is among the work.
    coming: Coming,
    /// Users whose boxes are being loaded.
    loading: Vec<Uid>,
    /// Where the store was when they were asked for.
    loading_at: u64,
    /// Everything below is folded.
    folded: u64,
    /// Where the log ended when this owner began: numbers up to there were given.
    began_at: u64,
    /// The store had nothing of what the log has: up to where this owner began everything is folded anew.
    is_rebuilding: bool,
    /// Where to read on.
    read_next: u64,
    is_reading: bool,
    unsaved: Unsaved,
    in_flight: Option<InFlight>,
    letters: Vec<Letter>,
    is_appending: bool,
    deadlines: BinaryHeap<Deadline>,
    /// Why rows were asked for, and where the store was then.
    row_purposes: HashMap<RowsToken, (u64, Purpose)>,
    next_token: RowsToken,
    gateways: HashMap<GatewayId, Known>,
    news: HashMap<GatewayId, Vec<ToGateway>>,
    effects: Vec<Effect>,
    is_ending: bool,
    is_over: bool,
    pub counts: Counts,
}

/// What is known of a gateway.
#[derive(Clone, Copy)]
struct Known {
    heard_at: Timestamp,
    /// A picture of who lives had it: when a later one has not, it is gone.
    was_seen: bool,
}

/// What rows were asked for.
enum Purpose {
    Page { uid: Uid, gateway: GatewayId, session: u64, seqs: Vec<u64>, again: bool },
    Ask(Box<asking::Showing>),
}

impl Partition {
    pub fn new(
        settings: Arc<CarrierSettings>,
        rules: Arc<PlatformRules>,
        epoch: u64,
        inbox_epoch: Arc<str>,
        now: Timestamp,
    ) -> Self {
        Self {
            settings,
            rules,
            epoch,
            inbox_epoch,
            began: now,
            clock: now,
            expiry_max: Timestamp::from_millis(i64::MAX),
            users: HashMap::default(),
            work: VecDeque::new(),
            records_waiting: 0,
            coming: Coming::default(),
            loading: Vec::new(),
            loading_at: 0,
            folded: 0,
            began_at: 0,
            is_rebuilding: false,
            read_next: 0,
            is_reading: false,
            unsaved: Unsaved::new(now),
            in_flight: None,
            letters: Vec::new(),
            is_appending: false,
            deadlines: BinaryHeap::new(),
            row_purposes: HashMap::new(),
            next_token: 0,
            gateways: HashMap::new(),
            news: HashMap::new(),
            effects: Vec::new(),
            is_ending: false,
            is_over: false,
            counts: Counts::default(),
        }
    }

    pub fn step(&mut self, now: Timestamp, input: Input) -> Vec<Effect> {
        if self.is_over {
            return Vec::new();
        }
        self.look_at_the_clock(now);
        match input {
            Input::Started { applied, first, end } => self.started(applied, first, end, now),
            Input::Read(read) => self.read(read),
            Input::Loaded(loaded) => self.loaded(loaded, now),
            Input::Rows { token, found } => self.rows_found(token, found, now),
            Input::Appended => self.is_appending = false,
            Input::Applied(outcome) => self.applied(outcome),
            Input::From { gateway, messages } => self.told(gateway, messages, now),
            Input::Living(living) => self.living(&living, now),
            Input::GatewayGone(gateway) => self.gateways_died(&[gateway], now),
            Input::Asked { ask, what, end } => self.work.push_back(Work::Ask { ask, what, end }),
            Input::Reclaimable(uids) => self.work.extend(uids.into_iter().map(Work::Reclaim)),
            Input::SyncWanted => self.unsaved.wants_sync = true,
            Input::Ending => {
                self.is_ending = true;
                self.unsaved.wants_sync = true;
            }
            Input::Tick => {}
        }
        self.pump(now);
        self.watch_deadlines(now);
        self.go_on(now);
        self.take_effects()
    }

    /// When there is something to do, if nothing happens before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let deadline = self.deadlines.peek().map(|Reverse((at, ..))| *at);
        let saving = self.save_due();
        [deadline, saving].into_iter().flatten().min()
    }

    /// Everything below this offset is folded into memory.
    pub fn folded(&self) -> u64 {
        self.folded
    }

    /// The store has everything below this offset.
    pub fn saved(&self) -> u64 {
        self.unsaved.saved
    }

    /// Whether nothing is left to be written.
    pub fn is_settled(&self) -> bool {
        self.is_over
            || (self.in_flight.is_none() && !self.is_appending && self.letters.is_empty() && !self.is_unsaved())
    }

    pub fn users_in_memory(&self) -> usize {
        self.users.len()
    }

    pub fn sessions(&self) -> usize {
        self.users.values().map(|user| user.lives.len()).sum()
    }

    /// The most that any session has been sent and not acknowledged.
    pub fn most_unacknowledged(&self) -> usize {
        self.users.values().flat_map(|user| &user.lives).map(|live| live.unacked.len()).max().unwrap_or(0)
    }

    fn resign(&mut self, why: String) {
        self.is_over = true;
        self.effects.push(Effect::Resign { why });
    }

    /// What gateways are told comes first: what is asked for now is answered later.
    fn take_effects(&mut self) -> Vec<Effect> {
        let told = self.news.drain().map(|(gateway, news)| Effect::Tell { gateway, news });
        let mut effects: Vec<Effect> = told.collect();
        effects.append(&mut self.effects);
        effects
    }

    fn started(&mut self, applied: u64, first: u64, end: u64, now: Timestamp) {
        self.began = now;
        self.began_at = end;
        self.is_rebuilding = applied == 0 || applied > end;
        let mut from = applied;
        if applied > end {
            self.effects.push(Effect::Report(Trouble::OtherLog { applied, end }));
            // At once, and before anything else: what it has is of no use to anybody.
            self.unsaved.wants_reset = true;
            from = first;
        } else if applied < first {
            if applied > 0 {
                self.effects.push(Effect::Report(Trouble::Gap { from: applied, to: first }));
            }
            from = first;
        }
        self.unsaved.saved = applied;
        self.folded = from;
        self.read_next = from;
    }

    fn read(&mut self, read: Result<ReadBatch, LogError>) {
        self.is_reading = false;
        match read {
            Ok(batch) => {
                for stored in batch.records {
                    let task = PushTask::of(&stored.record.headers).map(Box::new);
                    self.work.push_back(Work::Record { offset: stored.offset, record: stored.record, task });
                    self.records_waiting += 1;
                }
                self.read_next = self.read_next.max(batch.next);
            }
            Err(LogError::Trimmed { asked, first }) => {
                self.effects.push(Effect::Report(Trouble::Gap { from: asked, to: first }));
                self.read_next = self.read_next.max(first);
            }
            Err(LogError::Damaged { resume_at, what, .. }) => {
                self.effects.push(Effect::Report(Trouble::Damaged { resume_at, what }));
                self.read_next = self.read_next.max(resume_at);
            }
            Err(LogError::BeyondEnd { asked, next }) => {
                self.resign(format!("the log ends at {next}, before {asked}"));
            }
            // The shell has waited a while: it is read again.
            Err(_) => {}
        }
        if self.records_waiting == 0 {
            self.folded = self.read_next;
        }
    }

    /// Takes what is at the head of the queue for as long as its users are in memory.
    fn pump(&mut self, now: Timestamp) {
        while self.loading.is_empty() && !self.is_emptying() && !self.is_over {
            let Some(work) = self.work.front() else { return };
            if !self.is_ready(work) {
                if matches!(work, Work::Ask { end, .. } if *end > self.folded) {
                    // It was asked before what it must see was read: that comes behind it in the queue.
                    if self.pass_on_the_ask() {
                        continue;
                    }
                    return;
                }
                self.load();
                return;
            }
            let Some(work) = self.work.pop_front() else { return };
            self.take(work, now);
        }
    }

    /// Puts a question that must see more of the log behind the records that are there; `false` where there are none.
    fn pass_on_the_ask(&mut self) -> bool {
        let Some(at) = self.work.iter().position(|work| !matches!(work, Work::Ask { .. })) else { return false };
        if let Some(ask) = self.work.pop_front() {
            self.work.insert(at, ask);
        }
        true
    }

    fn is_ready(&self, work: &Work) -> bool {
        if let Work::Ask { end, .. } = work
            && *end > self.folded
        {
            return false;
        }
        let mut is_ready = true;
        self.needed(work, &mut |uid| is_ready = is_ready && self.users.contains_key(uid));
        is_ready
    }

    fn take(&mut self, work: Work, now: Timestamp) {
        match work {
            Work::Record { offset, record, task } => {
                self.records_waiting -= 1;
                match task {
                    Ok(task) => self.fold(offset, &record, *task, now),
                    Err(why) => {
                        let why = why.to_string();
                        self.effects.push(Effect::Report(Trouble::NotUnderstood { offset, why: why.clone() }));
                        self.counts.dead += 1;
                        self.letters.push(Letter::Dead { offset, record, reason: why });
                    }
                }
                // Up to the next record that waits, or to where reading goes on: offsets between have none.
                let next = self.work.iter().find_map(|work| match work {
                    Work::Record { offset, .. } => Some(*offset),
                    _ => None,
                });
                self.folded = next.unwrap_or(self.read_next);
            }
            Work::Arrive { gateway, arrival } => match self.coming.came(gateway, arrival.session) {
                Some(_) => self.arrive(gateway, *arrival, now),
                None => self.release(arrival.uid.as_str()),
            },
            Work::Announce { gateway, mut announced } => match self.coming.came(gateway, announced.arrival.session) {
                Some(acked) => {
                    announced.acked = announced.acked.max(acked);
                    announced.sent = announced.sent.max(acked);
                    self.announce(gateway, *announced, now);
                }
                None => self.release(announced.arrival.uid.as_str()),
            },
            Work::Ask { ask, what, .. } => self.show(ask, what, now),
            Work::Reclaim(uid) => self.reclaim(&uid, now),
        }
    }

    /// Reads on and saves, where it is time and there is room.
    fn go_on(&mut self, now: Timestamp) {
        if self.is_over {
            return;
        }
        let has_room = self.records_waiting < WORK_RECORDS_MAX && self.unsaved.bytes < 2 * self.settings.unsaved_bytes;
        if !self.is_reading && !self.is_ending && has_room {
            self.is_reading = true;
            self.effects.push(Effect::Read { from: self.read_next });
        }
        if !self.is_appending && !self.letters.is_empty() {
            self.is_appending = true;
            self.effects.push(Effect::Append(std::mem::take(&mut self.letters)));
        }
        self.save(now);
    }

    /// The epoch of a user's inbox: of the topic, and of the user, so that a device that was somebody else's before cannot resume with what
    /// it had then.
    fn epoch_of(&self, uid: &Uid) -> Arc<str> {
        user_epoch(&self.inbox_epoch, uid).into()
    }

    /// A user that nobody needs in memory leaves it.
    fn release(&mut self, uid: &str) {
        // One that is being written stays: the store could still answer with what was before.
        let is_written = self.in_flight.as_ref().is_some_and(|in_flight| in_flight.users.contains(uid));
        if !is_written && self.users.get(uid).is_some_and(|user| user.lives.is_empty() && !user.is_dirty) {
            self.users.remove(uid);
        }
    }

    fn reclaim_at(&self, state: &UserBox) -> Option<Timestamp> {
        state.reclaim_at(i64::try_from(self.settings.keep_seats.as_millis()).unwrap_or(i64::MAX))
    }

    /// Tells the time that expiry goes by, before a step.
    pub fn expire_by(&mut self, time: Timestamp) {
        self.expiry_max = time;
    }

    fn expiry_now(&self, now: Timestamp) -> Timestamp {
        now.min(self.expiry_max)
    }

    /// What is of no use to a user any more goes.
    fn expire_of(&mut self, uid: &Uid, now: Timestamp) {
        let expiry_now = self.expiry_now(now);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Expired { gone, exhausted } = user.state.expire(&*self.rules, expiry_now);
        if !gone.is_empty() {
            user.is_dirty = true;
            self.unsaved.dirty.insert(uid.clone());
            self.counts.expired += gone.len() as u64;
            self.unsaved.drop_rows(uid, gone);
        }
        self.bury(uid, exhausted);
    }

    /// Messages that expired without an acknowledgement after their last retry become dead letters. The box is saved behind them.
    fn bury(&mut self, uid: &Uid, exhausted: Vec<Exhausted>) {
        let attempts = self.settings.retry_after.len() + 1;
        for Exhausted { seq, platforms } in exhausted {
            self.counts.dead += 1;
            let names: Vec<&str> = platforms.iter().map(Platform::as_str).collect();
            let reason = format!("not acknowledged by {} after {attempts} attempts, and expired", names.join(", "));
            let offset = offset_of(seq);
            self.letters.push(Letter::Exhausted { offset, uid: uid.clone(), platforms, reason });
        }
    }

    fn reclaim(&mut self, uid: &Uid, now: Timestamp) {
        let expiry_now = self.expiry_now(now);
        let seen_since = expiry_now.saturating_sub(self.settings.keep_seats);
        let rules = Arc::clone(&self.rules);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Expired { gone, exhausted } = user.state.expire(&*rules, expiry_now);
        self.counts.expired += gone.len() as u64;
        user.see(now);
        user.state.forget_seats(seen_since);
        // Written in any case: the store shall not name it again for the same time.
        user.is_dirty = true;
        self.unsaved.dirty.insert(uid.clone());
        self.unsaved.drop_rows(uid, gone);
        self.bury(uid, exhausted);
    }
}

/// The epoch that a user's devices are told, where the topic's is that.
pub fn user_epoch(inbox_epoch: &str, uid: &Uid) -> String {
    format!("{inbox_epoch}-{:08x}", folding::hash_of(uid.as_str()) as u32)
}

/// Where somebody finds the message of a slot that the store may not have yet.
fn unsaved_message(unsaved: &Unsaved, in_flight: Option<&InFlight>, key: &RowKey) -> Option<Arc<OutMessage>> {
    unsaved.message(key).or_else(|| in_flight?.rows.get(key).cloned())
}
