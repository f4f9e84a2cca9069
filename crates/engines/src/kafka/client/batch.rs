//! Kafka's record batches (magic 2): encoded for `Produce`, decoded from `Fetch`. Pure: bytes in, bytes out.
//!
//! Decoded keys and values share the bytes of the answer. Bytes from a broker are never trusted: a wrong checksum, a length beyond the end
//! of the bytes or an unknown format is an error with its offset.

use std::collections::HashSet;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use whimbrel_model::{Headers, HeadersBuilder, Record, StoredRecord, Timestamp};

use super::compression;
use crate::kafka::settings::Compression;

/// Bytes of a batch up to the end of its length field.
const PREFIX_BYTES: usize = 12;
/// Bytes of a batch before its records.
const HEADER_BYTES: usize = 61;
/// The position where the bytes begin that the checksum covers.
const CHECKED_FROM: usize = 21;
const MAGIC: i8 = 2;

const CODEC_MASK: i16 = 0b111;
const HAS_LOG_APPEND_TIME: i16 = 1 << 3;
const IS_TRANSACTIONAL: i16 = 1 << 4;
const IS_CONTROL: i16 = 1 << 5;

/// The type of a control record that ends an aborted transaction.
const ABORT_MARKER: i16 = 0;

/// The maximum memory of the decoded batches of one answer. Decoding stops after the batch that exceeds it.
pub(crate) const DECODED_BYTES_MAX: usize = 64 << 20;
/// The maximum number of records in a batch. Each takes about 100 bytes of memory beside its content, so a small batch could fill the
/// memory.
const BATCH_RECORDS_MAX: usize = 2 << 20;

/// The largest encoded size of a record beyond [`Record::size`]: its lengths, deltas and the number of its headers as varints.
const RECORD_OVERHEAD_BYTES: usize = 40;

/// The producer of a batch, and the sequence number that orders it among the batches of its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchIdentity {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub is_transactional: bool,
}

/// The maximum bytes of a record in a batch.
pub(crate) fn encoded_bytes_max(record: &Record) -> usize {
    record.size() + RECORD_OVERHEAD_BYTES
}

/// The sequence number that follows `count` records: it wraps to zero, as brokers compute it.
pub(crate) fn next_sequence(base: i32, count: usize) -> i32 {
    ((i64::from(base) + count as i64) & i64::from(i32::MAX)) as i32
}

/// One batch of records, which must not be empty.
pub(crate) fn encode<'a>(
    records: impl Iterator<Item = &'a Record> + Clone,
    identity: BatchIdentity,
    compression: Compression,
) -> std::io::Result<Bytes> {
    let base_time = records.clone().next().map_or(0, |first| first.timestamp.as_millis());
    let max_time = records.clone().map(|record| record.timestamp.as_millis()).max().unwrap_or(base_time);
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES + records.clone().map(encoded_bytes_max).sum::<usize>());
    bytes.put_bytes(0, HEADER_BYTES);
    let mut count = 0;
    for record in records {
        put_record(&mut bytes, record, i64::from(count), base_time);
        count += 1;
    }
    let can_compress = compression::can_compress(bytes.len() - HEADER_BYTES);
    let compression = if can_compress { compression } else { Compression::None };
    if compression != Compression::None {
        let compressed = compression::compress(compression, &bytes[HEADER_BYTES..])?;
        bytes.truncate(HEADER_BYTES);
        bytes.extend_from_slice(&compressed);
    }
    let transactional = if identity.is_transactional { IS_TRANSACTIONAL } else { 0 };
    let length = (bytes.len() - PREFIX_BYTES) as i32;
    let mut header = &mut bytes[..HEADER_BYTES];
    header.put_i64(0);
    header.put_i32(length);
    header.put_i32(-1);
    header.put_i8(MAGIC);
    header.put_u32(0);
    header.put_i16(compression::codec_of(compression) | transactional);
    header.put_i32(count - 1);
    header.put_i64(base_time);
    header.put_i64(max_time);
    header.put_i64(identity.producer_id);
    header.put_i16(identity.producer_epoch);
    header.put_i32(identity.base_sequence);
    header.put_i32(count);
    let checksum = checksum(&bytes[CHECKED_FROM..]);
    bytes[CHECKED_FROM - 4..CHECKED_FROM].copy_from_slice(&checksum.to_be_bytes());
    Ok(bytes.freeze())
}

