//! `…/pull`, `…/ack`, `…/nack`, `…/extend`: consumers pull messages, each under a lease.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use http::StatusCode;
use http::request::Parts;
use whimbrel_api::problem::Problem;
use whimbrel_api::pull::{AckBody, LeaseBody, NackBody, PullBody, PulledBatch, Settled};
use whimbrel_model::StoredRecord;
use whimbrel_model::limits::READ_WAIT_MAX_MS;
use whimbrel_model::ports::{DispatchReply, DispatchRequest, LeasedMessage};
use whimbrel_model::subscription::Mode;

use crate::answer::{bounded_json_response, json_response, to_json};
use crate::api_state::ApiState;
use crate::endpoints::subscription_body::LEASE;
use crate::endpoints::subscription_calls::{ask, find_with_fields, wrong_reply};
use crate::json_fields::JsonFields;
use crate::keys::Scope;
use crate::message_json::{MESSAGE_BYTES_TYPICAL, write_members};
use crate::problem::{ApiProblem, ApiResult, Code};
use whimbrel_catalogue::subscriptions::Subscription;

const PULL_DEFAULT: u64 = 10;
const PULL_MAX: u64 = 1_000;
/// The maximum number of leases in one request.
const ACK_IDS_MAX: usize = 10_000;
/// The maximum delay of a message that a consumer gives back.
const NACK_DELAY_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Pull messages under a lease
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/pull", tag = "subscriptions", operation_id = "pull",
    params(("name" = String, Path, description = "A subscription with `\"mode\":\"pull\"`")),
    request_body(content = Option<PullBody>, content_type = "application/json"),
    responses(
        (status = 200, description = "The messages; the list may be empty", body = PulledBatch, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `wrong_mode`, `bad_parameter`, `bad_duration`, `forbidden`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn pull(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = find_pulled(&api, &parts, body).await?;
    let max = fields.number("max", 1..=PULL_MAX)?.unwrap_or(PULL_DEFAULT) as usize;
    let wait = fields.duration("wait", Duration::ZERO..=Duration::from_millis(READ_WAIT_MAX_MS))?;
    fields.end()?;
    let wait_ms = wait.unwrap_or_default().as_millis() as u64;
    let told = tokio::select! {
        told = ask(&api, subscription.number(), DispatchRequest::Pull { max, wait_ms }) => told?,
        // At shutdown, a waiting request gets an empty answer.
        () = api.settings.shutdown.cancelled() => DispatchReply::Pulled(Vec::new()),
    };
    let DispatchReply::Pulled(pulled) = told else { return Err(wrong_reply(&told)) };
    let size = pulled.iter().map(|each| each.record.size() + 2 * MESSAGE_BYTES_TYPICAL).sum::<usize>();
    let mut load = api.answers.begin();
    load.grow(size)?;
    let mut json = Vec::with_capacity(size);
    json.extend_from_slice(b"{\"messages\":[");
    for each in pulled {
        write_pulled(&api, &mut json, each);
    }
    if json.last() == Some(&b',') {
        json.pop();
    }
    json.extend_from_slice(b"]}");
    bounded_json_response(load, json)
}

/// Acknowledge messages
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/ack", tag = "subscriptions", operation_id = "ack",
    params(("name" = String, Path, description = "A subscription with `\"mode\":\"pull\"`")),
    request_body(content = AckBody, content_type = "application/json"),
    responses(
        (status = 200, description = "The messages are acknowledged", body = Settled, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `wrong_mode`, `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn ack(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = find_pulled(&api, &parts, body).await?;
    let ack_ids = ack_ids_of(&mut fields)?;
    fields.end()?;
    settle(&api, &subscription, DispatchRequest::Ack { ack_ids }).await
}

/// Nack messages
///
/// Counts as a failed attempt. The messages are delivered again later.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/nack", tag = "subscriptions", operation_id = "nack",
    params(("name" = String, Path, description = "A subscription with `\"mode\":\"pull\"`")),
    request_body(content = NackBody, content_type = "application/json"),
    responses(
        (status = 200, description = "The messages are delivered again later", body = Settled, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `wrong_mode`, `bad_parameter`, `bad_duration`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn nack(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = find_pulled(&api, &parts, body).await?;
    let ack_ids = ack_ids_of(&mut fields)?;
    let delay = fields.duration("delay", Duration::ZERO..=NACK_DELAY_MAX)?;
    fields.end()?;
    let delay_ms = delay.map(|delay| delay.as_millis() as u64);
    settle(&api, &subscription, DispatchRequest::Nack { ack_ids, delay_ms }).await
}

/// Extend leases
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/extend", tag = "subscriptions", operation_id = "extend_lease",
    params(("name" = String, Path, description = "A subscription with `\"mode\":\"pull\"`")),
    request_body(content = LeaseBody, content_type = "application/json"),
    responses(
        (status = 200, description = "The leases have been extended", body = Settled, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `wrong_mode`, `bad_parameter`, `bad_duration`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn extend(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = find_pulled(&api, &parts, body).await?;
    let ack_ids = ack_ids_of(&mut fields)?;
    let lease = fields.duration("lease", LEASE)?;
    fields.end()?;
    let lease_ms = lease.map_or(subscription.stored.spec.lease_ms, |lease| lease.as_millis() as u64);
    settle(&api, &subscription, DispatchRequest::Extend { ack_ids, lease_ms }).await
}

/// The subscription in the path of a request, which must have the mode `pull`, and the fields of the body.
async fn find_pulled(api: &ApiState, parts: &Parts, body: Body) -> Result<(Arc<Subscription>, JsonFields), ApiProblem> {
    let (subscription, fields) = find_with_fields(api, Scope::Consume, parts, body).await?;
    if subscription.stored.spec.mode == Mode::Pull {
        return Ok((subscription, fields));
    }
    let detail = format!("`{}` must have `\"mode\":\"pull\"` for this request", subscription.name);
    Err(ApiProblem::new(Code::WrongMode, detail))
}

fn ack_ids_of(fields: &mut JsonFields) -> Result<Vec<String>, ApiProblem> {
    let ack_ids = fields.texts("ack_ids", ACK_IDS_MAX)?.filter(|ids| !ids.is_empty());
    ack_ids.ok_or_else(|| fields.wrong("ack_ids", "must have at least one `ack_id` from `pull`"))
}

async fn settle(api: &ApiState, subscription: &Subscription, asked: DispatchRequest) -> ApiResult {
    match ask(api, subscription.number(), asked).await? {
        DispatchReply::Settled { known, unknown } => {
            Ok(json_response(StatusCode::OK, to_json(&Settled { known, unknown })))
        }
        other => Err(wrong_reply(&other)),
    }
}

/// Writes a message with a trailing comma. Skips a message whose topic was deleted meanwhile.
fn write_pulled(api: &ApiState, out: &mut Vec<u8>, pulled: LeasedMessage) {
    let Some(topic) = api.registry.get(&pulled.topic) else { return };
    let stored = StoredRecord { offset: pulled.offset, record: pulled.record };
    out.extend_from_slice(b"{\"ack_id\":");
    serde_json::to_writer(&mut *out, &pulled.ack_id).expect("writing to a buffer cannot fail");
    write!(out, ",\"lease_until\":\"{}\",\"attempt\":{},", pulled.lease_until, pulled.attempt)
        .expect("writing to a buffer cannot fail");
    write_members(out, &topic, pulled.partition, &stored);
    out.extend_from_slice(b"},");
}
