//! Background work on a thread of its own: erases the rows of emptied shards in small steps, and drops tables below a shard's line.
//!
//! The write that emptied a shard stores which generation must be erased, so a restart continues the erasing. Ends need no erasing: their
//! slices are dropped with time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;

use fjall::{AbstractTree, Database, Keyspace};
use whimbrel_model::Timestamp;

use super::{TimerStore, TimersFault};
use crate::embedded::lsm::{Generation, StoreHandle};

/// The number of keys in one batch of deletions.
const ERASED_AT_ONCE: usize = 5_000;

/// A piece of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EraserTask {
    Erase {
        place: Generation,
        opening: u64,
    },
    /// Drops whole tables below the line.
    Drop {
        place: Generation,
        below: Timestamp,
        opening: u64,
    },
    End,
}

/// The thread. It exits when this is dropped.
pub(super) struct ShardEraser {
    chores: Sender<EraserTask>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ShardEraser {
    pub fn start(
        store: StoreHandle<TimerStore>,
        chores: Sender<EraserTask>,
        handed: Receiver<EraserTask>,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("holds-eraser".to_owned()).spawn({
            let stop = Arc::clone(&stop);
            move || run(&store, &handed, &stop)
        })?;
        Ok(Self { chores, stop, thread: Some(thread) })
    }

    /// Queues a chore. A lost chore is repeated after the next opening: the store has all that is necessary.
    pub fn take(&self, chore: EraserTask) {
        let _ = self.chores.send(chore);
    }
}

impl Drop for ShardEraser {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.chores.send(EraserTask::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(store: &StoreHandle<TimerStore>, handed: &Receiver<EraserTask>, stop: &AtomicBool) {
    while let Ok(chore) = handed.recv() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let done = store.run(|inner| -> Result<(), TimersFault> {
            match chore {
                EraserTask::Erase { opening, .. } | EraserTask::Drop { opening, .. } if opening != inner.opening => {
                    Ok(())
                }
                EraserTask::Erase { place, .. } => Ok(erase(inner, place, stop)?),
                EraserTask::Drop { place, below, .. } => Ok(drop_below(inner, place, below)?),
                EraserTask::End => Ok(()),
            }
        });
        if let Err(error) = done {
            tracing::warn!(%error, ?chore, "cannot erase old rows of the store of holds; retrying at the next opening");
        }
    }
}

fn drop_below(inner: &TimerStore, place: Generation, below: Timestamp) -> fjall::Result<()> {
    Ok(inner.rows.tree.drop_range(place.prefix().to_vec()..place.by_due(below, ""))?)
}

fn erase(inner: &TimerStore, place: Generation, stop: &AtomicBool) -> fjall::Result<()> {
    for keyspace in [&inner.rows, &inner.ids, &inner.late, &inner.late_ids, &inner.counts] {
        if !erase_prefix(&inner.database, keyspace, &place.prefix(), stop)? {
            return Ok(());
        }
    }
    inner.shards.remove(place.prefix())
}

/// Returns whether all keys are erased.
fn erase_prefix(database: &Database, keyspace: &Keyspace, prefix: &[u8], stop: &AtomicBool) -> fjall::Result<bool> {
    let mut batch = database.batch();
    // One pass: deleted keys are never scanned again.
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
