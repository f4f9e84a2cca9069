//! The `Callbacks` port: one HTTP call to a subscriber, made by a worker of this process or of another.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::PortFuture;
use crate::subscription::{DeliveryRule, Endpoint, Envelope, SigningSecret, WorkerChoice};
use crate::{Record, Timestamp};

/// Where calls of one subscription go, and in which form.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CallTarget {
    pub subscription: String,
    pub endpoint: Endpoint,
    pub envelope: Envelope,
    pub secrets: Vec<SigningSecret>,
    /// The subscription's own choice, or else its topic's.
    pub workers: Option<WorkerChoice>,
}

/// One message on its way to a subscriber.
#[derive(Debug, Clone)]
pub struct Call {
    pub target: Arc<CallTarget>,
    /// Where the message is: of a retry, where it was first.
    pub topic: Arc<str>,
    pub partition: u32,
    pub offset: u64,
    /// The first is 1.
    pub attempt: u32,
    pub id: Box<str>,
    pub published_at: Timestamp,
    /// The message's record: key, value, and all its headers, the system's included, which a worker leaves out.
    pub record: Record,
    pub rule: Option<Arc<DeliveryRule>>,
}

/// How a call went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    pub outcome: CallOutcome,
    pub took: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// Any status: whether it is success is not the worker's to say.
    Answered {
        status: u16,
        retry_after: Option<Duration>,
        /// The start of the answer's body, at most [`super::ANSWER_KEPT_BYTES`]. Of a 2xx it is empty, unless the message brought its
        /// callback: then it is at most 64 KiB, because the body says whether the callback succeeded.
        answer: Bytes,
    },
    Failed {
        why: CallFailure,
        detail: String,
    },
    /// What was called is a part of Whimbrel itself: it says in words why it did not take the message, and whether to ask it again.
    NotTaken {
        reason: String,
        again: Again,
    },
}

/// Whether a message that was not taken is to be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// No repeat can mend it.
    Never,
    /// As the subscription tries again, and not before that time is over. It says nothing about other messages.
    Later(Option<Duration>),
    /// As the subscription tries again. Other messages would fare no better now.
    LaterForAll,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallFailure {
    /// No connection: refused, unreachable, no such name.
    Connect,
    /// Not within the time.
    Timeout,
    /// The address is one that callbacks may not go to.
    Forbidden,
    Tls,
    /// The connection ended or the answer was not HTTP.
    Broken,
    /// The URL or a header cannot be used.
    BadTarget,
    /// No worker could be asked. Nothing was called: it is no attempt.
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
    /// Makes the call, within the target's timeout or the message's own.
    ///
    /// *Cancellation*: dropping the future ends the call; the subscriber may have had it.
    fn call(&self, call: Call) -> PortFuture<'_, Called>;
}
