//! `/v1/holds/{id}`: looking at one hold, moving it, taking it back, firing it. Every answer is the owner's, and definite.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;
use whimbrel_model::ports::HoldView;
use whimbrel_model::{Ending, HoldEnd, HoldId};

use super::answer::json_response;
use super::attributes::{path_part, text_header};
use super::body::collect;
use super::documents::{HoldDocument, HoldOutcomeDocument, ProblemDocument};
use super::door::Door;
use super::hold_calls::{self, Extension, Found, hold_id};
use super::problem::{Code, Problem};
use super::query::Query;

/// Bytes of a body that says how a hold is moved.
const EXTEND_BODY_BYTES_MAX: usize = 16 << 10;

/// How a hold's due time is moved: exactly one of `by` and `until`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendBody {
    /// Later than it was due by a duration such as `10m`, earlier by `-10m`, or so many milliseconds.
    #[schema(value_type = Option<String>)]
    by: Option<By>,
    /// A time in RFC 3339. One in the past fires now.
    until: Option<String>,
    /// Only where the hold has this version.
    if_version: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum By {
    Millis(i64),
    Text(String),
}

/// Look at a hold
///
/// A hold that is over stays known for a while: then `state` is `fired`, `withdrawn` or `dead`.
#[utoipa::path(
    get, path = "/v1/holds/{id}", tag = "holds", operation_id = "get_hold",
    params(("id" = String, Path, description = "The hold's id, which is its message's")),
    responses(
        (status = 200, description = "The hold", body = HoldDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_hold`, `bad_id`, `bad_parameter`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_hold(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let id = id_in_path(request.uri().path())?;
    let caller = door.keys.caller(request.headers())?;
    Query::parse(request.uri().query())?.end()?;
    caller.require_looking()?;
    let document = match hold_calls::look(&door, &caller, &id).await? {
        Found::Pending(view) => pending_document(&view),
        Found::Ended(end) => ended_document(&door, &id, &end),
    };
    Ok(answer(&document))
}

/// Move a hold's due time
///
/// In either direction. With an `Idempotency-Key` a repeat gets the first answer: a repeated `by` moves once.
#[utoipa::path(
    post, path = "/v1/holds/{id}/extend", tag = "holds", operation_id = "extend_hold",
    params(
        ("id" = String, Path, description = "The hold's id"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repeat return the first answer; the latest 8 are remembered"),
    ),
    request_body(content = ExtendBody, content_type = "application/json"),
    responses(
        (status = 200, description = "It is due at another time", body = HoldOutcomeDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_hold`, `forbidden`, `already_fired`, `already_withdrawn`, `already_dead`, `version_differs`, `bad_id`, `bad_json`, `bad_parameter`, `bad_duration`, `bad_time`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn extend_hold(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let id = id_in_path(parts.uri.path())?;
    let caller = door.keys.caller(&parts.headers)?;
    Query::parse(parts.uri.query())?.end()?;
    let key = text_header(&parts.headers, "idempotency-key")?;
    let too_large = || Problem::new(Code::PayloadTooLarge, "what moves a hold is small");
    let (mut load, wait) = (door.in_flight.begin(), door.settings.body_wait);
    let body = collect(body, &parts.headers, &mut load, wait, EXTEND_BODY_BYTES_MAX, too_large).await?;
    let body: ExtendBody =
        serde_json::from_slice(&body).map_err(|error| Problem::new(Code::BadJson, error.to_string()))?;
    let by = body.by.map(|by| match by {
        By::Millis(millis) => millis.to_string(),
        By::Text(text) => text,
    });
    let now = door.ports.clock.now();
    let extension = Extension::checked(by.as_deref(), body.until.as_deref(), body.if_version, key, now)?;
    let (due, version) = hold_calls::extend(&door, &caller, &id, extension).await?;
    Ok(answer(&HoldOutcomeDocument {
        due: Some(due.to_string()),
        version: Some(version),
        ..HoldOutcomeDocument::of("rescheduled")
    }))
}

/// Take a hold back
///
/// Where this answers `withdrawn`, the message never reaches its topic.
#[utoipa::path(
    delete, path = "/v1/holds/{id}", tag = "holds", operation_id = "withdraw_hold",
    params(("id" = String, Path, description = "The hold's id")),
    responses(
        (status = 200, description = "It was taken back", body = HoldOutcomeDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_hold`, `forbidden`, `already_fired`, `already_withdrawn`, `already_dead`, `bad_id`, `bad_parameter`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn withdraw_hold(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let id = id_in_path(request.uri().path())?;
    let caller = door.keys.caller(request.headers())?;
    Query::parse(request.uri().query())?.end()?;
    hold_calls::withdraw(&door, &caller, &id).await?;
    Ok(answer(&HoldOutcomeDocument::of("withdrawn")))
}

/// Fire a hold now
#[utoipa::path(
    post, path = "/v1/holds/{id}/fire", tag = "holds", operation_id = "fire_hold",
    params(("id" = String, Path, description = "The hold's id")),
    responses(
        (status = 200, description = "Its message is in its topic", body = HoldOutcomeDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_hold`, `forbidden`, `already_fired`, `already_withdrawn`, `already_dead`, `bad_id`, `bad_parameter`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn fire_hold(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let id = id_in_path(request.uri().path())?;
    let caller = door.keys.caller(request.headers())?;
    Query::parse(request.uri().query())?.end()?;
    let place = hold_calls::fire(&door, &caller, &id).await?;
    Ok(answer(&HoldOutcomeDocument {
        fired_at: Some(place.at.to_string()),
        partition: Some(place.partition),
        offset: place.offset,
        ..HoldOutcomeDocument::of("fired")
    }))
}

fn id_in_path(path: &str) -> Result<HoldId, Problem> {
    hold_id(&path_part(path, "/v1/holds/")?)
}

fn answer(document: &impl serde::Serialize) -> Response {
    json_response(StatusCode::OK, serde_json::to_vec(document).expect("a document is plain data"))
}

/// A pending hold, as it is shown.
pub(super) fn pending_document(view: &HoldView) -> HoldDocument {
    let mut document = HoldDocument {
        id: view.id.to_string(),
        topic: view.topic_name.to_string(),
        state: "held".to_owned(),
        due: view.due.to_string(),
        published_at: view.published_at.to_string(),
        version: Some(view.version),
        ..HoldDocument::default()
    };
    if let Some(key) = &view.key {
        match std::str::from_utf8(key) {
            Ok(text) => document.key = Some(text.to_owned()),
            Err(_) => {
                use base64::Engine;
                document.key_base64 = Some(base64::engine::general_purpose::STANDARD.encode(key));
            }
        }
    }
    document
}

/// A hold that is over, as it is shown.
pub(super) fn ended_document(door: &Door, id: &HoldId, end: &HoldEnd) -> HoldDocument {
    let at = Some(end.at.to_string());
    let document = HoldDocument {
        id: id.to_string(),
        topic: hold_calls::topic_name(door, end.topic),
        due: end.due.to_string(),
        published_at: end.published_at.to_string(),
        ..HoldDocument::default()
    };
    match &end.how {
        Ending::Fired { partition } => {
            HoldDocument { state: "fired".to_owned(), fired_at: at, partition: Some(*partition), ..document }
        }
        Ending::Withdrawn => HoldDocument { state: "withdrawn".to_owned(), withdrawn_at: at, ..document },
        Ending::Dead { reason } => {
            HoldDocument { state: "dead".to_owned(), died_at: at, reason: Some(reason.to_string()), ..document }
        }
    }
}
