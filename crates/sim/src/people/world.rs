//! The state of a run, and its events: each event happens at its time, in one order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::people::{GatewayId, Platform, PlatformSettings, Uid};
use whimbrel_model::ports::{ApplyOutcome, InboxError, InboxWrite, RowKey, ToCarrier, ToGateway};
use whimbrel_model::push::{PushMessage, PushTask};
use whimbrel_model::{Record, SessionsRule, StoredRecord, Timestamp};
use whimbrel_people::carrier::partition::{CarrierInput, CarrierRecord};
use whimbrel_people::carrier::{CarrierSettings, PlatformRules};

use super::devices::{DeviceFrame, SimDevice};
use super::gateway::SimGateway;
use super::links::{LiveViews, SimLinks};
use super::owners::InboxOwners;
use super::profile::{PeopleFaults, PeopleProfile};
use super::report::PeopleCounts;
use super::store::SimInbox;
use super::truth::PeopleTruth;
use crate::trace::Trace;
use crate::{CheckResult, Rng};

pub const USERS: usize = 3;
pub const GATEWAYS: usize = 3;
/// The epoch of all inboxes: there is only one log.
pub const INBOX_EPOCH: &str = "e";
/// Limit of the unacknowledged messages of a session.
pub const WINDOW: usize = 4;
/// The time at the start, large enough that clocks can go back.
const BEGAN: i64 = 1_000_000;
const LONG_MS: u64 = 30 * 86_400_000;

pub(super) enum ScheduledEvent {
    Answer {
        epoch: u64,
        input: Box<CarrierInput>,
    },
    Read {
        epoch: u64,
        from: u64,
    },
    Load {
        epoch: u64,
        uids: Vec<Uid>,
    },
    Rows {
        epoch: u64,
        token: u64,
        keys: Vec<RowKey>,
    },
    Apply {
        epoch: u64,
        write: Box<InboxWrite>,
    },
    Append {
        epoch: u64,
        letters: Vec<CarrierRecord>,
    },
    Tick {
        epoch: u64,
    },
    Fires {
        task: Box<PushTask>,
        uid: Uid,
    },
    TakeOver,
    Dies {
        epoch: u64,
    },
    View {
        epoch: u64,
        version: usize,
    },
    Up {
        gateway: usize,
        id: GatewayId,
        epoch: u64,
        stream: u64,
        messages: Vec<ToCarrier>,
    },
    Down {
        gateway: usize,
        id: GatewayId,
        epoch: u64,
        stream: u64,
        news: Vec<ToGateway>,
    },
    /// The gateway notices that the owner or the link to it is gone.
    Unroute {
        gateway: usize,
        epoch: u64,
        stream: Option<u64>,
    },
    /// The gateway sees the owner, over that stream.
    Route {
        gateway: usize,
        epoch: u64,
        stream: u64,
    },
    Reconnect {
        gateway: usize,
        epoch: u64,
    },
    GatewayTick {
        gateway: usize,
    },
    Rejoin {
        gateway: usize,
    },
    Lapse {
        id: GatewayId,
    },
    ToDevice {
        device: usize,
        session: u64,
        frame: DeviceFrame,
    },
    Ack {
        device: usize,
        session: u64,
        upto: u64,
    },
    Ended {
        session: u64,
    },
}

/// The pending events, in the order of their times, then of their scheduling.
#[derive(Default)]
pub(super) struct EventSchedule {
    events: BTreeMap<(u64, u64), ScheduledEvent>,
    scheduled: u64,
}

impl EventSchedule {
    fn add(&mut self, at: u64, event: ScheduledEvent) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    /// The next event until that time, with its time.
    fn next(&mut self, until: u64) -> Option<(u64, ScheduledEvent)> {
        let entry = self.events.first_entry().filter(|entry| entry.key().0 <= until)?;
        Some((entry.key().0, entry.remove()))
    }

    pub fn events(&self) -> impl Iterator<Item = &ScheduledEvent> {
        self.events.values()
    }
}

/// The sessions of devices.
#[derive(Default)]
pub(super) struct SessionNumbers {
    pub last: u64,
    /// The sessions that a kick must end.
    pub kicked: BTreeSet<u64>,
}

