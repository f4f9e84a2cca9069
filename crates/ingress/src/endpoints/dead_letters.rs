//! `…/dead-letters` and `…/redrive`: lists messages that Whimbrel gave up delivering, and delivers them again.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::StatusCode;
use whimbrel_api::dead_letters::{DeadLetterInfo, DeadLetterPage, Redrive, Redriven};
use whimbrel_api::problem::Problem;
use whimbrel_model::Timestamp;
use whimbrel_model::ports::{DeadLetter, DispatchReply, DispatchRequest};

use crate::answer::{bounded_json_response, json_response, to_json};
use crate::api_state::ApiState;
use crate::endpoints::subscription_calls::{ask, find, find_with_fields, name_in_path, wrong_reply};
use crate::endpoints::subscriptions::require_view;
use crate::json_fields::JsonFields;
use crate::keys::Scope;
use crate::message_json::text_or_base64;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, check_limit};
use whimbrel_catalogue::subscriptions::Subscription;

const LIST_DEFAULT: usize = 100;
const LIST_MAX: usize = 1_000;
/// The maximum number of ids in one redrive.
const REDRIVE_IDS_MAX: usize = 10_000;

/// List dead letters
#[utoipa::path(
    get, path = "/v1/subscriptions/{name}/dead-letters", tag = "subscriptions", operation_id = "list_dead_letters",
    params(
        ("name" = String, Path, description = "The subscription"),
        ("limit" = Option<usize>, Query, description = "The maximum number of dead letters: 1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "The `cursor` of the previous page"),
    ),
    responses(
        (status = 200, description = "The dead letters", body = DeadLetterPage, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `bad_parameter`, `forbidden`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn list_dead_letters(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let name = name_in_path(request.uri().path())?;
    let caller = api.keys.caller(request.headers())?;
    require_view(&caller)?;
    let (from, limit) = list_page(Query::parse(request.uri().query())?)?;
    let subscription = find(&api, &caller, &name)?;
    list_of(&api, &subscription, from, limit).await
}

/// The start position and limit of a list request.
pub(crate) fn list_page(mut query: Query<'_>) -> Result<(u64, usize), ApiProblem> {
    let limit = query.take_parsed("limit", "a number")?;
    let from: u64 = query.take_parsed("cursor", "the `cursor` of an earlier page")?.unwrap_or(0);
    query.end()?;
    Ok((from, check_limit(limit, LIST_DEFAULT, LIST_MAX)?))
}

pub(crate) async fn list_of(api: &ApiState, subscription: &Subscription, from: u64, limit: usize) -> ApiResult {
    match ask(api, subscription.number(), DispatchRequest::DeadLetters { from, limit }).await? {
        DispatchReply::DeadLetters { letters, next } => {
            let dead_letters = letters.into_iter().map(document_of).collect();
            let list = DeadLetterPage { dead_letters, cursor: next.map(|next| next.to_string()) };
            bounded_json_response(api.answers.begin(), to_json(&list))
        }
        other => Err(wrong_reply(&other)),
    }
}

/// Redrive dead letters
///
/// Delivers them again, beginning with attempt 1.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/redrive", tag = "subscriptions", operation_id = "redrive",
    params(("name" = String, Path, description = "The subscription")),
    request_body(content = Redrive, content_type = "application/json"),
    responses(
        (status = 200, description = "The number of redriven messages", body = Redriven, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`: a repeat may deliver some messages twice", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn redrive(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (subscription, fields) = find_with_fields(&api, Scope::Admin, &parts, body).await?;
    redrive_of(&api, &subscription, selected_ids(fields)?).await
}

/// The selected dead letters: some ids, or `None` for all.
pub(crate) fn selected_ids(mut fields: JsonFields) -> Result<Option<Vec<String>>, ApiProblem> {
    let (ids, all) = (fields.texts("ids", REDRIVE_IDS_MAX)?, fields.flag("all")?);
    fields.end()?;
    match (ids, all) {
        (Some(ids), None | Some(false)) if !ids.is_empty() => Ok(Some(ids)),
        (None, Some(true)) => Ok(None),
        _ => Err(ApiProblem::new(Code::BadParameter, "set either `ids` or `\"all\":true`")),
    }
}

pub(crate) async fn redrive_of(api: &ApiState, subscription: &Subscription, ids: Option<Vec<String>>) -> ApiResult {
    match ask(api, subscription.number(), DispatchRequest::Redrive { ids }).await? {
        DispatchReply::Redriven { count, unknown } => {
            Ok(json_response(StatusCode::OK, to_json(&Redriven { redriven: count, unknown })))
        }
        other => Err(wrong_reply(&other)),
    }
}

fn document_of(letter: DeadLetter) -> DeadLetterInfo {
    let (key, key_base64) = text_or_base64(letter.key.as_deref());
    let origin = letter.origin;
    DeadLetterInfo {
        id: letter.id,
        topic: origin.topic,
        partition: origin.partition,
        offset: origin.offset,
        key,
        key_base64,
        reason: origin.reason.unwrap_or_default(),
        attempts: origin.attempts,
        last_status: origin.last_status,
        last_answer: origin.last_answer,
        died_at: origin.died_at_ms.map(|ms| Timestamp::from_millis(ms).to_string()),
        dead_offset: letter.at,
        more: serde_json::Map::new(),
    }
}
