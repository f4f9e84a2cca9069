//! A segment: the batches of one partition from a base offset on, one after the other, and a sparse index beside them.
//!
//! The index is a hint. It is never synced, and each entry has its own CRC. The log checks the batch to which an entry points. A torn,
//! stale or missing index costs a longer scan and nothing more.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::PartitionKey;
use crate::disk::{Disk, DiskFile, is_full, is_unreadable, read_whole};
use crate::format::{BATCH_HEADER_LEN, BATCH_MAGIC, BatchError, FolderSecret, LogBatch, crc};
use crate::settings::FRAME_BYTES_MAX;

const SEGMENT_SUFFIX: &str = ".segment";
const INDEX_SUFFIX: &str = "index";
/// Bytes of one read of a scan.
const SCAN_CHUNK: usize = 256 << 10;
/// Bytes of a sector: if a disk cannot read a byte, it cannot read the rest of the sector either.
const SECTOR: u64 = 4096;
/// A search through unreadable sectors steps by this part of the bytes that it has skipped. So a completely unreadable file takes few
/// reads. The search misses at most as large a part of the readable bytes.
const SKIPPED_PART: u64 = 16;

pub(crate) struct Segment {
    pub base: u64,
    path: PathBuf,
    index: Mutex<SegmentIndex>,
}

struct SegmentIndex {
    /// Whether the entries are in memory. Those of an existing segment are read at the first use.
    loaded: bool,
    entries: Vec<IndexEntry>,
}

/// The batch that begins with `offset` is at `position`, and no earlier record of the segment is newer than `max_before`. The last entry of
/// a sealed segment is its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct IndexEntry {
    pub offset: U64,
    pub position: U32,
    pub max_before: I64,
    crc: U32,
}

impl IndexEntry {
    pub fn new(offset: u64, position: u64, max_before: i64) -> Self {
        let position = u32::try_from(position).expect("segments are below 4 GiB");
        let mut entry =
            Self { offset: offset.into(), position: position.into(), max_before: max_before.into(), crc: 0.into() };
        entry.crc = crc(&entry.as_bytes()[..20]).into();
        entry
    }

    fn is_whole(&self) -> bool {
        self.crc.get() == crc(&self.as_bytes()[..20])
    }
}

impl Segment {
    /// Begins a segment with an empty, complete index. Truncates remains under its name.
    pub fn begin(disk: &dyn Disk, folder: &Path, base: u64) -> io::Result<Self> {
        let segment = Self::existing(folder, base);
        segment.index().loaded = true;
        disk.create(&segment.path)?.set_len(0)?;
        disk.create(&segment.index_path())?.set_len(0)?;
        Ok(segment)
    }

    /// A segment that an earlier process wrote.
    pub fn existing(folder: &Path, base: u64) -> Self {
        let path = folder.join(format!("{base:020}{SEGMENT_SUFFIX}"));
        Self { base, path, index: Mutex::new(SegmentIndex { loaded: false, entries: Vec::new() }) }
    }

