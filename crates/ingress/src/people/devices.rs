//! `/v1/users/{uid}/devices`: where notices for a user's devices go.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use whimbrel_model::people::{Platform, Uid, check_device};
use whimbrel_model::ports::{Device, Provider};

use super::super::answer::json_response;
use super::super::documents::ProblemDocument;
use super::super::door::Door;
use super::super::json_fields::Fields;
use super::super::keys::Scope;
use super::super::problem::{Code, Problem};
use super::super::query::{Query, shown};
use super::super::settings::ReceiveSettings;
use super::super::subscriptions::to_json;
use super::documents::{DeviceBody, DeviceDocument, DeviceList};
use super::{fields_of, last_in_path, uid_in_path};
use whimbrel_api::endpoint::{Forbidden, host_of};

/// Characters of a device token of Apple's, which has no fixed length.
const APNS_TOKEN_CHARS: std::ops::RangeInclusive<usize> = 32..=400;
/// Bytes of any other token, endpoint or URL.
const TOKEN_MAX_BYTES: usize = 4_096;
const BUNDLE_ID_MAX_CHARS: usize = 255;
/// Bytes of the keys of a Web Push subscription: a point on P-256, and a secret.
const P256DH_BYTES: usize = 65;
const AUTH_BYTES: usize = 16;
/// How much of a token is shown: enough to tell two apart, and never more than half of it.
const TOKEN_SHOWN_CHARS: usize = 12;

const PROVIDERS: [(&str, Provider); 4] =
    [("apns", Provider::Apns), ("fcm", Provider::Fcm), ("webpush", Provider::Webpush), ("http", Provider::Http)];

