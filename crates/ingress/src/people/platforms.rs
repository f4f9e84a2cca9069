//! `/v1/platforms`: what a platform keeps, how much, whether it is woken.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use whimbrel_model::format_duration;
use whimbrel_model::people::{Platform, PlatformSettings, SessionsRule};

use super::super::answer::json_response;
use super::super::documents::ProblemDocument;
use super::super::door::Door;
use super::super::json_fields::Fields;
use super::super::keys::Scope;
use super::super::problem::Problem;
use super::super::query::Query;
use super::super::subscriptions::to_json;
use super::super::undisturbed::Undisturbed;
use super::documents::{PlatformBody, PlatformDocument, PlatformList};
use super::{fields_of, last_in_path};

/// Stored messages that may wait for one seat.
const MAX_STORED: RangeInclusive<u64> = 1..=100_000;
const ACK_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);
/// Sessions of one user on one platform.
const SESSIONS_MAX: u64 = 100;
/// A message that is of use for less need not be stored.
const TTL_MIN: Duration = Duration::from_secs(1);

/// Configure a platform
///
/// What is left out has the default.
#[utoipa::path(
    put, path = "/v1/platforms/{platform}", tag = "people", operation_id = "put_platform",
    params(("platform" = String, Path, description = "1 to 32 of `a-z0-9_-`, beginning with a letter or digit")),
    request_body(content = PlatformBody, content_type = "application/json"),
    responses(
        (status = 200, description = "These are its settings from now on", body = PlatformDocument, content_type = "application/json"),
        (status = "4XX", description = "`bad_platform`, `bad_parameter`, `bad_duration`, `too_many_platforms`, `bad_json`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`disk_full`, `unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn put_platform(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    door.keys.caller(&parts.headers)?.require(Scope::Admin)?;
    let platform = Platform::new(&last_in_path(parts.uri.path())?)?;
    let settings = settings_of(fields_of(&door, &parts, body).await?, door.settings.push_ttl_max)?;
    let shown = to_json(&document_of(&platform, &settings, true));
    let platforms = Arc::clone(&door.ports.platforms);
    Undisturbed::new(async move { platforms.put(&platform, settings).await }).await?;
    Ok(json_response(StatusCode::OK, shown))
}

/// Look at a platform
///
/// One that nobody configured has the defaults.
#[utoipa::path(
    get, path = "/v1/platforms/{platform}", tag = "people", operation_id = "get_platform",
    params(("platform" = String, Path, description = "The platform")),
    responses(
        (status = 200, description = "Its settings", body = PlatformDocument, content_type = "application/json"),
        (status = "4XX", description = "`bad_platform`, `bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn get_platform(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    door.keys.caller(request.headers())?.require(Scope::Push)?;
    let platform = Platform::new(&last_in_path(request.uri().path())?)?;
    Query::parse(request.uri().query())?.end()?;
    let platforms = &door.ports.platforms;
    let document = document_of(&platform, &platforms.get(&platform), platforms.is_configured(&platform));
    Ok(json_response(StatusCode::OK, to_json(&document)))
}

/// List the platforms that are configured
#[utoipa::path(
    get, path = "/v1/platforms", tag = "people", operation_id = "list_platforms",
    responses(
        (status = 200, description = "Those that somebody configured, by name", body = PlatformList, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn list_platforms(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    door.keys.caller(request.headers())?.require(Scope::Push)?;
    Query::parse(request.uri().query())?.end()?;
    let all = door.ports.platforms.configured();
    let platforms = all.iter().map(|(platform, settings)| document_of(platform, settings, true)).collect();
    Ok(json_response(StatusCode::OK, to_json(&PlatformList { platforms })))
}

/// Put a platform back to the defaults
#[utoipa::path(
    delete, path = "/v1/platforms/{platform}", tag = "people", operation_id = "delete_platform",
    params(("platform" = String, Path, description = "The platform")),
    responses(
        (status = 204, description = "It has the defaults, whether or not somebody had configured it"),
        (status = "4XX", description = "`bad_platform`, `bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn delete_platform(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    door.keys.caller(request.headers())?.require(Scope::Admin)?;
    let platform = Platform::new(&last_in_path(request.uri().path())?)?;
    Query::parse(request.uri().query())?.end()?;
    let platforms = Arc::clone(&door.ports.platforms);
    Undisturbed::new(async move { platforms.remove(&platform).await }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn settings_of(mut fields: Fields, ttl_max: Duration) -> Result<PlatformSettings, Problem> {
    let defaults = PlatformSettings::default();
    let millis = |duration: Duration| duration.as_millis() as u64;
    let settings = PlatformSettings {
        store: fields.flag("store")?.unwrap_or(defaults.store),
        max_stored: fields.number("max_stored", MAX_STORED)?.map_or(defaults.max_stored, |most| most as u32),
        ttl_ms: fields.duration("ttl", TTL_MIN..=ttl_max)?.map_or(defaults.ttl_ms.min(millis(ttl_max)), millis),
        notify: fields.flag("notify")?.unwrap_or(defaults.notify),
        sessions: sessions_of(&mut fields)?,
        ack_timeout_ms: fields.duration("ack_timeout", ACK_TIMEOUT)?.map_or(defaults.ack_timeout_ms, millis),
    };
    fields.end()?;
    Ok(settings)
}

fn sessions_of(fields: &mut Fields) -> Result<SessionsRule, Problem> {
    let many = |map: &serde_json::Map<String, Value>| {
        let count = map.get("many").filter(|_| map.len() == 1)?.as_u64()?;
        (1..=SESSIONS_MAX).contains(&count).then_some(SessionsRule::Many(count as u32))
    };
    let rule = match fields.take("sessions") {
        None => Some(SessionsRule::Replace),
        Some(Value::String(word)) => match word.as_str() {
            "replace" => Some(SessionsRule::Replace),
            "reject" => Some(SessionsRule::Reject),
            _ => None,
        },
        Some(Value::Object(map)) => many(&map),
        Some(_) => None,
    };
    let what = format!("is `replace`, `reject` or {{\"many\":n}} with n from 1 to {SESSIONS_MAX}");
    rule.ok_or_else(|| fields.wrong("sessions", what))
}

fn document_of(platform: &Platform, settings: &PlatformSettings, configured: bool) -> PlatformDocument {
    PlatformDocument {
        platform: platform.to_string(),
        configured,
        store: settings.store,
        max_stored: settings.max_stored,
        ttl: format_duration(Duration::from_millis(settings.ttl_ms)),
        notify: settings.notify,
        sessions: match settings.sessions {
            SessionsRule::Replace => json!("replace"),
            SessionsRule::Reject => json!("reject"),
            SessionsRule::Many(count) => json!({ "many": count }),
        },
        ack_timeout: format_duration(Duration::from_millis(settings.ack_timeout_ms)),
    }
}