fn put_record(bytes: &mut BytesMut, record: &Record, offset_delta: i64, base_time: i64) {
    let time_delta = record.timestamp.as_millis() - base_time;
    let (key, value) = (record.key.as_deref(), &record.value[..]);
    let key_len = key.map_or(-1, |key| key.len() as i64);
    let header_count = record.headers.iter().count() as i64;
    let headers_len: usize = record
        .headers
        .iter()
        .map(|(name, value)| varint_len(name.len() as i64) + name.len() + varint_len(value.len() as i64) + value.len())
        .sum();
    let length = 1
        + varint_len(time_delta)
        + varint_len(offset_delta)
        + varint_len(key_len)
        + key.map_or(0, <[u8]>::len)
        + varint_len(value.len() as i64)
        + value.len()
        + varint_len(header_count)
        + headers_len;
    put_varint(bytes, length as i64);
    bytes.put_i8(0);
    put_varint(bytes, time_delta);
    put_varint(bytes, offset_delta);
    put_varint(bytes, key_len);
    bytes.extend_from_slice(key.unwrap_or_default());
    put_varint(bytes, value.len() as i64);
    bytes.extend_from_slice(value);
    put_varint(bytes, header_count);
    for (name, value) in record.headers.iter() {
        put_varint(bytes, name.len() as i64);
        bytes.extend_from_slice(name.as_bytes());
        put_varint(bytes, value.len() as i64);
        bytes.extend_from_slice(value);
    }
}

/// An aborted transaction that a `Fetch` answer lists. Its records are not returned to readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AbortedTransaction {
    pub producer_id: i64,
    pub first_offset: i64,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodedRecords {
    pub records: Vec<StoredRecord>,
    /// The next offset to read: after the last whole batch, or the first offset if there was none.
    pub next: u64,
    /// The memory of the records.
    pub bytes: usize,
}

/// A batch that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} in the batch at offset {offset}")]
pub(crate) struct MalformedBatch {
    pub what: String,
    pub offset: u64,
    /// The offset from which reading can continue.
    pub resume_at: u64,
}

/// Decodes batches from offset `from` on, without control records and without records of the transactions in `aborted`. The partition ends
/// at `written_end`. Decoding stops after the batch with which the records take `bytes_max` in memory.
///
/// A truncated batch at the end is left for the next answer. Decoding stops at a batch that cannot be decoded: the records before it are
/// returned, and the next read, which begins at that batch, returns the error. Brokers send at least one whole batch or no bytes at all
/// (since version 3 of `Fetch`): bytes without one whole batch are damaged.
pub(crate) fn decode(
    mut bytes: Bytes,
    from: u64,
    written_end: u64,
    aborted: &[AbortedTransaction],
    bytes_max: usize,
) -> Result<DecodedRecords, MalformedBatch> {
    let mut decoded = DecodedRecords { records: Vec::new(), next: from, bytes: 0 };
    let mut hidden = AbortedRecords::new(aborted);
    while !bytes.is_empty() && (decoded.next == from || decoded.bytes < bytes_max) {
        let rest = bytes.clone();
        match decode_one(&mut bytes, &mut hidden, &mut decoded) {
            Ok(()) => {}
            Err(_) if decoded.next > from => break,
            Err(what) => {
                return Err(MalformedBatch { what, offset: from, resume_at: resume_at(&rest, from, written_end) });
            }
        }
    }
    Ok(decoded)
}

/// Removes the first batch from `bytes` and adds its records to `decoded`.
fn decode_one(bytes: &mut Bytes, hidden: &mut AbortedRecords, decoded: &mut DecodedRecords) -> Result<(), String> {
    let length = batch_length(bytes).ok_or("a truncated header")?;
    if length < HEADER_BYTES {
        return Err(format!("a length of {length} bytes (the minimum is {HEADER_BYTES})"));
    }
    if bytes.len() < length {
        return Err(format!("a length of {length} bytes (the answer has {})", bytes.len()));
    }
    let batch = RawBatch::new(bytes.split_to(length));
    batch.check()?;
    let next = u64::try_from(batch.last_offset()).unwrap_or(0).saturating_add(1);
    if next <= decoded.next {
        return if bytes.is_empty() { Err("no record at or behind the offset".to_owned()) } else { Ok(()) };
    }
    if hidden.shows(&batch) {
        let known = decoded.records.len();
        let read = batch.read_into(decoded.next, &mut decoded.records);
        let body_bytes = read.inspect_err(|_| decoded.records.truncate(known))?;
        decoded.bytes += body_bytes + (decoded.records.len() - known) * size_of::<StoredRecord>();
    }
    decoded.next = next;
    Ok(())
}

