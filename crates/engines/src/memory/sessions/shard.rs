//! The sessions of one shard, and the effects of news. Pure: the time is passed in.
//!
//! Compact: a session costs a slot of its user, an entry of its own, and a slot of its gateway. Sessions share the name of their platform,
//! within a bound, and both slots share the user's id. The memory for ended sessions is bounded.

use std::collections::{HashMap, HashSet, VecDeque};

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid};
use whimbrel_model::ports::{SessionUpdate, UserChange, UserSessions};

/// The time for which an ended session is remembered, so that late news of its beginning is ignored. It is longer than gateways keep
/// packets for repetition.
const GONE_KEPT_MS: i64 = 120_000;
/// The maximum number of ended sessions that are remembered; beyond it, the oldest are removed sooner.
const GONE_MAX: usize = 1 << 18;
/// The maximum number of users of whom only the last-seen time is remembered; beyond it, the oldest are removed.
const LEFT_MAX: usize = 1 << 16;

/// The maximum number of platform names that sessions share. A session with a further name has its own copy: devices may send any name.
const SHARED_PLATFORMS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct SessionShard {
    users: HashMap<Uid, UserSlot>,
    gateways: HashMap<GatewayId, GatewaySessions>,
    /// The newest void incarnation of each node. Earlier incarnations are void too.
    void: HashMap<u16, u64>,
    /// At most [`SHARED_PLATFORMS_MAX`]: names are never removed.
    platforms: HashSet<Platform>,
    gone: HashMap<SessionId, u64>,
    /// The ended sessions by the time of their end, oldest first.
    gone_since: VecDeque<(i64, SessionId)>,
    /// Users by the time when their last session ended, oldest first. It also contains users that are online again.
    left: VecDeque<(Uid, Timestamp)>,
    /// The version of the last step.
    version: u64,
}

#[derive(Default)]
struct UserSlot {
    sessions: Box<[StoredSession]>,
    last_seen: Option<Timestamp>,
    /// Whether the last step that touched the user reported it online.
    was_told_online: bool,
}

struct StoredSession {
    session: SessionId,
    version: u64,
    since: Timestamp,
    platform: Platform,
    device: Box<str>,
}

#[derive(Default)]
struct GatewaySessions {
    /// The version of the gateway's last whole picture.
    picture: u64,
    /// The user of each session, by the session's number.
    sessions: HashMap<u64, Uid>,
}

/// The users that a step touches, in the order of first mention, and whether each was last reported online.
#[derive(Default)]
struct TouchedUsers {
    order: Vec<(Uid, bool)>,
    seen: HashSet<Uid>,
}

impl TouchedUsers {
    fn add(&mut self, users: &HashMap<Uid, UserSlot>, uid: &Uid) {
        if self.seen.insert(uid.clone()) {
            let was_online = users.get(uid).is_some_and(|user| user.was_told_online);
            self.order.push((uid.clone(), was_online));
        }
    }
}

impl SessionShard {
    pub fn put(&mut self, news: Vec<SessionUpdate>, now: Timestamp) -> Vec<UserChange> {
        self.expire_ended(now);
        let mut touched = TouchedUsers::default();
        for SessionUpdate { uid, version, session, gone_at } in news {
            touched.add(&self.users, &uid);
            let gateway = session.session.gateway;
            if self.is_void(gateway) || version < self.gateways.get(&gateway).map_or(0, |gateway| gateway.picture) {
                continue;
            }
            match gone_at {
                None => self.add_session(&uid, session, version),
                Some(at) => self.end_session(&uid, session.session, version, at, now),
            }
        }
        self.finish_step(touched, now)
    }

    pub fn replace(
        &mut self,
        gateway: GatewayId,
        version: u64,
        sessions: Vec<(Uid, OnlineSession)>,
        now: Timestamp,
    ) -> Vec<UserChange> {
        self.expire_ended(now);
        if self.is_void(gateway) || self.gateways.get(&gateway).is_some_and(|known| known.picture > version) {
            return Vec::new();
        }
        self.gateways.entry(gateway).or_default().picture = version;
        let mut touched = TouchedUsers::default();
        let mut listed = HashSet::with_capacity(sessions.len());
        for (uid, session) in sessions {
            if session.session.gateway == gateway {
                touched.add(&self.users, &uid);
                listed.insert(session.session.number);
                self.add_session(&uid, session, version);
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
                self.end_session(&uid, session, version, now, now);
            }
        }
        self.finish_step(touched, now)
    }

