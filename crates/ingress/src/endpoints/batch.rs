//! `POST /v1/topics/{topic}/batch`: many messages, as a JSON array or as NDJSON.
//!
//! Entries are parsed while the body arrives, and each piece of the body is freed after parsing. The raw body and its messages are never in
//! memory as a whole at the same time. A bad entry rejects the whole batch, with its index.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};

use crate::accept::batch_splitter::{BatchFormat, BatchFormatError, BatchSplitter};
use crate::accept::draft::Draft;
use crate::accept::entry::EntryReader;
use crate::accept::{AcceptError, AcceptedMessage, accept_many, partly_appended};
use crate::answer::{ANSWER_BYTES_TYPICAL, held_until_taken, json_response, write_answer};
use crate::api_state::ApiState;
use crate::attributes::{check_user_topic, topic_in_path};
use crate::body::{announced_length, next_chunk};
use crate::keys::Scope;
use crate::load::LoadGuard;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::Query;
use crate::settings::ReceiveSettings;
use whimbrel_api::messages::{BatchAnswer, BatchEntry};
use whimbrel_api::problem::Problem;

/// The approximate bytes of one message in the body of a batch.
const ENTRY_BYTES_TYPICAL: usize = 128;
/// The buffer block for a body without `Content-Length`.
const UNANNOUNCED_BYTES: usize = 64 << 10;

