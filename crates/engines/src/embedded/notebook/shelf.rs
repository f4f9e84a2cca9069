//! The slices of one family: files ordered by time. The shelf appends to the last slice and deletes the oldest slices.
//!
//! A slice is `<family>-<start time in ms>.slice`. After a failed write, the shelf truncates the slice to its complete chunks and continues
//! to use it. It also reuses an empty slice, so a full disk leaves at most one empty file. No failure is final, and no failure keeps the
//! process from starting: every append first repeats the steps that failed before.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use whimbrel_model::Timestamp;

use super::slice::{MAGIC, MAGIC_BYTES, SliceDamage, SliceSnapshot, survey};
use super::slice_reports::SliceReports;

const EXTENSION: &str = ".slice";
/// The number of full slices that a shelf has space for.
const SLICES_PER_SHELF: u64 = 16;
/// Bytes of a slice; fewer are not worth a file.
const SLICE_BYTES_MIN: u64 = 64 << 10;
const SLICE_BYTES_MAX: u64 = 256 << 20;
/// A failing shelf without chunks to write writes these bytes and removes them again, to detect the recovery. They are larger than a disk
/// block, so that a full disk rejects them.
static PROBE: [u8; 64 << 10] = [0; 64 << 10];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShelfSettings {
    pub slice_time: Duration,
    pub bytes_max: u64,
    pub keep: Duration,
}

impl ShelfSettings {
    fn slice_bytes(&self) -> u64 {
        (self.bytes_max / SLICES_PER_SHELF).clamp(SLICE_BYTES_MIN, SLICE_BYTES_MAX)
    }
}

/// Why chunks could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {source}", file = file.display())]
pub struct ShelfError {
    pub file: PathBuf,
    pub source: io::Error,
}

impl ShelfError {
    fn of(file: &Path) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self { file, source }
    }
}

/// The time of an append.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub now: Timestamp,
    /// The time by which slices expire. It stands still while the wall clock is in doubt.
    pub expiry: Timestamp,
}

/// The destination of the next chunks.
enum TailFile {
    /// To the last slice. Its file ends with its last complete chunk.
    Open(File),
    /// To the last slice. Its file must be opened and truncated to its length first.
    Closed,
    /// To a new slice.
    Ended,
}

/// The slices of one family.
pub struct Shelf {
    folder: PathBuf,
    family: &'static str,
    settings: ShelfSettings,
    reports: SliceReports,
    /// Whether the slices of an earlier process were listed.
    is_listed: bool,
    /// Sorted by start time.
    slices: Vec<SliceSnapshot>,
    tail: TailFile,
    is_failing: bool,
}

impl Shelf {
    /// Creates a shelf. The first [`Self::open`] or [`Self::append`] that succeeds lists its slices.
    pub fn new(folder: &Path, family: &'static str, settings: ShelfSettings, reports: SliceReports) -> Self {
        let (folder, slices) = (folder.to_owned(), Vec::new());
        Self { folder, family, settings, reports, is_listed: false, slices, tail: TailFile::Ended, is_failing: false }
    }

    /// Finds the slices of an earlier process, and reports the damage of the last one.
    pub fn open(&mut self) -> Result<(), ShelfError> {
        let opened = self.list();
        self.is_failing = opened.is_err();
        opened
    }

    pub fn seen(&self) -> Vec<SliceSnapshot> {
        self.slices.clone()
    }

    /// Whether the last attempt to write failed.
    pub fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Appends complete chunks. If that fails, the chunks are lost. Without chunks, a failing shelf tests whether it can write again.
    pub fn append(&mut self, chunks: &[u8], moment: Moment) -> Result<(), ShelfError> {
        if chunks.is_empty() && !self.is_failing {
            return Ok(());
        }
        let written = self.list().and_then(|()| self.make_ready(moment.now)).and_then(|()| self.write(chunks));
        self.is_failing = written.is_err();
        written?;
        self.clear(moment.expiry);
        Ok(())
    }

    fn list(&mut self) -> Result<(), ShelfError> {
        if self.is_listed {
            return Ok(());
        }
        let slices = list(&self.folder, self.family).map_err(ShelfError::of(&self.folder))?;
        self.slices = without_empty(slices);
        self.tail = self.slices.last_mut().map_or(TailFile::Ended, |last| resume(last, &self.reports));
        self.is_listed = true;
        Ok(())
    }

