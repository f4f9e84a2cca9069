//! A lane: the connections of one thread, and the task that works for all of them.
//!
//! Other threads put messages into a lane's queue and wake its task, once per batch. The task hands deliveries to their sessions and
//! flushes each session once per batch. It passes messages of sessions on to carriers and presence, in order, and turns the wheel. A
//! lane lives as long as its thread's runtime.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{OnlineSession, SessionId, Uid};
use whimbrel_model::ports::{DeliveryPosition, OwnerLink, ToCarrier, ToGateway};

use super::session::DeviceSession;
use super::shared::GatewayContext;
use super::wheel::{CheckWheel, TICK, Tick};

/// Bits of a session's number that identify the lane.
const LANE_BITS: u32 = 16;
/// Lanes that a gateway may have in its lifetime.
pub(super) const LANES_MAX: usize = 1 << LANE_BITS;
/// Messages that wait for a lane, at most; beyond, ephemeral ones are dropped. Windows of the carriers bound the stored ones.
const QUEUED_MESSAGES_MAX: usize = 1 << 18;
/// Messages in one call to a carrier, at most.
const MESSAGES_PER_CALL_MAX: usize = 1024;

/// An item from a session to its lane, in order.
pub(super) enum LaneItem {
    /// Introduce the session to its owner, with the state at that time.
    Introduce(u64),
    Tell(u32, ToCarrier),
    Came(u64),
    Went(Uid, u64, Timestamp),
}

pub(super) enum Reannouncement {
    All,
    /// Those of partitions with another owner link than at their last introduction.
    NewTenures,
}

pub(super) struct GatewayLane {
    pub(super) shared: Arc<GatewayContext>,
    pub(super) runtime: Handle,
    index: u64,
    counter: AtomicU64,
    sessions: Mutex<SessionMap>,
    queue: Mutex<LaneQueue>,
    wake: Notify,
    wheel: Mutex<CheckWheel>,
    is_alive: AtomicBool,
}

type SessionMap = HashMap<u64, Arc<DeviceSession>, foldhash::fast::RandomState>;

#[derive(Default)]
struct LaneQueue {
    news: Vec<ToGateway>,
    outgoing: Vec<LaneItem>,
    again: Vec<Reannouncement>,
    is_going_away: bool,
}

