//! The inputs of a [`SubscriptionRunner`](super::SubscriptionRunner): results of its effects, requests, and changes of the catalogue.

use std::sync::Arc;

use roaring::RoaringTreemap;
use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_model::ports::{
    AttemptRecord, CallReport, DispatchError, DispatchReply, DispatchRequest, LogError, ProgressError, ProgressRow,
    ReadBatch,
};
use whimbrel_model::{PartitionId, Record};

use crate::line_set::OutgoingMessage;
use crate::pending_appends::AppendDone;
use crate::source_topics::SubscriptionTopics;
use crate::window::ReadRequest;

/// Identifies a request. The shell keeps the caller.
pub type RequestId = u64;

pub enum RunnerInput {
    /// The catalogue's entry of the subscription and the topics that it uses. One of them has changed.
    Catalogue {
        subscription: Arc<Subscription>,
        topics: SubscriptionTopics,
    },
    Called(CallDone),
    Read(ReadDone),
    Appended(AppendDone),
    Saved(SaveDone),
    Reopened(Result<(), ProgressError>),
    Asked {
        request: RequestId,
        ask: DispatchRequest,
    },
    /// The caller of a request has left.
    Abandoned(RequestId),
    /// The ends of partitions, and the number of dead letters.
    Ends {
        request: RequestId,
        ends: Vec<(PartitionId, Option<u64>)>,
        dead: u64,
    },
    /// The recorded attempts of a message, and its record if the log has it.
    Message {
        request: RequestId,
        partition: PartitionId,
        offset: u64,
        attempts: Vec<AttemptRecord>,
        record: Option<Record>,
    },
    /// A redrive has ended. `done` has the offsets of the dead letters that it appended.
    Redriven {
        request: RequestId,
        done: RoaringTreemap,
        is_saved: bool,
        outcome: Result<DispatchReply, DispatchError>,
    },
    /// The catalogue has disabled the subscription, or has failed to.
    Disabled,
    /// The catalogue has removed a replay, or has failed to.
    ReplayEnded(u32),
    RetryHoldsCounted(u64),
    /// The due times of retries were checked. False: the check failed.
    RetryHoldsChecked(bool),
    /// Start no new work, except appends.
    HandOver,
    RecordAttempts,
    SaveNow,
}

pub struct CallDone {
    pub outgoing: OutgoingMessage,
    pub called: CallReport,
}

pub struct ReadDone {
    pub line: u32,
    pub incarnation: u64,
    pub wanted: ReadRequest,
    pub outcome: Result<ReadBatch, LogError>,
}

pub struct SaveDone {
    pub rows: Vec<ProgressRow>,
    pub outcome: Result<(), ProgressError>,
}
