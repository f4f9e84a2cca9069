//! The pure state machine of one `_push` partition: its sessions, what they were sent, and what is stored for them.
//!
//! Everything about a user passes through one queue, in order: log records, arrivals, queries. The head of the queue waits until the
//! boxes of its users are in memory; boxes of users with a session stay there. Acknowledgements and departures concern users in memory
//! and are handled at once.

mod ack_deadlines;
mod admission;
mod box_loader;
mod delivery;
mod fold;
mod fold_position;
mod inbox_query;
mod kick;
mod known_gateways;
mod live_session;
mod liveness;
mod loaded_users;
mod partition_clock;
mod pending_arrivals;
mod pending_records;
mod row_requests;
#[cfg(test)]
mod tests;
mod unsaved_changes;
mod work_queue;

use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::people::{GatewayId, Platform, Uid};
use whimbrel_model::ports::{
    ApplyOutcome, AtOffset, InboxError, InboxWrite, LogError, PeopleError, PeopleQuery, PeopleReply, ReadBatch, RowKey,
    ToCarrier, ToGateway,
};
use whimbrel_model::push::{Notice, PushTask, offset_of};
use whimbrel_model::{Record, Timestamp};

use super::settings::{CarrierSettings, WORK_RECORDS_MAX};
use super::user_box::{Exhausted, Expired, PlatformRules};
use ack_deadlines::AckDeadlines;
use box_loader::BoxLoad;
use fold_position::FoldPosition;
use known_gateways::KnownGateways;
use live_session::LiveSession;
use loaded_users::{LoadedUser, LoadedUsers};
use partition_clock::PartitionClock;
use pending_records::PendingRecords;
use row_requests::RowRequests;
use unsaved_changes::UnsavedChanges;
use whimbrel_cluster::Machine;
use whimbrel_cluster::owner_clock::ClockReading;
use work_queue::{QueuedWork, WorkQueue};

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum PartitionPhase {
    Running,
    /// It reads no more records, and saves what is in memory.
    Ending,
    /// It has resigned: it takes no inputs.
    Over,
}

pub struct PushPartition {
    settings: Arc<CarrierSettings>,
    rules: Arc<PlatformRules>,
    /// The epoch of the topic, from which the epochs of inboxes derive.
    inbox_epoch: Arc<str>,
    phase: PartitionPhase,
    clock: PartitionClock,
    position: FoldPosition,
    queue: WorkQueue,
    /// The load of boxes in progress.
    loading: Option<BoxLoad>,
    users: LoadedUsers,
    deadlines: AckDeadlines,
    gateways: KnownGateways,
    rows: RowRequests,
    unsaved: UnsavedChanges,
    outbound: PendingRecords,
    effects: Vec<CarrierEffect>,
    pub counts: PushCounts,
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
            inbox_epoch,
            phase: PartitionPhase::Running,
            clock: PartitionClock::new(now),
            position: FoldPosition::default(),
            queue: WorkQueue::default(),
            loading: None,
            users: LoadedUsers::default(),
            deadlines: AckDeadlines::default(),
            gateways: KnownGateways::default(),
            rows: RowRequests::default(),
            unsaved: UnsavedChanges::new(epoch, now),
            outbound: PendingRecords::default(),
            effects: Vec::new(),
            counts: PushCounts::default(),
        }
    }

    /// The time of the last step.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl Machine for PushPartition {
    type Now = ClockReading;
    type Input = CarrierInput;
    type Effect = CarrierEffect;

    fn step(&mut self, reading: ClockReading, input: CarrierInput) -> Vec<CarrierEffect> {
        if self.is_over() {
            return Vec::new();
        }
        let now = reading.wall;
        self.clock.limit_expiry(reading.expiry);
        self.handle_clock_step(now);
        match input {
            CarrierInput::Started { applied, first, end } => self.started(applied, first, end, now),
            CarrierInput::Read(read) => self.read(read),
            CarrierInput::Loaded(loaded) => self.loaded(loaded, now),
            CarrierInput::Rows { token, found } => self.rows_found(token, found, now),
            CarrierInput::Appended => self.outbound.appended(),
            CarrierInput::Applied(outcome) => self.applied(outcome),
            CarrierInput::From { gateway, messages } => self.told(gateway, messages, now),
            CarrierInput::LiveGateways(living) => {
                let dead = self.gateways.living(&living, self.settings.announce_wait, now);
                self.gateways_died(&dead, now);
            }
            CarrierInput::GatewayGone(gateway) => self.gateways_died(&[gateway], now),
            CarrierInput::Query { ask, what, end } => self.queue.push(QueuedWork::Ask { ask, what, end }),
            CarrierInput::Reclaimable(uids) => {
                uids.into_iter().for_each(|uid| self.queue.push(QueuedWork::Reclaim(uid)))
            }
            CarrierInput::SyncWanted => self.unsaved.wants_sync = true,
            CarrierInput::Ending => {
                self.phase = PartitionPhase::Ending;
                self.unsaved.wants_sync = true;
            }
            CarrierInput::Tick => {}
        }
        self.pump(now);
        self.watch_deadlines(now);
        self.go_on(now);
        self.take_effects()
    }

    fn wake_at(&self) -> Option<Timestamp> {
        [self.deadlines.next(), self.save_due()].into_iter().flatten().min()
    }
}