pub struct PeopleWorld {
    pub now: u64,
    pub(super) skew: i64,
    pub(super) rng: Rng,
    pub trace: Trace,
    pub(super) faults: PeopleFaults,
    pub(super) profile: PeopleProfile,
    pub(super) log: Vec<StoredRecord>,
    pub(super) store: SimInbox,
    pub(super) owners: InboxOwners,
    pub(super) gateways: Vec<SimGateway>,
    pub(super) cluster: LiveViews,
    pub(super) links: SimLinks,
    pub devices: Vec<SimDevice>,
    pub(super) sessions: SessionNumbers,
    pub truth: PeopleTruth,
    pub counts: PeopleCounts,
    /// The ids of all holds so far.
    held: BTreeSet<String>,
    /// Whether the faults have ended.
    pub(super) is_quiet: bool,
    pub(super) schedule: EventSchedule,
}

/// The platforms with their storage rules.
fn rules() -> Arc<PlatformRules> {
    let common = PlatformSettings { ttl_ms: LONG_MS, ack_timeout_ms: 1_000, ..PlatformSettings::default() };
    let web = Arc::new(PlatformSettings { max_stored: 6, ..common.clone() });
    let ios = Arc::new(PlatformSettings { sessions: SessionsRule::Many(2), ..common.clone() });
    let tv = Arc::new(PlatformSettings { sessions: SessionsRule::Reject, ..common.clone() });
    let bare = Arc::new(PlatformSettings { store: false, ..common });
    Arc::new(move |platform: &Platform| match platform.as_str() {
        "web" => web.clone(),
        "ios" => ios.clone(),
        "tv" => tv.clone(),
        _ => bare.clone(),
    })
}

impl PeopleWorld {
    pub fn new(faults: PeopleFaults, profile: PeopleProfile, rng: Rng, trace: Trace) -> Self {
        let settings = CarrierSettings {
            window_messages: WINDOW,
            page_messages: 3,
            retry_after: [200, 500, 1_000].map(Duration::from_millis).to_vec(),
            announce_wait: Duration::from_millis(500),
            ttl_max: Duration::from_millis(LONG_MS),
            ..CarrierSettings::default()
        };
        let mut world = Self {
            now: 0,
            skew: BEGAN,
            rng,
            trace,
            faults,
            profile,
            log: Vec::new(),
            store: SimInbox::new(profile),
            owners: InboxOwners::new(settings, rules()),
            gateways: (0..GATEWAYS).map(|_| SimGateway::default()).collect(),
            cluster: LiveViews { views: vec![Arc::default()], incarnations: 0 },
            links: SimLinks::default(),
            devices: Vec::new(),
            sessions: SessionNumbers::default(),
            truth: PeopleTruth::default(),
            counts: PeopleCounts::default(),
            held: BTreeSet::new(),
            is_quiet: false,
            schedule: EventSchedule::default(),
        };
        world.make_devices();
        for gateway in 0..GATEWAYS {
            world.join(gateway);
            world.later(125, ScheduledEvent::GatewayTick { gateway });
        }
        world.later(1, ScheduledEvent::TakeOver);
        world
    }

    pub(super) fn clock(&self) -> Timestamp {
        Timestamp::from_millis(self.now as i64 + self.skew)
    }

    pub(super) fn note(&mut self, step: impl FnOnce() -> String) {
        let now = self.now;
        self.trace.note(|| format!("{now:6} {}", step()));
    }

    pub(super) fn later(&mut self, after: u64, event: ScheduledEvent) {
        self.at(self.now + after, event);
    }

    pub(super) fn at(&mut self, at: u64, event: ScheduledEvent) {
        self.schedule.add(at, event);
    }

    /// Schedules an event after a random time of at most `most` milliseconds.
    pub(super) fn soon(&mut self, most: u64, event: ScheduledEvent) {
        let after = self.rng.between(1, most.max(1));
        self.later(after, event);
    }

    /// Lets time pass, and processes the events that are due.
    pub fn pass(&mut self, ms: u64) -> CheckResult {
        let until = self.now + ms;
        while let Some((at, event)) = self.schedule.next(until) {
            self.now = self.now.max(at);
            self.truth.clock(self.clock().as_millis());
            self.happens(event)?;
            if self.owners.most_unacked > self.window() {
                return Err(format!("a session has {} unacknowledged messages", self.owners.most_unacked));
            }
        }
        self.now = until;
        self.truth.clock(self.clock().as_millis());
        Ok(())
    }

    /// Limit of the unacknowledged messages of a session. After a fallback of the store or a step back of the clock, an owner may find more
    /// sent messages: some that had expired, or that exceeded a limit.
    fn window(&self) -> usize {
        let goes_back = matches!(self.profile, PeopleProfile::Store | PeopleProfile::Clock | PeopleProfile::Mixed);
        match self.profile {
            _ if self.owners.last_epoch <= 1 => WINDOW,
            _ if goes_back => usize::MAX,
            // A replaced owner that has not noticed it fills the window once more.
            PeopleProfile::Zombies => 2 * WINDOW,
            _ => WINDOW,
        }
    }

