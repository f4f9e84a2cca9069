//! The role `horn`: notifies offline devices through APNs, FCM, Web Push and plain HTTP.
//!
//! A [`Horn`] receives one notice per call and returns an outcome for each device; [`outcome`] defines the result for the notice. It has no
//! queue and never retries: the dispatcher of the subscription `_notices` does both. Its memory is bounded and may be lost: which device
//! received which notice, and which providers asked for a pause.
//!
//! It classifies a provider's errors. A device that the provider reports as gone is removed from the registry, if it still has the same
//! token. A provider that asks for a delay is not called until then. A setting that the provider rejects may be corrected, so the notice is
//! retried. A permanent error is reported with the provider's reason.
//!
//! A notice passes [`horn_callbacks`], [`device_notice`] and one of [`apns`], [`fcm`], [`webpush`], [`plain_http`] with
//! [`provider_client`].

mod apns;
mod device_notice;
mod device_throttle;
mod encryption;
mod fcm;
mod google_token;
mod horn_callbacks;
mod jwt;
mod limits;
pub mod metrics;
pub mod outcome;
mod pauses;
mod plain_http;
mod provider_backoff;
mod provider_client;
mod provider_errors;
mod provider_outcome;
mod remote_horns;
mod sent_notices;
pub mod settings;
mod webpush;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::ports::{Device, Devices, DevicesError, Provider};
use whimbrel_model::push::{Notice, NoticeDevice};
use whimbrel_model::{Clock, EventSink, SystemClock, Timestamp};

use self::metrics::HornMetrics;
use apns::Apns;
use device_notice::DeviceNotice;
use device_throttle::DeviceThrottle;
use fcm::Fcm;
use pauses::Pauses;
use plain_http::PlainHttp;
use provider_backoff::ProviderBackoff;
use provider_client::{HttpVersions, ProviderClient};
use provider_errors::ProviderErrors;
use provider_outcome::ProviderOutcome;
use sent_notices::SentNotices;
use webpush::{WebPush, origin_of};

pub use self::metrics::NAMES as METRIC_NAMES;
pub use horn_callbacks::HornCallbacks;
pub use outcome::{DeviceOutcome, DeviceResult, NoticeOutcome, NoticeResult};
pub use remote_horns::{HORN_ROLE, RemoteHorns};
pub use settings::{
    APNS_URL, ApnsSettings, FCM_URL, FcmSettings, HornError, HornSettings, HttpSettings, ServiceAccount,
    WebPushSettings,
};

/// Whether devices of a platform get notifications, by the platform's settings.
pub type IsNotifiable = Arc<dyn Fn(&Platform) -> bool + Send + Sync>;

pub struct HornParts {
    pub devices: Arc<dyn Devices>,
    pub is_notifiable: IsNotifiable,
    pub clock: Arc<dyn Clock>,
    /// Receives an event when devices cannot be notified.
    pub events: EventSink,
}

pub struct Horn {
    parts: HornParts,
    providers: Providers,
    timeout: Duration,
    pauses: Mutex<Pauses>,
    backoff: Mutex<ProviderBackoff>,
    device_throttle: Mutex<DeviceThrottle>,
    sent_notices: Mutex<SentNotices>,
    provider_errors: Mutex<ProviderErrors>,
    metrics: HornMetrics,
}

/// The providers that have settings.
struct Providers {
    apns: Option<Apns>,
    fcm: Option<Fcm>,
    webpush: Option<WebPush>,
    http: Option<PlainHttp>,
}

