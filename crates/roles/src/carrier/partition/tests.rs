//! What a partition does for its users, on a log, a store and gateways that are all in memory here.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use whimbrel_model::people::{CloseCode, GatewayId, Platform, PlatformSettings, Uid};
use whimbrel_model::ports::{
    Announced, Applied, Arrival, At, Delivery, DeliveryPlace, InboxChange, PeopleAsk, PeopleTold, ReadBatch, Resume,
    RowKey, ToCarrier, ToGateway,
};
use whimbrel_model::push::{Notify, PushKick, PushMessage, PushTask};
use whimbrel_model::{Record, SessionsRule, StoredRecord, Timestamp};

use super::super::settings::CarrierSettings;
use super::super::user_box::PlatformRules;
use super::{Effect, Input, Letter, Partition};

mod changed_rules;
mod owner_change;
mod repeats;
mod seats_seen;
mod store;
mod supervision;
mod time_and_bounds;
mod waking;

const GATEWAY: GatewayId = GatewayId { node: 1, incarnation: 7 };
const EPOCH: &str = "e";

/// The store, as the port promises it.
#[derive(Default, Clone)]
struct Store {
    applied: u64,
    boxes: BTreeMap<Uid, Bytes>,
    own: BTreeMap<(Uid, u64), Bytes>,
    shared: BTreeMap<u64, (Bytes, u32)>,
}

struct World {
    now: i64,
    log: Vec<StoredRecord>,
    store: Store,
    core: Partition,
    settings: Arc<CarrierSettings>,
    rules: Arc<PlatformRules>,
    reading: Option<u64>,
    news: Vec<ToGateway>,
    letters: Vec<Letter>,
    answers: Vec<PeopleTold>,
    resigned: bool,
}

impl World {
    fn new() -> Self {
        Self::with(PlatformSettings::default())
    }

    fn with(platform: PlatformSettings) -> Self {
        let platform = Arc::new(platform);
        let rules: Arc<PlatformRules> = Arc::new(move |_| platform.clone());
        let settings = Arc::new(CarrierSettings { window_messages: 4, page_messages: 3, ..CarrierSettings::default() });
        let core = Partition::new(settings.clone(), rules.clone(), 1, EPOCH.into(), Timestamp::from_millis(0));
        let mut world = Self {
            now: 0,
            log: Vec::new(),
            store: Store::default(),
            core,
            settings,
            rules,
            reading: None,
            news: Vec::new(),
            letters: Vec::new(),
            answers: Vec::new(),
            resigned: false,
        };
        world.step(Input::Started { applied: 0, first: 0, end: 0 });
        world
    }

    /// The owner is gone, and another takes over from what is in store and log.
    fn take_over(&mut self) {
        let (settings, rules) = (self.settings.clone(), self.rules.clone());
        self.core = Partition::new(settings, rules, 2, EPOCH.into(), Timestamp::from_millis(self.now));
        self.reading = None;
        let (applied, end) = (self.store.applied, self.log.len() as u64);
        self.step(Input::Started { applied, first: 0, end });
    }

    fn step(&mut self, input: Input) {
        let effects = self.core.step(Timestamp::from_millis(self.now), input);
        for effect in effects {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Read { from } => {
                if (from as usize) < self.log.len() {
                    let records = self.log[from as usize..].to_vec();
                    let next = self.log.len() as u64;
                    self.step(Input::Read(Ok(ReadBatch { records, next })));
                } else {
                    self.reading = Some(from);
                }
            }
            Effect::Load { uids } => {
                let found = uids.iter().map(|uid| self.store.boxes.get(uid).cloned()).collect();
                self.step(Input::Loaded(Ok(At { applied: self.store.applied, found })));
            }
            Effect::Rows { token, keys, .. } => {
                let row = |key: &RowKey| match key {
                    RowKey::Own { uid, seq } => self.store.own.get(&(uid.clone(), *seq)).cloned(),
                    RowKey::Shared { seq } => self.store.shared.get(seq).map(|(row, _)| row.clone()),
                };
                let found = keys.iter().map(row).collect();
                self.step(Input::Rows { token, found: Ok(At { applied: self.store.applied, found }) });
            }
            Effect::Append(letters) => {
                self.letters.extend(letters);
                self.step(Input::Appended);
            }
            Effect::Apply(write) => {
                assert_eq!(write.expected, self.store.applied);
                if write.reset {
                    self.store = Store::default();
                }
                self.store.applied = write.applied;
                for change in write.changes {
                    self.change(change);
                }
                self.step(Input::Applied(Ok(Applied::Done)));
            }
            Effect::Tell { news, .. } => self.news.extend(news),
            Effect::Answer { told, .. } => self.answers.push(told.unwrap()),
            Effect::Report(_) => {}
            Effect::Resign { .. } => self.resigned = true,
        }
    }