thread_local! {
    /// The lanes of this thread, one per gateway. Only tests have several gateways.
    static HERE: RefCell<Vec<Weak<GatewayLane>>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn lane_of(session: u64) -> usize {
    (session & (LANES_MAX as u64 - 1)) as usize
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GatewayLane {
    /// The lane of this thread. `make` assigns a new lane its index, or returns `None`.
    pub(super) fn here(
        shared: &Arc<GatewayContext>,
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

    fn new(shared: Arc<GatewayContext>, index: usize) -> Arc<Self> {
        let wheel = CheckWheel::new(shared.now());
        Arc::new(Self {
            shared,
            runtime: Handle::current(),
            index: index as u64,
            counter: AtomicU64::new(1),
            sessions: Mutex::default(),
            queue: Mutex::default(),
            wake: Notify::new(),
            wheel: Mutex::new(wheel),
            is_alive: AtomicBool::new(true),
        })
    }

    /// A number that no other session of this gateway has had.
    pub(super) fn next_number(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed) << LANE_BITS | self.index
    }

    pub(super) fn add(&self, session: &Arc<DeviceSession>) {
        locked(&self.sessions).insert(session.number, Arc::clone(session));
    }

    pub(super) fn remove(&self, number: u64) {
        locked(&self.sessions).remove(&number);
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<DeviceSession>> {
        locked(&self.sessions).get(&number).cloned()
    }

    fn all(&self) -> Vec<Arc<DeviceSession>> {
        locked(&self.sessions).values().cloned().collect()
    }

    pub(super) fn sessions(&self) -> Vec<(Uid, OnlineSession)> {
        self.all().iter().filter_map(|session| self.shown(session)).collect()
    }

    pub(super) fn schedule(&self, number: u64, at: Tick) {
        locked(&self.wheel).put(number, at);
    }

    pub(super) fn push_item(&self, outgoing: LaneItem) {
        locked(&self.queue).outgoing.push(outgoing);
        self.wake.notify_one();
    }

    /// Queues messages for this lane's sessions, in order. Never blocks.
    pub(super) fn take(&self, news: impl IntoIterator<Item = ToGateway>) {
        let mut dropped = Vec::new();
        {
            let mut queue = locked(&self.queue);
            for one in news {
                let is_ephemeral = matches!(&one, ToGateway::Deliver(delivery) if matches!(delivery.place, DeliveryPosition::Ephemeral { .. }));
                if is_ephemeral && queue.news.len() >= QUEUED_MESSAGES_MAX {
                    dropped.push(one.session());
                } else {
                    queue.news.push(one);
                }
            }
        }
        for session in dropped.into_iter().filter_map(|number| self.get(number)) {
            session.drop_one();
        }
        self.wake.notify_one();
    }

    pub(super) fn introduce_again(&self, again: Reannouncement) {
        locked(&self.queue).again.push(again);
        self.wake.notify_one();
    }

    pub(super) fn go_away(&self) {
        locked(&self.queue).is_going_away = true;
        self.wake.notify_one();
    }

    fn shown(&self, session: &DeviceSession) -> Option<(Uid, OnlineSession)> {
        let gateway = self.shared.id()?;
        let state = session.lock();
        let identity = state.identity.as_ref().filter(|identity| identity.epoch.is_some())?;
        let shown = OnlineSession {
            session: SessionId { gateway, number: session.number },
            platform: identity.platform.clone(),
            device: identity.device.clone(),
            since: identity.at,
        };
        Some((identity.uid.clone(), shown))
    }

    /// Hands messages to their sessions and flushes each session once.
    fn spread(&self, news: Vec<ToGateway>) {
        let now = self.shared.now();
        let mut dirty = Vec::new();
        for one in news {
            let Some(session) = self.get(one.session()) else { continue };
            session.take_message(one, now);
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

    fn to_introduce(&self, again: &Reannouncement) -> Vec<LaneItem> {
        let owner_links = self.shared.owner_links.borrow().clone();
        let is_meant = |session: &Arc<DeviceSession>| {
            let mut state = session.lock();
            let Some(identity) = &mut state.identity else { return false };
            if matches!(again, Reannouncement::All) {
                // The owners know these sessions under another incarnation.
                identity.announced_in = None;
                return true;
            }
            let owner_link = number_of(&owner_links, identity.partition);
            owner_link.is_some() && identity.announced_in != owner_link
        };
        self.all().into_iter().filter(is_meant).map(|session| LaneItem::Introduce(session.number)).collect()
    }

    /// Passes items of sessions on. Returns the sessions whose owner could not be reached.
    fn pass_on(&self, outgoing: Vec<LaneItem>) -> Vec<u64> {
        let owner_links = self.shared.owner_links.borrow().clone();
        let mut told: HashMap<u32, CarrierBatch, foldhash::fast::RandomState> = HashMap::default();
        for one in outgoing {
            match one {
                LaneItem::Introduce(number) => {
                    let Some(session) = self.get(number) else { continue };
                    let state = &mut *session.lock();
                    let Some(identity) = &state.identity else { continue };
                    let partition = identity.partition;
                    let owner_link = number_of(&owner_links, partition);
                    if owner_link.is_some() && identity.announced_in == owner_link {
                        continue;
                    }
                    if let Some((_, message)) = state.introduction(number, owner_link) {
                        let told = told.entry(partition).or_default();
                        told.introduced.push(number);
                        told.messages.push(message);
                    }
                }
                LaneItem::Tell(partition, message) => told.entry(partition).or_default().messages.push(message),
                LaneItem::Came(number) => {
                    if let Some((uid, shown)) = self.get(number).and_then(|session| self.shown(&session)) {
                        self.shared.reporter.session_started(&uid, shown);
                    }
                }
                LaneItem::Went(uid, number, at) => {
                    if let Some(gateway) = self.shared.id() {
                        self.shared.reporter.session_ended(&uid, SessionId { gateway, number }, at);
                    }
                }
            }
        }
        let mut untold = Vec::new();
        for (partition, told) in told {
            if !self.tell(partition, told.messages) {
                for session in told.introduced.iter().filter_map(|number| self.get(*number)) {
                    session.lock().identity.iter_mut().for_each(|identity| identity.announced_in = None);
                }
                untold.extend(told.introduced);
            }
        }
        untold
    }

    /// `false` if not everything was sent. Introductions to the next owner make up for lost acknowledgements and departures.
    fn tell(&self, partition: u32, messages: Vec<ToCarrier>) -> bool {
        let Some(id) = self.shared.id() else { return false };
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let some: Vec<_> = messages.by_ref().take(MESSAGES_PER_CALL_MAX).collect();
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

/// The number of a partition's owner link, if the partition has an owner.
fn number_of(owner_links: &[Option<OwnerLink>], partition: u32) -> Option<u64> {
    owner_links.get(partition as usize).copied().flatten().map(|owner_link| owner_link.number)
}

#[derive(Default)]
struct CarrierBatch {
    introduced: Vec<u64>,
    messages: Vec<ToCarrier>,
}

/// Marks the lane as dead when its runtime ends, so that no session is assigned to it.
struct AliveGuard(Arc<GatewayLane>);

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.is_alive.store(false, Ordering::Relaxed);
    }
}

async fn run(lane: Arc<GatewayLane>) {
    let alive = AliveGuard(lane);
    let lane = &alive.0;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut untold: Vec<u64> = Vec::new();
    loop {
        tokio::select! {
            () = lane.wake.notified() => {}
            _ = ticks.tick() => {
                lane.turn_wheel();
                let again = std::mem::take(&mut untold).into_iter().map(LaneItem::Introduce);
                locked(&lane.queue).outgoing.extend(again);
            }
        }
        let LaneQueue { news, again, is_going_away, .. } = {
            let mut queue = locked(&lane.queue);
            let outgoing = std::mem::take(&mut queue.outgoing);
            let taken = std::mem::take(&mut *queue);
            queue.outgoing = outgoing;
            taken
        };
        lane.spread(news);
        if is_going_away {
            let now = lane.shared.now();
            lane.all().iter().for_each(|session| session.go_away(now));
        }
        let again: Vec<_> = again.iter().flat_map(|again| lane.to_introduce(again)).collect();
        let mut outgoing = std::mem::take(&mut locked(&lane.queue).outgoing);
        outgoing.extend(again);
        untold.extend(lane.pass_on(outgoing));
    }
}
