//! Checks the journals of an LSM before the LSM opens them.
//!
//! The LSM truncates a journal at the first entry that it cannot decode and reports nothing, whether a crash tore the last batch or a
//! bit flipped in the middle. It refuses to open a journal with a wrong checksum, even if a crash only lost an unsynced page. This
//! module distinguishes the two cases: it cuts off a torn end, and reports anything else as [`JournalDamage`] with file and position.
//!
//! The layout is that of fjall 3: a batch is a start entry, its items and an end entry with the checksum of the items. A new journal is
//! preallocated with zeros. `tests` writes journals with fjall, so a changed layout fails there.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

const TAG_START: u8 = 1;
const TAG_ITEM: u8 = 2;
const TAG_END: u8 = 3;
const TAG_CLEAR: u8 = 4;
/// Ends every batch.
const TRAILER: &[u8] = b"FJL\x03";
/// Greatest value type that an item can have.
const VALUE_KIND_MAX: u8 = 3;
const EXTENSION: &str = "jnl";

/// A place in a journal whose bytes are not the ones that were written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: damaged at byte {position}: {reason}", file = file.display())]
pub(crate) struct JournalDamage {
    pub file: PathBuf,
    pub position: u64,
    pub reason: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    #[error(transparent)]
    Damaged(#[from] JournalDamage),
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// The outcome of a check that found no damage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JournalReport {
    /// The sequence number of the last whole batch.
    pub last_seqno: Option<u64>,
    /// Whether the last journal ends in a torn batch.
    pub is_torn: bool,
    /// The sequence number of the torn batch, where it can be read.
    pub torn_seqno: Option<u64>,
}

impl JournalReport {
    /// Whether the journals lack the write with this sequence number: it was in the torn batch or behind it.
    pub fn misses(&self, seqno: u64) -> bool {
        let first_missing = self.torn_seqno.or(self.last_seqno.map(|last| last + 1));
        self.is_torn && first_missing.is_some_and(|first| seqno >= first)
    }
}

/// Checks all journals of an LSM's folder and cuts off a torn end, so that the LSM opens it.
pub(crate) fn repair(folder: &Path) -> Result<JournalReport, JournalError> {
    check_all(folder, |file, length| {
        let journal = OpenOptions::new().write(true).open(file)?;
        journal.set_len(length)?;
        journal.sync_all()
    })
}

/// Cuts every journal at its first damaged place: the batches behind it in the same journal are lost.
pub(crate) fn salvage(folder: &Path) -> Result<(), JournalError> {
    loop {
        match repair(folder) {
            Ok(_) => return Ok(()),
            // A truncated journal is no longer damaged, so this loop ends.
            Err(JournalError::Damaged(damage)) => {
                let failed = |source| JournalError::Io { path: damage.file.clone(), source };
                let journal = OpenOptions::new().write(true).open(&damage.file).map_err(failed)?;
                journal.set_len(damage.position).and_then(|()| journal.sync_all()).map_err(failed)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Checks all journals of an LSM's folder and changes nothing.
pub(crate) fn check(folder: &Path) -> Result<JournalReport, JournalError> {
    check_all(folder, |_, _| Ok(()))
}

fn check_all(folder: &Path, cut: impl Fn(&Path, u64) -> io::Result<()>) -> Result<JournalReport, JournalError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| JournalError::Io { path, source }
    };
    let journals = journals(folder).map_err(failed(folder))?;
    let mut checked = JournalReport::default();
    for (index, file) in journals.iter().enumerate() {
        let bytes = std::fs::read(file).map_err(failed(file))?;
        let damage = |position: usize, reason| JournalDamage { file: file.clone(), position: position as u64, reason };
        let journal = JournalExtent::of(&bytes, checked.last_seqno);
        checked.last_seqno = journal.last_seqno;
        let Some(reason) = journal.end else { continue };
        if index + 1 < journals.len() {
            return Err(damage(journal.valid, reason).into());
        }
        if is_batch_behind(&bytes[..journal.used], journal.valid, journal.last_seqno) {
            return Err(damage(journal.valid, reason).into());
        }
        (checked.is_torn, checked.torn_seqno) = (true, start_seqno(&bytes[journal.valid..], journal.last_seqno));
        cut(file, journal.valid as u64).map_err(failed(file))?;
    }
    Ok(checked)
}

/// The journals of a folder, oldest first.
fn journals(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut journals = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let is_journal = path.extension().is_some_and(|extension| extension == EXTENSION);
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        if let Some(number) = number.filter(|_| is_journal) {
            journals.push((number, path));
        }
    }
    journals.sort();
    Ok(journals.into_iter().map(|(_, path)| path).collect())
}

/// The readable part of one journal.
struct JournalExtent {
    /// The end of the last whole batch.
    valid: usize,
    /// The end of the bytes that are not preallocated zeros.
    used: usize,
    last_seqno: Option<u64>,
    /// Why reading ended before `used`.
    end: Option<&'static str>,
}

impl JournalExtent {
    fn of(bytes: &[u8], seqno_before: Option<u64>) -> Self {
        let mut journal = Self { valid: 0, used: used(bytes), last_seqno: seqno_before, end: None };
        while journal.valid < journal.used {
            match JournalBatch::decode(&bytes[journal.valid..], journal.last_seqno) {
                Ok(batch) => {
                    journal.valid += batch.length;
                    journal.last_seqno = Some(batch.seqno);
                }
                Err(reason) => {
                    journal.end = Some(reason);
                    break;
                }
            }
        }
        journal
    }
}

/// The position of the first preallocated zero. The last bytes of a batch are never zero.
fn used(bytes: &[u8]) -> usize {
    // Compares whole chunks of zeros at once: most of a journal is zeros.
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut end = bytes.len();
    while end >= ZEROS.len() && bytes[end - ZEROS.len()..end] == ZEROS {
        end -= ZEROS.len();
    }
    bytes[..end].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Whether a whole batch follows a place that cannot be read: a crash tears only the end of what was written.
fn is_batch_behind(bytes: &[u8], bad: usize, last_seqno: Option<u64>) -> bool {
    (bad + 1..bytes.len()).any(|at| bytes[at] == TAG_START && JournalBatch::decode(&bytes[at..], last_seqno).is_ok())
}

/// The sequence number at the start of a batch that is not whole, where it is plausible.
fn start_seqno(bytes: &[u8], seqno_before: Option<u64>) -> Option<u64> {
    let seqno = u64::from_le_bytes(*bytes.strip_prefix(&[TAG_START])?.get(4..)?.first_chunk()?);
    Some(seqno).filter(|seqno| seqno_before.is_none_or(|before| *seqno > before))
}

struct JournalBatch {
    length: usize,
    seqno: u64,
}

impl JournalBatch {
    fn decode(bytes: &[u8], seqno_before: Option<u64>) -> Result<Self, &'static str> {
        const SHORT: &str = "a batch is incomplete";
        let mut rest = bytes;
        let [tag] = *take::<1>(&mut rest).ok_or(SHORT)?;
        if tag != TAG_START {
            return Err("no batch begins here");
        }
        let items = u32::from_le_bytes(*take(&mut rest).ok_or(SHORT)?);
        let seqno = u64::from_le_bytes(*take(&mut rest).ok_or(SHORT)?);
        if seqno_before.is_some_and(|before| seqno <= before) {
            return Err("the sequence number of a batch is not greater than that of the batch before it");
        }
        let body = rest;
        for _ in 0..items {
            skip_item(&mut rest)?;
        }
        let body = &body[..body.len() - rest.len()];
        let [tag] = *take::<1>(&mut rest).ok_or(SHORT)?;
        if tag != TAG_END {
            return Err("a batch has no end");
        }
        let checksum = u64::from_le_bytes(*take(&mut rest).ok_or(SHORT)?);
        if take::<4>(&mut rest).ok_or(SHORT)? != TRAILER {
            return Err("the end of a batch is incomplete");
        }
        let mut hasher = Xxh3::new();
        hasher.update(body);
        if hasher.digest() != checksum {
            return Err("the checksum of a batch is wrong");
        }
        Ok(Self { length: bytes.len() - rest.len(), seqno })
    }
}

fn skip_item(rest: &mut &[u8]) -> Result<(), &'static str> {
    const SHORT: &str = "an item of a batch is incomplete";
    let [tag] = *take::<1>(rest).ok_or(SHORT)?;
    match tag {
        TAG_CLEAR => take::<8>(rest).map(|_| ()).ok_or(SHORT),
        TAG_ITEM => {
            let [value_kind, compression] = *take::<2>(rest).ok_or(SHORT)?;
            // Our build of the LSM has no compression.
            if value_kind > VALUE_KIND_MAX || compression != 0 {
                return Err("an item of a batch has an unknown kind");
            }
            let _keyspace = take::<8>(rest).ok_or(SHORT)?;
            let key = u16::from_le_bytes(*take(rest).ok_or(SHORT)?) as usize;
            let _value = take::<4>(rest).ok_or(SHORT)?;
            let stored = u32::from_le_bytes(*take(rest).ok_or(SHORT)?) as usize;
            *rest = rest.get(key + stored..).ok_or(SHORT)?;
            Ok(())
        }
        _ => Err("an item of a batch has an unknown tag"),
    }
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use fjall::{Database, KeyspaceCreateOptions, PersistMode};

    use super::*;

    const BATCHES: usize = 20;

    /// A folder with one journal of whole batches.
    fn written() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::builder(folder.path()).worker_threads(1).open().unwrap();
        let keyspace = database.keyspace("rows", KeyspaceCreateOptions::default).unwrap();
        for number in 0..BATCHES {
            let mut batch = database.batch();
            batch.insert(&keyspace, format!("key {number}"), "v".repeat(number * 10));
            batch.remove(&keyspace, format!("key {}", number / 2));
            batch.commit().unwrap();
        }
        database.persist(PersistMode::SyncData).unwrap();
        drop((keyspace, database));
        let journal = folder.path().join("0.jnl");
        // Fewer zeros than are preallocated, which would take most of the time.
        let bytes = std::fs::read(&journal).unwrap();
        std::fs::write(&journal, &bytes[..used(&bytes) + 4096]).unwrap();
        (folder, journal)
    }

