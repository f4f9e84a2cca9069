//! Plain HTTP: a notice as JSON to the device's own URL, signed as Standard Webhooks says where there is a secret.

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::Value;
use tokio::time::Instant;

use super::client::{Answer, Client};
use super::judged::Judged;
use super::letter::Letter;
use super::outcome::Fate;
use super::settings::{HornError, HttpSettings};
use crate::worker::{Signers, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};
use whimbrel_api::endpoint::check_url;

pub(super) struct PlainHttp {
    signers: Signers,
    client: Client,
}

impl PlainHttp {
    pub(super) fn new(settings: &HttpSettings, client: Client) -> Result<Self, HornError> {
        let wrong = |bad: whimbrel_api::endpoint::BadSecret| HornError::Setting {
            provider: "http",
            field: "secret",
            why: bad.to_string(),
        };
        Ok(Self { signers: Signers::new(&settings.secrets).map_err(wrong)?, client })
    }

    pub(super) async fn send(&self, letter: &Letter<'_>, deadline: Instant) -> Judged {
        let request = match self.request(letter) {
            Ok(request) => request,
            Err(fate) => return fate.into(),
        };
        match self.client.ask(request, deadline).await {
            Ok(answer) => judge(&answer),
            Err(no_answer) => no_answer.into(),
        }
    }

    fn request(&self, letter: &Letter<'_>) -> Result<Request<Full<Bytes>>, Fate> {
        check_url(&letter.device.token).map_err(|bad| Fate::refused(bad.to_string()))?;
        let mut content = letter.content();
        content.insert("uid".to_owned(), letter.notice.uid.clone().into());
        content.insert("device".to_owned(), letter.device.device.clone().into());
        content.insert("platform".to_owned(), letter.device.platform.as_str().into());
        content.insert("expires_at_ms".to_owned(), letter.notice.expires_at_ms.into());
        let body = Value::Object(content).to_string();
        let id = letter.name.to_string();
        let mut signature = BytesMut::new();
        self.signers.write(&id, letter.now, body.as_bytes(), &mut signature);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(letter.device.token.split('#').next().unwrap_or_default())
            .header(CONTENT_TYPE, "application/json")
            .header(WEBHOOK_ID, id)
            .header(WEBHOOK_TIMESTAMP, letter.now.as_millis().div_euclid(1000));
        if !signature.is_empty() {
            request = request.header(WEBHOOK_SIGNATURE, &signature[..]);
        }
        request.body(Full::new(body.into())).map_err(|error| Fate::refused(error.to_string()))
    }
}

/// What an answer means. Whoever is at the URL speaks for this device alone.
fn judge(answer: &Answer) -> Judged {
    let said = format!("the device's URL answered {}", answer.status);
    match answer.status {
        200..=299 => Fate::Sent.into(),
        410 => Fate::gone(said).into(),
        408 | 425 | 429 | 500..=599 => Fate::later(said, answer.retry_after()).into(),
        // It does not like what it was sent.
        400 | 411 | 413..=415 | 422 | 431 => Fate::refused(said).into(),
        // Nobody is there, or wants another key: a deployment away from working. Redirects are not followed.
        _ => Fate::misconfigured(said).into(),
    }
}
