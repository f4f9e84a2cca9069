//! The `Dispatch` port: requests to the owners of subscriptions, on this node or another one.
//!
//! Settings of a subscription are in the catalogue. An owner reports its state, and hands out, takes back and redrives messages.

use super::{AttemptRecord, MinuteRow, PortFuture};
use crate::subscription::MessageOrigin;
use crate::{PartitionId, Record, SubscriptionNumber, Timestamp, TopicNumber};

/// A request to the owner of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DispatchRequest {
    Status,
    /// Wait until the owner applies this version of the catalogue entry, or a later one.
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
    /// Return messages, to be handed out again after `delay_ms`; `None`: by the retry schedule.
    Nack {
        ack_ids: Vec<String>,
        delay_ms: Option<u64>,
    },
    /// Set the lease to end `lease_ms` from now.
    Extend {
        ack_ids: Vec<String>,
        lease_ms: u64,
    },
    Message {
        partition: PartitionId,
        offset: u64,
    },
    /// List dead letters that were not redriven, from an offset of the dead topic's partition.
    DeadLetters {
        from: u64,
        limit: usize,
    },
    /// Redrive dead letters by the ids of their messages; `None`: all.
    Redrive {
        ids: Option<Vec<String>>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum DispatchReply {
    Status(Box<SubscriptionStatus>),
    CaughtUp,
    Pulled(Vec<LeasedMessage>),
    /// How many of the ack ids were valid, and the ids that were not: their lease has ended, or they never existed.
    Settled {
        known: usize,
        unknown: Vec<String>,
    },
    Message(MessageDelivery),
    /// `next` is the offset of the next page; `None` at the end.
    DeadLetters {
        letters: Vec<DeadLetter>,
        next: Option<u64>,
    },
    Redriven {
        count: u64,
        unknown: Vec<String>,
    },
}

/// A message that was handed out to a pulling consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedMessage {
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
    /// The offset in the dead topic.
    pub at: u64,
    pub key: Option<Vec<u8>>,
    pub origin: MessageOrigin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageDelivery {
    pub is: DeliveryState,
    pub attempts: Vec<AttemptRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Before the subscription's start, or excluded by its filter.
    NotForIt,
    Waiting,
    InFlight,
    Retrying,
    Delivered,
    Dead,
    Dropped,
}

/// The status of a subscription, reported by its owner.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct SubscriptionStatus {
    /// Unfinished messages between the watermarks and the ends of the partitions. An estimate: it counts offsets.
    pub lag: u64,
    pub in_flight: u64,
    /// Keys or partitions that wait for a retry.
    pub parked_keys: u64,
    /// Messages that wait behind a parked key.
    pub parked_messages: u64,
    /// The time of the next callback that waits for a retry, the circuit breaker or a `Retry-After`. `None`: none, or only retry holds
    /// wait.
    #[serde(default)]
    pub next_try_ms: Option<i64>,
    pub retry_holds: u64,
    pub dead_letters: u64,
    /// Per second, averaged over the last minute.
    pub delivered_rate: f64,
    pub failed_rate: f64,
    /// The present limit of concurrent callbacks, adapted to the endpoint.
    pub concurrency: u32,
    /// `closed`, `open`, `half_open`.
    pub breaker: String,
    /// The reason why the subscription does not read its topics: `parked_full`, `retries_full`, `log_unavailable`, `store_unavailable`.
    pub stalled: Option<String>,
    pub last_error: Option<LastError>,
    pub prefetched_bytes: u64,
    /// Signed callbacks with a body that is not UTF-8, since the owner started: common libraries cannot verify these.
    #[serde(default)]
    pub unverifiable: u64,
    pub partitions: Vec<PartitionDelivery>,
    pub replays: Vec<ReplayProgress>,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LastError {
    pub at_ms: i64,
    pub status: Option<u16>,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PartitionDelivery {
    pub topic: String,
    pub partition: u32,
    pub watermark: u64,
    pub read_to: u64,
    pub end: u64,
    /// Unfinished messages above the watermark.
    pub unfinished: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReplayProgress {
    pub run: u32,
    pub done: u64,
    pub left: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// Nothing was done. A retry is safe.
    #[error("the subscription has no owner at the moment")]
    NoOwner,
    /// The owner does not have the subscription, or not any more.
    #[error("the subscription is not known to its owner")]
    Unknown,
    /// The request is not valid in the subscription's mode.
    #[error("{0}")]
    WrongMode(String),
    #[error("the subscription's owner cannot do it now: {0}")]
    Unavailable(String),
    /// The request may have been executed.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
}

pub trait Dispatch: Send + Sync {
    /// Sends the request to the owner of the subscription. If it has no owner, waits for one for a limited time.
    ///
    /// *Durability*: a reply to `Redrive` follows the append of the messages. Acks are saved in the background; if the owner crashes
    /// before, the messages are delivered again. *Cancellation*: dropping the future does not undo the request. Messages of a dropped pull
    /// are handed out again when their lease ends.
    fn ask(
        &self,
        subscription: SubscriptionNumber,
        ask: DispatchRequest,
    ) -> PortFuture<'_, Result<DispatchReply, DispatchError>>;

    /// The metrics of a topic by the minute, summed over all nodes that reply. The second value is the number of nodes that did not reply.
    fn minutes(
        &self,
        topic: TopicNumber,
        from: Timestamp,
        to: Timestamp,
    ) -> PortFuture<'_, (Vec<(Timestamp, MinuteRow)>, usize)>;
}
