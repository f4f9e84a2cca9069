//! The `Callbacks` port: one HTTP call to a subscriber, made by a worker of this process or of another node.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::PortFuture;
use crate::subscription::{DeliveryRule, Endpoint, Envelope, SigningSecret, WorkerChoice};
use crate::{Record, Timestamp};

/// The endpoint of a subscription's calls, and their form.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CallTarget {
    pub subscription: String,
    pub endpoint: Endpoint,
    pub envelope: Envelope,
    pub secrets: Vec<SigningSecret>,
    /// The subscription's setting, or else its topic's.
    pub workers: Option<WorkerChoice>,
}

/// One attempt to deliver a message to a subscriber.
#[derive(Debug, Clone)]
pub struct Call {
    pub target: Arc<CallTarget>,
    /// The location of the message. For a retry: of the original message, not of its retry hold.
    pub topic: Arc<str>,
    pub partition: u32,
    pub offset: u64,
    /// The first is 1.
    pub attempt: u32,
    pub id: Box<str>,
    pub published_at: Timestamp,
    /// The message's record: key, value and all headers. A worker removes the system's headers.
    pub record: Record,
    pub rule: Option<Arc<DeliveryRule>>,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallReport {
    pub outcome: CallOutcome,
    pub took: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// The endpoint answered with any status. The subscription's owner decides whether it is a success.
    Answered {
        status: u16,
        retry_after: Option<Duration>,
        /// The start of the response body, at most [`super::ANSWER_KEPT_BYTES`]. It is empty for a 2xx, unless the message names its own
        /// callback: then it is at most 64 KiB, because the body states whether the callback succeeded.
        answer: Bytes,
    },
    Failed {
        why: CallFailure,
        detail: String,
    },
    /// The target is a part of Whimbrel and rejected the message, with a reason and whether to retry.
    NotTaken {
        reason: String,
        again: RetryAdvice,
    },
}

/// Whether to retry a message that a part of Whimbrel rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAdvice {
    /// Never: every retry would fail.
    Never,
    /// By the subscription's retry schedule, but not before this delay. Other messages are not affected.
    Later(Option<Duration>),
    /// By the subscription's retry schedule. Other messages would fail now too.
    LaterForAll,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallFailure {
    /// The connection failed: refused, unreachable, or the name does not resolve.
    Connect,
    /// No complete response within the timeout.
    Timeout,
    /// The address is outside the networks that callbacks may reach.
    Forbidden,
    Tls,
    /// The connection ended, or the response was not HTTP.
    Broken,
    /// The URL or a header is invalid.
    BadTarget,
    /// No worker was available. No call was made, so this does not count as an attempt.
    NoWorker,
}

impl CallFailure {
    pub fn word(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Forbidden => "forbidden_address",
            Self::Tls => "tls",
            Self::Broken => "broken",
            Self::BadTarget => "bad_target",
            Self::NoWorker => "no_worker",
        }
    }
}

pub trait Callbacks: Send + Sync {
    /// Makes one call, within the message's own timeout or else the target's. It never retries. Calls have no order among each other.
    ///
    /// *Cancellation*: dropping the future aborts the call. The subscriber may have received it.
    fn call(&self, call: Call) -> PortFuture<'_, CallReport>;
}