    fn change(&mut self, change: InboxChange) {
        match change {
            InboxChange::PutBox { uid, state: Some(state), .. } => drop(self.store.boxes.insert(uid, state)),
            InboxChange::PutBox { uid, state: None, .. } => drop(self.store.boxes.remove(&uid)),
            InboxChange::PutOwn { uid, seq, row } => drop(self.store.own.insert((uid, seq), row)),
            InboxChange::PutShared { seq, row, references } => {
                self.store.shared.entry(seq).or_insert((row, 0)).1 += references;
            }
            InboxChange::DropOwn { uid, seq } => {
                assert!(self.store.own.remove(&(uid, seq)).is_some(), "only what is there is dropped");
            }
            InboxChange::ReleaseShared { seq, references } => {
                let row = self.store.shared.get_mut(&seq).expect("only what is there is released");
                row.1 = row.1.checked_sub(references).expect("not more than there are");
                if row.1 == 0 {
                    self.store.shared.remove(&seq);
                }
            }
        }
    }

    /// Time passes: what is to be saved is.
    fn wait(&mut self, ms: i64) {
        self.now += ms;
        self.step(Input::Tick);
    }

    fn append(&mut self, task: &PushTask, body: &'static str) {
        let record = Record {
            key: None,
            value: Bytes::from_static(body.as_bytes()),
            headers: task.headers().take(),
            timestamp: Timestamp::from_millis(self.now),
        };
        self.log.push(StoredRecord { offset: self.log.len() as u64, record });
        if let Some(from) = self.reading.take() {
            self.perform(Effect::Read { from });
        }
    }

    fn push(&mut self, uids: &[&str], body: &'static str) {
        self.push_message(PushMessage { store: true, ..message(uids) }, body);
    }

    fn push_message(&mut self, message: PushMessage, body: &'static str) {
        self.append(&PushTask::Message(message), body);
    }

    fn arrive(&mut self, session: u64, who: &str, platform: &str, resume: Option<Resume>) {
        let arrival = self.arrival(session, who, platform, resume);
        self.from(vec![ToCarrier::Arrive(Box::new(arrival))]);
    }

    fn arrival(&self, session: u64, who: &str, platform: &str, resume: Option<Resume>) -> Arrival {
        let (platform, at) = (Platform::new(platform).unwrap(), Timestamp::from_millis(self.now));
        Arrival { session, uid: uid(who), platform, device: format!("d{session}").into(), resume, at }
    }

    fn from(&mut self, messages: Vec<ToCarrier>) {
        self.step(Input::From { gateway: GATEWAY, messages });
    }

    fn ack(&mut self, session: u64, who: &str, upto: u64) {
        self.from(vec![ToCarrier::Ack { session, uid: uid(who), upto }]);
    }

    fn gone(&mut self, session: u64, who: &str) {
        self.from(vec![ToCarrier::Gone { session, uid: uid(who) }]);
    }

    /// What a session was told since the last look, in short.
    fn told(&mut self, session: u64) -> Vec<String> {
        let (mine, others): (Vec<_>, Vec<_>) = self.news.drain(..).partition(|news| session_of(news) == session);
        self.news = others;
        mine.iter().map(short).collect()
    }
}

