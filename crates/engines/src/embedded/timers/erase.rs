//! Tidying up on a thread of its own: what a shard left behind when it was emptied is deleted bit by bit, and tables that lie
//! below a shard's line are dropped.
//!
//! Which generations are to be erased is noted in the write that emptied the shard, so a restart goes on with them. Ends need
//! no erasing: their slices are dropped with time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use fjall::{AbstractTree, Database, Keyspace};
use whimbrel_model::Timestamp;
use whimbrel_model::ports::TimersError;

use super::keys::Place;
use super::{Inner, unavailable};

/// Keys that are deleted in one batch.
const ERASED_AT_ONCE: usize = 5_000;

/// What there is to tidy up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chore {
    /// An emptied generation.
    Erase(Place),
    /// Whole tables below the line.
    Drop { place: Place, below: Timestamp },
}

/// The thread, which ends when this is dropped.
pub(super) struct Eraser {
    chores: Option<Sender<Chore>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Eraser {
    pub fn start(inner: Arc<Inner>) -> Result<Self, TimersError> {
        let (chores, asked) = mpsc::channel();
        for place in noted(&inner)? {
            let _ = chores.send(Chore::Erase(place));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("holds-eraser".to_owned()).spawn({
            let stop = Arc::clone(&stop);
            move || run(&inner, &asked, &stop)
        });
        let thread = thread.map_err(|error| TimersError::Unavailable(error.to_string()))?;
        Ok(Self { chores: Some(chores), stop, thread: Some(thread) })
    }

    /// Does it in a while. What must be done is noted in the store already, so a thread that is gone loses nothing.
    pub fn take(&self, chore: Chore) {
        if let Some(chores) = &self.chores {
            let _ = chores.send(chore);
        }
    }
}

impl Drop for Eraser {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        drop(self.chores.take());
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

fn run(inner: &Inner, asked: &Receiver<Chore>, stop: &AtomicBool) {
    while let Ok(chore) = asked.recv() {
        let done = match chore {
            Chore::Erase(place) => erase(inner, place, stop),
            Chore::Drop { place, below } => drop_below(inner, place, below),
        };
        if let Err(error) = done {
            tracing::warn!(%error, ?chore, "the store of holds could not be tidied up; it is tried again later");
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
    }
}

fn drop_below(inner: &Inner, place: Place, below: Timestamp) -> fjall::Result<()> {
    Ok(inner.rows.tree.drop_range(place.prefix().to_vec()..place.by_due(below, ""))?)
}

fn erase(inner: &Inner, place: Place, stop: &AtomicBool) -> fjall::Result<()> {
    for keyspace in [&inner.rows, &inner.ids, &inner.late, &inner.late_ids, &inner.counts] {
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
