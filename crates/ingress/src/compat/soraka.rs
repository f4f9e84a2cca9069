//! `/sorakaq/msg/…`: the compatible API of soraka.
//!
//! A message becomes a hold on its topic, with its own callback. One subscription for each topic, `soraka.<topic>`, delivers it. The first
//! submit creates it, and it can be shown, paused and changed like any other. As in soraka, the status is always 200, `ec` is 200 or an
//! error number, and `em` has the reason.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use whimbrel_model::subscription::{
    DeliveryRule, Endpoint, GonePolicy, HEADER_DELIVERY, Mode, Ordering, OwnCallback, SubscriptionSpec,
};
use whimbrel_model::{Headers, check_topic_name};

use crate::accept::accept_one;
use crate::accept::cancel_safe::CancelSafe;
use crate::accept::draft::{ContentType, DELAY_MAX, DeliveryTime, Draft, check_payload_size};
use crate::answer::{json_response, to_json};
use crate::api_state::ApiState;
use crate::attributes::check_user_topic;
use crate::body::{collect_payload, collect_small};
use crate::compat::delay_queue::required;
use crate::endpoints::hold_calls::{self, DueChange, hold_id};
use crate::endpoints::subscription_body::check_url;
use crate::endpoints::subscription_calls::caught_up;
use crate::json_fields::JsonFields;
use crate::keys::{Caller, Scope};
use crate::problem::{ApiProblem, Code};
use crate::settings::ReceiveSettings;
use whimbrel_catalogue::subscriptions::SecretChange;

/// The prefix of the subscriptions that deliver soraka's messages. The topic follows.
pub(crate) const SUBSCRIPTION_PREFIX: &str = "soraka.";

/// Default and maximum timeout of a message's callback.
const TTR_DEFAULT_MS: u64 = 1_000;
const TTR_MAX_MS: u64 = 600_000;
/// Concurrent callbacks of one topic. They go to many endpoints, because each message names its own.
const CONCURRENCY: u32 = 256;
/// Each message has its own endpoint, so failures of one must not disable the subscription.
const DISABLE_AFTER: Duration = Duration::from_secs(366 * 86_400);
/// The maximum bytes of a body without its parameters. Escaping in JSON can make the parameters six times as large.
const FRAME_BYTES_MAX: usize = 64 << 10;
const ESCAPED_BYTES_MAX: usize = 6;

/// The maximum bytes of a body with a payload in its JSON.
pub(super) fn json_bytes_max(settings: &ReceiveSettings) -> usize {
    settings.payload_bytes_max.saturating_mul(ESCAPED_BYTES_MAX).saturating_add(FRAME_BYTES_MAX)
}

/// The fields of all soraka requests. Each request uses some of them.
#[derive(Debug, ToSchema)]
pub struct SorakaRequest {
    topic_name: Option<String>,
    /// For submit: in milliseconds.
    delay_time: Option<u64>,
    /// For submit: the callback's timeout in milliseconds. Default: 1000.
    ttr: Option<u64>,
    /// For submit.
    callback: Option<SorakaCallback>,
    /// For cancel and addTime: the id from the submit.
    msg_id: Option<String>,
    /// For addTime: in milliseconds.
    add_time: Option<u64>,
}

#[derive(Debug, ToSchema)]
pub struct SorakaCallback {
    /// `GET` or `POST`
    request_type: Option<String>,
    url: Option<String>,
    /// JSON, or a string that contains JSON: the body of a POST, the query of a GET.
    #[schema(value_type = Option<Object>)]
    params: Option<Value>,
}

impl SorakaRequest {
    /// Ignores unknown fields, as soraka does.
    fn read(body: &[u8]) -> Result<Self, ApiProblem> {
        let mut fields = JsonFields::of_body(body)?;
        Ok(Self {
            topic_name: fields.text("topic_name")?,
            delay_time: milliseconds_of(&mut fields, "delay_time")?,
            ttr: milliseconds_of(&mut fields, "ttr")?,
            callback: fields.below("callback")?.map(SorakaCallback::read).transpose()?,
            msg_id: fields.text("msg_id")?,
            add_time: milliseconds_of(&mut fields, "add_time")?,
        })
    }
}

