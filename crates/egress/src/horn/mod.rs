//! The role `horn`: wakes devices that are away, through APNs, FCM, Web Push and plain HTTP.
//!
//! A [`Horn`] is given one notice at a time and says how it went for each device ([`outcome`] says what that means for the notice). It
//! keeps no queue and tries nothing again: notices come by the system's subscription `_notices`, whose dispatcher does both. What it
//! remembers is bounded and may be lost: who has got which notice, and which providers asked to be left alone.
//!
//! It judges a provider's errors by kind: what is no device any more is taken out of the registry, where it still has the same token;
//! who asks to wait is left alone; a setting that a provider does not like may be mended, and is tried again; what no repeat can mend is
//! told with the provider's own reason.
//!
//! In the order of a notice: [`calls`], [`letter`], one of [`apns`], [`fcm`], [`webpush`], [`plain_http`] over the [`client`].

mod apns;
mod calls;
mod client;
mod complaints;
mod elsewhere;
mod encryption;
mod fcm;
pub mod figures;
mod google_token;
mod judged;
mod jwt;
mod letter;
mod limits;
pub mod outcome;
mod pauses;
mod plain_http;
mod remembered;
pub mod settings;
mod silences;
mod throttled;
mod webpush;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::ports::{Device, Devices, DevicesError, Provider};
use whimbrel_model::push::{Notice, NoticeDevice};
use whimbrel_model::{Clock, EventSink, SystemClock, Timestamp};

use apns::Apns;
use client::{Client, Speaks};
use complaints::Complaints;
use fcm::Fcm;
use figures::HornFigures;
use judged::Judged;
use letter::Letter;
use pauses::Pauses;
use plain_http::PlainHttp;
use remembered::Remembered;
use silences::Silences;
use throttled::Throttled;
use webpush::{WebPush, origin_of};

pub use calls::HornCallbacks;
pub use elsewhere::{HORN_ROLE, HornsElsewhere};
pub use figures::NAMES as METRIC_NAMES;
pub use outcome::{DeviceOutcome, Fate, Notified, Sum};
pub use settings::{
    APNS_URL, ApnsSettings, FCM_URL, FcmSettings, HornError, HornSettings, HttpSettings, ServiceAccount,
    WebPushSettings,
};

/// Whether devices of a platform are woken: what the platform's settings say.
pub type IsWoken = Arc<dyn Fn(&Platform) -> bool + Send + Sync>;

/// What a horn works with.
pub struct HornParts {
    pub devices: Arc<dyn Devices>,
    pub is_woken: IsWoken,
    pub clock: Arc<dyn Clock>,
    /// Where an operator is told that somebody cannot be woken.
    pub events: EventSink,
}

/// Wakes devices.
pub struct Horn {
    parts: HornParts,
    providers: Providers,
    timeout: Duration,
    pauses: Mutex<Pauses>,
    silences: Mutex<Silences>,
    throttled: Mutex<Throttled>,
    remembered: Mutex<Remembered>,
    complaints: Mutex<Complaints>,
    figures: HornFigures,
}

/// Those that have settings.
struct Providers {
    apns: Option<Apns>,
    fcm: Option<Fcm>,
    webpush: Option<WebPush>,
    http: Option<PlainHttp>,
}

impl Providers {
    fn new(settings: HornSettings, clock: &Arc<dyn Clock>) -> Result<Self, HornError> {
        let HornSettings { apns, fcm, webpush, http, guard, extra_roots_pem, timeout: _ } = settings;
        let client =
            |speaks, guard| Client::new(speaks, guard, &extra_roots_pem, Arc::clone(clock)).map_err(HornError::Tls);
        let apns = apns.map(|apns| Apns::new(apns, client(Speaks::Http2, None)?)).transpose()?;
        let fcm = fcm.map(|fcm| Fcm::new(fcm, client(Speaks::Either, None)?)).transpose()?;
        // Devices bring those places themselves, plain HTTP's included.
        let guarded = client(Speaks::Either, Some(guard))?;
        let webpush = webpush.map(|webpush| WebPush::new(webpush, guarded.clone())).transpose()?;
        let http = http.map(|http| PlainHttp::new(&http, guarded)).transpose()?;
        Ok(Self { apns, fcm, webpush, http })
    }
}

/// Whether a horn of these settings could be, for whoever wants to know before there is one.
pub fn check(settings: HornSettings) -> Result<(), HornError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    Providers::new(settings, &clock).map(drop)
}

/// A notice that nobody could be looked up for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    #[error("the notice cannot be read: {0}")]
    Garbled(String),
    #[error(transparent)]
    Devices(#[from] DevicesError),
}

impl Horn {
    /// A recorder of metrics must be installed before, or nothing is counted.
    pub fn new(settings: HornSettings, parts: HornParts) -> Result<Self, HornError> {
        let timeout = settings.timeout;
        let providers = Providers::new(settings, &parts.clock)?;
        let (pauses, silences, throttled) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (remembered, complaints) = (Mutex::default(), Mutex::default());
        let figures = HornFigures::new();
        Ok(Self { parts, providers, timeout, pauses, silences, throttled, remembered, complaints, figures })
    }

