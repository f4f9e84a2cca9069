//! `…/pause`, `…/resume`, `…/seek`, `…/replay`: control of a subscription's run and position.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use tokio::time::Instant;

use crate::accept::cancel_safe::CancelSafe;
use crate::answer::{json_response, to_json};
use crate::api_state::ApiState;
use crate::endpoints::subscription_calls::{STATUS_WITHIN, caught_up, find_with_fields, status};
use crate::endpoints::subscription_json::settings_document;
use crate::json_fields::{JsonFields, time_of};
use crate::keys::Scope;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::shown;
use whimbrel_api::problem::Problem;
use whimbrel_api::subscriptions::{ReplayRange, SeekInfo, SeekTo, SubscriptionInfo};
use whimbrel_catalogue::subscriptions::{
    ReplayRequest, RunOutcome, SeekRequest, StartPosition, Subscription, Truncation,
};

/// The maximum number of partitions in one seek.
const SEEK_OFFSETS_MAX: usize = 20_000;

/// Pause a subscription
///
/// It reads nothing and makes no callback until it is resumed. Callbacks in progress end, and count.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/pause", tag = "subscriptions", operation_id = "pause_subscription",
    params(("name" = String, Path, description = "The subscription")),
    responses(
        (status = 200, description = "The subscription is paused", body = SubscriptionInfo, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `forbidden`, `conflict`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `disk_full`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn pause(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (subscription, fields) = find_with_fields(&api, Scope::Admin, &parts, body).await?;
    fields.end()?;
    let owned = Arc::clone(&api);
    let paused = CancelSafe::new(async move { owned.subscriptions.pause(&subscription.name).await }).await?;
    answer_after_change(&api, &paused).await
}

/// Resume a subscription
///
/// Also enables a subscription that Whimbrel disabled.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/resume", tag = "subscriptions", operation_id = "resume_subscription",
    params(("name" = String, Path, description = "The subscription")),
    responses(
        (status = 200, description = "The subscription is active", body = SubscriptionInfo, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `forbidden`, `conflict`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `disk_full`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn resume(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (subscription, fields) = find_with_fields(&api, Scope::Admin, &parts, body).await?;
    fields.end()?;
    let owned = Arc::clone(&api);
    let resumed = CancelSafe::new(async move { owned.subscriptions.resume(&subscription.name).await }).await?;
    answer_after_change(&api, &resumed).await
}

/// Move the cursor
///
/// Begins a new run. Deliveries of an earlier run cannot move the cursor.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/seek", tag = "subscriptions", operation_id = "seek_subscription",
    params(("name" = String, Path, description = "The subscription")),
    request_body(content = SeekTo, content_type = "application/json"),
    responses(
        (status = 200, description = "The new position", body = SeekInfo, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `offset_beyond_end`, `bad_parameter`, `bad_time`, `forbidden`, `conflict`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner` (offsets of some partitions only), `unavailable`, `disk_full`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn seek(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = find_with_fields(&api, Scope::Admin, &parts, body).await?;
    let ask = seek_of(&mut fields)?;
    fields.end()?;
    let status = status(&api, subscription.number(), Instant::now() + STATUS_WITHIN).await;
    let watermarks = status.map(|status| {
        let each = status.partitions.into_iter();
        each.map(|each| ((each.topic, each.partition), each.watermark)).collect::<BTreeMap<_, _>>()
    });
    let owned = Arc::clone(&api);
    let seeking = async move { owned.subscriptions.seek(&subscription.name, &ask, watermarks.as_ref()).await };
    let RunOutcome { subscription, run, truncated } = CancelSafe::new(seeking).await?;
    caught_up(&api, &subscription).await;
    Ok(run_answer(&subscription.stored.starts, &subscription, run, &truncated))
}

/// Deliver a range of messages again
///
/// The replay runs beside the normal delivery and has an order of its own.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/replay", tag = "subscriptions", operation_id = "replay_subscription",
    params(("name" = String, Path, description = "The subscription")),
    request_body(content = ReplayRange, content_type = "application/json"),
    responses(
        (status = 200, description = "The replay has begun. `replays` of the subscription shows its progress", body = SeekInfo, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `too_many_replays`, `bad_parameter`, `bad_time`, `forbidden`, `conflict`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `disk_full`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn replay(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = find_with_fields(&api, Scope::Admin, &parts, body).await?;
    let ask = replay_of(&mut fields)?;
    fields.end()?;
    let owned = Arc::clone(&api);
    let replaying = async move { owned.subscriptions.replay(&subscription.name, &ask).await };
    let RunOutcome { subscription, run, truncated } = CancelSafe::new(replaying).await?;
    caught_up(&api, &subscription).await;
    let replay = subscription.stored.replays.iter().find(|replay| replay.run == run);
    let starts = replay.map(|replay| replay.from.as_slice()).unwrap_or_default();
    Ok(run_answer(starts, &subscription, run, &truncated))
}

/// The changed subscription. A note says so if the owner has not confirmed the change.
async fn answer_after_change(api: &ApiState, subscription: &Subscription) -> ApiResult {
    let mut document = settings_document(subscription);
    if !caught_up(api, subscription).await {
        document.note = Some("the change is stored, but its owner has not confirmed it yet".to_owned());
    }
    Ok(json_response(StatusCode::OK, to_json(&document)))
}

fn run_answer(
    starts: &[whimbrel_model::subscription::TopicStart],
    subscription: &Subscription,
    run: u32,
    truncated: &[Truncation],
) -> Response {
    let own = starts.iter().filter(|start| subscription.stored.spec.topics.contains(&start.topic));
    let offsets = own.flat_map(|start| {
        let each = start.offsets.iter().enumerate();
        each.map(|(partition, offset)| (format!("{}/{partition}", start.topic), *offset))
    });
    let truncated = truncated.iter().map(|each| format!("{}/{}", each.topic, each.partition)).collect();
    let document = SeekInfo { run, offsets: offsets.collect(), truncated };
    json_response(StatusCode::OK, to_json(&document))
}

fn seek_of(fields: &mut JsonFields) -> Result<SeekRequest, ApiProblem> {
    let (to, offsets) = (fields.text("to")?, fields.object("offsets")?);
    let offsets = match (to, offsets) {
        (Some(to), None) => return Ok(SeekRequest::To(position(fields, "to", &to)?)),
        (None, Some(offsets)) => offsets,
        _ => return Err(ApiProblem::new(Code::BadParameter, "set exactly one of `to` and `offsets`")),
    };
    if !(1..=SEEK_OFFSETS_MAX).contains(&offsets.len()) {
        return Err(fields.wrong("offsets", format_args!("must name 1 to {SEEK_OFFSETS_MAX} partitions")));
    }
    let mut judged = BTreeMap::new();
    for (place, offset) in offsets {
        let parsed = place.rsplit_once('/').and_then(|(topic, partition)| Some((topic, partition.parse().ok()?)));
        let (topic, partition): (&str, u32) = parsed
            .ok_or_else(|| fields.wrong("offsets", format_args!("has `{}`: write `topic/partition`", shown(&place))))?;
        let offset = offset.as_u64();
        let offset = offset.ok_or_else(|| fields.wrong("offsets", "contains an offset that is not a whole number"))?;
        judged.insert((topic.to_owned(), partition), offset);
    }
    Ok(SeekRequest::Offsets(judged))
}

fn replay_of(fields: &mut JsonFields) -> Result<ReplayRequest, ApiProblem> {
    let (from, to, key) = (fields.text("from")?, fields.text("to")?, fields.text("key")?);
    let from = from.ok_or_else(|| fields.wrong("from", "is missing: set `earliest` or a time"))?;
    let from = position(fields, "from", &from)?;
    let to = to.map_or(Ok(StartPosition::Latest), |to| position(fields, "to", &to))?;
    if from == StartPosition::Latest {
        return Err(fields.wrong("from", "must be `earliest` or a time, not `latest`"));
    }
    Ok(ReplayRequest { from, to, key })
}

fn position(fields: &JsonFields, name: &str, text: &str) -> Result<StartPosition, ApiProblem> {
    match text {
        "earliest" => Ok(StartPosition::Earliest),
        "latest" => Ok(StartPosition::Latest),
        time => Ok(StartPosition::At(time_of(fields, name, time)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seek(body: &str) -> Result<SeekRequest, Code> {
        seek_of(&mut JsonFields::of_body(body.as_bytes()).unwrap()).map_err(|problem| problem.code())
    }

    #[test]
    fn a_seek_has_either_a_position_or_offsets() {
        assert_eq!(seek(r#"{"to":"earliest"}"#), Ok(SeekRequest::To(StartPosition::Earliest)));
        let offsets = BTreeMap::from([(("a.b-c".to_owned(), 2), 17)]);
        assert_eq!(seek(r#"{"offsets":{"a.b-c/2":17}}"#), Ok(SeekRequest::Offsets(offsets)));
        for wrong in ["{}", r#"{"to":"latest","offsets":{"a/0":1}}"#, r#"{"offsets":{}}"#, r#"{"offsets":{"a":1}}"#] {
            assert_eq!(seek(wrong), Err(Code::BadParameter), "{wrong}");
        }
        for wrong in [r#"{"offsets":{"a/x":1}}"#, r#"{"offsets":{"a/0":-1}}"#, r#"{"offsets":{"a/0":"1"}}"#] {
            assert_eq!(seek(wrong), Err(Code::BadParameter), "{wrong}");
        }
        assert_eq!(seek(r#"{"to":"tomorrow"}"#), Err(Code::BadTime));
    }
}