fn uid(name: &str) -> Uid {
    Uid::new(name).unwrap()
}

/// As devices of that user are told it.
fn epoch(who: &str) -> Box<str> {
    format!("{EPOCH}-{:08x}", super::folding::hash_of(who) as u32).into()
}

fn message(uids: &[&str]) -> PushMessage {
    PushMessage { id: "m".into(), uids: uids.iter().map(ToString::to_string).collect(), ..PushMessage::default() }
}

fn session_of(news: &ToGateway) -> u64 {
    match news {
        ToGateway::Admitted(admitted) => admitted.session,
        ToGateway::Rejected { session, .. }
        | ToGateway::Deliver(Delivery { session, .. })
        | ToGateway::Truncated { session, .. }
        | ToGateway::Lost { session, .. }
        | ToGateway::Kick { session, .. } => *session,
    }
}

fn short(news: &ToGateway) -> String {
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
                DeliveryPlace::Stored { seq, prev } => format!("{body} {seq} after {prev}{again}"),
                DeliveryPlace::Ephemeral { .. } => format!("{body} ephemeral"),
            }
        }
        ToGateway::Truncated { from, to, .. } => format!("lost {from} to {to}"),
        ToGateway::Lost { count, .. } => format!("lost {count}"),
        ToGateway::Kick { code, reason, .. } => format!("kick {} {reason}", code.word()),
    }
}

#[test]
fn a_stored_message_reaches_who_is_there_and_goes_when_it_is_acknowledged() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    assert_eq!(world.told(1), ["admitted anew at 0 head 0", "a 1 after 0"]);
    world.ack(1, "u", 1);
    world.wait(1_000);
    assert_eq!((world.store.applied, world.store.own.len()), (1, 0), "it never reached the store");
}

#[test]
fn who_was_away_gets_everything_in_order_when_back_and_then_what_is_new() {
    let mut world = World::new();
    for body in ["a", "b", "c", "d", "e", "f"] {
        world.push(&["u"], body);
    }
    world.wait(1_000);
    assert_eq!(world.store.own.len(), 6);
    world.arrive(1, "u", "web", None);
    assert_eq!(world.told(1)[1..], ["a 1 after 0", "b 2 after 1", "c 3 after 2", "d 4 after 3"], "its window is full");
    world.push(&["u"], "g");
    assert!(world.told(1).is_empty());
    world.ack(1, "u", 2);
    assert_eq!(world.told(1), ["e 5 after 4", "f 6 after 5"]);
    world.ack(1, "u", 6);
    assert_eq!(world.told(1), ["g 7 after 6"]);
    world.ack(1, "u", 7);
    world.wait(1_000);
    assert!(world.store.own.is_empty());
}

#[test]
fn resuming_goes_on_without_gap_or_repeat() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    ["a", "b", "c"].into_iter().for_each(|body| world.push(&["u"], body));
    world.told(1);
    // It has read all three, and its acknowledgement was lost with the connection.
    world.gone(1, "u");
    world.push(&["u"], "d");
    world.arrive(2, "u", "web", Some(Resume { epoch: epoch("u"), cursor: 3 }));
    assert_eq!(world.told(2), ["admitted resumed at 3 head 4", "d 4 after 3"]);
}

#[test]
fn a_strange_epoch_or_a_cursor_from_the_future_is_not_resumed() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.arrive(1, "u", "web", Some(Resume { epoch: "x".into(), cursor: 1 }));
    assert_eq!(world.told(1), ["admitted other_epoch at 0 head 1", "a 1 after 0"]);
    world.arrive(2, "u", "ios", Some(Resume { epoch: epoch("u"), cursor: 99 }));
    assert_eq!(world.told(2), ["admitted cursor_ahead at 0 head 1", "a 1 after 0"]);
}

#[test]
fn of_two_sessions_of_a_platform_the_newer_one_stays_and_the_older_one_is_told() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(1)[1], format!("kick replaced {}", super::admitting::REPLACED));
    world.push(&["u"], "a");
    assert_eq!((world.told(1).len(), world.told(2).len()), (0, 2));
}

