//! `POST /v1/topics/{topic}/batch`: many messages, as a JSON array or as NDJSON.
//!
//! Entries are parsed while the body arrives, and each piece of the body is let go when it was read: the raw body and its messages
//! are never both held whole. A batch with a bad entry is refused whole, with that entry's index.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::accept::{Accepted, Refusal, accept_many};
use super::answer::{ANSWER_BYTES_TYPICAL, held_until_taken, json_response, write_answer};
use super::attributes::{check_user_topic, topic_in_path};
use super::body::{announced_length, next_chunk};
use super::documents::{BatchAnswer, NewMessageDocument};
use super::door::Door;
use super::draft::Draft;
use super::entry::EntryReader;
use super::keys::Scope;
use super::load::Load;
use super::problem::{Code, Problem};
use super::query::Query;
use super::settings::ReceiveSettings;
use super::split::{Form, NotOfItsForm, Splitter};

/// What one message of a batch takes in its body, about.
const ENTRY_BYTES_TYPICAL: usize = 128;
/// What is made ready for a body that does not say its length: a block of this size at a time.
const UNANNOUNCED_BYTES: usize = 64 << 10;

/// Publish many messages
///
/// A JSON array, or NDJSON (`application/x-ndjson`). The answers are in the order of the entries and come when all are durable. A
/// batch with a bad entry is refused whole, with the entry's `index`; where only some could be taken, the problem
/// `partly_appended` has `messages`, each a place or an error.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/batch", tag = "messages", operation_id = "publish_batch",
    params(("topic" = String, Path, description = "1 to 200 of `A-Za-z0-9._-`, not starting with `_`")),
    request_body(content(
        (Vec<NewMessageDocument> = "application/json"),
        (NewMessageDocument = "application/x-ndjson"),
    )),
    responses(
        (status = 200, description = "All messages are durable", body = BatchAnswer, content_type = "application/json"),
        (status = "4XX", description = "`bad_json`, `bad_entry` and what a single publish refuses, with the entry's `index`; `batch_too_large`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`partly_appended`, `no_owner`, `disk_full`, `log_closed`, `unavailable`, `topic_growing`, `no_session`, `outcome_unknown`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn publish_batch(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let topic = topic_in_path(parts.uri.path())?;
    let caller = door.keys.caller(&parts.headers)?;
    check_user_topic(&topic)?;
    caller.require_topic(Scope::Publish, &topic)?;
    Query::parse(parts.uri.query())?.end()?;
    if parts.headers.contains_key("idempotency-key") {
        let detail = "a batch is made safe to repeat by an `id` in each entry, not by one key for all";
        return Err(Problem::new(Code::BadParameter, detail));
    }
    let mut load = door.in_flight.begin();
    let drafts = read_drafts(&door, body, &parts.headers, &mut load).await?;
    let begun = Instant::now();
    door.figures.batch_messages.record(drafts.len() as f64);
    if drafts.is_empty() {
        return Ok(json_response(StatusCode::OK, r#"{"messages":[]}"#));
    }
    let answer_load = load_of_answer(&door, drafts.len(), &topic)?;
    let outcomes = accept_many(&door, &topic, caller.owner(), drafts, load).await.map_err(Refusal::into_problem)?;
    door.figures.publish_seconds.record(begun.elapsed());
    answer(outcomes, &topic, answer_load)
}

async fn read_drafts(door: &Door, body: Body, headers: &HeaderMap, load: &mut Load) -> Result<Vec<Draft>, Problem> {
    let settings = &door.settings;
    let mut drafts: Vec<Draft> = Vec::with_capacity(entries_expected(headers, settings));
    let mut reader = EntryReader::new(settings, door.ports.clock.now(), bytes_expected(headers, settings));
    read_entries(settings, body, headers, load, |entry| {
        drafts.push(reader.read(entry)?);
        Ok(())
    })
    .await?;
    Ok(drafts)
}

/// The number of bytes for which a reader of a batch makes room at first: at most what a batch may have, whatever the client announces.
pub(super) fn bytes_expected(headers: &HeaderMap, settings: &ReceiveSettings) -> usize {
    announced_length(headers).unwrap_or(UNANNOUNCED_BYTES).min(settings.batch_bytes_max)
}

pub(super) fn entries_expected(headers: &HeaderMap, settings: &ReceiveSettings) -> usize {
    (bytes_expected(headers, settings) / ENTRY_BYTES_TYPICAL).min(settings.batch_messages_max)
}

/// Hands out the entries of a batch while its body arrives, within the limits of a batch. What is wrong with one is told with its index.
pub(super) async fn read_entries(
    settings: &ReceiveSettings,
    mut body: Body,
    headers: &HeaderMap,
    load: &mut Load,
    mut take: impl FnMut(&[u8]) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let too_large = || too_large_bytes(settings.batch_bytes_max);
    if announced_length(headers).is_some_and(|length| length > settings.batch_bytes_max) {
        return Err(too_large());
    }
    let mut splitter = Splitter::new(form_of(headers));
    let mut count = 0;
    let mut each = |entry: &[u8]| -> Result<(), BadBatch> {
        if count == settings.batch_messages_max {
            return Err(BadBatch::Problem(too_large_count(settings.batch_messages_max)));
        }
        take(entry).map_err(|problem| BadBatch::Problem(at_index(problem, count)))?;
        count += 1;
        Ok(())
    };
    let mut received = 0;
    let split = loop {
        let Some(piece) = next_chunk(&mut body, settings.body_wait).await? else { break splitter.finish(&mut each) };
        received += piece.len();
        if received > settings.batch_bytes_max {
            return Err(too_large());
        }
        load.grow(piece.len())?;
        if let Err(bad) = splitter.feed(&piece, &mut each) {
            break Err(bad);
        }
    };
    match split {
        Ok(()) => Ok(()),
        Err(BadBatch::Problem(problem)) => Err(problem),
        Err(BadBatch::Form(why)) => Err(at_index(Problem::new(Code::BadJson, why.to_string()), count)),
    }
}

/// Why a batch is refused while it is read.
enum BadBatch {
    Problem(Problem),
    Form(NotOfItsForm),
}

impl From<NotOfItsForm> for BadBatch {
    fn from(why: NotOfItsForm) -> Self {
        Self::Form(why)
    }
}

fn form_of(headers: &HeaderMap) -> Form {
    let content_type = headers.get(CONTENT_TYPE).map(|value| value.as_bytes()).unwrap_or_default();
    let media_type = content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    let lines = ["application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"];
    if lines.iter().any(|name| media_type.eq_ignore_ascii_case(name.as_bytes())) { Form::Lines } else { Form::Array }
}

pub(super) fn at_index(problem: Problem, index: usize) -> Problem {
    problem.with("index", index)
}

fn too_large(of: &str, limit: usize) -> Problem {
    Problem::new(Code::BatchTooLarge, format!("a batch has at most {limit} {of}")).with("limit", limit)
}

pub(super) fn too_large_bytes(limit: usize) -> Problem {
    too_large("bytes", limit)
}

pub(super) fn too_large_count(limit: usize) -> Problem {
    too_large("messages", limit)
}

/// What the answer to so many messages will take. It is judged before anything is appended: afterwards it is too late to refuse. It
/// counts with the publishes, so that readers who leave their answers untaken keep no publisher out.
pub(super) fn load_of_answer(door: &Door, messages: usize, topic: &str) -> Result<Load, Problem> {
    let mut load = door.in_flight.begin();
    load.grow(answer_bytes(messages, topic))?;
    Ok(load)
}

fn answer_bytes(messages: usize, topic: &str) -> usize {
    16 + messages * (ANSWER_BYTES_TYPICAL + topic.len())
}

fn answer(outcomes: Vec<Result<Accepted, Problem>>, topic: &str, load: Load) -> Result<Response, Problem> {
    if outcomes.iter().any(Result::is_err) {
        return Err(partly(outcomes, topic));
    }
    let mut json = Vec::with_capacity(answer_bytes(outcomes.len(), topic));
    json.extend_from_slice(b"{\"messages\":[");
    for (index, accepted) in outcomes.iter().flatten().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        write_answer(&mut json, accepted, topic);
    }
    json.extend_from_slice(b"]}");
    Ok(json_response(StatusCode::OK, held_until_taken(json, Arc::new(load))))
}

/// Not all were taken. Where none was, and for one reason, that reason is the answer.
fn partly(outcomes: Vec<Result<Accepted, Problem>>, topic: &str) -> Problem {
    let (total, taken) = (outcomes.len(), outcomes.iter().filter(|outcome| outcome.is_ok()).count());
    let mut reasons = outcomes.iter().flat_map(|outcome| outcome.as_ref().err());
    if let Some(first) = reasons.next().filter(|_| taken == 0)
        && reasons.all(|other| other.code() == first.code())
    {
        return first.clone();
    }
    let messages: Vec<Value> = outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Ok(accepted) => {
                let mut json = Vec::with_capacity(ANSWER_BYTES_TYPICAL + topic.len());
                write_answer(&mut json, &accepted, topic);
                serde_json::from_slice(&json).expect("an answer is JSON")
            }
            Err(problem) => serde_json::json!({ "error": problem.to_json() }),
        })
        .collect();
    let detail = format!("{taken} of {total} messages were taken; `messages` says which");
    Problem::new(Code::PartlyAppended, detail).with("messages", messages)
}