    fn rows(folder: &Path) -> usize {
        let database = Database::builder(folder).worker_threads(1).open().unwrap();
        let rows = database.keyspace("rows", KeyspaceCreateOptions::default).unwrap();
        rows.iter().count()
    }

    /// The end position of each batch.
    fn ends(bytes: &[u8]) -> Vec<usize> {
        let (mut ends, mut at, mut seqno) = (Vec::new(), 0, None);
        while at < used(bytes) {
            let batch = JournalBatch::decode(&bytes[at..], seqno).unwrap();
            (at, seqno) = (at + batch.length, Some(batch.seqno));
            ends.push(at);
        }
        ends
    }

    #[test]
    fn a_whole_journal_is_read_to_its_end() {
        let (folder, journal) = written();
        let checked = check(folder.path()).unwrap();
        assert!(!checked.is_torn);
        assert_eq!(ends(&std::fs::read(journal).unwrap()).len(), BATCHES);
        assert_eq!(check(Path::new("/does/not/exist")).unwrap(), JournalReport::default());
    }

    #[test]
    fn a_journal_cut_anywhere_is_torn_and_opens_after_the_repair() {
        let (folder, journal) = written();
        let bytes = std::fs::read(&journal).unwrap();
        let ends = ends(&bytes);
        for cut in (0..*ends.last().unwrap()).step_by(97) {
            // A killed process leaves preallocated zeros behind its last write.
            let mut torn = bytes[..cut].to_vec();
            torn.resize(bytes.len(), 0);
            std::fs::write(&journal, &torn).unwrap();
            let is_between_batches = ends.contains(&cut) || cut == 0;
            let checked = repair(folder.path()).unwrap();
            assert_eq!(checked.is_torn, !is_between_batches, "cut at {cut}");
            rows(folder.path());
        }
    }