#[test]
fn a_platform_that_rejects_lets_no_second_session_in() {
    let mut world = World::with(PlatformSettings { sessions: SessionsRule::Reject, ..PlatformSettings::default() });
    world.arrive(1, "u", "web", None);
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(2), ["rejected rejected"]);
    world.gone(1, "u");
    world.arrive(3, "u", "web", None);
    assert_eq!(world.told(3).len(), 1, "the place is free again");
}

#[test]
fn beyond_the_number_of_a_platform_with_many_the_oldest_goes() {
    let mut world = World::with(PlatformSettings { sessions: SessionsRule::Many(2), ..PlatformSettings::default() });
    for session in 1..=3 {
        world.wait(10);
        world.arrive(session, "u", "web", None);
    }
    assert_eq!(world.told(1).len(), 2);
    world.push(&["u"], "a");
    assert_eq!((world.told(2).len(), world.told(3).len()), (2, 2), "each device has a seat of its own");
}

#[test]
fn what_is_not_stored_reaches_who_is_there_and_nobody_later() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.push_message(message(&["u", "v"]), "x");
    assert_eq!(world.told(1)[1..], ["x ephemeral"]);
    world.arrive(2, "v", "web", None);
    assert_eq!(world.told(2).len(), 1);
    assert_eq!(world.core.counts.dropped, 1);
}

#[test]
fn a_body_sent_to_many_is_stored_once_and_goes_with_the_last_reference() {
    let mut world = World::new();
    world.push(&["u", "v", "w"], "a");
    world.wait(1_000);
    assert_eq!((world.store.shared.len(), world.store.own.len(), world.store.boxes.len()), (1, 0, 3));
    for (session, who) in [(1, "u"), (2, "v"), (3, "w")] {
        assert_eq!(world.store.shared.len(), 1);
        world.arrive(session, who, "web", None);
        assert_eq!(world.told(session)[1..], ["a 1 after 0"]);
        world.ack(session, who, 1);
        world.wait(1_000);
    }
    assert!(world.store.shared.is_empty());
}

#[test]
fn a_new_owner_goes_on_where_gateways_say_that_their_sessions_are() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    world.push(&["u"], "b");
    world.wait(1_000);
    world.push(&["u"], "c");
    world.told(1);
    let arrival = world.arrival(1, "u", "web", None);
    world.take_over();
    world.push(&["u"], "d");
    let announced = Announced { arrival, epoch: (&*epoch("u")).into(), sent: 2, acked: 1 };
    world.from(vec![ToCarrier::Announce(Box::new(announced))]);
    assert_eq!(world.told(1), ["c 3 after 2", "d 4 after 3"]);
    world.ack(1, "u", 4);
    world.wait(1_000);
    assert!(world.store.own.is_empty());
}

#[test]
fn a_seat_that_does_not_acknowledge_is_tried_again_and_then_closed() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    world.told(1);
    for pause in [1_000, 5_000, 30_000] {
        world.wait(10_000);
        let Some(Letter::Hold { task, due, .. }) = world.letters.pop() else { panic!("a retry is held") };
        assert_eq!(due.as_millis(), world.now + pause);
        world.wait(pause);
        world.append(&task, "");
        assert_eq!(world.told(1), ["a 1 after 0 again"]);
    }
    world.wait(10_000);
    assert_eq!(world.told(1).len(), 1, "it is closed");
    assert_eq!(world.core.counts.no_acks, 1);
    world.wait(1_000);
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(2)[1..], ["a 1 after 0"], "it is still stored");
}

#[test]
fn an_acknowledgement_ends_the_retries() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.push(&["u"], "a");
    world.wait(10_000);
    let Some(Letter::Hold { task, .. }) = world.letters.pop() else { panic!("a retry is held") };
    world.told(1);
    world.ack(1, "u", 1);
    world.append(&task, "");
    assert!(world.told(1).is_empty());
    world.wait(60_000);
    assert!(world.letters.is_empty());
}

