//! Reads every checksum of an LSM without changing it, even beside a running server.
//!
//! Opening an LSM can change it, so the check opens a copy. It links the tables, which never change, and copies everything else. The
//! folder of the copy is beside the store; the check removes it afterwards.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fjall::{Database, Keyspace, KeyspaceCreateOptions};

use super::folder::{self, FolderError, FolderState};
use super::guard::caught;
use super::journal::{self, JournalError};

/// The suffix of the folder of the copy.
const COPY: &str = "check";
/// Attempts to copy a store while a running server creates and removes files.
const ATTEMPTS_MAX: usize = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(50);
/// The folders of files that never change.
const TABLES: &str = "tables";

/// The outcome of a check.
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

/// Checks the journals and all tables of a store.
pub(crate) fn verify(folder: &Path) -> StoreCheck {
    let mut last = StoreCheck::NotChecked { reason: "no attempt was made".to_owned() };
    for _ in 0..ATTEMPTS_MAX {
        last = verify_once(folder);
        // Beside a running server the copy may be of two moments, and a journal may be read while it is written. Real damage shows
        // again at the next attempt.
        if matches!(last, StoreCheck::Sound { .. }) {
            break;
        }
        std::thread::sleep(ATTEMPT_PAUSE);
    }
    last
}

fn verify_once(folder: &Path) -> StoreCheck {
    match folder::inspect(folder) {
        Ok(FolderState::Complete) => {}
        // The server creates it again.
        Ok(FolderState::Absent | FolderState::Unfinished) => return StoreCheck::Sound { files: 0 },
        Err(FolderError::Damaged { file, reason }) => {
            return StoreCheck::Damaged { file, position: 0, reason: reason.to_owned() };
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
    let copy = Copy(folder.with_extension(COPY));
    let files = match copy.make(folder) {
        Ok(files) => files,
        Err(error) => return StoreCheck::NotChecked { reason: format!("cannot copy it: {error}") },
    };
    match caught(|| read_all(&copy.0)).unwrap_or_else(Err) {
        Ok(()) => StoreCheck::Sound { files },
        Err(reason) => StoreCheck::Damaged { file: folder.to_owned(), position: 0, reason },
    }
}

fn read_all(copy: &Path) -> Result<(), String> {
    let failed = |error: fjall::Error| error.to_string();
    journal::repair(copy).map_err(|error| error.to_string())?;
    let database = Database::builder(copy).worker_threads(1).open().map_err(failed)?;
    for name in database.list_keyspace_names() {
        let keyspace = database.keyspace(&name, KeyspaceCreateOptions::default).map_err(failed)?;
        read(&keyspace).map_err(|error| format!("the keyspace `{name}` cannot be read: {error}"))?;
    }
    Ok(())
}

/// Reads every entry of a keyspace, and so every checksum of its tables.
pub(super) fn read(keyspace: &Keyspace) -> fjall::Result<()> {
    keyspace.iter().try_for_each(|entry| entry.into_inner().map(|_| ()))
}

/// Removes the copy that a killed check left behind.
pub(super) fn remove_copy(folder: &Path) {
    Copy(folder.with_extension(COPY)).remove();
}

/// The folder of the copy, removed when this is dropped.
struct Copy(PathBuf);

impl Copy {
    fn make(&self, folder: &Path) -> io::Result<usize> {
        self.remove();
        copy_folder(folder, &self.0)
    }

    fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.remove();
    }
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<usize> {
    std::fs::create_dir_all(to)?;
    let is_tables = from.file_name().is_some_and(|name| name == TABLES);
    let mut files = 0;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            files += copy_folder(&entry.path(), &target)?;
            continue;
        }
        if is_tables {
            std::fs::hard_link(entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
        files += 1;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use fjall::PersistMode;

    use super::super::testing::flip;
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

    fn table(folder: &Path) -> PathBuf {
        let keyspaces = std::fs::read_dir(folder.join("keyspaces")).unwrap().map(|entry| entry.unwrap().path());
        let mut tables = keyspaces.flat_map(|keyspace| std::fs::read_dir(keyspace.join(TABLES)).into_iter().flatten());
        tables.find_map(|table| table.ok().map(|table| table.path())).unwrap()
    }

    #[test]
    fn a_sound_store_is_sound_also_while_it_is_open_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holds");
        let database = store(&path);
        assert!(matches!(verify(&path), StoreCheck::Sound { files } if files > 3));
        drop(database);
        assert!(matches!(verify(&path), StoreCheck::Sound { .. }));
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
        assert!(matches!(verify(&path), StoreCheck::Damaged { .. }));
        assert_eq!(std::fs::read(&table).unwrap(), damaged);
        flip(&table, 30);
        assert!(matches!(verify(&path), StoreCheck::Sound { .. }));
        flip(&path.join("0.jnl"), 20);
        let StoreCheck::Damaged { file, position, .. } = verify(&path) else { panic!("the damage is not found") };
        assert_eq!((file, position), (path.join("0.jnl"), 0));
    }
}
