//! `POST /v1/users/{uid}/messages`, `POST /v1/users/messages` and `POST /v1/users/batch`: a push to one user, to many, and batches.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use http::StatusCode;
use http::request::Parts;

use super::push_accept::{StoredPush, accept_pushes, partly};
use super::push_entry::{PushReader, Pushes, UidSource};
use super::{push_topic, uid_in_path};
use crate::accept::AcceptError;
use crate::answer::{held_until_taken, json_response};
use crate::api_state::ApiState;
use crate::body::collect;
use crate::endpoints::batch::{bytes_expected, entries_expected, load_of_answer, read_entries, too_large_bytes};
use crate::keys::{Caller, Scope};
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::Query;
use whimbrel_api::people::{BatchPush, ManyPush, PushBatchAnswer, PushBody, Pushed};
use whimbrel_api::problem::Problem;

/// The approximate bytes of the answer to one push.
const ANSWER_BYTES_TYPICAL: usize = 48;

/// Push to a user
///
/// The push is durable when it is answered. Connected devices get it at once; for the others it is stored, unless `"store":false`. A repeat
/// with the same `id` or `origin` returns the first answer.
#[utoipa::path(
    post, path = "/v1/users/{uid}/messages", tag = "people", operation_id = "push",
    params(("uid" = String, Path, description = "The user: 1 to 128 bytes without control characters")),
    request_body(content = PushBody, content_type = "application/json"),
    responses(
        (status = 202, description = "The push is durable. A held push has `state` and `due`", body = Pushed, content_type = "application/json"),
        (status = "4XX", description = "`bad_json`, `bad_parameter`, `bad_uid`, `bad_platform`, `bad_duration`, `bad_id`, `different_body`, `in_progress`, `id_taken`, `payload_too_large`, `overloaded`, `forbidden`, `body_too_slow`, `bad_body`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`disk_full`, `log_closed`, `unavailable`, `no_owner`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn push(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let caller = admit(&api, &parts)?;
    let uid = uid_in_path(parts.uri.path())?;
    push_one(&api, &caller, &parts, body, UidSource::Path(uid.as_str())).await
}

/// Push to many users
///
/// One payload for at most 10 000 users. Each partition stores it once.
#[utoipa::path(
    post, path = "/v1/users/messages", tag = "people", operation_id = "push_many",
    request_body(content = ManyPush, content_type = "application/json"),
    responses(
        (status = 202, description = "The push is durable for all users. A held push has `state`, `due` and `holds`", body = Pushed, content_type = "application/json"),
        (status = "4XX", description = "As for one user", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "As for one user, and `partly_appended`: only some partitions have stored the push. A repeat with the same `id` reaches the others", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn push_many(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let caller = admit(&api, &parts)?;
    push_one(&api, &caller, &parts, body, UidSource::Many).await
}

/// Push a batch of messages
///
/// A JSON array, or NDJSON (`application/x-ndjson`), of pushes with `uid` or `uids`. The answers are in the order of the entries and follow
/// when all pushes are durable. A bad entry rejects the whole batch, with its `index`. If only some pushes were appended, the problem
/// `partly_appended` lists each result in `messages`.
#[utoipa::path(
    post, path = "/v1/users/batch", tag = "people", operation_id = "push_batch",
    request_body(content((Vec<BatchPush> = "application/json"), (BatchPush = "application/x-ndjson"))),
    responses(
        (status = 202, description = "All pushes are durable", body = PushBatchAnswer, content_type = "application/json"),
        (status = "4XX", description = "`bad_json`, `bad_entry` and the codes of a single push, with the entry's `index`; `batch_too_large`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`partly_appended`, and as for one user", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn push_batch(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let caller = admit(&api, &parts)?;
    let topic = push_topic(&api)?;
    let mut load = api.in_flight.begin();
    let mut pushes = Pushes::default();
    pushes.drafts.reserve(entries_expected(&parts.headers, &api.settings));
    let mut reader = PushReader::new(&api, &topic, Code::BadEntry, bytes_expected(&parts.headers, &api.settings));
    let take = |entry: &[u8]| reader.read(entry, UidSource::Either, &mut pushes);
    read_entries(&api.settings, body, &parts.headers, &mut load, take).await?;
    let begun = Instant::now();
    let count = pushes.each.len();
    api.metrics.batch_messages.record(count as f64);
    if count == 0 {
        return Ok(json_response(StatusCode::ACCEPTED, r#"{"messages":[]}"#));
    }
    let answer_load = load_of_answer(&api, count, "")?;
    let outcomes = accept_pushes(&api, caller.owner(), pushes, load).await.map_err(AcceptError::into_problem)?;
    api.metrics.publish_seconds.record(begun.elapsed());
    if outcomes.iter().any(Result::is_err) {
        return Err(partly(outcomes));
    }
    let mut json = String::with_capacity(16 + count * ANSWER_BYTES_TYPICAL);
    json.push_str("{\"messages\":[");
    for (index, pushed) in outcomes.iter().flatten().enumerate() {
        if index > 0 {
            json.push(',');
        }
        pushed.write_to(&mut json);
    }
    json.push_str("]}");
    Ok(json_response(StatusCode::ACCEPTED, held_until_taken(json, Arc::new(answer_load))))
}

/// Authorizes a push. Rejects an idempotency key, because it would have no effect.
fn admit(api: &ApiState, parts: &Parts) -> Result<Caller, ApiProblem> {
    let caller = api.keys.caller(&parts.headers)?;
    caller.require(Scope::Push)?;
    Query::parse(parts.uri.query())?.end()?;
    if parts.headers.contains_key("idempotency-key") {
        let detail = "`Idempotency-Key` is not supported for pushes: use `id` or `origin` to make a repeat safe";
        return Err(ApiProblem::new(Code::BadParameter, detail));
    }
    Ok(caller)
}

async fn push_one(api: &Arc<ApiState>, caller: &Caller, parts: &Parts, body: Body, source: UidSource<'_>) -> ApiResult {
    let topic = push_topic(api)?;
    let (mut load, limit) = (api.in_flight.begin(), api.settings.batch_bytes_max);
    let too_large = || too_large_bytes(limit);
    let body = collect(body, &parts.headers, &mut load, api.settings.body_timeout, limit, too_large).await?;
    let begun = Instant::now();
    let mut pushes = Pushes::default();
    PushReader::new(api, &topic, Code::BadParameter, body.len()).read(&body, source, &mut pushes)?;
    let mut outcomes = accept_pushes(api, caller.owner(), pushes, load).await.map_err(|refusal| refusal.problem)?;
    let pushed: StoredPush = outcomes.pop().expect("each push has one outcome")?;
    api.metrics.publish_seconds.record(begun.elapsed());
    let mut json = String::with_capacity(ANSWER_BYTES_TYPICAL);
    pushed.write_to(&mut json);
    Ok(json_response(StatusCode::ACCEPTED, json))
}
