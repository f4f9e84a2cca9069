//! The pure state machine of one `_push` partition: its sessions, what they were sent, and what is stored for them.
//!
//! Everything about a user passes through one queue, in order: log records, arrivals, queries. The head of the queue waits until the
//! boxes of its users are in memory; boxes of users with a session stay there. Acknowledgements and departures concern users in memory
//! and are handled at once.

mod admission;
mod box_loader;
mod delivery;
mod fold;
mod inbox_query;
mod kick;
mod liveness;
mod pending_arrivals;
#[cfg(test)]
mod tests;
mod unsaved_changes;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;
use whimbrel_model::people::{GatewayId, Platform, Uid};
use whimbrel_model::ports::{
    AnnouncedSession, ApplyOutcome, Arrival, AtOffset, InboxError, InboxWrite, LogError, OutMessage, PeopleError,
    PeopleQuery, PeopleReply, ReadBatch, RowKey, ToCarrier, ToGateway,
};
use whimbrel_model::push::{BadPush, Notice, PushTask, offset_of};
use whimbrel_model::{Record, Timestamp};

use super::settings::{CarrierSettings, WORK_RECORDS_MAX};
use super::user_box::{Exhausted, Expired, PlatformRules, UserBox};
use pending_arrivals::PendingArrivals;
use unsaved_changes::{InFlightWrite, UnsavedChanges};

pub type QueryId = u64;
pub type RowsToken = u64;

#[derive(Debug)]
pub enum CarrierInput {
    /// The store is at `applied`. The log begins at `first` and ends at `end`.
    Started {
        applied: u64,
        first: u64,
        end: u64,
    },
    Read(Result<ReadBatch, LogError>),
    /// The requested boxes, in the order of the request.
    Loaded(Result<AtOffset<Vec<Option<Bytes>>>, InboxError>),
    Rows {
        token: RowsToken,
        found: Result<AtOffset<Vec<Option<Bytes>>>, InboxError>,
    },
    /// The last append is durable.
    Appended,
    Applied(Result<ApplyOutcome, InboxError>),
    From {
        gateway: GatewayId,
        messages: Vec<ToCarrier>,
    },
    /// The complete list of live gateways.
    LiveGateways(Arc<Vec<GatewayId>>),
    /// A gateway that could not be reached: that incarnation has ended.
    GatewayGone(GatewayId),
    /// A query, and the end of the log when it arrived.
    Query {
        ask: QueryId,
        what: PeopleQuery,
        end: u64,
    },
    /// Users whose boxes may be reclaimed.
    Reclaimable(Vec<Uid>),
    /// The next save must sync the store to disk up to the folded offset.
    SyncWanted,
    /// Stop reading, and save what is in memory.
    Ending,
    Tick,
}

#[derive(Debug, PartialEq)]
pub enum CarrierEffect {
    Read {
        from: u64,
    },
    Load {
        uids: Vec<Uid>,
    },
    Rows {
        token: RowsToken,
        keys: Vec<RowKey>,
        /// Page reads for seats are rate-limited; reads for a query are not.
        is_page: bool,
    },
    /// Repeats until it is durable. The records that caused it count as done only then.
    Append(Vec<CarrierRecord>),
    Apply(InboxWrite),
    Tell {
        gateway: GatewayId,
        news: Vec<ToGateway>,
    },
    Answer {
        ask: QueryId,
        told: Result<PeopleReply, PeopleError>,
    },
    Report(CarrierIncident),
    /// The partition cannot continue. The next owner starts from store and log.
    Resign {
        why: String,
    },
}