impl Providers {
    fn new(settings: HornSettings, clock: &Arc<dyn Clock>) -> Result<Self, HornError> {
        let HornSettings { apns, fcm, webpush, http, guard, extra_roots_pem, timeout: _ } = settings;
        let client = |versions, guard| {
            ProviderClient::new(versions, guard, &extra_roots_pem, Arc::clone(clock)).map_err(HornError::Tls)
        };
        let apns = apns.map(|apns| Apns::new(apns, client(HttpVersions::Http2, None)?)).transpose()?;
        let fcm = fcm.map(|fcm| Fcm::new(fcm, client(HttpVersions::Either, None)?)).transpose()?;
        // The URLs of Web Push and plain HTTP come from devices, so their addresses are checked.
        let guarded = client(HttpVersions::Either, Some(guard))?;
        let webpush = webpush.map(|webpush| WebPush::new(webpush, guarded.clone())).transpose()?;
        let http = http.map(|http| PlainHttp::new(&http, guarded)).transpose()?;
        Ok(Self { apns, fcm, webpush, http })
    }

    /// Sends a notice through the provider of its device. `None`: the provider has no settings.
    async fn send(&self, delivery: &DeviceNotice<'_>, deadline: tokio::time::Instant) -> Option<ProviderOutcome> {
        let outcome = match delivery.device.provider {
            Provider::Apns => self.apns.as_ref()?.send(delivery, deadline).await,
            Provider::Fcm => self.fcm.as_ref()?.send(delivery, deadline).await,
            Provider::Webpush => self.webpush.as_ref()?.send(delivery, deadline).await,
            Provider::Http => self.http.as_ref()?.send(delivery, deadline).await,
        };
        Some(outcome.unwrap_or_else(|failed| failed))
    }
}

/// Checks that a horn can be created with these settings.
pub fn check(settings: HornSettings) -> Result<(), HornError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    Providers::new(settings, &clock).map(drop)
}

/// A notice that failed before any device was called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    #[error("the notice cannot be decoded: {0}")]
    Garbled(String),
    #[error(transparent)]
    Devices(#[from] DevicesError),
}

impl Horn {
    /// The metrics recorder must be installed first; otherwise nothing is counted.
    pub fn new(settings: HornSettings, parts: HornParts) -> Result<Self, HornError> {
        let timeout = settings.timeout;
        let providers = Providers::new(settings, &parts.clock)?;
        let (pauses, backoff, device_throttle) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (sent_notices, provider_errors) = (Mutex::default(), Mutex::default());
        let metrics = HornMetrics::new();
        Ok(Self { parts, providers, timeout, pauses, backoff, device_throttle, sent_notices, provider_errors, metrics })
    }

    /// Notifies the user's devices that the notice is for, all concurrently.
    ///
    /// *Cancellation*: dropping the future aborts the calls. Some devices may have been notified.
    pub async fn notify(&self, notice: &Notice) -> Result<NoticeResult, NotifyError> {
        let now = self.parts.clock.now();
        let notified = if notice.expires_at_ms <= now.as_millis() {
            NoticeResult::Expired
        } else {
            let uid = Uid::new(&notice.uid).map_err(|bad| NotifyError::Garbled(bad.to_string()))?;
            let devices = self.parts.devices.of(&uid).await?;
            let wanted = devices.iter().filter(|device| is_for(notice, device));
            let woken = wanted.filter(|device| (self.parts.is_notifiable)(&device.platform));
            NoticeResult::Devices(join_all(woken.map(|device| self.send_to(&uid, notice, device, now))).await)
        };
        self.metrics.notice(notified.sum());
        Ok(notified)
    }

    async fn send_to(&self, uid: &Uid, notice: &Notice, device: &Device, now: Timestamp) -> DeviceResult {
        let delivery = DeviceNotice::new(notice, device, now);
        let outcome = if lock(&self.sent_notices).has(&delivery.name) {
            DeviceOutcome::AlreadySent
        } else {
            self.send(&delivery).await
        };
        match &outcome {
            DeviceOutcome::Sent => lock(&self.sent_notices).put(delivery.name),
            DeviceOutcome::Gone { reason } => self.remove_device(uid, device, reason).await,
            DeviceOutcome::Misconfigured { .. } | DeviceOutcome::Refused { .. } | DeviceOutcome::NotConfigured => {
                let event = lock(&self.provider_errors).about(device.provider, &outcome, now);
                event.into_iter().for_each(|event| (self.parts.events)(event));
            }
            DeviceOutcome::AlreadySent | DeviceOutcome::Later { .. } => {}
        }
        self.metrics.device(device.provider, &outcome);
        let Device { device, platform, provider, .. } = device.clone();
        DeviceResult { device, platform, provider, outcome }
    }

