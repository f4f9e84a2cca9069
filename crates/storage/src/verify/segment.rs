//! Checks a segment: every checksum, that its records follow each other without a gap, and the positions in its index.

use std::io;
use std::path::PathBuf;

use crate::disk::{Disk, is_passing, is_unreadable, read_whole};
use crate::error::LogDamage;
use crate::format::LogBatch;
use crate::segment::{BatchScope, IndexEntry, ScanError, Scanner, Segment, usable_entries};

/// Limit of reported damaged places of one segment. A file with more is lost as a whole.
const PLACES_MAX: usize = 100;

/// A segment, and the contents that it must have.
#[derive(Debug, Clone)]
pub(crate) struct Extent {
    pub of: BatchScope,
    pub path: PathBuf,
    pub base: u64,
    /// Bytes that must exist: up to the checkpoint's mark in the segment that is being written. `None` means the whole file.
    pub len: Option<u64>,
    /// The offset after its last record.
    pub end: u64,
}

type OnBatch<'a> = &'a mut dyn FnMut(u64, &LogBatch);

/// Reads every batch of a segment, and reads the segment again if a place is damaged. A place counts only if it is damaged both times: a
/// transient error of a cable or a memory module is not damage on the disk. Fails if the meter of the disk ends the check, or if file
/// descriptors or memory are short. Calls `on_batch` with each sound batch of the first pass and its position.
pub(crate) fn check_twice(disk: &dyn Disk, extent: &Extent, on_batch: OnBatch<'_>) -> io::Result<Vec<LogDamage>> {
    let mut damage = check_once(disk, extent, on_batch)?;
    if !damage.is_empty() {
        let again = check_once(disk, extent, &mut |_, _| {})?;
        damage.retain(|damage| again.iter().any(|again| again.position == damage.position));
    }
    Ok(damage)
}

/// A file that cannot be opened is a damaged place too, unless file descriptors or memory are short.
fn check_once(disk: &dyn Disk, extent: &Extent, on_batch: OnBatch<'_>) -> io::Result<Vec<LogDamage>> {
    check_segment(disk, extent, on_batch).or_else(|error| {
        if is_stopped(&error) || is_passing(&error) {
            return Err(error);
        }
        let mut places = DamageList { extent, damage: Vec::new() };
        places.add(0, format!("the segment cannot be opened: {error}"), extent.end);
        Ok(places.damage)
    })
}

fn check_segment(disk: &dyn Disk, extent: &Extent, on_batch: OnBatch<'_>) -> io::Result<Vec<LogDamage>> {
    let file = disk.open(&extent.path)?;
    let found_len = file.len()?;
    let len = extent.len.unwrap_or(found_len);
    let mut places = DamageList { extent, damage: Vec::new() };
    let mut scanner = Scanner::new(file, extent.of, 0, len.min(found_len));
    let mut expected = extent.base;
    while places.damage.len() < PLACES_MAX {
        let (bad, found) = match scanner.next() {
            Ok(found) => (None, found),
            Err(ScanError::Bad { position, what }) => (Some((position, what.to_owned())), next_sound(&mut scanner)?),
            Err(ScanError::Io(error)) if is_unreadable(&error) => {
                let what = format!("a place that the disk cannot read ({error})");
                (Some((scanner.position(), what)), next_sound(&mut scanner)?)
            }
            Err(ScanError::Io(error)) if is_stopped(&error) || is_passing(&error) => return Err(error),
            Err(ScanError::Io(error)) => {
                let what = format!("reading failed: {error}; the rest of the file was not checked");
                places.add(scanner.position(), what, extent.end);
                return Ok(places.damage);
            }
        };
        let resume_at = found.as_ref().map_or(extent.end, |(_, batch)| batch.base());
        if let Some((position, what)) = bad {
            places.add(position, what, resume_at);
        } else if resume_at > expected {
            let position = found.as_ref().map_or(len.min(found_len), |(position, _)| *position);
            let what = match found {
                None if found_len < len => format!("a segment of {found_len} bytes that should have {len}"),
                _ => format!("records {expected} to {} are missing", resume_at - 1),
            };
            places.add(position, what, resume_at);
        }
        let Some((position, batch)) = found else { break };
        on_batch(position, &batch);
        expected = batch.end();
    }
    Ok(places.damage)
}

/// The next whole batch after a damaged place. `None` if there is none, or if the rest cannot be read.
fn next_sound(scanner: &mut Scanner) -> io::Result<Option<(u64, LogBatch)>> {
    match scanner.find_next() {
        Ok(found) => Ok(found),
        Err(ScanError::Io(error)) if is_stopped(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

pub(crate) fn is_stopped(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

struct DamageList<'a> {
    extent: &'a Extent,
    damage: Vec<LogDamage>,
}

impl DamageList<'_> {
    fn add(&mut self, position: u64, what: String, resume_at: u64) {
        let file = self.extent.path.display().to_string();
        self.damage.push(LogDamage { what, file, position, resume_at: Some(resume_at) });
    }
}

/// The index of a segment, compared with the batches as they are read.
pub(crate) struct IndexCheck {
    pub path: PathBuf,
    entries: Vec<IndexEntry>,
    /// The number of entries in the file, whole or not.
    stored: usize,
    next: usize,
    astray: usize,
}

impl IndexCheck {
    pub fn load(disk: &dyn Disk, extent: &Extent) -> io::Result<Self> {
        let folder = extent.path.parent().unwrap_or(&extent.path);
        let path = Segment::existing(folder, extent.base).index_path();
        let bytes = read_whole(disk, &path)?.unwrap_or_default();
        let stored = bytes.len() / size_of::<IndexEntry>();
        Ok(Self { path, entries: usable_entries(&bytes, extent.base), stored, next: 0, astray: 0 })
    }

    pub fn see(&mut self, position: u64, batch: &LogBatch) {
        while let Some(entry) = self.entries.get(self.next).filter(|entry| u64::from(entry.position.get()) <= position)
        {
            let is_right = (u64::from(entry.position.get()), entry.offset.get()) == (position, batch.base());
            self.astray += usize::from(!is_right);
            self.next += 1;
        }
    }

    /// The number of unusable or wrong entries, and of all entries. Entries beyond the last batch are not checked: they refer to the end of
    /// the segment, or to batches that no checkpoint covers yet.
    pub fn outcome(&self) -> (usize, usize) {
        (self.stored - self.entries.len() + self.astray, self.stored)
    }
}
