//! The `Devices` port: the registry of devices that receive notifications.

use serde::{Deserialize, Serialize};

use super::PortFuture;
use crate::people::{Platform, Uid};

/// The maximum number of devices of a user. Further devices are rejected.
pub const DEVICES_PER_USER_MAX: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    Apns,
    Fcm,
    Webpush,
    Http,
}

impl Provider {
    pub const ALL: [Self; 4] = [Self::Apns, Self::Fcm, Self::Webpush, Self::Http];

    /// The name in requests, settings and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Apns => "apns",
            Self::Fcm => "fcm",
            Self::Webpush => "webpush",
            Self::Http => "http",
        }
    }

    /// The settings to add so that the horn can call the provider.
    pub fn missing_settings(self) -> &'static str {
        match self {
            Self::Apns => "set horn.apns.key_file, key_id, team_id and topic",
            Self::Fcm => "set horn.fcm.service_account",
            Self::Webpush => "set horn.webpush.key_file and subject",
            Self::Http => "enable plain HTTP in the settings of the horn",
        }
    }
}

/// The address of one device for notifications. New fields must have a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The device's name, unique per user.
    pub device: String,
    pub platform: Platform,
    pub provider: Provider,
    /// APNs: the device token; FCM: the registration token; Web Push: the endpoint; HTTP: the URL.
    pub token: String,
    /// Web Push: the subscription's keys, in URL-safe base64 without padding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p256dh: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<String>,
    /// APNs: the app's bundle id, if it differs from the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DevicesError {
    #[error("a user has at most {DEVICES_PER_USER_MAX} devices; remove one first")]
    TooMany,
    /// A write may or may not have happened.
    #[error("the registry of devices is not available: {0}")]
    Unavailable(String),
}

/// The registry of devices.
///
/// *Atomicity*: each call is one step. *Order*: sequential calls for one user take effect in the order of the calls. *Durability*: a stored
/// device survives a crash of the process, and with the embedded engine a power failure. *Cancellation*: a dropped call may have happened.
pub trait Devices: Send + Sync {
    /// Adds a device, or replaces the device of the same name.
    fn put<'a>(&'a self, uid: &'a Uid, device: Device) -> PortFuture<'a, Result<(), DevicesError>>;

    /// Removes a device. With a token, removes it only if it still has that token. Returns whether it was removed.
    fn remove<'a>(
        &'a self,
        uid: &'a Uid,
        device: &'a str,
        token: Option<&'a str>,
    ) -> PortFuture<'a, Result<bool, DevicesError>>;

    /// The user's devices, sorted by name.
    fn of<'a>(&'a self, uid: &'a Uid) -> PortFuture<'a, Result<Vec<Device>, DevicesError>>;

    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
