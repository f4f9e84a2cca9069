//! Inspects the folder of an LSM before the LSM opens it: the folder is absent, unfinished, complete, damaged or of a newer format.
//!
//! The LSM writes the file `version` last when it creates a folder, and cannot open a folder without it. Only a folder that never held an
//! entry may be removed. A folder with entries and without that file is damaged. A folder of a newer format belongs to a newer version
//! of Whimbrel and must not be changed.

use std::io;
use std::path::{Path, PathBuf};

use super::journal::{self, JournalError};

const VERSION_FILE: &str = "version";
/// The contents of the file, as fjall 3 writes them: a name and the number of the format.
const VERSION: [u8; 4] = *b"FJL\x03";
/// The folder of the keyspaces. The LSM creates the first keyspace after `version`.
pub(super) const KEYSPACES: &str = "keyspaces";

/// A folder that can be opened, or created again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreFolderState {
    Absent,
    /// Its creation was interrupted. It never held an entry.
    Unfinished,
    Complete,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FolderError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{file}: {reason}", file = file.display())]
    Damaged { file: PathBuf, reason: String },
    #[error(
        "{file} has version {version} of the store format; this version of Whimbrel reads version {supported}. Start the version of \
         Whimbrel that wrote the store, or a newer one",
        file = file.display(), supported = VERSION[3]
    )]
    Newer { file: PathBuf, version: u8 },
}

/// Examines a folder and changes nothing.
pub(crate) fn inspect(folder: &Path) -> Result<StoreFolderState, FolderError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| FolderError::Io { path, source }
    };
    if !folder.try_exists().map_err(failed(folder))? {
        return Ok(StoreFolderState::Absent);
    }
    let file = folder.join(VERSION_FILE);
    let version = match std::fs::read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.map_err(failed(&file))?),
    };
    if version.as_deref() == Some(&VERSION) {
        return Ok(StoreFolderState::Complete);
    }
    let has_batch = match journal::check(folder) {
        Ok(checked) => checked.last_seqno.is_some(),
        Err(JournalError::Damaged(_)) => true,
        Err(JournalError::Io { path, source }) => return Err(FolderError::Io { path, source }),
    };
    let reason = match version.as_deref() {
        // If the journals have a complete batch in the known format, the file `version` is damaged.
        Some([b'F', b'J', b'L', version]) if *version > VERSION[3] && !has_batch => {
            return Err(FolderError::Newer { file, version: *version });
        }
        Some([b'F', b'J', b'L', _]) => "it contains the version of another store format",
        Some([]) | None if !has_batch && !has_keyspaces(folder).map_err(failed(folder))? => {
            return Ok(StoreFolderState::Unfinished);
        }
        Some([]) | None => "the file is missing or empty, although the store has entries",
        Some(_) => "it does not contain the version of a store format",
    };
    Err(FolderError::Damaged { file, reason: reason.to_owned() })
}

/// Removes a folder whose creation was interrupted: the LSM cannot open it.
pub(crate) fn prepare(folder: &Path) -> Result<(), FolderError> {
    if inspect(folder)? == StoreFolderState::Unfinished {
        tracing::warn!(folder = %folder.display(), "removing a store whose creation was interrupted");
        let failed = |source| FolderError::Io { path: folder.to_owned(), source };
        std::fs::remove_dir_all(folder).map_err(failed)?;
    }
    Ok(())
}

/// Writes the file `version` again if it is damaged, so that the LSM opens the rest of the folder.
pub(crate) fn restore_version(folder: &Path) -> io::Result<()> {
    if let Err(FolderError::Damaged { file, .. }) = inspect(folder) {
        std::fs::write(&file, VERSION)?;
        std::fs::File::open(&file)?.sync_all()?;
    }
    Ok(())
}

fn has_keyspaces(folder: &Path) -> io::Result<bool> {
    match std::fs::read_dir(folder.join(KEYSPACES)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        entries => Ok(entries?.next().is_some()),
    }
}
