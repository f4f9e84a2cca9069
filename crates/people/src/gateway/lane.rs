//! The connections of one thread, and the one task that works for all of them.
//!
//! Whoever has something for a lane puts it into its inbox and wakes the task, once for however much is put. The task hands deliveries to
//! their sessions and writes each session's once per batch; passes on what sessions say to carriers and presence, in order; and turns
//! the wheel. A lane lives as long as its thread's runtime.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{OnlineSession, SessionId, Uid};
use whimbrel_model::ports::{DeliveryPlace, Tenure, ToCarrier, ToGateway};

use super::session::Session;
use super::shared::Shared;
use super::wheel::{TICK, Tick, Wheel};

/// Bits of a session's number that say which lane it is of.
const LANE_BITS: u32 = 16;
/// Lanes that a gateway may have in its life.
pub(super) const LANES_MAX: usize = 1 << LANE_BITS;
/// News that wait for a lane; beyond, ephemeral messages are dropped. Stored ones are bounded by the carriers' windows.
const NEWS_WAITING_MAX: usize = 1 << 18;
/// Messages that a carrier is told at once.
const TOLD_AT_ONCE_MAX: usize = 1024;

/// What sessions leave to their lane, in order.
pub(super) enum Outgoing {
    /// The session's owner is told of it, as it stands then.
    Introduce(u64),
    Tell(u32, ToCarrier),
    Came(u64),
    Went(Uid, u64, Timestamp),
}

/// Whose sessions are introduced again.
pub(super) enum Again {
    All,
    /// Those of partitions whose tenure is another than the one that they were introduced in.
    NewTenures,
}

pub(super) struct Lane {
    pub(super) shared: Arc<Shared>,
    pub(super) runtime: Handle,
    index: u64,
    counter: AtomicU64,
    sessions: Mutex<Sessions>,
    inbox: Mutex<Inbox>,
    wake: Notify,
    wheel: Mutex<Wheel>,
    is_alive: AtomicBool,
}

type Sessions = HashMap<u64, Arc<Session>, foldhash::fast::RandomState>;

#[derive(Default)]
struct Inbox {
    news: Vec<ToGateway>,
    outgoing: Vec<Outgoing>,
    again: Vec<Again>,
    is_going_away: bool,
}

thread_local! {
    /// The lanes of this thread: one for each gateway, which is one but in tests.
    static HERE: RefCell<Vec<Weak<Lane>>> = const { RefCell::new(Vec::new()) };
}

/// Which lane a session is of.
pub(super) fn lane_of(session: u64) -> usize {
    (session & (LANES_MAX as u64 - 1)) as usize
}

