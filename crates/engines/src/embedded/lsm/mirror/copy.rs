//! One copy of a mirrored store: an LSM whose batches are numbered.

use std::path::{Path, PathBuf};

use fjall::{Database, Keyspace, OwnedWriteBatch, PersistMode, Slice};

use super::super::fault::FaultKind;
use super::super::folder::{self, FolderError};
use super::super::guard::{caught, close, damaged_table};
use super::super::journal::{self, JournalError};
use super::super::manifest;
use super::super::report::StoreDamage;
use super::{MirrorBatch, MirrorSettings, RowChange};
use crate::embedded::memtable_sealer::{MemtableSealer, flush};
use crate::embedded::slices::{MEMTABLE_BYTES, small_database, small_keyspace};
use crate::embedded::thread_priority::lower_priority;

/// The keyspace of the copy's own state, and its only key.
const STATE_KEYSPACE: &str = "mirror";
const STATE_KEY: &[u8] = b"state";
/// The format of the state, which is stored on disk.
const FORMAT: u8 = 1;
const STATE_BYTES: usize = 1 + 8 + 8;
/// The suffix of a folder that is kept after data was lost.
const SET_ASIDE: &str = "damaged";
/// Rows that are copied in one batch.
const COPIED_AT_ONCE: usize = 1_000;

/// The sequence numbers of a copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CopyState {
    pub seq: u64,
    /// The number of a batch that both copies had synced when the last batch was written.
    pub synced: u64,
}

impl CopyState {
    fn encode(self) -> [u8; STATE_BYTES] {
        let mut value = [FORMAT; STATE_BYTES];
        value[1..9].copy_from_slice(&self.seq.to_le_bytes());
        value[9..].copy_from_slice(&self.synced.to_le_bytes());
        value
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let (&FORMAT, rest) = value.split_first()? else { return None };
        let (seq, synced) = rest.split_first_chunk()?;
        Some(Self { seq: u64::from_le_bytes(*seq), synced: u64::from_le_bytes(synced.try_into().ok()?) })
    }
}

/// Why a copy cannot be used.
#[derive(Debug)]
pub(super) enum CopyFailure {
    Lsm(fjall::Error),
    Folder(FolderError),
    Journal(JournalError),
    Io(std::io::Error),
    Panic(String),
}

impl From<fjall::Error> for CopyFailure {
    fn from(error: fjall::Error) -> Self {
        Self::Lsm(error)
    }
}

impl From<std::io::Error> for CopyFailure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl CopyFailure {
    pub fn damage(self, path: &Path) -> StoreDamage {
        match self {
            Self::Lsm(error) => StoreDamage::of_lsm(path, &error),
            Self::Folder(error) => error.into(),
            Self::Journal(error) => error.into(),
            Self::Io(error) => StoreDamage::of_io(path, &error),
            Self::Panic(reason) => StoreDamage::of_folder(path, reason),
        }
    }
}

/// Turns a panic of the LSM into a failure of the copy.
pub(super) fn guarded<R>(work: impl FnOnce() -> Result<R, CopyFailure>) -> Result<R, CopyFailure> {
    caught(work).unwrap_or_else(|panic| Err(CopyFailure::Panic(panic)))
}

pub(super) struct CopyDb {
    database: Database,
    keyspaces: Vec<Keyspace>,
    state_keyspace: Keyspace,
    sealing: MemtableSealer,
    opened_at: CopyState,
}

/// A copy that was made from another one.
pub(super) struct CopyResult {
    pub db: CopyDb,
    /// The part of the other one that could not be read.
    pub lost: Option<String>,
}

impl CopyDb {
    /// Opens a copy whose journals and manifests were checked, or creates it.
    pub fn open_checked(path: &Path, settings: &MirrorSettings) -> Result<Self, CopyFailure> {
        folder::prepare(path).map_err(CopyFailure::Folder)?;
        let checked = journal::repair(path).map_err(CopyFailure::Journal)?;
        manifest::check(path, checked.last_seqno.is_some()).map_err(CopyFailure::Folder)?;
        Self::open_unchecked(path, settings)
    }

