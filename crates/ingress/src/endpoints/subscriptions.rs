//! `/v1/subscriptions` and `/v1/subscriptions/{name}`: create, change, show, and delete subscriptions.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use futures_util::StreamExt;
use http::StatusCode;
use tokio::time::Instant;
use whimbrel_api::problem::Problem;
use whimbrel_api::subscriptions::{SubscriptionInfo, SubscriptionList, SubscriptionSettingsInfo};
use whimbrel_model::subscription::dead_topic;

use crate::accept::cancel_safe::CancelSafe;
use crate::answer::{bounded_json_response, json_response, to_json};
use crate::api_state::ApiState;
use crate::attributes::check_user_topic;
use crate::compat::soraka;
use crate::endpoints::subscription_body::{SubscriptionInput, parse_subscription};
use crate::endpoints::subscription_calls::{
    STATUS_WITHIN, caught_up, find, is_visible, name_in_path, small_body, status,
};
use crate::endpoints::subscription_delete::delete;
use crate::endpoints::subscription_json::{full_document, settings_document};
use crate::endpoints::topic_workers::check_pool;
use crate::keys::Scope;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, shown};
use whimbrel_catalogue::subscriptions::{SubscriptionPutOutcome, is_system_subscription};

/// The maximum number of owners that are asked concurrently.
const ASKED_AT_ONCE: usize = 64;

