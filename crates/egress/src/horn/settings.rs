//! What the horn needs to know: the providers' keys and where they are. A provider that is not here is not called.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use whimbrel_model::subscription::SigningSecret;

use super::limits::TIMEOUT_DEFAULT;
use whimbrel_api::endpoint::AddressGuard;

/// Where APNs is; `https://api.sandbox.push.apple.com` is for apps under development.
pub const APNS_URL: &str = "https://api.push.apple.com";
/// Where FCM is.
pub const FCM_URL: &str = "https://fcm.googleapis.com";

#[derive(Debug, Clone)]
pub struct HornSettings {
    pub apns: Option<ApnsSettings>,
    pub fcm: Option<FcmSettings>,
    pub webpush: Option<WebPushSettings>,
    pub http: Option<HttpSettings>,
    /// Where Web Push and plain HTTP may go: devices bring those places themselves, see [`AddressGuard::for_devices`].
    pub guard: AddressGuard,
    /// Certificates in PEM that are believed beside those of the machine.
    pub extra_roots_pem: Vec<u8>,
    /// For one device, everything included.
    pub timeout: Duration,
}

impl Default for HornSettings {
    fn default() -> Self {
        Self {
            apns: None,
            fcm: None,
            webpush: None,
            http: Some(HttpSettings::default()),
            guard: AddressGuard::default_for_devices(),
            extra_roots_pem: Vec::new(),
            timeout: TIMEOUT_DEFAULT,
        }
    }
}

#[derive(Clone)]
pub struct ApnsSettings {
    /// The key for tokens, in PEM (`.p8`).
    pub key_pem: String,
    pub key_id: String,
    pub team_id: String,
    /// The app's bundle id, where a device does not bring another.
    pub topic: String,
    pub base_url: String,
}

#[derive(Clone)]
pub struct FcmSettings {
    pub service_account: ServiceAccount,
    pub base_url: String,
}

/// What of a service account's JSON file is needed; the rest of it is left aside.
#[derive(Clone, Deserialize)]
pub struct ServiceAccount {
    pub project_id: String,
    pub client_email: String,
    /// In PEM.
    pub private_key: String,
    #[serde(default)]
    pub private_key_id: Option<String>,
    pub token_uri: String,
}

#[derive(Clone)]
pub struct WebPushSettings {
    /// The VAPID key: 32 bytes in URL-safe base64, or PEM.
    pub private_key: String,
    /// Whom a push service may turn to: `mailto:` or `https:`.
    pub subject: String,
}

#[derive(Debug, Clone, Default)]
pub struct HttpSettings {
    /// Each that is live signs as Standard Webhooks says, the newest first.
    pub secrets: Vec<SigningSecret>,
}

// Keys are not shown where settings are.
impl fmt::Debug for ApnsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApnsSettings({}, key {} of team {}, {})", self.topic, self.key_id, self.team_id, self.base_url)
    }
}

impl fmt::Debug for FcmSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FcmSettings({}, {})", self.service_account.project_id, self.base_url)
    }
}

impl fmt::Debug for WebPushSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebPushSettings({})", self.subject)
    }
}

/// A key that cannot sign.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadKey(pub(super) String);

/// A horn that cannot be: a setting is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HornError {
    #[error("[horn.{provider}] has a key that cannot be used: {why}")]
    Key { provider: &'static str, why: BadKey },
    #[error("[horn.{provider}] {field} cannot be used: {why}")]
    Setting { provider: &'static str, field: &'static str, why: String },
    #[error("notices cannot be sent: {0}")]
    Tls(String),
}