/// The length of the batch that begins here, as its prefix states it.
fn batch_length(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(8..PREFIX_BYTES)?.first_chunk::<4>()?;
    Some(PREFIX_BYTES + u32::from_be_bytes(*length) as usize)
}

/// The offset at which reading continues after the damaged batch that begins here. None of its fields can be trusted, so it is the lowest
/// offset that follows from its last offset, its number of records or the batch after it. It is above `from` and within the partition.
fn resume_at(bytes: &Bytes, from: u64, written_end: u64) -> u64 {
    let header = (bytes.len() >= HEADER_BYTES).then(|| RawBatch::new(bytes.clone()));
    let by_delta = header.as_ref().map(|batch| batch.last_offset().saturating_add(1));
    let by_count = header.as_ref().map(|batch| batch.base_offset.saturating_add(i64::from(batch.count)));
    let behind = batch_length(bytes).and_then(|length| bytes.get(length..)?.first_chunk::<8>());
    let by_neighbour = behind.map(|offset| i64::from_be_bytes(*offset));
    let places = [by_delta, by_count, by_neighbour].into_iter().flatten();
    let nearest = places.filter_map(|place| u64::try_from(place).ok()).filter(|place| *place > from).min();
    let at_least = from.saturating_add(1);
    nearest.unwrap_or(at_least).min(written_end.max(at_least))
}

/// The aborted transactions at the batch that is being read.
struct AbortedRecords {
    /// Transactions that begin later, sorted by their first offsets in descending order.
    coming: Vec<AbortedTransaction>,
    active: HashSet<i64>,
}

impl AbortedRecords {
    fn new(aborted: &[AbortedTransaction]) -> Self {
        let mut coming = aborted.to_vec();
        coming.sort_by_key(|each| std::cmp::Reverse(each.first_offset));
        Self { coming, active: HashSet::new() }
    }

    fn shows(&mut self, batch: &RawBatch) -> bool {
        while let Some(next) = self.coming.last().filter(|next| next.first_offset <= batch.last_offset()) {
            self.active.insert(next.producer_id);
            self.coming.pop();
        }
        if batch.attributes & IS_CONTROL != 0 {
            if batch.control_type() == Some(ABORT_MARKER) {
                self.active.remove(&batch.producer_id);
            }
            return false;
        }
        batch.attributes & IS_TRANSACTIONAL == 0 || !self.active.contains(&batch.producer_id)
    }
}

struct RawBatch {
    bytes: Bytes,
    base_offset: i64,
    magic: i8,
    checksum: u32,
    attributes: i16,
    last_offset_delta: i32,
    base_time: i64,
    max_time: i64,
    producer_id: i64,
    count: i32,
}

impl RawBatch {
    fn new(bytes: Bytes) -> Self {
        let mut header = &bytes[..HEADER_BYTES];
        let base_offset = header.get_i64();
        header.advance(8);
        let magic = header.get_i8();
        let checksum = header.get_u32();
        let attributes = header.get_i16();
        let last_offset_delta = header.get_i32();
        let base_time = header.get_i64();
        let max_time = header.get_i64();
        let producer_id = header.get_i64();
        header.advance(6);
        let count = header.get_i32();
        Self {
            bytes,
            base_offset,
            magic,
            checksum,
            attributes,
            last_offset_delta,
            base_time,
            max_time,
            producer_id,
            count,
        }
    }

    fn last_offset(&self) -> i64 {
        self.base_offset.saturating_add(i64::from(self.last_offset_delta.max(0)))
    }

    fn check(&self) -> Result<(), String> {
        if self.magic != MAGIC {
            return Err(format!("format {} (this client reads format {MAGIC})", self.magic));
        }
        if checksum(&self.bytes[CHECKED_FROM..]) != self.checksum {
            return Err("a checksum that does not match".to_owned());
        }
        if self.base_offset < 0 || self.last_offset_delta < 0 {
            return Err("a negative offset".to_owned());
        }
        Ok(())
    }