    async fn send(&self, delivery: &DeviceNotice<'_>) -> DeviceOutcome {
        let provider = delivery.device.provider;
        let endpoint = backoff_key(delivery.device);
        if let Some(endpoint) = &endpoint {
            if let Some(left) = lock(&self.pauses).left(endpoint, delivery.now) {
                return DeviceOutcome::later("the provider asked for a pause", Some(left));
            }
            if let Some(left) = lock(&self.backoff).left(endpoint, delivery.now) {
                return DeviceOutcome::later(
                    "the endpoint did not answer several times; calls to it are paused",
                    Some(left),
                );
            }
            if let Some(left) = lock(&self.device_throttle).left(&delivery.device.token, delivery.now) {
                return DeviceOutcome::later("the provider asked for a pause for this device", Some(left));
            }
        }
        let began = Instant::now();
        let deadline = (began + self.timeout).into();
        let Some(classified) = self.providers.send(delivery, deadline).await else {
            return DeviceOutcome::NotConfigured;
        };
        self.metrics.took(provider, began.elapsed());
        if let Some(endpoint) = endpoint {
            self.update_backoff(&endpoint, &delivery.device.token, &classified);
        }
        classified.outcome
    }

    /// Updates the back-off state from a response or its absence.
    fn update_backoff(&self, endpoint: &str, token: &str, classified: &ProviderOutcome) {
        let now = self.parts.clock.now();
        if classified.is_silent {
            if let Some(wait) = lock(&self.backoff).silent(endpoint, now) {
                tracing::warn!(endpoint, ?wait, "the endpoint does not answer notices: calls to it are paused");
            }
            return;
        }
        lock(&self.backoff).answered(endpoint);
        let by_devices =
            classified.device_wait.and_then(|wait| lock(&self.device_throttle).device(endpoint, token, wait, now));
        if let Some(wait) = classified.provider_wait.or(by_devices) {
            tracing::warn!(endpoint, ?wait, "a provider asked for a pause");
            lock(&self.pauses).ask(endpoint, wait, now);
        }
    }

    /// Removes a device that its provider does not know any more, unless the device has another token by now.
    async fn remove_device(&self, uid: &Uid, device: &Device, reason: &str) {
        let provider = device.provider.word();
        match self.parts.devices.remove(uid, &device.device, Some(&device.token)).await {
            Ok(true) => tracing::debug!(%uid, device = device.device, provider, reason, "removed an expired device"),
            Ok(false) => {}
            // The next notice for the device gets the same answer and retries the removal.
            Err(error) => tracing::warn!(%error, provider, "cannot remove an expired device"),
        }
    }
}

/// The key of the back-off state: a provider, or an origin of Web Push or plain HTTP. `None`: the URL cannot be called.
fn backoff_key(device: &Device) -> Option<String> {
    match device.provider {
        Provider::Apns | Provider::Fcm => Some(device.provider.word().to_owned()),
        Provider::Webpush => origin_of(&device.token),
        // Separate from a push service of the same origin: the answer of one URL counts for its device only.
        Provider::Http => origin_of(&device.token).map(|origin| format!("plain {origin}")),
    }
}

fn is_for(notice: &Notice, device: &Device) -> bool {
    let platform = &device.platform;
    let wanted = notice.platforms.as_ref().is_none_or(|wanted| wanted.contains(platform));
    let has_it = |other: &NoticeDevice| other.platform == *platform && other.device == device.device;
    wanted && !notice.except_platforms.contains(platform) && !notice.except_devices.iter().any(has_it)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
