//! The `Devices` port on an LSM of the data folder.
//!
//! A key is the user's id, a zero byte, which no id has, and the device's name; a value is the number of its format and the device as
//! JSON. One thread does everything in the order of the calls. It takes what waits together, so that many registrations at once cost
//! one sync of the disk, and answers when that is done.

use std::path::Path;
use std::sync::Mutex;
use std::thread::JoinHandle;

use fjall::{Database, Keyspace, PersistMode};
use tokio::sync::{mpsc, oneshot};
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{DEVICES_PER_USER_MAX, Device, Devices, DevicesError, PortFuture};

use super::background::yields;
use super::sealing::{Sealing, flush};
use super::slices::{MEMTABLE_BYTES, small_keyspace};

/// The format of values; part of what is on disk.
const FORMAT: u8 = 1;
/// Memory that the LSM may use for blocks of its tables.
const CACHE_BYTES: u64 = 8 << 20;
/// The LSM's journal, which a start reads again. The LSM allows no less.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// Calls that wait for their turn, and that are done under one sync; more of them wait to be taken.
const CALLS_WAITING_MAX: usize = 256;
const THREAD: &str = "devices-writer";

/// Devices in an LSM of the data folder.
pub struct LsmDevices {
    calls: Option<mpsc::Sender<Call>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Does its work, and returns what answers the caller once it is on disk, or that it is not.
type Call = Box<dyn FnOnce(&mut Store) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), DevicesError>)>;

fn unavailable(error: fjall::Error) -> DevicesError {
    DevicesError::Unavailable(error.to_string())
}

impl LsmDevices {
    pub fn open(path: &Path) -> Result<Self, DevicesError> {
        let builder = Database::builder(path).cache_size(CACHE_BYTES).worker_threads(1);
        let database = builder.max_journaling_size(JOURNAL_BYTES_MAX).open().map_err(unavailable)?;
        let devices = database.keyspace("devices", small_keyspace).map_err(unavailable)?;
        let store = Store { database, devices, sealing: Sealing::default(), is_synced: true };
        let (calls, asked) = mpsc::channel(CALLS_WAITING_MAX);
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(move || store.serve(asked));
        let thread = thread.map_err(|error| DevicesError::Unavailable(error.to_string()))?;
        yields("fjall:worker");
        Ok(Self { calls: Some(calls), thread: Mutex::new(Some(thread)) })
    }

    /// Does it after everything that was asked before.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T, DevicesError> + Send + 'static,
    ) -> Result<T, DevicesError> {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |store| {
            let done = work(store);
            // Who asked may be gone; it is done all the same.
            Box::new(move |synced| drop(answer.send(done.and_then(|done| synced.map(|()| done)))))
        });
        if let Some(calls) = &self.calls {
            // Where the thread is gone, so is the answer.
            let _ = calls.send(call).await;
        }
        answered.await.unwrap_or_else(|_| Err(DevicesError::Unavailable("nobody is there any more".to_owned())))
    }
}

impl Drop for LsmDevices {
    fn drop(&mut self) {
        drop(self.calls.take());
        let thread = self.thread.get_mut().map_or(None, Option::take);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Devices for LsmDevices {
    fn put<'a>(&'a self, uid: &'a Uid, device: Device) -> PortFuture<'a, Result<(), DevicesError>> {
        let uid = uid.clone();
        Box::pin(self.call(move |store| store.put(&uid, &device)))
    }

    fn remove<'a>(
        &'a self,
        uid: &'a Uid,
        device: &'a str,
        token: Option<&'a str>,
    ) -> PortFuture<'a, Result<bool, DevicesError>> {
        let (uid, device, token) = (uid.clone(), device.to_owned(), token.map(str::to_owned));
        Box::pin(self.call(move |store| store.remove(&uid, &device, token.as_deref())))
    }

    fn of<'a>(&'a self, uid: &'a Uid) -> PortFuture<'a, Result<Vec<Device>, DevicesError>> {
        let uid = uid.clone();
        Box::pin(self.call(move |store| store.of(&uid)))
    }

    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(async {
            if let Err(error) = self.call(|store| flush(&[&store.devices]).map_err(unavailable)).await {
                tracing::warn!(%error, "the next start reads more of the devices' journal than it would need to");
            }
        })
    }
}

/// What the thread works on.
struct Store {
    database: Database,
    devices: Keyspace,
    sealing: Sealing,
    is_synced: bool,
}

impl Store {
    /// Until nobody can call any more.
    fn serve(mut self, mut calls: mpsc::Receiver<Call>) {
        let mut answers: Vec<Answer> = Vec::new();
        while let Some(call) = calls.blocking_recv() {
            answers.push(call(&mut self));
            while answers.len() < CALLS_WAITING_MAX
                && let Ok(call) = calls.try_recv()
            {
                answers.push(call(&mut self));
            }
            let synced = self.sync();
            answers.drain(..).for_each(|answer| answer(synced.clone()));
        }
    }

    fn sync(&mut self) -> Result<(), DevicesError> {
        if !self.is_synced {
            self.database.persist(PersistMode::SyncData).map_err(unavailable)?;
            self.is_synced = true;
            self.sealing.after_write(&self.database, &[(&self.devices, MEMTABLE_BYTES)]).map_err(unavailable)?;
        }
        Ok(())
    }

    fn put(&mut self, uid: &Uid, device: &Device) -> Result<(), DevicesError> {
        let key = key(uid, &device.device);
        let is_new = !self.devices.contains_key(&key).map_err(unavailable)?;
        if is_new && self.devices.prefix(prefix(uid)).take(DEVICES_PER_USER_MAX).count() == DEVICES_PER_USER_MAX {
            return Err(DevicesError::TooMany);
        }
        let value = encode(device).map_err(|error| DevicesError::Unavailable(error.to_string()))?;
        self.is_synced = false;
        self.devices.insert(key, value).map_err(unavailable)
    }

    fn remove(&mut self, uid: &Uid, device: &str, token: Option<&str>) -> Result<bool, DevicesError> {
        let key = key(uid, device);
        let Some(value) = self.devices.get(&key).map_err(unavailable)? else { return Ok(false) };
        // One that cannot be read has no token that could be meant.
        if token.is_some_and(|token| decode(&value).is_none_or(|device| device.token != token)) {
            return Ok(false);
        }
        self.is_synced = false;
        self.devices.remove(key).map_err(unavailable)?;
        Ok(true)
    }

    fn of(&mut self, uid: &Uid) -> Result<Vec<Device>, DevicesError> {
        let mut devices = Vec::new();
        for entry in self.devices.prefix(prefix(uid)) {
            let (_, value) = entry.into_inner().map_err(unavailable)?;
            match decode(&value) {
                Some(device) => devices.push(device),
                None => tracing::warn!(%uid, "a device cannot be read: it gets no notices until it is put again"),
            }
        }
        Ok(devices)
    }
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