    fn happens(&mut self, event: ScheduledEvent) -> CheckResult {
        match event {
            ScheduledEvent::Answer { epoch, input } => self.step(epoch, *input),
            ScheduledEvent::Read { epoch, from } => self.read(epoch, from),
            ScheduledEvent::Load { epoch, uids } => {
                let loaded = self.read_store(|store| store.boxes(&uids));
                self.answer(epoch, CarrierInput::Loaded(loaded));
            }
            ScheduledEvent::Rows { epoch, token, keys } => {
                let found = self.read_store(|store| store.rows(&keys));
                self.answer(epoch, CarrierInput::Rows { token, found });
            }
            ScheduledEvent::Apply { epoch, write } => self.write(epoch, *write)?,
            ScheduledEvent::Append { epoch, letters } => {
                self.append_letters(letters);
                self.answer(epoch, CarrierInput::Appended);
            }
            ScheduledEvent::Tick { epoch } => {
                if let Some(owner) = self.owners.all.get_mut(&epoch) {
                    owner.tick_at = None;
                    self.step(epoch, CarrierInput::Tick);
                }
            }
            ScheduledEvent::Fires { task, uid } => self.append(&task, &uid, Bytes::new()),
            ScheduledEvent::TakeOver => self.take_over(),
            ScheduledEvent::Dies { epoch } => self.die(epoch),
            ScheduledEvent::View { epoch, version } => self.see(epoch, version),
            ScheduledEvent::Up { gateway, id, epoch, stream, messages } => {
                if self.links.streams.get(&(epoch, gateway)) == Some(&stream) {
                    self.step(epoch, CarrierInput::From { gateway: id, messages });
                }
            }
            ScheduledEvent::Down { gateway, id, epoch, stream, news } => {
                if self.links.streams.get(&(epoch, gateway)) == Some(&stream) && self.gateways[gateway].id == Some(id) {
                    self.take_batch(gateway, epoch, news)?;
                }
            }
            ScheduledEvent::Unroute { gateway, epoch, stream } => {
                let is_it = |(of, over): (u64, u64)| of == epoch && stream.is_none_or(|stream| stream == over);
                if self.gateways[gateway].route.is_some_and(is_it) {
                    self.gateways[gateway].route = None;
                }
            }
            ScheduledEvent::Route { gateway, epoch, stream } => self.route(gateway, epoch, stream),
            ScheduledEvent::Reconnect { gateway, epoch } => self.reconnect(gateway, epoch),
            ScheduledEvent::GatewayTick { gateway } => self.gateway_tick(gateway),
            ScheduledEvent::Rejoin { gateway } => self.join(gateway),
            ScheduledEvent::Lapse { id } => self.lapse(id),
            ScheduledEvent::ToDevice { device, session, frame } => self.device_gets(device, session, frame)?,
            ScheduledEvent::Ack { device, session, upto } => self.device_acks(device, session, upto),
            ScheduledEvent::Ended { session } => self.session_ended(session),
        }
        Ok(())
    }

    /// Sends a message.
    pub fn push(&mut self, message: PushMessage) {
        let offset = self.log.len() as u64;
        let sent_at = self.clock().as_millis();
        let expires_at = sent_at.saturating_add(message.ttl_ms.unwrap_or(LONG_MS) as i64);
        self.truth.accept(offset, message.clone(), expires_at);
        self.counts.messages += 1;
        let uid = Uid::new(&message.uids[0]).expect("a valid name");
        let body = Bytes::from((offset + 1).to_string());
        self.append(&PushTask::Message(message), &uid, body);
    }

    pub(super) fn append(&mut self, task: &PushTask, uid: &Uid, value: Bytes) {
        let offset = self.log.len() as u64;
        self.note(|| format!("record {offset}: {task:?}"));
        let (headers, timestamp) = (task.headers().take(), self.clock());
        let key = Some(Bytes::copy_from_slice(uid.as_str().as_bytes()));
        self.log.push(StoredRecord { offset, record: Record { key, value, headers, timestamp } });
        self.tell_readers();
    }

    /// Appends the records of a carrier. A hold fires at its due time, sometimes twice.
    fn append_letters(&mut self, letters: Vec<CarrierRecord>) {
        for letter in letters {
            let CarrierRecord::Hold { id, uid, task, due } = letter else { continue };
            // A second hold with a known id is ignored, also after the first one has fired.
            if !self.held.insert(id) {
                continue;
            }
            self.counts.holds += 1;
            let copies = 1 + u64::from(!self.is_quiet && self.rng.one_in(10));
            for _ in 0..copies {
                let wait = (due.as_millis() - self.clock().as_millis()).max(0) as u64 + self.rng.between(1, 50);
                self.later(wait, ScheduledEvent::Fires { task: Box::new(task.clone()), uid: uid.clone() });
            }
        }
    }

