//! Opens a guarded store: checks its files, opens the LSM, and checks what the LSM found.

use std::path::Path;

use fjall::{AbstractTree as _, Keyspace, PersistMode};

use super::super::fault::FaultKind;
use super::super::folder::{self, FolderError};
use super::super::journal;
use super::super::manifest;
use super::super::report::StoreDamage;
use super::super::verify;
use super::{LsmStore, caught, close};
use crate::embedded::slices::small_keyspace;

/// Bytes that the guard writes and syncs before it uses a reopened store: more than a disk block, so that a full disk rejects
/// them.
const PROBE_BYTES: usize = 64 << 10;
const PROBE: &str = "probe";

/// Why a store cannot be opened.
#[derive(Debug)]
pub(super) enum OpenFailure {
    /// The bytes on disk are not known to be wrong: a later attempt may succeed.
    Passing(StoreDamage),
    Damaged(StoreDamage),
    /// The folder is of a newer version. The process must not start with it, nor change it.
    Refused(String),
}

impl From<FolderError> for OpenFailure {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::Newer { .. } => Self::Refused(error.to_string()),
            error => Self::from(StoreDamage::from(error)),
        }
    }
}

impl From<StoreDamage> for OpenFailure {
    fn from(damage: StoreDamage) -> Self {
        if damage.is_damage() { Self::Damaged(damage) } else { Self::Passing(damage) }
    }
}

/// Checks the files of an LSM and opens it. After repeated failures, also reads all of its tables before it is used.
pub(super) fn open_checked<T: LsmStore>(
    path: &Path,
    open: impl Fn(&Path) -> fjall::Result<T>,
    is_verified: bool,
) -> Result<T, OpenFailure> {
    let damaged = |reason: String| OpenFailure::Damaged(StoreDamage::of_folder(path, reason));
    folder::prepare(path)?;
    let checked = journal::repair(path).map_err(StoreDamage::from)?;
    manifest::check(path, checked.last_seqno.is_some())?;
    let opened = caught(|| {
        let store = open(path)?;
        let keyspaces = store.keyspaces();
        // The LSM syncs its journal before it writes tables from it. If the tables have writes that the journal lacks, the journal
        // lost more than an unsynced end.
        let in_tables = keyspaces.iter().filter_map(|keyspace| keyspace.tree.get_highest_persisted_seqno()).max();
        let damaged_table = is_verified.then(|| damaged_table(&keyspaces)).flatten();
        Ok((store, in_tables, damaged_table))
    });
    let opened = opened.map_err(damaged)?;
    let (store, in_tables, damaged_table) = opened.map_err(|error| StoreDamage::of_lsm(path, &error))?;
    if let Some(damage) = damaged_table {
        close(store);
        return Err(damage.into());
    }
    if in_tables.is_some_and(|seqno| checked.misses(seqno)) {
        close(store);
        return Err(damaged("the journal lost writes that the tables have".to_owned()));
    }
    Ok(store)
}

/// The first table of these keyspaces that is damaged, or that the disk cannot read.
pub(in super::super) fn damaged_table(keyspaces: &[Keyspace]) -> Option<StoreDamage> {
    let damage = keyspaces.iter().find_map(|keyspace| verify::check_tables(keyspace, &|_| {}).err())?;
    Some(StoreDamage::of_file(&damage.file, damage.reason).of_kind(damage.kind))
}

/// Writes and syncs a test value. A disk that does not take it is no reason to discard files that can be read.
pub(super) fn probe<T: LsmStore>(path: &Path, store: &T) -> Result<(), StoreDamage> {
    let write = || {
        let keyspace = store.database().keyspace(PROBE, small_keyspace)?;
        keyspace.insert(PROBE, vec![7; PROBE_BYTES])?;
        store.database().persist(PersistMode::SyncData)
    };
    write().map_err(|error: fjall::Error| match StoreDamage::of_lsm(path, &error) {
        full if full.kind == FaultKind::Full => full,
        other => other.of_kind(FaultKind::Passing),
    })
}
