//! `POST /v1/topics/{topic}/messages`: one message. The body is its payload, unchanged.
//!
//! This is the hot path: the topic is borrowed from the path, a body in one piece is not copied, and the answer is serialized by hand.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use bytes::Bytes;
use http::StatusCode;

use crate::accept::draft::Draft;
use crate::accept::{AcceptedState, accept_one};
use crate::answer::{ANSWER_BYTES_TYPICAL, json_response, write_answer};
use crate::api_state::ApiState;
use crate::attributes::{Attributes, check_user_topic, topic_in_path};
use crate::body::collect_payload;
use crate::keys::Scope;
use crate::problem::ApiResult;
use whimbrel_api::messages::{Held, Published};
use whimbrel_api::problem::Problem;

/// Publish one message
///
/// The body is the payload, stored unchanged with its `Content-Type`. The answer follows when the message is durable. Headers
/// `Whimbrel-Header-<Name>` and `ce-*` are stored with the message. The first publish creates the topic if the server's settings allow it.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/messages", tag = "messages", operation_id = "publish",
    params(
        ("topic" = String, Path, description = "1 to 200 of `A-Za-z0-9._-`, not starting with `_`"),
        ("key" = Option<String>, Query, description = "The partition key, also as the header `Whimbrel-Key`. Messages of one key keep their order"),
        ("id" = Option<String>, Query, description = "An id chosen by the publisher, also as `Whimbrel-Id`. A repeat returns the first answer"),
        ("delay" = Option<String>, Query, description = "Hold the message for a duration of at most two years, also as `Whimbrel-Delay`"),
        ("deliver_at" = Option<String>, Query, description = "Hold the message until a time at most two years ahead, also as `Whimbrel-Deliver-At`"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeat with the same key within 12 hours returns the first answer"),
    ),
    request_body(content = Vec<u8>, content_type = "*/*", description = "The payload"),
    responses(
        (status = 201, description = "The message is durable, in its topic", body = Published, content_type = "application/json"),
        (status = 202, description = "The message is durable and is held until its due time", body = Held, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `body_too_slow`, `in_progress`, `id_taken`, `payload_too_large`, `bad_name`, `reserved_name`, `bad_id`, `bad_key`, `bad_parameter`, `bad_duration`, `bad_time`, `bad_header`, `reserved_header`, `too_many_headers`, `header_too_large`, `different_body`, `too_many_topics`, `overloaded`, `bad_body`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`disk_full`, `log_closed`, `unavailable`, `no_owner`, `topic_growing`, `no_session`, `outcome_unknown`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn publish(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let topic = topic_in_path(parts.uri.path())?;
    let caller = api.keys.caller(&parts.headers)?;
    check_user_topic(&topic)?;
    caller.require_topic(Scope::Publish, &topic)?;
    let attributes = Attributes::of(&parts, &api.settings, api.ports.clock.now())?;
    let mut load = api.in_flight.begin();
    let payload = collect_payload(&api, &parts, body, &mut load, api.settings.payload_bytes_max).await?;
    let begun = Instant::now();
    let draft = Draft {
        key: attributes.key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
        payload,
        content_type: attributes.content_type,
        headers: attributes.headers,
        own_id: attributes.own_id,
        later: attributes.later,
        push: None,
    };
    let accepted = accept_one(&api, &topic, caller.owner(), draft, load).await?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES_TYPICAL + topic.len());
    write_answer(&mut answer, &accepted, &topic);
    api.metrics.publish_seconds.record(begun.elapsed());
    let status = match accepted.state {
        AcceptedState::InTopic { .. } => StatusCode::CREATED,
        AcceptedState::Held { .. } => StatusCode::ACCEPTED,
    };
    Ok(json_response(status, answer))
}
