//! `GET /`: a small status page: process, topics with rates, subscriptions with their state, connected devices, example commands.
//!
//! Rendered on the server, without scripts or external resources. The template escapes all values. If the server has keys, topics are shown
//! only to requests that carry one.

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
use crate::api_state::ApiState;
use crate::endpoints::subscription_calls::{is_visible, status};
use crate::endpoints::subscriptions::require_view;
use crate::endpoints::topics::{count_messages, counts_deadline};
use crate::keys::Caller;
use crate::settings::PageInfo;
use whimbrel_catalogue::topics::Topic;

/// The maximum number of topics on the page. `/v1/topics` lists all.
const TOPICS_SHOWN_MAX: usize = 100;
/// The maximum number of subscriptions on the page, because each owner is asked. `/v1/subscriptions` lists all.
const SUBSCRIPTIONS_SHOWN_MAX: usize = 50;
/// The time that the page waits for the owners of subscriptions.
const OWNERS_ASKED_WITHIN: Duration = Duration::from_millis(500);

/// Allows the inline style and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
const STYLE: &str = include_str!("page.css");

/// The status page
#[utoipa::path(
    get, path = "/", tag = "operating", operation_id = "page",
    responses((status = 200, description = "The status of this process, as HTML", body = String, content_type = "text/html")),
)]
pub(crate) async fn page(State(api): State<Arc<ApiState>>, request: Request) -> Response {
    let caller = api.keys.caller(request.headers()).ok();
    let visible = |topic: &Arc<Topic>| caller.as_ref().is_some_and(|caller| caller.covers(&topic.name));
    let mut all: Vec<Arc<Topic>> = api.registry.all().into_iter().filter(visible).collect();
    // User topics come before system topics.
    all.sort_by_key(|topic| topic.is_system());
    let now = api.ports.clock.now();
    let deadline = counts_deadline();
    let mut rows = Vec::new();
    for topic in all.iter().take(TOPICS_SHOWN_MAX) {
        rows.push(TopicRow {
            name: topic.name.to_string(),
            partitions: topic.partitions(),
            messages: count_messages(&api, topic, deadline).await,
            per_second: topic.counters.published.per_second(now, 10),
            retention: topic.stored.retention().time.map(format_duration),
        });
    }
    let subscribed = subscriptions(&api, caller.as_ref()).await;
    let people_status = match &api.ports.reachability {
        Some(reach) => Some(PeopleStatus { connections: reach.connections(), presence: reach.presence_as_of().await }),
        None => None,
    };
    let reasons = api.reasons_not_ready().await;
    let view = StatusPage {
        info: &api.settings.page,
        rows,
        subscribed,
        people_status,
        left_out: all.len().saturating_sub(TOPICS_SHOWN_MAX),
        reasons,
        needs_key: caller.is_none(),
        has_keys: !api.keys.is_empty(),
    };
    html_response(view.render().into_string(), POLICY)
}

/// The subscriptions that a caller may see, with the status from their owners.
async fn subscriptions(api: &ApiState, caller: Option<&Caller>) -> Vec<SubscriptionRow> {
    let Some(caller) = caller.filter(|caller| require_view(caller).is_ok()) else { return Vec::new() };
    let all = api.subscriptions.all();
    let seen =
        all.iter().filter(|each| !each.stored.deleting && is_visible(caller, each)).take(SUBSCRIPTIONS_SHOWN_MAX);
    let until = Instant::now() + OWNERS_ASKED_WITHIN;
    let asked = seen.map(|each| async move {
        let status = status(api, each.number(), until).await;
        let spec = &each.stored.spec;
        SubscriptionRow {
            name: each.name.to_string(),
            state: match &each.stored.state {
                RunState::Active => "active".to_owned(),
                RunState::Paused => "paused".to_owned(),
                RunState::Disabled { reason, .. } => format!("disabled: {reason}"),
            },
            is_healthy: each.stored.is_active() && status.as_ref().is_some_and(|status| status.breaker == "closed"),
            topics: spec.topics.join(", "),
            to: match &spec.endpoint {
                Some(endpoint) => endpoint.url.clone().unwrap_or_else(|| "set by each message".to_owned()),
                None => "pull".to_owned(),
            },
            lag: status.as_ref().map(|status| status.lag),
            per_second: status.as_ref().map_or(0.0, |status| status.delivered_rate),
            dead: status.as_ref().map(|status| status.dead_letters),
        }
    });
    join_all(asked).await
}

