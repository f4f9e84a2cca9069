//! Tidying up on a thread of its own: what a shard left behind when it was emptied is deleted bit by bit, and tables that lie
//! below a shard's line are dropped.
//!
//! Which generations are to be erased is noted in the write that emptied the shard, so a restart goes on with them. Ends need
//! no erasing: their slices are dropped with time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;

use fjall::{AbstractTree, Database, Keyspace};
use whimbrel_model::Timestamp;

use super::keys::Place;
use super::{Fault, Inner};
use crate::embedded::lsm::StoreHandle;

/// Keys that are deleted in one batch.
const ERASED_AT_ONCE: usize = 5_000;

/// What there is to tidy up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chore {
    /// An emptied generation.
    Erase { place: Place, opening: u64 },
    /// Whole tables below the line.
    Drop { place: Place, below: Timestamp, opening: u64 },
    /// Nothing: the thread ends.
    End,
}

/// The thread, which ends when this is dropped.
pub(super) struct Eraser {
    chores: Sender<Chore>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Eraser {
    pub fn start(store: StoreHandle<Inner>, chores: Sender<Chore>, handed: Receiver<Chore>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("holds-eraser".to_owned()).spawn({
            let stop = Arc::clone(&stop);
            move || run(&store, &handed, &stop)
        })?;
        Ok(Self { chores, stop, thread: Some(thread) })
    }

    /// Does it later. Everything that must be done is noted in the store, so a chore that is lost is done after the next opening.
    pub fn take(&self, chore: Chore) {
        let _ = self.chores.send(chore);
    }
}

impl Drop for Eraser {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.chores.send(Chore::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Generations that were emptied and not erased yet.
pub(super) fn noted(inner: &Inner) -> fjall::Result<Vec<Place>> {
    let mut places = Vec::new();
    for entry in inner.shards.iter() {
        let key = entry.key()?;
        if let Ok(prefix) = <[u8; 8]>::try_from(&key[..]) {
            places.push(Place::of_prefix(prefix));
        }
    }
    Ok(places)
}

fn run(store: &StoreHandle<Inner>, handed: &Receiver<Chore>, stop: &AtomicBool) {
    while let Ok(chore) = handed.recv() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let done = store.run(|inner| -> Result<(), Fault> {
            match chore {
                Chore::Erase { opening, .. } | Chore::Drop { opening, .. } if opening != inner.opening => Ok(()),
                Chore::Erase { place, .. } => Ok(erase(inner, place, stop)?),
                Chore::Drop { place, below, .. } => Ok(drop_below(inner, place, below)?),
                Chore::End => Ok(()),
            }
        });
        if let Err(error) = done {
            tracing::warn!(%error, ?chore, "cannot tidy up the store of holds; the next opening repeats it");
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
