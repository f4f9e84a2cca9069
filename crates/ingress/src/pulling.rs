//! `…/pull`, `…/ack`, `…/nack`, `…/extend`: messages for whoever asks for them, each under a lease.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use whimbrel_model::StoredRecord;
use whimbrel_model::limits::READ_WAIT_MAX_MS;
use whimbrel_model::ports::{DispatchAsk, DispatchTold, Pulled};
use whimbrel_model::subscription::Mode;

use super::answer::{bounded_json_response, json_response};
use super::documents::{MessageDocument, ProblemDocument};
use super::door::Door;
use super::json_fields::Fields;
use super::keys::Scope;
use super::message_json::{MESSAGE_BYTES_TYPICAL, write_members};
use super::problem::{Code, Problem};
use super::subscription_body::LEASE;
use super::subscription_calls::{ask, found_with_fields, not_understood};
use super::subscriptions::to_json;
use whimbrel_catalogue::subscriptions::Subscription;

const PULL_DEFAULT: u64 = 10;
const PULL_MAX: u64 = 1_000;
/// Leases that one request settles.
const ACK_IDS_MAX: usize = 10_000;
/// How long a message that is given back may stay away.
const NACK_DELAY_MAX: Duration = Duration::from_secs(7 * 86_400);

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PullBody {
    /// At most so many: 1 to 1000, 10 where it is not given.
    pub max: Option<u64>,
    /// How long to wait where nothing is there yet, such as `5s`: up to `60s`.
    pub wait: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PullAnswer {
    pub messages: Vec<PulledMessage>,
}

/// A message under a lease.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PulledMessage {
    /// What it is acknowledged with.
    pub ack_id: String,
    /// Acknowledge, give back or extend it before then, or it is handed out again.
    pub lease_until: String,
    /// The first is 1.
    pub attempt: u32,
    #[serde(flatten)]
    pub message: MessageDocument,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AckBody {
    pub ack_ids: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct NackBody {
    pub ack_ids: Vec<String>,
    /// Hand them out again after so long; as the schedule of retries says where it is not given.
    pub delay: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LeaseBody {
    pub ack_ids: Vec<String>,
    /// From now on; the subscription's `lease` where it is not given.
    pub lease: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Settled)]
pub struct SettledDocument {
    pub known: usize,
    /// Their lease is over, or they were never given.
    pub unknown: Vec<String>,
}

/// Take messages under a lease
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/pull", tag = "subscriptions", operation_id = "pull",
    params(("name" = String, Path, description = "A subscription with `\"mode\":\"pull\"`")),
    request_body(content = Option<PullBody>, content_type = "application/json"),
    responses(
        (status = 200, description = "Messages, maybe none", body = PullAnswer, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `wrong_mode`, `bad_parameter`, `bad_duration`, `forbidden`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn pull(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = found_with_fields(&door, Scope::Consume, &parts, body).await?;
    require_pulled(&subscription)?;
    let max = fields.number("max", 1..=PULL_MAX)?.unwrap_or(PULL_DEFAULT) as usize;
    let wait = fields.duration("wait", Duration::ZERO..=Duration::from_millis(READ_WAIT_MAX_MS))?;
    fields.end()?;
    let wait_ms = wait.unwrap_or_default().as_millis() as u64;
    let told = tokio::select! {
        told = ask(&door, subscription.number(), DispatchAsk::Pull { max, wait_ms }) => told?,
        // Whoever waits while the server ends is told that there was nothing.
        () = door.settings.shutdown.cancelled() => DispatchTold::Pulled(Vec::new()),
    };
    let DispatchTold::Pulled(pulled) = told else { return Err(not_understood(&told)) };
    let size = pulled.iter().map(|each| each.record.size() + 2 * MESSAGE_BYTES_TYPICAL).sum::<usize>();
    let mut load = door.answers.begin();
    load.grow(size)?;
    let mut json = Vec::with_capacity(size);
    json.extend_from_slice(b"{\"messages\":[");
    for each in pulled {
        write_pulled(&door, &mut json, each);
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
        (status = 200, description = "They are done", body = SettledDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `wrong_mode`, `bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn ack(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = found_with_fields(&door, Scope::Consume, &parts, body).await?;
    require_pulled(&subscription)?;
    let ack_ids = ack_ids_of(&mut fields)?;
    fields.end()?;
    settle(&door, &subscription, DispatchAsk::Ack { ack_ids }).await
}

/// Give messages back
///
/// That counts as a failed attempt.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/nack", tag = "subscriptions", operation_id = "nack",
    params(("name" = String, Path, description = "A subscription with `\"mode\":\"pull\"`")),
    request_body(content = NackBody, content_type = "application/json"),
    responses(
        (status = 200, description = "They are handed out again later", body = SettledDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `wrong_mode`, `bad_parameter`, `bad_duration`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn nack(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = found_with_fields(&door, Scope::Consume, &parts, body).await?;
    require_pulled(&subscription)?;
    let ack_ids = ack_ids_of(&mut fields)?;
    let delay = fields.duration("delay", Duration::ZERO..=NACK_DELAY_MAX)?;
    fields.end()?;
    let delay_ms = delay.map(|delay| delay.as_millis() as u64);
    settle(&door, &subscription, DispatchAsk::Nack { ack_ids, delay_ms }).await
}

/// Keep messages for longer
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/extend", tag = "subscriptions", operation_id = "extend_lease",
    params(("name" = String, Path, description = "A subscription with `\"mode\":\"pull\"`")),
    request_body(content = LeaseBody, content_type = "application/json"),
    responses(
        (status = 200, description = "Their leases begin anew", body = SettledDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `wrong_mode`, `bad_parameter`, `bad_duration`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner`, `unavailable`, `outcome_unknown`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn extend(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = found_with_fields(&door, Scope::Consume, &parts, body).await?;
    require_pulled(&subscription)?;
    let ack_ids = ack_ids_of(&mut fields)?;
    let lease = fields.duration("lease", LEASE)?;
    fields.end()?;
    let lease_ms = lease.map_or(subscription.stored.spec.lease_ms, |lease| lease.as_millis() as u64);
    settle(&door, &subscription, DispatchAsk::Extend { ack_ids, lease_ms }).await
}

fn require_pulled(subscription: &Subscription) -> Result<(), Problem> {
    if subscription.stored.spec.mode == Mode::Pull {
        return Ok(());
    }
    let detail =
        format!("`{}` pushes to its endpoint: only one with `\"mode\":\"pull\"` is pulled from", subscription.name);
    Err(Problem::new(Code::WrongMode, detail))
}

fn ack_ids_of(fields: &mut Fields) -> Result<Vec<String>, Problem> {
    let ack_ids = fields.texts("ack_ids", ACK_IDS_MAX)?.filter(|ids| !ids.is_empty());
    ack_ids.ok_or_else(|| fields.wrong("ack_ids", "has what `pull` gave, one at least"))
}

async fn settle(door: &Door, subscription: &Subscription, asked: DispatchAsk) -> Result<Response, Problem> {
    match ask(door, subscription.number(), asked).await? {
        DispatchTold::Settled { known, unknown } => {
            Ok(json_response(StatusCode::OK, to_json(&SettledDocument { known, unknown })))
        }
        other => Err(not_understood(&other)),
    }
}

/// Writes a message with a comma behind it. One whose topic was deleted at this moment is left out: nobody waits for it any more.
fn write_pulled(door: &Door, out: &mut Vec<u8>, pulled: Pulled) {
    let Some(topic) = door.registry.get(&pulled.topic) else { return };
    let stored = StoredRecord { offset: pulled.offset, record: pulled.record };
    out.extend_from_slice(b"{\"ack_id\":");
    serde_json::to_writer(&mut *out, &pulled.ack_id).expect("a buffer takes all");
    write!(out, ",\"lease_until\":\"{}\",\"attempt\":{},", pulled.lease_until, pulled.attempt)
        .expect("a buffer takes all");
    write_members(out, &topic, pulled.partition, &stored);
    out.extend_from_slice(b"},");
}
