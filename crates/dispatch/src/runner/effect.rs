//! The effects of a [`SubscriptionRunner`](super::SubscriptionRunner). Those that name a result are answered by a
//! [`RunnerInput`](super::RunnerInput).

use std::sync::Arc;

use roaring::RoaringTreemap;
use whimbrel_model::ports::{AttemptRecord, DispatchError, DispatchReply, ProgressRow};
use whimbrel_model::{Event, PartitionId, TopicNumber};

use super::input::RequestId;
use crate::delivery_line::LineRules;
use crate::line_set::OutgoingMessage;
use crate::pending_appends::Settlement;
use crate::window::ReadRequest;

pub enum RunnerEffect {
    /// Result: `Read`. The shell waits for messages at the end of the log, and after a failure.
    Read {
        line: u32,
        incarnation: u64,
        wanted: ReadRequest,
    },
    /// Result: `Called`.
    Call(OutgoingMessage),
    /// Result: `Appended`. The shell waits after a failure.
    Append(Vec<Settlement>),
    /// Result: `Saved`.
    Save(Vec<ProgressRow>),
    /// Open the store of progress again. Result: `Reopened`.
    Reopen,
    RecordAttempts(Vec<AttemptRecord>),
    Publish(Event),
    Count(DeliveryCount),
    Gauges(RunnerGauges),
    Reply {
        request: RequestId,
        answer: Result<DispatchReply, DispatchError>,
    },
    /// Result: `Ends`.
    ReadEnds {
        request: RequestId,
        partitions: Vec<PartitionId>,
        dead: Option<PartitionId>,
    },
    /// Result: `Message`.
    FindMessage {
        request: RequestId,
        partition: PartitionId,
        offset: u64,
    },
    /// Answer the request with dead letters from an offset on, except the redriven ones.
    ListDeadLetters {
        request: RequestId,
        partition: PartitionId,
        from: u64,
        limit: usize,
        redriven: RoaringTreemap,
    },
    /// Result: `Redriven`.
    Redrive {
        request: RequestId,
        ids: Option<Vec<String>>,
        redriven: RoaringTreemap,
    },
    /// Disable the subscription in the catalogue. Result: `Disabled`.
    Disable {
        reason: String,
    },
    /// Remove a completed replay from the catalogue, and its progress. Result: `ReplayEnded`.
    EndReplay(u32),
    /// Result: `RetryHoldsCounted`, unless the count fails.
    CountRetryHolds(TopicNumber),
    /// Result: `RetryHoldsChecked`.
    CheckRetryHolds {
        topic: TopicNumber,
        rules: LineRules,
    },
    /// A record of the retry topic has no origin. It is skipped.
    SkippedRetry {
        topic: Arc<str>,
        offset: u64,
    },
    /// The saved progress belongs to a seek that this node has not seen yet.
    BehindSeek,
    End(RunEnd),
}

/// Why a subscription stopped running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    Stopped,
    /// The subscription was deleted, or is being deleted.
    Deleted,
    /// Another node owns the subscription, or its progress cannot be used.
    Failed(String),
}

/// One more result, for metrics and statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryCount {
    /// `delay_ms` begins when the message could first be delivered. `callback_us` is the duration of the callback.
    Delivered {
        topic: TopicNumber,
        delay_ms: u64,
        callback_us: Option<u64>,
    },
    Failed {
        topic: TopicNumber,
        callback_us: Option<u64>,
    },
    /// The endpoint answered that it is gone.
    Gone,
    Buried,
    Dropped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerGauges {
    pub in_flight: usize,
    pub parked: u64,
    pub prefetched_bytes: usize,
    pub is_breaker_closed: bool,
}
