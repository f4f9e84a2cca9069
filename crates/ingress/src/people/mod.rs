//! The API for people: pushes to users, presence, inboxes, devices and platforms.
//!
//! A push becomes records of `_push`, one for each partition of its users. The owner of a partition makes all decisions about its users.
//! This module never talks to a device, and keeps no state.

pub(super) mod carrier_backlog;
pub(super) mod dead_pushes;
pub(super) mod devices;
pub(super) mod grpc;
pub(super) mod inbox;
pub(super) mod kick;
pub(super) mod notices;
pub(super) mod platforms;
pub(super) mod presence;
pub(super) mod push;
mod push_accept;
mod push_entry;
mod tasks;

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use http::request::Parts;
use whimbrel_model::people::Uid;
use whimbrel_model::push::PUSH_TOPIC;

use crate::api_state::ApiState;
use crate::attributes::path_part;
use crate::endpoints::subscription_calls::small_body;
use crate::json_fields::JsonFields;
use crate::problem::{ApiProblem, Code};
use crate::query::{Query, decode};
use whimbrel_catalogue::topics::Topic;

/// The user of `/v1/users/{uid}…`.
fn uid_in_path(path: &str) -> Result<Uid, ApiProblem> {
    Ok(Uid::new(&path_part(path, "/v1/users/")?)?)
}

fn last_in_path(path: &str) -> Result<Cow<'_, str>, ApiProblem> {
    decode(path.rsplit('/').next().unwrap_or_default(), false)
}

/// The topic of all pushes. It is created at startup, never by a push.
fn push_topic(api: &ApiState) -> Result<Arc<Topic>, ApiProblem> {
    let missing = || ApiProblem::new(Code::Unavailable, format!("topic `{PUSH_TOPIC}` does not exist yet"));
    api.registry.get(PUSH_TOPIC).ok_or_else(missing)
}

/// The fields of a small body, for a request without query parameters.
async fn fields_of(api: &ApiState, parts: &Parts, body: Body) -> Result<JsonFields, ApiProblem> {
    Query::parse(parts.uri.query())?.end()?;
    JsonFields::of_body(&small_body(api, parts, body).await?)
}