impl SorakaCallback {
    fn read(mut fields: JsonFields) -> Result<Self, ApiProblem> {
        let (request_type, url) = (fields.text("request_type")?, fields.text("url")?);
        Ok(Self { request_type, url, params: fields.take("params") })
    }
}

fn milliseconds_of(fields: &mut JsonFields, name: &'static str) -> Result<Option<u64>, ApiProblem> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    value.as_u64().map(Some).ok_or_else(|| fields.wrong(name, "must be a whole number of milliseconds, 0 or more"))
}

/// The answer of soraka.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SorakaAnswer {
    /// 200 on success; 401 for invalid parameters, 402 for an invalid topic name, 405 if the message does not exist or is not held any
    /// more, 406 if the key does not allow the request, 500 for other errors.
    pub ec: u16,
    pub em: String,
    /// `{"msgId"}` for a submit, `true` otherwise; `false` on failure.
    #[schema(value_type = Object)]
    pub result: Value,
}

/// Submit a message with the soraka API
#[utoipa::path(
    post, path = "/sorakaq/msg/submit", tag = "older systems", operation_id = "soraka_submit",
    request_body(content = SorakaRequest, content_type = "application/json"),
    responses((status = 200, description = "Success or failure; see `ec`", body = SorakaAnswer, content_type = "application/json")),
)]
pub(crate) async fn submit(State(api): State<Arc<ApiState>>, request: Request) -> Response {
    answer(try_submit(&api, request).await.map(|id| json!({ "msgId": id })))
}

/// Cancel a message with the soraka API
#[utoipa::path(
    post, path = "/sorakaq/msg/cancel", tag = "older systems", operation_id = "soraka_cancel",
    request_body(content = SorakaRequest, content_type = "application/json"),
    responses((status = 200, description = "Success or failure; see `ec`", body = SorakaAnswer, content_type = "application/json")),
)]
pub(crate) async fn cancel(State(api): State<Arc<ApiState>>, request: Request) -> Response {
    answer(try_cancel(&api, request).await.map(|()| json!(true)))
}

/// Delay a message further with the soraka API
#[utoipa::path(
    post, path = "/sorakaq/msg/addTime", tag = "older systems", operation_id = "soraka_add_time",
    request_body(content = SorakaRequest, content_type = "application/json"),
    responses((status = 200, description = "Success or failure; see `ec`", body = SorakaAnswer, content_type = "application/json")),
)]
pub(crate) async fn add_time(State(api): State<Arc<ApiState>>, request: Request) -> Response {
    answer(try_add_time(&api, request).await.map(|()| json!(true)))
}

fn answer(outcome: Result<Value, ApiProblem>) -> Response {
    let answer = match outcome {
        Ok(result) => SorakaAnswer { ec: 200, em: String::new(), result },
        Err(problem) => {
            metrics::counter!(crate::metric_names::REFUSALS, "code" => problem.code().word()).increment(1);
            let em = format!("{}: {}", problem.code().word(), problem.detail());
            SorakaAnswer { ec: ec_of(problem.code()), em, result: json!(false) }
        }
    };
    json_response(StatusCode::OK, to_json(&answer))
}

fn ec_of(code: Code) -> u16 {
    match (code, code.status()) {
        (Code::BadName | Code::ReservedName | Code::UnknownTopic, _) => 402,
        (Code::UnknownHold | Code::AlreadyFired | Code::AlreadyWithdrawn | Code::AlreadyDead, _) => 405,
        (_, 401 | 403) => 406,
        (_, 400 | 413 | 422) => 401,
        _ => 500,
    }
}

async fn try_submit(api: &Arc<ApiState>, request: Request) -> Result<String, ApiProblem> {
    let (parts, body) = request.into_parts();
    let caller = api.keys.caller(&parts.headers)?;
    let mut load = api.in_flight.begin();
    let body = collect_payload(api, &parts, body, &mut load, json_bytes_max(&api.settings)).await?;
    let request = SorakaRequest::read(&body)?;
    let topic = topic_of(&request, &caller)?;
    check_topic_name(&subscription_of(&topic))?;
    let draft = draft_of(request, api)?;
    ensure_subscription(api, &topic).await?;
    let accepted = accept_one(api, &topic, caller.owner(), draft, load).await?;
    Ok(accepted.id.to_text())
}

