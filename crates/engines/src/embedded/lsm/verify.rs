//! Reads every checksum of an LSM without changing it, even beside a running server.
//!
//! Opening an LSM can change it, so the check opens a copy. It links the tables, which never change, and copies everything else. The
//! folder of the copy is beside the store; the check removes it afterwards. The LSM records the checksum of each table file that it
//! writes, so the check can name a damaged file.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fjall::{AbstractTree as _, Keyspace, KeyspaceCreateOptions};
use xxhash_rust::xxh3::Xxh3;

use super::fault::FaultKind;
use super::folder::{self, FolderError, StoreFolderState};
use super::guard::caught;
use super::journal::{self, JournalError};
use super::manifest;
use crate::embedded::slices::small_database;

/// The suffix of the folder of the copy.
const COPY: &str = "check";
/// Attempts to copy a store while a running server creates and removes files.
const ATTEMPTS_MAX: usize = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(50);
/// The folders of files that never change.
const TABLES: &str = "tables";
/// Bytes of a table that are read at once.
const READ_BYTES: usize = 256 << 10;
const CACHE_BYTES: u64 = 8 << 20;

/// Receives the number of bytes of each read.
pub(crate) type OnRead<'a> = &'a dyn Fn(u64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreCheck {
    /// The check could read everything, in this many files.
    Sound {
        files: usize,
    },
    Damaged {
        file: PathBuf,
        position: u64,
        reason: String,
    },
    NotChecked {
        reason: String,
    },
}

/// The number of bytes that [`verify`] reads: the size of all files. A file or folder that cannot be read counts as empty.
pub(crate) fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes_of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes_of).sum()
}

/// Checks the journals, the manifests and all tables of a store.
pub(crate) fn verify(folder: &Path, on_read: OnRead<'_>) -> StoreCheck {
    let mut last = StoreCheck::NotChecked { reason: "no attempt was made".to_owned() };
    let uncounted = |_: u64| {};
    for attempt in 0..ATTEMPTS_MAX {
        // Further attempts read the same bytes again.
        last = verify_once(folder, if attempt == 0 { on_read } else { &uncounted });
        // Beside a running server the copy may be of two moments, and a journal may be read while it is written. Real damage shows
        // again at the next attempt.
        if matches!(last, StoreCheck::Sound { .. }) {
            break;
        }
        std::thread::sleep(ATTEMPT_PAUSE);
    }
    last
}

fn verify_once(folder: &Path, on_read: OnRead<'_>) -> StoreCheck {
    match folder::inspect(folder) {
        Ok(StoreFolderState::Complete) => {}
        // The server creates it again.
        Ok(StoreFolderState::Absent | StoreFolderState::Unfinished) => return StoreCheck::Sound { files: 0 },
        Err(FolderError::Damaged { file, reason }) => {
            return StoreCheck::Damaged { file, position: 0, reason };
        }
        Err(error) => return StoreCheck::NotChecked { reason: error.to_string() },
    }
    match journal::check(folder) {
        Ok(_) => {}
        Err(JournalError::Damaged(damage)) => {
            let (file, position, reason) = (damage.file, damage.position, damage.reason.to_owned());
            return StoreCheck::Damaged { file, position, reason };
        }
        Err(error) => return StoreCheck::NotChecked { reason: error.to_string() },
    }
    let copy = StoreCopy(folder.with_extension(COPY));
    let files = match copy.make(folder, on_read) {
        Ok(files) => files,
        Err(error) => return StoreCheck::NotChecked { reason: format!("cannot copy it: {error}") },
    };
    let read = caught(|| read_all(&copy.0, on_read));
    match read.unwrap_or_else(|panic| Err(TableDamage::of(copy.0.clone(), panic))) {
        Ok(()) => StoreCheck::Sound { files },
        Err(TableDamage { file, reason, .. }) => {
            let file = original(&file, &copy.0, folder).unwrap_or_else(|| folder.to_owned());
            StoreCheck::Damaged { file, position: 0, reason }
        }
    }
}

/// Maps a file of the copy to the file of the store. The LSM reports absolute paths.
fn original(file: &Path, copy: &Path, folder: &Path) -> Option<PathBuf> {
    let copy = std::path::absolute(copy).ok()?;
    let inside = file.strip_prefix(copy).ok()?;
    (!inside.as_os_str().is_empty()).then(|| folder.join(inside))
}

/// A damaged table or manifest, or the folder if the LSM does not report which one it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableDamage {
    pub file: PathBuf,
    pub reason: String,
    /// Wrong bytes, or bytes that the device cannot read.
    pub kind: FaultKind,
}

impl TableDamage {
    fn of(file: PathBuf, reason: String) -> Self {
        Self { file, reason, kind: FaultKind::Damage }
    }
}

fn read_all(copy: &Path, on_read: OnRead<'_>) -> Result<(), TableDamage> {
    let failed = |error: &dyn std::fmt::Display| TableDamage::of(copy.to_owned(), error.to_string());
    let checked = journal::repair(copy).map_err(|error| failed(&error))?;
    let checked = std::path::absolute(copy).map(|copy| manifest::check(&copy, checked.last_seqno.is_some()));
    checked.map_err(|error| failed(&error))?.map_err(|error| match error {
        FolderError::Damaged { file, reason } => TableDamage::of(file, reason),
        error => failed(&error),
    })?;
    let database = small_database(copy, CACHE_BYTES).open().map_err(|error| failed(&error))?;
    for name in database.list_keyspace_names() {
        let keyspace = database.keyspace(&name, KeyspaceCreateOptions::default).map_err(|error| failed(&error))?;
        check_tables(&keyspace, on_read)?;
    }
    Ok(())
}

