//! A partition with a log, a store and gateways in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use whimbrel_model::people::{GatewayId, Platform, PlatformSettings, Uid};
use whimbrel_model::ports::{
    AnnouncedSession, ApplyOutcome, Arrival, AtOffset, DeliveryPosition, InboxChange, InboxView, PeopleQuery,
    PeopleReply, ReadBatch, Resume, RowKey, ToCarrier, ToGateway,
};
use whimbrel_model::push::{Notify, PushMessage, PushTask};
use whimbrel_model::{Headers, Record, SessionsRule, StoredRecord, Timestamp};

use whimbrel_cluster::Machine as _;
use whimbrel_cluster::owner_clock::ClockReading;

use crate::carrier::partition::{CarrierEffect, CarrierInput, CarrierRecord, PushPartition};
use crate::carrier::settings::CarrierSettings;
use crate::carrier::user_box::PlatformRules;

pub(super) const GATEWAY: GatewayId = GatewayId { node: 1, incarnation: 7 };

pub(super) const EPOCH: &str = "e";

/// An in-memory store that follows the contract of the port.
#[derive(Default, Clone)]
pub(super) struct Store {
    pub(super) applied: u64,
    pub(super) boxes: BTreeMap<Uid, Bytes>,
    /// The time under which the index lists each box.
    pub(super) found_under: BTreeMap<Uid, Timestamp>,
    pub(super) own: BTreeMap<(Uid, u64), Bytes>,
    pub(super) shared: BTreeMap<u64, (Bytes, u32)>,
}

