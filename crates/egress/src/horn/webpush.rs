//! Web Push: the subscription names the browser's push service (RFC 8030), VAPID identifies the sender (RFC 8292), and the payload is
//! encrypted for the browser (RFC 8291).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::agreement::{ECDH_P256, PrivateKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use http::{Method, Request, Uri};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::time::Instant;
use whimbrel_model::Timestamp;

use super::device_notice::DeviceNotice;
use super::encryption::{BrowserKeys, SALT_BYTES, encrypt};
use super::jwt::{SignedToken, SigningKey};
use super::limits::{
    ORIGIN_PAUSE_MAX, VAPID_TOKEN_FOR, VAPID_TOKEN_VALID, VAPID_TOKENS_MAX, WEBPUSH_PAYLOAD_BYTES_MAX,
    WEBPUSH_TTL_SECONDS_MAX,
};
use super::outcome::DeviceOutcome;
use super::provider_client::{ProviderClient, ProviderResponse, authorization};
use super::provider_outcome::{ProviderOutcome, SendResult};
use super::settings::{HornError, WebPushSettings};

/// The maximum length of a `Topic` in RFC 8030.
const TOPIC_CHARS_MAX: usize = 32;

pub(super) struct WebPush {
    subject: String,
    key: SigningKey,
    client: ProviderClient,
    /// By the push service's origin.
    tokens: Mutex<HashMap<String, SignedToken>>,
}

impl WebPush {
    pub(super) fn new(settings: WebPushSettings, client: ProviderClient) -> Result<Self, HornError> {
        let wrong = |why| HornError::Key { provider: "webpush", why };
        let key = SigningKey::es256_from_text(&settings.private_key).map_err(wrong)?;
        let subject = settings.subject;
        if !subject.starts_with("mailto:") && !subject.starts_with("https:") {
            let why = "it must begin with `mailto:` or `https:`".to_owned();
            return Err(HornError::Setting { provider: "webpush", field: "subject", why });
        }
        Ok(Self { subject, key, client, tokens: Mutex::default() })
    }

    pub(super) async fn send(&self, delivery: &DeviceNotice<'_>, deadline: Instant) -> SendResult {
        Ok(classify_response(&self.client.ask(self.request(delivery)?, deadline).await?))
    }

    fn request(&self, delivery: &DeviceNotice<'_>) -> Result<Request<Full<Bytes>>, DeviceOutcome> {
        let endpoint = &delivery.device.token;
        let origin =
            origin_of(endpoint).ok_or_else(|| DeviceOutcome::refused(format!("`{endpoint}` cannot be called")))?;
        let content = Value::Object(delivery.content()).to_string();
        if content.len() > WEBPUSH_PAYLOAD_BYTES_MAX {
            return Err(DeviceOutcome::refused(format!("the payload is too large: {} bytes", content.len())));
        }
        let body = self.encrypted(delivery, content.as_bytes())?;
        let token = self.token(&origin, delivery.now)?;
        let public = URL_SAFE_NO_PAD.encode(self.key.public_point());
        Request::builder()
            .method(Method::POST)
            .uri(endpoint)
            .header(AUTHORIZATION, authorization(&format!("vapid t={token}, k={public}"))?)
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_ENCODING, "aes128gcm")
            .header("ttl", delivery.seconds_left().min(WEBPUSH_TTL_SECONDS_MAX))
            .header("urgency", if delivery.is_shown() { "high" } else { "normal" })
            .header("topic", delivery.collapse_digest(TOPIC_CHARS_MAX))
            .body(Full::new(body.into()))
            .map_err(|error| DeviceOutcome::refused(error.to_string()))
    }

    fn encrypted(&self, delivery: &DeviceNotice<'_>, content: &[u8]) -> Result<Vec<u8>, DeviceOutcome> {
        let missing = |name: &str| DeviceOutcome::refused(format!("the subscription has no usable `{name}`"));
        let key = |text: &Option<String>| text.as_deref().and_then(decoded);
        let point = key(&delivery.device.p256dh).ok_or_else(|| missing("p256dh"))?;
        let auth = key(&delivery.device.auth).ok_or_else(|| missing("auth"))?;
        let no_random = |_| DeviceOutcome::later("the system's random number generator failed", None);
        let mut salt = [0; SALT_BYTES];
        aws_lc_rs::rand::fill(&mut salt).map_err(no_random)?;
        let sender = PrivateKey::generate(&ECDH_P256).map_err(no_random)?;
        let receiver = BrowserKeys { point: &point, auth: &auth };
        encrypt(&receiver, &sender, &salt, content).map_err(|unusable| DeviceOutcome::refused(unusable.to_string()))
    }

    fn token(&self, origin: &str, now: Timestamp) -> Result<Arc<str>, DeviceOutcome> {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tokens.get(origin).filter(|known| known.is_younger_than(VAPID_TOKEN_FOR, now)) {
            return Ok(Arc::clone(&known.text));
        }
        let expires = now.as_millis().div_euclid(1000) + VAPID_TOKEN_VALID.as_secs() as i64;
        let claims = json!({ "aud": origin, "exp": expires, "sub": self.subject });
        let text: Arc<str> = self.key.token(None, &claims)?.into();
        if tokens.len() >= VAPID_TOKENS_MAX {
            tokens.clear();
        }
        tokens.insert(origin.to_owned(), SignedToken { text: Arc::clone(&text), made: now });
        Ok(text)
    }
}