/// Whom news is about.
pub(super) fn session_of(news: &ToGateway) -> u64 {
    match news {
        ToGateway::Admitted(admitted) => admitted.session,
        ToGateway::Deliver(delivery) => delivery.session,
        ToGateway::Rejected { session, .. }
        | ToGateway::Truncated { session, .. }
        | ToGateway::Lost { session, .. }
        | ToGateway::Kick { session, .. } => *session,
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    /// The lane of this thread; `make` gives a new one its index, or refuses.
    pub(super) fn here(
        shared: &Arc<Shared>,
        make: impl FnOnce(&dyn Fn(usize) -> Arc<Self>) -> Option<Arc<Self>>,
    ) -> Option<Arc<Self>> {
        HERE.with_borrow_mut(|lanes| {
            lanes.retain(|lane| lane.upgrade().is_some_and(|lane| lane.is_alive.load(Ordering::Relaxed)));
            let is_ours = |lane: &Arc<Self>| Arc::ptr_eq(&lane.shared, shared);
            if let Some(lane) = lanes.iter().filter_map(Weak::upgrade).find(is_ours) {
                return Some(lane);
            }
            let lane = make(&|index| Self::new(Arc::clone(shared), index))?;
            lanes.push(Arc::downgrade(&lane));
            lane.runtime.spawn(run(Arc::clone(&lane)));
            Some(lane)
        })
    }

    fn new(shared: Arc<Shared>, index: usize) -> Arc<Self> {
        let wheel = Wheel::new(shared.now());
        Arc::new(Self {
            shared,
            runtime: Handle::current(),
            index: index as u64,
            counter: AtomicU64::new(1),
            sessions: Mutex::default(),
            inbox: Mutex::default(),
            wake: Notify::new(),
            wheel: Mutex::new(wheel),
            is_alive: AtomicBool::new(true),
        })
    }

    /// A number that no other session of this gateway has had.
    pub(super) fn next_number(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed) << LANE_BITS | self.index
    }

    pub(super) fn add(&self, session: &Arc<Session>) {
        locked(&self.sessions).insert(session.number, Arc::clone(session));
    }

    pub(super) fn remove(&self, number: u64) {
        locked(&self.sessions).remove(&number);
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<Session>> {
        locked(&self.sessions).get(&number).cloned()
    }

    fn all(&self) -> Vec<Arc<Session>> {
        locked(&self.sessions).values().cloned().collect()
    }

    /// Everybody who was let in.
    pub(super) fn picture(&self) -> Vec<(Uid, OnlineSession)> {
        self.all().iter().filter_map(|session| self.shown(session)).collect()
    }

    pub(super) fn schedule(&self, number: u64, at: Tick) {
        locked(&self.wheel).put(number, at);
    }

    pub(super) fn say(&self, outgoing: Outgoing) {
        locked(&self.inbox).outgoing.push(outgoing);
        self.wake.notify_one();
    }

    /// Takes news of this lane's sessions, in order. Never blocks.
    pub(super) fn take(&self, news: impl IntoIterator<Item = ToGateway>) {
        let mut dropped = Vec::new();
        {
            let mut inbox = locked(&self.inbox);
            for one in news {
                let is_ephemeral = matches!(&one, ToGateway::Deliver(delivery) if matches!(delivery.place, DeliveryPlace::Ephemeral { .. }));
                if is_ephemeral && inbox.news.len() >= NEWS_WAITING_MAX {
                    dropped.push(session_of(&one));
                } else {
                    inbox.news.push(one);
                }
            }
        }
        for session in dropped.into_iter().filter_map(|number| self.get(number)) {
            session.drop_one();
        }
        self.wake.notify_one();
    }

    pub(super) fn introduce_again(&self, again: Again) {
        locked(&self.inbox).again.push(again);
        self.wake.notify_one();
    }

    pub(super) fn go_away(&self) {
        locked(&self.inbox).is_going_away = true;
        self.wake.notify_one();
    }

    fn shown(&self, session: &Session) -> Option<(Uid, OnlineSession)> {
        let gateway = self.shared.id()?;
        let state = session.lock();
        let who = state.who.as_ref().filter(|who| who.epoch.is_some())?;
        let shown = OnlineSession {
            session: SessionId { gateway, number: session.number },
            platform: who.platform.clone(),
            device: who.device.clone(),
            since: who.at,
        };
        Some((who.uid.clone(), shown))
    }

    /// Hands news to their sessions, and writes to each session once.
    fn spread(&self, news: Vec<ToGateway>) {
        let now = self.shared.now();
        let mut dirty = Vec::new();
        for one in news {
            let Some(session) = self.get(session_of(&one)) else { continue };
            session.take_news(one, now);
            let is_first = !std::mem::replace(&mut session.lock().is_dirty, true);
            if is_first {
                dirty.push(session);
            }
        }
        for session in dirty {
            let state = &mut *session.lock();
            state.is_dirty = false;
            session.flush(state, now);
        }
    }

    /// Those that have to be introduced again.
    fn again(&self, again: &Again) -> Vec<Outgoing> {
        let tenures = self.shared.tenures.borrow().clone();
        let is_meant = |session: &Arc<Session>| {
            let mut state = session.lock();
            let Some(who) = &mut state.who else { return false };
            if matches!(again, Again::All) {
                // Whom they were introduced to knew another incarnation.
                who.told = None;
                return true;
            }
            let tenure = number_of(&tenures, who.partition);
            tenure.is_some() && who.told != tenure
        };
        self.all().into_iter().filter(is_meant).map(|session| Outgoing::Introduce(session.number)).collect()
    }

    /// Passes on what sessions said. Returns those whose owner could not be told of them.
    fn pass_on(&self, outgoing: Vec<Outgoing>) -> Vec<u64> {
        let tenures = self.shared.tenures.borrow().clone();
        let mut told: HashMap<u32, Told, foldhash::fast::RandomState> = HashMap::default();
        for one in outgoing {
            match one {
                Outgoing::Introduce(number) => {
                    let Some(session) = self.get(number) else { continue };
                    let state = &mut *session.lock();
                    let Some(who) = &state.who else { continue };
                    let partition = who.partition;
                    let tenure = number_of(&tenures, partition);
                    if tenure.is_some() && who.told == tenure {
                        continue;
                    }
                    if let Some((_, message)) = state.introduction(number, tenure) {
                        let told = told.entry(partition).or_default();
                        told.introduced.push(number);
                        told.messages.push(message);
                    }
                }
                Outgoing::Tell(partition, message) => told.entry(partition).or_default().messages.push(message),
                Outgoing::Came(number) => {
                    if let Some((uid, shown)) = self.get(number).and_then(|session| self.shown(&session)) {
                        self.shared.reporter.came(&uid, shown);
                    }
                }
                Outgoing::Went(uid, number, at) => {
                    if let Some(gateway) = self.shared.id() {
                        self.shared.reporter.went(&uid, SessionId { gateway, number }, at);
                    }
                }
            }
        }
        let mut untold = Vec::new();
        for (partition, told) in told {
            if !self.tell(partition, told.messages) {
                for session in told.introduced.iter().filter_map(|number| self.get(*number)) {
                    session.lock().who.iter_mut().for_each(|who| who.told = None);
                }
                untold.extend(told.introduced);
            }
        }
        untold
    }

    /// `false` where not everything was taken. Acks and goodbyes that are lost are made good by the next owner's introductions.
    fn tell(&self, partition: u32, messages: Vec<ToCarrier>) -> bool {
        let Some(id) = self.shared.id() else { return false };
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let some: Vec<_> = messages.by_ref().take(TOLD_AT_ONCE_MAX).collect();
            if self.shared.carriers.tell(partition, id, some).is_err() {
                return false;
            }
        }
        true
    }

    fn turn_wheel(&self) {
        let now = self.shared.now();
        let due = locked(&self.wheel).take_due(now);
        for session in due.into_iter().filter_map(|number| self.get(number)) {
            session.check(now);
        }
    }
}

