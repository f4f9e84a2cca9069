//! The bytes on the disk. All numbers are little-endian. Every format has its version in its magic.
//!
//! The caller that appends a **record** encodes it; the log never changes it. A **batch** is a header and the records of one partition in
//! one group commit. Its bytes are the same in the journal, in the segment and in memory. A **frame** is a header and the batches of one
//! group commit. It is the unit of the journal, and of all-or-nothing.
//!
//! Users choose the bytes of their payloads, so a frame or batch must not be recognised by bytes that users can know. A frame has its
//! generation, a batch the [`FolderSecret`]. Both are random numbers that never leave the folder.

use bytes::Bytes;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Frames begin at multiples of this. A write of the next frame, which a power loss could tear, therefore never touches the blocks of a
/// synced frame. After a bad frame, recovery finds the next one at such a multiple.
pub const FRAME_ALIGNMENT: usize = 4096;

pub const FRAME_MAGIC: [u8; 4] = *b"WFr1";
pub const BATCH_MAGIC: [u8; 4] = *b"WBa2";
pub const JOURNAL_MAGIC: [u8; 8] = *b"WJourn 1";

/// A random number of the data folder, in the header of each of its batches. After damage, the next batch is searched for byte by byte,
/// also through payloads. Bytes without this number are not a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FolderSecret(pub u64);

/// Hides the secret: a user who finds it in a log could put it into a payload.
impl std::fmt::Debug for FolderSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FolderSecret(…)")
    }
}

/// Some of the batch's records came from a `commit`.
pub const BATCH_HAS_COMMIT: u32 = 1;

/// The header of a journal file. It fills one block, so that the first frame is aligned.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct JournalHeader {
    pub magic: [u8; 8],
    pub generation: U64,
    /// The sequence number of the first frame in this file.
    pub first_sequence: U64,
    /// Covers the bytes before it.
    pub crc: U32,
}

/// The header of a frame. The CRC covers everything after it, to the end of the last batch.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    pub magic: [u8; 4],
    pub crc: U32,
    pub generation: U64,
    pub sequence: U64,
    /// Every frame up to this one was on the disk when this frame was written.
    pub synced_upto: U64,
    /// Bytes of the batches after this header.
    pub body_len: U32,
    pub batches: U32,
}

/// The header of a batch. The CRC covers everything after it, to the end of the last record.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BatchHeader {
    pub magic: [u8; 4],
    pub crc: U32,
    /// The [`FolderSecret`].
    pub secret: U64,
    /// Bytes of the records after this header.
    pub body_len: U32,
    pub count: U32,
    pub topic: U32,
    pub partition: U32,
    pub base_offset: U64,
    /// The latest time of the records.
    pub max_timestamp: I64,
    pub flags: U32,
}

pub const FRAME_HEADER_LEN: usize = size_of::<FrameHeader>();
pub const BATCH_HEADER_LEN: usize = size_of::<BatchHeader>();
const CRC_END: usize = 8;

const _: () = assert!(FRAME_HEADER_LEN == 40 && BATCH_HEADER_LEN == 52);
const _: () = assert!(size_of::<JournalHeader>() == 28 && size_of::<JournalHeader>() <= FRAME_ALIGNMENT);

/// CRC32C.
pub fn crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Fills in the CRC of a whole frame or batch, whose magic and CRC are its first eight bytes.
pub fn seal(bytes: &mut [u8]) {
    let crc = crc(&bytes[CRC_END..]);
    bytes[4..CRC_END].copy_from_slice(&crc.to_le_bytes());
}

fn is_sealed(bytes: &[u8], stated: U32) -> bool {
    crc(&bytes[CRC_END..]) == stated.get()
}

pub const fn align(len: u64) -> u64 {
    len.next_multiple_of(FRAME_ALIGNMENT as u64)
}

impl JournalHeader {
    pub fn new(generation: u64, first_sequence: u64) -> Self {
        let mut header = Self {
            magic: JOURNAL_MAGIC,
            generation: generation.into(),
            first_sequence: first_sequence.into(),
            crc: 0.into(),
        };
        header.crc = crc(&header.as_bytes()[..24]).into();
        header
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (header, _) = Self::read_from_prefix(bytes).ok()?;
        (header.magic == JOURNAL_MAGIC && header.crc.get() == crc(&header.as_bytes()[..24])).then_some(header)
    }
}

