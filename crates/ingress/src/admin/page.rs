//! `GET /`: a small page for people, until the console comes: what runs, topics with their rates, subscriptions and how they stand, who is
//! connected, a line to try.
//!
//! Rendered on the server, without a script or anything from elsewhere. Whatever it shows is escaped by the template. Where the
//! server has keys, topics are shown to a request that carries one.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::future::join_all;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use tokio::time::Instant;
use whimbrel_model::subscription::RunState;
use whimbrel_model::{Timestamp, format_duration};

use super::html_response;
use crate::door::Door;
use crate::keys::Caller;
use crate::settings::PageInfo;
use crate::subscription_calls::{is_seen, status};
use crate::subscriptions::require_looking;
use crate::topics::{count_messages, counts_deadline};
use whimbrel_catalogue::topics::Topic;

/// Topics that the page lists at most; `/v1/topics` has them all.
const TOPICS_SHOWN_MAX: usize = 100;
/// Subscriptions that it lists at most, since the owner of each is asked; `/v1/subscriptions` has them all.
const SUBSCRIPTIONS_SHOWN_MAX: usize = 50;
/// How long the page waits for what the owners of subscriptions say.
const OWNERS_ASKED_WITHIN: Duration = Duration::from_millis(500);

/// Its own style, and nothing that acts.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
const STYLE: &str = include_str!("page.css");

/// The page for people
#[utoipa::path(
    get, path = "/", tag = "operating", operation_id = "page",
    responses((status = 200, description = "What runs here, for people", body = String, content_type = "text/html")),
)]
pub(crate) async fn page(State(door): State<Arc<Door>>, request: Request) -> Response {
    let caller = door.keys.caller(request.headers()).ok();
    let visible = |topic: &Arc<Topic>| caller.as_ref().is_some_and(|caller| caller.sees(&topic.name));
    let mut all: Vec<Arc<Topic>> = door.registry.all().into_iter().filter(visible).collect();
    // What people made comes before what the system did.
    all.sort_by_key(|topic| topic.is_system());
    let now = door.ports.clock.now();
    let deadline = counts_deadline();
    let mut rows = Vec::new();
    for topic in all.iter().take(TOPICS_SHOWN_MAX) {
        rows.push(Row {
            name: topic.name.to_string(),
            partitions: topic.partitions(),
            messages: count_messages(&door, topic, deadline).await,
            per_second: topic.running.published.per_second(now, 10),
            retention: topic.stored.retention().time.map(format_duration),
        });
    }
    let subscribed = subscriptions(&door, caller.as_ref()).await;
    let reached = match &door.ports.reachability {
        Some(reach) => Some(Reached { connections: reach.connections(), presence: reach.presence_as_of().await }),
        None => None,
    };
    let reasons = door.reasons_not_ready().await;
    let view = View {
        info: &door.settings.page,
        rows,
        subscribed,
        reached,
        left_out: all.len().saturating_sub(TOPICS_SHOWN_MAX),
        reasons,
        needs_key: caller.is_none(),
        has_keys: !door.keys.is_empty(),
    };
    html_response(view.render().into_string(), POLICY)
}

/// The subscriptions that a caller may see, with what their owners say.
async fn subscriptions(door: &Door, caller: Option<&Caller>) -> Vec<Subscribed> {
    let Some(caller) = caller.filter(|caller| require_looking(caller).is_ok()) else { return Vec::new() };
    let all = door.subscriptions.all();
    let seen = all.iter().filter(|each| !each.stored.deleting && is_seen(caller, each)).take(SUBSCRIPTIONS_SHOWN_MAX);
    let until = Instant::now() + OWNERS_ASKED_WITHIN;
    let asked = seen.map(|each| async move {
        let status = status(door, each.number(), until).await;
        let spec = &each.stored.spec;
        Subscribed {
            name: each.name.to_string(),
            state: match &each.stored.state {
                RunState::Active => "active".to_owned(),
                RunState::Paused => "paused".to_owned(),
                RunState::Disabled { reason, .. } => format!("disabled: {reason}"),
            },
            is_well: each.stored.is_active() && status.as_ref().is_some_and(|status| status.breaker == "closed"),
            topics: spec.topics.join(", "),
            to: match &spec.endpoint {
                Some(endpoint) => endpoint.url.clone().unwrap_or_else(|| "where each message says".to_owned()),
                None => "pullers".to_owned(),
            },
            lag: status.as_ref().map(|status| status.lag),
            per_second: status.as_ref().map_or(0.0, |status| status.delivered_rate),
            dead: status.as_ref().map(|status| status.dead_letters),
        }
    });
    join_all(asked).await
}

struct Subscribed {
    name: String,
    state: String,
    is_well: bool,
    topics: String,
    to: String,
    lag: Option<u64>,
    per_second: f64,
    dead: Option<u64>,
}

/// How people are reached from here.
struct Reached {
    connections: Option<usize>,
    /// As of when it is known who is online; or why it is not.
    presence: Result<Timestamp, String>,
}

struct Row {
    name: String,
    partitions: u32,
    messages: Option<u64>,
    per_second: f64,
    retention: Option<String>,
}