    /// Wakes the user's devices that the notice is for, all at the same time.
    ///
    /// *Cancellation*: dropping the future ends it; some devices may have been woken.
    pub async fn notify(&self, notice: &Notice) -> Result<Notified, NotifyError> {
        let now = self.parts.clock.now();
        let notified = if notice.expires_at_ms <= now.as_millis() {
            Notified::Expired
        } else {
            let uid = Uid::new(&notice.uid).map_err(|bad| NotifyError::Garbled(bad.to_string()))?;
            let devices = self.parts.devices.of(&uid).await?;
            let wanted = devices.iter().filter(|device| is_for(notice, device));
            let woken = wanted.filter(|device| (self.parts.is_woken)(&device.platform));
            Notified::Devices(join_all(woken.map(|device| self.wake(&uid, notice, device, now))).await)
        };
        self.figures.notice(notified.sum());
        Ok(notified)
    }

    async fn wake(&self, uid: &Uid, notice: &Notice, device: &Device, now: Timestamp) -> DeviceOutcome {
        let letter = Letter::new(notice, device, now);
        let fate = if lock(&self.remembered).has(&letter.name) { Fate::AlreadySent } else { self.send(&letter).await };
        match &fate {
            Fate::Sent => lock(&self.remembered).put(letter.name),
            Fate::Gone { reason } => self.forget(uid, device, reason).await,
            Fate::Misconfigured { .. } | Fate::Refused { .. } | Fate::NotConfigured => {
                let complaint = lock(&self.complaints).about(device.provider, &fate, now);
                complaint.into_iter().for_each(|event| (self.parts.events)(event));
            }
            Fate::AlreadySent | Fate::Later { .. } => {}
        }
        self.figures.device(device.provider, &fate);
        let Device { device, platform, provider, .. } = device.clone();
        DeviceOutcome { device, platform, provider, fate }
    }

    async fn send(&self, letter: &Letter<'_>) -> Fate {
        let provider = letter.device.provider;
        let place = place_of(letter.device);
        if let Some(place) = &place {
            if let Some(left) = lock(&self.pauses).left(place, letter.now) {
                return Fate::later("the provider asked to be left alone for a while", Some(left));
            }
            if let Some(left) = lock(&self.silences).left(place, letter.now) {
                return Fate::later("nobody answered there lately, and it is left alone for a while", Some(left));
            }
            if let Some(left) = lock(&self.throttled).left(&letter.device.token, letter.now) {
                return Fate::later("the provider asked to leave this device alone for a while", Some(left));
            }
        }
        let began = Instant::now();
        let deadline = (began + self.timeout).into();
        let judged = match provider {
            Provider::Apns => match &self.providers.apns {
                Some(apns) => apns.send(letter, deadline).await,
                None => return Fate::NotConfigured,
            },
            Provider::Fcm => match &self.providers.fcm {
                Some(fcm) => fcm.send(letter, deadline).await,
                None => return Fate::NotConfigured,
            },
            Provider::Webpush => match &self.providers.webpush {
                Some(webpush) => webpush.send(letter, deadline).await,
                None => return Fate::NotConfigured,
            },
            Provider::Http => match &self.providers.http {
                Some(http) => http.send(letter, deadline).await,
                None => return Fate::NotConfigured,
            },
        };
        self.figures.took(provider, began.elapsed());
        if let Some(place) = place {
            self.learn(&place, &letter.device.token, &judged);
        }
        judged.fate
    }

    /// What an answer, or that there was none, says about the next ones.
    fn learn(&self, place: &str, token: &str, judged: &Judged) {
        let now = self.parts.clock.now();
        if judged.is_silent {
            if let Some(wait) = lock(&self.silences).silent(place, now) {
                tracing::warn!(place, ?wait, "nobody answers notices there: it is left alone for a while");
            }
            return;
        }
        lock(&self.silences).answered(place);
        let by_devices = judged.device_waits.and_then(|wait| lock(&self.throttled).device(place, token, wait, now));
        if let Some(wait) = judged.everybody_waits.or(by_devices) {
            tracing::warn!(place, ?wait, "a provider asked to be left alone for a while");
            lock(&self.pauses).ask(place, wait, now);
        }
    }

    /// Takes a device out of the registry that its provider knows no more, unless it has another token by now.
    async fn forget(&self, uid: &Uid, device: &Device, reason: &str) {
        let provider = device.provider.word();
        match self.parts.devices.remove(uid, &device.device, Some(&device.token)).await {
            Ok(true) => tracing::debug!(%uid, device = device.device, provider, reason, "a device is gone"),
            Ok(false) => {}
            // The next notice for it finds the same, and removes it then.
            Err(error) => tracing::warn!(%error, provider, "a device that is gone could not be removed"),
        }
    }
}

/// Whom a wish to be left alone, or a silence, is for: a provider, or one origin of many. `None` where nothing can be called.
fn place_of(device: &Device) -> Option<String> {
    match device.provider {
        Provider::Apns | Provider::Fcm => Some(device.provider.word().to_owned()),
        Provider::Webpush => origin_of(&device.token),
        // Not the same as a push service there: one URL that asks to wait speaks for its device only.
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