pub(super) struct World {
    pub(super) now: i64,
    pub(super) log: Vec<StoredRecord>,
    pub(super) store: Store,
    pub(super) core: PushPartition,
    pub(super) settings: Arc<CarrierSettings>,
    pub(super) rules: Arc<PlatformRules>,
    pub(super) reading: Option<u64>,
    pub(super) news: Vec<ToGateway>,
    pub(super) outbound: Vec<CarrierRecord>,
    pub(super) answers: Vec<PeopleReply>,
    pub(super) resigned: bool,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(PlatformSettings::default())
    }

    pub(super) fn with(platform: PlatformSettings) -> Self {
        let platform = Arc::new(platform);
        let rules: Arc<PlatformRules> = Arc::new(move |_| platform.clone());
        let settings = Arc::new(CarrierSettings { window_messages: 4, page_messages: 3, ..CarrierSettings::default() });
        let core = PushPartition::new(settings.clone(), rules.clone(), 1, EPOCH.into(), Timestamp::from_millis(0));
        let mut world = Self {
            now: 0,
            log: Vec::new(),
            store: Store::default(),
            core,
            settings,
            rules,
            reading: None,
            news: Vec::new(),
            outbound: Vec::new(),
            answers: Vec::new(),
            resigned: false,
        };
        world.step(CarrierInput::Started { applied: 0, first: 0, end: 0 });
        world
    }

    pub(super) fn with_sessions(sessions: SessionsRule) -> Self {
        Self::with(PlatformSettings { sessions, ..PlatformSettings::default() })
    }

    /// A world in which session 1 of `u` is connected.
    pub(super) fn connected() -> Self {
        let mut world = Self::new();
        world.arrive(1, "u", "web", None);
        world
    }

    /// A world whose platforms follow the current value of `rule`.
    pub(super) fn ruled(rule: &Arc<Mutex<SessionsRule>>) -> Self {
        let present = Arc::clone(rule);
        let mut world = Self::new();
        world.rules = Arc::new(move |_: &Platform| {
            let sessions = *present.lock().unwrap();
            Arc::new(PlatformSettings { sessions, ..PlatformSettings::default() })
        });
        world.take_over();
        world
    }

    /// Replaces the owner with a new one, which starts from store and log.
    pub(super) fn take_over(&mut self) {
        let effects = self.begin_to_take_over();
        self.perform_all(effects);
    }

    /// A new owner takes over and has not read anything yet. Returns its first effects.
    pub(super) fn begin_to_take_over(&mut self) -> Vec<CarrierEffect> {
        let (settings, rules) = (self.settings.clone(), self.rules.clone());
        self.core = PushPartition::new(settings, rules, 2, EPOCH.into(), Timestamp::from_millis(self.now));
        self.reading = None;
        let (applied, end) = (self.store.applied, self.log.len() as u64);
        self.only(CarrierInput::Started { applied, first: 0, end })
    }

    pub(super) fn step(&mut self, input: CarrierInput) {
        let effects = self.only(input);
        self.perform_all(effects);
    }

    /// Takes a step without performing its effects.
    pub(super) fn only(&mut self, input: CarrierInput) -> Vec<CarrierEffect> {
        self.core.step(ClockReading::exact(Timestamp::from_millis(self.now)), input)
    }

    /// Takes a step and performs its effects except one, which it returns.
    pub(super) fn step_without(
        &mut self,
        input: CarrierInput,
        is_meant: impl Fn(&CarrierEffect) -> bool,
    ) -> CarrierEffect {
        let (mut meant, others): (Vec<_>, Vec<_>) = self.only(input).into_iter().partition(is_meant);
        self.perform_all(others);
        meant.pop().expect("no such effect")
    }

    pub(super) fn perform_all(&mut self, effects: Vec<CarrierEffect>) {
        effects.into_iter().for_each(|effect| self.perform(effect));
    }

    pub(super) fn perform(&mut self, effect: CarrierEffect) {
        match effect {
            CarrierEffect::Read { from } => {
                if (from as usize) < self.log.len() {
                    let records = self.log[from as usize..].to_vec();
                    let next = self.log.len() as u64;
                    self.step(CarrierInput::Read(Ok(ReadBatch { records, next })));
                } else {
                    self.reading = Some(from);
                }
            }
            CarrierEffect::Load { uids } => {
                let found = uids.iter().map(|uid| self.store.boxes.get(uid).cloned()).collect();
                self.step(CarrierInput::Loaded(Ok(AtOffset { applied: self.store.applied, found })));
            }
            CarrierEffect::Rows { token, keys, .. } => {
                let row = |key: &RowKey| match key {
                    RowKey::Own { uid, seq } => self.store.own.get(&(uid.clone(), *seq)).cloned(),
                    RowKey::Shared { seq } => self.store.shared.get(seq).map(|(row, _)| row.clone()),
                };
                let found = keys.iter().map(row).collect();
                self.step(CarrierInput::Rows { token, found: Ok(AtOffset { applied: self.store.applied, found }) });
            }
            CarrierEffect::Append(outbound) => {
                self.outbound.extend(outbound);
                self.step(CarrierInput::Appended);
            }
            CarrierEffect::Apply(write) => {
                assert_eq!(write.expected, self.store.applied);
                if write.reset {
                    self.store = Store::default();
                }
                self.store.applied = write.applied;
                for change in write.changes {
                    self.change(change);
                }
                self.step(CarrierInput::Applied(Ok(ApplyOutcome::Done)));
            }
            CarrierEffect::Tell { news, .. } => self.news.extend(news),
            CarrierEffect::Answer { told, .. } => self.answers.push(told.unwrap()),
            CarrierEffect::Report(_) => {}
            CarrierEffect::Resign { .. } => self.resigned = true,
        }
    }

    pub(super) fn change(&mut self, change: InboxChange) {
        match change {
            InboxChange::PutBox { uid, state, reclaim_at, was } => {
                assert_eq!(self.store.found_under.remove(&uid), was, "the index has no stale entry");
                self.store.found_under.extend(reclaim_at.map(|at| (uid.clone(), at)));
                match state {
                    Some(state) => drop(self.store.boxes.insert(uid, state)),
                    None => drop(self.store.boxes.remove(&uid)),
                }
            }
            InboxChange::PutOwn { uid, seq, row } => drop(self.store.own.insert((uid, seq), row)),
            InboxChange::PutShared { seq, row, references } => {
                self.store.shared.entry(seq).or_insert((row, 0)).1 += references;
            }
            InboxChange::DropOwn { uid, seq } => {
                assert!(self.store.own.remove(&(uid, seq)).is_some(), "only existing rows are dropped");
            }
            InboxChange::ReleaseShared { seq, references } => {
                let row = self.store.shared.get_mut(&seq).expect("only existing rows are released");
                row.1 = row.1.checked_sub(references).expect("not more references than there are");
                if row.1 == 0 {
                    self.store.shared.remove(&seq);
                }
            }
        }
    }

    /// Advances the clock and ticks, which saves what is due.
    pub(super) fn wait(&mut self, ms: i64) {
        self.now += ms;
        self.step(CarrierInput::Tick);
    }

    pub(super) fn append(&mut self, task: &PushTask, body: &'static str) {
        self.append_record(task.headers().take(), body);
    }

    pub(super) fn append_record(&mut self, headers: Headers, body: &'static str) {
        let record = Record { key: None, value: body.into(), headers, timestamp: Timestamp::from_millis(self.now) };
        self.log.push(StoredRecord { offset: self.log.len() as u64, record });
        if let Some(from) = self.reading.take() {
            self.perform(CarrierEffect::Read { from });
        }
    }

    pub(super) fn push(&mut self, uids: &[&str], body: &'static str) {
        self.push_message(PushMessage { store: true, ..message(uids) }, body);
    }

    pub(super) fn push_message(&mut self, message: PushMessage, body: &'static str) {
        self.append(&PushTask::Message(message), body);
    }

    pub(super) fn arrive(&mut self, session: u64, who: &str, platform: &str, resume: Option<Resume>) {
        let arrival = self.arrival(session, who, platform, resume);
        self.from(vec![ToCarrier::Arrive(Box::new(arrival))]);
    }

    pub(super) fn arrival(&self, session: u64, who: &str, platform: &str, resume: Option<Resume>) -> Arrival {
        let (platform, at) = (Platform::new(platform).unwrap(), Timestamp::from_millis(self.now));
        Arrival { session, uid: uid(who), platform, device: format!("d{session}").into(), resume, at }
    }

    pub(super) fn from(&mut self, messages: Vec<ToCarrier>) {
        self.step(CarrierInput::From { gateway: GATEWAY, messages });
    }

    /// The holds written since the last call: their ids and tasks.
    pub(super) fn held(&mut self) -> Vec<(String, PushTask)> {
        let held = self.outbound.drain(..).filter_map(|item| match item {
            CarrierRecord::Hold { id, task, .. } => Some((id, task)),
            _ => None,
        });
        held.collect()
    }

    /// The inbox of `u` as of the records read so far.
    pub(super) fn view(&mut self, after: u64, limit: usize) -> InboxView {
        let what = PeopleQuery::Inbox { uid: uid("u"), platform: None, after, limit };
        self.step(CarrierInput::Query { ask: 1, what, end: 0 });
        self.viewed()
    }

    /// The answer to the last query.
    pub(super) fn viewed(&mut self) -> InboxView {
        let Some(PeopleReply::Inbox(view)) = self.answers.pop() else { panic!("no answer") };
        view
    }

    pub(super) fn ack(&mut self, session: u64, who: &str, upto: u64) {
        self.from(vec![ToCarrier::Ack { session, uid: uid(who), upto }]);
    }

    pub(super) fn gone(&mut self, session: u64, who: &str) {
        self.from(vec![ToCarrier::Gone { session, uid: uid(who) }]);
    }

    /// The messages to a session since the last call, in short form.
    pub(super) fn told(&mut self, session: u64) -> Vec<String> {
        let (mine, others): (Vec<_>, Vec<_>) = self.news.drain(..).partition(|news| news.session() == session);
        self.news = others;
        mine.iter().map(short).collect()
    }
}

