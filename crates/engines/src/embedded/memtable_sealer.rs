//! Decides when memtables of an LSM are flushed to tables, so that its memory, and the journal that a start replays, stay small.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fjall::{AbstractTree, Database, Keyspace, PersistMode};

/// The normal number of journals of the LSM: the one being written, and one whose memtables are being flushed.
const JOURNALS_KEPT: usize = 2;
/// The maximum number of sealed memtables before the next one is sealed, and the interval of counting them. The LSM itself blocks writers
/// at one more, without a timeout, even if its worker has exited.
const SEALED_MAX: usize = 3;
const SEALED_POLL: Duration = Duration::from_millis(5);
/// The number of tables in the first level at which writes wait for the LSM's worker to merge them. The LSM has the same kind of limit.
const FIRST_LEVEL_MAX: usize = 24;
/// The timeout of the flush at a clean stop, and the interval of its checks.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);
const FLUSH_POLL: Duration = Duration::from_millis(5);

/// The state between writes.
#[derive(Default)]
pub(super) struct MemtableSealer {
    /// The number of journals of the LSM after the last write.
    journals: AtomicUsize,
}

impl MemtableSealer {
    /// Seals memtables that have reached their bound. The LSM leaves that to its worker, which may be merging for a while; meanwhile
    /// memtables would grow. If too many memtables are sealed and not flushed yet, it delays the next write.
    ///
    /// Seals every memtable if there is one journal too many. A keyspace with few writes would retain all journals since its first
    /// unflushed write, and a start after a kill would replay all of them.
    pub fn after_write(&self, database: &Database, keyspaces: &[(&Keyspace, u64)]) -> fjall::Result<()> {
        for (keyspace, max) in keyspaces {
            while keyspace.tree.l0_run_count() >= FIRST_LEVEL_MAX {
                // Fails after any failure of the LSM.
                database.persist(PersistMode::Buffer)?;
                std::thread::sleep(SEALED_POLL);
            }
            if keyspace.tree.active_memtable().size() > *max {
                seal(database, keyspace)?;
            }
        }
        let journals = database.journal_count();
        let before = self.journals.swap(journals, Ordering::Relaxed);
        if journals <= before.max(JOURNALS_KEPT) {
            return Ok(());
        }
        for (keyspace, _) in keyspaces {
            if !keyspace.tree.active_memtable().is_empty() {
                seal(database, keyspace)?;
            }
        }
        Ok(())
    }
}

/// Seals a memtable once the queue of the LSM's worker has room. Fails if the worker has exited.
fn seal(database: &Database, keyspace: &Keyspace) -> fjall::Result<()> {
    while keyspace.tree.sealed_memtable_count() >= SEALED_MAX {
        // Fails after any failure of the LSM.
        database.persist(PersistMode::Buffer)?;
        std::thread::sleep(SEALED_POLL);
    }
    keyspace.rotate_memtable().map(|_| ())
}

/// Flushes all memtables to tables, so that the next start has no journal to replay, or a short one.
pub(super) fn flush(keyspaces: &[&Keyspace]) -> fjall::Result<()> {
    let began = Instant::now();
    for keyspace in keyspaces {
        keyspace.rotate_memtable()?;
    }
    // The LSM's worker may be merging. A stop of the process does not wait for the end of that.
    while keyspaces.iter().any(|keyspace| keyspace.tree.sealed_memtable_count() > 0) && began.elapsed() < FLUSH_WITHIN {
        std::thread::sleep(FLUSH_POLL);
    }
    Ok(())
}
