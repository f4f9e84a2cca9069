//! Functions that the subscription endpoints share: find a visible subscription, ask its owner, wait until the owner follows a change.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::request::Parts;
use tokio::time::{Instant, timeout_at};
use whimbrel_model::SubscriptionNumber;
use whimbrel_model::ports::{DispatchReply, DispatchRequest, SubscriptionStatus};

use crate::api_state::ApiState;
use crate::attributes::path_part;
use crate::body::collect_small;
use crate::json_fields::JsonFields;
use crate::keys::{Caller, Scope};
use crate::problem::{ApiProblem, Code};
use crate::query::shown;
use whimbrel_catalogue::subscriptions::Subscription;

/// Timeout for an owner's status. After it, a subscription is shown without its status.
pub(crate) const STATUS_WITHIN: Duration = Duration::from_secs(2);
/// Timeout for an owner to follow a change. The change is effective in any case.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(2);
/// The maximum bytes of a body about a subscription.
const BODY_BYTES_MAX: usize = 1 << 20;

pub(crate) fn name_in_path(path: &str) -> Result<Cow<'_, str>, ApiProblem> {
    path_part(path, "/v1/subscriptions/")
}

/// A subscription that exists and that the caller may see: its key covers all of its topics.
pub(crate) fn find(api: &ApiState, caller: &Caller, name: &str) -> Result<Arc<Subscription>, ApiProblem> {
    let found = api.subscriptions.get(name).filter(|found| !found.stored.deleting && is_visible(caller, found));
    let unknown = || ApiProblem::new(Code::UnknownSubscription, format!("there is no subscription `{}`", shown(name)));
    found.ok_or_else(unknown)
}

pub(crate) fn is_visible(caller: &Caller, subscription: &Subscription) -> bool {
    subscription.stored.spec.topics.iter().all(|topic| caller.covers(topic))
}

/// The subscription in the path of a request, and the fields of the body. The caller needs the scope.
pub(crate) async fn find_with_fields(
    api: &ApiState,
    scope: Scope,
    parts: &Parts,
    body: Body,
) -> Result<(Arc<Subscription>, JsonFields), ApiProblem> {
    let name = name_in_path(parts.uri.path())?;
    let caller = api.keys.caller(&parts.headers)?;
    caller.require(scope)?;
    crate::query::Query::parse(parts.uri.query())?.end()?;
    let subscription = find(api, &caller, &name)?;
    let fields = JsonFields::of_body(&small_body(api, parts, body).await?)?;
    Ok((subscription, fields))
}

pub(crate) async fn small_body(api: &ApiState, parts: &Parts, body: Body) -> Result<bytes::Bytes, ApiProblem> {
    collect_small(api, parts, body, &mut api.in_flight.begin(), BODY_BYTES_MAX).await
}

pub(crate) async fn ask(
    api: &ApiState,
    subscription: SubscriptionNumber,
    ask: DispatchRequest,
) -> Result<DispatchReply, ApiProblem> {
    Ok(api.ports.dispatch.ask(subscription, ask).await?)
}

pub(crate) fn wrong_reply(told: &DispatchReply) -> ApiProblem {
    tracing::error!(?told, "the owner of a subscription sent a reply of the wrong kind");
    ApiProblem::new(Code::OutcomeUnknown, "the subscription's owner sent a reply of the wrong kind")
}

/// The status of a subscription; `None` if its owner does not answer in time.
pub(crate) async fn status(
    api: &ApiState,
    subscription: SubscriptionNumber,
    until: Instant,
) -> Option<Box<SubscriptionStatus>> {
    let asked = api.ports.dispatch.ask(subscription, DispatchRequest::Status);
    match timeout_at(until, asked).await {
        Ok(Ok(DispatchReply::Status(status))) => Some(status),
        Ok(Ok(told)) => {
            wrong_reply(&told);
            None
        }
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Waits until the subscription's owner follows this version, so that "paused" is true when the request is answered. Returns `false` on a
/// timeout; the change is effective in any case.
pub(crate) async fn caught_up(api: &ApiState, subscription: &Subscription) -> bool {
    let ask = DispatchRequest::CaughtUp { version: subscription.version };
    let asked = api.ports.dispatch.ask(subscription.number(), ask);
    match tokio::time::timeout(CAUGHT_UP_WITHIN, asked).await {
        Ok(Ok(_)) => return true,
        Ok(Err(error)) => {
            tracing::debug!(subscription = &*subscription.name, %error, "cannot notify the owner of a change");
        }
        Err(_) => tracing::debug!(subscription = &*subscription.name, "the owner did not follow a change in time"),
    }
    false
}
