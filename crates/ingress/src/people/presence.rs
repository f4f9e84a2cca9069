//! `GET /v1/users/{uid}/presence`, `POST /v1/presence/query` and `GET /v1/presence/events`: who is online.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{OnlineSession, Uid};
use whimbrel_model::ports::{PresenceAnswer, UserSessions};
use whimbrel_model::push::PRESENCE_TOPIC;

use super::super::answer::json_response;
use super::super::attributes::text_header;
use super::super::documents::ProblemDocument;
use super::super::door::Door;
use super::super::keys::Scope;
use super::super::problem::{Code, Problem};
use super::super::query::{Query, shown};
use super::super::read::{Start, take_start};
use super::super::subscriptions::to_json;
use super::super::tail::{Form, Wanted, follow, parse_cursor};
use super::documents::{PresenceDocument, PresenceList, PresenceQuery, SessionDocument};
use super::{fields_of, uid_in_path};

/// Users of one question.
const QUERY_UIDS_MAX: usize = 1_000;

/// Is a user online
#[utoipa::path(
    get, path = "/v1/users/{uid}/presence", tag = "people", operation_id = "get_presence",
    params(("uid" = String, Path, description = "The user")),
    responses(
        (status = 200, description = "What is known; of a user that nobody has seen: not online", body = PresenceDocument, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`not_fresh`: the store has not been heard from for too long; `unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn get_presence(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    door.keys.caller(request.headers())?.require(Scope::Push)?;
    let uid = uid_in_path(request.uri().path())?;
    Query::parse(request.uri().query())?.end()?;
    let answer = look(&door, vec![uid.clone()]).await?;
    let found = answer.users.into_iter().next().unwrap_or_default();
    Ok(json_response(StatusCode::OK, to_json(&document_of(&uid, found, answer.fresh_as_of))))
}

/// Which of these users are online
#[utoipa::path(
    post, path = "/v1/presence/query", tag = "people", operation_id = "query_presence",
    request_body(content = PresenceQuery, content_type = "application/json"),
    responses(
        (status = 200, description = "One for each, in the order of the question", body = PresenceList, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_parameter`, `bad_json`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`not_fresh`, `unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn query_presence(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    door.keys.caller(&parts.headers)?.require(Scope::Push)?;
    let mut fields = fields_of(&door, &parts, body).await?;
    let uids = fields.texts("uids", QUERY_UIDS_MAX)?;
    fields.end()?;
    let uids = check_uids(&uids.unwrap_or_default())?;
    let answer = look(&door, uids.clone()).await?;
    let fresh_as_of = answer.fresh_as_of;
    let users = uids.iter().zip(answer.users).map(|(uid, found)| document_of(uid, found, fresh_as_of)).collect();
    Ok(json_response(StatusCode::OK, to_json(&PresenceList { users, fresh_as_of: fresh_as_of.to_string() })))
}

/// Follow who comes and goes
///
/// Server-sent events: `event: presence` with what the topic `_presence` has as `data`. `event: problem` and comments are as in the
/// tail of a topic.
#[utoipa::path(
    get, path = "/v1/presence/events", tag = "people", operation_id = "presence_events",
    params(
        ("offset" = Option<String>, Query, description = "`latest` (the default) or `earliest`"),
        ("since" = Option<String>, Query, description = "A time in RFC 3339, instead of an offset"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resume behind this event"),
    ),
    responses(
        (status = 200, description = "The stream", body = String, content_type = "text/event-stream"),
        (status = "4XX", description = "`bad_parameter`, `bad_time`, `forbidden`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn presence_events(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    door.keys.caller(&parts.headers)?.require(Scope::Push)?;
    let mut query = Query::parse(parts.uri.query())?;
    let start = take_start(&mut query)?.unwrap_or(Start::Latest);
    query.end()?;
    if matches!(start, Start::Offset(_)) {
        let detail = "`offset` is `latest` or `earliest` here: `Last-Event-ID` resumes at a place";
        return Err(Problem::new(Code::BadParameter, detail));
    }
    let cursor = text_header(&parts.headers, "last-event-id")?.filter(|id| !id.is_empty());
    let cursor = cursor.map(parse_cursor).transpose()?.unwrap_or_default();
    let missing = || Problem::new(Code::Unavailable, format!("the topic `{PRESENCE_TOPIC}` is not there yet"));
    let topic = door.registry.get(PRESENCE_TOPIC).ok_or_else(missing)?;
    follow(door, topic, Wanted { only: None, start, cursor, form: Form::Presence }).await
}

/// The users of a question.
pub(super) fn check_uids(uids: &[String]) -> Result<Vec<Uid>, Problem> {
    if !(1..=QUERY_UIDS_MAX).contains(&uids.len()) {
        let detail = format!("`uids` has 1 to {QUERY_UIDS_MAX} users, not {}", uids.len());
        return Err(Problem::new(Code::BadParameter, detail).with("field", "uids"));
    }
    let wrong = |uid: &str, error| Problem::new(Code::BadUid, format!("`{}`: {error}", shown(uid)));
    uids.iter().map(|uid| Uid::new(uid).map_err(|error| wrong(uid, error).with("field", "uids"))).collect()
}

pub(super) async fn look(door: &Door, uids: Vec<Uid>) -> Result<PresenceAnswer, Problem> {
    Ok(door.ports.presence.of(uids).await?)
}

fn document_of(uid: &Uid, found: UserSessions, fresh_as_of: Timestamp) -> PresenceDocument {
    PresenceDocument {
        uid: uid.to_string(),
        online: !found.sessions.is_empty(),
        sessions: found.sessions.into_iter().map(session_document).collect(),
        last_seen: found.last_seen.map(|at| at.to_string()),
        fresh_as_of: fresh_as_of.to_string(),
    }
}

fn session_document(online: OnlineSession) -> SessionDocument {
    SessionDocument {
        session: online.session.to_string(),
        gateway: online.session.gateway.to_string(),
        platform: online.platform.to_string(),
        device: online.device.into(),
        since: online.since.to_string(),
    }
}
