//! The `Holds` port: questions and commands for the owners of holds, wherever they run.
//!
//! Whoever accepts messages asks here; a shard's owner decides, commits, and only then answers. An answer is definite.

use std::sync::Arc;

use bytes::Bytes;

use super::PortFuture;
use super::timers::{CountQuery, HoldQuery};
use crate::{Hold, HoldEnd, HoldId, Timestamp, TopicNumber};

/// What an owner is asked, about one hold of its shard or about all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Hold a message under an id that its publisher brought.
    Accept(Arc<Hold>),
    /// Another due time, in either direction; one in the past fires now.
    Extend {
        id: HoldId,
        to: NewDue,
        /// Only where the hold has this version.
        if_version: Option<u64>,
        /// A repeat under the same key gets the first answer.
        key: Option<Box<str>>,
    },
    Withdraw {
        id: HoldId,
    },
    /// Now, whatever its due time.
    Fire {
        id: HoldId,
    },
    Look {
        id: HoldId,
    },
    /// Pending ones in due order. Each is a view.
    List(HoldQuery),
    /// Dead ones.
    Dead(HoldQuery),
    Count(CountQuery),
    /// Withdraw everything of this topic that is pending.
    WithdrawTopic {
        topic: TopicNumber,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewDue {
    /// Milliseconds later than it was due, or earlier where negative.
    By(i64),
    Until(Timestamp),
}

/// A pending hold without its message's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldView {
    pub id: HoldId,
    pub topic: TopicNumber,
    pub topic_name: Arc<str>,
    pub key: Option<Bytes>,
    pub due: Timestamp,
    pub published_at: Timestamp,
    pub version: u64,
}

impl HoldView {
    /// The key is copied: sharing it would keep the message's body in memory.
    pub fn of(hold: &Hold) -> Self {
        Self {
            id: hold.id.clone(),
            topic: hold.topic,
            topic_name: Arc::clone(&hold.topic_name),
            key: hold.message.key.as_deref().map(Bytes::copy_from_slice),
            due: hold.due,
            published_at: hold.published_at,
            version: hold.version,
        }
    }
}

/// What an owner answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Accepted now, or before with the same topic and body.
    Held {
        due: Timestamp,
    },
    /// The id is another message's.
    Taken,
    Rescheduled {
        due: Timestamp,
        version: u64,
    },
    Withdrawn,
    /// Its message is in that partition of its topic; the offset is left out where only the log knows it any more.
    Fired {
        at: Timestamp,
        partition: u32,
        offset: Option<u64>,
    },
    Pending(HoldView),
    /// It is over: what was asked could not be done any more, or this is what a look found.
    Ended(HoldEnd),
    Unknown,
    /// It has another version.
    OtherVersion {
        version: u64,
        due: Timestamp,
    },
    /// The new due time is further away than a hold may be.
    TooFar,
    Listed(Vec<HoldView>),
    ListedDead(Vec<(HoldId, HoldEnd)>),
    Counted(Vec<(Timestamp, u64)>),
    WithdrawnMany(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldsError {
    /// Nothing was done. Repeating is safe.
    #[error("shard {0} of the holds has no owner at the moment")]
    NoOwner(u32),
    /// It may have been done. Repeating is safe.
    #[error("the outcome is not known: {0}")]
    OutcomeUnknown(String),
    /// Nothing was done: the owner's log or store does not answer, or the disk is full.
    #[error("the holds are not available: {0}")]
    Unavailable(String),
    /// Nothing was done: too many commands wait already.
    #[error("too many commands wait for shard {0}")]
    Overloaded(u32),
}

pub trait Holds: Send + Sync {
    /// How many shards there are: the partitions of `_holds`.
    fn shards(&self) -> u32;

    /// Asks the owner of that shard, waiting a while for one where there is none.
    ///
    /// *Cancellation*: dropping the future does not undo. The outcome is then unknown.
    fn ask(&self, shard: u32, ask: Ask) -> PortFuture<'_, Result<Told, HoldsError>>;
}
