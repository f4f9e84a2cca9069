//! `/sorakaq/msg/…`: the door of soraka, for programs that already hand their callbacks to it.
//!
//! A message is a hold on its topic and carries its own callback. One subscription for each topic, `soraka.<topic>`, delivers it; it is
//! made by the first submit, and is then a subscription like any other: to be looked at, paused, changed. It answers as that system
//! does: always 200, `ec` 200 or an error's number, `em` with the reason.

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
    DeliveryRule, Endpoint, Gone, HEADER_DELIVERY, Mode, Ordering, OwnCallback, SubscriptionSpec,
};
use whimbrel_model::{Headers, check_topic_name};

use super::accept::accept_one;
use super::answer::json_response;
use super::attributes::check_user_topic;
use super::body::collect;
use super::delay_queue::needed;
use super::door::Door;
use super::draft::{ContentType, DELAY_MAX, Draft, Later, check_payload_size};
use super::hold_calls::{self, Extension, hold_id};
use super::json_fields::Fields;
use super::keys::{Caller, Scope};
use super::problem::{Code, Problem};
use super::subscription_body::check_url;
use super::subscription_calls::caught_up;
use super::undisturbed::Undisturbed;
use whimbrel_catalogue::subscriptions::SecretWish;

/// What the names of the subscriptions start with that deliver soraka's messages; the topic follows.
pub(super) const SUBSCRIPTION_PREFIX: &str = "soraka.";

/// A callback's timeout where a message brings none, and the longest.
const TTR_DEFAULT_MS: u64 = 1_000;
const TTR_MAX_MS: u64 = 600_000;
/// Callbacks of one topic at one time: they go to as many places as messages name.
const CONCURRENCY: u32 = 256;
/// The place of one message says nothing about the others: the subscription as a whole stays.
const DISABLE_AFTER: Duration = Duration::from_secs(366 * 86_400);
/// What a body may have beside its parameters. As JSON those take up to six times their own size.
const FRAME_BYTES_MAX: usize = 64 << 10;
const ESCAPED_BYTES_MAX: usize = 6;

/// Everything that soraka's requests say; each request takes its part.
#[derive(Debug, ToSchema)]
pub struct SorakaRequest {
    topic_name: Option<String>,
    /// To submit: in milliseconds.
    delay_time: Option<u64>,
    /// To submit: the callback's timeout in milliseconds, 1000 where it is not given.
    ttr: Option<u64>,
    /// To submit.
    callback: Option<SorakaCallback>,
    /// To cancel or to add time: what the submit gave.
    msg_id: Option<String>,
    /// To add time: in milliseconds.
    add_time: Option<u64>,
}

#[derive(Debug, ToSchema)]
pub struct SorakaCallback {
    /// `GET` or `POST`
    request_type: Option<String>,
    url: Option<String>,
    /// JSON, or a text that is JSON: the body of a POST, the query of a GET.
    #[schema(value_type = Option<Object>)]
    params: Option<Value>,
}

impl SorakaRequest {
    /// What that system does not know is passed over, as it does.
    fn read(body: &[u8]) -> Result<Self, Problem> {
        let mut fields = Fields::of_body(body)?;
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
    fn read(mut fields: Fields) -> Result<Self, Problem> {
        let (request_type, url) = (fields.text("request_type")?, fields.text("url")?);
        Ok(Self { request_type, url, params: fields.take("params") })
    }
}

fn milliseconds_of(fields: &mut Fields, name: &'static str) -> Result<Option<u64>, Problem> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    value.as_u64().map(Some).ok_or_else(|| fields.wrong(name, "is a whole number of milliseconds, 0 or more"))
}

/// What soraka answers.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SorakaAnswer {
    /// 200; 401 for bad parameters, 402 for a name that no topic can have, 405 where the message is not there or not held any more,
    /// 406 where the key is not for this, 500 for the rest.
    pub ec: u16,
    pub em: String,
    /// `{"msgId"}` of a submit, `true` otherwise; `false` on failure.
    #[schema(value_type = Object)]
    pub result: Value,
}

/// Submit a message as to soraka
#[utoipa::path(
    post, path = "/sorakaq/msg/submit", tag = "older systems", operation_id = "soraka_submit",
    request_body(content = SorakaRequest, content_type = "application/json"),
    responses((status = 200, description = "What happened, also on failure", body = SorakaAnswer, content_type = "application/json")),
)]
pub(super) async fn submit(State(door): State<Arc<Door>>, request: Request) -> Response {
    answer(try_submit(&door, request).await.map(|id| json!({ "msgId": id })))
}