struct View<'a> {
    info: &'a PageInfo,
    rows: Vec<Row>,
    subscribed: Vec<Subscribed>,
    reached: Option<Reached>,
    left_out: usize,
    reasons: Vec<String>,
    needs_key: bool,
    has_keys: bool,
}

impl View<'_> {
    fn render(&self) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { "Whimbrel" }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    header { h1 { "Whimbrel" } p { "Messages, delivered now, later, to services, and to people." } }
                    main { (self.what_runs()) (self.topics()) (self.subscriptions()) (self.people()) (self.to_try()) }
                    footer { a href="/openapi.json" { "API document" } " · " a href="/readyz" { "readiness" } " · " a href="/metrics" { "metrics" } }
                }
            }
        }
    }

    fn what_runs(&self) -> Markup {
        html! {
            section {
                h2 { "What runs here" }
                dl {
                    dt { "State" }
                    @if self.reasons.is_empty() { dd class="well" { "ready" } }
                    @else { @for reason in &self.reasons { dd class="ill" { (reason) } } }
                    dt { "Version" } dd { (self.info.version) }
                    dt { "Address" } dd { (self.info.address) }
                    dt { "Data" } dd { (self.info.data_folder) }
                    dt { "Engines" } @for engine in &self.info.engines { dd { (engine) } }
                }
            }
        }
    }

    fn topics(&self) -> Markup {
        html! {
            section {
                h2 { "Topics" }
                @if self.needs_key { p { "This server has keys: topics are shown to requests that carry one." } }
                @else if self.rows.is_empty() { p { "None yet. The first publish makes one." } }
                @else {
                    table {
                        thead { tr { th { "Topic" } th { "Partitions" } th { "Messages (at most)" } th { "Published/s" } th { "Kept for" } } }
                        tbody {
                            @for row in &self.rows {
                                tr {
                                    td { (row.name) }
                                    td { (row.partitions) }
                                    td { @match row.messages { Some(count) => { (count) }, None => { "?" } } }
                                    td { (format!("{:.1}", row.per_second)) }
                                    td { (row.retention.as_deref().unwrap_or("ever")) }
                                }
                            }
                        }
                    }
                    @if self.left_out > 0 { p { "and " (self.left_out) " more: see " code { "/v1/topics" } } }
                }
            }
        }
    }

    fn subscriptions(&self) -> Markup {
        let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
        html! {
            @if !self.subscribed.is_empty() {
                section {
                    h2 { "Subscriptions" }
                    table {
                        thead { tr { th { "Subscription" } th { "State" } th { "Topics" } th { "To" } th { "Not done" } th { "Delivered/s" } th { "Dead letters" } } }
                        tbody {
                            @for row in &self.subscribed {
                                tr {
                                    td { (row.name) }
                                    td class=(if row.is_well { "well" } else { "ill" }) { (row.state) }
                                    td { (row.topics) }
                                    td { (row.to) }
                                    td { (number(row.lag)) }
                                    td { (format!("{:.1}", row.per_second)) }
                                    td { (number(row.dead)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn people(&self) -> Markup {
        html! {
            @if let Some(reached) = &self.reached {
                section {
                    h2 { "People" }
                    dl {
                        @if let Some(connections) = reached.connections { dt { "Devices connected here" } dd { (connections) } }
                        dt { "Presence" }
                        @match &reached.presence {
                            Ok(as_of) => dd class="well" { "fresh as of " (as_of) },
                            Err(why) => dd class="ill" { (why) },
                        }
                    }
                }
            }
        }
    }

    fn to_try(&self) -> Markup {
        let address = &self.info.address;
        let key = if self.has_keys { " -H 'Authorization: Bearer <key>'" } else { "" };
        html! {
            section {
                h2 { "Lines to try" }
                pre { "curl" (key) " -d 'hello' '" (address) "/v1/topics/greetings/messages?key=me'" }
                pre { "curl" (key) " -N '" (address) "/v1/topics/greetings/tail?offset=earliest'" }
                @if self.reached.is_some() {
                    pre { "curl" (key) " -d '{\"payload\":\"hello\"}' " (address) "/v1/users/alice/messages" }
                    @if !self.has_keys {
                        p { "Two browsers: open " a href="/people" { "this page" } " twice, as alice and as bob." }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_page_shows_is_escaped() {
        let evil = "<script>alert('x')</script>";
        let info = PageInfo {
            version: evil.into(),
            data_folder: evil.into(),
            engines: vec![evil.into()],
            address: evil.into(),
        };
        let row =
            Row { name: evil.into(), partitions: 1, messages: None, per_second: 0.0, retention: Some(evil.into()) };
        let subscribed = Subscribed {
            name: evil.into(),
            state: evil.into(),
            is_well: false,
            topics: evil.into(),
            to: evil.into(),
            lag: None,
            per_second: 0.0,
            dead: None,
        };
        let view = View {
            info: &info,
            rows: vec![row],
            subscribed: vec![subscribed],
            reached: Some(Reached { connections: Some(2), presence: Err(evil.into()) }),
            left_out: 0,
            reasons: vec![evil.into()],
            needs_key: false,
            has_keys: false,
        };
        let html = view.render().into_string();
        assert!(!html.contains("<script"), "{html}");
        assert!(html.contains("&lt;script&gt;"));
    }
}
