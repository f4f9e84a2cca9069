//! The sessions of one shard and what news does to them. Pure: the time is passed in.
//!
//! Made to be small: a session costs a slot of its user, an entry of its own and a slot of its gateway's; its platform's name is shared by
//! all that are of it, as far as names are kept, its user's id by both slots. What is remembered of those that are gone is bounded.

use std::collections::{HashMap, HashSet, VecDeque};

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid};
use whimbrel_model::ports::{SessionNews, UserChange, UserSessions};

/// How long it is remembered that a session is gone, so that late news of its coming loses: longer than gateways keep packets to be
/// asked for again.
const GONE_KEPT_MS: i64 = 120_000;
/// Sessions that are remembered to be gone; beyond, the oldest are forgotten sooner.
const GONE_MAX: usize = 1 << 18;
/// Users of whom nothing but the time they were last seen is remembered; beyond, the oldest are forgotten.
const LEFT_MAX: usize = 1 << 16;

/// Names of platforms that are kept once for all sessions of theirs. A session of a further one has its own: devices may say any name.
const PLATFORMS_ALIKE_MAX: usize = 4096;

/// One shard.
#[derive(Default)]
pub(super) struct Shard {
    users: HashMap<Uid, User>,
    gateways: HashMap<GatewayId, Gateway>,
    /// By node, the newest incarnation that is void: earlier ones are too.
    void: HashMap<u16, u64>,
    /// At most [`PLATFORMS_ALIKE_MAX`]: they are never forgotten.
    platforms: HashSet<Platform>,
    gone: HashMap<SessionId, u64>,
    /// When each became gone, the oldest first.
    gone_since: VecDeque<(i64, SessionId)>,
    /// Users without sessions by when they were left, the oldest first. Those who came back since are still in it.
    left: VecDeque<(Uid, Timestamp)>,
    /// Of the last step.
    version: u64,
}

#[derive(Default)]
struct User {
    sessions: Box<[Held]>,
    last_seen: Option<Timestamp>,
    /// Whether the last step that touched the user told that it is online.
    was_told_online: bool,
}

struct Held {
    session: SessionId,
    version: u64,
    since: Timestamp,
    platform: Platform,
    device: Box<str>,
}

#[derive(Default)]
struct Gateway {
    /// The version of its last whole picture.
    picture: u64,
    /// By the session's number, whose it is.
    sessions: HashMap<u64, Uid>,
}

/// The users that a step touches, in the order of first mention, and what was last told of each.
#[derive(Default)]
struct Touched {
    order: Vec<(Uid, bool)>,
    seen: HashSet<Uid>,
}

impl Touched {
    fn add(&mut self, users: &HashMap<Uid, User>, uid: &Uid) {
        if self.seen.insert(uid.clone()) {
            let was_online = users.get(uid).is_some_and(|user| user.was_told_online);
            self.order.push((uid.clone(), was_online));
        }
    }
}

impl Shard {
    pub fn put(&mut self, news: Vec<SessionNews>, now: Timestamp) -> Vec<UserChange> {
        self.forget_gone(now);
        let mut touched = Touched::default();
        for SessionNews { uid, version, session, gone_at } in news {
            touched.add(&self.users, &uid);
            let gateway = session.session.gateway;
            if self.is_void(gateway) || version < self.gateways.get(&gateway).map_or(0, |gateway| gateway.picture) {
                continue;
            }
            match gone_at {
                None => self.come(&uid, session, version),
                Some(at) => self.go(&uid, session.session, version, at, now),
            }
        }
        self.told(touched, now)
    }

    pub fn replace(
        &mut self,
        gateway: GatewayId,
        version: u64,
        sessions: Vec<(Uid, OnlineSession)>,
        now: Timestamp,
    ) -> Vec<UserChange> {
        self.forget_gone(now);
        if self.is_void(gateway) || self.gateways.get(&gateway).is_some_and(|known| known.picture > version) {
            return Vec::new();
        }
        self.gateways.entry(gateway).or_default().picture = version;
        let mut touched = Touched::default();
        let mut listed = HashSet::with_capacity(sessions.len());
        for (uid, session) in sessions {
            if session.session.gateway == gateway {
                touched.add(&self.users, &uid);
                listed.insert(session.session.number);
                self.come(&uid, session, version);
            }
        }
        let known = self.gateways.get(&gateway).map(|gateway| &gateway.sessions).into_iter().flatten();
        let mut unlisted: Vec<(u64, Uid)> =
            known.filter(|(number, _)| !listed.contains(number)).map(|(number, uid)| (*number, uid.clone())).collect();
        unlisted.sort_unstable_by_key(|(number, _)| *number);
        for (number, uid) in unlisted {
            let session = SessionId { gateway, number };
            if self.version_of(&uid, session).is_some_and(|known| known < version) {
                touched.add(&self.users, &uid);
                self.go(&uid, session, version, now, now);
            }
        }
        self.told(touched, now)
    }

