//! The `Presence` port: who is online, for the doors. Behind it are a reader and the stores of a data centre. [`Reporter`] is the other end:
//! where a gateway says who came and went.

use super::PortFuture;
use super::sessions::UserSessions;
use crate::Timestamp;
use crate::people::{OnlineSession, SessionId, Uid};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresenceAnswer {
    /// In the order of the question.
    pub users: Vec<UserSessions>,
    /// Each of them is as it was then or later: the oldest of the moments as of which the shards' writers vouch for what they wrote.
    pub fresh_as_of: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PresenceError {
    /// The store has not been heard from for too long: what it knows may not be so any more.
    #[error("the store of presence was last heard from {}", .ago_ms.map_or("never".to_owned(), |ms| format!("{ms} ms ago")))]
    NotFresh { ago_ms: Option<u64> },
    #[error("presence is not available: {0}")]
    Unavailable(String),
}

pub trait Presence: Send + Sync {
    fn of(&self, uids: Vec<Uid>) -> PortFuture<'_, Result<PresenceAnswer, PresenceError>>;
}

/// Where a gateway says who came and went. It never blocks and never fails: what it is told is gathered and sent on.
///
/// Sessions are told apart by their numbers, which a process never uses twice; under which incarnation they are shown is the reporter's
/// affair, so that a gateway that got a new one need not tell its sessions again.
pub trait Reporter: Send + Sync {
    fn came(&self, uid: &Uid, session: OnlineSession);

    /// A session that is not there is no error.
    fn went(&self, uid: &Uid, session: SessionId, at: Timestamp);
}
