//! APNs: HTTP/2 with a token signed by the team's key. [`classify_response`], which is pure, interprets Apple's reasons.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use whimbrel_model::Timestamp;

use super::device_notice::DeviceNotice;
use super::jwt::{SignedToken, SigningKey};
use super::limits::{APNS_COLLAPSE_BYTES_MAX, APNS_PAYLOAD_BYTES_MAX, APNS_RENEWAL_MIN, APNS_TOKEN_FOR};
use super::outcome::DeviceOutcome;
use super::provider_client::{ProviderClient, ProviderResponse, authorization};
use super::provider_outcome::{ProviderOutcome, SendResult};
use super::settings::{ApnsSettings, HornError};

/// Apple's priorities: immediately, or when the device's battery allows it. Apple permits only the second for notices without an alert.
const PRIORITY_AT_ONCE: &str = "10";
const PRIORITY_WHEN_FIT: &str = "5";
const EXPIRED_TOKEN: &str = "ExpiredProviderToken";

pub(super) struct Apns {
    settings: ApnsSettings,
    key: SigningKey,
    client: ProviderClient,
    token: Mutex<Option<SignedToken>>,
}

impl Apns {
    pub(super) fn new(settings: ApnsSettings, client: ProviderClient) -> Result<Self, HornError> {
        let wrong = |why| HornError::Key { provider: "apns", why };
        let key = SigningKey::es256_from_pem(settings.key_pem.as_bytes()).map_err(wrong)?;
        whimbrel_api::endpoint::check_url(&settings.base_url).map_err(|bad| HornError::Setting {
            provider: "apns",
            field: "base_url",
            why: bad.to_string(),
        })?;
        Ok(Self { settings, key, client, token: Mutex::default() })
    }

    /// Sends the notice. If APNs reports the token as expired, retries once with a new one.
    pub(super) async fn send(&self, delivery: &DeviceNotice<'_>, deadline: Instant) -> SendResult {
        let token = self.token(delivery.now, None)?;
        let mut answer = self.client.ask(self.request(delivery, &token)?, deadline).await?;
        if reason(&answer) == EXPIRED_TOKEN {
            let renewed = self.token(delivery.now, Some(&token))?;
            answer = self.client.ask(self.request(delivery, &renewed)?, deadline).await?;
        }
        Ok(classify_response(&answer))
    }

    /// A token signed by the team's key. If APNs reported `expired` as expired, a new one is signed, unless another call has already
    /// replaced it or it is younger than [`APNS_RENEWAL_MIN`].
    fn token(&self, now: Timestamp, expired: Option<&Arc<str>>) -> Result<Arc<str>, DeviceOutcome> {
        let mut kept = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.as_ref() {
            let is_called_expired = expired.is_some_and(|expired| *expired == known.text);
            if known.is_younger_than(if is_called_expired { APNS_RENEWAL_MIN } else { APNS_TOKEN_FOR }, now) {
                return Ok(Arc::clone(&known.text));
            }
        }
        let claims = json!({ "iss": self.settings.team_id, "iat": now.as_millis().div_euclid(1000) });
        let text: Arc<str> = self.key.token(Some(&self.settings.key_id), &claims)?.into();
        *kept = Some(SignedToken { text: Arc::clone(&text), made: now });
        Ok(text)
    }

    fn request(&self, delivery: &DeviceNotice<'_>, token: &str) -> Result<Request<Full<Bytes>>, DeviceOutcome> {
        let device_token = &delivery.device.token;
        if device_token.is_empty() || !device_token.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(DeviceOutcome::gone("BadDeviceToken: the token has characters other than letters and digits"));
        }
        let payload = payload(delivery).to_string();
        if payload.len() > APNS_PAYLOAD_BYTES_MAX {
            return Err(DeviceOutcome::refused(format!("PayloadTooLarge: {} bytes", payload.len())));
        }
        let topic = delivery.device.topic.as_deref().unwrap_or(&self.settings.topic);
        if topic.is_empty() {
            return Err(DeviceOutcome::misconfigured(
                "there is no topic: set horn.apns.topic, or register the device with a topic",
            ));
        }
        let (push_type, priority) =
            if delivery.is_shown() { ("alert", PRIORITY_AT_ONCE) } else { ("background", PRIORITY_WHEN_FIT) };
        let expires = delivery.notice.expires_at_ms.div_euclid(1000).max(1);
        Request::builder()
            .method(Method::POST)
            .uri(format!("{}/3/device/{device_token}", self.settings.base_url.trim_end_matches('/')))
            .header(AUTHORIZATION, authorization(&format!("bearer {token}"))?)
            .header(CONTENT_TYPE, "application/json")
            .header("apns-topic", topic)
            .header("apns-push-type", push_type)
            .header("apns-priority", priority)
            .header("apns-expiration", expires)
            .header("apns-collapse-id", delivery.collapse_name(APNS_COLLAPSE_BYTES_MAX))
            .header("apns-id", delivery.name.to_string())
            .body(Full::new(payload.into()))
            .map_err(|error| DeviceOutcome::refused(error.to_string()))
    }
}

fn payload(delivery: &DeviceNotice<'_>) -> Value {
    let mut aps = json!({});
    if delivery.is_shown() {
        aps["alert"] = delivery.alert();
        aps["sound"] = "default".into();
    } else {
        aps["content-available"] = 1.into();
    }
    let mut payload = json!({ "aps": aps, "id": delivery.notice.id });
    if let Some(data) = delivery.data() {
        payload["data"] = data;
    }
    payload
}

fn reason(answer: &ProviderResponse) -> String {
    #[derive(Deserialize)]
    struct ApnsError {
        reason: String,
    }
    serde_json::from_slice::<ApnsError>(&answer.body).map(|detail| detail.reason).unwrap_or_default()
}

/// Classifies a response of APNs. A response without one of Apple's reasons comes from another server, such as a proxy or a wrong
/// `base_url`. It must not remove a device or make the notice a dead delivery.
fn classify_response(answer: &ProviderResponse) -> ProviderOutcome {
    let (status, reason) = (answer.status, reason(answer));
    let detail = format!("APNs answered {status} {reason}");
    match (status, &*reason) {
        (200, _) => DeviceOutcome::Sent.into(),
        (400 | 410, "BadDeviceToken" | "MissingDeviceToken" | "Unregistered" | "ExpiredToken") => {
            DeviceOutcome::gone(detail).into()
        }
        // The new token was rejected as expired too: the clocks differ, and an operator must correct this one.
        (_, EXPIRED_TOKEN) => DeviceOutcome::later(detail, answer.retry_after()).into(),
        // Too many notices for this device, or a slow connection.
        (429, "TooManyRequests") | (400, "IdleTimeout") => DeviceOutcome::later(detail, answer.retry_after()).into(),
        (429 | 500..=599, _) => ProviderOutcome::provider_later(detail, answer.retry_after()),
        (400, "" | "BadTopic" | "MissingTopic" | "TopicDisallowed") => DeviceOutcome::misconfigured(detail).into(),
        // The notice is invalid, or the device belongs to another app.
        (400 | 413, _) => DeviceOutcome::refused(detail).into(),
        // A wrong key, team, certificate or URL.
        _ => DeviceOutcome::misconfigured(detail).into(),
    }
}
