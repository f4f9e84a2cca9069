//! Access tokens of Google for a service account: a signed claim is traded for a token, which is kept until shortly before its end.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::Instant;
use whimbrel_model::Timestamp;

use super::client::{Answer, Client};
use super::judged::Judged;
use super::jwt::SigningKey;
use super::limits::{GOOGLE_GRANT_FOR, GOOGLE_TOKEN_MARGIN};
use super::outcome::Fate;
use super::settings::{BadKey, ServiceAccount};

const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";
/// `urn:ietf:params:oauth:grant-type:jwt-bearer`, as a form has it.
const GRANT_TYPE: &str = "urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer";

pub(super) struct GoogleTokens {
    account: ServiceAccount,
    key: SigningKey,
    client: Client,
    /// Whoever asks for a new one holds this, so that the others wait for the same one.
    kept: Mutex<Option<Kept>>,
}

struct Kept {
    text: Arc<str>,
    until: Timestamp,
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: u64,
}

impl GoogleTokens {
    pub(super) fn new(account: ServiceAccount, client: Client) -> Result<Self, BadKey> {
        let key = SigningKey::rs256_from_pem(account.private_key.as_bytes())?;
        Ok(Self { account, key, client, kept: Mutex::default() })
    }

    /// A token that is good for a while. One that was refused is not given again.
    pub(super) async fn token(
        &self,
        now: Timestamp,
        refused: Option<&Arc<str>>,
        deadline: Instant,
    ) -> Result<Arc<str>, Judged> {
        let mut kept = self.kept.lock().await;
        if let Some(known) = kept.as_ref().filter(|known| now < known.until && refused != Some(&known.text)) {
            return Ok(Arc::clone(&known.text));
        }
        *kept = None;
        let request = self.request(now).map_err(|bad| Judged::from(Fate::misconfigured(bad.to_string())))?;
        let answer = self.client.ask(request, deadline).await.map_err(Judged::from)?;
        let Granted { access_token, expires_in } = granted(&answer)?;
        let good_for = expires_in.saturating_sub(GOOGLE_TOKEN_MARGIN.as_secs()).saturating_mul(1000);
        let until = now.as_millis().saturating_add(i64::try_from(good_for).unwrap_or(i64::MAX));
        let text: Arc<str> = access_token.into();
        *kept = Some(Kept { text: Arc::clone(&text), until: Timestamp::from_millis(until) });
        Ok(text)
    }

    fn request(&self, now: Timestamp) -> Result<Request<Full<Bytes>>, BadKey> {
        let issued = now.as_millis().div_euclid(1000);
        let claims = json!({
            "iss": self.account.client_email,
            "scope": SCOPE,
            "aud": self.account.token_uri,
            "iat": issued,
            "exp": issued + GOOGLE_GRANT_FOR.as_secs() as i64,
        });
        let assertion = self.key.token(self.account.private_key_id.as_deref(), &claims)?;
        let form = format!("grant_type={GRANT_TYPE}&assertion={assertion}");
        Request::builder()
            .method(Method::POST)
            .uri(&self.account.token_uri)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(form.into()))
            .map_err(|error| BadKey(error.to_string()))
    }
}

fn granted(answer: &Answer) -> Result<Granted, Judged> {
    let status = answer.status;
    let said = || {
        let text: String = String::from_utf8_lossy(&answer.body).chars().take(100).collect();
        format!("Google grants no access token: {status} {text}")
    };
    match status {
        200 => serde_json::from_slice(&answer.body).map_err(|_| Fate::later(said(), None).into()),
        429 | 500..=599 => Err(Judged::everybody_later(said(), answer.retry_after())),
        // A key that was revoked, an account that is gone, a clock that is wrong.
        _ => Err(Fate::misconfigured(said()).into()),
    }
}
