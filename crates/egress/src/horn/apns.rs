//! APNs: HTTP/2 with a token of the team's key. What Apple's reasons mean is decided in [`judge`], which is pure.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use whimbrel_model::Timestamp;

use super::client::{Answer, Client};
use super::judged::Judged;
use super::jwt::SigningKey;
use super::letter::Letter;
use super::limits::{APNS_COLLAPSE_BYTES_MAX, APNS_PAYLOAD_BYTES_MAX, APNS_RENEWAL_MIN, APNS_TOKEN_FOR};
use super::outcome::Fate;
use super::settings::{ApnsSettings, BadKey, HornError};

/// Apple's priorities: at once, and as the device's battery likes it. What shows nothing may only have the second.
const PRIORITY_AT_ONCE: &str = "10";
const PRIORITY_WHEN_FIT: &str = "5";
const EXPIRED_TOKEN: &str = "ExpiredProviderToken";

pub(super) struct Apns {
    settings: ApnsSettings,
    key: SigningKey,
    client: Client,
    token: Mutex<Option<ProviderToken>>,
}

#[derive(Clone)]
struct ProviderToken {
    text: Arc<str>,
    made: Timestamp,
}

impl Apns {
    pub(super) fn new(settings: ApnsSettings, client: Client) -> Result<Self, HornError> {
        let wrong = |why| HornError::Key { provider: "apns", why };
        let key = SigningKey::es256_from_pem(settings.key_pem.as_bytes()).map_err(wrong)?;
        whimbrel_api::endpoint::check_url(&settings.base_url).map_err(|bad| HornError::Setting {
            provider: "apns",
            field: "base_url",
            why: bad.to_string(),
        })?;
        Ok(Self { settings, key, client, token: Mutex::default() })
    }

    pub(super) async fn send(&self, letter: &Letter<'_>, deadline: Instant) -> Judged {
        let token = match self.token(letter.now, None) {
            Ok(token) => token,
            Err(bad) => return Fate::misconfigured(bad.to_string()).into(),
        };
        let answer = match self.ask(letter, &token, deadline).await {
            Ok(answer) if reason(&answer) == EXPIRED_TOKEN => match self.token(letter.now, Some(&token)) {
                Ok(renewed) => self.ask(letter, &renewed, deadline).await,
                Err(bad) => Err(Fate::misconfigured(bad.to_string()).into()),
            },
            answered => answered,
        };
        answer.map_or_else(|judged| judged, |answer| judge(&answer))
    }

    async fn ask(&self, letter: &Letter<'_>, token: &str, deadline: Instant) -> Result<Answer, Judged> {
        let request = self.request(letter, token).map_err(Judged::from)?;
        self.client.ask(request, deadline).await.map_err(Judged::from)
    }

    /// The token of the team's key. One that was called expired is made anew, unless somebody else did already or it is too young.
    fn token(&self, now: Timestamp, expired: Option<&Arc<str>>) -> Result<Arc<str>, BadKey> {
        let mut kept = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.as_ref() {
            let age_ms = now.as_millis().saturating_sub(known.made.as_millis());
            let is_called_expired = expired.is_some_and(|expired| *expired == known.text);
            let most = if is_called_expired { APNS_RENEWAL_MIN } else { APNS_TOKEN_FOR };
            if (0..most.as_millis() as i64).contains(&age_ms) {
                return Ok(Arc::clone(&known.text));
            }
        }
        let claims = json!({ "iss": self.settings.team_id, "iat": now.as_millis().div_euclid(1000) });
        let text: Arc<str> = self.key.token(Some(&self.settings.key_id), &claims)?.into();
        *kept = Some(ProviderToken { text: Arc::clone(&text), made: now });
        Ok(text)
    }

