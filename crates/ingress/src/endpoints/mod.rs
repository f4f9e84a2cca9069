//! The endpoints of the API over HTTP, except those about users.
//!
//! One file per group of paths: each handler with its part of the API document, then its details. Handlers check the API key before anything
//! else, and answer with a problem if a request is invalid.

pub(crate) mod batch;
pub(crate) mod dead_letters;
pub(crate) mod deliveries;
pub(crate) mod event_stream;
pub(crate) mod health;
pub(crate) mod hold_calls;
pub(crate) mod hold_list;
pub(crate) mod holds;
pub(crate) mod messages;
pub(crate) mod publish;
pub(crate) mod pull;
pub(crate) mod read;
pub(crate) mod search;
pub(crate) mod stats;
pub(crate) mod subscription_body;
pub(crate) mod subscription_calls;
pub(crate) mod subscription_delete;
pub(crate) mod subscription_json;
pub(crate) mod subscription_runs;
pub(crate) mod subscriptions;
pub(crate) mod tail;
pub(crate) mod topic_workers;
pub(crate) mod topics;
