//! The `Sessions` port: the picture of who is online where, as presence draws it. It answers who is online; it decides nothing.
//!
//! Users are spread over shards by the hash of their id; each shard is written by one writer of the data centre. A session belongs to
//! (gateway, incarnation): when that is void, all its sessions are, at once, whatever rows are still there.

use super::PortFuture;
use crate::Timestamp;
use crate::people::{GatewayId, OnlineSession, Uid};

/// News about one session of one user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionNews {
    pub uid: Uid,
    /// Grows with each piece of news about the same session: old news loses.
    pub version: u64,
    pub session: OnlineSession,
    /// It came, or it went at this time.
    pub gone_at: Option<Timestamp>,
}

/// What is known of a user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserSessions {
    /// Of incarnations that are not void, in the order in which they came.
    pub sessions: Vec<OnlineSession>,
    /// When the last session that ended did.
    pub last_seen: Option<Timestamp>,
}

/// What was found, and as of when the shard's writer last vouched for what the store has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard<T> {
    /// How long ago, by the store's own clock; `None`: never.
    pub ago_ms: Option<u64>,
    pub found: T,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionsError {
    #[error("the store of sessions is not available: {0}")]
    Unavailable(String),
}

/// *Atomicity*: each call is one step. *Durability*: none is asked for; a lost store is drawn anew from the gateways' whole pictures.
pub trait Sessions: Send + Sync {
    /// Takes the news in; older news about a session than what is known loses, and so does news that is older than the last picture of its
    /// gateway. That a session is gone is known for two minutes at least. Returns, for each user of the news, whether the user was
    /// online before and is after, in the order of first mention.
    fn put(&self, shard: u32, news: Vec<SessionNews>) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>>;

    /// All sessions of one gateway's incarnation in this shard are exactly these from now on, as of the picture's version: others that are
    /// known with an older version are gone, now. An older picture than the last one loses, and changes nobody. Returns the users of the
    /// picture and those whose sessions are gone by it.
    fn replace(
        &self,
        shard: u32,
        gateway: GatewayId,
        version: u64,
        sessions: Vec<(Uid, OnlineSession)>,
    ) -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>>;

    /// All sessions of that incarnation, and of earlier ones of the same node, are void from now on, in one step. News of them is
    /// refused afterwards.
    fn void(&self, shard: u32, gateway: GatewayId) -> PortFuture<'_, Result<(), SessionsError>>;

    /// Removes up to `limit` sessions of void incarnations, and says whose.
    fn sweep(&self, shard: u32, limit: usize, now: Timestamp)
    -> PortFuture<'_, Result<Vec<UserChange>, SessionsError>>;

    /// The incarnations that the shard has sessions of and that are not void: a writer that starts voids those that died while it was
    /// away. An engine whose sessions end with its process has none then.
    fn gateways(&self, shard: u32) -> PortFuture<'_, Result<Vec<GatewayId>, SessionsError>> {
        let _ = shard;
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The writer of the shard lives, and what it has written is true as of `behind_ms` ago. Nothing else that is written says so.
    fn keep_alive(&self, shard: u32, behind_ms: u64) -> PortFuture<'_, Result<(), SessionsError>>;

    /// These users, in the order of the question, and how fresh that is.
    fn of(&self, shard: u32, uids: Vec<Uid>) -> PortFuture<'_, Result<Heard<Vec<UserSessions>>, SessionsError>>;
}

/// How a user's presence changed by one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserChange {
    pub uid: Uid,
    /// As the step before told it: users of a void incarnation were online until they are swept, or touched.
    pub was_online: bool,
    pub is_online: bool,
    /// Grows with each step that touched the user, also from one process to the next: it is never less than the store's time in ms.
    pub version: u64,
}