/// Create or change a subscription
///
/// A `PUT` replaces all settings. A change keeps the progress: `start` applies to a new subscription and to added topics. Missing topics
/// are created if a first publish would create them.
#[utoipa::path(
    put, path = "/v1/subscriptions/{name}", tag = "subscriptions", operation_id = "put_subscription",
    params(("name" = String, Path, description = "1 to 200 of `A-Za-z0-9._-`, not starting with `_`")),
    request_body(content = SubscriptionSettingsInfo, content_type = "application/json"),
    responses(
        (status = 201, description = "The subscription was created. A generated secret is shown only in this answer", body = SubscriptionInfo, content_type = "application/json"),
        (status = 200, description = "The subscription existed, and has the requested settings now", body = SubscriptionInfo, content_type = "application/json"),
        (status = "4XX", description = "`bad_name`, `reserved_name`, `bad_json`, `bad_parameter`, `bad_duration`, `bad_time`, `bad_url`, `forbidden_address`, `bad_secret`, `bad_header`, `reserved_header`, `unknown_topic`, `too_many_subscriptions`, `too_many_topics`, `subscription_deleting`, `conflict`; `field` names the invalid field", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`topic_growing`, `disk_full`, `log_closed`, `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn put_subscription(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let name = name_in_path(parts.uri.path())?.into_owned();
    let caller = api.keys.caller(&parts.headers)?;
    check_user_topic(&name)?;
    caller.require(Scope::Admin)?;
    Query::parse(parts.uri.query())?.end()?;
    let body = small_body(&api, &parts, body).await?;
    let brings_callbacks = name.starts_with(soraka::SUBSCRIPTION_PREFIX);
    let input = parse_subscription(&body, &api.settings.guards.callbacks, brings_callbacks, api.ports.clock.now())?;
    for topic in &input.spec.topics {
        caller.require_topic_access(topic)?;
    }
    if api.subscriptions.get(&name).is_some_and(|known| !is_visible(&caller, &known)) {
        let detail = format!("key `{}` does not cover all topics of `{name}`", caller.owner());
        return Err(ApiProblem::new(Code::Forbidden, detail));
    }
    let SubscriptionInput { spec, secret, generated, has_start } = input;
    let known = api.subscriptions.get(&name);
    check_pool(&api, spec.workers.as_ref(), known.as_ref().and_then(|known| known.stored.spec.workers.as_ref()))?;
    let start = spec.start;
    let (owned, named) = (Arc::clone(&api), name.clone());
    let made = CancelSafe::new(async move { owned.subscriptions.put(&named, spec, secret).await }).await?;
    let SubscriptionPutOutcome { subscription, created, truncated } = made;
    caught_up(&api, &subscription).await;
    let mut document = settings_document(&subscription);
    let mut notes = Vec::new();
    if !created && has_start && subscription.stored.spec.start != start {
        notes.push("the subscription existed: `start` has no effect, use `seek`".to_owned());
    }
    notes.extend(truncated.iter().map(|each| {
        format!("`{}/{}` begins at offset {}, the oldest retained one", each.topic, each.partition, each.first)
    }));
    if let Some(secret) = generated {
        document.settings.secret = Some(secret);
        notes.push("the secret is shown only in this answer".to_owned());
    }
    document.note = (!notes.is_empty()).then(|| notes.join("; "));
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json_response(status, to_json(&document)))
}

/// List the subscriptions
#[utoipa::path(
    get, path = "/v1/subscriptions", tag = "subscriptions", operation_id = "list_subscriptions",
    params(("topic" = Option<String>, Query, description = "Only subscriptions that read this topic")),
    responses(
        (status = 200, description = "All subscriptions whose topics the key may see, ordered by name", body = SubscriptionList, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `forbidden`, `overloaded`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn list_subscriptions(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let caller = api.keys.caller(request.headers())?;
    require_view(&caller)?;
    let mut query = Query::parse(request.uri().query())?;
    let topic = query.take("topic")?;
    query.end()?;
    let mut all = match &topic {
        Some(topic) => api.subscriptions.reading(topic),
        None => api.subscriptions.all(),
    };
    all.retain(|each| !each.stored.deleting && is_visible(&caller, each));
    // One deadline for all owners: the list is complete even if none answers.
    let until = Instant::now() + STATUS_WITHIN;
    let documents = all.into_iter().map(|subscription| {
        let api = Arc::clone(&api);
        async move {
            let status = status(&api, subscription.number(), until).await;
            full_document(&subscription, status, false)
        }
    });
    let subscriptions = futures_util::stream::iter(documents).buffered(ASKED_AT_ONCE).collect().await;
    bounded_json_response(api.answers.begin(), to_json(&SubscriptionList { subscriptions }))
}

/// Get a subscription
///
/// Includes progress, messages in flight, retries and the last error. If its owner does not answer, `owner` is `unreachable`.
#[utoipa::path(
    get, path = "/v1/subscriptions/{name}", tag = "subscriptions", operation_id = "get_subscription",
    params(("name" = String, Path, description = "The subscription")),
    responses(
        (status = 200, description = "The subscription", body = SubscriptionInfo, content_type = "application/json"),
        (status = "4XX", description = "`unknown_subscription`, `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn get_subscription(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let name = name_in_path(request.uri().path())?;
    let caller = api.keys.caller(request.headers())?;
    require_view(&caller)?;
    Query::parse(request.uri().query())?.end()?;
    let subscription = find(&api, &caller, &name)?;
    let status = status(&api, subscription.number(), Instant::now() + STATUS_WITHIN).await;
    Ok(json_response(StatusCode::OK, to_json(&full_document(&subscription, status, true))))
}

/// Delete a subscription
///
/// Deletes its progress, retries and dead letters too. Callbacks in progress may still arrive.
#[utoipa::path(
    delete, path = "/v1/subscriptions/{name}", tag = "subscriptions", operation_id = "delete_subscription",
    params(("name" = String, Path, description = "The subscription")),
    responses(
        (status = 204, description = "The subscription is deleted"),
        (status = "4XX", description = "`unknown_subscription`, `topic_subscribed` (another one reads its dead letters), `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`, `no_owner`, `outcome_unknown`: repeat the request", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn delete_subscription(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let name = name_in_path(request.uri().path())?.into_owned();
    let caller = api.keys.caller(request.headers())?;
    caller.require(Scope::Admin)?;
    Query::parse(request.uri().query())?.end()?;
    if is_system_subscription(&name) {
        check_user_topic(&name)?;
    }
    // Deleting a subscription that is already being deleted finishes the deletion.
    let known = api.subscriptions.get(&name).filter(|known| is_visible(&caller, known));
    if known.is_none() {
        return Err(ApiProblem::new(Code::UnknownSubscription, format!("there is no subscription `{}`", shown(&name))));
    }
    let readers = api.subscriptions.reading(&dead_topic(&name));
    if let Some(problem) = subscribed(&dead_topic(&name), &readers) {
        return Err(problem);
    }
    let owned = Arc::clone(&api);
    CancelSafe::new(async move { delete(&owned, &name).await }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The problem for a topic that cannot be deleted because subscriptions read it.
pub(crate) fn subscribed(
    topic: &str,
    readers: &[Arc<whimbrel_catalogue::subscriptions::Subscription>],
) -> Option<ApiProblem> {
    if readers.is_empty() {
        return None;
    }
    let names: Vec<&str> = readers.iter().map(|reader| &*reader.name).collect();
    let detail = format!("`{topic}` is read by {}: delete them first, or remove the topic from them", names.join(", "));
    Some(ApiProblem::new(Code::TopicSubscribed, detail).with("subscriptions", names))
}

/// Requires a scope that may see subscriptions: `consume` or `admin`.
pub(crate) fn require_view(caller: &crate::keys::Caller) -> Result<(), ApiProblem> {
    if caller.has(Scope::Admin) { Ok(()) } else { caller.require(Scope::Consume) }
}
