//! The `Dispatch` port: questions for the owners of subscriptions, wherever they run.
//!
//! What people decide about a subscription is written to the catalogue, not asked here; an owner is asked what it knows, and to hand out,
//! take back and redrive messages.

use super::{AttemptNote, MinuteRow, PortFuture};
use crate::subscription::Origin;
use crate::{PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber};

/// What an owner is asked about one subscription of its shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DispatchAsk {
    /// How it stands.
    Status,
    /// Returns when the owner works by the catalogue's entry of that version or a later one.
    CaughtUp {
        version: u64,
    },
    Pull {
        max: usize,
        wait_ms: u64,
    },
    Ack {
        ack_ids: Vec<String>,
    },
    /// Back, to be handed out again after so long; `None`: as the schedule says.
    Nack {
        ack_ids: Vec<String>,
        delay_ms: Option<u64>,
    },
    /// A lease of so long from now on.
    Extend {
        ack_ids: Vec<String>,
        lease_ms: u64,
    },
    /// Where one message stands.
    Message {
        partition: PartitionId,
        offset: u64,
    },
    /// Dead letters that were not redriven, from an offset of the dead topic's partition on.
    DeadLetters {
        from: u64,
        limit: usize,
    },
    /// By the ids of their messages; `None`: all of them.
    Redrive {
        ids: Option<Vec<String>>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum DispatchTold {
    Status(Box<SubscriptionStatus>),
    CaughtUp,
    Pulled(Vec<Pulled>),
    /// How many of the given were known, and which were not: their lease is over, or they were never given.
    Settled {
        known: usize,
        unknown: Vec<String>,
    },
    Message(MessageStanding),
    /// `next` is where to look on; `None` at the end.
    DeadLetters {
        letters: Vec<DeadLetter>,
        next: Option<u64>,
    },
    Redriven {
        count: u64,
        unknown: Vec<String>,
    },
}

/// A message handed out to a puller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    pub ack_id: String,
    pub lease_until: Timestamp,
    pub attempt: u32,
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
    pub id: String,
    pub published_at: Timestamp,
    pub record: Record,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub id: String,
    /// Its place in the dead topic.
    pub at: u64,
    pub key: Option<Vec<u8>>,
    pub origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageStanding {
    pub is: Standing,
    pub attempts: Vec<AttemptNote>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Before the subscription's beginning, or left out by its filter.
    NotForIt,
    Waiting,
    InFlight,
    Retrying,
    Delivered,
    Dead,
    Dropped,
}

/// How a subscription stands, by its owner.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct SubscriptionStatus {
    /// Messages between its watermarks and the ends of its partitions that are not done, about: offsets are counted.
    pub lag: u64,
    pub in_flight: u64,
    /// Keys, or partitions, that wait for a retry.
    pub parked_keys: u64,
    /// Messages behind them.
    pub parked_messages: u64,
    /// When the next callback is made of what waits: for its retry, for the breaker, or because the endpoint asked for it. `None` where
    /// nothing does, and where only holds know.
    #[serde(default)]
    pub next_try_ms: Option<i64>,
    /// Retries that wait as holds.
    pub retry_holds: u64,
    pub dead_letters: u64,
    /// Per second, over the last minute.
    pub delivered_rate: f64,
    pub failed_rate: f64,
    /// Callbacks at one time that the endpoint seems to bear.
    pub concurrency: u32,
    /// `closed`, `open`, `half_open`.
    pub breaker: String,
    /// Why it does not read on, where it does not: `parked_full`, `retries_full`, `log_unavailable`, `store_unavailable`.
    pub stalled: Option<String>,
    pub last_error: Option<LastError>,
    /// Bytes of bodies in memory.
    pub prefetched_bytes: u64,
    /// Signed callbacks since its owner began whose body is not UTF-8: common libraries cannot verify those.
    #[serde(default)]
    pub unverifiable: u64,
    pub partitions: Vec<PartitionStanding>,
    /// Runs of replays, with how far they are.
    pub replays: Vec<ReplayStanding>,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LastError {
    pub at_ms: i64,
    pub status: Option<u16>,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PartitionStanding {
    pub topic: String,
    pub partition: u32,
    /// Everything before it is done.
    pub watermark: u64,
    /// What was read.
    pub read_to: u64,
    pub end: u64,
    /// Above the watermark and not done.
    pub unfinished: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReplayStanding {
    pub run: u32,
    pub done: u64,
    pub left: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// Nothing was done. Repeating is safe.
    #[error("the subscription has no owner at the moment")]
    NoOwner,
    /// The owner does not know it, or not any more.
    #[error("the subscription is not known to its owner")]
    Unknown,
    /// It is of the other mode.
    #[error("{0}")]
    WrongMode(String),
    #[error("the subscription's owner cannot do it now: {0}")]
    Unavailable(String),
    /// It may have been done.
    #[error("the outcome is not known: {0}")]
    OutcomeUnknown(String),
}

pub trait Dispatch: Send + Sync {
    /// Asks the owner of that subscription, waiting a while for one where there is none.
    ///
    /// *Cancellation*: dropping the future does not undo, and a pull's messages are handed out again when their lease is over.
    fn ask(
        &self,
        subscription: SubscriptionNumber,
        ask: DispatchAsk,
    ) -> PortFuture<'_, Result<DispatchTold, DispatchError>>;

    /// A topic's figures by the minute, of all nodes that answer, added up. The second value: nodes that did not answer.
    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, (Vec<(Timestamp, MinuteRow)>, usize)>;
}
