//! `POST /v1/users/{uid}/messages`, `POST /v1/users/messages` and `POST /v1/users/batch`: to one user, to many, many pushes at once.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;

use super::super::accept::Refusal;
use super::super::answer::{held_until_taken, json_response};
use super::super::batch::{bytes_expected, entries_expected, load_of_answer, read_entries, too_large_bytes};
use super::super::body::collect;
use super::super::documents::ProblemDocument;
use super::super::door::Door;
use super::super::keys::{Caller, Scope};
use super::super::problem::{Code, Problem};
use super::super::query::Query;
use super::documents::{BatchPush, ManyPush, NewPush, PushAnswer, PushBatchAnswer};
use super::push_accept::{Pushed, accept_pushes, partly};
use super::push_entry::{PushReader, Pushes, Whom};
use super::{push_topic, uid_in_path};

/// What the answer to one push takes, about.
const ANSWER_BYTES_TYPICAL: usize = 48;

/// Push to a user
///
/// It is durable when this answers: live to the devices that are connected, stored for those that are not, unless `"store":false`. An
/// `id` or an `origin` makes a repeat return the first answer.
#[utoipa::path(
    post, path = "/v1/users/{uid}/messages", tag = "people", operation_id = "push",
    params(("uid" = String, Path, description = "The user: 1 to 128 bytes without control characters")),
    request_body(content = NewPush, content_type = "application/json"),
    responses(
        (status = 202, description = "The push is durable; with `state` and `due` where it is held", body = PushAnswer, content_type = "application/json"),
        (status = "4XX", description = "`bad_json`, `bad_parameter`, `bad_uid`, `bad_platform`, `bad_duration`, `bad_id`, `different_body`, `in_progress`, `id_taken`, `payload_too_large`, `overloaded`, `forbidden`, `body_too_slow`, `bad_body`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`disk_full`, `log_closed`, `unavailable`, `no_owner`, `outcome_unknown`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn push(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let caller = admit(&door, &parts)?;
    let uid = uid_in_path(parts.uri.path())?;
    push_one(&door, &caller, &parts, body, Whom::Path(uid.as_str())).await
}

/// Push to many users
///
/// One body for up to 10 000 users, each once. The body is stored once in each partition, and referenced.
#[utoipa::path(
    post, path = "/v1/users/messages", tag = "people", operation_id = "push_many",
    request_body(content = ManyPush, content_type = "application/json"),
    responses(
        (status = 202, description = "The push is durable for all of them; with `state`, `due` and `holds` where it is held", body = PushAnswer, content_type = "application/json"),
        (status = "4XX", description = "As for one user", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "As for one user, and `partly_appended`: some partitions have it and others do not; repeated under its `id` it goes to the others", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn push_many(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let caller = admit(&door, &parts)?;
    push_one(&door, &caller, &parts, body, Whom::Many).await
}

/// Push many messages
///
/// A JSON array, or NDJSON (`application/x-ndjson`), of pushes that each have a `uid` or `uids`. The answers are in the order of the
/// entries and come when all are durable. A batch with a bad entry is refused whole, with the entry's `index`; where only some could be
/// taken, the problem `partly_appended` has `messages`, each an answer or an error.
#[utoipa::path(
    post, path = "/v1/users/batch", tag = "people", operation_id = "push_batch",
    request_body(content((Vec<BatchPush> = "application/json"), (BatchPush = "application/x-ndjson"))),
    responses(
        (status = 202, description = "All pushes are durable", body = PushBatchAnswer, content_type = "application/json"),
        (status = "4XX", description = "`bad_json`, `bad_entry` and what a single push refuses, with the entry's `index`; `batch_too_large`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`partly_appended`, and as for one user", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn push_batch(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let caller = admit(&door, &parts)?;
    let topic = push_topic(&door)?;
    let mut load = door.in_flight.begin();
    let mut pushes = Pushes::default();
    pushes.drafts.reserve(entries_expected(&parts.headers, &door.settings));
    let mut reader = PushReader::new(&door, &topic, Code::BadEntry, bytes_expected(&parts.headers, &door.settings));
    let take = |entry: &[u8]| reader.read(entry, Whom::Either, &mut pushes);
    read_entries(&door.settings, body, &parts.headers, &mut load, take).await?;
    let begun = Instant::now();
    let count = pushes.each.len();
    door.figures.batch_messages.record(count as f64);
    if count == 0 {
        return Ok(json_response(StatusCode::ACCEPTED, r#"{"messages":[]}"#));
    }
    let answer_load = load_of_answer(&door, count, "")?;
    let outcomes = accept_pushes(&door, caller.owner(), pushes, load).await.map_err(Refusal::into_problem)?;
    door.figures.publish_seconds.record(begun.elapsed());
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

/// Lets whoever may push pass. An idempotency key would do nothing here, so that is told.
fn admit(door: &Door, parts: &Parts) -> Result<Caller, Problem> {
    let caller = door.keys.caller(&parts.headers)?;
    caller.require(Scope::Push)?;
    Query::parse(parts.uri.query())?.end()?;
    if parts.headers.contains_key("idempotency-key") {
        let detail = "a push is made safe to repeat by its `id` or its `origin`, not by an idempotency key";
        return Err(Problem::new(Code::BadParameter, detail));
    }
    Ok(caller)
}

async fn push_one(
    door: &Arc<Door>,
    caller: &Caller,
    parts: &Parts,
    body: Body,
    whom: Whom<'_>,
) -> Result<Response, Problem> {
    let topic = push_topic(door)?;
    let (mut load, limit) = (door.in_flight.begin(), door.settings.batch_bytes_max);
    let too_large = || too_large_bytes(limit);
    let body = collect(body, &parts.headers, &mut load, door.settings.body_wait, limit, too_large).await?;
    let begun = Instant::now();
    let mut pushes = Pushes::default();
    PushReader::new(door, &topic, Code::BadParameter, body.len()).read(&body, whom, &mut pushes)?;
    let mut outcomes = accept_pushes(door, caller.owner(), pushes, load).await.map_err(|refusal| refusal.problem)?;
    let pushed: Pushed = outcomes.pop().expect("there is one outcome for each push")?;
    door.figures.publish_seconds.record(begun.elapsed());
    let mut json = String::with_capacity(ANSWER_BYTES_TYPICAL);
    pushed.write_to(&mut json);
    Ok(json_response(StatusCode::ACCEPTED, json))
}
