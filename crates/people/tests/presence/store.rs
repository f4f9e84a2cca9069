//! An in-memory session store that can be made to fail. It uses tokio's clock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, SessionId, Uid};
use whimbrel_model::ports::{Confirmed, PortFuture, SessionUpdate, Sessions, SessionsError, UserChange, UserSessions};

#[derive(Default)]
pub struct MemoryStore {
    shards: Mutex<BTreeMap<u32, Shard>>,
    pub fails: AtomicBool,
}

#[derive(Default)]
struct Shard {
    rows: BTreeMap<SessionId, Row>,
    void: BTreeMap<u16, u64>,
    last_seen: BTreeMap<Uid, Timestamp>,
    heard: Option<Instant>,
    version: u64,
}

struct Row {
    uid: Uid,
    version: u64,
    session: OnlineSession,
}

impl Shard {
    fn is_void(&self, gateway: GatewayId) -> bool {
        self.void.get(&gateway.node).is_some_and(|void| gateway.incarnation <= *void)
    }

    fn is_online(&self, uid: &Uid) -> bool {
        self.rows.values().any(|row| row.uid == *uid && !self.is_void(row.session.session.gateway))
    }

    fn change(&mut self, uids: Vec<Uid>, act: impl FnOnce(&mut Self)) -> Vec<UserChange> {
        let mut first: Vec<(Uid, bool)> = Vec::new();
        for uid in uids {
            if first.iter().all(|(known, _)| *known != uid) {
                let was_online = self.is_online(&uid);
                first.push((uid, was_online));
            }
        }
        act(self);
        self.version += 1;
        let changes = first.into_iter().map(|(uid, was_online)| {
            let is_online = self.is_online(&uid);
            UserChange { uid, was_online, is_online, version: self.version }
        });
        changes.collect()
    }

    fn take(&mut self, news: SessionUpdate) {
        let SessionUpdate { uid, version, session, gone_at } = news;
        let id = session.session;
        if self.is_void(id.gateway) || self.rows.get(&id).is_some_and(|row| row.version > version) {
            return;
        }
        match gone_at {
            None => drop(self.rows.insert(id, Row { uid, version, session })),
            Some(at) => {
                self.rows.remove(&id);
                self.last_seen.insert(uid, at);
            }
        }
    }
}

impl MemoryStore {
    fn with<'a, T: Send + 'a>(
        &'a self,
        shard: u32,
        act: impl FnOnce(&mut Shard) -> T + Send + 'a,
    ) -> PortFuture<'a, Result<T, SessionsError>> {
        Box::pin(async move {
            if self.fails.load(Ordering::SeqCst) {
                return Err(SessionsError::Unavailable("switched off".to_owned()));
            }
            Ok(act(self.shards.lock().unwrap().entry(shard).or_default()))
        })
    }

    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

impl Sessions for MemoryStore {
    fn put(&self, shard: u32, news: Vec<SessionUpdate>) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>> {
        self.with(shard, move |shard| {
            let uids = news.iter().map(|news| news.uid.clone()).collect();
            shard.change(uids, |shard| news.into_iter().for_each(|news| shard.take(news)))
        })
    }

    fn replace(
        &self,
        shard: u32,
        gateway: GatewayId,
        version: u64,
        sessions: Vec<(Uid, OnlineSession)>,
    ) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>> {
        self.with(shard, move |shard| {
            let gone = shard.rows.iter().filter(|(id, row)| id.gateway == gateway && row.version < version);
            let gone: Vec<(SessionId, Uid)> = gone.map(|(id, row)| (*id, row.uid.clone())).collect();
            let uids = gone.iter().map(|(_, uid)| uid).chain(sessions.iter().map(|(uid, _)| uid)).cloned().collect();
            shard.change(uids, |shard| {
                gone.iter().for_each(|(id, _)| drop(shard.rows.remove(id)));
                for (uid, session) in sessions {
                    shard.take(SessionUpdate { uid, version, session, gone_at: None });
                }
            })
        })
    }

    fn void(&self, shard: u32, gateway: GatewayId) -> PortFuture<'_, Result<(), SessionsError>> {
        self.with(shard, move |shard| {
            let void = shard.void.entry(gateway.node).or_default();
            *void = gateway.incarnation.max(*void);
        })
    }

    fn sweep(
        &self,
        shard: u32,
        limit: usize,
        now: Timestamp,
    ) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>> {
        self.with(shard, move |shard| {
            let void = shard.rows.iter().filter(|(id, _)| shard.is_void(id.gateway)).take(limit);
            let void: Vec<(SessionId, Uid)> = void.map(|(id, row)| (*id, row.uid.clone())).collect();
            shard.change(void.iter().map(|(_, uid)| uid.clone()).collect(), |shard| {
                for (id, uid) in void {
                    shard.rows.remove(&id);
                    shard.last_seen.insert(uid, now);
                }
            })
        })
    }

    fn gateways(&self, shard: u32) -> PortFuture<'_, Result<Vec<GatewayId>, SessionsError>> {
        self.with(shard, |shard| {
            let ids = shard.rows.keys().map(|id| id.gateway).filter(|gateway| !shard.is_void(*gateway));
            let mut ids: Vec<GatewayId> = ids.collect();
            ids.dedup();
            ids
        })
    }

    fn keep_alive(&self, shard: u32, behind_ms: u64) -> PortFuture<'_, Result<(), SessionsError>> {
        self.with(shard, move |shard| shard.heard = Instant::now().checked_sub(Duration::from_millis(behind_ms)))
    }

    fn of(&self, shard: u32, uids: Vec<Uid>) -> PortFuture<'_, Result<Confirmed<Vec<UserSessions>>, SessionsError>> {
        self.with(shard, move |shard| {
            let found = uids.iter().map(|uid| {
                let rows = shard.rows.values().filter(|row| row.uid == *uid);
                let shown = rows.filter(|row| !shard.is_void(row.session.session.gateway));
                UserSessions {
                    sessions: shown.map(|row| row.session.clone()).collect(),
                    last_seen: shard.last_seen.get(uid).copied(),
                }
            });
            let ago_ms = shard.heard.map(|heard| heard.elapsed().as_millis() as u64);
            Confirmed { ago_ms, found: found.collect() }
        })
    }
}