/// The origin of a URL in the form of browsers, without the default port. `None`: the URL cannot be called.
pub(super) fn origin_of(url: &str) -> Option<String> {
    whimbrel_api::endpoint::check_url(url).ok()?;
    let uri: Uri = url.parse().ok()?;
    let (scheme, host) = (uri.scheme_str()?.to_ascii_lowercase(), uri.host()?.to_ascii_lowercase());
    let usual = if scheme == "https" { 443 } else { 80 };
    Some(match uri.port_u16().filter(|port| *port != usual) {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    })
}

/// Decodes base64 of either alphabet, padded or not, because browsers and libraries differ.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let text: String = text.trim_end_matches('=').replace('+', "-").replace('/', "_");
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Classifies a response of a push service.
fn classify_response(answer: &ProviderResponse) -> ProviderOutcome {
    let status = answer.status;
    // The body is left out: a device chose the URL, and must not be able to make operators read text from an internal server.
    let detail = format!("the push service answered {status}");
    match status {
        200..=299 => DeviceOutcome::Sent.into(),
        404 | 410 => DeviceOutcome::gone(detail).into(),
        429 => ProviderOutcome::throttled(detail, answer.retry_after()),
        500..=599 => {
            let wait = answer.retry_after();
            let provider_wait = wait.map(|wait| wait.min(ORIGIN_PAUSE_MAX));
            ProviderOutcome { provider_wait, ..DeviceOutcome::later(detail, wait).into() }
        }
        408 | 425 => DeviceOutcome::later(detail, None).into(),
        // The payload is too large or invalid for this service.
        400 | 411 | 413..=415 | 422 | 431 => DeviceOutcome::refused(detail).into(),
        // 401, 403: the subscription has another VAPID key. Others: the URL is not a push service, or not ready.
        _ => DeviceOutcome::misconfigured(detail).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_the_form_of_browsers() {
        assert_eq!(origin_of("https://Push.example.com/a?b"), Some("https://push.example.com".to_owned()));
        assert_eq!(origin_of("https://push.example.com:443/"), Some("https://push.example.com".to_owned()));
        assert_eq!(origin_of("http://127.0.0.1:9000/x"), Some("http://127.0.0.1:9000".to_owned()));
        for bad in ["", "push.example.com", "ftp://a/"] {
            assert_eq!(origin_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn keys_are_decoded_in_either_alphabet() {
        assert_eq!(decoded("-_8"), Some(vec![0xfb, 0xff]));
        assert_eq!(decoded("+/8="), Some(vec![0xfb, 0xff]));
        assert_eq!(decoded("?"), None);
    }
}
