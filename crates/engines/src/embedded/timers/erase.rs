//! What a shard left behind when it was emptied, deleted bit by bit on a thread of its own.
//!
//! Which generations are to be erased is noted in the write that emptied the shard, so a restart goes on with them. Ends need
//! no erasing: their slices are dropped with time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use fjall::{Database, Keyspace};
use whimbrel_model::ports::TimersError;

use super::keys::Place;
use super::{Inner, unavailable};

/// Keys that are deleted in one batch.
const ERASED_AT_ONCE: usize = 5_000;

/// The thread, which ends when this is dropped.
pub(super) struct Eraser {
    places: Option<Sender<Place>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Eraser {
    pub fn start(inner: Arc<Inner>) -> Result<Self, TimersError> {
        let (places, asked) = mpsc::channel();
        for place in noted(&inner)? {
            let _ = places.send(place);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("holds-eraser".to_owned()).spawn({
            let stop = Arc::clone(&stop);
            move || run(&inner, &asked, &stop)
        });
        let thread = thread.map_err(|error| TimersError::Unavailable(error.to_string()))?;
        Ok(Self { places: Some(places), stop, thread: Some(thread) })
    }

    /// Erases that generation in a while. It is noted already, so a thread that is gone loses nothing.
    pub fn erase(&self, place: Place) {
        if let Some(places) = &self.places {
            let _ = places.send(place);
        }
    }
}

impl Drop for Eraser {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        drop(self.places.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What an earlier process did not get to.
fn noted(inner: &Inner) -> Result<Vec<Place>, TimersError> {
    let mut places = Vec::new();
    for entry in inner.shards.iter() {
        let key = entry.key().map_err(unavailable)?;
        if let Ok(prefix) = <[u8; 8]>::try_from(&key[..]) {
            places.push(Place::of_prefix(prefix));
        }
    }
    Ok(places)
}

fn run(inner: &Inner, asked: &Receiver<Place>, stop: &AtomicBool) {
    while let Ok(place) = asked.recv() {
        match erase(inner, place, stop) {
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "what a shard left could not be erased; the next start tries again"),
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
    }
}

fn erase(inner: &Inner, place: Place, stop: &AtomicBool) -> fjall::Result<()> {
    for keyspace in [&inner.rows, &inner.ids, &inner.topics, &inner.counts] {
        if !erase_prefix(&inner.database, keyspace, &place.prefix(), stop)? {
            return Ok(());
        }
    }
    inner.shards.remove(place.prefix())
}

/// Whether it came to the end.
fn erase_prefix(database: &Database, keyspace: &Keyspace, prefix: &[u8], stop: &AtomicBool) -> fjall::Result<bool> {
    let mut batch = database.batch();
    // One pass: deleted keys are never passed again.
    for entry in keyspace.prefix(prefix) {
        batch.remove(keyspace, entry.key()?);
        if batch.len() == ERASED_AT_ONCE {
            if stop.load(Ordering::Acquire) {
                return Ok(false);
            }
            std::mem::replace(&mut batch, database.batch()).commit()?;
        }
    }
    batch.commit()?;
    Ok(true)
}