    pub fn void(&mut self, gateway: GatewayId) {
        let newest = self.void.entry(gateway.node).or_insert(gateway.incarnation);
        *newest = gateway.incarnation.max(*newest);
    }

    pub fn sweep(&mut self, limit: usize, now: Timestamp) -> Vec<UserChange> {
        let mut void: Vec<GatewayId> = self.gateways.keys().copied().filter(|gateway| self.is_void(*gateway)).collect();
        void.sort_unstable();
        let (mut touched, mut left) = (Touched::default(), limit);
        for gateway in void {
            let known = self.gateways.get(&gateway).map(|gateway| &gateway.sessions).into_iter().flatten();
            let swept: Vec<(u64, Uid)> = known.take(left).map(|(number, uid)| (*number, uid.clone())).collect();
            left -= swept.len();
            for (number, uid) in swept {
                touched.add(&self.users, &uid);
                self.remove(&uid, SessionId { gateway, number });
                self.seen(&uid, now);
            }
            if self.gateways.get(&gateway).is_some_and(|gateway| gateway.sessions.is_empty()) {
                self.gateways.remove(&gateway);
            }
        }
        self.told(touched, now)
    }

    pub fn gateways(&self) -> Vec<GatewayId> {
        let live = self.gateways.iter().filter(|(id, gateway)| !gateway.sessions.is_empty() && !self.is_void(**id));
        let mut ids: Vec<GatewayId> = live.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    pub fn of(&self, uid: &Uid) -> UserSessions {
        let Some(user) = self.users.get(uid) else { return UserSessions::default() };
        let live = user.sessions.iter().filter(|held| !self.is_void(held.session.gateway));
        let mut sessions: Vec<OnlineSession> = live.map(Held::shown).collect();
        sessions.sort_unstable_by_key(|session| (session.since, session.session));
        UserSessions { sessions, last_seen: user.last_seen }
    }

    fn is_void(&self, gateway: GatewayId) -> bool {
        self.void.get(&gateway.node).is_some_and(|newest| gateway.incarnation <= *newest)
    }

    fn version_of(&self, uid: &Uid, session: SessionId) -> Option<u64> {
        let user = self.users.get(uid)?;
        user.sessions.iter().find(|held| held.session == session).map(|held| held.version)
    }

    fn come(&mut self, uid: &Uid, session: OnlineSession, version: u64) {
        let id = session.session;
        if self.gone.get(&id).is_some_and(|gone| *gone >= version) {
            return;
        }
        let platform = match self.platforms.get(&session.platform) {
            Some(shared) => shared.clone(),
            None => {
                if self.platforms.len() < PLATFORMS_ALIKE_MAX {
                    self.platforms.insert(session.platform.clone());
                }
                session.platform
            }
        };
        let held = Held { session: id, version, since: session.since, platform, device: session.device };
        let uid = match self.users.get_key_value(uid) {
            Some((known, _)) => known.clone(),
            None => uid.clone(),
        };
        let user = self.users.entry(uid.clone()).or_default();
        match user.sessions.iter_mut().find(|known| known.session == id) {
            Some(known) if known.version > version => {}
            Some(known) => *known = held,
            None => {
                let before = std::mem::take(&mut user.sessions);
                user.sessions = before.into_iter().chain([held]).collect();
                self.gateways.entry(id.gateway).or_default().sessions.insert(id.number, uid);
            }
        }
    }

    fn go(&mut self, uid: &Uid, session: SessionId, version: u64, at: Timestamp, now: Timestamp) {
        let known = self.version_of(uid, session).into_iter().chain(self.gone.get(&session).copied()).max();
        if known.is_some_and(|known| known > version) {
            return;
        }
        self.remove(uid, session);
        self.seen(uid, at);
        if self.gone.insert(session, version).is_none() {
            self.gone_since.push_back((now.as_millis(), session));
        }
    }

    fn remove(&mut self, uid: &Uid, session: SessionId) {
        if let Some(user) = self.users.get_mut(uid) {
            let before = std::mem::take(&mut user.sessions);
            user.sessions = before.into_iter().filter(|held| held.session != session).collect();
        }
        if let Some(gateway) = self.gateways.get_mut(&session.gateway) {
            gateway.sessions.remove(&session.number);
        }
    }

    fn seen(&mut self, uid: &Uid, at: Timestamp) {
        let user = self.users.entry(uid.clone()).or_default();
        user.last_seen = user.last_seen.max(Some(at));
    }

    fn forget_gone(&mut self, now: Timestamp) {
        let too_old = now.as_millis() - GONE_KEPT_MS;
        while let Some((since, session)) = self.gone_since.front()
            && (*since < too_old || self.gone_since.len() > GONE_MAX)
        {
            self.gone.remove(session);
            self.gone_since.pop_front();
        }
        if self.gone.is_empty() && self.gone.capacity() > 0 {
            (self.gone, self.gone_since) = Default::default();
        }
    }

    /// Ends a step: what it did to each user that it touched.
    fn told(&mut self, touched: Touched, now: Timestamp) -> Vec<UserChange> {
        self.version = (self.version + 1).max(now.as_millis().max(0).unsigned_abs());
        let version = self.version;
        let mut changes = Vec::with_capacity(touched.order.len());
        for (uid, was_online) in touched.order {
            let mut is_online = false;
            if let Some(mut user) = self.users.remove(&uid) {
                is_online = user.sessions.iter().any(|held| !self.is_void(held.session.gateway));
                user.was_told_online = is_online;
                if user.sessions.is_empty() {
                    self.left.extend(user.last_seen.map(|seen| (uid.clone(), seen)));
                }
                if !user.sessions.is_empty() || user.last_seen.is_some() {
                    self.users.insert(uid.clone(), user);
                }
            }
            changes.push(UserChange { uid, was_online, is_online, version });
        }
        self.forget_left();
        changes
    }

    fn forget_left(&mut self) {
        while self.left.len() > LEFT_MAX
            && let Some((uid, seen)) = self.left.pop_front()
        {
            let is_left = |user: &User| user.sessions.is_empty() && user.last_seen == Some(seen);
            if self.users.get(&uid).is_some_and(is_left) {
                self.users.remove(&uid);
            }
        }
    }
}

impl Held {
    fn shown(&self) -> OnlineSession {
        OnlineSession {
            session: self.session,
            platform: self.platform.clone(),
            device: self.device.clone(),
            since: self.since,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots of a hash table for each entry, at the worst moment after it has grown, on average between two growths.
    const SLOTS_PER_ENTRY: f64 = 1.6;

    #[test]
    fn a_session_costs_at_most_two_hundred_bytes_beside_its_strings() {
        let slots = size_of::<(Uid, User)>() + size_of::<(u64, Uid)>() + 2;
        let bytes = slots as f64 * SLOTS_PER_ENTRY + size_of::<Held>() as f64;
        assert!(bytes <= 205.0, "{bytes}");
    }

    #[test]
    fn platforms_of_sessions_that_went_do_not_add_up_without_end() {
        let mut shard = Shard::default();
        let (gateway, uid) = (GatewayId { node: 1, incarnation: 1 }, Uid::new("u").unwrap());
        let now = Timestamp::from_millis(1);
        let mut put = |number: u64, gone_at| {
            let platform = Platform::new(&format!("p{number}")).unwrap();
            let session =
                OnlineSession { session: SessionId { gateway, number }, platform, device: "".into(), since: now };
            shard.put(vec![SessionNews { uid: uid.clone(), version: number + 1, session, gone_at }], now);
        };
        let last = PLATFORMS_ALIKE_MAX as u64 + 10;
        for number in 0..last {
            put(number, None);
            put(number, Some(now));
        }
        put(last, None);
        assert_eq!(shard.platforms.len(), PLATFORMS_ALIKE_MAX);
        let shown = shard.of(&uid).sessions;
        assert_eq!(shown[0].platform.as_str(), format!("p{last}"), "a session of a further one is shown as any other");
    }

    #[test]
    fn users_who_left_are_forgotten_beyond_a_number_and_the_rest_stays() {
        let mut shard = Shard::default();
        let gateway = GatewayId { node: 1, incarnation: 1 };
        let news = |number: u64, gone_at| SessionNews {
            uid: Uid::new(&format!("u{number}")).unwrap(),
            version: number + 1,
            session: OnlineSession {
                session: SessionId { gateway, number },
                platform: Platform::new("ios").unwrap(),
                device: "".into(),
                since: Timestamp::from_millis(0),
            },
            gone_at,
        };
        let now = Timestamp::from_millis(1);
        shard.put(vec![news(0, None)], now);
        let gone = (1..=LEFT_MAX as u64 + 10).map(|number| news(number, Some(Timestamp::from_millis(5)))).collect();
        shard.put(gone, now);
        assert_eq!(shard.users.len(), LEFT_MAX + 1);
        assert_eq!(shard.of(&Uid::new("u0").unwrap()).sessions.len(), 1);
        assert_eq!(shard.of(&Uid::new("u1").unwrap()), UserSessions::default());
        let later = Timestamp::from_millis(now.as_millis() + GONE_KEPT_MS + 1);
        shard.put(Vec::new(), later);
        assert_eq!((shard.gone.len(), shard.gone_since.len()), (0, 0));
    }
}
