//! The `Presence` port: which users are online. The `receive` role reads it; the engine is a reader over the stores of a data centre.
//! [`Reporter`] is the input side: gateways report sessions that begin and end.

use super::PortFuture;
use super::sessions::UserSessions;
use crate::Timestamp;
use crate::people::{OnlineSession, SessionId, Uid};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresenceAnswer {
    /// In the order of the request.
    pub users: Vec<UserSessions>,
    /// The answer is true at this time or later. Each shard's writer confirms its data up to some time; this is the oldest of those times.
    pub fresh_as_of: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PresenceError {
    /// The store's data was last confirmed too long ago, and may be stale.
    #[error("the presence data was last confirmed {}", .ago_ms.map_or("never".to_owned(), |ms| format!("{ms} ms ago")))]
    NotFresh { ago_ms: Option<u64> },
    #[error("presence is not available: {0}")]
    Unavailable(String),
}

/// Reads presence. A read has no side effects, so a call can be dropped.
pub trait Presence: Send + Sync {
    fn of(&self, uids: Vec<Uid>) -> PortFuture<'_, Result<PresenceAnswer, PresenceError>>;
}

/// The input of presence: a gateway reports sessions that begin and end. Calls never block and never fail. Reports are batched and sent in
/// the background, so they are not durable when a call returns.
///
/// A process never reuses a session number. The reporter chooses the incarnation under which sessions are shown, so a gateway that gets a
/// new incarnation need not report its sessions again.
pub trait Reporter: Send + Sync {
    fn session_started(&self, uid: &Uid, session: OnlineSession);

    /// Reports the end of a session. An unknown session is no error.
    fn session_ended(&self, uid: &Uid, session: SessionId, at: Timestamp);
}
