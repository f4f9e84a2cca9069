//! `GET /v1/users/{uid}/presence`, `POST /v1/presence/query` and `GET /v1/presence/events`: who is online.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::StatusCode;
use whimbrel_api::people::{PresenceInfo, PresencePage, PresenceQuery, SessionInfo};
use whimbrel_api::problem::Problem;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{OnlineSession, Uid};
use whimbrel_model::ports::{PresenceAnswer, UserSessions};
use whimbrel_model::push::PRESENCE_TOPIC;

use super::{fields_of, uid_in_path};
use crate::answer::{json_response, to_json};
use crate::api_state::ApiState;
use crate::attributes::text_header;
use crate::endpoints::read::{ReadStart, take_start};
use crate::endpoints::tail::{TailFormat, TailRequest, follow, parse_cursor};
use crate::keys::Scope;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, shown};

/// The maximum number of users in one request.
const QUERY_UIDS_MAX: usize = 1_000;

/// Get the presence of a user
#[utoipa::path(
    get, path = "/v1/users/{uid}/presence", tag = "people", operation_id = "get_presence",
    params(("uid" = String, Path, description = "The user")),
    responses(
        (status = 200, description = "The presence of the user. An unknown user is offline", body = PresenceInfo, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`presence_stale`: the presence store has not answered for too long; `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn get_presence(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Push)?;
    let uid = uid_in_path(request.uri().path())?;
    Query::parse(request.uri().query())?.end()?;
    let answer = ask_presence(&api, vec![uid.clone()]).await?;
    let found = answer.users.into_iter().next().unwrap_or_default();
    Ok(json_response(StatusCode::OK, to_json(&document_of(&uid, found, answer.fresh_as_of))))
}

/// Get the presence of several users
#[utoipa::path(
    post, path = "/v1/presence/query", tag = "people", operation_id = "query_presence",
    request_body(content = PresenceQuery, content_type = "application/json"),
    responses(
        (status = 200, description = "One entry for each user, in the order of the request", body = PresencePage, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_parameter`, `bad_json`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`presence_stale`, `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn query_presence(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    api.keys.caller(&parts.headers)?.require(Scope::Push)?;
    let mut fields = fields_of(&api, &parts, body).await?;
    let uids = fields.texts("uids", QUERY_UIDS_MAX)?;
    fields.end()?;
    let uids = check_uids(&uids.unwrap_or_default())?;
    let answer = ask_presence(&api, uids.clone()).await?;
    let fresh_as_of = answer.fresh_as_of;
    let users = uids.iter().zip(answer.users).map(|(uid, found)| document_of(uid, found, fresh_as_of)).collect();
    Ok(json_response(StatusCode::OK, to_json(&PresencePage { users, fresh_as_of: fresh_as_of.to_string() })))
}

/// Follow presence changes
///
/// Server-sent events: `event: presence` with a record of the topic `_presence` as `data`. `event: problem` and comments are as in the tail
/// of a topic.
#[utoipa::path(
    get, path = "/v1/presence/events", tag = "people", operation_id = "presence_events",
    params(
        ("offset" = Option<String>, Query, description = "`latest` (the default) or `earliest`"),
        ("since" = Option<String>, Query, description = "A time in RFC 3339, instead of an offset"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resume after this event"),
    ),
    responses(
        (status = 200, description = "The stream", body = String, content_type = "text/event-stream"),
        (status = "4XX", description = "`bad_parameter`, `bad_time`, `forbidden`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn presence_events(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, _) = request.into_parts();
    api.keys.caller(&parts.headers)?.require(Scope::Push)?;
    let mut query = Query::parse(parts.uri.query())?;
    let start = take_start(&mut query)?.unwrap_or(ReadStart::Latest);
    query.end()?;
    if matches!(start, ReadStart::Offset(_)) {
        let detail = "`offset` must be `latest` or `earliest`; use `Last-Event-ID` to resume";
        return Err(ApiProblem::new(Code::BadParameter, detail));
    }
    let cursor = text_header(&parts.headers, "last-event-id")?.filter(|id| !id.is_empty());
    let cursor = cursor.map(parse_cursor).transpose()?.unwrap_or_default();
    let missing = || ApiProblem::new(Code::Unavailable, format!("topic `{PRESENCE_TOPIC}` does not exist yet"));
    let topic = api.registry.get(PRESENCE_TOPIC).ok_or_else(missing)?;
    follow(api, topic, TailRequest { only: None, start, cursor, format: TailFormat::Presence }).await
}

/// Validates the users of a request.
pub(super) fn check_uids(uids: &[String]) -> Result<Vec<Uid>, ApiProblem> {
    if !(1..=QUERY_UIDS_MAX).contains(&uids.len()) {
        let detail = format!("`uids` must have 1 to {QUERY_UIDS_MAX} users, got {}", uids.len());
        return Err(ApiProblem::new(Code::BadParameter, detail).with("field", "uids"));
    }
    let wrong = |uid: &str, error| ApiProblem::new(Code::BadUid, format!("`{}`: {error}", shown(uid)));
    uids.iter().map(|uid| Uid::new(uid).map_err(|error| wrong(uid, error).with("field", "uids"))).collect()
}

pub(super) async fn ask_presence(api: &ApiState, uids: Vec<Uid>) -> Result<PresenceAnswer, ApiProblem> {
    Ok(api.ports.presence.of(uids).await?)
}

fn document_of(uid: &Uid, found: UserSessions, fresh_as_of: Timestamp) -> PresenceInfo {
    PresenceInfo {
        uid: uid.to_string(),
        online: !found.sessions.is_empty(),
        sessions: found.sessions.into_iter().map(session_document).collect(),
        last_seen: found.last_seen.map(|at| at.to_string()),
        fresh_as_of: fresh_as_of.to_string(),
    }
}

fn session_document(online: OnlineSession) -> SessionInfo {
    SessionInfo {
        session: online.session.to_string(),
        gateway: online.session.gateway.to_string(),
        platform: online.platform.to_string(),
        device: online.device.into(),
        since: online.since.to_string(),
    }
}