/// Publish many messages
///
/// A JSON array, or NDJSON (`application/x-ndjson`). The answers are in the order of the entries and follow when all messages are durable.
/// A bad entry rejects the whole batch, with its `index`. If only some messages were appended, the problem `partly_appended` lists each
/// result in `messages`: partition and offset, or an error.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/batch", tag = "messages", operation_id = "publish_batch",
    params(("topic" = String, Path, description = "1 to 200 of `A-Za-z0-9._-`, not starting with `_`")),
    request_body(content(
        (Vec<BatchEntry> = "application/json"),
        (BatchEntry = "application/x-ndjson"),
    )),
    responses(
        (status = 200, description = "All messages are durable", body = BatchAnswer, content_type = "application/json"),
        (status = "4XX", description = "`bad_json`, `bad_entry` and the codes of a single publish, with the entry's `index`; `batch_too_large`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`partly_appended`, `no_owner`, `disk_full`, `log_closed`, `unavailable`, `topic_growing`, `no_session`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn publish_batch(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let topic = topic_in_path(parts.uri.path())?;
    let caller = api.keys.caller(&parts.headers)?;
    check_user_topic(&topic)?;
    caller.require_topic(Scope::Publish, &topic)?;
    Query::parse(parts.uri.query())?.end()?;
    if parts.headers.contains_key("idempotency-key") {
        let detail = "`Idempotency-Key` is not supported for a batch: put an `id` into each entry";
        return Err(ApiProblem::new(Code::BadParameter, detail));
    }
    let mut load = api.in_flight.begin();
    let drafts = read_drafts(&api, body, &parts.headers, &mut load).await?;
    let begun = Instant::now();
    api.metrics.batch_messages.record(drafts.len() as f64);
    if drafts.is_empty() {
        return Ok(json_response(StatusCode::OK, r#"{"messages":[]}"#));
    }
    let answer_load = load_of_answer(&api, drafts.len(), &topic)?;
    let outcomes = accept_many(&api, &topic, caller.owner(), drafts, load).await.map_err(AcceptError::into_problem)?;
    api.metrics.publish_seconds.record(begun.elapsed());
    answer(outcomes, &topic, answer_load)
}

async fn read_drafts(
    api: &ApiState,
    body: Body,
    headers: &HeaderMap,
    load: &mut LoadGuard,
) -> Result<Vec<Draft>, ApiProblem> {
    let settings = &api.settings;
    let mut drafts: Vec<Draft> = Vec::with_capacity(entries_expected(headers, settings));
    let mut reader = EntryReader::new(settings, api.ports.clock.now(), bytes_expected(headers, settings));
    read_entries(settings, body, headers, load, |entry| {
        drafts.push(reader.read(entry)?);
        Ok(())
    })
    .await?;
    Ok(drafts)
}

/// The initial buffer size for a batch, bounded by the batch limit, whatever the client announces.
pub(crate) fn bytes_expected(headers: &HeaderMap, settings: &ReceiveSettings) -> usize {
    announced_length(headers).unwrap_or(UNANNOUNCED_BYTES).min(settings.batch_bytes_max)
}

pub(crate) fn entries_expected(headers: &HeaderMap, settings: &ReceiveSettings) -> usize {
    (bytes_expected(headers, settings) / ENTRY_BYTES_TYPICAL).min(settings.batch_messages_max)
}

/// Passes each entry of a batch to `take` while the body arrives, within the batch limits. An error gets the entry's index.
pub(crate) async fn read_entries(
    settings: &ReceiveSettings,
    mut body: Body,
    headers: &HeaderMap,
    load: &mut LoadGuard,
    mut take: impl FnMut(&[u8]) -> Result<(), ApiProblem>,
) -> Result<(), ApiProblem> {
    let too_large = || too_large_bytes(settings.batch_bytes_max);
    if announced_length(headers).is_some_and(|length| length > settings.batch_bytes_max) {
        return Err(too_large());
    }
    let mut splitter = BatchSplitter::new(format_of(headers));
    let mut count = 0;
    let mut each = |entry: &[u8]| -> Result<(), BatchReadError> {
        if count == settings.batch_messages_max {
            return Err(BatchReadError::Rejected(too_large_count(settings.batch_messages_max)));
        }
        take(entry).map_err(|problem| BatchReadError::Rejected(problem.with("index", count)))?;
        count += 1;
        Ok(())
    };
    let mut received = 0;
    let split = loop {
        let Some(piece) = next_chunk(&mut body, settings.body_timeout).await? else { break splitter.finish(&mut each) };
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
        Err(BatchReadError::Rejected(problem)) => Err(problem),
        Err(BatchReadError::Format(why)) => Err(ApiProblem::new(Code::BadJson, why.to_string()).with("index", count)),
    }
}

/// Why reading a batch failed.
enum BatchReadError {
    Rejected(ApiProblem),
    Format(BatchFormatError),
}

impl From<BatchFormatError> for BatchReadError {
    fn from(why: BatchFormatError) -> Self {
        Self::Format(why)
    }
}

fn format_of(headers: &HeaderMap) -> BatchFormat {
    let content_type = headers.get(CONTENT_TYPE).map(|value| value.as_bytes()).unwrap_or_default();
    let media_type = content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    let lines = ["application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"];
    if lines.iter().any(|name| media_type.eq_ignore_ascii_case(name.as_bytes())) {
        BatchFormat::Lines
    } else {
        BatchFormat::Array
    }
}

fn too_large(of: &str, limit: usize) -> ApiProblem {
    ApiProblem::new(Code::BatchTooLarge, format!("the batch has more than {limit} {of}")).with("limit", limit)
}

/// Checks the payload sizes of a batch that was received whole. Returns their sum.
pub(crate) fn check_batch(
    settings: &ReceiveSettings,
    sizes: impl ExactSizeIterator<Item = usize>,
) -> Result<usize, ApiProblem> {
    if sizes.len() > settings.batch_messages_max {
        return Err(too_large_count(settings.batch_messages_max));
    }
    let bytes = sizes.sum();
    if bytes > settings.batch_bytes_max { Err(too_large_bytes(settings.batch_bytes_max)) } else { Ok(bytes) }
}

pub(crate) fn too_large_bytes(limit: usize) -> ApiProblem {
    too_large("bytes", limit)
}

fn too_large_count(limit: usize) -> ApiProblem {
    too_large("messages", limit)
}

/// The load of the answer to `messages` messages. It is reserved before the append, because afterwards it is too late to reject the batch.
/// It counts with the publishes, so that slow readers of other answers do not block publishers.
pub(crate) fn load_of_answer(api: &ApiState, messages: usize, topic: &str) -> Result<LoadGuard, ApiProblem> {
    let mut load = api.in_flight.begin();
    load.grow(answer_bytes(messages, topic))?;
    Ok(load)
}

fn answer_bytes(messages: usize, topic: &str) -> usize {
    16 + messages * (ANSWER_BYTES_TYPICAL + topic.len())
}

fn answer(outcomes: Vec<Result<AcceptedMessage, ApiProblem>>, topic: &str, load: LoadGuard) -> ApiResult {
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

/// The answer if some messages failed.
fn partly(outcomes: Vec<Result<AcceptedMessage, ApiProblem>>, topic: &str) -> ApiProblem {
    let shown = |accepted: AcceptedMessage| {
        let mut json = Vec::with_capacity(ANSWER_BYTES_TYPICAL + topic.len());
        write_answer(&mut json, &accepted, topic);
        serde_json::from_slice(&json).expect("an answer is JSON")
    };
    partly_appended(outcomes, shown, |taken, total| {
        format!("{taken} of {total} messages were appended; `messages` lists the result of each")
    })
}
