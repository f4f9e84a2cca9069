//! FCM, by its HTTP v1 interface. What its errors mean is decided in [`judge`], which is pure.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{Answer, Client};
use super::google_token::GoogleTokens;
use super::judged::Judged;
use super::letter::Letter;
use super::limits::{APNS_COLLAPSE_BYTES_MAX, FCM_TTL_SECONDS_MAX, QUOTA_PAUSE};
use super::outcome::Fate;
use super::settings::{FcmSettings, HornError};

pub(super) struct Fcm {
    url: String,
    tokens: GoogleTokens,
    client: Client,
}

impl Fcm {
    pub(super) fn new(settings: FcmSettings, client: Client) -> Result<Self, HornError> {
        let account = &settings.service_account;
        let wrong = |field, why: String| HornError::Setting { provider: "fcm", field, why };
        for (field, url) in [("base_url", &settings.base_url), ("service_account.token_uri", &account.token_uri)] {
            whimbrel_api::endpoint::check_url(url).map_err(|bad| wrong(field, bad.to_string()))?;
        }
        let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b':' | b'.');
        if account.project_id.is_empty() || !account.project_id.bytes().all(is_name) {
            return Err(wrong("service_account.project_id", "it is no project's id".to_owned()));
        }
        let base = settings.base_url.trim_end_matches('/');
        let url = format!("{base}/v1/projects/{}/messages:send", account.project_id);
        let tokens = GoogleTokens::new(settings.service_account, client.clone());
        let tokens = tokens.map_err(|why| HornError::Key { provider: "fcm", why })?;
        Ok(Self { url, tokens, client })
    }

    pub(super) async fn send(&self, letter: &Letter<'_>, deadline: Instant) -> Judged {
        self.try_send(letter, deadline).await.map_or_else(|judged| judged, |answer| judge(&answer))
    }

    /// A token that FCM does not take any more is made anew, once.
    async fn try_send(&self, letter: &Letter<'_>, deadline: Instant) -> Result<Answer, Judged> {
        let token = self.tokens.token(letter.now, None, deadline).await?;
        let answer = self.client.ask(self.request(letter, &token)?, deadline).await?;
        if answer.status != 401 || code(&answer) == "THIRD_PARTY_AUTH_ERROR" {
            return Ok(answer);
        }
        let renewed = self.tokens.token(letter.now, Some(&token), deadline).await?;
        Ok(self.client.ask(self.request(letter, &renewed)?, deadline).await?)
    }

    fn request(&self, letter: &Letter<'_>, token: &str) -> Result<Request<Full<Bytes>>, Judged> {
        let refused = |error: http::Error| Judged::from(Fate::refused(error.to_string()));
        let mut authorization =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|error| refused(error.into()))?;
        authorization.set_sensitive(true);
        Request::builder()
            .method(Method::POST)
            .uri(&self.url)
            .header(AUTHORIZATION, authorization)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(message(letter).to_string().into()))
            .map_err(refused)
    }
}

/// FCM takes `data` with texts only: the notice's own stands in it as JSON.
fn message(letter: &Letter<'_>) -> Value {
    let notify = &letter.notice.notify;
    let mut data = json!({ "id": letter.notice.id });
    if let Some(text) = &notify.data {
        data["data"] = text.as_str().into();
    }
    let mut android = json!({
        "priority": if letter.is_shown() { "HIGH" } else { "NORMAL" },
        "ttl": format!("{}s", letter.seconds_left().min(FCM_TTL_SECONDS_MAX)),
    });
    if let Some(key) = &letter.notice.collapse_key {
        android["collapse_key"] = key.as_str().into();
    }
    let mut message = json!({ "token": letter.device.token, "data": data });
    if letter.is_shown() {
        let mut notification = json!({});
        if let Some(title) = &notify.title {
            notification["title"] = title.as_str().into();
        }
        if let Some(body) = &notify.body {
            notification["body"] = body.as_str().into();
        }
        message["notification"] = notification;
        // What is shown under the same tag takes the other's place: FCM's collapse keys are few, and a repeat needs one of its own.
        android["notification"] = json!({ "tag": letter.collapse_name(APNS_COLLAPSE_BYTES_MAX) });
    }
    message["android"] = android;
    json!({ "message": message })
}

#[derive(Deserialize)]
struct Said {
    error: SaidError,
}

#[derive(Deserialize)]
struct SaidError {
    #[serde(default)]
    status: String,
    #[serde(default)]
    details: Vec<Detail>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    #[serde(default)]
    error_code: Option<String>,
    #[serde(default)]
    field_violations: Vec<Violation>,
}

#[derive(Deserialize)]
struct Violation {
    #[serde(default)]
    field: String,
}

fn error_of(answer: &Answer) -> Option<SaidError> {
    serde_json::from_slice::<Said>(&answer.body).ok().map(|said| said.error)
}

/// FCM's own code where it said one, otherwise Google's general one.
fn code(answer: &Answer) -> String {
    let Some(error) = error_of(answer) else { return String::new() };
    error.details.into_iter().find_map(|detail| detail.error_code).unwrap_or(error.status)
}

/// What an answer of FCM means.
fn judge(answer: &Answer) -> Judged {
    let (status, code) = (answer.status, code(answer));
    let said = format!("FCM answered {status} {code}");
    let is_about_token = || {
        let details = error_of(answer).map(|error| error.details).unwrap_or_default();
        details.iter().flat_map(|detail| &detail.field_violations).any(|violation| violation.field == "message.token")
    };
    match (status, &*code) {
        (200, _) => Fate::Sent.into(),
        // A 404 without one of FCM's codes is somebody else's, such as a wrong `base_url`: no reason to forget devices.
        (_, "UNREGISTERED") | (404, "NOT_FOUND") => Fate::gone(said).into(),
        (400, _) if is_about_token() => Fate::gone(said).into(),
        (429, _) | (_, "QUOTA_EXCEEDED") => {
            Judged::everybody_later(said, Some(answer.retry_after().unwrap_or(QUOTA_PAUSE)))
        }
        (500..=599, _) | (_, "UNAVAILABLE" | "INTERNAL") => Judged::everybody_later(said, answer.retry_after()),
        // The notice itself, or a device of another project.
        (400, "INVALID_ARGUMENT") | (413, _) | (_, "SENDER_ID_MISMATCH") => Fate::refused(said).into(),
        // A service account, what it may do, a URL.
        _ => Fate::misconfigured(said).into(),
    }
}
