//! A horn with a registry and a clock that tests control, and sample notices and devices.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use whimbrel_api::endpoint::AddressGuard;
use whimbrel_egress::horn::{DeviceOutcome, Horn, HornParts, HornSettings, HttpSettings, NoticeResult};
use whimbrel_engines::memory::MemoryDevices;
use whimbrel_model::people::Platform;
use whimbrel_model::ports::{Device, Provider};
use whimbrel_model::push::{Notice, Notify};
use whimbrel_model::{Clock, Event, Timestamp};

/// The time of the tests in milliseconds: 2026-11-15, 20:00.
pub const NOW_MS: i64 = 1_794_772_800_000;

pub struct HeldClock(AtomicI64);

impl Clock for HeldClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
}

pub struct Bench {
    pub horn: Arc<Horn>,
    pub devices: Arc<MemoryDevices>,
    pub events: Arc<Mutex<Vec<Event>>>,
    clock: Arc<HeldClock>,
}

impl Bench {
    /// Devices of the platform `quiet` get no notifications.
    pub fn new(settings: HornSettings) -> Self {
        let (devices, clock) = (Arc::new(MemoryDevices::default()), Arc::new(HeldClock(AtomicI64::new(NOW_MS))));
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let sink = Arc::clone(&events);
        let parts = HornParts {
            devices: Arc::clone(&devices) as _,
            is_notifiable: Arc::new(|platform: &Platform| platform.as_str() != "quiet"),
            clock: Arc::clone(&clock) as _,
            events: Arc::new(move |event| sink.lock().unwrap().push(event)),
        };
        Self { horn: Arc::new(Horn::new(settings, parts).unwrap()), devices, events, clock }
    }

    /// A horn, and the user `u1` with this device.
    pub fn with_device(settings: HornSettings, device: Device) -> Self {
        let bench = Self::new(settings);
        bench.devices.add("u1", device);
        bench
    }

    pub fn pass(&self, time: Duration) {
        self.clock.0.fetch_add(time.as_millis() as i64, Ordering::SeqCst);
    }

    /// The outcome of the only device.
    pub async fn only_outcome(&self, notice: &Notice) -> DeviceOutcome {
        let mut outcomes = self.outcomes(notice).await;
        assert_eq!(outcomes.len(), 1, "{outcomes:?}");
        outcomes.remove(0).1
    }

    /// The outcome of each device, by its name.
    pub async fn outcomes(&self, notice: &Notice) -> Vec<(String, DeviceOutcome)> {
        match self.horn.notify(notice).await.unwrap() {
            NoticeResult::Devices(devices) => devices.into_iter().map(|each| (each.device, each.outcome)).collect(),
            NoticeResult::Expired => panic!("it expired"),
        }
    }
}

/// Settings without a provider. Devices may register URLs of this machine, where the test providers are.
pub fn settings() -> HornSettings {
    let guard = AddressGuard::for_devices(&["127.0.0.0/8".to_owned(), "::1".to_owned()], &[]).unwrap();
    HornSettings { http: None, guard, ..HornSettings::default() }
}

/// Settings of plain HTTP, without a secret.
pub fn plain_http() -> HornSettings {
    HornSettings { http: Some(HttpSettings::default()), ..settings() }
}

/// A horn with plain HTTP, and a user with a device that has this URL.
pub fn pager_at(url: &str) -> Bench {
    Bench::with_device(plain_http(), device("pager", Provider::Http, url))
}

pub fn platform(name: &str) -> Platform {
    Platform::new(name).unwrap()
}

pub fn device(name: &str, provider: Provider, token: &str) -> Device {
    Device {
        device: name.to_owned(),
        platform: platform("mobile"),
        provider,
        token: token.to_owned(),
        p256dh: None,
        auth: None,
        topic: None,
    }
}

/// A notice with a title and body that expires in 1 h.
pub fn notice(id: &str) -> Notice {
    Notice {
        v: 1,
        id: id.to_owned(),
        uid: "u1".to_owned(),
        platforms: None,
        except_platforms: Vec::new(),
        except_devices: Vec::new(),
        notify: Notify {
            title: Some("Dinner".to_owned()),
            body: Some("It is ready".to_owned()),
            data: Some(r#"{"room":7}"#.to_owned()),
        },
        collapse_key: None,
        expires_at_ms: NOW_MS + 3_600_000,
    }
}

/// A notice that only wakes the app.
pub fn silent_notice(id: &str) -> Notice {
    let notice = notice(id);
    Notice { notify: Notify { title: None, body: None, data: notice.notify.data.clone() }, ..notice }
}

/// The requested delay of a temporary failure.
#[track_caller]
pub fn delay_of(outcome: &DeviceOutcome) -> Option<Duration> {
    match outcome {
        DeviceOutcome::Later { retry_after, .. } => *retry_after,
        other => panic!("{other:?}"),
    }
}

pub fn reason_of(outcome: &DeviceOutcome) -> &str {
    match outcome {
        DeviceOutcome::Gone { reason }
        | DeviceOutcome::Misconfigured { reason }
        | DeviceOutcome::Refused { reason }
        | DeviceOutcome::Later { reason, .. } => reason,
        DeviceOutcome::Sent | DeviceOutcome::AlreadySent | DeviceOutcome::NotConfigured => "",
    }
}