    fn read_store<T>(
        &mut self,
        ask: impl FnOnce(&SimInbox) -> T,
    ) -> Result<whimbrel_model::ports::AtOffset<T>, InboxError> {
        if !self.is_quiet && self.rng.one_in(self.faults.store) {
            self.counts.faults.store_errors += 1;
            return Err(InboxError::Unavailable("simulated".to_owned()));
        }
        Ok(whimbrel_model::ports::AtOffset { applied: self.store.applied(), found: ask(&self.store) })
    }

    fn write(&mut self, epoch: u64, write: InboxWrite) -> CheckResult {
        if self.owners.all.get(&epoch).is_some_and(|owner| owner.is_cut_off) {
            return Ok(());
        }
        self.counts.writes += 1;
        let fails = !self.is_quiet && self.rng.one_in(self.faults.store);
        let is_done = !fails || self.rng.one_in(2);
        let users: Vec<Uid> = write.changes.iter().filter_map(changed_user).collect();
        self.note(|| {
            format!("owner {epoch} writes {} changes up to {}, fails: {fails}", write.changes.len(), write.applied)
        });
        let mut outcome = Ok(ApplyOutcome::Done);
        if is_done {
            let applied = self.store.apply(write)?;
            if applied == ApplyOutcome::Done {
                users.iter().try_for_each(|uid| self.check_stored(uid))?;
                if self.faults.crash > 0 && self.has_kick_in_transit(epoch) && self.rng.one_in(2) {
                    // The store is past the kick, and no gateway has received it.
                    self.counts.faults.kicks_cut_off += 1;
                    self.die(epoch);
                }
            }
            outcome = Ok(applied);
        }
        if fails {
            self.counts.faults.store_errors += 1;
            outcome = Err(InboxError::Unavailable("simulated".to_owned()));
        }
        self.answer(epoch, CarrierInput::Applied(outcome));
        Ok(())
    }

    fn check_stored(&mut self, uid: &Uid) -> CheckResult {
        let user = self.store.user(uid)?;
        self.truth.stored(uid, user.as_ref(), self.store.applied(), self.log.len() as u64)
    }

    /// The store falls back to the last synced state, or to nothing.
    pub fn store_falls_back(&mut self, to_nothing: bool) -> CheckResult {
        self.counts.faults.fall_backs += 1;
        self.note(|| format!("the store falls back, to nothing: {to_nothing}"));
        if to_nothing {
            self.store.lose();
        } else {
            self.store.fall_back();
        }
        if self.rng.one_in(2) {
            self.crash_owner();
        }
        self.truth.store_fell_back();
        for user in 0..USERS {
            self.check_stored(&user_name(user))?;
        }
        Ok(())
    }

    /// The clock of every node jumps.
    pub fn jump(&mut self, by: i64) {
        self.counts.faults.jumps += 1;
        self.skew += by;
        self.note(|| format!("the clock jumps by {by}"));
        let epochs: Vec<u64> = self.owners.all.keys().copied().collect();
        for epoch in epochs {
            self.soon(5, ScheduledEvent::Tick { epoch });
        }
    }
}

fn changed_user(change: &whimbrel_model::ports::InboxChange) -> Option<Uid> {
    match change {
        whimbrel_model::ports::InboxChange::PutBox { uid, .. } => Some(uid.clone()),
        _ => None,
    }
}

pub fn user_name(user: usize) -> Uid {
    Uid::new(&format!("u{user}")).expect("a valid name")
}

impl PeopleWorld {
    /// Requests that the store is synced.
    pub fn sync(&mut self) {
        if let Some(epoch) = self.owners.current {
            self.step(epoch, CarrierInput::SyncWanted);
        }
    }

    /// Ends all faults.
    pub fn end_faults(&mut self) {
        self.note(|| "everything is quiet".to_owned());
        self.faults = PeopleFaults::default();
        self.is_quiet = true;
    }

    /// Checks that everything was acknowledged and nothing is stored.
    pub fn is_nothing_left(&self) -> CheckResult {
        if self.store.applied() != self.log.len() as u64 {
            return Err(format!("the store is at {}, and the log at {}", self.store.applied(), self.log.len()));
        }
        self.store.is_empty()
    }
}
