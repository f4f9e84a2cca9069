//! The `Sessions` port: presence's store of online sessions. It answers queries and decides nothing.
//!
//! The hash of a user's id selects a shard. Each shard has one writer per data centre. A session belongs to a gateway incarnation: when the
//! incarnation is void, all its sessions are void at once, even if their rows still exist.

use super::PortFuture;
use crate::Timestamp;
use crate::people::{GatewayId, OnlineSession, Uid};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionUpdate {
    pub uid: Uid,
    /// Increases with each update of the same session. The engine ignores older updates.
    pub version: u64,
    pub session: OnlineSession,
    /// `None`: the session began. Otherwise the time at which it ended.
    pub gone_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserSessions {
    /// The sessions of live incarnations, in the order in which they began.
    pub sessions: Vec<OnlineSession>,
    /// The end of the session that ended last.
    pub last_seen: Option<Timestamp>,
}

/// A result, with the age of the writer's last confirmation of the shard's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed<T> {
    /// Milliseconds since the confirmation, by the store's clock. `None`: never confirmed.
    pub ago_ms: Option<u64>,
    pub found: T,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionsError {
    #[error("the store of sessions is not available: {0}")]
    Unavailable(String),
}

/// The store of online sessions.
///
/// *Atomicity*: each call is one step. *Order*: versions order the updates, so late calls do no harm. *Durability*: none required; a lost
/// store is rebuilt from the gateways' snapshots. *Cancellation*: a dropped call may or may not have happened, and can be repeated.
pub trait Sessions: Send + Sync {
    /// Applies updates. An update is ignored if it is older than the stored one of its session, or than the last snapshot of its gateway.
    /// The store remembers an ended session for at least 2 min. Returns the change of each user, in the order of first mention.
    fn put(&self, shard: u32, news: Vec<SessionUpdate>) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>>;

    /// Replaces all sessions of a gateway incarnation in this shard with a snapshot. Other sessions with an older version end now. A
    /// snapshot older than the last one is ignored. Returns the changes of the users in the snapshot and of those whose sessions it ended.
    fn replace(
        &self,
        shard: u32,
        gateway: GatewayId,
        version: u64,
        sessions: Vec<(Uid, OnlineSession)>,
    ) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>>;

    /// Voids all sessions of this incarnation and of earlier ones of the same node, in one step. Later updates of them are rejected.
    fn void(&self, shard: u32, gateway: GatewayId) -> PortFuture<'_, Result<(), SessionsError>>;

    /// Removes up to `limit` sessions of void incarnations, and returns the changes of their users.
    fn sweep(&self, shard: u32, limit: usize, now: Timestamp)
    -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>>;

    /// The live incarnations with sessions in the shard. A writer that starts uses it to void incarnations that ended while no writer ran.
    /// An engine in memory has none at that time.
    fn gateways(&self, shard: u32) -> PortFuture<'_, Result<Vec<GatewayId>, SessionsError>> {
        let _ = shard;
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Confirms the shard's data: the writer is running, and its writes are true as of `behind_ms` ago. No other call confirms data.
    fn keep_alive(&self, shard: u32, behind_ms: u64) -> PortFuture<'_, Result<(), SessionsError>>;

    /// The presence of these users, in the order of `uids`, with the age of the data.
    fn of(&self, shard: u32, uids: Vec<Uid>) -> PortFuture<'_, Result<Confirmed<Vec<UserSessions>>, SessionsError>>;
}

/// The change of a user's presence by one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserChange {
    pub uid: Uid,
    /// The value after the previous call that touched the user. A user of a void incarnation counts as online until swept or updated.
    pub was_online: bool,
    pub is_online: bool,
    /// Increases with each call that touches the user, also across restarts. It is never below the store's time in milliseconds.
    pub version: u64,
}