#[test]
fn a_kick_says_why_and_is_for_whom_it_names() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.arrive(2, "u", "ios", None);
    let platform = Some(Platform::new("web").unwrap());
    let kick = PushKick { uid: "u".into(), platform, session: None, reason: "bye".into() };
    world.append(&PushTask::Kick(kick), "");
    assert_eq!((world.told(1)[1].as_str(), world.told(2).len()), ("kick kicked bye", 1));
    assert_eq!(CloseCode::Kicked.number(), 4002);
}

#[test]
fn who_lost_something_is_told_before_what_comes_after_it() {
    let mut world = World::with(PlatformSettings { max_stored: 2, ..PlatformSettings::default() });
    world.arrive(1, "u", "web", None);
    world.gone(1, "u");
    ["a", "b", "c", "d"].into_iter().for_each(|body| world.push(&["u"], body));
    world.wait(1_000);
    assert_eq!(world.store.own.len(), 2);
    world.arrive(2, "u", "web", None);
    assert_eq!(world.told(2)[1..], ["lost 1 to 2", "c 3 after 2", "d 4 after 3"]);
}

#[test]
fn sessions_of_a_gateway_that_died_are_over_at_once() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.step(Input::Living(Arc::new(vec![GATEWAY])));
    assert_eq!(world.core.sessions(), 1);
    world.step(Input::Living(Arc::new(Vec::new())));
    assert_eq!(world.core.sessions(), 0);
}

#[test]
fn a_notice_is_asked_for_at_once_where_nobody_is_there_and_later_where_nobody_answers() {
    let mut world = World::new();
    world.wait(10_000);
    let notify = Some(Notify { title: Some("t".into()), ..Notify::default() });
    world.push_message(PushMessage { store: true, notify: notify.clone(), ..message(&["u"]) }, "a");
    assert!(matches!(world.letters.pop(), Some(Letter::Notice(notice)) if notice.uid == "u"));
    world.arrive(1, "v", "web", None);
    world.push_message(PushMessage { store: true, notify, ..message(&["v"]) }, "b");
    let Some(Letter::Hold { task, .. }) = world.letters.pop() else { panic!("the notice is held") };
    world.append(&task, "");
    assert!(matches!(world.letters.pop(), Some(Letter::Notice(notice)) if notice.except_platforms.is_empty()));
    world.ack(1, "v", 2);
    world.append(&task, "");
    let Some(Letter::Notice(notice)) = world.letters.pop() else { panic!("other platforms have not acknowledged") };
    assert_eq!(notice.except_platforms, [Platform::new("web").unwrap()]);
}

#[test]
fn where_a_platform_has_many_devices_those_that_acknowledged_are_not_woken() {
    let mut world = World::with(PlatformSettings { sessions: SessionsRule::Many(3), ..PlatformSettings::default() });
    for session in 1..=2 {
        world.arrive(session, "u", "web", None);
    }
    let notify = Some(Notify { title: Some("t".into()), ..Notify::default() });
    for (platforms, seq) in [(None, 1), (Some(vec![Platform::new("web").unwrap()]), 3)] {
        let message = PushMessage { store: true, notify: notify.clone(), platforms, ..message(&["u"]) };
        world.push_message(message, "a");
        let Some(Letter::Hold { task, .. }) = world.letters.pop() else { panic!("the notice is held") };
        world.ack(1, "u", seq);
        world.append(&task, "");
        let Some(Letter::Notice(notice)) = world.letters.pop() else { panic!("one has not acknowledged") };
        let devices: Vec<&str> = notice.except_devices.iter().map(|each| each.device.as_str()).collect();
        assert_eq!((notice.except_platforms.len(), devices), (0, vec!["d1"]));
    }
}

#[test]
fn an_inbox_is_shown_as_it_was_accepted_when_it_was_asked_for() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.wait(1_000);
    let what = PeopleAsk::Inbox { uid: uid("u"), platform: None, after: 0, limit: 10 };
    world.step(Input::Asked { ask: 1, what, end: 2 });
    assert!(world.answers.is_empty(), "something was accepted that it must show");
    world.push(&["u"], "b");
    let Some(PeopleTold::Inbox(view)) = world.answers.pop() else { panic!("it is answered") };
    let bodies: Vec<&[u8]> = view.messages.iter().map(|shown| &*shown.message.payload).collect();
    assert_eq!((bodies, view.stored), (vec![&b"a"[..], b"b"], 2));
}

