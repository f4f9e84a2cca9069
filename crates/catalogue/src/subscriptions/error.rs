//! What can stand in the way of a change.

use whimbrel_model::ports::{CatalogueError, LogError};

use super::registry::SUBSCRIPTIONS_MAX;
use super::runs::REPLAYS_MAX;
use crate::topics::TopicError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubscriptionError {
    #[error("there is no subscription `{0}`")]
    Unknown(String),
    #[error("subscription `{0}` is being deleted; make it again in a moment, or repeat the deletion")]
    Deleting(String),
    #[error("there are {SUBSCRIPTIONS_MAX} subscriptions already, as many as there can be")]
    TooMany,
    #[error("`{name}` has {REPLAYS_MAX} replays under way; wait for one to end")]
    TooManyReplays { name: String },
    #[error("`{topic}` cannot be subscribed to: {why}")]
    Unreadable { topic: String, why: &'static str },
    #[error("`{place}` is no partition of this subscription: write `<topic>/<partition>` of one of its topics")]
    NoPartition { place: String },
    #[error("offset {asked} of `{place}` is beyond the end: the next message will have {next}")]
    BeyondEnd { place: String, asked: u64, next: u64 },
    #[error("{0} lies in the future: to wait for what comes, seek to `latest`")]
    InFuture(String),
    #[error("nothing lies between `from` and `to`")]
    EmptyStretch,
    /// Only the subscription's owner knows where the partitions are that were not named.
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
