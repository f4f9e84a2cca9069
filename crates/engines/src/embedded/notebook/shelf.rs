//! Slices of time on disk: files that are appended to, passed over by the heads of their chunks, and deleted whole, the oldest first.
//!
//! A slice is `<family>-<when it began, in ms>.slice`: eight bytes that say what it is and in which format, then chunks. A chunk is a
//! [`ChunkHead`] and its body; both have a checksum, so that a head can be believed without its body. What lies behind the last chunk
//! that is whole is a torn tail: it is cut when the slice is opened to be written, and a reader ends before it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read as _, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use whimbrel_model::Timestamp;

/// What a slice begins with: a name, and the format.
const MAGIC: [u8; 8] = *b"WBNOTES\x01";
const EXTENSION: &str = ".slice";
/// A shelf has room for so many slices that are full.
const SLICES_PER_SHELF: u64 = 16;
/// Bytes of a slice; fewer are not worth a file.
const SLICE_BYTES_MIN: u64 = 64 << 10;
const SLICE_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a body at most: a head that says more is none.
pub const BODY_BYTES_MAX: usize = 1 << 20;
pub const HEAD_BYTES: usize = 52;
/// Bytes that a reader takes from a slice at once.
const READ_BYTES: usize = 64 << 10;

/// What chunks are told apart by.
pub type Group = [u32; 3];

/// What is known of a chunk without its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHead {
    pub group: Group,
    /// The least and the greatest of what the entries are looked up by.
    pub first: u64,
    pub last: u64,
    /// What the first entry's differences begin from.
    pub base: i64,
    pub count: u32,
    body_len: u32,
    body_crc: u32,
}

impl ChunkHead {
    pub fn of(group: Group, range: RangeInclusive<u64>, base: i64, count: u32, body: &[u8]) -> Self {
        debug_assert!(body.len() <= BODY_BYTES_MAX);
        let (first, last) = range.into_inner();
        Self { group, first, last, base, count, body_len: body.len() as u32, body_crc: crc_fast::crc32_iscsi(body) }
    }

    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        let fields: [&[u8]; 9] = [
            &self.body_len.to_le_bytes(),
            &self.count.to_le_bytes(),
            &self.group[0].to_le_bytes(),
            &self.group[1].to_le_bytes(),
            &self.group[2].to_le_bytes(),
            &self.first.to_le_bytes(),
            &self.last.to_le_bytes(),
            &self.base.to_le_bytes(),
            &self.body_crc.to_le_bytes(),
        ];
        let mut at = 0;
        for field in fields {
            head[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        let crc = crc_fast::crc32_iscsi(&head[..at]);
        head[at..].copy_from_slice(&crc.to_le_bytes());
        head
    }

    /// `None` where that is no head.
    pub fn decode(head: &[u8; HEAD_BYTES]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        if crc_fast::crc32_iscsi(&head[..HEAD_BYTES - 4]) != u32_at(HEAD_BYTES - 4)? {
            return None;
        }
        let body_len = u32_at(0)?;
        (body_len as usize <= BODY_BYTES_MAX).then_some(())?;
        Some(Self {
            body_len,
            count: u32_at(4)?,
            group: [u32_at(8)?, u32_at(12)?, u32_at(16)?],
            first: u64_at(20)?,
            last: u64_at(28)?,
            base: u64_at(36)? as i64,
            body_crc: u32_at(44)?,
        })
    }
}

/// How much a shelf holds.
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

/// A slice as it was seen: what is behind its length came later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceSeen {
    pub path: PathBuf,
    pub begins: Timestamp,
    pub len: u64,
}

/// The slices of one family.
pub struct Shelf {
    folder: PathBuf,
    family: &'static str,
    settings: ShelfSettings,
    /// By when they began. The last one is written to where `file` is there.
    slices: Vec<SliceSeen>,
    file: Option<File>,
}

