//! Checks the manifests of an LSM before the LSM opens them.
//!
//! The manifest of a keyspace, `v<number>`, lists its tables. The file `current` beside it has the number and the checksum of the newest
//! manifest. The LSM ignores that checksum. It deletes tables that a damaged manifest does not list, and keyspaces without `current`. So
//! this module compares the checksums, and looks for every keyspace that the LSM's own keyspace names.
//!
//! The layout is that of lsm-tree 3 and fjall 3. `tests` damages what the library writes, so a changed layout fails there.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use lsm_tree::{AbstractTree as _, Cache, Config, Guard as _, SeqNo};
use xxhash_rust::xxh3::xxh3_128;

use super::fault::FaultKind;
use super::folder::{self, FolderError, KEYSPACES, StoreFolderState};
use super::guard::caught;

const CURRENT: &str = "current";
/// The kind of the checksum in `current`: XXH3.
const CHECKSUM_KIND: u8 = 0;
/// The LSM's own keyspace. It is created first, and names the others.
const OWN: u64 = 0;
/// The first byte of the keys that name a keyspace. The number of the keyspace follows.
const NAME_TAG: u8 = b'n';
const TABLES: &str = "tables";
/// Memory for the few blocks of the LSM's own keyspace.
const CACHE_BYTES: u64 = 64 << 10;

/// Checks the manifests of all keyspaces. `has_batch` is whether the journals have a batch, so that there must be a keyspace.
pub(crate) fn check(folder: &Path, has_batch: bool) -> Result<(), FolderError> {
    if folder::inspect(folder)? != StoreFolderState::Complete {
        return Ok(());
    }
    let keyspaces = folder.join(KEYSPACES);
    let found = numbers(&keyspaces).map_err(failed(&keyspaces))?;
    let mut sound = BTreeSet::new();
    for number in &found {
        if has_sound_manifest(&keyspaces.join(number.to_string()))? {
            sound.insert(*number);
        }
    }
    let own = keyspaces.join(OWN.to_string());
    if !sound.contains(&OWN) {
        let is_unfinished = !has_batch && found.iter().all(|number| *number == OWN) && !has_tables(&own)?;
        return if is_unfinished { Ok(()) } else { Err(without_current(&own)) };
    }
    // A keyspace is named after its creation and until its deletion.
    match named(&own)?.iter().find(|number| !sound.contains(number)) {
        Some(lost) => Err(without_current(&keyspaces.join(lost.to_string()))),
        None => Ok(()),
    }
}

/// Compares the manifest with its checksum. Returns false if the keyspace has no `current`.
fn has_sound_manifest(keyspace: &Path) -> Result<bool, FolderError> {
    let file = keyspace.join(CURRENT);
    let current = match std::fs::read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        read => read.map_err(failed(&file))?,
    };
    let Some((number, checksum)) = decode(&current) else {
        return Err(damaged(&file, "it does not name a manifest"));
    };
    let file = keyspace.join(format!("v{number}"));
    match std::fs::read(&file) {
        Ok(manifest) if xxh3_128(&manifest) == checksum => Ok(true),
        Ok(_) => Err(damaged(&file, "the checksum of the manifest is wrong")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(damaged(&file, "the manifest is missing")),
        Err(error) => Err(failed(&file)(error)),
    }
}

fn decode(current: &[u8]) -> Option<(u64, u128)> {
    let (number, rest) = current.split_first_chunk()?;
    let (checksum, kind) = rest.split_first_chunk()?;
    (kind == [CHECKSUM_KIND]).then(|| (u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
}

/// The numbers of the keyspaces that have a folder.
fn numbers(keyspaces: &Path) -> io::Result<Vec<u64>> {
    let entries = match std::fs::read_dir(keyspaces) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

fn has_tables(keyspace: &Path) -> Result<bool, FolderError> {
    let tables = keyspace.join(TABLES);
    match std::fs::read_dir(&tables) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        entries => Ok(entries.map_err(failed(&tables))?.next().is_some()),
    }
}

/// The numbers of the keyspaces that the LSM's own keyspace names. The LSM opens it in the same way.
fn named(own: &Path) -> Result<Vec<u64>, FolderError> {
    let listed = caught(|| {
        let cache = Arc::new(Cache::with_capacity_bytes(CACHE_BYTES));
        let tree = Config::new(own, Default::default(), Default::default()).use_cache(cache).open()?;
        tree.prefix([NAME_TAG], SeqNo::MAX, None).map(|row| row.key()).collect::<lsm_tree::Result<Vec<_>>>()
    });
    let keys = match listed {
        Ok(Ok(keys)) => keys,
        Ok(Err(lsm_tree::Error::Io(error))) if FaultKind::of_io(&error) != FaultKind::Damage => {
            return Err(failed(own)(error));
        }
        Ok(Err(error)) => return Err(damaged(own, error.to_string())),
        Err(panic) => return Err(damaged(own, panic)),
    };
    let number = |key: &[u8]| Some(u64::from_be_bytes(key.get(1..)?.try_into().ok()?));
    keys.iter().map(|key| number(key).ok_or_else(|| damaged(own, "it names a keyspace without a number"))).collect()
}

fn without_current(keyspace: &Path) -> FolderError {
    damaged(&keyspace.join(CURRENT), "the file is missing, although the store has this keyspace")
}

fn damaged(file: &Path, reason: impl Into<String>) -> FolderError {
    FolderError::Damaged { file: file.to_owned(), reason: reason.into() }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> FolderError + use<> {
    let path = path.to_owned();
    move |source| FolderError::Io { path, source }
}

#[cfg(test)]
mod tests;
