//! `/v1/subscriptions` and `/v1/subscriptions/{name}`: making, changing, looking at, and deleting subscriptions.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http::StatusCode;
use serde::Serialize;
use tokio::time::Instant;
use whimbrel_model::check_topic_name;
use whimbrel_model::subscription::dead_topic;

use super::answer::{bounded_json_response, json_response};
use super::documents::ProblemDocument;
use super::door::Door;
use super::keys::Scope;
use super::problem::{Code, Problem};
use super::query::{Query, shown};
use super::soraka;
use super::subscription_body::{Wanted, wanted_of};
use super::subscription_calls::{STATUS_WITHIN, caught_up, find, is_seen, name_in_path, small_body, status};
use super::subscription_delete::delete;
use super::subscription_json::{
    SubscriptionDocument, SubscriptionList, SubscriptionSettings, decided_document, whole_document,
};
use super::topic_workers::check_pool;
use super::undisturbed::Undisturbed;
use whimbrel_catalogue::subscriptions::{Made, is_system_subscription};

/// Owners that are asked at one time.
const ASKED_AT_ONCE: usize = 64;

/// Make a subscription, or change it
///
/// A `PUT` says all of what it shall be. Changing it keeps its progress: where to begin is for a new one, and for topics that are added.
/// Topics are made where a first publish would make them.
#[utoipa::path(
    put, path = "/v1/subscriptions/{name}", tag = "subscriptions", operation_id = "put_subscription",
    params(("name" = String, Path, description = "1 to 200 of `A-Za-z0-9._-`, not starting with `_`")),
    request_body(content = SubscriptionSettings, content_type = "application/json"),
    responses(
        (status = 201, description = "It was made. A generated secret is shown this once", body = SubscriptionDocument, content_type = "application/json"),
        (status = 200, description = "It was there, and is now as asked", body = SubscriptionDocument, content_type = "application/json"),
        (status = "4XX", description = "`bad_name`, `reserved_name`, `bad_json`, `bad_parameter`, `bad_duration`, `bad_time`, `bad_url`, `forbidden_address`, `bad_secret`, `bad_header`, `reserved_header`, `unknown_topic`, `too_many_subscriptions`, `too_many_topics`, `subscription_deleting`, `conflict`; `field` names what is wrong", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`topic_growing`, `disk_full`, `log_closed`, `unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn put_subscription(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let name = name_in_path(parts.uri.path())?.into_owned();
    let caller = door.keys.caller(&parts.headers)?;
    check_name(&name)?;
    caller.require(Scope::Admin)?;
    Query::parse(parts.uri.query())?.end()?;
    let body = small_body(&door, &parts, body).await?;
    let brings_callbacks = name.starts_with(soraka::SUBSCRIPTION_PREFIX);
    let wanted = wanted_of(&body, &door.settings.guard, brings_callbacks, door.ports.clock.now())?;
    for topic in &wanted.spec.topics {
        caller.require_sight(topic)?;
    }
    if door.subscriptions.get(&name).is_some_and(|known| !is_seen(&caller, &known)) {
        let detail = format!("key `{}` is not for all topics of `{name}`", caller.owner());
        return Err(Problem::new(Code::Forbidden, detail));
    }
    let Wanted { spec, secret, generated, says_start } = wanted;
    let known = door.subscriptions.get(&name);
    check_pool(&door, spec.workers.as_ref(), known.as_ref().and_then(|known| known.stored.spec.workers.as_ref()))?;
    let start = spec.start;
    let (owned, named) = (Arc::clone(&door), name.clone());
    let made = Undisturbed::new(async move { owned.subscriptions.put(&named, spec, secret).await }).await?;
    let Made { subscription, created, truncated } = made;
    caught_up(&door, &subscription).await;
    let mut document = decided_document(&subscription);
    let mut notes = Vec::new();
    if !created && says_start && subscription.stored.spec.start != start {
        notes.push("it was there: `start` is not applied again, use `seek`".to_owned());
    }
    notes.extend(truncated.iter().map(|each| {
        format!("`{}/{}` begins at offset {}, the oldest that is kept", each.topic, each.partition, each.first)
    }));
    if let Some(secret) = generated {
        document.settings.secret = Some(secret);
        notes.push("the secret is shown this once".to_owned());
    }
    document.note = (!notes.is_empty()).then(|| notes.join("; "));
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json_response(status, to_json(&document)))
}

/// List the subscriptions
#[utoipa::path(
    get, path = "/v1/subscriptions", tag = "subscriptions", operation_id = "list_subscriptions",
    params(("topic" = Option<String>, Query, description = "Only those that read this topic")),
    responses(
        (status = 200, description = "Every subscription whose topics the key may see, by name", body = SubscriptionList, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `forbidden`, `overloaded`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list_subscriptions(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let caller = door.keys.caller(request.headers())?;
    require_looking(&caller)?;
    let mut query = Query::parse(request.uri().query())?;
    let topic = query.take("topic")?;
    query.end()?;
    let mut all = match &topic {
        Some(topic) => door.subscriptions.reading(topic),
        None => door.subscriptions.all(),
    };
    all.retain(|each| !each.stored.deleting && is_seen(&caller, each));
    // One deadline for all: where nobody answers, the list still comes.
    let until = Instant::now() + STATUS_WITHIN;
    let documents = all.into_iter().map(|subscription| {
        let door = Arc::clone(&door);
        async move {
            let status = status(&door, subscription.number(), until).await;
            whole_document(&subscription, status, false)
        }
    });
    let subscriptions = futures_util::stream::iter(documents).buffered(ASKED_AT_ONCE).collect().await;
    bounded_json_response(door.answers.begin(), to_json(&SubscriptionList { subscriptions }))
}

/// Look at a subscription
///
/// With how far it is, what is in flight, what waits, what failed last. Where its owner does not answer, `owner` is `unreachable`.
#[utoipa::path(
    get, path = "/v1/subscriptions/{name}", tag = "subscriptions", operation_id = "get_subscription",
    params(("name" = String, Path, description = "The subscription")),
    responses(
        (status = 200, description = "The subscription", body = SubscriptionDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_subscription(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let name = name_in_path(request.uri().path())?;
    let caller = door.keys.caller(request.headers())?;
    require_looking(&caller)?;
    Query::parse(request.uri().query())?.end()?;
    let subscription = find(&door, &caller, &name)?;
    let status = status(&door, subscription.number(), Instant::now() + STATUS_WITHIN).await;
    Ok(json_response(StatusCode::OK, to_json(&whole_document(&subscription, status, true))))
}

/// Delete a subscription
///
/// With its progress, its retries and its dead letters. Callbacks under way may still arrive.
#[utoipa::path(
    delete, path = "/v1/subscriptions/{name}", tag = "subscriptions", operation_id = "delete_subscription",
    params(("name" = String, Path, description = "The subscription")),
    responses(
        (status = 204, description = "It is gone"),
        (status = "4XX", description = "`unknown_subscription`, `topic_subscribed` (another one reads its dead letters), `bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `no_owner`, `outcome_unknown`: repeat it", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn delete_subscription(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let name = name_in_path(request.uri().path())?.into_owned();
    let caller = door.keys.caller(request.headers())?;
    caller.require(Scope::Admin)?;
    Query::parse(request.uri().query())?.end()?;
    if is_system_subscription(&name) {
        check_name(&name)?;
    }
    // One that is being deleted may be deleted again: that finishes it.
    let known = door.subscriptions.get(&name).filter(|known| is_seen(&caller, known));
    if known.is_none() {
        return Err(Problem::new(Code::UnknownSubscription, format!("there is no subscription `{}`", shown(&name))));
    }
    let readers = door.subscriptions.reading(&dead_topic(&name));
    if let Some(problem) = subscribed(&dead_topic(&name), &readers) {
        return Err(problem);
    }
    let owned = Arc::clone(&door);
    Undisturbed::new(async move { delete(&owned, &name).await }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What is told where a topic cannot go because subscriptions read it.
pub(super) fn subscribed(
    topic: &str,
    readers: &[Arc<whimbrel_catalogue::subscriptions::Subscription>],
) -> Option<Problem> {
    if readers.is_empty() {
        return None;
    }
    let names: Vec<&str> = readers.iter().map(|reader| &*reader.name).collect();
    let detail = format!("`{topic}` is read by {}: delete those first, or take the topic from them", names.join(", "));
    Some(Problem::new(Code::TopicSubscribed, detail).with("subscriptions", names))
}

/// Who reads messages and who makes subscriptions may look at them.
pub(crate) fn require_looking(caller: &super::keys::Caller) -> Result<(), Problem> {
    if caller.has(Scope::Admin) { Ok(()) } else { caller.require(Scope::Consume) }
}

fn check_name(name: &str) -> Result<(), Problem> {
    check_topic_name(name).map_err(|error| {
        let problem = Problem::from(error);
        Problem::new(problem.code(), format!("`{}`: {error}", shown(name)))
    })
}

pub(super) fn to_json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("a document is plain data")
}
