//! `GET /v1/events`: what an operator wants to know, as it happens, as server-sent events.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use whimbrel_model::EVENTS_TOPIC;

use super::attributes::text_header;
use super::documents::ProblemDocument;
use super::door::Door;
use super::keys::Scope;
use super::problem::Problem;
use super::query::Query;
use super::read::{Start, take_start};
use super::tail::{Form, Wanted, follow, parse_cursor};

/// Follow the events
///
/// Server-sent events: `event: event` with `{"kind","at","detail","fields"}` as `data`. They are the records of the topic `_events`,
/// which is read like any other. `event: problem` and comments are as in the tail of a topic.
#[utoipa::path(
    get, path = "/v1/events", tag = "operating", operation_id = "events",
    params(
        ("offset" = Option<String>, Query, description = "`latest` (the default), `earliest`, or an offset"),
        ("since" = Option<String>, Query, description = "A time in RFC 3339, instead of an offset"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resume behind this event"),
    ),
    responses(
        (status = 200, description = "The stream", body = String, content_type = "text/event-stream"),
        (status = "4XX", description = "`bad_parameter`, `bad_time`, `forbidden`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn events(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let caller = door.keys.caller(&parts.headers)?;
    caller.require_topic(Scope::Consume, EVENTS_TOPIC)?;
    let mut query = Query::parse(parts.uri.query())?;
    let start = take_start(&mut query)?.unwrap_or(Start::Latest);
    query.end()?;
    let cursor = text_header(&parts.headers, "last-event-id")?.filter(|id| !id.is_empty());
    let cursor = cursor.map(parse_cursor).transpose()?.unwrap_or_default();
    let topic = door.registry.find(EVENTS_TOPIC).await?;
    follow(door, topic, Wanted { only: Some(0), start, cursor, form: Form::Event }).await
}
