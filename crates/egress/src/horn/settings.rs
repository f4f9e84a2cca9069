//! The settings of the horn: keys and URLs of the providers. A provider without settings is not called.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use whimbrel_model::subscription::SigningSecret;

use super::limits::TIMEOUT_DEFAULT;
use whimbrel_api::endpoint::AddressGuard;

/// The URL of APNs. `https://api.sandbox.push.apple.com` is for apps under development.
pub const APNS_URL: &str = "https://api.push.apple.com";
pub const FCM_URL: &str = "https://fcm.googleapis.com";

#[derive(Debug, Clone)]
pub struct HornSettings {
    pub apns: Option<ApnsSettings>,
    pub fcm: Option<FcmSettings>,
    pub webpush: Option<WebPushSettings>,
    pub http: Option<HttpSettings>,
    /// The addresses that Web Push and plain HTTP may reach, because devices register these URLs. See [`AddressGuard::for_devices`].
    pub guard: AddressGuard,
    /// Root certificates in PEM that are trusted in addition to those of the machine.
    pub extra_roots_pem: Vec<u8>,
    /// The timeout of all work for one device.
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
    /// The app's bundle id, unless a device was registered with another.
    pub topic: String,
    pub base_url: String,
}

#[derive(Clone)]
pub struct FcmSettings {
    pub service_account: ServiceAccount,
    pub base_url: String,
}

/// The used fields of a service account's JSON file.
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
    /// The contact for operators of push services: a `mailto:` or `https:` URL.
    pub subject: String,
}

#[derive(Debug, Clone, Default)]
pub struct HttpSettings {
    /// Every secret that has not expired signs, by Standard Webhooks. The newest first.
    pub secrets: Vec<SigningSecret>,
}

// `Debug` output must not contain keys.
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

/// A setting from which no horn can be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HornError {
    #[error("[horn.{provider}] the key cannot be used: {why}")]
    Key { provider: &'static str, why: BadKey },
    #[error("[horn.{provider}] {field} cannot be used: {why}")]
    Setting { provider: &'static str, field: &'static str, why: String },
    #[error("notices cannot be sent: {0}")]
    Tls(String),
}
