//! `/v1/holds/{id}`: show, extend, withdraw and fire one hold. All answers come from its owner and are final.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use whimbrel_api::holds::{By, ExtendBody, HoldInfo, HoldOutcome};
use whimbrel_api::problem::Problem;
use whimbrel_model::ports::HoldView;
use whimbrel_model::{HoldEnd, HoldEndKind, HoldId};

use crate::answer::{json_response, to_json};
use crate::api_state::ApiState;
use crate::attributes::{path_part, text_header};
use crate::body::collect_small;
use crate::endpoints::hold_calls::{self, DueChange, HoldLookup, hold_id};
use crate::message_json::text_or_base64;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::Query;

/// The maximum bytes of a body that extends a hold.
const EXTEND_BODY_BYTES_MAX: usize = 16 << 10;

/// Get a hold
///
/// An ended hold is remembered for a while. Its `state` is `fired`, `withdrawn` or `dead`.
#[utoipa::path(
    get, path = "/v1/holds/{id}", tag = "holds", operation_id = "get_hold",
    params(("id" = String, Path, description = "The id of the hold, which is the id of its message")),
    responses(
        (status = 200, description = "The hold", body = HoldInfo, content_type = "application/json"),
        (status = "4XX", description = "`unknown_hold`, `bad_id`, `bad_parameter`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn get_hold(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let id = id_in_path(request.uri().path())?;
    let caller = api.keys.caller(request.headers())?;
    Query::parse(request.uri().query())?.end()?;
    caller.require_view()?;
    let document = match hold_calls::look_up(&api, &caller, &id).await? {
        HoldLookup::Pending(view) => pending_document(&view),
        HoldLookup::Ended(end) => ended_document(&api, &id, &end),
    };
    Ok(answer(&document))
}

/// Change the due time of a hold
///
/// Later or earlier. A repeat with the same `Idempotency-Key` gets the first answer: a repeated `by` moves the due time once.
#[utoipa::path(
    post, path = "/v1/holds/{id}/extend", tag = "holds", operation_id = "extend_hold",
    params(
        ("id" = String, Path, description = "The hold's id"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeat with the same key returns the first answer. Each hold remembers its latest 8 keys"),
    ),
    request_body(content = ExtendBody, content_type = "application/json"),
    responses(
        (status = 200, description = "The hold has a new due time", body = HoldOutcome, content_type = "application/json"),
        (status = "4XX", description = "`unknown_hold`, `forbidden`, `already_fired`, `already_withdrawn`, `already_dead`, `version_differs`, `bad_id`, `bad_json`, `bad_parameter`, `bad_duration`, `bad_time`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn extend_hold(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let id = id_in_path(parts.uri.path())?;
    let caller = api.keys.caller(&parts.headers)?;
    Query::parse(parts.uri.query())?.end()?;
    let key = text_header(&parts.headers, "idempotency-key")?;
    // The load counts until the answer: an extension can wait for its owner.
    let mut load = api.in_flight.begin();
    let body = collect_small(&api, &parts, body, &mut load, EXTEND_BODY_BYTES_MAX).await?;
    let body: ExtendBody =
        serde_json::from_slice(&body).map_err(|error| ApiProblem::new(Code::BadJson, error.to_string()))?;
    let by = body.by.map(|by| match by {
        By::Millis(millis) => millis.to_string(),
        By::Text(text) => text,
    });
    let now = api.ports.clock.now();
    let extension = DueChange::checked(by.as_deref(), body.until.as_deref(), body.if_version, key, now)?;
    let (due, version) = hold_calls::extend(&api, &caller, &id, extension).await?;
    Ok(answer(&HoldOutcome { due: Some(due.to_string()), version: Some(version), ..outcome_of("rescheduled") }))
}

/// Withdraw a hold
///
/// After the answer `withdrawn`, the message never reaches its topic.
#[utoipa::path(
    delete, path = "/v1/holds/{id}", tag = "holds", operation_id = "withdraw_hold",
    params(("id" = String, Path, description = "The hold's id")),
    responses(
        (status = 200, description = "The hold is withdrawn", body = HoldOutcome, content_type = "application/json"),
        (status = "4XX", description = "`unknown_hold`, `forbidden`, `already_fired`, `already_withdrawn`, `already_dead`, `bad_id`, `bad_parameter`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn withdraw_hold(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let id = id_in_path(request.uri().path())?;
    let caller = api.keys.caller(request.headers())?;
    Query::parse(request.uri().query())?.end()?;
    hold_calls::withdraw(&api, &caller, &id).await?;
    Ok(answer(&outcome_of("withdrawn")))
}

/// Fire a hold now
#[utoipa::path(
    post, path = "/v1/holds/{id}/fire", tag = "holds", operation_id = "fire_hold",
    params(("id" = String, Path, description = "The hold's id")),
    responses(
        (status = 200, description = "The message is in its topic", body = HoldOutcome, content_type = "application/json"),
        (status = "4XX", description = "`unknown_hold`, `forbidden`, `already_fired`, `already_withdrawn`, `already_dead`, `bad_id`, `bad_parameter`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn fire_hold(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let id = id_in_path(request.uri().path())?;
    let caller = api.keys.caller(request.headers())?;
    Query::parse(request.uri().query())?.end()?;
    let place = hold_calls::fire(&api, &caller, &id).await?;
    Ok(answer(&HoldOutcome {
        fired_at: Some(place.at.to_string()),
        partition: Some(place.partition),
        offset: place.offset,
        ..outcome_of("fired")
    }))
}

fn id_in_path(path: &str) -> Result<HoldId, ApiProblem> {
    hold_id(&path_part(path, "/v1/holds/")?)
}

fn answer(document: &impl serde::Serialize) -> Response {
    json_response(StatusCode::OK, to_json(document))
}

fn outcome_of(outcome: &str) -> HoldOutcome {
    HoldOutcome { outcome: outcome.to_owned(), ..HoldOutcome::default() }
}

/// The document of a pending hold.
pub(crate) fn pending_document(view: &HoldView) -> HoldInfo {
    let (key, key_base64) = text_or_base64(view.key.as_deref());
    HoldInfo {
        id: view.id.to_string(),
        topic: view.topic_name.to_string(),
        key,
        key_base64,
        state: "held".to_owned(),
        due: view.due.to_string(),
        published_at: view.published_at.to_string(),
        version: Some(view.version),
        ..HoldInfo::default()
    }
}

/// The document of an ended hold.
pub(crate) fn ended_document(api: &ApiState, id: &HoldId, end: &HoldEnd) -> HoldInfo {
    let at = Some(end.at.to_string());
    let document = HoldInfo {
        id: id.to_string(),
        topic: hold_calls::topic_name(api, end.topic),
        due: end.due.to_string(),
        published_at: end.published_at.to_string(),
        ..HoldInfo::default()
    };
    match &end.how {
        HoldEndKind::Fired { partition } => {
            HoldInfo { state: "fired".to_owned(), fired_at: at, partition: Some(*partition), ..document }
        }
        HoldEndKind::Withdrawn => HoldInfo { state: "withdrawn".to_owned(), withdrawn_at: at, ..document },
        HoldEndKind::Dead { reason } => {
            HoldInfo { state: "dead".to_owned(), died_at: at, reason: Some(reason.to_string()), ..document }
        }
    }
}
