//! When an LSM's writes go from its memory into tables: so that its memory, and the journal that a start reads again, stay small.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fjall::{AbstractTree, Database, Keyspace, PersistMode};

/// Journals of the LSM that are there in the ordinary course: the one that is written, and one whose writes are on their way into tables.
const JOURNALS_KEPT: usize = 2;
/// Heaps that wait for the LSM's worker before the next one is sealed, and how often they are counted. The LSM itself waits at one more
/// for ever, also for a worker that has ended.
const SEALED_MAX: usize = 3;
const SEALED_POLL: Duration = Duration::from_millis(5);
/// Tables of the first level at which writes wait for the LSM's worker to merge them, likewise.
const FIRST_LEVEL_MAX: usize = 24;
/// How long a clean stop may take to bring everything into tables, and how often it looks.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);
const FLUSH_POLL: Duration = Duration::from_millis(5);

/// What is remembered between writes.
#[derive(Default)]
pub(super) struct Sealing {
    /// Journals of the LSM that there were after the last write.
    journals: AtomicUsize,
}

impl Sealing {
    /// Seals heaps of writes that have reached their bound. The LSM leaves that to its worker, which may be merging for a while, and
    /// would let them grow meanwhile; when too many are sealed and not in tables yet, it holds the next write back.
    ///
    /// Seals every heap when one journal more is kept than shall be. A keyspace with few writes would keep all journals since its first
    /// one, and a start after a kill reads every one of them again.
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

/// Seals a heap once the LSM's worker has room for it. Fails where the worker has ended.
fn seal(database: &Database, keyspace: &Keyspace) -> fjall::Result<()> {
    while keyspace.tree.sealed_memtable_count() >= SEALED_MAX {
        // Fails after any failure of the LSM.
        database.persist(PersistMode::Buffer)?;
        std::thread::sleep(SEALED_POLL);
    }
    keyspace.rotate_memtable().map(|_| ())
}

/// Brings everything into tables, so that the next start finds no journal that it would have to read again, or a short one.
pub(super) fn flush(keyspaces: &[&Keyspace]) -> fjall::Result<()> {
    let began = Instant::now();
    for keyspace in keyspaces {
        keyspace.rotate_memtable()?;
    }
    // The LSM's worker may be merging; whoever stops the process does not wait for all of that.
    while keyspaces.iter().any(|keyspace| keyspace.tree.sealed_memtable_count() > 0) && began.elapsed() < FLUSH_WITHIN {
        std::thread::sleep(FLUSH_POLL);
    }
    Ok(())
}
