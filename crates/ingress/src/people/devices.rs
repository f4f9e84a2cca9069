//! `/v1/users/{uid}/devices`: the destinations of notifications for a user's devices.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use whimbrel_api::people::{DeviceInfo, DeviceList, NewDevice};
use whimbrel_api::problem::Problem;
use whimbrel_model::people::{Platform, Uid, check_device};
use whimbrel_model::ports::{Device, Provider};

use super::{fields_of, last_in_path, uid_in_path};
use crate::answer::{json_response, to_json};
use crate::api_state::ApiState;
use crate::json_fields::JsonFields;
use crate::keys::Scope;
use crate::problem::{ApiProblem, ApiResult, Code};
use crate::query::{Query, shown};
use crate::settings::ReceiveSettings;
use whimbrel_api::endpoint::{Forbidden, host_of};

/// The length of an APNs device token, which Apple does not fix.
const APNS_TOKEN_CHARS: std::ops::RangeInclusive<usize> = 32..=400;
/// The maximum bytes of any other token, endpoint or URL.
const TOKEN_MAX_BYTES: usize = 4_096;
const BUNDLE_ID_MAX_CHARS: usize = 255;
/// The bytes of the keys of a Web Push subscription: a point on P-256, and a secret.
const P256DH_BYTES: usize = 65;
const AUTH_BYTES: usize = 16;
/// The number of shown characters of a token: enough to tell two apart, but never more than half of it.
const TOKEN_SHOWN_CHARS: usize = 12;

