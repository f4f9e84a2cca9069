//! The `Devices` port on an LSM of the data folder.
//!
//! A key is the user's id, a zero byte, which no id contains, and the device's name. A value is the number of its format and the device as
//! JSON. One thread executes all calls in order. It takes all waiting calls together, so that many registrations cost one sync of the disk,
//! and answers after the sync. No log has the registrations, so the LSM has two copies ([`LsmMirror`]).

use std::path::Path;

use whimbrel_model::people::Uid;
use whimbrel_model::ports::{DEVICES_PER_USER_MAX, Device, Devices, DevicesError, PortFuture};

use super::lsm::StoreError;
use super::lsm::mirror::{LsmMirror, MirrorFault, MirrorSettings, MirrorThread, RowChange, SyncRule};
use super::lsm::report::StoreReports;

/// The format of values. It is persisted.
const FORMAT: u8 = 1;
const MIRROR: MirrorSettings = MirrorSettings {
    store: "devices",
    keyspaces: &["devices"],
    cache_bytes: 4 << 20,
    // The minimum of the LSM.
    journal_bytes_max: 64 << 20,
};
const DEVICES: usize = 0;
const THREAD: &str = "devices-writer";

/// Devices in an LSM of the data folder.
pub struct LsmDevices(MirrorThread);

impl StoreError for DevicesError {
    fn unavailable(reason: String) -> Self {
        Self::Unavailable(reason)
    }
}

impl From<MirrorFault> for DevicesError {
    fn from(fault: MirrorFault) -> Self {
        Self::Unavailable(fault.0)
    }
}

impl LsmDevices {
    pub fn open(path: &Path, reports: StoreReports) -> Result<Self, DevicesError> {
        let mirror = LsmMirror::open(path, MIRROR, reports)?;
        let thread = MirrorThread::start(THREAD, mirror, SyncRule::BeforeAnswer);
        thread.map(Self).map_err(|error| DevicesError::Unavailable(error.to_string()))
    }
}

impl Devices for LsmDevices {
    fn put<'a>(&'a self, uid: &'a Uid, device: Device) -> PortFuture<'a, Result<(), DevicesError>> {
        let uid = uid.clone();
        Box::pin(self.0.call(move |mirror| put(mirror, &uid, &device)))
    }

    fn remove<'a>(
        &'a self,
        uid: &'a Uid,
        device: &'a str,
        token: Option<&'a str>,
    ) -> PortFuture<'a, Result<bool, DevicesError>> {
        let (uid, device, token) = (uid.clone(), device.to_owned(), token.map(str::to_owned));
        Box::pin(self.0.call(move |mirror| remove(mirror, &uid, &device, token.as_deref())))
    }

    fn of<'a>(&'a self, uid: &'a Uid) -> PortFuture<'a, Result<Vec<Device>, DevicesError>> {
        let uid = uid.clone();
        Box::pin(self.0.call(move |mirror| devices_of(mirror, &uid)))
    }

    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(async {
            if let Err(error) = self.0.call(|mirror| mirror.flush().map_err(DevicesError::from)).await {
                tracing::warn!(%error, "cannot flush the devices; the next start replays a longer journal");
            }
        })
    }
}

fn put(mirror: &mut LsmMirror, uid: &Uid, device: &Device) -> Result<(), DevicesError> {
    let key = key(uid, &device.device);
    let is_new = mirror.get(DEVICES, &key)?.is_none();
    if is_new && mirror.prefix(DEVICES, &prefix(uid), DEVICES_PER_USER_MAX)?.len() == DEVICES_PER_USER_MAX {
        return Err(DevicesError::TooMany);
    }
    let value = encode(device).map_err(|error| DevicesError::Unavailable(error.to_string()))?;
    Ok(mirror.commit(&vec![(DEVICES, RowChange::Insert(key, value))])?)
}

fn remove(mirror: &mut LsmMirror, uid: &Uid, device: &str, token: Option<&str>) -> Result<bool, DevicesError> {
    let key = key(uid, device);
    let Some(value) = mirror.get(DEVICES, &key)? else { return Ok(false) };
    // A device that cannot be decoded has no token to compare.
    if token.is_some_and(|token| decode(&value).is_none_or(|device| device.token != token)) {
        return Ok(false);
    }
    mirror.commit(&vec![(DEVICES, RowChange::Remove(key))])?;
    Ok(true)
}

fn devices_of(mirror: &mut LsmMirror, uid: &Uid) -> Result<Vec<Device>, DevicesError> {
    let mut devices = Vec::new();
    for (_, value) in mirror.prefix(DEVICES, &prefix(uid), DEVICES_PER_USER_MAX)? {
        match decode(&value) {
            Some(device) => devices.push(device),
            None => tracing::warn!(%uid, "cannot decode a device: it gets no notifications until it registers again"),
        }
    }
    Ok(devices)
}

fn prefix(uid: &Uid) -> Vec<u8> {
    [uid.as_str().as_bytes(), &[0]].concat()
}

fn key(uid: &Uid, device: &str) -> Vec<u8> {
    [uid.as_str().as_bytes(), &[0], device.as_bytes()].concat()
}

fn encode(device: &Device) -> serde_json::Result<Vec<u8>> {
    let mut value = vec![FORMAT];
    serde_json::to_writer(&mut value, device)?;
    Ok(value)
}

fn decode(value: &[u8]) -> Option<Device> {
    match value.split_first()? {
        (&FORMAT, json) => serde_json::from_slice(json).ok(),
        _ => None,
    }
}