    /// The base offset in a file name.
    pub fn base_of(name: &str) -> Option<u64> {
        name.strip_suffix(SEGMENT_SUFFIX)?.parse().ok()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn index_path(&self) -> PathBuf {
        self.path.with_extension(INDEX_SUFFIX)
    }

    pub fn remove(&self, disk: &dyn Disk) -> io::Result<()> {
        for path in [&self.path, &self.index_path()] {
            match disk.remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn index(&self) -> MutexGuard<'_, SegmentIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends entries to the index.
    pub fn extend_index(&self, disk: &dyn Disk, entries: &[IndexEntry]) -> io::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut index = self.index();
        let file = disk.create(&self.index_path())?;
        let len = file.len()?;
        hint(file.write_at(entries.as_bytes(), len - len % size_of::<IndexEntry>() as u64))?;
        if index.loaded {
            index.entries.extend_from_slice(entries);
        }
        Ok(())
    }

    /// Drops the entries at or beyond `len`, the length to which the segment is cut.
    pub fn cut_index(&self, disk: &dyn Disk, len: u64) -> io::Result<()> {
        let kept = load_index(disk, &self.index_path(), self.base)
            .into_iter()
            .take_while(|entry| u64::from(entry.position.get()) < len)
            .collect::<Vec<_>>();
        let file = disk.create(&self.index_path())?;
        file.set_len(0)?;
        hint(file.write_at(kept.as_bytes(), 0))?;
        *self.index() = SegmentIndex { loaded: true, entries: kept };
        Ok(())
    }

    /// Removes the index alone. Reads take longer without it.
    pub fn remove_index(&self, disk: &dyn Disk) -> io::Result<()> {
        match disk.remove_file(&self.index_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Calls `look` with the valid entries in order.
    fn with_index<T>(&self, disk: &dyn Disk, look: impl FnOnce(&[IndexEntry]) -> T) -> T {
        let mut index = self.index();
        if !index.loaded {
            index.entries = load_index(disk, &self.index_path(), self.base);
            index.loaded = true;
        }
        look(&index.entries)
    }

    /// The position at which the search for an offset begins: at or before its batch.
    pub fn position_for(&self, disk: &dyn Disk, offset: u64) -> u64 {
        self.with_index(disk, |entries| {
            let after = entries.partition_point(|entry| entry.offset.get() <= offset);
            if after == 0 { 0 } else { u64::from(entries[after - 1].position.get()) }
        })
    }

    /// The offset and position at which the index begins the search for the first record at or after a time.
    pub fn place_for_time(&self, disk: &dyn Disk, time: i64) -> Option<(u64, u64)> {
        self.with_index(disk, |entries| {
            let after = entries.partition_point(|entry| entry.max_before.get() < time);
            let entry = entries.get(after.checked_sub(1)?)?;
            Some((entry.offset.get(), entry.position.get().into()))
        })
    }

    /// The latest time in a sealed segment of `len` bytes that ends before the offset `end`: from the last index entry, or from a scan of
    /// the segment. `None` if a part of it cannot be read, which may have later times.
    pub fn max_timestamp(&self, disk: &dyn Disk, of: BatchScope, len: u64, end: u64) -> io::Result<Option<i64>> {
        let known = self.with_index(disk, |entries| {
            let is_end = |entry: &&IndexEntry| (entry.offset.get(), u64::from(entry.position.get())) == (end, len);
            entries.last().filter(is_end).map(|entry| entry.max_before.get())
        });
        if let Some(max) = known {
            return Ok(Some(max));
        }
        let mut scanner = Scanner::new(disk.open(&self.path)?, of, 0, len);
        let mut max = i64::MIN;
        loop {
            match scanner.next() {
                Ok(Some((_, batch))) => max = max.max(batch.header.max_timestamp.get()),
                Ok(None) => return Ok(Some(max)),
                Err(ScanError::Bad { .. }) => return Ok(None),
                Err(ScanError::Io(error)) => return Err(error),
            }
        }
    }
}

/// Ignores a full disk: entries that do not fit are left out, and a full disk must still open and be emptied.
fn hint(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if is_full(&error) => Ok(()),
        other => other,
    }
}

fn load_index(disk: &dyn Disk, path: &Path, base: u64) -> Vec<IndexEntry> {
    // An unreadable index is no error: the scan that follows finds any real damage.
    usable_entries(&read_whole(disk, path).ok().flatten().unwrap_or_default(), base)
}

/// The valid entries in the bytes of an index, in order.
pub(crate) fn usable_entries(bytes: &[u8], base: u64) -> Vec<IndexEntry> {
    let mut entries: Vec<IndexEntry> = Vec::new();
    for entry in bytes.chunks_exact(size_of::<IndexEntry>()).filter_map(|chunk| IndexEntry::read_from_bytes(chunk).ok())
    {
        let follows = entries.last().map_or(entry.offset.get() >= base, |last| {
            last.offset < entry.offset && last.position < entry.position && last.max_before <= entry.max_before
        });
        if entry.is_whole() && follows {
            entries.push(entry);
        }
    }
    entries
}

/// The secret and the partition of the batches in a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchScope {
    pub secret: FolderSecret,
    pub key: PartitionKey,
}

/// Reads the batches of a segment from a position on, one after the other.
pub(crate) struct Scanner {
    file: std::sync::Arc<dyn DiskFile>,
    of: BatchScope,
    /// The position of `chunk` in the file.
    position: u64,
    end: u64,
    chunk: Bytes,
    chunk_len: usize,
    /// Reads sector by sector, because the disk could not read a whole chunk.
    by_sector: bool,
}

/// The reason why a scan stopped before a batch of this partition.
#[derive(Debug)]
pub(crate) enum ScanError {
    Io(io::Error),
    Bad { position: u64, what: &'static str },
}

impl Scanner {
    pub fn new(file: std::sync::Arc<dyn DiskFile>, of: BatchScope, position: u64, end: u64) -> Self {
        Self { file, of, position, end, chunk: Bytes::new(), chunk_len: SCAN_CHUNK, by_sector: false }
    }

    /// Sets the minimum bytes of one read.
    pub fn with_chunk(mut self, bytes: usize) -> Self {
        self.chunk_len = bytes.clamp(SCAN_CHUNK, FRAME_BYTES_MAX);
        self
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    /// The position of the next batch.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next batch and its position; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(u64, LogBatch)>, ScanError> {
        let bad = |position, what| Err(ScanError::Bad { position, what });
        loop {
            let left = self.end - self.position;
            if left == 0 {
                return Ok(None);
            }
            match LogBatch::read(&self.chunk, self.of.secret) {
                Ok(batch) => {
                    let key = PartitionKey { topic: batch.header.topic.get(), partition: batch.header.partition.get() };
                    if key != self.of.key {
                        return bad(self.position, "a batch of another partition");
                    }
                    let at = self.position;
                    self.position += batch.bytes.len() as u64;
                    bytes::Buf::advance(&mut self.chunk, batch.bytes.len());
                    return Ok(Some((at, batch)));
                }
                Err(BatchError::Short { needed }) => {
                    if needed as u64 > left || needed > BATCH_HEADER_LEN + FRAME_BYTES_MAX {
                        return bad(self.position, "a batch longer than what is there");
                    }
                    self.fill(needed)?;
                }
                Err(BatchError::NoBatch) => return bad(self.position, "no batch of this folder"),
                Err(BatchError::WrongCrc) => return bad(self.position, "a batch with a wrong checksum"),
            }
        }
    }

    /// Searches byte by byte for the next whole batch of this partition.
    pub fn find_next(&mut self) -> Result<Option<(u64, LogBatch)>, ScanError> {
        while self.end - self.position >= BATCH_HEADER_LEN as u64 {
            if self.chunk.len() < BATCH_MAGIC.len() && !self.fill_behind_unreadable()? {
                return Ok(None);
            }
            let skipped = match self.chunk.windows(BATCH_MAGIC.len()).position(|bytes| bytes == BATCH_MAGIC) {
                Some(at) => at,
                // The last bytes may be the beginning of a magic.
                None => self.chunk.len() + 1 - BATCH_MAGIC.len(),
            };
            self.skip(skipped);
            if !self.chunk.starts_with(&BATCH_MAGIC) {
                continue;
            }
            let (position, chunk) = (self.position, self.chunk.clone());
            match self.next() {
                Err(ScanError::Io(error)) if !is_unreadable(&error) => return Err(ScanError::Io(error)),
                // A batch with an unreadable part is as bad as one with a wrong checksum.
                Err(ScanError::Io(_) | ScanError::Bad { .. }) => {
                    (self.position, self.chunk) = (position, chunk);
                    self.skip(1);
                }
                found => return found,
            }
        }
        Ok(None)
    }

    /// Fills the chunk at the next readable position. Returns false if there is none.
    fn fill_behind_unreadable(&mut self) -> Result<bool, ScanError> {
        let begun = self.position;
        while self.end - self.position >= BATCH_HEADER_LEN as u64 {
            match self.fill(BATCH_HEADER_LEN) {
                Err(ScanError::Io(error)) if is_unreadable(&error) => {
                    let step = ((self.position - begun) / SKIPPED_PART).max(1);
                    let next = (self.position + step).next_multiple_of(SECTOR);
                    (self.position, self.chunk) = (next.min(self.end), Bytes::new());
                }
                other => {
                    self.by_sector &= self.position == begun;
                    return other.map(|()| true);
                }
            }
        }
        Ok(false)
    }

    fn skip(&mut self, bytes: usize) {
        self.position += bytes as u64;
        bytes::Buf::advance(&mut self.chunk, bytes);
    }

    /// Reads a chunk with at least the next `needed` bytes. If the disk cannot read a whole chunk, reads sector by sector, so that the
    /// bytes before an unreadable sector are found.
    fn fill(&mut self, needed: usize) -> Result<(), ScanError> {
        let left = (self.end - self.position) as usize;
        let read = |want: usize| {
            let mut buffer = vec![0; want.max(needed).min(left)];
            let read = self.file.read_at(&mut buffer, self.position);
            read.map(|read| {
                buffer.truncate(read);
                buffer
            })
        };
        let is_bad = |read: &io::Result<Vec<u8>>| matches!(read, Err(error) if is_unreadable(error));
        let to_sector_end = (SECTOR - self.position % SECTOR) as usize;
        let mut found = read(if self.by_sector { to_sector_end } else { self.chunk_len });
        if is_bad(&found) && !self.by_sector {
            self.by_sector = true;
            found = read(to_sector_end);
        }
        if is_bad(&found) && needed < to_sector_end {
            found = read(needed);
        }
        let buffer = found.map_err(ScanError::Io)?;
        if buffer.len() < needed {
            return Err(ScanError::Bad { position: self.position, what: "a file that is shorter than it was" });
        }
        self.chunk = buffer.into();
        Ok(())
    }
}
