//! One slice of the notebook: a file of chunks that is only appended to.
//!
//! A slice begins with [`MAGIC`]; chunks follow. A chunk is a [`ChunkHead`] and its body. Each has its own checksum, so that a reader can
//! verify a head without reading the body. A reader skips a damaged body by the length in its head. After a damaged head it searches for
//! the next sound chunk. Bytes after the last sound chunk are a torn tail, left by a crash or a failed write. They do not count as damage.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use whimbrel_model::Timestamp;

use super::slice_reports::SliceReports;

/// The first bytes of a slice: a name, and the format.
pub const MAGIC: [u8; 8] = *b"WBNOTES\x01";
pub const MAGIC_BYTES: u64 = MAGIC.len() as u64;
/// Maximum size of a body: a head with a greater length is damaged.
pub const BODY_BYTES_MAX: usize = 1 << 20;
pub const HEAD_BYTES: usize = 52;
/// Bytes that a reader takes from a slice at once.
const READ_BYTES: usize = 64 << 10;
/// The maximum number of damaged places that one pass over a slice lists. It skips further ones without listing them.
const DAMAGES_MAX: usize = 64;
const HEAD_DAMAGED: &str = "the head of a chunk is damaged";
const BODY_DAMAGED: &str = "the checksum of a chunk is wrong";

pub type ChunkKey = [u32; 3];

/// The description of a chunk in front of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHead {
    pub group: ChunkKey,
    /// The least and the greatest key under which its entries are looked up.
    pub first: u64,
    pub last: u64,
    /// The time from which the difference of the first entry counts.
    pub base: i64,
    pub count: u32,
    body_len: u32,
    body_crc: u32,
}

