//! The `Holds` port: requests to the owners of holds, on this node or another one.
//!
//! The `receive` role sends requests here. The owner of the shard decides, commits, and then replies. A reply is final.

use std::sync::Arc;

use bytes::Bytes;

use super::PortFuture;
use super::timers::{CountQuery, HoldQuery};
use crate::{Hold, HoldEnd, HoldId, Timestamp, TopicNumber};

/// A request to the owner of a shard, about one hold or about all holds of the shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldRequest {
    /// Accept a hold whose id the publisher chose.
    Accept(Arc<Hold>),
    /// Change the due time, in either direction. A hold whose new due time has passed fires at once.
    Extend {
        id: HoldId,
        to: NewDueTime,
        /// The request fails unless the hold has this version.
        if_version: Option<u64>,
        /// A repeat with the same idempotency key gets the first reply.
        key: Option<Box<str>>,
    },
    Withdraw {
        id: HoldId,
    },
    /// Fire now, before the due time.
    Fire {
        id: HoldId,
    },
    Look {
        id: HoldId,
    },
    /// List pending holds in due order, without their bodies.
    List(HoldQuery),
    /// List dead holds.
    Dead(HoldQuery),
    Count(CountQuery),
    /// Withdraw all pending holds of this topic.
    WithdrawTopic {
        topic: TopicNumber,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewDueTime {
    /// Milliseconds to add to the due time. Negative values make it earlier.
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
    /// Copies the key: sharing its buffer would keep the message's body in memory.
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

/// The reply of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldReply {
    /// Accepted, now or by an earlier request with the same topic and body.
    Held {
        due: Timestamp,
    },
    /// Another message already has the id.
    Taken,
    Rescheduled {
        due: Timestamp,
        version: u64,
    },
    Withdrawn,
    /// The message is in this partition of its topic. `offset` is `None` if only the log still contains it.
    Fired {
        at: Timestamp,
        partition: u32,
        offset: Option<u64>,
    },
    Pending(HoldView),
    /// The hold is no longer pending, so the command failed; or this is the result of a lookup.
    Ended(HoldEnd),
    Unknown,
    /// The hold has another version than the request demands.
    OtherVersion {
        version: u64,
        due: Timestamp,
    },
    /// The new due time is beyond the maximum delay of a hold.
    TooFar,
    Listed(Vec<HoldView>),
    ListedDead(Vec<(HoldId, HoldEnd)>),
    Counted(Vec<(Timestamp, u64)>),
    WithdrawnMany(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldsError {
    /// Nothing was done. A retry is safe.
    #[error("shard {0} of the holds has no owner at the moment")]
    NoOwner(u32),
    /// The command may have been executed. A retry is safe.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// Nothing was done: the owner's log or store is not available, or the disk is full.
    #[error("the holds are not available: {0}")]
    Unavailable(String),
    /// Nothing was done: the owner's queue of commands is full.
    #[error("too many commands wait for shard {0}")]
    Overloaded(u32),
}

pub trait Holds: Send + Sync {
    /// The number of shards: the partitions of `_holds`.
    fn shards(&self) -> u32;

    /// Sends the request to the owner of the shard. If the shard has no owner, waits for one for a limited time.
    ///
    /// *Atomicity*: a request takes effect whole or not at all. *Durability*: a reply follows the commit of its decision.
    ///
    /// *Cancellation*: dropping the future does not undo the request. The outcome is then unknown.
    fn ask(&self, shard: u32, ask: HoldRequest) -> PortFuture<'_, Result<HoldReply, HoldsError>>;
}