    /// Opens the file of the last slice and truncates it to its complete chunks, or begins a new slice.
    fn make_ready(&mut self, now: Timestamp) -> Result<(), ShelfError> {
        let is_full = self.is_full(now);
        if let (TailFile::Closed, Some(last), false) = (&self.tail, self.slices.last(), is_full) {
            match open_cut(last) {
                Ok(file) => self.tail = TailFile::Open(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => drop(self.slices.pop()),
                // The slice is empty, so a new slice would be no better.
                Err(error) if last.is_empty() => return Err(ShelfError::of(&last.path)(error)),
                Err(error) => {
                    tracing::warn!(%error, slice = %last.path.display(), "cannot continue a slice of notes; beginning a new one");
                }
            }
        }
        match self.tail {
            TailFile::Open(_) if !is_full => Ok(()),
            _ => self.begin(now),
        }
    }

    /// Whether the last slice is full or too old. An empty slice is never full, however old it is.
    fn is_full(&self, now: Timestamp) -> bool {
        self.slices.last().is_none_or(|slice| {
            let is_over = now.saturating_sub(self.settings.slice_time) >= slice.begins;
            !slice.is_empty() && (slice.len >= self.settings.slice_bytes() || is_over)
        })
    }

    fn begin(&mut self, now: Timestamp) -> Result<(), ShelfError> {
        // Slices stay in order, however the clock is set.
        let after = self.slices.last().map_or(i64::MIN, |slice| slice.begins.as_millis() + 1);
        let begins = now.as_millis().max(after);
        let path = self.folder.join(format!("{}-{begins:013}{EXTENSION}", self.family));
        let file = OpenOptions::new().append(true).create_new(true).open(&path).map_err(ShelfError::of(&path))?;
        self.tail = TailFile::Open(file);
        self.slices.push(SliceSnapshot { path, begins: Timestamp::from_millis(begins), len: 0 });
        Ok(())
    }

    fn write(&mut self, chunks: &[u8]) -> Result<(), ShelfError> {
        let (TailFile::Open(file), Some(slice)) = (&mut self.tail, self.slices.last_mut()) else {
            return Err(ShelfError::of(&self.folder)(io::ErrorKind::NotFound.into()));
        };
        let written = if chunks.is_empty() { probe(file, slice) } else { extend(file, slice, chunks) };
        if written.is_err() && file.set_len(slice.len).is_err() {
            self.tail = TailFile::Closed;
        }
        written.map_err(ShelfError::of(&slice.path))
    }

    /// Deletes the oldest slices while their total exceeds the bound, and expired ones; never the slice that is being written.
    fn clear(&mut self, expiry: Timestamp) {
        let mut total: u64 = self.slices.iter().map(|slice| slice.len).sum();
        let not_before = expiry.saturating_sub(self.settings.keep);
        let mut gone = 0;
        while let Some([oldest, next, ..]) = self.slices.get(gone..) {
            // A slice ends where the next one begins.
            if total <= self.settings.bytes_max && next.begins >= not_before {
                break;
            }
            match std::fs::remove_file(&oldest.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, slice = %oldest.path.display(), "cannot delete an old slice of notes");
                    break;
                }
                _ => {}
            }
            total -= oldest.len;
            gone += 1;
        }
        self.slices.drain(..gone);
    }
}

/// The slices of a family in a folder, by the time when they began. Creates the folder if it is missing.
fn list(folder: &Path, family: &str) -> io::Result<Vec<SliceSnapshot>> {
    std::fs::create_dir_all(folder)?;
    let mut slices = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let begins = name.to_str().and_then(|name| name.strip_prefix(family)?.strip_prefix('-'));
        let begins = begins.and_then(|name| name.strip_suffix(EXTENSION)?.parse().ok());
        if let Some(begins) = begins {
            let (begins, len) = (Timestamp::from_millis(begins), entry.metadata()?.len());
            slices.push(SliceSnapshot { path: entry.path(), begins, len });
        }
    }
    slices.sort_by_key(|slice| slice.begins);
    Ok(slices)
}

/// Deletes the slices without chunks, except the last one, which is used again.
fn without_empty(mut slices: Vec<SliceSnapshot>) -> Vec<SliceSnapshot> {
    let last = slices.pop();
    let is_kept = |slice: &SliceSnapshot| !slice.is_empty() || std::fs::remove_file(&slice.path).is_err();
    slices.into_iter().filter(is_kept).chain(last).collect()
}

/// Reads the last slice and sets its length to the end of its last sound chunk.
fn resume(slice: &mut SliceSnapshot, reports: &SliceReports) -> TailFile {
    if slice.len < MAGIC_BYTES {
        slice.len = 0;
        return TailFile::Closed;
    }
    match survey(slice) {
        Ok(Some(found)) => {
            found.damages.iter().for_each(|damage| reports.damaged(&slice.path, damage));
            // Bytes after an unreadable place may be sound chunks: the slice is not truncated.
            let Some(sound) = found.sound_len() else { return TailFile::Ended };
            if sound < slice.len {
                let bytes = slice.len - sound;
                tracing::info!(slice = %slice.path.display(), bytes, "cutting off the torn tail of a slice of notes");
            }
            slice.len = sound;
            TailFile::Closed
        }
        // A slice of another format is not changed.
        Ok(None) => TailFile::Ended,
        Err(error) => {
            reports.damaged(&slice.path, &SliceDamage { position: 0, reason: error.to_string() });
            TailFile::Ended
        }
    }
}

/// Opens a slice for appending and truncates it to its length.
fn open_cut(slice: &SliceSnapshot) -> io::Result<File> {
    let file = OpenOptions::new().append(true).open(&slice.path)?;
    file.set_len(slice.len)?;
    Ok(file)
}

fn extend(file: &mut File, slice: &mut SliceSnapshot, chunks: &[u8]) -> io::Result<()> {
    if slice.len == 0 {
        file.write_all(&MAGIC)?;
        slice.len = MAGIC_BYTES;
    }
    file.write_all(chunks)?;
    slice.len += chunks.len() as u64;
    Ok(())
}

/// Writes [`PROBE`] and removes it again.
fn probe(file: &mut File, slice: &mut SliceSnapshot) -> io::Result<()> {
    extend(file, slice, &[])?;
    file.write_all(&PROBE)?;
    file.set_len(slice.len)
}