    /// The type in a control record's key.
    fn control_type(&self) -> Option<i16> {
        let mut fields = FieldReader { bytes: self.bytes.slice(HEADER_BYTES..), at: 0 };
        let record = fields.record(0).ok()?;
        let key = record.key?;
        key.get(2..4).and_then(|kind| kind.first_chunk::<2>()).map(|kind| i16::from_be_bytes(*kind))
    }

    /// Adds the batch's records from offset `from` on. Returns the size of its body, decompressed.
    fn read_into(&self, from: u64, records: &mut Vec<StoredRecord>) -> Result<usize, String> {
        if self.count > BATCH_RECORDS_MAX as i32 {
            return Err(format!("{} records (the limit is {BATCH_RECORDS_MAX})", self.count));
        }
        let body = self.bytes.slice(HEADER_BYTES..);
        let bytes = match self.attributes & CODEC_MASK {
            0 => body,
            codec => compression::decompress(codec, &body).map_err(|error| error.to_string())?.into(),
        };
        let body_bytes = bytes.len();
        // The count is not trusted: no more records are reserved than the bytes can hold.
        records.reserve((self.count.max(0) as usize).min(bytes.len() / 7 + 1));
        let mut fields = FieldReader { bytes, at: 0 };
        let mut names = Headers::builder();
        for _ in 0..self.count {
            let record = fields.record(self.base_time)?;
            let offset = self.base_offset.saturating_add(record.offset_delta);
            let Some(offset) = u64::try_from(offset).ok().filter(|offset| *offset >= from) else { continue };
            let time = if self.attributes & HAS_LOG_APPEND_TIME != 0 { self.max_time } else { record.time };
            let timestamp = Timestamp::from_millis(time.max(0));
            let headers = read_headers(record.headers, &mut names)?;
            let value = record.value.unwrap_or_default();
            records.push(StoredRecord { offset, record: Record { key: record.key, value, headers, timestamp } });
        }
        Ok(body_bytes)
    }
}

/// An encoded record. Its headers are not decoded yet.
struct RawRecord {
    offset_delta: i64,
    time: i64,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: FieldReader,
}

/// Header names of other producers may be invalid UTF-8: invalid bytes become replacement characters. A null value becomes empty.
fn read_headers(mut fields: FieldReader, names: &mut HeadersBuilder) -> Result<Headers, String> {
    for _ in 0..fields.varint()? {
        let name = fields.bytes()?.unwrap_or_default();
        let value = fields.bytes()?.unwrap_or_default();
        let name = String::from_utf8_lossy(&name);
        names.push(&name[..name.floor_char_boundary(usize::from(u16::MAX))], &value);
    }
    Ok(names.take())
}

/// A reader of bytes from a broker, which checks every length.
struct FieldReader {
    bytes: Bytes,
    at: usize,
}

impl FieldReader {
    fn record(&mut self, base_time: i64) -> Result<RawRecord, String> {
        let length = usize::try_from(self.varint()?).map_err(|_| cut_short())?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or_else(cut_short)?;
        let mut fields = FieldReader { bytes: self.bytes.slice(..end), at: self.at + 1 };
        let time = base_time.saturating_add(fields.varint()?);
        let offset_delta = fields.varint()?;
        let key = fields.bytes()?;
        let value = fields.bytes()?;
        self.at = end;
        Ok(RawRecord { offset_delta, time, key, value, headers: fields })
    }

    fn bytes(&mut self) -> Result<Option<Bytes>, String> {
        let length = self.varint()?;
        if length < 0 {
            return Ok(None);
        }
        let length = usize::try_from(length).map_err(|_| cut_short())?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or_else(cut_short)?;
        let bytes = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(Some(bytes))
    }

    fn varint(&mut self) -> Result<i64, String> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or_else(cut_short)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err("a varint of more than ten bytes".to_owned())
    }
}

fn cut_short() -> String {
    "a truncated record".to_owned()
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn put_varint(bytes: &mut BytesMut, value: i64) {
    let mut value = zigzag(value);
    while value >= 0x80 {
        bytes.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.put_u8(value as u8);
}

fn varint_len(value: i64) -> usize {
    let bits = 64 - (zigzag(value) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests;
