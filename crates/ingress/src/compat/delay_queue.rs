//! `POST /dq/acceptMsg`: the compatible API of c-delay-queue.
//!
//! A task becomes a hold on the topic `functionName` with the id `taskId`; `nonceStr` is its idempotency key. The retry rule of its
//! callback is stored with the message. As in c-delay-queue, the status is always 200, and `code` is `"0"` or a negative number.

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

use crate::accept::accept_one;
use crate::accept::draft::{ContentType, DELAY_MAX, DeliveryTime, Draft, PublisherId, check_payload_size};
use crate::answer::{json_response, to_json};
use crate::api_state::ApiState;
use crate::attributes::check_user_topic;
use crate::body::collect_payload;
use crate::compat::soraka::{json_bytes_max, rule_header};
use crate::endpoints::subscription_body::RETRY_TIMES_MAX;
use crate::json_fields::JsonFields;
use crate::keys::Scope;
use crate::problem::{ApiProblem, Code};

/// The maximum delay between retries, and the maximum timeout of an attempt.
const RETRY_INTERVAL_MAX_S: u64 = 7 * 86_400;
const EXECUTE_TIMEOUT_MAX_S: u64 = 600;
const SECONDS: &str = "a whole number of seconds";

/// A task in the form of c-delay-queue.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct DelayQueueTask {
    /// 1 to 128 of `A-Za-z0-9_-`.
    task_id: Option<String>,
    /// The topic.
    function_name: Option<String>,
    /// The payload: a string is used as it is, anything else as JSON.
    #[schema(value_type = Option<Object>)]
    params: Option<Value>,
    /// The number of retries of its callback, for each subscription of the topic.
    retry_count: Option<u64>,
    /// In seconds, before each retry.
    retry_interval: Option<u64>,
    /// In seconds.
    delay_time: Option<u64>,
    /// The timeout of a callback, in seconds.
    execute_timeout: Option<u64>,
    /// The idempotency key. Default: the task's id.
    nonce_str: Option<String>,
}

impl DelayQueueTask {
    /// Ignores unknown fields, as c-delay-queue does.
    fn read(body: &[u8]) -> Result<Self, ApiProblem> {
        let mut fields = JsonFields::of_body(body)?;
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

/// A whole number. Some clients write it as a string.
fn count_of(fields: &mut JsonFields, name: &'static str, what: &str) -> Result<Option<u64>, ApiProblem> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let count = match &value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    count.map(Some).ok_or_else(|| fields.wrong(name, format_args!("must be {what}, 0 or more")))
}

/// The answer of c-delay-queue.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DelayQueueAnswer {
    /// `0` on success; `-100` for invalid parameters, `-102` if the task's shard has no owner, `-103` if its id exists, `-1` for other
    /// errors.
    pub code: String,
    pub msg: String,
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
}

/// Submit a task with the c-delay-queue API
#[utoipa::path(
    post, path = "/dq/acceptMsg", tag = "older systems", operation_id = "delay_queue_accept",
    request_body(content = DelayQueueTask, content_type = "application/json"),
    responses((status = 200, description = "Success or failure; see `code`", body = DelayQueueAnswer, content_type = "application/json")),
)]
pub(crate) async fn accept_msg(State(api): State<Arc<ApiState>>, request: Request) -> Response {
    let (code, msg) = match try_accept(&api, request).await {
        Ok(()) => ("0", "OK".to_owned()),
        Err(problem) => {
            metrics::counter!(crate::metric_names::REFUSALS, "code" => problem.code().word()).increment(1);
            (code_of(problem.code()), format!("{}: {}", problem.code().word(), problem.detail()))
        }
    };
    let answer = DelayQueueAnswer { code: code.to_owned(), msg, result: None };
    json_response(StatusCode::OK, to_json(&answer))
}

fn code_of(code: Code) -> &'static str {
    match (code, code.status()) {
        (Code::NoOwner, _) => "-102",
        (Code::IdTaken, _) => "-103",
        (_, 400 | 413 | 422) => "-100",
        _ => "-1",
    }
}

