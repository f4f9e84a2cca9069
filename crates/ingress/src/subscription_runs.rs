//! `…/pause`, `…/resume`, `…/seek`, `…/replay`: whether a subscription runs, and from where.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::answer::json_response;
use super::documents::ProblemDocument;
use super::door::Door;
use super::json_fields::{Fields, time_of};
use super::keys::Scope;
use super::problem::{Code, Problem};
use super::query::shown;
use super::subscription_calls::{STATUS_WITHIN, caught_up, found_with_fields, status};
use super::subscription_json::{SubscriptionDocument, decided_document};
use super::subscriptions::to_json;
use super::undisturbed::Undisturbed;
use whimbrel_catalogue::subscriptions::{Position, ReplayAsk, SeekAsk, Sought, Subscription, Truncation};

/// Partitions that one seek names.
const SEEK_OFFSETS_MAX: usize = 20_000;

/// Where the cursor shall be: exactly one of `to` and `offsets`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SeekBody {
    /// `earliest`, `latest` or a time in RFC 3339, which may not lie in the future.
    pub to: Option<String>,
    /// By `topic/partition`. Partitions that are not named go on where they are. One that is not kept any more becomes the oldest that
    /// is; one beyond the end is refused.
    pub offsets: Option<BTreeMap<String, u64>>,
}

/// A stretch that is delivered once more.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplayBody {
    /// `earliest` or a time in RFC 3339
    pub from: String,
    /// `latest` (the default: up to now) or a time in RFC 3339
    pub to: Option<String>,
    /// Only messages with this key.
    pub key: Option<String>,
}

/// Where a seek or a replay begins.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Sought)]
pub struct SoughtDocument {
    pub run: u32,
    /// By `topic/partition`.
    pub offsets: BTreeMap<String, u64>,
    /// Where what was asked for is not kept any more: `topic/partition` of those that begin at the oldest that is.
    pub truncated: Vec<String>,
}

