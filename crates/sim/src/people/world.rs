//! Everything that a run has, and what happens when: every event comes at its time, in one order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::people::{GatewayId, Platform, PlatformSettings, Uid};
use whimbrel_model::ports::{Applied, InboxError, InboxWrite, RowKey, ToCarrier, ToGateway};
use whimbrel_model::push::{PushMessage, PushTask};
use whimbrel_model::{Record, SessionsRule, StoredRecord, Timestamp};
use whimbrel_people::carrier::partition::{Input, Letter};
use whimbrel_people::carrier::{CarrierSettings, PlatformRules};

use super::Check;
use super::devices::{Device, Frame};
use super::gateway::SimGateway;
use super::owners::Owner;
use super::profile::{PeopleProfile, Trouble};
use super::report::PeopleReport;
use super::store::SimInbox;
use super::truth::Truth;
use crate::Rng;
use crate::trace::Trace;

pub const USERS: usize = 3;
pub const GATEWAYS: usize = 3;
/// The epoch of all inboxes: the log is always the same.
pub const INBOX_EPOCH: &str = "e";
/// What a session may have and not have acknowledged.
pub const WINDOW: usize = 4;
/// Time at the start, so that clocks can go back.
const BEGAN: i64 = 1_000_000;
const LONG_MS: u64 = 30 * 86_400_000;

pub(super) enum Event {
    Answer {
        epoch: u64,
        input: Box<Input>,
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
        letters: Vec<Letter>,
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
    /// The gateway sees that the owner is gone, or the way to it.
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
        frame: Frame,
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

pub struct World {
    pub now: u64,
    pub(super) skew: i64,
    pub(super) rng: Rng,
    pub trace: Trace,
    pub(super) trouble: Trouble,
    pub(super) profile: PeopleProfile,
    pub(super) settings: Arc<CarrierSettings>,
    pub(super) rules: Arc<PlatformRules>,
    pub(super) log: Vec<StoredRecord>,
    pub(super) store: SimInbox,
    pub(super) owners: BTreeMap<u64, Owner>,
    /// Who has the partition.
    pub(super) owner: Option<u64>,
    pub(super) last_epoch: u64,
    pub(super) gateways: Vec<SimGateway>,
    /// All pictures of who lives that ever were.
    pub(super) views: Vec<Arc<Vec<GatewayId>>>,
    pub(super) incarnations: u64,
    /// The streams between owners and gateways that stand.
    pub(super) streams: BTreeMap<(u64, usize), u64>,
    pub(super) last_stream: u64,
    /// When the last of what is on a stream arrives, in each direction: nothing overtakes.
    pub(super) last_on: BTreeMap<(u64, bool), u64>,
    pub devices: Vec<Device>,
    pub(super) sessions: u64,
    /// Sessions that somebody kicked.
    pub(super) kicked: BTreeSet<u64>,
    pub truth: Truth,
    pub report: PeopleReport,
    /// The ids of all that was ever held.
    held: BTreeSet<String>,
    /// The most that any session had to acknowledge.
    pub(super) most_unacked: usize,
    /// Nothing more goes wrong.
    pub(super) is_quiet: bool,
    pub(super) events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
}

/// The platforms and how they keep things.
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

impl World {
    pub fn new(trouble: Trouble, profile: PeopleProfile, rng: Rng, trace: Trace) -> Self {
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
            trouble,
            profile,
            settings: Arc::new(settings),
            rules: rules(),
            log: Vec::new(),
            store: SimInbox::new(profile),
            owners: BTreeMap::new(),
            owner: None,
            last_epoch: 0,
            gateways: (0..GATEWAYS).map(|_| SimGateway::default()).collect(),
            views: vec![Arc::default()],
            incarnations: 0,
            streams: BTreeMap::new(),
            last_stream: 0,
            last_on: BTreeMap::new(),
            devices: Vec::new(),
            sessions: 0,
            kicked: BTreeSet::new(),
            truth: Truth::default(),
            report: PeopleReport { seeds: 1, ..PeopleReport::default() },
            held: BTreeSet::new(),
            most_unacked: 0,
            is_quiet: false,
            events: BTreeMap::new(),
            scheduled: 0,
        };
        world.make_devices();
        for gateway in 0..GATEWAYS {
            world.join(gateway);
            world.later(125, Event::GatewayTick { gateway });
        }
        world.later(1, Event::TakeOver);
        world
    }

    pub(super) fn clock(&self) -> Timestamp {
        Timestamp::from_millis(self.now as i64 + self.skew)
    }

    pub(super) fn note(&mut self, step: impl FnOnce() -> String) {
        let now = self.now;
        self.trace.note(|| format!("{now:6} {}", step()));
    }

    pub(super) fn later(&mut self, after: u64, event: Event) {
        self.at(self.now + after, event);
    }

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    /// After a while of up to so many milliseconds, and at once where everything is quiet.
    pub(super) fn soon(&mut self, most: u64, event: Event) {
        let after = self.rng.between(1, most.max(1));
        self.later(after, event);
    }

    /// Lets time pass, with everything that happens meanwhile.
    pub fn pass(&mut self, ms: u64) -> Check {
        let until = self.now + ms;
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= until) {
            self.now = self.now.max(entry.key().0);
            let event = entry.remove();
            self.truth.clock(self.clock().as_millis());
            self.happens(event)?;
            if self.most_unacked > self.window() {
                return Err(format!("a session has {} messages to acknowledge", self.most_unacked));
            }
        }
        self.now = until;
        self.truth.clock(self.clock().as_millis());
        Ok(())
    }