    pub fn void(&mut self, gateway: GatewayId) {
        let newest = self.void.entry(gateway.node).or_insert(gateway.incarnation);
        *newest = gateway.incarnation.max(*newest);
    }

    pub fn sweep(&mut self, limit: usize, now: Timestamp) -> Vec<UserChange> {
        let mut void: Vec<GatewayId> = self.gateways.keys().copied().filter(|gateway| self.is_void(*gateway)).collect();
        void.sort_unstable();
        let (mut touched, mut left) = (TouchedUsers::default(), limit);
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
        self.finish_step(touched, now)
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
        let mut sessions: Vec<OnlineSession> = live.map(StoredSession::shown).collect();
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

    fn add_session(&mut self, uid: &Uid, session: OnlineSession, version: u64) {
        let id = session.session;
        if self.gone.get(&id).is_some_and(|gone| *gone >= version) {
            return;
        }
        let platform = match self.platforms.get(&session.platform) {
            Some(shared) => shared.clone(),
            None => {
                if self.platforms.len() < SHARED_PLATFORMS_MAX {
                    self.platforms.insert(session.platform.clone());
                }
                session.platform
            }
        };
        let held = StoredSession { session: id, version, since: session.since, platform, device: session.device };
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

    fn end_session(&mut self, uid: &Uid, session: SessionId, version: u64, at: Timestamp, now: Timestamp) {
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

    fn expire_ended(&mut self, now: Timestamp) {
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

    /// Ends a step. Returns its effect on each user that it touched.
    fn finish_step(&mut self, touched: TouchedUsers, now: Timestamp) -> Vec<UserChange> {
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
        self.evict_offline();
        changes
    }

    fn evict_offline(&mut self) {
        while self.left.len() > LEFT_MAX
            && let Some((uid, seen)) = self.left.pop_front()
        {
            let is_left = |user: &UserSlot| user.sessions.is_empty() && user.last_seen == Some(seen);
            if self.users.get(&uid).is_some_and(is_left) {
                self.users.remove(&uid);
            }
        }
    }
}

impl StoredSession {
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

    /// Slots of a hash table per entry, in the worst case after it has grown, as an average between two growths.
    const SLOTS_PER_ENTRY: f64 = 1.6;

    #[test]
    fn a_session_costs_at_most_two_hundred_bytes_beside_its_strings() {
        let slots = size_of::<(Uid, UserSlot)>() + size_of::<(u64, Uid)>() + 2;
        let bytes = slots as f64 * SLOTS_PER_ENTRY + size_of::<StoredSession>() as f64;
        assert!(bytes <= 205.0, "{bytes}");
    }

    #[test]
    fn shared_platform_names_are_bounded() {
        let mut shard = SessionShard::default();
        let (gateway, uid) = (GatewayId { node: 1, incarnation: 1 }, Uid::new("u").unwrap());
        let now = Timestamp::from_millis(1);
        let mut put = |number: u64, gone_at| {
            let platform = Platform::new(&format!("p{number}")).unwrap();
            let session =
                OnlineSession { session: SessionId { gateway, number }, platform, device: "".into(), since: now };
            shard.put(vec![SessionUpdate { uid: uid.clone(), version: number + 1, session, gone_at }], now);
        };
        let last = SHARED_PLATFORMS_MAX as u64 + 10;
        for number in 0..last {
            put(number, None);
            put(number, Some(now));
        }
        put(last, None);
        assert_eq!(shard.platforms.len(), SHARED_PLATFORMS_MAX);
        let shown = shard.of(&uid).sessions;
        assert_eq!(shown[0].platform.as_str(), format!("p{last}"), "a further platform name is returned");
    }

    #[test]
    fn only_the_oldest_offline_users_beyond_the_maximum_are_removed() {
        let mut shard = SessionShard::default();
        let gateway = GatewayId { node: 1, incarnation: 1 };
        let news = |number: u64, gone_at| SessionUpdate {
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
