//! Errors of changes of subscriptions.

use whimbrel_model::ports::{CatalogueError, LogError};

use super::registry::SUBSCRIPTIONS_MAX;
use super::runs::REPLAYS_MAX;
use crate::topics::TopicError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubscriptionError {
    #[error("there is no subscription `{0}`")]
    Unknown(String),
    #[error("subscription `{0}` is being deleted; create it again in a moment, or repeat the deletion")]
    Deleting(String),
    #[error("there are {SUBSCRIPTIONS_MAX} subscriptions already, which is the limit")]
    TooMany,
    #[error("`{name}` has {REPLAYS_MAX} replays in progress, which is the limit; wait for one to end")]
    TooManyReplays { name: String },
    #[error("`{topic}` cannot be subscribed to: {why}")]
    Unreadable { topic: String, why: &'static str },
    #[error("`{place}` is not a partition of this subscription: use `<topic>/<partition>` with one of its topics")]
    NoPartition { place: String },
    #[error("offset {asked} of `{place}` is beyond the end: the next message will have {next}")]
    BeyondEnd { place: String, asked: u64, next: u64 },
    #[error("{0} is in the future: to receive only new messages, seek to `latest`")]
    InFuture(String),
    #[error("there are no messages between `from` and `to`")]
    EmptyStretch,
    /// Only the owner of the subscription has the progress of the partitions that the request does not name.
    #[error("the subscription's owner does not answer: name every partition, or seek by `to`")]
    OwnerNeeded,
    #[error("the catalogue's entry `{key}` cannot be read: {why}")]
    Malformed { key: String, why: String },
    #[error(transparent)]
    Topic(#[from] TopicError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}
