//! The door for people: pushes to users, their presence, inboxes and devices, the platforms.
//!
//! A push becomes records of `_push`, one for each partition that its users are of, and whatever is decided about a user is decided by
//! the owner of the partition that reads them. Nothing here talks to a device, and nothing is kept.

pub(super) mod behind;
pub(super) mod dead_pushes;
pub(super) mod devices;
pub mod documents;
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

use super::attributes::path_part;
use super::door::Door;
use super::json_fields::Fields;
use super::problem::{Code, Problem};
use super::query::{Query, decode};
use super::subscription_calls::small_body;
use whimbrel_catalogue::topics::Topic;

/// The user of `/v1/users/{uid}…`.
fn uid_in_path(path: &str) -> Result<Uid, Problem> {
    Ok(Uid::new(&path_part(path, "/v1/users/")?)?)
}

/// The last part of a path.
fn last_in_path(path: &str) -> Result<Cow<'_, str>, Problem> {
    decode(path.rsplit('/').next().unwrap_or_default(), false)
}

/// The topic that everything for people goes through. It is made when the server starts, never by a push.
fn push_topic(door: &Door) -> Result<Arc<Topic>, Problem> {
    let missing = || Problem::new(Code::Unavailable, format!("the topic `{PUSH_TOPIC}` is not there yet"));
    door.registry.get(PUSH_TOPIC).ok_or_else(missing)
}

/// The fields of a small body, for a request without parameters.
async fn fields_of(door: &Door, parts: &Parts, body: Body) -> Result<Fields, Problem> {
    Query::parse(parts.uri.query())?.end()?;
    Fields::of_body(&small_body(door, parts, body).await?)
}