/// Take a message back as from soraka
#[utoipa::path(
    post, path = "/sorakaq/msg/cancel", tag = "older systems", operation_id = "soraka_cancel",
    request_body(content = SorakaRequest, content_type = "application/json"),
    responses((status = 200, description = "What happened, also on failure", body = SorakaAnswer, content_type = "application/json")),
)]
pub(super) async fn cancel(State(door): State<Arc<Door>>, request: Request) -> Response {
    answer(try_cancel(&door, request).await.map(|()| json!(true)))
}

/// Hold a message for longer as with soraka
#[utoipa::path(
    post, path = "/sorakaq/msg/addTime", tag = "older systems", operation_id = "soraka_add_time",
    request_body(content = SorakaRequest, content_type = "application/json"),
    responses((status = 200, description = "What happened, also on failure", body = SorakaAnswer, content_type = "application/json")),
)]
pub(super) async fn add_time(State(door): State<Arc<Door>>, request: Request) -> Response {
    answer(try_add_time(&door, request).await.map(|()| json!(true)))
}

fn answer(outcome: Result<Value, Problem>) -> Response {
    let answer = match outcome {
        Ok(result) => SorakaAnswer { ec: 200, em: String::new(), result },
        Err(problem) => {
            metrics::counter!(crate::metric_names::REFUSALS, "code" => problem.code().word()).increment(1);
            let em = format!("{}: {}", problem.code().word(), problem.detail());
            SorakaAnswer { ec: ec_of(problem.code()), em, result: json!(false) }
        }
    };
    json_response(StatusCode::OK, serde_json::to_vec(&answer).expect("an answer is plain data"))
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

async fn try_submit(door: &Arc<Door>, request: Request) -> Result<String, Problem> {
    let (parts, body) = request.into_parts();
    let caller = door.keys.caller(&parts.headers)?;
    let mut load = door.in_flight.begin();
    let (wait, payload_max) = (door.settings.body_wait, door.settings.payload_bytes_max);
    let limit = payload_max.saturating_mul(ESCAPED_BYTES_MAX).saturating_add(FRAME_BYTES_MAX);
    let too_large = || check_payload_size(usize::MAX, &door.settings).expect_err("nothing is that large");
    let body = collect(body, &parts.headers, &mut load, wait, limit, too_large).await?;
    let request = SorakaRequest::read(&body)?;
    let topic = topic_of(&request, &caller)?;
    check_topic_name(&subscription_of(&topic))?;
    let draft = draft_of(request, door)?;
    ensure_subscription(door, &topic).await?;
    let accepted = accept_one(door, &topic, caller.owner(), draft, load).await?;
    Ok(accepted.id.to_text())
}

async fn try_cancel(door: &Arc<Door>, request: Request) -> Result<(), Problem> {
    let (caller, request) = small_request(door, request).await?;
    let id = known_hold(door, &caller, &request).await?;
    hold_calls::withdraw(door, &caller, &id).await
}

async fn try_add_time(door: &Arc<Door>, request: Request) -> Result<(), Problem> {
    let (caller, request) = small_request(door, request).await?;
    let add_time = request.add_time.filter(|ms| *ms > 0);
    let add_time =
        add_time.ok_or_else(|| Problem::new(Code::BadParameter, "`add_time` is missing, in milliseconds"))?;
    let now = door.ports.clock.now();
    let extension = Extension::checked(Some(&add_time.to_string()), None, None, None, now)?;
    let id = known_hold(door, &caller, &request).await?;
    hold_calls::extend(door, &caller, &id, extension).await.map(drop)
}

async fn small_request(door: &Door, request: Request) -> Result<(Caller, SorakaRequest), Problem> {
    let (parts, body) = request.into_parts();
    let caller = door.keys.caller(&parts.headers)?;
    let (mut load, wait) = (door.in_flight.begin(), door.settings.body_wait);
    let too_large = || Problem::new(Code::PayloadTooLarge, "this request is small");
    let body = collect(body, &parts.headers, &mut load, wait, FRAME_BYTES_MAX, too_large).await?;
    Ok((caller, SorakaRequest::read(&body)?))
}

fn topic_of(request: &SorakaRequest, caller: &Caller) -> Result<String, Problem> {
    let topic = needed(request.topic_name.clone(), "topic_name")?;
    check_user_topic(&topic)?;
    caller.require_topic(Scope::Publish, &topic)?;
    Ok(topic)
}

/// The hold of a message, where it is one of the topic that was named.
async fn known_hold(door: &Door, caller: &Caller, request: &SorakaRequest) -> Result<whimbrel_model::HoldId, Problem> {
    let topic = topic_of(request, caller)?;
    let id = hold_id(&needed(request.msg_id.clone(), "msg_id")?)?;
    if *hold_calls::look(door, caller, &id).await?.topic_name(door) == *topic {
        return Ok(id);
    }
    Err(Problem::new(Code::UnknownHold, format!("`{topic}` has no message `{id}`")))
}

fn draft_of(request: SorakaRequest, door: &Door) -> Result<Draft, Problem> {
    let delay = Duration::from_millis(request.delay_time.unwrap_or(0));
    if delay > DELAY_MAX {
        return Err(Problem::new(Code::BadDuration, "a message can be held for two years at most"));
    }
    let callback = needed(request.callback, "callback")?;
    let method = needed(callback.request_type, "callback.request_type")?.to_ascii_uppercase();
    if !matches!(method.as_str(), "GET" | "POST") {
        return Err(Problem::new(Code::BadParameter, "`callback.request_type` is `GET` or `POST`"));
    }
    let url = needed(callback.url, "callback.url")?;
    check_url(&url, &door.settings.guard)
        .map_err(|wrong| Problem::new(wrong.code, format!("`callback.url` {}", wrong.why)))?;
    let ttr = request.ttr.filter(|ttr| *ttr > 0).unwrap_or(TTR_DEFAULT_MS);
    if ttr > TTR_MAX_MS {
        return Err(Problem::new(Code::BadDuration, format!("`ttr` is {TTR_MAX_MS} ms at most")));
    }
    let payload = payload_of(callback.params, method == "GET")?;
    check_payload_size(payload.len(), &door.settings)?;
    let rule = DeliveryRule { retry: None, timeout_ms: Some(ttr), callback: Some(OwnCallback { method, url }) };
    let later = Some(Later::After(delay));
    let headers = rule_header(&rule);
    Ok(Draft { key: None, payload, content_type: ContentType::Json, headers, brought: None, later, push: None })
}

/// A message's header that rules its delivery. No publisher can bring it: only doors write it.
pub(super) fn rule_header(rule: &DeliveryRule) -> Headers {
    let json = serde_json::to_vec(rule).expect("a rule is plain data");
    Headers::builder().push(HEADER_DELIVERY, &json).take()
}

/// The parameters as JSON: a text is taken for the JSON that it has.
fn payload_of(params: Option<Value>, is_query: bool) -> Result<Bytes, Problem> {
    let text = match params {
        None | Some(Value::Null) => return Ok(Bytes::new()),
        Some(Value::String(text)) => text,
        Some(json) => json.to_string(),
    };
    let is_object = || serde_json::from_str::<serde_json::Map<String, Value>>(&text).is_ok();
    if is_query && !text.is_empty() && !is_object() {
        let detail = "`callback.params` of a GET is a JSON object: its members become the query";
        return Err(Problem::new(Code::BadParameter, detail));
    }
    Ok(Bytes::from(text))
}

fn subscription_of(topic: &str) -> String {
    format!("{SUBSCRIPTION_PREFIX}{topic}")
}

/// Makes the topic's subscription where it is not there yet, before anything is held that it must deliver.
async fn ensure_subscription(door: &Arc<Door>, topic: &str) -> Result<(), Problem> {
    let name = subscription_of(topic);
    match door.subscriptions.get(&name) {
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
    spec.gone = Gone::Fail;
    spec.disable_after_ms = DISABLE_AFTER.as_millis() as u64;
    let owned = Arc::clone(door);
    let made = Undisturbed::new(async move {
        // Somebody may have changed it since: what is there stays as it is.
        if let Some(known) = owned.subscriptions.get(&name) {
            return Ok(known);
        }
        owned.subscriptions.put(&name, spec, SecretWish::Keep).await.map(|made| made.subscription)
    })
    .await?;
    caught_up(door, &made).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_told_with_its_field_and_what_that_takes() {
        for (body, said) in [
            (r#"{"delay_time":-1}"#, "`delay_time` is a whole number of milliseconds, 0 or more"),
            (r#"{"ttr":"3s"}"#, "`ttr` is a whole number of milliseconds, 0 or more"),
            (r#"{"topic_name":7}"#, "`topic_name` is a text"),
            (r#"{"callback":"http://h/"}"#, "`callback` is an object"),
            (r#"{"callback":{"url":7}}"#, "`callback.url` is a text"),
        ] {
            assert_eq!(SorakaRequest::read(body.as_bytes()).unwrap_err().detail(), said, "{body}");
        }
    }

    #[test]
    fn problems_become_the_numbers_of_that_system() {
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
    fn parameters_may_be_json_or_a_text_that_is() {
        assert_eq!(payload_of(Some(json!({ "a": 1 })), true).unwrap(), r#"{"a":1}"#);
        assert_eq!(payload_of(Some(json!("{\"a\": 1}")), true).unwrap(), r#"{"a": 1}"#);
        assert_eq!(payload_of(Some(json!("plain")), false).unwrap(), "plain");
        assert!(payload_of(Some(json!("plain")), true).is_err());
        assert!(payload_of(Some(json!([1])), true).is_err());
        assert!(payload_of(None, true).unwrap().is_empty());
    }
}