#[test]
fn a_wiped_inbox_is_empty() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.wait(1_000);
    world.append(&PushTask::Wipe { uid: "u".into() }, "");
    world.wait(1_000);
    assert!(world.store.own.is_empty() && world.store.shared.is_empty());
    world.arrive(1, "u", "web", None);
    assert_eq!(world.told(1).len(), 1);
}

#[test]
fn an_abandoned_inbox_is_reclaimed_unread() {
    let mut world = World::new();
    world.push_message(PushMessage { store: true, ttl_ms: Some(500), ..message(&["u"]) }, "a");
    world.wait(400);
    assert_eq!((world.store.boxes.len(), world.store.own.len()), (1, 1));
    world.wait(1_000);
    world.step(Input::Reclaimable(vec![uid("u")]));
    world.wait(1_000);
    assert_eq!((world.store.boxes.len(), world.store.own.len()), (0, 0));
    assert_eq!(world.core.users_in_memory(), 0);
}

#[test]
fn a_write_whose_outcome_nobody_knows_ends_the_tenure() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.now += 1_000;
    let effects = world.core.step(Timestamp::from_millis(world.now), Input::Tick);
    assert!(matches!(effects[..], [Effect::Apply(_)]));
    world.step(Input::Applied(Err(whimbrel_model::ports::InboxError::Unavailable("x".into()))));
    assert!(world.resigned);
}

#[test]
fn a_record_that_cannot_be_understood_is_a_dead_letter_and_stops_nothing() {
    let mut world = World::new();
    let headers = whimbrel_model::Headers::builder().push("whimbrel-push", b"{").take();
    let record = Record { key: None, value: Bytes::new(), headers, timestamp: Timestamp::from_millis(0) };
    world.log.push(StoredRecord { offset: 0, record });
    world.push(&["u"], "a");
    assert!(matches!(world.letters[..], [Letter::Dead { offset: 0, .. }]));
    world.wait(1_000);
    assert_eq!(world.store.applied, 2);
}

impl World {
    /// What happens, with what is to be done about it left undone.
    fn only(&mut self, input: Input) -> Vec<Effect> {
        self.core.step(Timestamp::from_millis(self.now), input)
    }

    fn perform_all(&mut self, effects: Vec<Effect>) {
        effects.into_iter().for_each(|effect| self.perform(effect));
    }

    fn announce(&self, session: u64, who: &str, platform: &str, sent: u64, acked: u64) -> Input {
        let arrival = self.arrival(session, who, platform, None);
        let announced = Announced { arrival, epoch: (&*epoch("u")).into(), sent, acked };
        Input::From { gateway: GATEWAY, messages: vec![ToCarrier::Announce(Box::new(announced))] }
    }
}

#[test]
fn a_platform_that_keeps_nothing_is_not_sent_what_is_stored_for_others() {
    let mut world = World::with(PlatformSettings { store: false, ..PlatformSettings::default() });
    world.push(&["u"], "a");
    world.arrive(1, "u", "web", None);
    assert_eq!(world.told(1).len(), 1, "it is admitted, and that is all");
}

#[test]
fn what_expires_while_a_seat_is_behind_is_told_before_what_comes_after_it() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    ["a", "b", "c", "d"].into_iter().for_each(|body| world.push(&["u"], body));
    world.push_message(PushMessage { store: true, ttl_ms: Some(500), ..message(&["u"]) }, "e");
    world.push(&["u"], "f");
    world.wait(1_000);
    world.told(1);
    world.ack(1, "u", 4);
    assert_eq!(world.told(1), ["lost 5 to 5", "f 6 after 5"]);
}