impl Shelf {
    /// Finds what an earlier process left, cuts the torn tail of its last slice, and goes on writing there.
    pub fn open(folder: &Path, family: &'static str, settings: ShelfSettings, now: Timestamp) -> io::Result<Self> {
        let mut slices = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let begins = name.to_str().and_then(|name| name.strip_prefix(family)?.strip_prefix('-'));
            let begins = begins.and_then(|name| name.strip_suffix(EXTENSION)?.parse().ok());
            if let Some(begins) = begins {
                let (begins, len) = (Timestamp::from_millis(begins), entry.metadata()?.len());
                slices.push(SliceSeen { path: entry.path(), begins, len });
            }
        }
        slices.sort_by_key(|slice| slice.begins);
        let mut shelf = Self { folder: folder.to_owned(), family, settings, slices, file: None };
        if let Some(last) = shelf.slices.last_mut() {
            shelf.file = reopen(last)?;
        }
        shelf.clear(now);
        Ok(shelf)
    }

    pub fn seen(&self) -> Vec<SliceSeen> {
        self.slices.clone()
    }

    /// Appends whole chunks. Where that fails they are lost, and the next ones go to a new slice.
    pub fn append(&mut self, chunks: &[u8], now: Timestamp) -> io::Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        if self.file.is_none() || self.is_full(now) {
            self.begin(now)?;
        }
        let written = match &mut self.file {
            Some(file) => file.write_all(chunks),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        match (written, self.slices.last_mut()) {
            (Ok(()), Some(slice)) => slice.len += chunks.len() as u64,
            (written, _) => {
                // What was written of it is a torn tail of that slice.
                self.file = None;
                written?;
            }
        }
        self.clear(now);
        Ok(())
    }

    fn is_full(&self, now: Timestamp) -> bool {
        self.slices.last().is_none_or(|slice| {
            slice.len >= self.settings.slice_bytes() || now.saturating_sub(self.settings.slice_time) >= slice.begins
        })
    }

    fn begin(&mut self, now: Timestamp) -> io::Result<()> {
        // Slices stay in order, however the clock is set.
        let after = self.slices.last().map_or(i64::MIN, |slice| slice.begins.as_millis() + 1);
        let begins = now.as_millis().max(after);
        let path = self.folder.join(format!("{}-{begins:013}{EXTENSION}", self.family));
        let mut file = OpenOptions::new().append(true).create_new(true).open(&path)?;
        file.write_all(&MAGIC)?;
        self.file = Some(file);
        self.slices.push(SliceSeen { path, begins: Timestamp::from_millis(begins), len: MAGIC.len() as u64 });
        Ok(())
    }

    /// Deletes the oldest slices while there is too much, and those that are too old; never the one that is written to.
    fn clear(&mut self, now: Timestamp) {
        let mut total: u64 = self.slices.iter().map(|slice| slice.len).sum();
        let not_before = now.saturating_sub(self.settings.keep);
        let mut gone = 0;
        while let Some([oldest, next, ..]) = self.slices.get(gone..) {
            // A slice ends where the next one begins.
            if total <= self.settings.bytes_max && next.begins >= not_before {
                break;
            }
            match std::fs::remove_file(&oldest.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, slice = %oldest.path.display(), "an old slice of notes cannot be deleted");
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

/// Opens the last slice to go on with it; `None` where it is of another format, which is left alone.
fn reopen(slice: &mut SliceSeen) -> io::Result<Option<File>> {
    let mut whole = 0;
    let mut chunks = match Chunks::open(slice)? {
        Some(chunks) => chunks,
        None if slice.len < MAGIC.len() as u64 => {
            // Its maker died before it had written even that.
            std::fs::write(&slice.path, MAGIC)?;
            slice.len = MAGIC.len() as u64;
            return Ok(Some(OpenOptions::new().append(true).open(&slice.path)?));
        }
        None => return Ok(None),
    };
    let mut body = Vec::new();
    while let Some(head) = chunks.next()? {
        if !chunks.body(&head, &mut body)? {
            break;
        }
        whole = chunks.at;
    }
    let whole = whole.max(MAGIC.len() as u64);
    let file = OpenOptions::new().append(true).open(&slice.path)?;
    if whole < slice.len {
        tracing::info!(slice = %slice.path.display(), bytes = slice.len - whole, "a torn tail of notes was cut");
        file.set_len(whole)?;
        slice.len = whole;
    }
    Ok(Some(file))
}

/// Shows the chunks of a group that can have something of that range, in the order in which they were written.
pub fn scan(slices: &[SliceSeen], group: Group, wanted: RangeInclusive<u64>, mut show: impl FnMut(&ChunkHead, &[u8])) {
    let mut body = Vec::new();
    for slice in slices {
        match scan_slice(slice, group, &wanted, &mut body, &mut show) {
            Ok(()) => {}
            // It was deleted since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, slice = %slice.path.display(), "a slice of notes cannot be read to its end");
            }
        }
    }
}

fn scan_slice(
    slice: &SliceSeen,
    group: Group,
    wanted: &RangeInclusive<u64>,
    body: &mut Vec<u8>,
    show: &mut impl FnMut(&ChunkHead, &[u8]),
) -> io::Result<()> {
    let Some(mut chunks) = Chunks::open(slice)? else { return Ok(()) };
    while let Some(head) = chunks.next()? {
        if head.group != group || head.first > *wanted.end() || head.last < *wanted.start() {
            chunks.pass(&head)?;
        } else if chunks.body(&head, body)? {
            show(&head, body);
        } else {
            return Ok(());
        }
    }
    Ok(())
}

/// The chunks of a slice, one after the other.
struct Chunks {
    file: BufReader<File>,
    at: u64,
    len: u64,
}

impl Chunks {
    /// `None` where it is no slice of this format.
    fn open(slice: &SliceSeen) -> io::Result<Option<Self>> {
        let mut file = BufReader::with_capacity(READ_BYTES, File::open(&slice.path)?);
        let mut magic = [0; MAGIC.len()];
        if slice.len < MAGIC.len() as u64 {
            return Ok(None);
        }
        file.read_exact(&mut magic)?;
        Ok((magic == MAGIC).then_some(Self { file, at: MAGIC.len() as u64, len: slice.len }))
    }

    /// The next head, at whose body the reader then is; `None` at the end of what is whole.
    fn next(&mut self) -> io::Result<Option<ChunkHead>> {
        if self.at + HEAD_BYTES as u64 > self.len {
            return Ok(None);
        }
        let mut head = [0; HEAD_BYTES];
        self.file.read_exact(&mut head)?;
        self.at += HEAD_BYTES as u64;
        Ok(ChunkHead::decode(&head).filter(|head| self.at + u64::from(head.body_len) <= self.len))
    }

    fn pass(&mut self, head: &ChunkHead) -> io::Result<()> {
        self.at += u64::from(head.body_len);
        self.file.seek_relative(head.body_len.into())
    }

    /// Reads a body; false where it is not what was written.
    fn body(&mut self, head: &ChunkHead, body: &mut Vec<u8>) -> io::Result<bool> {
        body.resize(head.body_len as usize, 0);
        self.file.read_exact(body)?;
        self.at += u64::from(head.body_len);
        Ok(crc_fast::crc32_iscsi(body) == head.body_crc)
    }
}
