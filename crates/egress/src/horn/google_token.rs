//! Google access tokens for a service account: a signed claim is exchanged for a token, which is cached until shortly before it expires.

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

use super::jwt::SigningKey;
use super::limits::{GOOGLE_GRANT_FOR, GOOGLE_TOKEN_MARGIN};
use super::outcome::DeviceOutcome;
use super::provider_client::{ProviderClient, ProviderResponse};
use super::provider_outcome::ProviderOutcome;
use super::settings::{BadKey, ServiceAccount};

const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";
/// `urn:ietf:params:oauth:grant-type:jwt-bearer`, form-encoded.
const GRANT_TYPE: &str = "urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer";

pub(super) struct GoogleTokens {
    account: ServiceAccount,
    key: SigningKey,
    client: ProviderClient,
    /// The lock is held while a new token is requested, so that concurrent callers wait for the same token.
    kept: Mutex<Option<CachedToken>>,
}

struct CachedToken {
    text: Arc<str>,
    until: Timestamp,
}

#[derive(Deserialize)]
struct TokenGrant {
    access_token: String,
    expires_in: u64,
}

impl GoogleTokens {
    pub(super) fn new(account: ServiceAccount, client: ProviderClient) -> Result<Self, BadKey> {
        let key = SigningKey::rs256_from_pem(account.private_key.as_bytes())?;
        Ok(Self { account, key, client, kept: Mutex::default() })
    }

    /// A valid token, from the cache or new. `refused` is a token that FCM rejected; it is not returned again.
    pub(super) async fn token(
        &self,
        now: Timestamp,
        refused: Option<&Arc<str>>,
        deadline: Instant,
    ) -> Result<Arc<str>, ProviderOutcome> {
        let mut kept = self.kept.lock().await;
        if let Some(known) = kept.as_ref().filter(|known| now < known.until && refused != Some(&known.text)) {
            return Ok(Arc::clone(&known.text));
        }
        *kept = None;
        let request = self.request(now).map_err(DeviceOutcome::from)?;
        let answer = self.client.ask(request, deadline).await?;
        let TokenGrant { access_token, expires_in } = granted(&answer)?;
        let good_for = expires_in.saturating_sub(GOOGLE_TOKEN_MARGIN.as_secs()).saturating_mul(1000);
        let until = now.as_millis().saturating_add(i64::try_from(good_for).unwrap_or(i64::MAX));
        let text: Arc<str> = access_token.into();
        *kept = Some(CachedToken { text: Arc::clone(&text), until: Timestamp::from_millis(until) });
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

fn granted(answer: &ProviderResponse) -> Result<TokenGrant, ProviderOutcome> {
    let status = answer.status;
    let detail = || {
        let text: String = String::from_utf8_lossy(&answer.body).chars().take(100).collect();
        format!("Google granted no access token: {status} {text}")
    };
    match status {
        200 => serde_json::from_slice(&answer.body).map_err(|_| DeviceOutcome::later(detail(), None).into()),
        429 | 500..=599 => Err(ProviderOutcome::provider_later(detail(), answer.retry_after())),
        // The key was revoked, the account was deleted, or the clock is wrong.
        _ => Err(DeviceOutcome::misconfigured(detail()).into()),
    }
}
