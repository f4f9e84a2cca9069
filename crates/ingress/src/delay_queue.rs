//! `POST /dq/acceptMsg`: the door of c-delay-queue, for programs that already hand their tasks to it.
//!
//! A task is a hold on the topic `functionName` under its `taskId`; `nonceStr` is its idempotency key. How often and how long its
//! callback is tried travels with the message. It answers as that system does: always 200, `code` `"0"` or a negative number.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use whimbrel_model::subscription::{DeliveryRule, RetryPolicy};
use whimbrel_model::{Headers, check_brought_id};

use super::accept::accept_one;
use super::answer::json_response;
use super::attributes::check_user_topic;
use super::body::collect;
use super::door::Door;
use super::draft::{Brought, ContentType, DELAY_MAX, Draft, Later, check_payload_size};
use super::json_fields::Fields;
use super::keys::Scope;
use super::problem::{Code, Problem};
use super::soraka::rule_header;
use super::subscription_body::RETRY_TIMES_MAX;

/// How long may lie between two tries, and how long one may take.
const RETRY_INTERVAL_MAX_S: u64 = 7 * 86_400;
const EXECUTE_TIMEOUT_MAX_S: u64 = 600;
/// What a task's body may have beside its parameters. As JSON those take up to six times their own size.
const FRAME_BYTES_MAX: usize = 64 << 10;
const ESCAPED_BYTES_MAX: usize = 6;
const SECONDS: &str = "a whole number of seconds";

/// A task, as c-delay-queue takes it.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct DelayQueueTask {
    /// 1 to 128 of `A-Za-z0-9_-`.
    task_id: Option<String>,
    /// The topic.
    function_name: Option<String>,
    /// The payload: a text as it is, anything else as JSON.
    #[schema(value_type = Option<Object>)]
    params: Option<Value>,
    /// How often its callback is tried again, by every subscription of the topic.
    retry_count: Option<u64>,
    /// In seconds, before each of those.
    retry_interval: Option<u64>,
    /// In seconds.
    delay_time: Option<u64>,
    /// In seconds: how long a callback may take.
    execute_timeout: Option<u64>,
    /// Makes a repeat safe; without it the task's id does.
    nonce_str: Option<String>,
}

impl DelayQueueTask {
    /// What that system does not know is passed over, as it does.
    fn read(body: &[u8]) -> Result<Self, Problem> {
        let mut fields = Fields::of_body(body)?;
        Ok(Self {
            task_id: fields.text("taskId")?,
            function_name: fields.text("functionName")?,
            params: fields.take("params"),
            retry_count: count_of(&mut fields, "retryCount", "a whole number")?,
            retry_interval: count_of(&mut fields, "retryInterval", SECONDS)?,
            delay_time: count_of(&mut fields, "delayTime", SECONDS)?,
            execute_timeout: count_of(&mut fields, "executeTimeout", SECONDS)?,
            nonce_str: fields.text("nonceStr")?,
        })
    }
}

/// A whole number, which some clients write as text.
fn count_of(fields: &mut Fields, name: &'static str, what: &str) -> Result<Option<u64>, Problem> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let count = match &value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    count.map(Some).ok_or_else(|| fields.wrong(name, format_args!("is {what}, 0 or more")))
}

/// What c-delay-queue answers.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DelayQueueAnswer {
    /// `0`; `-100` for bad parameters, `-102` where the task's shard has no owner, `-103` where its id exists, `-1` for the rest.
    pub code: String,
    pub msg: String,
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
}

/// Hand over a task as to c-delay-queue
#[utoipa::path(
    post, path = "/dq/acceptMsg", tag = "older systems", operation_id = "delay_queue_accept",
    request_body(content = DelayQueueTask, content_type = "application/json"),
    responses((status = 200, description = "What happened, also on failure", body = DelayQueueAnswer, content_type = "application/json")),
)]
pub(super) async fn accept_msg(State(door): State<Arc<Door>>, request: Request) -> Response {
    let (code, msg) = match try_accept(&door, request).await {
        Ok(()) => ("0", "OK".to_owned()),
        Err(problem) => {
            metrics::counter!(crate::metric_names::REFUSALS, "code" => problem.code().word()).increment(1);
            (code_of(problem.code()), format!("{}: {}", problem.code().word(), problem.detail()))
        }
    };
    let answer = DelayQueueAnswer { code: code.to_owned(), msg, result: None };
    json_response(StatusCode::OK, serde_json::to_vec(&answer).expect("an answer is plain data"))
}

fn code_of(code: Code) -> &'static str {
    match (code, code.status()) {
        (Code::NoOwner, _) => "-102",
        (Code::IdTaken, _) => "-103",
        (_, 400 | 413 | 422) => "-100",
        _ => "-1",
    }
}

