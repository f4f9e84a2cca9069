//! What the endpoints of subscriptions share: finding one that the caller may see, asking its owner, telling it of a change.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::request::Parts;
use tokio::time::{Instant, timeout_at};
use whimbrel_model::SubscriptionNumber;
use whimbrel_model::ports::{DispatchAsk, DispatchTold, SubscriptionStatus};

use super::attributes::path_part;
use super::body::collect;
use super::door::Door;
use super::json_fields::Fields;
use super::keys::{Caller, Scope};
use super::problem::{Code, Problem};
use super::query::shown;
use whimbrel_catalogue::subscriptions::Subscription;

/// How long an owner is waited for before a subscription is shown without how it stands.
pub(super) const STATUS_WITHIN: Duration = Duration::from_secs(2);
/// How long a change waits for the owner to work by it. The change is made whether or not it does.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of a body that says something about a subscription.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The subscription in the path.
pub(super) fn name_in_path(path: &str) -> Result<Cow<'_, str>, Problem> {
    path_part(path, "/v1/subscriptions/")
}

/// A subscription that is there and that the caller may see: its key is for all of its topics.
pub(super) fn find(door: &Door, caller: &Caller, name: &str) -> Result<Arc<Subscription>, Problem> {
    let found = door.subscriptions.get(name).filter(|found| !found.stored.deleting && is_seen(caller, found));
    let unknown = || Problem::new(Code::UnknownSubscription, format!("there is no subscription `{}`", shown(name)));
    found.ok_or_else(unknown)
}

pub(crate) fn is_seen(caller: &Caller, subscription: &Subscription) -> bool {
    subscription.stored.spec.topics.iter().all(|topic| caller.sees(topic))
}

/// The subscription in the path of a request, for whoever has the scope; and the fields of the request's body.
pub(super) async fn found_with_fields(
    door: &Door,
    scope: Scope,
    parts: &Parts,
    body: Body,
) -> Result<(Arc<Subscription>, Fields), Problem> {
    let name = name_in_path(parts.uri.path())?;
    let caller = door.keys.caller(&parts.headers)?;
    caller.require(scope)?;
    super::query::Query::parse(parts.uri.query())?.end()?;
    let subscription = find(door, &caller, &name)?;
    let fields = Fields::of_body(&small_body(door, parts, body).await?)?;
    Ok((subscription, fields))
}

pub(super) async fn small_body(door: &Door, parts: &Parts, body: Body) -> Result<bytes::Bytes, Problem> {
    let too_large = || Problem::new(Code::PayloadTooLarge, "what is said of a subscription is small");
    let (mut load, wait) = (door.in_flight.begin(), door.settings.body_wait);
    collect(body, &parts.headers, &mut load, wait, BODY_BYTES_MAX, too_large).await
}

pub(super) async fn ask(
    door: &Door,
    subscription: SubscriptionNumber,
    ask: DispatchAsk,
) -> Result<DispatchTold, Problem> {
    Ok(door.ports.dispatch.ask(subscription, ask).await?)
}

pub(super) fn not_understood(told: &DispatchTold) -> Problem {
    tracing::error!(?told, "the owner of a subscription answered what it was not asked");
    Problem::new(Code::OutcomeUnknown, "the subscription's owner gave no answer that is understood")
}

/// How a subscription stands; nothing where its owner does not say in time.
pub(crate) async fn status(
    door: &Door,
    subscription: SubscriptionNumber,
    until: Instant,
) -> Option<Box<SubscriptionStatus>> {
    let asked = door.ports.dispatch.ask(subscription, DispatchAsk::Status);
    match timeout_at(until, asked).await {
        Ok(Ok(DispatchTold::Status(status))) => Some(status),
        Ok(Ok(told)) => {
            not_understood(&told);
            None
        }
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Returns when the subscription's owner works by this entry, so that "paused" means paused when it is answered; or when it has been
/// waited for long enough: then `false`, and the change is made all the same.
pub(super) async fn caught_up(door: &Door, subscription: &Subscription) -> bool {
    let ask = DispatchAsk::CaughtUp { version: subscription.version };
    let asked = door.ports.dispatch.ask(subscription.number(), ask);
    match tokio::time::timeout(CAUGHT_UP_WITHIN, asked).await {
        Ok(Ok(_)) => return true,
        Ok(Err(error)) => {
            tracing::debug!(subscription = &*subscription.name, %error, "the owner was not told of a change");
        }
        Err(_) => tracing::debug!(subscription = &*subscription.name, "the owner has not followed a change in time"),
    }
    false
}
