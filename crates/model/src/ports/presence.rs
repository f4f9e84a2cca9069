//! The `Presence` port: who is online, for the doors. Behind it are a reader and the stores of a data centre.

use super::PortFuture;
use super::sessions::UserSessions;
use crate::Timestamp;
use crate::people::Uid;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresenceAnswer {
    /// In the order of the question.
    pub users: Vec<UserSessions>,
    /// The oldest of the moments at which the shards asked were heard from.
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