async fn try_cancel(api: &Arc<ApiState>, request: Request) -> Result<(), ApiProblem> {
    let (caller, request) = small_request(api, request).await?;
    let id = known_hold(api, &caller, &request).await?;
    hold_calls::withdraw(api, &caller, &id).await
}

async fn try_add_time(api: &Arc<ApiState>, request: Request) -> Result<(), ApiProblem> {
    let (caller, request) = small_request(api, request).await?;
    let add_time = request.add_time.filter(|ms| *ms > 0);
    let add_time =
        add_time.ok_or_else(|| ApiProblem::new(Code::BadParameter, "`add_time` is missing or 0: set milliseconds"))?;
    let now = api.ports.clock.now();
    let extension = DueChange::checked(Some(&add_time.to_string()), None, None, None, now)?;
    let id = known_hold(api, &caller, &request).await?;
    hold_calls::extend(api, &caller, &id, extension).await.map(drop)
}

async fn small_request(api: &ApiState, request: Request) -> Result<(Caller, SorakaRequest), ApiProblem> {
    let (parts, body) = request.into_parts();
    let caller = api.keys.caller(&parts.headers)?;
    let body = collect_small(api, &parts, body, &mut api.in_flight.begin(), FRAME_BYTES_MAX).await?;
    Ok((caller, SorakaRequest::read(&body)?))
}

fn topic_of(request: &SorakaRequest, caller: &Caller) -> Result<String, ApiProblem> {
    let topic = required(request.topic_name.clone(), "topic_name")?;
    check_user_topic(&topic)?;
    caller.require_topic(Scope::Publish, &topic)?;
    Ok(topic)
}

/// The hold of a message, if it belongs to the requested topic.
async fn known_hold(
    api: &ApiState,
    caller: &Caller,
    request: &SorakaRequest,
) -> Result<whimbrel_model::HoldId, ApiProblem> {
    let topic = topic_of(request, caller)?;
    let id = hold_id(&required(request.msg_id.clone(), "msg_id")?)?;
    if *hold_calls::look_up(api, caller, &id).await?.topic_name(api) == *topic {
        return Ok(id);
    }
    Err(ApiProblem::new(Code::UnknownHold, format!("topic `{topic}` has no message `{id}`")))
}

fn draft_of(request: SorakaRequest, api: &ApiState) -> Result<Draft, ApiProblem> {
    let delay = Duration::from_millis(request.delay_time.unwrap_or(0));
    if delay > DELAY_MAX {
        return Err(ApiProblem::new(Code::BadDuration, "`delay_time` is over the maximum of two years"));
    }
    let callback = required(request.callback, "callback")?;
    let method = required(callback.request_type, "callback.request_type")?.to_ascii_uppercase();
    if !matches!(method.as_str(), "GET" | "POST") {
        return Err(ApiProblem::new(Code::BadParameter, "`callback.request_type` must be `GET` or `POST`"));
    }
    let url = required(callback.url, "callback.url")?;
    check_url(&url, &api.settings.guards.callbacks)
        .map_err(|wrong| ApiProblem::new(wrong.code, format!("`callback.url` {}", wrong.why)))?;
    let ttr = request.ttr.filter(|ttr| *ttr > 0).unwrap_or(TTR_DEFAULT_MS);
    if ttr > TTR_MAX_MS {
        return Err(ApiProblem::new(Code::BadDuration, format!("`ttr` must be at most {TTR_MAX_MS} ms")));
    }
    let payload = payload_of(callback.params, method == "GET")?;
    check_payload_size(payload.len(), &api.settings)?;
    let rule = DeliveryRule { retry: None, timeout_ms: Some(ttr), callback: Some(OwnCallback { method, url }) };
    let later = Some(DeliveryTime::After(delay));
    let headers = rule_header(&rule);
    Ok(Draft { key: None, payload, content_type: ContentType::Json, headers, own_id: None, later, push: None })
}

/// The header with the delivery rule of a message. Publishers cannot set it; only the compatible endpoints write it.
pub(crate) fn rule_header(rule: &DeliveryRule) -> Headers {
    let json = serde_json::to_vec(rule).expect("a rule is plain data");
    Headers::builder().push(HEADER_DELIVERY, &json).take()
}