#[test]
fn an_acknowledgement_that_overtakes_its_sessions_announcement_counts() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.push(&["u"], "b");
    world.wait(1_000);
    world.take_over();
    let announced = world.announce(1, "u", "web", 2, 0);
    let effects = world.only(announced);
    assert!(matches!(effects[..], [Effect::Load { .. }]), "its box is asked for");
    world.ack(1, "u", 2);
    world.perform_all(effects);
    world.wait(1_000);
    assert!(world.store.own.is_empty());
}

#[test]
fn a_box_that_is_being_written_stays_in_memory() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.now += 1_000;
    let writing = world.only(Input::Tick);
    assert!(matches!(writing[..], [Effect::Apply(_)]));
    let what = PeopleAsk::Inbox { uid: uid("u"), platform: None, after: 0, limit: 10 };
    world.step(Input::Asked { ask: 1, what, end: 1 });
    assert_eq!(world.core.users_in_memory(), 1, "the store could still say that it has none");
    world.perform_all(writing);
    assert_eq!(world.core.users_in_memory(), 0);
}

#[test]
fn a_gateway_that_speaks_before_it_is_shown_is_not_taken_for_dead() {
    let mut world = World::new();
    world.arrive(1, "u", "web", None);
    world.step(Input::Living(Arc::new(Vec::new())));
    assert_eq!(world.core.sessions(), 1);
    world.now += 10_000;
    world.step(Input::Living(Arc::new(Vec::new())));
    assert_eq!(world.core.sessions(), 0, "it had its time to be shown");
}

#[test]
fn a_store_that_has_fallen_back_is_not_believed() {
    let mut world = World::new();
    world.push(&["u"], "a");
    world.wait(1_000);
    let arrival = world.arrival(1, "u", "web", None);
    let messages = vec![ToCarrier::Arrive(Box::new(arrival))];
    let effects = world.only(Input::From { gateway: GATEWAY, messages });
    assert!(matches!(effects[..], [Effect::Load { .. }]));
    world.step(Input::Loaded(Ok(At { applied: 0, found: vec![None] })));
    assert!(world.resigned && world.told(1).is_empty());
}

#[test]
fn a_page_of_before_an_announcement_is_not_what_comes_next() {
    let mut world = World::new();
    world.arrive(9, "u", "ios", None);
    ["a", "b", "c", "d"].into_iter().for_each(|body| world.push(&["u"], body));
    world.wait(1_000);
    let arrival = world.arrival(1, "u", "web", None);
    let mut effects =
        world.only(Input::From { gateway: GATEWAY, messages: vec![ToCarrier::Arrive(Box::new(arrival))] });
    let row = |world: &World, seq: u64| world.store.own.get(&(uid("u"), seq)).cloned();
    let Some(Effect::Rows { token, .. }) = effects.pop() else { panic!("a page is asked for") };
    let found = (1..=3).map(|seq| row(&world, seq)).collect();
    let mut effects = world.only(Input::Rows { token, found: Ok(At { applied: 4, found }) });
    let Some(Effect::Rows { token: second, .. }) = effects.pop() else { panic!("and the next one") };
    // What came after the first message was lost on the way.
    let announced = world.announce(1, "u", "web", 1, 0);
    let third = world.only(announced);
    world.step(Input::Rows { token: second, found: Ok(At { applied: 4, found: vec![row(&world, 4)] }) });
    assert!(world.told(1).is_empty());
    world.perform_all(third);
    assert_eq!(world.told(1), ["b 2 after 1", "c 3 after 2", "d 4 after 3"]);
}

#[test]
fn what_an_earlier_owner_still_sent_may_be_acknowledged() {
    let mut world = World::new();
    world.arrive(9, "u", "ios", None);
    world.push(&["u"], "a");
    world.wait(1_000);
    let announced = world.announce(1, "u", "web", 0, 0);
    let reading = world.only(announced);
    world.ack(1, "u", 1);
    world.ack(9, "u", 1);
    world.perform_all(reading);
    world.wait(1_000);
    assert!(world.told(1).is_empty() && world.store.own.is_empty());
}