/// Reads every table file of a keyspace and compares its checksum with the one that the LSM recorded.
pub(super) fn check_tables(keyspace: &Keyspace, on_read: OnRead<'_>) -> Result<(), TableDamage> {
    for table in keyspace.tree.current_version().iter_tables() {
        let (kind, reason) = match checksum_of(&table.path, on_read) {
            Ok(checksum) if checksum == table.checksum().into_u128() => continue,
            Ok(_) => (FaultKind::Damage, "the checksum of the table is wrong".to_owned()),
            Err(error) => (FaultKind::of_io(&error), error.to_string()),
        };
        if !matches!(kind, FaultKind::Damage | FaultKind::Device) {
            // For want of file descriptors or memory, for example: that is no reason to set a sound store aside.
            tracing::warn!(table = %table.path.display(), reason, "cannot check a table; its checksum is not compared");
            continue;
        }
        return Err(TableDamage { file: table.path.to_path_buf(), reason, kind });
    }
    Ok(())
}

fn checksum_of(table: &Path, on_read: OnRead<'_>) -> io::Result<u128> {
    let (mut file, mut hasher, mut bytes) = (File::open(table)?, Xxh3::new(), vec![0; READ_BYTES]);
    loop {
        let read = file.read(&mut bytes)?;
        if read == 0 {
            return Ok(hasher.digest128());
        }
        hasher.update(&bytes[..read]);
        on_read(read as u64);
    }
}

/// Removes the copy that a killed check left behind.
pub(super) fn remove_copy(folder: &Path) {
    StoreCopy(folder.with_extension(COPY)).remove();
}

/// The folder of the copy, removed when this is dropped.
struct StoreCopy(PathBuf);

impl StoreCopy {
    fn make(&self, folder: &Path, on_read: OnRead<'_>) -> io::Result<usize> {
        self.remove();
        copy_folder(folder, &self.0, on_read)
    }

    fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for StoreCopy {
    fn drop(&mut self) {
        self.remove();
    }
}

fn copy_folder(from: &Path, to: &Path, on_read: OnRead<'_>) -> io::Result<usize> {
    std::fs::create_dir_all(to)?;
    let is_tables = from.file_name().is_some_and(|name| name == TABLES);
    let mut files = 0;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            files += copy_folder(&entry.path(), &target, on_read)?;
            continue;
        }
        if is_tables {
            std::fs::hard_link(entry.path(), &target)?;
        } else {
            on_read(std::fs::copy(entry.path(), &target)?);
        }
        files += 1;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use fjall::PersistMode;

    use super::super::testing::flip;
    use fjall::Database;

    use super::*;

    /// A store with rows in tables and in its journal, open.
    fn store(folder: &Path) -> Database {
        let database = Database::builder(folder).worker_threads(1).open().unwrap();
        let rows = database.keyspace("rows", KeyspaceCreateOptions::default).unwrap();
        for number in 0..100 {
            rows.insert(format!("{number:04}"), "value").unwrap();
        }
        rows.rotate_memtable_and_wait().unwrap();
        rows.insert("last", "value").unwrap();
        database.persist(PersistMode::SyncData).unwrap();
        database
    }

    /// A table of the keyspace `rows`; the keyspace 0 is the LSM's own.
    fn table(folder: &Path) -> PathBuf {
        let keyspaces = std::fs::read_dir(folder.join("keyspaces")).unwrap().map(|entry| entry.unwrap().path());
        let keyspaces = keyspaces.filter(|keyspace| !keyspace.ends_with("0"));
        let mut tables = keyspaces.flat_map(|keyspace| std::fs::read_dir(keyspace.join(TABLES)).into_iter().flatten());
        tables.find_map(|table| table.ok().map(|table| table.path())).unwrap()
    }

    #[test]
    fn an_open_store_passes_the_check_and_the_copy_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holds");
        let database = store(&path);
        let read = std::cell::Cell::new(0);
        let on_read = |bytes| read.set(read.get() + bytes);
        assert!(matches!(verify(&path, &on_read), StoreCheck::Sound { files } if files > 3));
        let (read, all) = (read.get(), bytes_in(&path));
        assert!(read > all / 2 && read <= all, "{read} of {all} bytes are counted");
        drop(database);
        assert!(matches!(verify(&path, &|_| {}), StoreCheck::Sound { .. }));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_flipped_bit_in_a_table_or_a_journal_is_found_and_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holds");
        drop(store(&path));
        let table = table(&path);
        flip(&table, 30);
        let damaged = std::fs::read(&table).unwrap();
        let StoreCheck::Damaged { file, .. } = verify(&path, &|_| {}) else { panic!("the damage is not found") };
        assert_eq!(file, table, "the report names the table");
        assert_eq!(std::fs::read(&table).unwrap(), damaged);
        flip(&table, 30);
        assert!(matches!(verify(&path, &|_| {}), StoreCheck::Sound { .. }));
        flip(&path.join("0.jnl"), 20);
        let StoreCheck::Damaged { file, position, .. } = verify(&path, &|_| {}) else { panic!("it is not found") };
        assert_eq!((file, position), (path.join("0.jnl"), 0));
    }

    #[test]
    fn merged_tables_are_sound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holds");
        let database = store(&path);
        let rows = database.keyspace("rows", KeyspaceCreateOptions::default).unwrap();
        rows.insert("0050", "another value").unwrap();
        rows.remove("0051").unwrap();
        rows.rotate_memtable_and_wait().unwrap();
        rows.major_compact().unwrap();
        assert!(matches!(verify(&path, &|_| {}), StoreCheck::Sound { .. }));
    }
}
