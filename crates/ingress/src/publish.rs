//! `POST /v1/topics/{topic}/messages`: one message; the body is its payload, untouched.
//!
//! This is the hot path: the topic is borrowed from the path, the body is not copied where it came in one piece, the answer is
//! written by hand.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;

use super::accept::{Standing, accept_one};
use super::answer::{ANSWER_BYTES_TYPICAL, json_response, write_answer};
use super::attributes::{Attributes, check_user_topic, topic_in_path};
use super::body::collect;
use super::documents::{HeldAnswer, PublishAnswer};
use super::door::Door;
use super::draft::{Draft, check_payload_size};
use super::keys::Scope;
use super::problem::Problem;

/// Publish one message
///
/// The body is the payload, untouched, with its `Content-Type`. The answer comes when the message is durable. Headers
/// `Whimbrel-Header-<Name>` and `ce-*` travel with the message. The topic is made by its first publish where the server's settings
/// allow it.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/messages", tag = "messages", operation_id = "publish",
    params(
        ("topic" = String, Path, description = "1 to 200 of `A-Za-z0-9._-`, not starting with `_`"),
        ("key" = Option<String>, Query, description = "The partition key, also as the header `Whimbrel-Key`. Messages of one key stay in order"),
        ("id" = Option<String>, Query, description = "An id of the publisher's own, also as `Whimbrel-Id`: a repeat returns the first answer"),
        ("delay" = Option<String>, Query, description = "Hold the message for a duration, also as `Whimbrel-Delay`: up to two years"),
        ("deliver_at" = Option<String>, Query, description = "Hold the message until a time, also as `Whimbrel-Deliver-At`: up to two years ahead"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repeat return the first answer, for 12 hours"),
    ),
    request_body(content = Vec<u8>, content_type = "*/*", description = "The payload"),
    responses(
        (status = 201, description = "The message is durable, in its topic", body = PublishAnswer, content_type = "application/json"),
        (status = 202, description = "The message is durable, and held until it is due", body = HeldAnswer, content_type = "application/json"),
        (status = "4XX", description = "`unknown_topic`, `body_too_slow`, `in_progress`, `id_taken`, `payload_too_large`, `bad_name`, `reserved_name`, `bad_id`, `bad_key`, `bad_parameter`, `bad_duration`, `bad_time`, `bad_header`, `reserved_header`, `too_many_headers`, `header_too_large`, `different_body`, `too_many_topics`, `overloaded`, `bad_body`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`disk_full`, `log_closed`, `unavailable`, `no_owner`, `topic_growing`, `no_session`, `outcome_unknown`", body = super::documents::ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn publish(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let topic = topic_in_path(parts.uri.path())?;
    let caller = door.keys.caller(&parts.headers)?;
    check_user_topic(&topic)?;
    caller.require_topic(Scope::Publish, &topic)?;
    let attributes = Attributes::of(&parts, &door.settings, door.ports.clock.now())?;
    let mut load = door.in_flight.begin();
    let limit = door.settings.payload_bytes_max;
    let too_large = || check_payload_size(usize::MAX, &door.settings).expect_err("nothing is that large");
    let payload = collect(body, &parts.headers, &mut load, door.settings.body_wait, limit, too_large).await?;
    let begun = Instant::now();
    let draft = Draft {
        key: attributes.key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
        payload,
        content_type: attributes.content_type,
        headers: attributes.headers,
        brought: attributes.brought,
        later: attributes.later,
        push: None,
    };
    let accepted = accept_one(&door, &topic, caller.owner(), draft, load).await?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES_TYPICAL + topic.len());
    write_answer(&mut answer, &accepted, &topic);
    door.figures.publish_seconds.record(begun.elapsed());
    let status = match accepted.standing {
        Standing::InTopic { .. } => StatusCode::CREATED,
        Standing::Held { .. } => StatusCode::ACCEPTED,
    };
    Ok(json_response(status, answer))
}