/// The parameters as JSON. A string must contain JSON.
fn payload_of(params: Option<Value>, is_query: bool) -> Result<Bytes, ApiProblem> {
    let text = match params {
        None | Some(Value::Null) => return Ok(Bytes::new()),
        Some(Value::String(text)) => text,
        Some(json) => json.to_string(),
    };
    let is_object = || serde_json::from_str::<serde_json::Map<String, Value>>(&text).is_ok();
    if is_query && !text.is_empty() && !is_object() {
        let detail = "`callback.params` of a GET must be a JSON object: its members become the query";
        return Err(ApiProblem::new(Code::BadParameter, detail));
    }
    Ok(Bytes::from(text))
}

fn subscription_of(topic: &str) -> String {
    format!("{SUBSCRIPTION_PREFIX}{topic}")
}

/// Creates the topic's subscription if it does not exist, before a message is held that it must deliver.
async fn ensure_subscription(api: &Arc<ApiState>, topic: &str) -> Result<(), ApiProblem> {
    let name = subscription_of(topic);
    match api.subscriptions.get(&name) {
        Some(known) if known.stored.deleting => {
            return Err(whimbrel_catalogue::subscriptions::SubscriptionError::Deleting(name).into());
        }
        Some(_) => return Ok(()),
        None => {}
    }
    let endpoint = Endpoint { url: None, timeout_ms: TTR_DEFAULT_MS, connect_timeout_ms: None, headers: Vec::new() };
    let mut spec = SubscriptionSpec::new(vec![topic.to_owned()], Mode::Push, Some(endpoint));
    spec.ordering = Ordering::None;
    spec.concurrency = CONCURRENCY;
    spec.gone = GonePolicy::Fail;
    spec.disable_after_ms = DISABLE_AFTER.as_millis() as u64;
    let owned = Arc::clone(api);
    let made = CancelSafe::new(async move {
        // Another request may have created it since. It is left unchanged.
        if let Some(known) = owned.subscriptions.get(&name) {
            return Ok(known);
        }
        owned.subscriptions.put(&name, spec, SecretChange::Keep).await.map(|made| made.subscription)
    })
    .await?;
    caught_up(api, &made).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_field_and_a_valid_value() {
        for (body, detail) in [
            (r#"{"delay_time":-1}"#, "`delay_time` must be a whole number of milliseconds, 0 or more"),
            (r#"{"ttr":"3s"}"#, "`ttr` must be a whole number of milliseconds, 0 or more"),
            (r#"{"topic_name":7}"#, "`topic_name` must be a string"),
            (r#"{"callback":"http://h/"}"#, "`callback` must be an object"),
            (r#"{"callback":{"url":7}}"#, "`callback.url` must be a string"),
        ] {
            assert_eq!(SorakaRequest::read(body.as_bytes()).unwrap_err().detail(), detail, "{body}");
        }
    }

    #[test]
    fn problems_become_the_error_numbers_of_soraka() {
        for (code, ec) in [
            (Code::BadJson, 401),
            (Code::BadParameter, 401),
            (Code::ForbiddenAddress, 401),
            (Code::PayloadTooLarge, 401),
            (Code::BadName, 402),
            (Code::UnknownTopic, 402),
            (Code::UnknownHold, 405),
            (Code::AlreadyFired, 405),
            (Code::KeyMissing, 406),
            (Code::Forbidden, 406),
            (Code::NoOwner, 500),
            (Code::Overloaded, 500),
            (Code::OutcomeUnknown, 500),
        ] {
            assert_eq!(ec_of(code), ec, "{code:?}");
        }
    }

    #[test]
    fn parameters_may_be_json_or_a_string_of_json() {
        assert_eq!(payload_of(Some(json!({ "a": 1 })), true).unwrap(), r#"{"a":1}"#);
        assert_eq!(payload_of(Some(json!("{\"a\": 1}")), true).unwrap(), r#"{"a": 1}"#);
        assert_eq!(payload_of(Some(json!("plain")), false).unwrap(), "plain");
        assert!(payload_of(Some(json!("plain")), true).is_err());
        assert!(payload_of(Some(json!([1])), true).is_err());
        assert!(payload_of(None, true).unwrap().is_empty());
    }
}