fn announced(announced: AnnouncedSession) -> CarrierInput {
    CarrierInput::From { gateway: GATEWAY, messages: vec![ToCarrier::Announce(Box::new(announced))] }
}

pub(super) fn uid(name: &str) -> Uid {
    Uid::new(name).unwrap()
}

/// The epoch that devices of that user receive.
pub(super) fn epoch(who: &str) -> Box<str> {
    format!("{EPOCH}-{:08x}", crate::carrier::partition::fold::hash_of(who) as u32).into()
}

pub(super) fn message(uids: &[&str]) -> PushMessage {
    PushMessage { id: "m".into(), uids: uids.iter().map(ToString::to_string).collect(), ..PushMessage::default() }
}

/// A message for which platforms that do not receive it get a notice.
pub(super) fn with_notice(store: bool, uids: &[&str]) -> PushMessage {
    let notify = Some(Notify { title: Some("t".into()), ..Notify::default() });
    PushMessage { store, notify, ..message(uids) }
}

pub(super) fn short(news: &ToGateway) -> String {
    match news {
        ToGateway::Admitted(admitted) => {
            let resumed = if admitted.resumed { "resumed" } else { admitted.why.unwrap_or("anew") };
            format!("admitted {resumed} at {} head {}", admitted.cursor, admitted.head)
        }
        ToGateway::Rejected { code, .. } => format!("rejected {}", code.word()),
        ToGateway::Deliver(delivery) => {
            let again = if delivery.again { " again" } else { "" };
            let body = String::from_utf8_lossy(&delivery.message.payload);
            match delivery.place {
                DeliveryPosition::Stored { seq, prev } => format!("{body} {seq} after {prev}{again}"),
                DeliveryPosition::Ephemeral { .. } => format!("{body} ephemeral"),
            }
        }
        ToGateway::Truncated { from, to, .. } => format!("lost {from} to {to}"),
        ToGateway::Lost { count, .. } => format!("lost {count}"),
        ToGateway::Kick { code, reason, .. } => format!("kick {} {reason}", code.word()),
    }
}

impl World {
    pub(super) fn announcement(&self, session: u64, who: &str, platform: &str, sent: u64, acked: u64) -> CarrierInput {
        let arrival = self.arrival(session, who, platform, None);
        announced(AnnouncedSession { arrival, epoch: (&*epoch(who)).into(), sent, acked })
    }

    /// The announcement of a session of `u` that arrived at `at`.
    pub(super) fn announcement_since(&self, session: u64, at: i64) -> CarrierInput {
        let mut arrival = self.arrival(session, "u", "web", None);
        arrival.at = Timestamp::from_millis(at);
        announced(AnnouncedSession { arrival, epoch: (&*epoch("u")).into(), sent: 0, acked: 0 })
    }

    pub(super) fn announce_since(&mut self, session: u64, at: i64) {
        let announcement = self.announcement_since(session, at);
        self.step(announcement);
    }
}
