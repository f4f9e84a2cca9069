//! The checkpoint: up to which frame everything is in the segments, and how far each partition reached.
//!
//! A small file, replaced whole, and a copy of it. Recovery cuts the segments back to what it says and replays the journal from there.
//!
//! The copy is replaced first, so it is never older than the file: where the file is damaged, the copy holds. An older checkpoint would not:
//! the journal that it stands upon may be overwritten. The journal's files are reused only after both are durable.

use std::io;
use std::path::Path;

use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::disk::{Disk, replace_file};
use crate::error::OpenError;
use crate::fallback::{Fallback, Replaced, Unusable, copy_of, read_or_fallback};
use crate::format::crc;

const MAGIC: [u8; 8] = *b"WCheck 1";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Frames of this generation follow.
    pub generation: u64,
    /// Everything up to this frame is in the segments.
    pub sequence: u64,
    pub partitions: Vec<PartitionMark>,
}

/// How far one partition's segments reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PartitionMark {
    pub topic: U32,
    pub partition: U32,
    pub first: U64,
    pub next: U64,
    /// The segment being written, and its length; a length of zero says that there is none.
    pub active_base: U64,
    pub active_len: U64,
    pub active_max_timestamp: I64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    generation: U64,
    sequence: U64,
    partitions: U32,
}

impl Checkpoint {
    pub fn write(&self, disk: &dyn Disk, path: &Path) -> io::Result<()> {
        let header = Header {
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

    /// Reads it, or its copy where it is damaged or missing; `None` where neither is there. They are replaced whole, so one that cannot be
    /// read is damage, and without both the log does not guess: nothing says what the journal's frames stand upon.
    pub fn read(disk: &dyn Disk, path: &Path) -> Result<Option<(Self, Option<Replaced>)>, OpenError> {
        read_or_fallback(disk, path, Fallback::Copy(&copy_of(path)), Self::decode)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Unusable> {
        let wrong = |why: &str| Unusable::Damaged(why.to_owned());
        let (contents, stated) = bytes.split_last_chunk::<4>().ok_or_else(|| wrong("it is too short"))?;
        if crc(contents) != u32::from_le_bytes(*stated) {
            return Err(wrong("its checksum is wrong"));
        }
        let (header, rest) = Header::read_from_prefix(contents).map_err(|_| wrong("it is too short"))?;
        if header.magic != MAGIC {
            return Err(wrong("it is of an unknown version"));
        }
        let marks = <[PartitionMark]>::ref_from_bytes(rest).map_err(|_| wrong("its length is wrong"))?;
        if marks.len() != header.partitions.get() as usize {
            return Err(wrong("it has another number of partitions than it says"));
        }
        Ok(Self { generation: header.generation.get(), sequence: header.sequence.get(), partitions: marks.to_vec() })
    }
}