impl FrameHeader {
    /// Reads a header and checks its magic only. The caller checks its generation, its length and its CRC.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (header, _) = Self::read_from_prefix(bytes).ok()?;
        (header.magic == FRAME_MAGIC).then_some(header)
    }

    pub fn frame_len(&self) -> usize {
        FRAME_HEADER_LEN + self.body_len.get() as usize
    }

    /// Checks the CRC over a frame of exactly [`FrameHeader::frame_len`] bytes.
    pub fn is_whole(&self, frame: &[u8]) -> bool {
        frame.len() == self.frame_len() && is_sealed(frame, self.crc)
    }
}

/// A batch with a correct CRC. It shares the bytes from which it was read.
#[derive(Debug, Clone)]
pub struct LogBatch {
    pub header: BatchHeader,
    /// Header and records.
    pub bytes: Bytes,
}

/// The reason why bytes are not a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchError {
    /// The bytes end before the batch does.
    Short {
        needed: usize,
    },
    /// These bytes are not a batch of this folder.
    NoBatch,
    WrongCrc,
}

impl BatchHeader {
    /// Reads a header without any check.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// Whether the header has the magic and the secret of this folder. It does not check the CRC.
    pub fn is_ours(&self, secret: FolderSecret) -> bool {
        self.magic == BATCH_MAGIC && self.secret.get() == secret.0
    }
}

impl LogBatch {
    /// The batch at the start of `bytes`.
    pub fn read(bytes: &Bytes, secret: FolderSecret) -> Result<Self, BatchError> {
        let Ok((header, _)) = BatchHeader::read_from_prefix(bytes) else {
            return Err(BatchError::Short { needed: BATCH_HEADER_LEN });
        };
        // Checked before the length is used: otherwise a payload with thousands of forged headers would cost as many checksums.
        if !header.is_ours(secret) {
            return Err(BatchError::NoBatch);
        }
        let len = BATCH_HEADER_LEN + header.body_len.get() as usize;
        if bytes.len() < len {
            return Err(BatchError::Short { needed: len });
        }
        let bytes = bytes.slice(..len);
        if !is_sealed(&bytes, header.crc) {
            return Err(BatchError::WrongCrc);
        }
        Ok(Self { header, bytes })
    }

    pub fn base(&self) -> u64 {
        self.header.base_offset.get()
    }

    /// The offset after the last record.
    pub fn end(&self) -> u64 {
        self.base() + u64::from(self.header.count.get())
    }

    /// The records with their offsets. A record that cannot be decoded ends the sequence: the CRC was correct, so only a faulty encoder of
    /// Whimbrel can have written it.
    pub fn records(&self) -> impl Iterator<Item = (u64, LogRecord)> + use<> {
        let base = self.base();
        let mut rest = self.bytes.slice(BATCH_HEADER_LEN..);
        (0..u64::from(self.header.count.get())).map_while(move |index| {
            let record = LogRecord::split_off_front(&mut rest)?;
            Some((base + index, record))
        })
    }
}

/// One record. It shares the bytes from which it was read.
///
/// ```text
/// u32 length of what follows | i64 timestamp | u32 key length + 1, or 0 for none | u32 headers length | key | headers | value
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    pub timestamp: i64,
    pub key: Option<Bytes>,
    pub headers: Bytes,
    pub value: Bytes,
}

const RECORD_LEN_LEN: usize = 4;
const RECORD_FIXED_LEN: usize = 16;

impl LogRecord {
    pub fn encoded_len(key: Option<&[u8]>, headers: &[u8], value: &[u8]) -> usize {
        RECORD_LEN_LEN + RECORD_FIXED_LEN + key.map_or(0, <[u8]>::len) + headers.len() + value.len()
    }