/// The number of a partition's tenure, where somebody has it.
fn number_of(tenures: &[Option<Tenure>], partition: u32) -> Option<u64> {
    tenures.get(partition as usize).copied().flatten().map(|tenure| tenure.number)
}

#[derive(Default)]
struct Told {
    introduced: Vec<u64>,
    messages: Vec<ToCarrier>,
}

/// Notes that the runtime is gone, so that nobody is given to a lane that does nothing.
struct Alive(Arc<Lane>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.is_alive.store(false, Ordering::Relaxed);
    }
}

async fn run(lane: Arc<Lane>) {
    let alive = Alive(lane);
    let lane = &alive.0;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut untold: Vec<u64> = Vec::new();
    loop {
        tokio::select! {
            () = lane.wake.notified() => {}
            _ = ticks.tick() => {
                lane.turn_wheel();
                let again = std::mem::take(&mut untold).into_iter().map(Outgoing::Introduce);
                locked(&lane.inbox).outgoing.extend(again);
            }
        }
        let Inbox { news, again, is_going_away, .. } = {
            let mut inbox = locked(&lane.inbox);
            let outgoing = std::mem::take(&mut inbox.outgoing);
            let taken = std::mem::take(&mut *inbox);
            inbox.outgoing = outgoing;
            taken
        };
        lane.spread(news);
        if is_going_away {
            let now = lane.shared.now();
            lane.all().iter().for_each(|session| session.go_away(now));
        }
        let again: Vec<_> = again.iter().flat_map(|again| lane.again(again)).collect();
        let mut outgoing = std::mem::take(&mut locked(&lane.inbox).outgoing);
        outgoing.extend(again);
        untold.extend(lane.pass_on(outgoing));
    }
}