impl ChunkHead {
    pub fn of(group: ChunkKey, range: RangeInclusive<u64>, base: i64, count: u32, body: &[u8]) -> Self {
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

    /// `None` if these bytes are not a head.
    pub fn decode(head: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD_BYTES] = head.first_chunk()?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let body_len = u32_at(0)?;
        // Checked before the checksum, because a search for the next head tries every byte.
        (body_len as usize <= BODY_BYTES_MAX).then_some(())?;
        if crc_fast::crc32_iscsi(&head[..HEAD_BYTES - 4]) != u32_at(HEAD_BYTES - 4)? {
            return None;
        }
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

/// A slice with the length that it had at one moment. Bytes behind that length were written later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceSnapshot {
    pub path: PathBuf,
    pub begins: Timestamp,
    pub len: u64,
}

impl SliceSnapshot {
    /// Whether the slice has no chunks.
    pub fn is_empty(&self) -> bool {
        self.len <= MAGIC_BYTES
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceDamage {
    pub position: u64,
    pub reason: String,
}

/// The outcome of reading a whole slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceSurvey {
    /// The end of the last sound chunk that was read.
    whole: u64,
    /// Whether the slice could be read to its end. Then bytes behind the last sound chunk are a torn tail.
    is_read: bool,
    pub damages: Vec<SliceDamage>,
}

impl SliceSurvey {
    /// The length of the slice without its torn tail; `None` if a part of it could not be read.
    pub fn sound_len(&self) -> Option<u64> {
        self.is_read.then_some(self.whole)
    }
}

/// Reads all chunks of a slice; `None` if it is not a slice of this format. A read error is one of the damages.
pub fn survey(slice: &SliceSnapshot) -> io::Result<Option<SliceSurvey>> {
    let Some(mut chunks) = Chunks::open(slice)? else { return Ok(None) };
    let (mut whole, mut body) = (MAGIC_BYTES, Vec::new());
    let read = loop {
        match chunks.next() {
            Ok(Some(head)) => match chunks.body(&head, &mut body) {
                Ok(true) => whole = chunks.at,
                Ok(false) => {}
                Err(error) => break Err(error),
            },
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let position = chunks.at;
    let mut damages = chunks.into_damages();
    let is_read = read.is_ok();
    damages.extend(read.err().map(|error| SliceDamage { position, reason: error.to_string() }));
    Ok(Some(SliceSurvey { whole, is_read, damages }))
}

/// Passes the chunks of a group that may have entries in that range to `show`, in the order in which they were written.
pub fn scan(
    slices: &[SliceSnapshot],
    group: ChunkKey,
    wanted: RangeInclusive<u64>,
    reports: &SliceReports,
    mut show: impl FnMut(&ChunkHead, &[u8]),
) {
    let mut body = Vec::new();
    for slice in slices {
        let mut chunks = match Chunks::open(slice) {
            Ok(Some(chunks)) => chunks,
            // It is of another format, or was deleted since.
            Ok(None) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                reports.damaged(&slice.path, &SliceDamage { position: 0, reason: error.to_string() });
                continue;
            }
        };
        let read = scan_slice(&mut chunks, group, &wanted, &mut body, &mut show);
        if let Err(error) = read {
            reports.damaged(&slice.path, &SliceDamage { position: chunks.at, reason: error.to_string() });
        }
        chunks.into_damages().iter().for_each(|damage| reports.damaged(&slice.path, damage));
    }
}

fn scan_slice(
    chunks: &mut Chunks,
    group: ChunkKey,
    wanted: &RangeInclusive<u64>,
    body: &mut Vec<u8>,
    show: &mut impl FnMut(&ChunkHead, &[u8]),
) -> io::Result<()> {
    while let Some(head) = chunks.next()? {
        if head.group != group || head.first > *wanted.end() || head.last < *wanted.start() {
            chunks.pass(&head)?;
        } else if chunks.body(&head, body)? {
            show(&head, body);
        }
    }
    Ok(())
}

/// The chunks of a slice, one after the other.
struct Chunks {
    file: BufReader<File>,
    /// The position behind the bytes that were read last.
    at: u64,
    len: u64,
    damages: Vec<SliceDamage>,
    /// The number of these places that a sound chunk follows. The others may belong to the torn tail.
    confirmed: usize,
}

impl Chunks {
    /// `None` if it is not a slice of this format.
    fn open(slice: &SliceSnapshot) -> io::Result<Option<Self>> {
        let mut file = BufReader::with_capacity(READ_BYTES, File::open(&slice.path)?);
        let mut magic = [0; MAGIC.len()];
        if slice.len < MAGIC_BYTES {
            return Ok(None);
        }
        file.read_exact(&mut magic)?;
        let chunks = Self { file, at: MAGIC_BYTES, len: slice.len, damages: Vec::new(), confirmed: 0 };
        Ok((magic == MAGIC).then_some(chunks))
    }

    /// Reads the next head; its body follows. `None` at the end.
    fn next(&mut self) -> io::Result<Option<ChunkHead>> {
        while self.at + HEAD_BYTES as u64 <= self.len {
            let begins = self.at;
            let mut head = [0; HEAD_BYTES];
            self.file.read_exact(&mut head)?;
            self.at += HEAD_BYTES as u64;
            if let Some(head) = ChunkHead::decode(&head).filter(|head| self.at + u64::from(head.body_len) <= self.len) {
                self.confirmed = self.damages.len();
                return Ok(Some(head));
            }
            let Some(sound) = self.find_chunk(begins + 1)? else { return Ok(None) };
            self.suspect(begins, HEAD_DAMAGED);
            self.file.seek(SeekFrom::Start(sound))?;
            self.at = sound;
        }
        Ok(None)
    }

    fn pass(&mut self, head: &ChunkHead) -> io::Result<()> {
        self.file.seek_relative(head.body_len.into())?;
        self.at += u64::from(head.body_len);
        Ok(())
    }

    /// Reads a body; false if its checksum is wrong.
    fn body(&mut self, head: &ChunkHead, body: &mut Vec<u8>) -> io::Result<bool> {
        body.resize(head.body_len as usize, 0);
        self.file.read_exact(body)?;
        let begins = self.at - HEAD_BYTES as u64;
        self.at += u64::from(head.body_len);
        let is_sound = crc_fast::crc32_iscsi(body) == head.body_crc;
        if !is_sound {
            self.suspect(begins, BODY_DAMAGED);
        }
        Ok(is_sound)
    }

    fn suspect(&mut self, position: u64, reason: &str) {
        if self.damages.len() < DAMAGES_MAX {
            self.damages.push(SliceDamage { position, reason: reason.to_owned() });
        }
    }

    fn into_damages(mut self) -> Vec<SliceDamage> {
        self.damages.truncate(self.confirmed);
        self.damages
    }

    /// The position of the first sound chunk from a position on.
    fn find_chunk(&self, mut from: u64) -> io::Result<Option<u64>> {
        let mut window = Vec::new();
        while from + HEAD_BYTES as u64 <= self.len {
            window.resize((self.len - from).min(READ_BYTES as u64) as usize, 0);
            self.file.get_ref().read_exact_at(&mut window, from)?;
            for (at, head) in window.windows(HEAD_BYTES).enumerate() {
                let position = from + at as u64;
                if let Some(head) = ChunkHead::decode(head)
                    && self.is_sound(position, &head)?
                {
                    return Ok(Some(position));
                }
            }
            from += (window.len() - HEAD_BYTES + 1) as u64;
        }
        Ok(None)
    }

    fn is_sound(&self, position: u64, head: &ChunkHead) -> io::Result<bool> {
        let begins = position + HEAD_BYTES as u64;
        if begins + u64::from(head.body_len) > self.len {
            return Ok(false);
        }
        let mut body = vec![0; head.body_len as usize];
        self.file.get_ref().read_exact_at(&mut body, begins)?;
        Ok(crc_fast::crc32_iscsi(&body) == head.body_crc)
    }
}
