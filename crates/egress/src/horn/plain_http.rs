//! Plain HTTP: sends a notice as JSON to the device's own URL, with a Standard Webhooks signature if a secret is set.

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::Value;
use tokio::time::Instant;

use super::device_notice::DeviceNotice;
use super::outcome::DeviceOutcome;
use super::provider_client::{ProviderClient, ProviderResponse};
use super::provider_outcome::{ProviderOutcome, SendResult};
use super::settings::{HornError, HttpSettings};
use crate::worker::{Signers, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};
use whimbrel_api::endpoint::check_url;

pub(super) struct PlainHttp {
    signers: Signers,
    client: ProviderClient,
}

impl PlainHttp {
    pub(super) fn new(settings: &HttpSettings, client: ProviderClient) -> Result<Self, HornError> {
        let wrong = |bad: whimbrel_api::endpoint::BadSecret| HornError::Setting {
            provider: "http",
            field: "secret",
            why: bad.to_string(),
        };
        Ok(Self { signers: Signers::new(&settings.secrets).map_err(wrong)?, client })
    }

    pub(super) async fn send(&self, delivery: &DeviceNotice<'_>, deadline: Instant) -> SendResult {
        Ok(classify_response(&self.client.ask(self.request(delivery)?, deadline).await?))
    }

    fn request(&self, delivery: &DeviceNotice<'_>) -> Result<Request<Full<Bytes>>, DeviceOutcome> {
        check_url(&delivery.device.token).map_err(|bad| DeviceOutcome::refused(bad.to_string()))?;
        let mut content = delivery.content();
        content.insert("uid".to_owned(), delivery.notice.uid.clone().into());
        content.insert("device".to_owned(), delivery.device.device.clone().into());
        content.insert("platform".to_owned(), delivery.device.platform.as_str().into());
        content.insert("expires_at_ms".to_owned(), delivery.notice.expires_at_ms.into());
        let body = Value::Object(content).to_string();
        let id = delivery.name.to_string();
        let mut signature = BytesMut::new();
        self.signers.write(&id, delivery.now, body.as_bytes(), &mut signature);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(delivery.device.token.split('#').next().unwrap_or_default())
            .header(CONTENT_TYPE, "application/json")
            .header(WEBHOOK_ID, id)
            .header(WEBHOOK_TIMESTAMP, delivery.now.as_millis().div_euclid(1000));
        if !signature.is_empty() {
            request = request.header(WEBHOOK_SIGNATURE, &signature[..]);
        }
        request.body(Full::new(body.into())).map_err(|error| DeviceOutcome::refused(error.to_string()))
    }
}

/// Classifies a response. A device's URL affects the outcome of that device only.
fn classify_response(answer: &ProviderResponse) -> ProviderOutcome {
    let detail = format!("the device's URL answered {}", answer.status);
    match answer.status {
        200..=299 => DeviceOutcome::Sent.into(),
        410 => DeviceOutcome::gone(detail).into(),
        408 | 425 | 429 | 500..=599 => DeviceOutcome::later(detail, answer.retry_after()).into(),
        // The endpoint rejects the request.
        400 | 411 | 413..=415 | 422 | 431 => DeviceOutcome::refused(detail).into(),
        // Not found, or not authorized: the deployment needs a correction. Redirects are not followed.
        _ => DeviceOutcome::misconfigured(detail).into(),
    }
}