async fn try_accept(api: &Arc<ApiState>, request: Request) -> Result<(), ApiProblem> {
    let (parts, body) = request.into_parts();
    let caller = api.keys.caller(&parts.headers)?;
    let mut load = api.in_flight.begin();
    let body = collect_payload(api, &parts, body, &mut load, json_bytes_max(&api.settings)).await?;
    let task = DelayQueueTask::read(&body)?;
    let topic = required(task.function_name.as_deref(), "functionName")?.to_owned();
    check_user_topic(&topic)?;
    caller.require_topic(Scope::Publish, &topic)?;
    let draft = draft_of(task, api)?;
    accept_one(api, &topic, caller.owner(), draft, load).await?;
    Ok(())
}

fn draft_of(task: DelayQueueTask, api: &ApiState) -> Result<Draft, ApiProblem> {
    let settings = &api.settings;
    let task_id = required(task.task_id.as_deref(), "taskId")?;
    let delay = required(task.delay_time, "delayTime")?;
    let delay = Duration::from_secs(delay);
    if delay > DELAY_MAX {
        return Err(ApiProblem::new(Code::BadDuration, "`delayTime` is over the maximum of two years"));
    }
    let (payload, content_type) = match task.params {
        None | Some(Value::Null) => (Bytes::new(), ContentType::Absent),
        Some(Value::String(text)) => (Bytes::from(text), ContentType::Absent),
        Some(json) => (Bytes::from(json.to_string()), ContentType::Json),
    };
    check_payload_size(payload.len(), settings)?;
    let rule = rule_of(task.retry_count, task.retry_interval, task.execute_timeout)?;
    let headers = if rule == DeliveryRule::default() { Headers::EMPTY } else { rule_header(&rule) };
    let own_id = own_id_of(task_id, task.nonce_str.as_deref())?;
    let later = Some(DeliveryTime::After(delay));
    Ok(Draft { key: None, payload, content_type, headers, own_id: Some(own_id), later, push: None })
}

/// The retry rule of a task's callback. A timeout of 0 means the default.
fn rule_of(
    retry_count: Option<u64>,
    retry_interval: Option<u64>,
    execute_timeout: Option<u64>,
) -> Result<DeliveryRule, ApiProblem> {
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

fn bounded(count: Option<u64>, name: &str, most: u64) -> Result<Option<u64>, ApiProblem> {
    let Some(count) = count else { return Ok(None) };
    if count <= most {
        return Ok(Some(count));
    }
    Err(ApiProblem::new(Code::BadParameter, format!("`{name}` must be at most {most}, got {count}")))
}

/// The task's id and its idempotency key. They differ here, which other endpoints reject.
fn own_id_of(task_id: &str, nonce: Option<&str>) -> Result<PublisherId, ApiProblem> {
    check_brought_id(task_id)?;
    let by_id = PublisherId::by_id(task_id.into(), None);
    let Some(nonce) = nonce.filter(|nonce| !nonce.is_empty()) else { return Ok(by_id) };
    let by_key = PublisherId::checked(None, Some(nonce))?;
    Ok(by_key.map_or(by_id, |by_key| PublisherId { id: Some(task_id.into()), ..by_key }))
}

/// A required field of a compatible API.
pub(crate) fn required<T>(value: Option<T>, name: &str) -> Result<T, ApiProblem> {
    value.ok_or_else(|| ApiProblem::new(Code::BadParameter, format!("`{name}` is missing")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_field_and_a_valid_value() {
        for (body, detail) in [
            (r#"{"delayTime":-1}"#, "`delayTime` must be a whole number of seconds, 0 or more"),
            (r#"{"delayTime":"soon"}"#, "`delayTime` must be a whole number of seconds, 0 or more"),
            (r#"{"retryCount":1.5}"#, "`retryCount` must be a whole number, 0 or more"),
            (r#"{"taskId":7}"#, "`taskId` must be a string"),
        ] {
            assert_eq!(DelayQueueTask::read(body.as_bytes()).unwrap_err().detail(), detail, "{body}");
        }
    }

    #[test]
    fn problems_become_the_codes_of_c_delay_queue() {
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