    /// Opens a copy without the batches behind damaged places of its journals. Refuses a copy with a damaged manifest: the LSM would
    /// delete its tables.
    pub fn salvage(path: &Path, settings: &MirrorSettings) -> Result<Self, CopyFailure> {
        folder::restore_version(path)?;
        journal::salvage(path).map_err(CopyFailure::Journal)?;
        let has_batch = journal::check(path).map_err(CopyFailure::Journal)?.last_seqno.is_some();
        manifest::check(path, has_batch).map_err(CopyFailure::Folder)?;
        Self::open_unchecked(path, settings)
    }

    fn open_unchecked(path: &Path, settings: &MirrorSettings) -> Result<Self, CopyFailure> {
        guarded(|| {
            let builder = small_database(path, settings.cache_bytes);
            let database = builder.max_journaling_size(settings.journal_bytes_max).open()?;
            let keyspaces = settings.keyspaces.iter().map(|name| database.keyspace(name, small_keyspace));
            let keyspaces = keyspaces.collect::<fjall::Result<Vec<_>>>()?;
            let state_keyspace = database.keyspace(STATE_KEYSPACE, small_keyspace)?;
            let state = state_keyspace.get(STATE_KEY)?;
            // A store of an earlier version has no state.
            let opened_at = state.as_deref().and_then(CopyState::decode).unwrap_or_default();
            lower_priority("fjall:worker");
            Ok(Self { database, keyspaces, state_keyspace, sealing: MemtableSealer::default(), opened_at })
        })
    }

    /// The first damaged table, if one can be found.
    pub fn damaged_table(&self) -> Option<StoreDamage> {
        caught(|| damaged_table(&self.keyspaces)).ok().flatten()
    }

    /// The state that the copy had when it was opened.
    pub fn state(&self) -> CopyState {
        self.opened_at
    }

    pub fn get(&self, keyspace: usize, key: &[u8]) -> Result<Option<Slice>, CopyFailure> {
        Ok(self.keyspaces[keyspace].get(key)?)
    }

    pub fn prefix(&self, keyspace: usize, prefix: &[u8], limit: usize) -> Result<Vec<(Slice, Slice)>, CopyFailure> {
        let rows = self.keyspaces[keyspace].prefix(prefix).take(limit);
        Ok(rows.map(fjall::Guard::into_inner).collect::<fjall::Result<_>>()?)
    }

    pub fn commit(&self, batch: &MirrorBatch, seq: u64, synced: u64) -> Result<(), CopyFailure> {
        let mut written = self.database.batch().durability(Some(PersistMode::Buffer));
        for (keyspace, change) in batch {
            let keyspace = &self.keyspaces[*keyspace];
            match change {
                RowChange::Insert(key, value) => written.insert(keyspace, &key[..], &value[..]),
                RowChange::Remove(key) => written.remove(keyspace, &key[..]),
            }
        }
        self.finish(written, CopyState { seq, synced })
    }

    fn finish(&self, mut batch: OwnedWriteBatch, state: CopyState) -> Result<(), CopyFailure> {
        batch.insert(&self.state_keyspace, STATE_KEY, state.encode());
        batch.commit()?;
        let all = self.keyspaces.iter().chain([&self.state_keyspace]);
        Ok(self.sealing.after_write(&self.database, &all.map(|each| (each, MEMTABLE_BYTES)).collect::<Vec<_>>())?)
    }