    /// What a session may have and not have acknowledged. An owner that begins from an earlier state may learn that a session was sent more:
    /// what had expired, or was beyond a bound, before the store fell back or the clock went back.
    fn window(&self) -> usize {
        let goes_back = matches!(self.profile, PeopleProfile::Store | PeopleProfile::Clock | PeopleProfile::Mixed);
        match self.profile {
            _ if self.last_epoch <= 1 => WINDOW,
            _ if goes_back => usize::MAX,
            // One that does not know yet that it is replaced fills the window once more.
            PeopleProfile::Zombies => 2 * WINDOW,
            _ => WINDOW,
        }
    }

    fn happens(&mut self, event: Event) -> Check {
        match event {
            Event::Answer { epoch, input } => self.step(epoch, *input),
            Event::Read { epoch, from } => self.read(epoch, from),
            Event::Load { epoch, uids } => {
                let loaded = self.asked_store(|store| store.boxes(&uids));
                self.answer(epoch, Input::Loaded(loaded));
            }
            Event::Rows { epoch, token, keys } => {
                let found = self.asked_store(|store| store.rows(&keys));
                self.answer(epoch, Input::Rows { token, found });
            }
            Event::Apply { epoch, write } => self.write(epoch, *write)?,
            Event::Append { epoch, letters } => {
                self.append_letters(letters);
                self.answer(epoch, Input::Appended);
            }
            Event::Tick { epoch } => {
                if let Some(owner) = self.owners.get_mut(&epoch) {
                    owner.tick_at = None;
                    self.step(epoch, Input::Tick);
                }
            }
            Event::Fires { task, uid } => self.append(&task, &uid, Bytes::new()),
            Event::TakeOver => self.take_over(),
            Event::Dies { epoch } => self.die(epoch),
            Event::View { epoch, version } => self.see(epoch, version),
            Event::Up { gateway, id, epoch, stream, messages } => {
                if self.streams.get(&(epoch, gateway)) == Some(&stream) {
                    self.step(epoch, Input::From { gateway: id, messages });
                }
            }
            Event::Down { gateway, id, epoch, stream, news } => {
                if self.streams.get(&(epoch, gateway)) == Some(&stream) && self.gateways[gateway].id == Some(id) {
                    self.take_news(gateway, epoch, news)?;
                }
            }
            Event::Unroute { gateway, epoch, stream } => {
                let is_it = |(of, over): (u64, u64)| of == epoch && stream.is_none_or(|stream| stream == over);
                if self.gateways[gateway].route.is_some_and(is_it) {
                    self.gateways[gateway].route = None;
                }
            }
            Event::Route { gateway, epoch, stream } => self.route(gateway, epoch, stream),
            Event::Reconnect { gateway, epoch } => self.reconnect(gateway, epoch),
            Event::GatewayTick { gateway } => self.gateway_tick(gateway),
            Event::Rejoin { gateway } => self.join(gateway),
            Event::Lapse { id } => self.lapse(id),
            Event::ToDevice { device, session, frame } => self.device_gets(device, session, frame)?,
            Event::Ack { device, session, upto } => self.device_acks(device, session, upto),
            Event::Ended { session } => self.session_ended(session),
        }
        Ok(())
    }