    fn request(&self, letter: &Letter<'_>, token: &str) -> Result<Request<Full<Bytes>>, Fate> {
        let device_token = &letter.device.token;
        if device_token.is_empty() || !device_token.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(Fate::gone("BadDeviceToken: it is not made of hexadecimal digits"));
        }
        let payload = payload(letter).to_string();
        if payload.len() > APNS_PAYLOAD_BYTES_MAX {
            return Err(Fate::refused(format!("PayloadTooLarge: {} bytes", payload.len())));
        }
        let topic = letter.device.topic.as_deref().unwrap_or(&self.settings.topic);
        if topic.is_empty() {
            return Err(Fate::misconfigured(
                "it has no topic: set horn.apns.topic, or register the device with its own",
            ));
        }
        let (push_type, priority) =
            if letter.is_shown() { ("alert", PRIORITY_AT_ONCE) } else { ("background", PRIORITY_WHEN_FIT) };
        let expires = letter.notice.expires_at_ms.div_euclid(1000).max(1);
        let mut authorization = HeaderValue::from_str(&format!("bearer {token}")).map_err(refused)?;
        authorization.set_sensitive(true);
        Request::builder()
            .method(Method::POST)
            .uri(format!("{}/3/device/{device_token}", self.settings.base_url.trim_end_matches('/')))
            .header(AUTHORIZATION, authorization)
            .header(CONTENT_TYPE, "application/json")
            .header("apns-topic", topic)
            .header("apns-push-type", push_type)
            .header("apns-priority", priority)
            .header("apns-expiration", expires)
            .header("apns-collapse-id", letter.collapse_name(APNS_COLLAPSE_BYTES_MAX))
            .header("apns-id", letter.name.to_string())
            .body(Full::new(payload.into()))
            .map_err(refused)
    }
}

fn refused(error: impl Into<http::Error>) -> Fate {
    Fate::refused(error.into().to_string())
}

fn payload(letter: &Letter<'_>) -> Value {
    let mut aps = json!({});
    if letter.is_shown() {
        let mut alert = json!({});
        if let Some(title) = &letter.notice.notify.title {
            alert["title"] = title.as_str().into();
        }
        if let Some(body) = &letter.notice.notify.body {
            alert["body"] = body.as_str().into();
        }
        aps["alert"] = alert;
        aps["sound"] = "default".into();
    } else {
        aps["content-available"] = 1.into();
    }
    let mut payload = json!({ "aps": aps, "id": letter.notice.id });
    if let Some(data) = letter.data() {
        payload["data"] = data;
    }
    payload
}

fn reason(answer: &Answer) -> String {
    #[derive(Deserialize)]
    struct Said {
        reason: String,
    }
    serde_json::from_slice::<Said>(&answer.body).map(|said| said.reason).unwrap_or_default()
}

/// What an answer of APNs means. One without a reason of Apple's is somebody else's, such as a proxy's or that of a wrong `url`: it makes
/// nobody forget a device or give a notice up.
fn judge(answer: &Answer) -> Judged {
    let (status, reason) = (answer.status, reason(answer));
    let said = format!("APNs answered {status} {reason}");
    match (status, &*reason) {
        (200, _) => Fate::Sent.into(),
        (400 | 410, "BadDeviceToken" | "MissingDeviceToken" | "Unregistered" | "ExpiredToken") => {
            Fate::gone(said).into()
        }
        // The new token was called expired too: our clock is not Apple's, and somebody will set it.
        (_, EXPIRED_TOKEN) => Fate::later(said, answer.retry_after()).into(),
        // Too many for this one device; a connection that was slow.
        (429, "TooManyRequests") | (400, "IdleTimeout") => Fate::later(said, answer.retry_after()).into(),
        (429 | 500..=599, _) => Judged::everybody_later(said, answer.retry_after()),
        (400, "" | "BadTopic" | "MissingTopic" | "TopicDisallowed") => Fate::misconfigured(said).into(),
        // The notice itself, or a device of another app.
        (400 | 413, _) => Fate::refused(said).into(),
        // A key, a team, a certificate, a URL.
        _ => Fate::misconfigured(said).into(),
    }
}
