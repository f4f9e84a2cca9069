//! `GET /v1/events`: operator events as server-sent events, as they happen.

use std::sync::Arc;

use axum::extract::{Request, State};
use whimbrel_api::problem::Problem;
use whimbrel_model::EVENTS_TOPIC;

use crate::api_state::ApiState;
use crate::attributes::text_header;
use crate::endpoints::read::{ReadStart, take_start};
use crate::endpoints::tail::{TailFormat, TailRequest, follow, parse_cursor};
use crate::keys::Scope;
use crate::problem::ApiResult;
use crate::query::Query;

/// Follow the operator events
///
/// Server-sent events: `event: event` with `{"kind","at","detail","fields"}` as `data`. They are the records of the topic `_events`, which
/// can also be read like any topic. `event: problem` and comments are as in the tail of a topic.
#[utoipa::path(
    get, path = "/v1/events", tag = "operating", operation_id = "events",
    params(
        ("offset" = Option<String>, Query, description = "`latest` (the default), `earliest`, or an offset"),
        ("since" = Option<String>, Query, description = "A time in RFC 3339, instead of an offset"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resume after this event"),
    ),
    responses(
        (status = 200, description = "The stream", body = String, content_type = "text/event-stream"),
        (status = "4XX", description = "`bad_parameter`, `bad_time`, `forbidden`, `overloaded`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn events(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, _) = request.into_parts();
    let caller = api.keys.caller(&parts.headers)?;
    caller.require_topic(Scope::Consume, EVENTS_TOPIC)?;
    let mut query = Query::parse(parts.uri.query())?;
    let start = take_start(&mut query)?.unwrap_or(ReadStart::Latest);
    query.end()?;
    let cursor = text_header(&parts.headers, "last-event-id")?.filter(|id| !id.is_empty());
    let cursor = cursor.map(parse_cursor).transpose()?.unwrap_or_default();
    let topic = api.registry.find(EVENTS_TOPIC).await?;
    follow(api, topic, TailRequest { only: Some(0), start, cursor, format: TailFormat::Event }).await
}