/// Register a device
///
/// Replaces the device of the same name. A user can have 32 devices. If the horn of this process has no settings for the provider, the
/// answer has a `warning`.
#[utoipa::path(
    put, path = "/v1/users/{uid}/devices/{device}", tag = "people", operation_id = "put_device",
    params(("uid" = String, Path, description = "The user"), ("device" = String, Path, description = "The name with which the device connects: 1 to 128 bytes")),
    request_body(content = NewDevice, content_type = "application/json"),
    responses(
        (status = 200, description = "The device is registered", body = DeviceInfo, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_device`, `bad_platform`, `bad_parameter`, `bad_url`, `forbidden_address`, `too_many_devices`, `bad_json`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`: repeat the request", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn put_device(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    api.keys.caller(&parts.headers)?.require(Scope::Push)?;
    let (uid, name) = uid_and_device(parts.uri.path())?;
    let device = device_of(name, fields_of(&api, &parts, body).await?, &api.settings)?;
    let shown = to_json(&document_of(&device, &api.settings));
    api.ports.devices.put(&uid, device).await?;
    Ok(json_response(StatusCode::OK, shown))
}

/// Get a device
#[utoipa::path(
    get, path = "/v1/users/{uid}/devices/{device}", tag = "people", operation_id = "get_device",
    params(("uid" = String, Path, description = "The user"), ("device" = String, Path, description = "The device")),
    responses(
        (status = 200, description = "The device", body = DeviceInfo, content_type = "application/json"),
        (status = "4XX", description = "`unknown_device`, `bad_uid`, `bad_device`, `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn get_device(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Push)?;
    let (uid, name) = uid_and_device(request.uri().path())?;
    Query::parse(request.uri().query())?.end()?;
    let devices = api.ports.devices.of(&uid).await?;
    let found = devices.iter().find(|device| device.device == name).ok_or_else(|| unknown(&uid, &name))?;
    Ok(json_response(StatusCode::OK, to_json(&document_of(found, &api.settings))))
}

/// Remove a device
#[utoipa::path(
    delete, path = "/v1/users/{uid}/devices/{device}", tag = "people", operation_id = "delete_device",
    params(("uid" = String, Path, description = "The user"), ("device" = String, Path, description = "The device")),
    responses(
        (status = 204, description = "The device is removed"),
        (status = "4XX", description = "`unknown_device`, `bad_uid`, `bad_device`, `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`: repeat the request", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn delete_device(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Push)?;
    let (uid, name) = uid_and_device(request.uri().path())?;
    Query::parse(request.uri().query())?.end()?;
    match api.ports.devices.remove(&uid, &name, None).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(unknown(&uid, &name)),
    }
}

/// List a user's devices
#[utoipa::path(
    get, path = "/v1/users/{uid}/devices", tag = "people", operation_id = "list_devices",
    params(("uid" = String, Path, description = "The user")),
    responses(
        (status = 200, description = "The devices, ordered by name", body = DeviceList, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_parameter`, `forbidden`", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn list_devices(State(api): State<Arc<ApiState>>, request: Request) -> ApiResult {
    api.keys.caller(request.headers())?.require(Scope::Push)?;
    let uid = uid_in_path(request.uri().path())?;
    Query::parse(request.uri().query())?.end()?;
    let devices = api.ports.devices.of(&uid).await?;
    let devices = devices.iter().map(|device| document_of(device, &api.settings)).collect();
    Ok(json_response(StatusCode::OK, to_json(&DeviceList { devices })))
}

fn uid_and_device(path: &str) -> Result<(Uid, String), ApiProblem> {
    let (uid, device) = (uid_in_path(path)?, last_in_path(path)?);
    check_device(&device)?;
    if device.is_empty() {
        return Err(ApiProblem::new(Code::BadDevice, "the name of the device is missing"));
    }
    Ok((uid, device.into_owned()))
}

fn unknown(uid: &Uid, name: &str) -> ApiProblem {
    ApiProblem::new(Code::UnknownDevice, format!("user {uid:?} has no device `{}`", shown(name)))
}

fn device_of(name: String, mut fields: JsonFields, settings: &ReceiveSettings) -> Result<Device, ApiProblem> {
    let Some(platform) = fields.text("platform")? else { return Err(fields.wrong("platform", "is missing")) };
    let platform = Platform::new(&platform).map_err(|error| ApiProblem::from(error).with("field", "platform"))?;
    let Some(provider) = fields.word("provider", &Provider::ALL)? else {
        return Err(fields.wrong("provider", "is missing"));
    };
    let Some(token) = fields.text("token")? else { return Err(fields.wrong("token", "is missing")) };
    // A field that the provider does not use is not taken, so it is rejected as unknown.
    let (mut p256dh, mut auth, mut topic) = (None, None, None);
    match provider {
        Provider::Apns => {
            if !APNS_TOKEN_CHARS.contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(fields.wrong("token", "must be a hexadecimal device token of 32 to 400 digits"));
            }
            topic = fields.text("topic")?;
            let is_bundle_id = |text: &String| {
                (1..=BUNDLE_ID_MAX_CHARS).contains(&text.len())
                    && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
            };
            if topic.as_ref().is_some_and(|text| !is_bundle_id(text)) {
                return Err(fields.wrong("topic", "must be the bundle id of an app, such as com.example.app"));
            }
        }
        Provider::Fcm => {
            let is_token = (1..=TOKEN_MAX_BYTES).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_graphic());
            if !is_token {
                return Err(fields.wrong("token", "must be an FCM registration token of at most 4096 bytes"));
            }
        }
        Provider::Webpush => {
            check_token_url(&fields, &token, settings)?;
            p256dh = Some(key(&mut fields, "p256dh", P256DH_BYTES)?);
            auth = Some(key(&mut fields, "auth", AUTH_BYTES)?);
        }
        Provider::Http => check_token_url(&fields, &token, settings)?,
    }
    fields.end()?;
    Ok(Device { device: name, platform, provider, token, p256dh, auth, topic })
}

fn check_token_url(fields: &JsonFields, url: &str, settings: &ReceiveSettings) -> Result<(), ApiProblem> {
    if url.len() > TOKEN_MAX_BYTES {
        return Err(fields.wrong_as(Code::BadUrl, "token", format_args!("has more than {TOKEN_MAX_BYTES} bytes")));
    }
    let host = host_of(url)
        .map_err(|bad| fields.wrong_as(Code::BadUrl, "token", format_args!("is not a valid URL: {}", bad.why)))?;
    // A name can resolve to any address. The horn checks the address whenever it connects.
    settings.guards.devices.check_host(&host).map_err(|Forbidden(place)| {
        let why = format_args!("must not lead to {place}: the operator can allow it with `horn.allow`");
        fields.wrong_as(Code::ForbiddenAddress, "token", why)
    })
}

/// A key of a Web Push subscription as browsers encode it, without padding.
fn key(fields: &mut JsonFields, name: &'static str, bytes: usize) -> Result<String, ApiProblem> {
    let text = fields.text(name)?.unwrap_or_default();
    let text = text.trim_end_matches('=');
    let decoded = URL_SAFE_NO_PAD.decode(text).ok().filter(|decoded| decoded.len() == bytes);
    match decoded {
        Some(_) => Ok(text.to_owned()),
        None => Err(fields.wrong(name, format_args!("must be {bytes} bytes in URL-safe base64"))),
    }
}

fn document_of(device: &Device, settings: &ReceiveSettings) -> DeviceInfo {
    let shown_chars = TOKEN_SHOWN_CHARS.min(device.token.chars().count() / 2);
    let token = device.token.chars().take(shown_chars).chain(['…']).collect();
    DeviceInfo {
        device: device.device.clone(),
        platform: device.platform.to_string(),
        provider: device.provider.word().to_owned(),
        token,
        topic: device.topic.clone(),
        warning: settings.mute_providers.contains(&device.provider).then(|| warning(device.provider)),
    }
}

/// A warning, not an error: the settings may be added before the first notification.
fn warning(provider: Provider) -> String {
    format!(
        "its notifications become dead letters: {} has no settings on this node; {} where the role horn runs",
        provider.word(),
        provider.missing_settings()
    )
}