    #[test]
    fn every_flipped_bit_before_the_last_batch_is_reported_with_its_place() {
        let (folder, journal) = written();
        let bytes = std::fs::read(&journal).unwrap();
        let ends = ends(&bytes);
        let last = ends[ends.len() - 2];
        for at in 0..last {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let journal_read = JournalExtent::of(&damaged, None);
            let batch = ends.iter().position(|end| at < *end).unwrap();
            let start = if batch == 0 { 0 } else { ends[batch - 1] };
            let is_seqno = (start + 5..start + 13).contains(&at);
            // A changed sequence number is noticed where it is out of order, at its batch or the next one.
            if is_seqno && journal_read.end.is_none() {
                continue;
            }
            assert!(journal_read.end.is_some(), "a flipped bit at {at} is not noticed");
            assert!(
                journal_read.valid == start || is_seqno,
                "a flipped bit at {at} is found at {}",
                journal_read.valid
            );
        }
        let mut damaged = bytes.clone();
        damaged[ends[3] + 20] ^= 4;
        std::fs::write(&journal, &damaged).unwrap();
        let Err(JournalError::Damaged(damage)) = repair(folder.path()) else { panic!("the damage is not found") };
        assert_eq!((damage.file, damage.position), (journal.clone(), ends[3] as u64));
        assert_eq!(std::fs::read(&journal).unwrap(), damaged, "a damaged journal is not changed");
    }

    #[test]
    fn a_lost_page_in_the_last_batch_is_torn_and_before_it_damage() {
        let (folder, journal) = written();
        let bytes = std::fs::read(&journal).unwrap();
        let ends = ends(&bytes);
        for (batch, is_torn) in [(BATCHES - 1, true), (BATCHES - 3, false)] {
            let mut lost = bytes.clone();
            lost[ends[batch] - 60..ends[batch] - 30].fill(0);
            std::fs::write(&journal, &lost).unwrap();
            assert_eq!(repair(folder.path()).is_ok(), is_torn);
        }
    }

    #[test]
    fn damage_in_a_sealed_journal_is_never_a_torn_end() {
        let (folder, journal) = written();
        let bytes = std::fs::read(&journal).unwrap();
        std::fs::write(folder.path().join("1.jnl"), vec![0; 4096]).unwrap();
        assert!(!check(folder.path()).unwrap().is_torn);
        std::fs::write(&journal, &bytes[..*ends(&bytes).last().unwrap() - 1]).unwrap();
        assert!(matches!(check(folder.path()), Err(JournalError::Damaged(_))));
    }
}
