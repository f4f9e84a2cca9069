//! The `Sessions` port in this process's memory. Its data is lost with the process; gateways then send their whole pictures again.
//!
//! Each shard has a lock, held for one step. No step waits.

mod shard;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;
use whimbrel_model::people::{GatewayId, OnlineSession, Uid};
use whimbrel_model::ports::{Confirmed, PortFuture, SessionUpdate, Sessions, SessionsError, UserChange, UserSessions};
use whimbrel_model::{Clock, Timestamp};

use shard::SessionShard;

pub struct MemorySessions {
    clock: Arc<dyn Clock>,
    shards: RwLock<HashMap<u32, Arc<Mutex<MemoryShard>>>>,
    /// While it is set, all calls fail.
    pub is_down: AtomicBool,
}

#[derive(Default)]
struct MemoryShard {
    shard: SessionShard,
    heard: Option<Instant>,
}

impl MemorySessions {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, shards: RwLock::default(), is_down: AtomicBool::new(false) }
    }

    /// Executes one step of a shard.
    fn with<'a, T: Send + 'a>(
        &'a self,
        number: u32,
        act: impl FnOnce(&mut MemoryShard) -> T + Send + 'a,
    ) -> PortFuture<'a, Result<T, SessionsError>> {
        Box::pin(async move {
            if self.is_down.load(Ordering::Relaxed) {
                return Err(SessionsError::Unavailable("switched off".to_owned()));
            }
            let known = self.shards.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
            let kept = known.unwrap_or_else(|| {
                self.shards.write().unwrap_or_else(PoisonError::into_inner).entry(number).or_default().clone()
            });
            Ok(act(&mut kept.lock().unwrap_or_else(PoisonError::into_inner)))
        })
    }
}

impl Sessions for MemorySessions {
    fn put(&self, shard: u32, news: Vec<SessionUpdate>) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>> {
        self.with(shard, |kept| kept.shard.put(news, self.clock.now()))
    }

    fn replace(
        &self,
        shard: u32,
        gateway: GatewayId,
        version: u64,
        sessions: Vec<(Uid, OnlineSession)>,
    ) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>> {
        self.with(shard, move |kept| kept.shard.replace(gateway, version, sessions, self.clock.now()))
    }

    fn void(&self, shard: u32, gateway: GatewayId) -> PortFuture<'_, Result<(), SessionsError>> {
        self.with(shard, move |kept| kept.shard.void(gateway))
    }

    fn sweep(
        &self,
        shard: u32,
        limit: usize,
        now: Timestamp,
    ) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>> {
        self.with(shard, move |kept| kept.shard.sweep(limit, now))
    }

    fn gateways(&self, shard: u32) -> PortFuture<'_, Result<Vec<GatewayId>, SessionsError>> {
        self.with(shard, |kept| kept.shard.gateways())
    }

    fn keep_alive(&self, shard: u32, behind_ms: u64) -> PortFuture<'_, Result<(), SessionsError>> {
        // A time before the start of the machine's clock counts as never.
        self.with(shard, move |kept| kept.heard = Instant::now().checked_sub(Duration::from_millis(behind_ms)))
    }

    fn of(&self, shard: u32, uids: Vec<Uid>) -> PortFuture<'_, Result<Confirmed<Vec<UserSessions>>, SessionsError>> {
        self.with(shard, move |kept| Confirmed {
            ago_ms: kept.heard.map(|heard| u64::try_from(heard.elapsed().as_millis()).unwrap_or(u64::MAX)),
            found: uids.iter().map(|uid| kept.shard.of(uid)).collect(),
        })
    }
}