    /// Appends the encoded record to `buffer`.
    pub fn encode(buffer: &mut Vec<u8>, timestamp: i64, key: Option<&[u8]>, headers: &[u8], value: &[u8]) {
        let len = Self::encoded_len(key, headers, value);
        buffer.reserve(len);
        buffer.extend_from_slice(&((len - RECORD_LEN_LEN) as u32).to_le_bytes());
        buffer.extend_from_slice(&timestamp.to_le_bytes());
        buffer.extend_from_slice(&key.map_or(0, |key| key.len() as u32 + 1).to_le_bytes());
        buffer.extend_from_slice(&(headers.len() as u32).to_le_bytes());
        buffer.extend_from_slice(key.unwrap_or_default());
        buffer.extend_from_slice(headers);
        buffer.extend_from_slice(value);
    }

    fn split_off_front(rest: &mut Bytes) -> Option<Self> {
        let len = u32::from_le_bytes(*rest.first_chunk()?) as usize;
        let end = RECORD_LEN_LEN.checked_add(len)?;
        if len < RECORD_FIXED_LEN || end > rest.len() {
            return None;
        }
        let fixed: &[u8; RECORD_FIXED_LEN] = rest[RECORD_LEN_LEN..].first_chunk()?;
        let timestamp = i64::from_le_bytes(*fixed.first_chunk()?);
        let key_code = u32::from_le_bytes(*fixed[8..].first_chunk()?) as usize;
        let headers_len = u32::from_le_bytes(*fixed[12..].first_chunk()?) as usize;
        let key_from = RECORD_LEN_LEN + RECORD_FIXED_LEN;
        let headers_from = key_from.checked_add(key_code.saturating_sub(1))?;
        let value_from = headers_from.checked_add(headers_len)?;
        if value_from > end {
            return None;
        }
        let record = Self {
            timestamp,
            key: (key_code > 0).then(|| rest.slice(key_from..headers_from)),
            headers: rest.slice(headers_from..value_from),
            value: rest.slice(value_from..end),
        };
        bytes::Buf::advance(rest, end);
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: FolderSecret = FolderSecret(0x1234_5678_9abc_def0);

    fn batch_of(records: &[LogRecord]) -> Vec<u8> {
        let mut body = Vec::new();
        for record in records {
            LogRecord::encode(&mut body, record.timestamp, record.key.as_deref(), &record.headers, &record.value);
        }
        let header = BatchHeader {
            magic: BATCH_MAGIC,
            crc: 0.into(),
            secret: SECRET.0.into(),
            body_len: (body.len() as u32).into(),
            count: (records.len() as u32).into(),
            topic: 1.into(),
            partition: 2.into(),
            base_offset: 30.into(),
            max_timestamp: 0.into(),
            flags: 0.into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(&body);
        seal(&mut bytes);
        bytes
    }

    fn any_record() -> impl Strategy<Value = LogRecord> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from);
        (any::<i64>(), proptest::option::of(bytes()), bytes(), bytes())
            .prop_map(|(timestamp, key, headers, value)| LogRecord { timestamp, key, headers, value })
    }

    proptest! {
        #[test]
        fn records_survive_encoding(records in proptest::collection::vec(any_record(), 0..8)) {
            let batch = LogBatch::read(&batch_of(&records).into(), SECRET).unwrap();
            let read: Vec<_> = batch.records().collect();
            let expected: Vec<_> = (30..).zip(records).collect();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn every_flipped_bit_of_a_batch_is_detected(records in proptest::collection::vec(any_record(), 1..4), at: proptest::sample::Index, bit in 0u8..8) {
            let mut bytes = batch_of(&records);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(LogBatch::read(&bytes.into(), SECRET).is_err());
        }

        #[test]
        fn a_batch_of_another_folder_is_not_read(records in proptest::collection::vec(any_record(), 1..4), other: u64) {
            prop_assume!(other != SECRET.0);
            let read = LogBatch::read(&batch_of(&records).into(), FolderSecret(other));
            prop_assert_eq!(read.map(|batch| batch.base()), Err(BatchError::NoBatch));
        }

        #[test]
        fn nonsense_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = LogRecord::split_off_front(&mut Bytes::from(bytes.clone()));
            if bytes.len() >= 16 {
                bytes[..4].copy_from_slice(&BATCH_MAGIC);
                bytes[8..16].copy_from_slice(&SECRET.0.to_le_bytes());
            }
            let _ = LogBatch::read(&bytes.into(), SECRET);
        }
    }
}