impl PushPartition {
    /// All records below this offset are folded into memory.
    pub fn folded(&self) -> u64 {
        self.position.folded
    }

    /// All records below this offset are in the store.
    pub fn saved(&self) -> u64 {
        self.unsaved.saved
    }

    pub fn is_settled(&self) -> bool {
        self.is_over()
            || (!self.unsaved.is_writing() && self.outbound.is_empty() && self.unsaved.is_empty(self.position.folded))
    }

    pub fn users_in_memory(&self) -> usize {
        self.users.len()
    }

    pub fn sessions(&self) -> usize {
        self.users.sessions().count()
    }

    /// The largest number of unacknowledged messages of any session.
    pub fn most_unacknowledged(&self) -> usize {
        self.users.sessions().map(|live| live.window.len()).max().unwrap_or(0)
    }

    fn is_over(&self) -> bool {
        self.phase == PartitionPhase::Over
    }

    fn resign(&mut self, why: String) {
        self.phase = PartitionPhase::Over;
        self.effects.push(CarrierEffect::Resign { why });
    }

    fn report(&mut self, incident: CarrierIncident) {
        self.effects.push(CarrierEffect::Report(incident));
    }

    /// Messages to gateways come first: they precede the results of the other effects.
    fn take_effects(&mut self) -> Vec<CarrierEffect> {
        let mut effects: Vec<CarrierEffect> = self.gateways.take_news().collect();
        effects.append(&mut self.effects);
        effects
    }

    fn started(&mut self, applied: u64, first: u64, end: u64, now: Timestamp) {
        self.clock.start(now);
        let (position, incident) = FoldPosition::starting(applied, first, end);
        // Reset before anything else: the contents belong to another log.
        self.unsaved.wants_reset |= matches!(incident, Some(CarrierIncident::OtherLog { .. }));
        self.unsaved.saved = applied;
        self.position = position;
        incident.into_iter().for_each(|incident| self.report(incident));
    }

    fn read(&mut self, read: Result<ReadBatch, LogError>) {
        let next = match read {
            Ok(batch) => {
                for stored in batch.records {
                    let task = PushTask::of(&stored.record.headers).map(Box::new);
                    self.queue.push(QueuedWork::Record { offset: stored.offset, record: stored.record, task });
                }
                Some(batch.next)
            }
            Err(LogError::Trimmed { asked, first }) => {
                self.report(CarrierIncident::Gap { from: asked, to: first });
                Some(first)
            }
            Err(LogError::Damaged { resume_at, what, .. }) => {
                self.report(CarrierIncident::Damaged { resume_at, what });
                Some(resume_at)
            }
            Err(LogError::BeyondEnd { asked, next }) => {
                self.resign(format!("the log ends at {next}, before {asked}"));
                None
            }
            // The shell waited before it returned the error; the read is repeated.
            Err(_) => None,
        };
        self.position.read_ended(next);
        if self.queue.records() == 0 {
            self.position.folded_up_to(None);
        }
    }

    /// Handles queued work while the users at its head are in memory.
    fn pump(&mut self, now: Timestamp) {
        while self.loading.is_none() && !self.unsaved.is_emptying() && !self.is_over() {
            let Some(work) = self.queue.front() else { return };
            if !self.is_ready(work) {
                if matches!(work, QueuedWork::Ask { end, .. } if *end > self.position.folded) {
                    // The query must include records that were not read yet. They will be queued behind it, so it moves back.
                    if self.queue.postpone_query() {
                        continue;
                    }
                    return;
                }
                self.load();
                return;
            }
            match self.queue.pop() {
                Some(Ok(work)) => self.take(work, now),
                Some(Err(uid)) => self.release(uid.as_str()),
                None => return,
            }
        }
    }

