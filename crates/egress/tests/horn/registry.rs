//! The port `Devices` in memory. A test can make it fail.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use whimbrel_model::people::Uid;
use whimbrel_model::ports::{Device, Devices, DevicesError, PortFuture};

#[derive(Default)]
pub struct MemoryDevices {
    by_name: Mutex<BTreeMap<(String, String), Device>>,
    pub is_down: AtomicBool,
}

impl MemoryDevices {
    pub fn add(&self, uid: &str, device: Device) {
        self.by_name.lock().unwrap().insert((uid.to_owned(), device.device.clone()), device);
    }

    pub fn has(&self, uid: &str, device: &str) -> bool {
        self.by_name.lock().unwrap().contains_key(&(uid.to_owned(), device.to_owned()))
    }

    fn check(&self) -> Result<(), DevicesError> {
        if self.is_down.load(Ordering::SeqCst) { Err(DevicesError::Unavailable("down".to_owned())) } else { Ok(()) }
    }
}

impl Devices for MemoryDevices {
    fn put<'a>(&'a self, uid: &'a Uid, device: Device) -> PortFuture<'a, Result<(), DevicesError>> {
        Box::pin(async move {
            self.check()?;
            self.add(uid.as_str(), device);
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
            self.check()?;
            let key = (uid.as_str().to_owned(), device.to_owned());
            let mut by_name = self.by_name.lock().unwrap();
            let is_same = by_name.get(&key).is_some_and(|known| token.is_none_or(|token| known.token == token));
            Ok(is_same && by_name.remove(&key).is_some())
        })
    }

    fn of<'a>(&'a self, uid: &'a Uid) -> PortFuture<'a, Result<Vec<Device>, DevicesError>> {
        Box::pin(async move {
            self.check()?;
            let by_name = self.by_name.lock().unwrap();
            let own = by_name.iter().filter(|((owner, _), _)| owner == uid.as_str());
            Ok(own.map(|(_, device)| device.clone()).collect())
        })
    }
}
