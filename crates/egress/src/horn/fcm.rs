//! FCM, by its HTTP v1 API. [`classify_response`], which is pure, interprets its errors.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::device_notice::DeviceNotice;
use super::google_token::GoogleTokens;
use super::limits::{APNS_COLLAPSE_BYTES_MAX, FCM_TTL_SECONDS_MAX, QUOTA_PAUSE};
use super::outcome::DeviceOutcome;
use super::provider_client::{ProviderClient, ProviderResponse, authorization};
use super::provider_outcome::{ProviderOutcome, SendResult};
use super::settings::{FcmSettings, HornError};

pub(super) struct Fcm {
    url: String,
    tokens: GoogleTokens,
    client: ProviderClient,
}

impl Fcm {
    pub(super) fn new(settings: FcmSettings, client: ProviderClient) -> Result<Self, HornError> {
        let account = &settings.service_account;
        let wrong = |field, why: String| HornError::Setting { provider: "fcm", field, why };
        for (field, url) in [("base_url", &settings.base_url), ("service_account.token_uri", &account.token_uri)] {
            whimbrel_api::endpoint::check_url(url).map_err(|bad| wrong(field, bad.to_string()))?;
        }
        let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b':' | b'.');
        if account.project_id.is_empty() || !account.project_id.bytes().all(is_name) {
            return Err(wrong("service_account.project_id", "it is not a valid project id".to_owned()));
        }
        let base = settings.base_url.trim_end_matches('/');
        let url = format!("{base}/v1/projects/{}/messages:send", account.project_id);
        let tokens = GoogleTokens::new(settings.service_account, client.clone());
        let tokens = tokens.map_err(|why| HornError::Key { provider: "fcm", why })?;
        Ok(Self { url, tokens, client })
    }

    /// Sends the notice. If FCM rejects the access token, retries once with a new one.
    pub(super) async fn send(&self, delivery: &DeviceNotice<'_>, deadline: Instant) -> SendResult {
        let token = self.tokens.token(delivery.now, None, deadline).await?;
        let mut answer = self.client.ask(self.request(delivery, &token)?, deadline).await?;
        if answer.status == 401 && code(&answer) != "THIRD_PARTY_AUTH_ERROR" {
            let renewed = self.tokens.token(delivery.now, Some(&token), deadline).await?;
            answer = self.client.ask(self.request(delivery, &renewed)?, deadline).await?;
        }
        Ok(classify_response(&answer))
    }

    fn request(&self, delivery: &DeviceNotice<'_>, token: &str) -> Result<Request<Full<Bytes>>, DeviceOutcome> {
        Request::builder()
            .method(Method::POST)
            .uri(&self.url)
            .header(AUTHORIZATION, authorization(&format!("Bearer {token}"))?)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(message(delivery).to_string().into()))
            .map_err(|error| DeviceOutcome::refused(error.to_string()))
    }
}

/// The request body. FCM accepts only strings in `data`, so the notice's own data is JSON text in it.
fn message(delivery: &DeviceNotice<'_>) -> Value {
    let mut data = json!({ "id": delivery.notice.id });
    if let Some(text) = &delivery.notice.notify.data {
        data["data"] = text.as_str().into();
    }
    let mut android = json!({
        "priority": if delivery.is_shown() { "HIGH" } else { "NORMAL" },
        "ttl": format!("{}s", delivery.seconds_left().min(FCM_TTL_SECONDS_MAX)),
    });
    if let Some(key) = &delivery.notice.collapse_key {
        android["collapse_key"] = key.as_str().into();
    }
    let mut message = json!({ "token": delivery.device.token, "data": data });
    if delivery.is_shown() {
        message["notification"] = delivery.alert();
        // A notification replaces an earlier one with the same tag. FCM's own collapse keys are not used for this: a device has only a few
        // of them, and each notice needs its own.
        android["notification"] = json!({ "tag": delivery.collapse_name(APNS_COLLAPSE_BYTES_MAX) });
    }
    message["android"] = android;
    json!({ "message": message })
}

#[derive(Deserialize)]
struct FcmErrorBody {
    error: FcmError,
}

#[derive(Deserialize)]
struct FcmError {
    #[serde(default)]
    status: String,
    #[serde(default)]
    details: Vec<ErrorDetail>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ErrorDetail {
    #[serde(default)]
    error_code: Option<String>,
    #[serde(default)]
    field_violations: Vec<FieldViolation>,
}

#[derive(Deserialize)]
struct FieldViolation {
    #[serde(default)]
    field: String,
}

fn error_of(answer: &ProviderResponse) -> Option<FcmError> {
    serde_json::from_slice::<FcmErrorBody>(&answer.body).ok().map(|detail| detail.error)
}

/// FCM's own error code if there is one, otherwise Google's general status.
fn code(answer: &ProviderResponse) -> String {
    let Some(error) = error_of(answer) else { return String::new() };
    error.details.into_iter().find_map(|detail| detail.error_code).unwrap_or(error.status)
}

/// Classifies a response of FCM.
fn classify_response(answer: &ProviderResponse) -> ProviderOutcome {
    let (status, code) = (answer.status, code(answer));
    let detail = format!("FCM answered {status} {code}");
    let is_about_token = || {
        let details = error_of(answer).map(|error| error.details).unwrap_or_default();
        details.iter().flat_map(|detail| &detail.field_violations).any(|violation| violation.field == "message.token")
    };
    match (status, &*code) {
        (200, _) => DeviceOutcome::Sent.into(),
        // A 404 without one of FCM's codes comes from another server, such as a wrong `base_url`. It must not remove a device.
        (_, "UNREGISTERED") | (404, "NOT_FOUND") => DeviceOutcome::gone(detail).into(),
        (400, _) if is_about_token() => DeviceOutcome::gone(detail).into(),
        (429, _) | (_, "QUOTA_EXCEEDED") => {
            ProviderOutcome::provider_later(detail, Some(answer.retry_after().unwrap_or(QUOTA_PAUSE)))
        }
        (500..=599, _) | (_, "UNAVAILABLE" | "INTERNAL") => {
            ProviderOutcome::provider_later(detail, answer.retry_after())
        }
        // The notice is invalid, or the device belongs to another project.
        (400, "INVALID_ARGUMENT") | (413, _) | (_, "SENDER_ID_MISMATCH") => DeviceOutcome::refused(detail).into(),
        // A wrong service account, permission or URL.
        _ => DeviceOutcome::misconfigured(detail).into(),
    }
}