    fn is_ready(&self, work: &QueuedWork) -> bool {
        if let QueuedWork::Ask { end, .. } = work
            && *end > self.position.folded
        {
            return false;
        }
        let mut is_ready = true;
        work.each_needed_user(&mut |uid| is_ready = is_ready && self.users.contains(uid));
        is_ready
    }

    fn take(&mut self, work: QueuedWork, now: Timestamp) {
        match work {
            QueuedWork::Record { offset, record, task } => {
                match task {
                    Ok(task) => self.fold(offset, &record, *task, now),
                    Err(why) => {
                        let reason = why.to_string();
                        self.report(CarrierIncident::NotUnderstood { offset, why: reason.clone() });
                        self.counts.dead += 1;
                        self.outbound.push(CarrierRecord::Dead { offset, record, reason });
                    }
                }
                self.position.folded_up_to(self.queue.next_record());
            }
            QueuedWork::Arrive { gateway, arrival } => self.arrive(gateway, *arrival, now),
            QueuedWork::Announce { gateway, announced } => self.announce(gateway, *announced, now),
            QueuedWork::Ask { ask, what, .. } => self.show(ask, what, now),
            QueuedWork::Reclaim(uid) => self.reclaim(&uid, now),
        }
    }

    /// Requests the next read, append and save, as far as bounds and intervals allow.
    fn go_on(&mut self, now: Timestamp) {
        if self.is_over() {
            return;
        }
        let has_room = self.queue.records() < WORK_RECORDS_MAX && self.unsaved.has_room(&self.settings);
        if self.phase == PartitionPhase::Running
            && has_room
            && let Some(from) = self.position.start_read()
        {
            self.effects.push(CarrierEffect::Read { from });
        }
        if let Some(records) = self.outbound.start_append() {
            self.effects.push(CarrierEffect::Append(records));
        }
        if self.save_due().is_some_and(|due| due <= now) {
            let keep_seats = self.keep_seats_ms();
            let write = self.unsaved.start_write(&mut self.users, self.position.folded, keep_seats, now);
            self.effects.push(CarrierEffect::Apply(write));
        }
    }

    /// The time of the next save. `None` if the store is current, or if a write or an append is in progress.
    fn save_due(&self) -> Option<Timestamp> {
        let due = self.unsaved.save_due(self.position.folded, &self.settings);
        due.filter(|_| self.outbound.is_empty())
    }

    fn applied(&mut self, outcome: Result<ApplyOutcome, InboxError>) {
        match self.unsaved.write_ended(outcome) {
            Ok(users) => users.iter().for_each(|uid| self.release(uid.as_str())),
            Err(why) => self.resign(why),
        }
    }

    /// The epoch of a user's inbox: of topic and user, so that a device of another user before cannot resume that position.
    fn epoch_of(&self, uid: &Uid) -> Arc<str> {
        user_epoch(&self.inbox_epoch, uid).into()
    }

    /// Removes a user from memory if nothing needs it there.
    fn release(&mut self, uid: &str) {
        if !self.unsaved.is_writing_user(uid)
            && self.users.get(uid).is_some_and(|user| user.sessions.is_empty() && !user.is_dirty)
        {
            self.users.remove(uid);
        }
    }

    fn keep_seats_ms(&self) -> i64 {
        i64::try_from(self.settings.keep_seats.as_millis()).unwrap_or(i64::MAX)
    }

    /// Removes expired messages of a user.
    fn expire_of(&mut self, uid: &Uid, now: Timestamp) {
        let expiry_now = self.clock.expiry_now(now);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Expired { gone, exhausted } = user.state.expire(&*self.rules, expiry_now);
        if !gone.is_empty() {
            self.unsaved.note(uid, user);
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
        let expiry_now = self.clock.expiry_now(now);
        let seen_since = expiry_now.saturating_sub(self.settings.keep_seats);
        let Some(user) = self.users.get_mut(uid.as_str()) else { return };
        let Expired { gone, exhausted } = user.state.expire(&*self.rules, expiry_now);
        self.counts.expired += gone.len() as u64;
        user.mark_seen(now);
        user.state.forget_seats(seen_since);
        // Always written: otherwise the store would list the user again under the same time.
        self.unsaved.note(uid, user);
        self.unsaved.drop_rows(uid, gone);
        self.write_dead_letters(uid, exhausted);
    }
}

/// The epoch that a user's devices receive, derived from the topic's epoch.
pub fn user_epoch(inbox_epoch: &str, uid: &Uid) -> String {
    format!("{inbox_epoch}-{:08x}", fold::hash_of(uid.as_str()) as u32)
}