/// A record that the partition writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CarrierRecord {
    /// A task to append to `_push` at that time.
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
    /// A message of one user that expired after its last retry. Its record is in the log at that offset.
    Exhausted {
        offset: u64,
        uid: Uid,
        platforms: Vec<Platform>,
        reason: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CarrierIncident {
    /// Records that were trimmed from the log before they were folded.
    Gap {
        from: u64,
        to: u64,
    },
    /// The store was ahead of the log: it belongs to another log, and was emptied.
    OtherLog {
        applied: u64,
        end: u64,
    },
    /// A damaged range of the log.
    Damaged {
        resume_at: u64,
        what: String,
    },
    NotUnderstood {
        offset: u64,
        why: String,
    },
    /// A corrupted box, which was reset.
    BadBox {
        uid: Uid,
        why: String,
    },
    /// A stored message whose row is missing.
    RowMissing {
        uid: Uid,
        seq: u64,
    },
    NoAck {
        uid: Uid,
        platform: Platform,
    },
}

/// Counters since the shell last took them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PushCounts {
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
struct LoadedUser {
    state: UserBox,
    sessions: Vec<LiveSession>,
    is_stored: bool,
    is_dirty: bool,
}

/// A session on its seat.
#[derive(Debug)]
struct LiveSession {
    gateway: GatewayId,
    session: u64,
    platform: Platform,
    /// The seat's device name, not the session's.
    device: Box<str>,
    arrived: Timestamp,
    /// An earlier owner admitted it.
    was_announced: bool,
    /// The highest sequence number that was sent to it, or reported to it as lost.
    sent: u64,
    unacked: VecDeque<(u64, u32)>,
    unacked_bytes: usize,
    /// When the oldest of these was sent last.
    since: Timestamp,
    attempt: u32,
    /// The deadline queue has an entry for it.
    is_watched: bool,
    /// A hold with its next retry is pending.
    is_held: bool,
    /// The token of the rows that are being read for it.
    reading: Option<RowsToken>,
    /// It has not been sent all of its messages.
    is_behind: bool,
}

enum QueuedWork {
    Record { offset: u64, record: Record, task: Result<Box<PushTask>, BadPush> },
    Arrive { gateway: GatewayId, arrival: Box<Arrival> },
    Announce { gateway: GatewayId, announced: Box<AnnouncedSession> },
    Ask { ask: QueryId, what: PeopleQuery, end: u64 },
    Reclaim(Uid),
}

type Deadline = Reverse<(Timestamp, Uid, GatewayId, u64)>;

pub struct PushPartition {
    settings: Arc<CarrierSettings>,
    rules: Arc<PlatformRules>,
    epoch: u64,
    inbox_epoch: Arc<str>,
    began: Timestamp,
    /// The time of the last step.
    clock: Timestamp,
    /// Nothing with a later expiry expires: since then the wall clock is in doubt after a step.
    expiry_max: Timestamp,
    users: HashMap<Uid, Box<LoadedUser>, RandomState>,
    work: VecDeque<QueuedWork>,
    records_waiting: usize,
    /// Sessions whose arrival or announcement is queued.
    pending_arrivals: PendingArrivals,
    /// Users whose boxes are being loaded.
    loading: Vec<Uid>,
    /// The offset of the store when the load was requested.
    loading_at: u64,
    /// All records below this offset are folded.
    folded: u64,
    /// The end of the log when this owner started: numbers below it were assigned before.
    began_at: u64,
    /// The store was empty or belonged to another log: everything below `began_at` is folded again.
    is_rebuilding: bool,
    /// The offset of the next read.
    read_next: u64,
    is_reading: bool,
    unsaved: UnsavedChanges,
    in_flight: Option<InFlightWrite>,
    outbound: Vec<CarrierRecord>,
    is_appending: bool,
    deadlines: BinaryHeap<Deadline>,
    /// The purpose of each row request, and the offset of the store at the time of the request.
    row_purposes: HashMap<RowsToken, (u64, RowPurpose)>,
    next_token: RowsToken,
    gateways: HashMap<GatewayId, KnownGateway>,
    news: HashMap<GatewayId, Vec<ToGateway>>,
    effects: Vec<CarrierEffect>,
    is_ending: bool,
    is_over: bool,
    pub counts: PushCounts,
}

#[derive(Clone, Copy)]
struct KnownGateway {
    heard_at: Timestamp,
    /// A list of live gateways contained it. If a later list does not, it is gone.
    was_seen: bool,
}

enum RowPurpose {
    Page { uid: Uid, gateway: GatewayId, session: u64, seqs: Vec<u64>, again: bool },
    Ask(Box<inbox_query::PendingView>),
}

impl PushPartition {
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
            pending_arrivals: PendingArrivals::default(),
            loading: Vec::new(),
            loading_at: 0,
            folded: 0,
            began_at: 0,
            is_rebuilding: false,
            read_next: 0,
            is_reading: false,
            unsaved: UnsavedChanges::new(now),
            in_flight: None,
            outbound: Vec::new(),
            is_appending: false,
            deadlines: BinaryHeap::new(),
            row_purposes: HashMap::new(),
            next_token: 0,
            gateways: HashMap::new(),
            news: HashMap::new(),
            effects: Vec::new(),
            is_ending: false,
            is_over: false,
            counts: PushCounts::default(),
        }
    }

    pub fn step(&mut self, now: Timestamp, input: CarrierInput) -> Vec<CarrierEffect> {
        if self.is_over {
            return Vec::new();
        }
        self.handle_clock_step(now);
        match input {
            CarrierInput::Started { applied, first, end } => self.started(applied, first, end, now),
            CarrierInput::Read(read) => self.read(read),
            CarrierInput::Loaded(loaded) => self.loaded(loaded, now),
            CarrierInput::Rows { token, found } => self.rows_found(token, found, now),
            CarrierInput::Appended => self.is_appending = false,
            CarrierInput::Applied(outcome) => self.applied(outcome),
            CarrierInput::From { gateway, messages } => self.told(gateway, messages, now),
            CarrierInput::LiveGateways(living) => self.living(&living, now),
            CarrierInput::GatewayGone(gateway) => self.gateways_died(&[gateway], now),
            CarrierInput::Query { ask, what, end } => self.work.push_back(QueuedWork::Ask { ask, what, end }),
            CarrierInput::Reclaimable(uids) => self.work.extend(uids.into_iter().map(QueuedWork::Reclaim)),
            CarrierInput::SyncWanted => self.unsaved.wants_sync = true,
            CarrierInput::Ending => {
                self.is_ending = true;
                self.unsaved.wants_sync = true;
            }
            CarrierInput::Tick => {}
        }
        self.pump(now);
        self.watch_deadlines(now);
        self.go_on(now);
        self.take_effects()
    }

    /// The time of the next step if no input arrives before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let deadline = self.deadlines.peek().map(|Reverse((at, ..))| *at);
        let saving = self.save_due();
        [deadline, saving].into_iter().flatten().min()
    }

    /// All records below this offset are folded into memory.
    pub fn folded(&self) -> u64 {
        self.folded
    }

    /// All records below this offset are in the store.
    pub fn saved(&self) -> u64 {
        self.unsaved.saved
    }

    pub fn is_settled(&self) -> bool {
        self.is_over
            || (self.in_flight.is_none() && !self.is_appending && self.outbound.is_empty() && !self.is_unsaved())
    }

    pub fn users_in_memory(&self) -> usize {
        self.users.len()
    }

    pub fn sessions(&self) -> usize {
        self.users.values().map(|user| user.sessions.len()).sum()
    }

    /// The largest number of unacknowledged messages of any session.
    pub fn most_unacknowledged(&self) -> usize {
        self.users.values().flat_map(|user| &user.sessions).map(|live| live.unacked.len()).max().unwrap_or(0)
    }

    fn resign(&mut self, why: String) {
        self.is_over = true;
        self.effects.push(CarrierEffect::Resign { why });
    }

    /// Messages to gateways come first: they precede the results of the other effects.
    fn take_effects(&mut self) -> Vec<CarrierEffect> {
        let told = self.news.drain().map(|(gateway, news)| CarrierEffect::Tell { gateway, news });
        let mut effects: Vec<CarrierEffect> = told.collect();
        effects.append(&mut self.effects);
        effects
    }

    fn started(&mut self, applied: u64, first: u64, end: u64, now: Timestamp) {
        self.began = now;
        self.began_at = end;
        self.is_rebuilding = applied == 0 || applied > end;
        let mut from = applied;
        if applied > end {
            self.effects.push(CarrierEffect::Report(CarrierIncident::OtherLog { applied, end }));
            // Reset before anything else: the contents belong to another log.
            self.unsaved.wants_reset = true;
            from = first;
        } else if applied < first {
            if applied > 0 {
                self.effects.push(CarrierEffect::Report(CarrierIncident::Gap { from: applied, to: first }));
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
                    self.work.push_back(QueuedWork::Record { offset: stored.offset, record: stored.record, task });
                    self.records_waiting += 1;
                }
                self.read_next = self.read_next.max(batch.next);
            }
            Err(LogError::Trimmed { asked, first }) => {
                self.effects.push(CarrierEffect::Report(CarrierIncident::Gap { from: asked, to: first }));
                self.read_next = self.read_next.max(first);
            }
            Err(LogError::Damaged { resume_at, what, .. }) => {
                self.effects.push(CarrierEffect::Report(CarrierIncident::Damaged { resume_at, what }));
                self.read_next = self.read_next.max(resume_at);
            }
            Err(LogError::BeyondEnd { asked, next }) => {
                self.resign(format!("the log ends at {next}, before {asked}"));
            }
            // The shell waited before it returned the error; the read is repeated.
            Err(_) => {}
        }
        if self.records_waiting == 0 {
            self.folded = self.read_next;
        }
    }

    /// Handles queued work while the users at its head are in memory.
    fn pump(&mut self, now: Timestamp) {
        while self.loading.is_empty() && !self.is_emptying() && !self.is_over {
            let Some(work) = self.work.front() else { return };
            if !self.is_ready(work) {
                if matches!(work, QueuedWork::Ask { end, .. } if *end > self.folded) {
                    // The query must include records that were not read yet. They will be queued behind it, so it moves back.
                    if self.postpone_query() {
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

    /// Moves a query that must wait for more of the log behind the queued records. `false` if there are none.
    fn postpone_query(&mut self) -> bool {
        let Some(at) = self.work.iter().position(|work| !matches!(work, QueuedWork::Ask { .. })) else { return false };
        if let Some(ask) = self.work.pop_front() {
            self.work.insert(at, ask);
        }
        true
    }

    fn is_ready(&self, work: &QueuedWork) -> bool {
        if let QueuedWork::Ask { end, .. } = work
            && *end > self.folded
        {
            return false;
        }
        let mut is_ready = true;
        self.each_needed_user(work, &mut |uid| is_ready = is_ready && self.users.contains_key(uid));
        is_ready
    }

    fn take(&mut self, work: QueuedWork, now: Timestamp) {
        match work {
            QueuedWork::Record { offset, record, task } => {
                self.records_waiting -= 1;
                match task {
                    Ok(task) => self.fold(offset, &record, *task, now),
                    Err(why) => {
                        let why = why.to_string();
                        self.effects
                            .push(CarrierEffect::Report(CarrierIncident::NotUnderstood { offset, why: why.clone() }));
                        self.counts.dead += 1;
                        self.outbound.push(CarrierRecord::Dead { offset, record, reason: why });
                    }
                }
                // Up to the next queued record, or to the next read: offsets between have no records.
                let next = self.work.iter().find_map(|work| match work {
                    QueuedWork::Record { offset, .. } => Some(*offset),
                    _ => None,
                });
                self.folded = next.unwrap_or(self.read_next);
            }
            QueuedWork::Arrive { gateway, arrival } => match self.pending_arrivals.dequeued(gateway, arrival.session) {
                Some(_) => self.arrive(gateway, *arrival, now),
                None => self.release(arrival.uid.as_str()),
            },
            QueuedWork::Announce { gateway, mut announced } => {
                match self.pending_arrivals.dequeued(gateway, announced.arrival.session) {
                    Some(acked) => {
                        announced.acked = announced.acked.max(acked);
                        announced.sent = announced.sent.max(acked);
                        self.announce(gateway, *announced, now);
                    }
                    None => self.release(announced.arrival.uid.as_str()),
                }
            }
            QueuedWork::Ask { ask, what, .. } => self.show(ask, what, now),
            QueuedWork::Reclaim(uid) => self.reclaim(&uid, now),
        }
    }

    /// Requests the next read, append and save, as far as bounds and intervals allow.
    fn go_on(&mut self, now: Timestamp) {
        if self.is_over {
            return;
        }
        let has_room = self.records_waiting < WORK_RECORDS_MAX && self.unsaved.bytes < 2 * self.settings.unsaved_bytes;
        if !self.is_reading && !self.is_ending && has_room {
            self.is_reading = true;
            self.effects.push(CarrierEffect::Read { from: self.read_next });
        }
        if !self.is_appending && !self.outbound.is_empty() {
            self.is_appending = true;
            self.effects.push(CarrierEffect::Append(std::mem::take(&mut self.outbound)));
        }
        self.save(now);
    }

    /// The epoch of a user's inbox: of topic and user, so that a device of another user before cannot resume that position.
    fn epoch_of(&self, uid: &Uid) -> Arc<str> {
        user_epoch(&self.inbox_epoch, uid).into()
    }

    /// Removes a user from memory if nothing needs it there.
    fn release(&mut self, uid: &str) {
        // A user in an in-flight write stays: the store may still return the earlier state.
        let is_written = self.in_flight.as_ref().is_some_and(|in_flight| in_flight.users.contains(uid));
        if !is_written && self.users.get(uid).is_some_and(|user| user.sessions.is_empty() && !user.is_dirty) {
            self.users.remove(uid);
        }
    }

    fn reclaim_at(&self, state: &UserBox) -> Option<Timestamp> {
        state.reclaim_at(i64::try_from(self.settings.keep_seats.as_millis()).unwrap_or(i64::MAX))
    }

    /// Sets the time by which messages expire, before a step.
    pub fn expire_by(&mut self, time: Timestamp) {
        self.expiry_max = time;
    }

    fn expiry_now(&self, now: Timestamp) -> Timestamp {
        now.min(self.expiry_max)
    }

    /// Removes expired messages of a user.
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
        self.write_dead_letters(uid, exhausted);
    }

    /// Makes dead letters of messages that expired unacknowledged after their last retry. The box is saved after these are durable.
    fn write_dead_letters(&mut self, uid: &Uid, exhausted: Vec<Exhausted>) {
        let attempts = self.settings.retry_after.len() + 1;
        for Exhausted { seq, platforms } in exhausted {
            self.counts.dead += 1;
            let names: Vec<&str> = platforms.iter().map(Platform::as_str).collect();
            let reason = format!("not acknowledged by {} after {attempts} attempts, and expired", names.join(", "));
            let offset = offset_of(seq);
            self.outbound.push(CarrierRecord::Exhausted { offset, uid: uid.clone(), platforms, reason });
        }
    }

    fn reclaim(&mut self, uid: &Uid, now: Timestamp) {
        let expiry_now = self.expiry_now(now);
        let seen_since = expiry_now.saturating_sub(self.settings.keep_seats);
        let rules = Arc::clone(&self.rules);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Expired { gone, exhausted } = user.state.expire(&*rules, expiry_now);
        self.counts.expired += gone.len() as u64;
        user.mark_seen(now);
        user.state.forget_seats(seen_since);
        // Always written: otherwise the store would list the user again under the same time.
        user.is_dirty = true;
        self.unsaved.dirty.insert(uid.clone());
        self.unsaved.drop_rows(uid, gone);
        self.write_dead_letters(uid, exhausted);
    }
}

/// The epoch that a user's devices receive, derived from the topic's epoch.
pub fn user_epoch(inbox_epoch: &str, uid: &Uid) -> String {
    format!("{inbox_epoch}-{:08x}", fold::hash_of(uid.as_str()) as u32)
}

/// The message of a slot that the store may not have yet.
fn unsaved_message(
    unsaved: &UnsavedChanges,
    in_flight: Option<&InFlightWrite>,
    key: &RowKey,
) -> Option<Arc<OutMessage>> {
    unsaved.message(key).or_else(|| in_flight?.rows.get(key).cloned())
}