/// Pause a subscription
///
/// It reads nothing and makes no callback until it is resumed. Callbacks under way end, and count.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/pause", tag = "subscriptions", operation_id = "pause_subscription",
    params(("name" = String, Path, description = "The subscription")),
    responses(
        (status = 200, description = "It is paused", body = SubscriptionDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `forbidden`, `conflict`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `disk_full`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn pause(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let (subscription, fields) = found_with_fields(&door, Scope::Admin, &parts, body).await?;
    fields.end()?;
    let owned = Arc::clone(&door);
    let paused = Undisturbed::new(async move { owned.subscriptions.pause(&subscription.name).await }).await?;
    shown_after(&door, &paused).await
}

/// Resume a subscription
///
/// Also one that the system disabled.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/resume", tag = "subscriptions", operation_id = "resume_subscription",
    params(("name" = String, Path, description = "The subscription")),
    responses(
        (status = 200, description = "It runs", body = SubscriptionDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `forbidden`, `conflict`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `disk_full`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn resume(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let (subscription, fields) = found_with_fields(&door, Scope::Admin, &parts, body).await?;
    fields.end()?;
    let owned = Arc::clone(&door);
    let resumed = Undisturbed::new(async move { owned.subscriptions.resume(&subscription.name).await }).await?;
    shown_after(&door, &resumed).await
}

/// Put the cursor elsewhere
///
/// A new run: what an earlier one still does cannot move the cursor.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/seek", tag = "subscriptions", operation_id = "seek_subscription",
    params(("name" = String, Path, description = "The subscription")),
    request_body(content = SeekBody, content_type = "application/json"),
    responses(
        (status = 200, description = "Where it goes on", body = SoughtDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `offset_beyond_end`, `bad_parameter`, `bad_time`, `forbidden`, `conflict`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`no_owner` (offsets of some partitions only), `unavailable`, `disk_full`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn seek(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = found_with_fields(&door, Scope::Admin, &parts, body).await?;
    let ask = seek_of(&mut fields)?;
    fields.end()?;
    let status = status(&door, subscription.number(), Instant::now() + STATUS_WITHIN).await;
    let watermarks = status.map(|status| {
        let each = status.partitions.into_iter();
        each.map(|each| ((each.topic, each.partition), each.watermark)).collect::<BTreeMap<_, _>>()
    });
    let owned = Arc::clone(&door);
    let seeking = async move { owned.subscriptions.seek(&subscription.name, &ask, watermarks.as_ref()).await };
    let Sought { subscription, run, truncated } = Undisturbed::new(seeking).await?;
    caught_up(&door, &subscription).await;
    Ok(sought(&subscription.stored.starts, &subscription, run, &truncated))
}

/// Deliver a stretch once more
///
/// Beside the cursor, which goes on; in order by itself.
#[utoipa::path(
    post, path = "/v1/subscriptions/{name}/replay", tag = "subscriptions", operation_id = "replay_subscription",
    params(("name" = String, Path, description = "The subscription")),
    request_body(content = ReplayBody, content_type = "application/json"),
    responses(
        (status = 200, description = "It is under way; `replays` of the subscription has how far it is", body = SoughtDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `too_many_replays`, `bad_parameter`, `bad_time`, `forbidden`, `conflict`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `disk_full`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn replay(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let (subscription, mut fields) = found_with_fields(&door, Scope::Admin, &parts, body).await?;
    let ask = replay_of(&mut fields)?;
    fields.end()?;
    let owned = Arc::clone(&door);
    let replaying = async move { owned.subscriptions.replay(&subscription.name, &ask).await };
    let Sought { subscription, run, truncated } = Undisturbed::new(replaying).await?;
    caught_up(&door, &subscription).await;
    let replay = subscription.stored.replays.iter().find(|replay| replay.run == run);
    let starts = replay.map(|replay| replay.from.as_slice()).unwrap_or_default();
    Ok(sought(starts, &subscription, run, &truncated))
}

/// What was decided; where the owner has not said that it works by that, the answer does not pretend so.
async fn shown_after(door: &Door, subscription: &Subscription) -> Result<Response, Problem> {
    let mut document = decided_document(subscription);
    if !caught_up(door, subscription).await {
        document.note = Some("it is decided; its owner does not answer, and may not know yet".to_owned());
    }
    Ok(json_response(StatusCode::OK, to_json(&document)))
}

fn sought(
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
    let document = SoughtDocument { run, offsets: offsets.collect(), truncated };
    json_response(StatusCode::OK, to_json(&document))
}

fn seek_of(fields: &mut Fields) -> Result<SeekAsk, Problem> {
    let (to, offsets) = (fields.text("to")?, fields.object("offsets")?);
    let offsets = match (to, offsets) {
        (Some(to), None) => return Ok(SeekAsk::To(position(fields, "to", &to)?)),
        (None, Some(offsets)) => offsets,
        _ => return Err(Problem::new(Code::BadParameter, "give `to` or `offsets`, one of them")),
    };
    if !(1..=SEEK_OFFSETS_MAX).contains(&offsets.len()) {
        return Err(fields.wrong("offsets", "names one partition at least, as `topic/partition`"));
    }
    let mut judged = BTreeMap::new();
    for (place, offset) in offsets {
        let parsed = place.rsplit_once('/').and_then(|(topic, partition)| Some((topic, partition.parse().ok()?)));
        let (topic, partition): (&str, u32) = parsed
            .ok_or_else(|| fields.wrong("offsets", format_args!("has `{}`: write `topic/partition`", shown(&place))))?;
        let offset = offset.as_u64();
        let offset = offset.ok_or_else(|| fields.wrong("offsets", "has an offset that is no whole number"))?;
        judged.insert((topic.to_owned(), partition), offset);
    }
    Ok(SeekAsk::Offsets(judged))
}

fn replay_of(fields: &mut Fields) -> Result<ReplayAsk, Problem> {
    let (from, to, key) = (fields.text("from")?, fields.text("to")?, fields.text("key")?);
    let from = from.ok_or_else(|| fields.wrong("from", "is missing: `earliest` or a time"))?;
    let from = position(fields, "from", &from)?;
    let to = to.map_or(Ok(Position::Latest), |to| position(fields, "to", &to))?;
    if from == Position::Latest {
        return Err(fields.wrong("from", "is `earliest` or a time: nothing lies behind the newest"));
    }
    Ok(ReplayAsk { from, to, key })
}

fn position(fields: &Fields, name: &str, text: &str) -> Result<Position, Problem> {
    match text {
        "earliest" => Ok(Position::Earliest),
        "latest" => Ok(Position::Latest),
        time => Ok(Position::At(time_of(fields, name, time)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seek(body: &str) -> Result<SeekAsk, Code> {
        seek_of(&mut Fields::of_body(body.as_bytes()).unwrap()).map_err(|problem| problem.code())
    }

    #[test]
    fn a_seek_names_a_place_or_offsets() {
        assert_eq!(seek(r#"{"to":"earliest"}"#), Ok(SeekAsk::To(Position::Earliest)));
        let offsets = BTreeMap::from([(("a.b-c".to_owned(), 2), 17)]);
        assert_eq!(seek(r#"{"offsets":{"a.b-c/2":17}}"#), Ok(SeekAsk::Offsets(offsets)));
        for wrong in ["{}", r#"{"to":"latest","offsets":{"a/0":1}}"#, r#"{"offsets":{}}"#, r#"{"offsets":{"a":1}}"#] {
            assert_eq!(seek(wrong), Err(Code::BadParameter), "{wrong}");
        }
        for wrong in [r#"{"offsets":{"a/x":1}}"#, r#"{"offsets":{"a/0":-1}}"#, r#"{"offsets":{"a/0":"1"}}"#] {
            assert_eq!(seek(wrong), Err(Code::BadParameter), "{wrong}");
        }
        assert_eq!(seek(r#"{"to":"tomorrow"}"#), Err(Code::BadTime));
    }
}