struct SubscriptionRow {
    name: String,
    state: String,
    is_healthy: bool,
    topics: String,
    to: String,
    lag: Option<u64>,
    per_second: f64,
    dead: Option<u64>,
}

/// How this process reaches users.
struct PeopleStatus {
    connections: Option<usize>,
    /// The freshness of presence, or why it is unknown.
    presence: Result<Timestamp, String>,
}

struct TopicRow {
    name: String,
    partitions: u32,
    messages: Option<u64>,
    per_second: f64,
    retention: Option<String>,
}

struct StatusPage<'a> {
    info: &'a PageInfo,
    rows: Vec<TopicRow>,
    subscribed: Vec<SubscriptionRow>,
    people_status: Option<PeopleStatus>,
    left_out: usize,
    reasons: Vec<String>,
    needs_key: bool,
    has_keys: bool,
}

impl StatusPage<'_> {
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
                    header { h1 { "Whimbrel" } p { "Message delivery: immediate or delayed, to services and to users." } }
                    main { (self.process()) (self.topics()) (self.subscriptions()) (self.people()) (self.examples()) }
                    footer { a href="/openapi.json" { "API document" } " · " a href="/readyz" { "readiness" } " · " a href="/metrics" { "metrics" } }
                }
            }
        }
    }

    fn process(&self) -> Markup {
        html! {
            section {
                h2 { "This process" }
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
                @if self.needs_key { p { "This server has API keys. Topics are shown only to requests with a key." } }
                @else if self.rows.is_empty() { p { "None yet. The first publish creates one." } }
                @else {
                    table {
                        thead { tr { th { "Topic" } th { "Partitions" } th { "Messages (at most)" } th { "Published/s" } th { "Retention" } } }
                        tbody {
                            @for row in &self.rows {
                                tr {
                                    td { (row.name) }
                                    td { (row.partitions) }
                                    td { @match row.messages { Some(count) => { (count) }, None => { "?" } } }
                                    td { (format!("{:.1}", row.per_second)) }
                                    td { (row.retention.as_deref().unwrap_or("forever")) }
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
                        thead { tr { th { "Subscription" } th { "State" } th { "Topics" } th { "Endpoint" } th { "Lag" } th { "Delivered/s" } th { "Dead letters" } } }
                        tbody {
                            @for row in &self.subscribed {
                                tr {
                                    td { (row.name) }
                                    td class=(if row.is_healthy { "well" } else { "ill" }) { (row.state) }
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
            @if let Some(people_status) = &self.people_status {
                section {
                    h2 { "People" }
                    dl {
                        @if let Some(connections) = people_status.connections { dt { "Devices connected here" } dd { (connections) } }
                        dt { "Presence" }
                        @match &people_status.presence {
                            Ok(as_of) => dd class="well" { "fresh as of " (as_of) },
                            Err(why) => dd class="ill" { (why) },
                        }
                    }
                }
            }
        }
    }

    fn examples(&self) -> Markup {
        let address = &self.info.address;
        let key = if self.has_keys { " -H 'Authorization: Bearer <key>'" } else { "" };
        html! {
            section {
                h2 { "Try it" }
                pre { "curl" (key) " -d 'hello' '" (address) "/v1/topics/greetings/messages?key=me'" }
                pre { "curl" (key) " -N '" (address) "/v1/topics/greetings/tail?offset=earliest'" }
                @if self.people_status.is_some() {
                    pre { "curl" (key) " -d '{\"payload\":\"hello\"}' " (address) "/v1/users/alice/messages" }
                    @if !self.has_keys {
                        p { "Two browsers: open " a href="/people" { "this page" } " twice, once as alice and once as bob." }
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
    fn every_value_on_the_page_is_escaped() {
        let evil = "<script>alert('x')</script>";
        let info = PageInfo {
            version: evil.into(),
            data_folder: evil.into(),
            engines: vec![evil.into()],
            address: evil.into(),
        };
        let row = TopicRow {
            name: evil.into(),
            partitions: 1,
            messages: None,
            per_second: 0.0,
            retention: Some(evil.into()),
        };
        let subscribed = SubscriptionRow {
            name: evil.into(),
            state: evil.into(),
            is_healthy: false,
            topics: evil.into(),
            to: evil.into(),
            lag: None,
            per_second: 0.0,
            dead: None,
        };
        let view = StatusPage {
            info: &info,
            rows: vec![row],
            subscribed: vec![subscribed],
            people_status: Some(PeopleStatus { connections: Some(2), presence: Err(evil.into()) }),
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