    /// Somebody sends a message.
    pub fn push(&mut self, message: PushMessage) {
        let offset = self.log.len() as u64;
        let sent_at = self.clock().as_millis();
        let expires_at = sent_at.saturating_add(message.ttl_ms.unwrap_or(LONG_MS) as i64);
        self.truth.accept(offset, message.clone(), expires_at);
        self.report.messages += 1;
        let uid = Uid::new(&message.uids[0]).expect("a good name");
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

    /// A carrier's letters are in the log; one that is held comes back at its time, sometimes twice.
    fn append_letters(&mut self, letters: Vec<Letter>) {
        for letter in letters {
            let Letter::Hold { id, uid, task, due } = letter else { continue };
            // A second one of an id that is known is ignored, also when the first has fired.
            if !self.held.insert(id) {
                continue;
            }
            self.report.holds += 1;
            let copies = 1 + u64::from(!self.is_quiet && self.rng.one_in(10));
            for _ in 0..copies {
                let wait = (due.as_millis() - self.clock().as_millis()).max(0) as u64 + self.rng.between(1, 50);
                self.later(wait, Event::Fires { task: Box::new(task.clone()), uid: uid.clone() });
            }
        }
    }

    fn asked_store<T>(&mut self, ask: impl FnOnce(&SimInbox) -> T) -> Result<whimbrel_model::ports::At<T>, InboxError> {
        if !self.is_quiet && self.rng.one_in(self.trouble.store) {
            self.report.store_errors += 1;
            return Err(InboxError::Unavailable("simulated".to_owned()));
        }
        Ok(whimbrel_model::ports::At { applied: self.store.applied(), found: ask(&self.store) })
    }

    fn write(&mut self, epoch: u64, write: InboxWrite) -> Check {
        if self.owners.get(&epoch).is_some_and(|owner| owner.is_cut_off) {
            return Ok(());
        }
        self.report.writes += 1;
        let fails = !self.is_quiet && self.rng.one_in(self.trouble.store);
        let is_done = !fails || self.rng.one_in(2);
        let users: Vec<Uid> = write.changes.iter().filter_map(changed_user).collect();
        self.note(|| {
            format!("owner {epoch} writes {} changes up to {}, fails: {fails}", write.changes.len(), write.applied)
        });
        let mut outcome = Ok(Applied::Done);
        if is_done {
            let applied = self.store.apply(write)?;
            if applied == Applied::Done {
                users.iter().try_for_each(|uid| self.judge_stored(uid))?;
                if self.trouble.crash > 0 && self.has_a_kick_under_way(epoch) && self.rng.one_in(2) {
                    // The kick is behind where the store is, and nobody was told.
                    self.report.kicks_cut_off += 1;
                    self.die(epoch);
                }
            }
            outcome = Ok(applied);
        }
        if fails {
            self.report.store_errors += 1;
            outcome = Err(InboxError::Unavailable("simulated".to_owned()));
        }
        self.answer(epoch, Input::Applied(outcome));
        Ok(())
    }

    fn judge_stored(&mut self, uid: &Uid) -> Check {
        let user = self.store.user(uid)?;
        self.truth.stored(uid, user.as_ref(), self.store.applied(), self.log.len() as u64)
    }

    /// The store falls back to what was synced, or to nothing.
    pub fn store_falls_back(&mut self, to_nothing: bool) -> Check {
        self.report.fall_backs += 1;
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
            self.judge_stored(&user_name(user))?;
        }
        Ok(())
    }

    /// The clock of every node jumps.
    pub fn jump(&mut self, by: i64) {
        self.report.jumps += 1;
        self.skew += by;
        self.note(|| format!("the clock jumps by {by}"));
        let epochs: Vec<u64> = self.owners.keys().copied().collect();
        for epoch in epochs {
            self.soon(5, Event::Tick { epoch });
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
    Uid::new(&format!("u{user}")).expect("a good name")
}

impl World {
    /// The store is to be on disk.
    pub fn sync(&mut self) {
        if let Some(epoch) = self.owner {
            self.step(epoch, Input::SyncWanted);
        }
    }

    /// Nothing goes wrong any more.
    pub fn calm_down(&mut self) {
        self.note(|| "everything is quiet".to_owned());
        self.trouble = Trouble::default();
        self.is_quiet = true;
    }

    /// Everything was acknowledged: nothing is stored any more.
    pub fn is_all_done(&self) -> Check {
        if self.store.applied() != self.log.len() as u64 {
            return Err(format!("the store is at {}, and the log at {}", self.store.applied(), self.log.len()));
        }
        self.store.is_empty()
    }
}
