//! The `Devices` port in this process's memory, for tests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use whimbrel_model::people::Uid;
use whimbrel_model::ports::{DEVICES_PER_USER_MAX, Device, Devices, DevicesError, PortFuture};

/// The devices by user and name.
type DeviceMap = BTreeMap<(String, String), Device>;

#[derive(Default)]
pub struct MemoryDevices {
    devices: Mutex<DeviceMap>,
    /// While it is set, all calls fail.
    pub is_down: AtomicBool,
}

impl MemoryDevices {
    /// Adds a device without the checks of the port.
    pub fn add(&self, uid: &str, device: Device) {
        self.devices().insert((uid.to_owned(), device.device.clone()), device);
    }

    pub fn has(&self, uid: &str, device: &str) -> bool {
        self.devices().contains_key(&(uid.to_owned(), device.to_owned()))
    }

    fn devices(&self) -> MutexGuard<'_, DeviceMap> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn available(&self) -> Result<MutexGuard<'_, DeviceMap>, DevicesError> {
        if self.is_down.load(Ordering::Relaxed) {
            return Err(DevicesError::Unavailable("switched off".to_owned()));
        }
        Ok(self.devices())
    }
}

impl Devices for MemoryDevices {
    fn put<'a>(&'a self, uid: &'a Uid, device: Device) -> PortFuture<'a, Result<(), DevicesError>> {
        Box::pin(async move {
            let mut devices = self.available()?;
            let key = (uid.as_str().to_owned(), device.device.clone());
            let is_new = !devices.contains_key(&key);
            if is_new && devices.keys().filter(|(of, _)| *of == key.0).count() >= DEVICES_PER_USER_MAX {
                return Err(DevicesError::TooMany);
            }
            devices.insert(key, device);
            Ok(())
        })
    }

    fn remove<'a>(
        &'a self,
        uid: &'a Uid,
        device: &'a str,
        token: Option<&'a str>,
    ) -> PortFuture<'a, Result<bool, DevicesError>> {
        Box::pin(async move {
            let mut devices = self.available()?;
            let key = (uid.as_str().to_owned(), device.to_owned());
            let is_meant = devices.get(&key).is_some_and(|known| token.is_none_or(|token| known.token == token));
            Ok(is_meant && devices.remove(&key).is_some())
        })
    }

    fn of<'a>(&'a self, uid: &'a Uid) -> PortFuture<'a, Result<Vec<Device>, DevicesError>> {
        Box::pin(async move {
            let devices = self.available()?;
            let own = devices.iter().filter(|((of, _), _)| of == uid.as_str());
            Ok(own.map(|(_, device)| device.clone()).collect())
        })
    }
}
