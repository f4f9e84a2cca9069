//! `…/dead-letters` and `…/redrive`: what could not be delivered, and another try at it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use whimbrel_model::Timestamp;
use whimbrel_model::ports::{DeadLetter, DispatchAsk, DispatchTold};

use super::answer::{bounded_json_response, json_response};
use super::documents::ProblemDocument;
use super::door::Door;
use super::keys::Scope;
use super::problem::{Code, Problem};
use super::query::Query;
use super::subscription_calls::{ask, find, found_with_fields, name_in_path, not_understood};
use super::subscriptions::{require_looking, to_json};
use whimbrel_catalogue::subscriptions::Subscription;

const LIST_DEFAULT: usize = 100;
const LIST_MAX: usize = 1_000;
/// Ids that one redrive names.
pub(super) const REDRIVE_IDS_MAX: usize = 10_000;

/// A message that could not be delivered.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = DeadLetter)]
pub struct DeadLetterDocument {
    pub id: String,
    /// Where the message is.
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key, where it is not UTF-8 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    pub reason: String,
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<u16>,
    /// The start of the last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_answer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_at: Option<String>,
    /// Its offset in the topic of dead letters, `_dead.<subscription>`.
    pub dead_offset: u64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterList {
    /// The oldest first; those that were redriven are left out.
    pub dead_letters: Vec<DeadLetterDocument>,
    /// Where there may be more: go on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Which dead letters: exactly one of the two.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RedriveBody {
    /// Of these messages.
    pub ids: Option<Vec<String>>,
    pub all: Option<bool>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RedriveAnswer {
    /// How many are delivered anew.
    pub redriven: u64,
    /// Ids of which there is no dead letter, or none that was not redriven already.
    pub unknown: Vec<String>,
}

/// List dead letters
#[utoipa::path(
    get, path = "/v1/subscriptions/{name}/dead-letters", tag = "subscriptions", operation_id = "list_dead_letters",
    params(
        ("name" = String, Path, description = "The subscription"),
        ("limit" = Option<usize>, Query, description = "At most so many: 1 to 1000, 100 where it is not given"),
        ("cursor" = Option<String>, Query, description = "The `cursor` of the previous page"),
    ),
    responses(
        (status = 200, description = "The dead letters", body = DeadLetterList, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `bad_parameter`, `forbidden`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_dead_letters(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let name = name_in_path(request.uri().path())?;
    let caller = door.keys.caller(request.headers())?;
    require_looking(&caller)?;
    let (from, limit) = list_page(Query::parse(request.uri().query())?)?;
    let subscription = find(&door, &caller, &name)?;
    list_of(&door, &subscription, from, limit).await
}

/// Which page of a listing is asked for: from where on, and how many.
pub(super) fn list_page(mut query: Query<'_>) -> Result<(u64, usize), Problem> {
    let limit: usize = query.take_parsed("limit", "a number")?.unwrap_or(LIST_DEFAULT);
    let from: u64 = query.take_parsed("cursor", "one of an earlier page")?.unwrap_or(0);
    query.end()?;
    if !(1..=LIST_MAX).contains(&limit) {
        return Err(Problem::new(Code::BadParameter, format!("`limit` is 1 to {LIST_MAX}, not {limit}")));
    }
    Ok((from, limit))
}

pub(super) async fn list_of(
    door: &Door,
    subscription: &Subscription,
    from: u64,
    limit: usize,
) -> Result<Response, Problem> {
    match ask(door, subscription.number(), DispatchAsk::DeadLetters { from, limit }).await? {
        DispatchTold::DeadLetters { letters, next } => {
            let dead_letters = letters.into_iter().map(document_of).collect();
            let list = DeadLetterList { dead_letters, cursor: next.map(|next| next.to_string()) };
            bounded_json_response(door.answers.begin(), to_json(&list))
        }
        other => Err(not_understood(&other)),
    }
}

/// Deliver dead letters anew
///
/// Each begins again with its first attempt.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/redrive", tag = "subscriptions", operation_id = "redrive",
    params(("name" = String, Path, description = "The subscription")),
    request_body(content = RedriveBody, content_type = "application/json"),
    responses(
        (status = 200, description = "How many", body = RedriveAnswer, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`: some may be delivered twice where it is repeated", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn redrive(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = found_with_fields(&door, Scope::Admin, &parts, body).await?;
    let (ids, all) = (fields.texts("ids", REDRIVE_IDS_MAX)?, fields.flag("all")?);
    fields.end()?;
    redrive_of(&door, &subscription, wanted_ids(ids, all)?).await
}

/// Which dead letters are meant: those of some ids, or all of them.
pub(super) fn wanted_ids(ids: Option<Vec<String>>, all: Option<bool>) -> Result<Option<Vec<String>>, Problem> {
    match (ids, all) {
        (Some(ids), None | Some(false)) if !ids.is_empty() => Ok(Some(ids)),
        (None, Some(true)) => Ok(None),
        _ => Err(Problem::new(Code::BadParameter, "give `ids`, or `\"all\":true`")),
    }
}

pub(super) async fn redrive_of(
    door: &Door,
    subscription: &Subscription,
    ids: Option<Vec<String>>,
) -> Result<Response, Problem> {
    match ask(door, subscription.number(), DispatchAsk::Redrive { ids }).await? {
        DispatchTold::Redriven { count, unknown } => {
            Ok(json_response(StatusCode::OK, to_json(&RedriveAnswer { redriven: count, unknown })))
        }
        other => Err(not_understood(&other)),
    }
}

fn document_of(letter: DeadLetter) -> DeadLetterDocument {
    let (key, key_base64) = match letter.key.map(String::from_utf8) {
        None => (None, None),
        Some(Ok(text)) => (Some(text), None),
        Some(Err(error)) => (None, Some(STANDARD.encode(error.as_bytes()))),
    };
    let origin = letter.origin;
    DeadLetterDocument {
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
    }
}
