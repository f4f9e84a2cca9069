//! `/v1/platforms`: the settings of platforms: storage, limits, notifications, sessions.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use whimbrel_api::people::{PlatformInfo, PlatformList};
use whimbrel_api::problem::Problem;
use whimbrel_model::format_duration;
use whimbrel_model::people::{Platform, PlatformSettings, SessionsRule};

use super::{fields_of, last_in_path};
use crate::accept::cancel_safe::CancelSafe;
use crate::answer::{json_response, to_json};
use crate::api_state::ApiState;
use crate::json_fields::JsonFields;
use crate::keys::Scope;
use crate::problem::{ApiProblem, ApiResult};
use crate::query::Query;

/// The limit of stored messages for one seat.
const MAX_STORED: RangeInclusive<u64> = 1..=100_000;
const ACK_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);
/// The possible limits of the sessions of one user on one platform.
const SESSIONS: RangeInclusive<u32> = 1..=100;
/// The minimum time to live of stored messages.
const TTL_MIN: Duration = Duration::from_secs(1);

/// Configure a platform
///
/// Absent fields get their default.
#[utoipa::path(
    put, path = "/v1/platforms/{platform}", tag = "people", operation_id = "put_platform",
    params(("platform" = String, Path, description = "1 to 32 of `a-z0-9_-`, beginning with a letter or digit")),
    request_body(content = whimbrel_api::people::PlatformBody, content_type = "application/json"),
    responses(
        (status = 200, description = "The platform has these settings from now on", body = PlatformInfo, content_type = "application/json"),
        (status = "4XX", description = "`bad_platform`, `bad_parameter`, `bad_duration`, `too_many_platforms`, `bad_json`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`disk_full`, `unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn put_platform(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    api.keys.caller(&parts.headers)?.require(Scope::Admin)?;
    let platform = Platform::new(&last_in_path(parts.uri.path())?)?;
    let settings = settings_of(fields_of(&api, &parts, body).await?, api.settings.push_ttl_max)?;
    let shown = to_json(&document_of(&platform, &settings, true));
    let platforms = Arc::clone(&api.ports.platforms);
    CancelSafe::new(async move { platforms.put(&platform, settings).await }).await?;
    Ok(json_response(StatusCode::OK, shown))
}

/// Get a platform
///
/// A platform that is not configured has the defaults.
#[utoipa::path(
    get, path = "/v1/platforms/{platform}", tag = "people", operation_id = "get_platform",
    params(("platform" = String, Path, description = "The platform")),
    responses(
        (status = 200, description = "Its settings", body = PlatformInfo, content_type = "application/json"),
        (status = "4XX", description = "`bad_platform`, `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn get_platform(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Push)?;
    let platform = Platform::new(&last_in_path(request.uri().path())?)?;
    Query::parse(request.uri().query())?.end()?;
    let platforms = &api.ports.platforms;
    let document = document_of(&platform, &platforms.get(&platform), platforms.is_configured(&platform));
    Ok(json_response(StatusCode::OK, to_json(&document)))
}

/// List the configured platforms
#[utoipa::path(
    get, path = "/v1/platforms", tag = "people", operation_id = "list_platforms",
    responses(
        (status = 200, description = "The configured platforms, ordered by name", body = PlatformList, content_type = "application/json"),
        (status = "4XX", description = "`bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn list_platforms(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Push)?;
    Query::parse(request.uri().query())?.end()?;
    let all = api.ports.platforms.configured();
    let platforms = all.iter().map(|(platform, settings)| document_of(platform, settings, true)).collect();
    Ok(json_response(StatusCode::OK, to_json(&PlatformList { platforms })))
}

/// Reset a platform to the defaults
#[utoipa::path(
    delete, path = "/v1/platforms/{platform}", tag = "people", operation_id = "delete_platform",
    params(("platform" = String, Path, description = "The platform")),
    responses(
        (status = 204, description = "The platform has the defaults"),
        (status = "4XX", description = "`bad_platform`, `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn delete_platform(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Admin)?;
    let platform = Platform::new(&last_in_path(request.uri().path())?)?;
    Query::parse(request.uri().query())?.end()?;
    let platforms = Arc::clone(&api.ports.platforms);
    CancelSafe::new(async move { platforms.remove(&platform).await }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn settings_of(mut fields: JsonFields, ttl_max: Duration) -> Result<PlatformSettings, ApiProblem> {
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

fn sessions_of(fields: &mut JsonFields) -> Result<SessionsRule, ApiProblem> {
    let Some(value) = fields.take("sessions") else { return Ok(SessionsRule::Replace) };
    let is_within = |rule: &SessionsRule| !matches!(rule, SessionsRule::Many(count) if !SESSIONS.contains(count));
    // Each rule has only the form in which it is shown.
    let rule = SessionsRule::deserialize(&value).ok().filter(|rule| json!(rule) == value && is_within(rule));
    rule.ok_or_else(|| {
        let (least, most) = (SESSIONS.start(), SESSIONS.end());
        fields.wrong(
            "sessions",
            format_args!("must be `replace`, `reject` or {{\"many\":n}} with n from {least} to {most}"),
        )
    })
}

fn document_of(platform: &Platform, settings: &PlatformSettings, configured: bool) -> PlatformInfo {
    PlatformInfo {
        platform: platform.to_string(),
        configured,
        store: settings.store,
        max_stored: settings.max_stored,
        ttl: format_duration(Duration::from_millis(settings.ttl_ms)),
        notify: settings.notify,
        sessions: json!(settings.sessions),
        ack_timeout: format_duration(Duration::from_millis(settings.ack_timeout_ms)),
    }
}