/// Register a device
///
/// In the place of the one of the same name. A user has at most 32. Where the horn of this process has no settings for the provider, the
/// answer has a `warning`.
#[utoipa::path(
    put, path = "/v1/users/{uid}/devices/{device}", tag = "people", operation_id = "put_device",
    params(("uid" = String, Path, description = "The user"), ("device" = String, Path, description = "1 to 128 bytes, the name that the device connects with")),
    request_body(content = DeviceBody, content_type = "application/json"),
    responses(
        (status = 200, description = "The device is registered", body = DeviceDocument, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_device`, `bad_platform`, `bad_parameter`, `bad_url`, `forbidden_address`, `too_many_devices`, `bad_json`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`: repeat it", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn put_device(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    door.keys.caller(&parts.headers)?.require(Scope::Push)?;
    let (uid, name) = named(parts.uri.path())?;
    let device = device_of(name, fields_of(&door, &parts, body).await?, &door.settings)?;
    let shown = to_json(&document_of(&device, &door.settings));
    door.ports.devices.put(&uid, device).await?;
    Ok(json_response(StatusCode::OK, shown))
}

/// Look at a device
#[utoipa::path(
    get, path = "/v1/users/{uid}/devices/{device}", tag = "people", operation_id = "get_device",
    params(("uid" = String, Path, description = "The user"), ("device" = String, Path, description = "The device")),
    responses(
        (status = 200, description = "The device", body = DeviceDocument, content_type = "application/json"),
        (status = "4XX", description = "`unknown_device`, `bad_uid`, `bad_device`, `bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn get_device(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Problem> {
    door.keys.caller(request.headers())?.require(Scope::Push)?;
    let (uid, name) = named(request.uri().path())?;
    Query::parse(request.uri().query())?.end()?;
    let devices = door.ports.devices.of(&uid).await?;
    let found = devices.iter().find(|device| device.device == name).ok_or_else(|| unknown(&uid, &name))?;
    Ok(json_response(StatusCode::OK, to_json(&document_of(found, &door.settings))))
}

/// Remove a device
#[utoipa::path(
    delete, path = "/v1/users/{uid}/devices/{device}", tag = "people", operation_id = "delete_device",
    params(("uid" = String, Path, description = "The user"), ("device" = String, Path, description = "The device")),
    responses(
        (status = 204, description = "The device is gone"),
        (status = "4XX", description = "`unknown_device`, `bad_uid`, `bad_device`, `bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`: repeat it", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn delete_device(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    door.keys.caller(request.headers())?.require(Scope::Push)?;
    let (uid, name) = named(request.uri().path())?;
    Query::parse(request.uri().query())?.end()?;
    match door.ports.devices.remove(&uid, &name, None).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(unknown(&uid, &name)),
    }
}

/// List a user's devices
#[utoipa::path(
    get, path = "/v1/users/{uid}/devices", tag = "people", operation_id = "list_devices",
    params(("uid" = String, Path, description = "The user")),
    responses(
        (status = 200, description = "The devices, by name", body = DeviceList, content_type = "application/json"),
        (status = "4XX", description = "`bad_uid`, `bad_parameter`, `forbidden`", body = ProblemDocument, content_type = "application/problem+json"),
        (status = "5XX", description = "`unavailable`", body = ProblemDocument, content_type = "application/problem+json"),
    ),
)]
pub(in super::super) async fn list_devices(
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Response, Problem> {
    door.keys.caller(request.headers())?.require(Scope::Push)?;
    let uid = uid_in_path(request.uri().path())?;
    Query::parse(request.uri().query())?.end()?;
    let devices = door.ports.devices.of(&uid).await?;
    let devices = devices.iter().map(|device| document_of(device, &door.settings)).collect();
    Ok(json_response(StatusCode::OK, to_json(&DeviceList { devices })))
}

fn named(path: &str) -> Result<(Uid, String), Problem> {
    let (uid, device) = (uid_in_path(path)?, last_in_path(path)?);
    check_device(&device)?;
    if device.is_empty() {
        return Err(Problem::new(Code::BadDevice, "a device that is registered has a name"));
    }
    Ok((uid, device.into_owned()))
}

fn unknown(uid: &Uid, name: &str) -> Problem {
    Problem::new(Code::UnknownDevice, format!("user {uid:?} has no device `{}`", shown(name)))
}

fn device_of(name: String, mut fields: Fields, settings: &ReceiveSettings) -> Result<Device, Problem> {
    let Some(platform) = fields.text("platform")? else { return Err(fields.wrong("platform", "is missing")) };
    let platform = Platform::new(&platform).map_err(|error| Problem::from(error).with("field", "platform"))?;
    let Some(provider) = fields.word("provider", &PROVIDERS)? else {
        return Err(fields.wrong("provider", "is missing"));
    };
    let Some(token) = fields.text("token")? else { return Err(fields.wrong("token", "is missing")) };
    // What a provider does not have is a mistake, and stays among the fields that nobody asked for.
    let (mut p256dh, mut auth, mut topic) = (None, None, None);
    match provider {
        Provider::Apns => {
            if !APNS_TOKEN_CHARS.contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(fields.wrong("token", "is a device token in hexadecimal"));
            }
            topic = fields.text("topic")?;
            let is_bundle_id = |text: &String| {
                (1..=BUNDLE_ID_MAX_CHARS).contains(&text.len())
                    && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
            };
            if topic.as_ref().is_some_and(|text| !is_bundle_id(text)) {
                return Err(fields.wrong("topic", "is an app's bundle id, such as com.example.app"));
            }
        }
        Provider::Fcm => {
            let is_token = (1..=TOKEN_MAX_BYTES).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_graphic());
            if !is_token {
                return Err(fields.wrong("token", "is a registration token"));
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

fn check_token_url(fields: &Fields, url: &str, settings: &ReceiveSettings) -> Result<(), Problem> {
    if url.len() > TOKEN_MAX_BYTES {
        return Err(fields.wrong_as(Code::BadUrl, "token", format_args!("has at most {TOKEN_MAX_BYTES} bytes")));
    }
    let host = host_of(url)
        .map_err(|bad| fields.wrong_as(Code::BadUrl, "token", format_args!("is nothing to call: {}", bad.why)))?;
    // A name says little: what it leads to is judged by the horn whenever it is dialled.
    settings.device_guard.check_host(&host).map_err(|Forbidden(place)| {
        let why = format_args!(
            "cannot be used: notices may not go to {place}, which a device named; the operator allows it with `horn.allow`"
        );
        fields.wrong_as(Code::ForbiddenAddress, "token", why)
    })
}

/// A key of a Web Push subscription, as browsers give it; padding is taken off.
fn key(fields: &mut Fields, name: &'static str, bytes: usize) -> Result<String, Problem> {
    let text = fields.text(name)?.unwrap_or_default();
    let text = text.trim_end_matches('=');
    let decoded = URL_SAFE_NO_PAD.decode(text).ok().filter(|decoded| decoded.len() == bytes);
    match decoded {
        Some(_) => Ok(text.to_owned()),
        None => Err(fields.wrong(name, format_args!("is {bytes} bytes in URL-safe base64"))),
    }
}

fn document_of(device: &Device, settings: &ReceiveSettings) -> DeviceDocument {
    let provider = PROVIDERS.iter().find(|(_, provider)| *provider == device.provider).map_or("", |(word, _)| word);
    let shown_chars = TOKEN_SHOWN_CHARS.min(device.token.chars().count() / 2);
    let token = device.token.chars().take(shown_chars).chain(['…']).collect();
    DeviceDocument {
        device: device.device.clone(),
        platform: device.platform.to_string(),
        provider: provider.to_owned(),
        token,
        topic: device.topic.clone(),
        warning: settings.mute_providers.contains(&device.provider).then(|| warning(provider, device.provider)),
    }
}

/// No error: the settings may come before the first notice does.
fn warning(word: &str, provider: Provider) -> String {
    format!(
        "notices for it will be dead letters: {word} has no settings here; {} where the role horn runs",
        provider.missing_settings()
    )
}