    pub fn sync(&self) -> Result<(), CopyFailure> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }

    pub fn flush(&self) -> Result<(), CopyFailure> {
        let all: Vec<_> = self.keyspaces.iter().chain([&self.state_keyspace]).collect();
        Ok(flush(&all)?)
    }

    /// Makes a synced copy in `folder`, moves it to `path` in place of the existing copy, and opens it.
    ///
    /// If a table cannot be read, takes the missing entries from the existing copy at `path`, as far as it has them, and keeps that copy
    /// under another name. Also keeps an existing copy that `is_unread`.
    pub fn copy_to(
        &self,
        folder: &Path,
        path: &Path,
        is_unread: bool,
        settings: &MirrorSettings,
    ) -> Result<CopyResult, CopyFailure> {
        remove_folder(folder)?;
        let copy = Self::open_unchecked(folder, settings)?;
        let state = self.state_keyspace.get(STATE_KEY)?.as_deref().and_then(CopyState::decode).unwrap_or_default();
        let mut lost = None;
        for (index, keyspace) in self.keyspaces.iter().enumerate() {
            let is_whole = copy_rows(keyspace, |rows| copy.insert(index, rows, state))?;
            if !is_whole {
                let name = settings.keyspaces[index];
                lost = Some(format!("a table of `{name}` cannot be read; entries may be missing or outdated"));
            }
        }
        let keeps_old = (lost.is_some() || is_unread) && path.is_dir();
        if keeps_old
            && lost.is_some()
            && let Ok(old) = Self::salvage(path, settings)
        {
            copy.fill_from(&old, state)?;
            close(old);
        }
        copy.finish(copy.database.batch(), state)?;
        copy.database.persist(PersistMode::SyncAll)?;
        close(copy);
        if keeps_old {
            set_aside(path)?
        } else {
            remove_folder(path)?
        }
        std::fs::rename(folder, path)?;
        if let Some(parent) = path.parent() {
            std::fs::File::open(parent)?.sync_all()?;
        }
        Ok(CopyResult { db: Self::open_unchecked(path, settings)?, lost })
    }

    fn insert(&self, keyspace: usize, rows: Vec<(Slice, Slice)>, state: CopyState) -> Result<(), CopyFailure> {
        let mut batch = self.database.batch().durability(Some(PersistMode::Buffer));
        rows.into_iter().for_each(|(key, value)| batch.insert(&self.keyspaces[keyspace], key, value));
        self.finish(batch, state)
    }

    /// Adds the entries of another copy that this one does not have.
    fn fill_from(&self, other: &Self, state: CopyState) -> Result<(), CopyFailure> {
        for (index, keyspace) in other.keyspaces.iter().enumerate() {
            copy_rows(keyspace, |rows| {
                let mut missing = Vec::new();
                for (key, value) in rows {
                    if !self.keyspaces[index].contains_key(&key)? {
                        missing.push((key, value));
                    }
                }
                self.insert(index, missing, state)
            })?;
        }
        Ok(())
    }
}

/// Passes all readable rows to `take`: from the first key on, and, if a damaged table stops that, from the last key back. Returns
/// whether these are all rows.
fn copy_rows(
    keyspace: &Keyspace,
    mut take: impl FnMut(Vec<(Slice, Slice)>) -> Result<(), CopyFailure>,
) -> Result<bool, CopyFailure> {
    let mut rows = Vec::with_capacity(COPIED_AT_ONCE);
    let mut last = None;
    let mut is_whole = true;
    for entry in keyspace.iter() {
        match entry.into_inner() {
            Ok((key, value)) => {
                last = Some(key.clone());
                rows.push((key, value));
            }
            // Skips only damaged bytes; a device error may be temporary.
            Err(error) if FaultKind::of(&error) != FaultKind::Damage => return Err(error.into()),
            Err(_) => {
                is_whole = false;
                break;
            }
        }
        if rows.len() == COPIED_AT_ONCE {
            take(std::mem::take(&mut rows))?;
        }
    }
    if !is_whole {
        for entry in keyspace.iter().rev() {
            match entry.into_inner() {
                Ok((key, value)) if last.as_ref().is_none_or(|last| key > *last) => rows.push((key, value)),
                Err(error) if FaultKind::of(&error) != FaultKind::Damage => return Err(error.into()),
                _ => break,
            }
            if rows.len() == COPIED_AT_ONCE {
                take(std::mem::take(&mut rows))?;
            }
        }
    }
    take(rows)?;
    Ok(is_whole)
}

/// Keeps a folder under another name, in place of one that was kept before.
pub(super) fn set_aside(path: &Path) -> std::io::Result<()> {
    let kept_as = PathBuf::from(format!("{}.{SET_ASIDE}", path.display()));
    remove_folder(&kept_as)?;
    std::fs::rename(path, kept_as)
}

fn remove_folder(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
