//! The checkpoint: the frame up to which the segments contain everything, and the end of each partition's segments.
//!
//! The checkpoint is a small file that is replaced as a whole, and a copy of it. Recovery cuts the segments back to the checkpoint and
//! replays the journal from there.
//!
//! The copy is replaced first, so it is never older than the file and can stand in for a damaged file. An older checkpoint could not: the
//! journal that it needs may be overwritten. Journal files are reused only after both files are durable.

use std::io;
use std::path::Path;

use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::disk::{Disk, replace_file};
use crate::error::OpenError;
use crate::fallback::{ContentsError, Fallback, Replacement, copy_of, read_or_fallback};
use crate::format::crc;

const MAGIC: [u8; 8] = *b"WCheck 1";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// The generation of the frames that follow.
    pub generation: u64,
    /// The segments contain everything up to this frame.
    pub sequence: u64,
    pub partitions: Vec<PartitionMark>,
}

/// The end of one partition's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PartitionMark {
    pub topic: U32,
    pub partition: U32,
    pub first: U64,
    pub next: U64,
    /// The segment that is being written, and its length. A length of 0 means that there is none.
    pub active_base: U64,
    pub active_len: U64,
    pub active_max_timestamp: I64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CheckpointHeader {
    magic: [u8; 8],
    generation: U64,
    sequence: U64,
    partitions: U32,
}

impl Checkpoint {
    pub fn write(&self, disk: &dyn Disk, path: &Path) -> io::Result<()> {
        let header = CheckpointHeader {
            magic: MAGIC,
            generation: self.generation.into(),
            sequence: self.sequence.into(),
            partitions: (self.partitions.len() as u32).into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(self.partitions.as_bytes());
        bytes.extend_from_slice(&crc(&bytes).to_le_bytes());
        replace_file(disk, &copy_of(path), &bytes)?;
        Ok(replace_file(disk, path, &bytes)?)
    }

    /// Reads the file, or its copy if the file is damaged or missing. Returns `None` if neither exists. Both files are replaced as a whole,
    /// so an unreadable file is damaged. Without a readable one the log does not open: the start of the replay is unknown.
    pub fn read(disk: &dyn Disk, path: &Path) -> Result<Option<(Self, Option<Replacement>)>, OpenError> {
        read_or_fallback(disk, path, Fallback::Copy(&copy_of(path)), Self::decode)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, ContentsError> {
        let wrong = |why: &str| ContentsError::Damaged(why.to_owned());
        let (contents, stated) = bytes.split_last_chunk::<4>().ok_or_else(|| wrong("it is too short"))?;
        if crc(contents) != u32::from_le_bytes(*stated) {
            return Err(wrong("its checksum is wrong"));
        }
        let (header, rest) = CheckpointHeader::read_from_prefix(contents).map_err(|_| wrong("it is too short"))?;
        if header.magic != MAGIC {
            return Err(wrong("its version is unknown"));
        }
        let marks = <[PartitionMark]>::ref_from_bytes(rest).map_err(|_| wrong("its length is wrong"))?;
        if marks.len() != header.partitions.get() as usize {
            return Err(wrong("its number of partitions does not match its contents"));
        }
        Ok(Self { generation: header.generation.get(), sequence: header.sequence.get(), partitions: marks.to_vec() })
    }
}
