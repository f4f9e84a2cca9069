//! `GET` and `DELETE /v1/users/{uid}/inbox`: shows and empties a user's inbox.

use std::sync::Arc;

use axum::extract::{Request, State};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use whimbrel_api::people::{InboxInfo, SeatInfo, StoredMessage, TaskAnswer};
use whimbrel_api::problem::Problem;
use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::ports::{InboxMessage, InboxView, PeopleQuery, PeopleReply, SeatView};
use whimbrel_model::push::PushTask;

use super::tasks::{accepted, append_task};
use super::uid_in_path;
use crate::answer::{bounded_json_response, to_json};
use crate::api_state::ApiState;
use crate::keys::Scope;
use crate::message_json::may_be_text;
use crate::problem::{ApiProblem, ApiResult};
use crate::query::{self, Query};

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1_000;

/// Get a user's inbox
///
/// Lists, by number, the stored messages that at least one seat has not acknowledged; with `platform`, those for that platform. A page ends
/// after `limit` messages or `limits.read_bytes` bytes. A single message is shown whatever its size.
#[utoipa::path(
    get, path = "/v1/users/{uid}/inbox", tag = "people", operation_id = "get_inbox",
    params(
        ("uid" = String, Path, description = "The user"),
        ("platform" = Option<String>, Query, description = "Only messages stored for this platform"),
        ("after" = Option<u64>, Query, description = "Only messages with a higher number"),
        ("limit" = Option<usize>, Query, description = "The maximum number of messages: 1 to 1000, default 100"),
    ),
    responses(
        (status = 200, description = "The inbox", body = InboxInfo, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_platform`, `bad_parameter`, `forbidden`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn get_inbox(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Push)?;
    let uid = uid_in_path(request.uri().path())?;
    let mut query = Query::parse(request.uri().query())?;
    let platform = query.take("platform")?.map(|name| Platform::new(&name)).transpose()?;
    let after: u64 = query.take_parsed("after", "a number")?.unwrap_or(0);
    let limit = query.take_parsed("limit", "a number")?;
    query.end()?;
    let limit = check_limit(limit)?;
    let view = read_inbox(&api, uid.clone(), platform, after, limit).await?;
    bounded_json_response(api.answers.begin(), to_json(&document_of(&uid, view)))
}

/// Empty a user's inbox
///
/// The request is durable when it is answered, and is executed in order with the user's pushes: later pushes are kept.
#[utoipa::path(
    delete, path = "/v1/users/{uid}/inbox", tag = "people", operation_id = "delete_inbox",
    params(("uid" = String, Path, description = "The user")),
    responses(
        (status = 202, description = "The inbox will be emptied", body = TaskAnswer, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`disk_full`, `log_closed`, `unavailable`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn delete_inbox(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Push)?;
    let uid = uid_in_path(request.uri().path())?;
    Query::parse(request.uri().query())?.end()?;
    Ok(accepted(append_task(&api, &uid, &PushTask::Wipe { uid: uid.to_string() }).await?))
}

pub(super) fn check_limit(limit: Option<usize>) -> Result<usize, ApiProblem> {
    query::check_limit(limit, LIMIT_DEFAULT, LIMIT_MAX).map_err(|problem| problem.with("field", "limit"))
}

/// Asks the owner of the user's partition for the inbox.
pub(super) async fn read_inbox(
    api: &ApiState,
    uid: Uid,
    platform: Option<Platform>,
    after: u64,
    limit: usize,
) -> Result<InboxView, ApiProblem> {
    let partition = super::push_topic(api)?.place(Some(uid.as_str().as_bytes())).index;
    let PeopleReply::Inbox(view) =
        api.ports.carriers.ask(partition, PeopleQuery::Inbox { uid, platform, after, limit }).await?;
    Ok(view)
}

fn document_of(uid: &Uid, view: InboxView) -> InboxInfo {
    InboxInfo {
        uid: uid.to_string(),
        epoch: view.epoch.to_string(),
        stored: view.stored,
        next_after: view.next_after,
        messages: view.messages.iter().map(message_document).collect(),
        seats: view.seats.into_iter().map(seat_document).collect(),
    }
}

fn message_document(stored: &InboxMessage) -> StoredMessage {
    let message = &stored.message;
    let content_type = message.content_type.as_deref();
    let text = std::str::from_utf8(&message.payload).ok().filter(|_| may_be_text(content_type.map(str::as_bytes)));
    StoredMessage {
        seq: stored.seq,
        id: message.id.to_string(),
        sent_at: message.sent_at.to_string(),
        expires_at: stored.expires_at.to_string(),
        content_type: content_type.map(str::to_owned),
        payload: text.map(str::to_owned),
        payload_base64: text.is_none().then(|| STANDARD.encode(&message.payload)),
    }
}

fn seat_document(seat: SeatView) -> SeatInfo {
    SeatInfo {
        platform: seat.platform.to_string(),
        device: seat.device.into(),
        cursor: seat.cursor,
        waiting: seat.waiting,
        online: seat.online,
        seen_at: seat.seen_at.to_string(),
    }
}