async fn try_accept(door: &Arc<Door>, request: Request) -> Result<(), Problem> {
    let (parts, body) = request.into_parts();
    let caller = door.keys.caller(&parts.headers)?;
    let mut load = door.in_flight.begin();
    let (wait, payload_max) = (door.settings.body_wait, door.settings.payload_bytes_max);
    let limit = payload_max.saturating_mul(ESCAPED_BYTES_MAX).saturating_add(FRAME_BYTES_MAX);
    let too_large = || check_payload_size(usize::MAX, &door.settings).expect_err("nothing is that large");
    let body = collect(body, &parts.headers, &mut load, wait, limit, too_large).await?;
    let task = DelayQueueTask::read(&body)?;
    let topic = needed(task.function_name.as_deref(), "functionName")?.to_owned();
    check_user_topic(&topic)?;
    caller.require_topic(Scope::Publish, &topic)?;
    let draft = draft_of(task, door)?;
    accept_one(door, &topic, caller.owner(), draft, load).await?;
    Ok(())
}

fn draft_of(task: DelayQueueTask, door: &Door) -> Result<Draft, Problem> {
    let settings = &door.settings;
    let task_id = needed(task.task_id.as_deref(), "taskId")?;
    let delay = needed(task.delay_time, "delayTime")?;
    let delay = Duration::from_secs(delay);
    if delay > DELAY_MAX {
        return Err(Problem::new(Code::BadDuration, "a task can be held for two years at most"));
    }
    let (payload, content_type) = match task.params {
        None | Some(Value::Null) => (Bytes::new(), ContentType::Absent),
        Some(Value::String(text)) => (Bytes::from(text), ContentType::Absent),
        Some(json) => (Bytes::from(json.to_string()), ContentType::Json),
    };
    check_payload_size(payload.len(), settings)?;
    let rule = rule_of(task.retry_count, task.retry_interval, task.execute_timeout)?;
    let headers = if rule == DeliveryRule::default() { Headers::EMPTY } else { rule_header(&rule) };
    let brought = brought_of(task_id, task.nonce_str.as_deref())?;
    let later = Some(Later::After(delay));
    Ok(Draft { key: None, payload, content_type, headers, brought: Some(brought), later, push: None })
}

/// How a task's callback is tried. A timeout of nothing is none.
fn rule_of(
    retry_count: Option<u64>,
    retry_interval: Option<u64>,
    execute_timeout: Option<u64>,
) -> Result<DeliveryRule, Problem> {
    let times = bounded(retry_count, "retryCount", RETRY_TIMES_MAX)?;
    let interval = bounded(retry_interval, "retryInterval", RETRY_INTERVAL_MAX_S)?;
    let timeout = bounded(execute_timeout, "executeTimeout", EXECUTE_TIMEOUT_MAX_S)?.filter(|seconds| *seconds > 0);
    let mut rule = DeliveryRule { timeout_ms: timeout.map(|seconds| seconds * 1000), ..DeliveryRule::default() };
    if times.is_some() || interval.is_some() {
        let usual = RetryPolicy::default();
        rule.retry = Some(RetryPolicy {
            times: times.map_or(usual.times, |times| times as u32),
            schedule_ms: interval.map_or(usual.schedule_ms, |seconds| vec![seconds * 1000]),
        });
    }
    Ok(rule)
}

fn bounded(count: Option<u64>, name: &str, most: u64) -> Result<Option<u64>, Problem> {
    let Some(count) = count else { return Ok(None) };
    if count <= most {
        return Ok(Some(count));
    }
    Err(Problem::new(Code::BadParameter, format!("`{name}` is {most} at most")))
}

/// The task's id and its idempotency key, which differ: other doors would call that a contradiction.
fn brought_of(task_id: &str, nonce: Option<&str>) -> Result<Brought, Problem> {
    check_brought_id(task_id)?;
    let by_id = Brought::by_id(task_id.into(), None);
    let Some(nonce) = nonce.filter(|nonce| !nonce.is_empty()) else { return Ok(by_id) };
    let by_key = Brought::checked(None, Some(nonce))?;
    Ok(by_key.map_or(by_id, |by_key| Brought { id: Some(task_id.into()), ..by_key }))
}

/// What a system's own form must have.
pub(super) fn needed<T>(value: Option<T>, name: &str) -> Result<T, Problem> {
    value.ok_or_else(|| Problem::new(Code::BadParameter, format!("`{name}` is missing")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_told_with_its_field_and_what_that_takes() {
        for (body, said) in [
            (r#"{"delayTime":-1}"#, "`delayTime` is a whole number of seconds, 0 or more"),
            (r#"{"delayTime":"soon"}"#, "`delayTime` is a whole number of seconds, 0 or more"),
            (r#"{"retryCount":1.5}"#, "`retryCount` is a whole number, 0 or more"),
            (r#"{"taskId":7}"#, "`taskId` is a text"),
        ] {
            assert_eq!(DelayQueueTask::read(body.as_bytes()).unwrap_err().detail(), said, "{body}");
        }
    }

    #[test]
    fn problems_become_the_codes_of_that_system() {
        for (code, theirs) in [
            (Code::BadId, "-100"),
            (Code::BadJson, "-100"),
            (Code::PayloadTooLarge, "-100"),
            (Code::NoOwner, "-102"),
            (Code::IdTaken, "-103"),
            (Code::InProgress, "-1"),
            (Code::KeyMissing, "-1"),
            (Code::OutcomeUnknown, "-1"),
        ] {
            assert_eq!(code_of(code), theirs, "{code:?}");
        }
    }
}
