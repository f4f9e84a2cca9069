//! Kafka's record batches (magic 2): written for `Produce`, read from `Fetch`. Pure: bytes in, bytes out.
//!
//! Keys and values that are read share the bytes of the answer. Bytes from a broker are checked, never believed: a checksum that
//! does not match, a length that leads outside or a format that is not known is an error with its offset.

use std::collections::HashSet;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use whimbrel_model::{Headers, HeadersBuilder, Record, StoredRecord, Timestamp};

use super::compression;
use crate::kafka::settings::Compression;

/// Bytes before the length of a batch ends.
const PREFIX_BYTES: usize = 12;
/// Bytes of a batch before its records.
const HEADER_BYTES: usize = 61;
/// Where the bytes begin that the checksum covers.
const CHECKED_FROM: usize = 21;
const MAGIC: i8 = 2;

const CODEC_MASK: i16 = 0b111;
const HAS_LOG_APPEND_TIME: i16 = 1 << 3;
const IS_TRANSACTIONAL: i16 = 1 << 4;
const IS_CONTROL: i16 = 1 << 5;

/// The type of a control record that ends an aborted transaction.
const ABORT_MARKER: i16 = 0;

/// Bytes in memory that the batches of one answer may take when they are decoded. Decoding stops behind the batch that uses them up.
pub(crate) const DECODED_BYTES_MAX: usize = 64 << 20;
/// Records of one batch that is read. Each takes about 100 bytes in memory beside its own, so that few bytes could fill it.
const BATCH_RECORDS_MAX: usize = 2 << 20;

/// What a record needs beyond [`Record::size`], at most: its lengths, deltas and the number of its headers as varints.
const RECORD_OVERHEAD_BYTES: usize = 40;

/// Who writes a batch, and where it stands among the batches of its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchIdentity {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub is_transactional: bool,
}

/// The bytes that a record takes in a batch, at most.
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

/// A transaction whose records are not shown, as a `Fetch` answer names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Aborted {
    pub producer_id: i64,
    pub first_offset: i64,
}

/// What an answer holds for a reader.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub records: Vec<StoredRecord>,
    /// The next offset to read: behind the last whole batch, or the first offset where there was none.
    pub next: u64,
    /// What the records take in memory.
    pub bytes: usize,
}

/// Bytes that are no record batches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} in the batch at offset {offset}")]
pub(crate) struct Malformed {
    pub what: String,
    pub offset: u64,
    /// The offset from which reading can continue.
    pub resume_at: u64,
}

/// Reads batches from offset `from` on, without control records and without records of the transactions in `aborted`. The partition
/// ends at `written_end`. Decoding stops behind the batch with which the records take `bytes_max` in memory.
///
/// A batch at the end that is cut short is left for the next answer. A batch that cannot be read ends what is decoded; it is an error
/// only where nothing before it leads on, so that the next read reports it and the records before it are not lost. Brokers send at
/// least one whole batch or no bytes at all (since version 3 of `Fetch`): bytes without one whole batch are damaged.
pub(crate) fn decode(
    mut bytes: Bytes,
    from: u64,
    written_end: u64,
    aborted: &[Aborted],
    bytes_max: usize,
) -> Result<Decoded, Malformed> {
    let mut decoded = Decoded { records: Vec::new(), next: from, bytes: 0 };
    let mut hidden = Hidden::new(aborted);
    while !bytes.is_empty() && (decoded.next == from || decoded.bytes < bytes_max) {
        let rest = bytes.clone();
        match decode_one(&mut bytes, &mut hidden, &mut decoded) {
            Ok(()) => {}
            Err(_) if decoded.next > from => break,
            Err(what) => return Err(Malformed { what, offset: from, resume_at: resume_at(&rest, from, written_end) }),
        }
    }
    Ok(decoded)
}

/// Takes the first batch off the bytes and its records into `decoded`.
fn decode_one(bytes: &mut Bytes, hidden: &mut Hidden, decoded: &mut Decoded) -> Result<(), String> {
    let length = batch_length(bytes).ok_or("a batch that is cut short")?;
    if length < HEADER_BYTES {
        return Err(format!("a length of {length} bytes"));
    }
    if bytes.len() < length {
        return Err(format!("a length of {length} bytes, of which {} are there,", bytes.len()));
    }
    let batch = Batch::new(bytes.split_to(length));
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

/// Where reading continues behind the damaged batch that begins here. None of its fields can be believed, so it is the nearest place
/// that its last offset, the number of its records or the batch behind it lead to. It is behind `from` and within the partition.
fn resume_at(bytes: &Bytes, from: u64, written_end: u64) -> u64 {
    let header = (bytes.len() >= HEADER_BYTES).then(|| Batch::new(bytes.clone()));
    let by_delta = header.as_ref().map(|batch| batch.last_offset().saturating_add(1));
    let by_count = header.as_ref().map(|batch| batch.base_offset.saturating_add(i64::from(batch.count)));
    let behind = batch_length(bytes).and_then(|length| bytes.get(length..)?.first_chunk::<8>());
    let by_neighbour = behind.map(|offset| i64::from_be_bytes(*offset));
    let places = [by_delta, by_count, by_neighbour].into_iter().flatten();
    let nearest = places.filter_map(|place| u64::try_from(place).ok()).filter(|place| *place > from).min();
    let at_least = from.saturating_add(1);
    nearest.unwrap_or(at_least).min(written_end.max(at_least))
}

/// Which transactions are hidden at the place that is read.
struct Hidden {
    /// By their first offsets, the last one first.
    coming: Vec<Aborted>,
    active: HashSet<i64>,
}

impl Hidden {
    fn new(aborted: &[Aborted]) -> Self {
        let mut coming = aborted.to_vec();
        coming.sort_by_key(|each| std::cmp::Reverse(each.first_offset));
        Self { coming, active: HashSet::new() }
    }

    fn shows(&mut self, batch: &Batch) -> bool {
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

struct Batch {
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

impl Batch {
    /// A batch of at least [`HEADER_BYTES`].
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
        let mut fields = Fields { bytes: self.bytes.slice(HEADER_BYTES..), at: 0 };
        let record = fields.record(0).ok()?;
        let key = record.key?;
        key.get(2..4).and_then(|kind| kind.first_chunk::<2>()).map(|kind| i16::from_be_bytes(*kind))
    }

    /// Adds the batch's records from offset `from` on. Answers with the bytes of its body, decompressed.
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
        // The count is what the broker says: it reserves no more than the bytes could hold.
        records.reserve((self.count.max(0) as usize).min(bytes.len() / 7 + 1));
        let mut fields = Fields { bytes, at: 0 };
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

/// A record as it is on the wire, its headers not yet read.
struct RawRecord {
    offset_delta: i64,
    time: i64,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: Fields,
}

/// Others may write names that are not text: they become text with replacement characters. A value that is null becomes empty.
fn read_headers(mut fields: Fields, names: &mut HeadersBuilder) -> Result<Headers, String> {
    for _ in 0..fields.varint()? {
        let name = fields.bytes()?.unwrap_or_default();
        let value = fields.bytes()?.unwrap_or_default();
        let name = String::from_utf8_lossy(&name);
        names.push(&name[..name.floor_char_boundary(usize::from(u16::MAX))], &value);
    }
    Ok(names.take())
}

/// Bytes that are read from the front, without trust.
struct Fields {
    bytes: Bytes,
    at: usize,
}

impl Fields {
    fn record(&mut self, base_time: i64) -> Result<RawRecord, String> {
        let length = usize::try_from(self.varint()?).map_err(|_| cut_short())?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or_else(cut_short)?;
        let mut fields = Fields { bytes: self.bytes.slice(..end), at: self.at + 1 };
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
        Err("a number of more than ten bytes".to_owned())
    }
}

fn cut_short() -> String {
    "a record that is cut short".to_owned()
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDENTITY: BatchIdentity =
        BatchIdentity { producer_id: 7, producer_epoch: 1, base_sequence: 0, is_transactional: false };

    /// A written end that bounds nothing.
    const END: u64 = u64::MAX;

    fn decode_all(bytes: Bytes, from: u64, written_end: u64, aborted: &[Aborted]) -> Result<Decoded, Malformed> {
        decode(bytes, from, written_end, aborted, DECODED_BYTES_MAX)
    }

    fn record(key: Option<&str>, value: &str, time: i64) -> Record {
        let mut headers = Headers::builder();
        headers.push("name", value.as_bytes());
        Record {
            key: key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
            value: Bytes::copy_from_slice(value.as_bytes()),
            headers: headers.take(),
            timestamp: Timestamp::from_millis(time),
        }
    }

    /// A batch as a broker gives it back.
    fn stored(records: &[Record], base_offset: i64, identity: BatchIdentity, compression: Compression) -> Vec<u8> {
        let mut bytes = encode(records.iter(), identity, compression).unwrap().to_vec();
        bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
        bytes
    }

    fn marker(base_offset: i64, producer_id: i64, kind: i16) -> Vec<u8> {
        let key = [0_i16.to_be_bytes(), kind.to_be_bytes()].concat();
        let control = Record { key: Some(key.into()), ..record(None, "", 1) };
        let identity = BatchIdentity { producer_id, is_transactional: true, ..IDENTITY };
        let mut bytes = stored(&[control], base_offset, identity, Compression::None);
        bytes[22] |= IS_CONTROL as u8;
        let sum = checksum(&bytes[CHECKED_FROM..]);
        bytes[CHECKED_FROM - 4..CHECKED_FROM].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn offsets(decoded: &Decoded) -> Vec<u64> {
        decoded.records.iter().map(|stored| stored.offset).collect()
    }

    #[test]
    fn records_come_back_as_they_went_with_every_compression() {
        let records = [record(Some("k"), "one", 5), record(None, "two", 3), record(Some(""), "", 900)];
        let all = [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
        for compression in all {
            let bytes = stored(&records, 40, IDENTITY, compression);
            let decoded = decode_all(bytes.into(), 40, END, &[]).unwrap();
            assert_eq!(decoded.next, 43);
            let found: Vec<_> = decoded.records.iter().map(|stored| stored.record.clone()).collect();
            assert_eq!(found, records, "{compression:?}");
        }
    }

    #[test]
    fn reading_begins_in_the_midst_of_a_batch_and_ends_before_one_that_is_cut_short() {
        let records: Vec<Record> = (0..4).map(|n| record(None, &n.to_string(), 1)).collect();
        let mut bytes = stored(&records, 10, IDENTITY, Compression::None);
        bytes.extend(stored(&records, 14, IDENTITY, Compression::None));
        bytes.truncate(bytes.len() - 1);
        let decoded = decode_all(bytes.into(), 12, END, &[]).unwrap();
        assert_eq!((offsets(&decoded), decoded.next), (vec![12, 13], 14));
    }

    #[test]
    fn records_of_aborted_transactions_are_hidden_until_their_marker() {
        let transactional = |producer_id| BatchIdentity { producer_id, is_transactional: true, ..IDENTITY };
        let one = [record(None, "x", 1)];
        let bytes = [
            stored(&one, 0, transactional(1), Compression::None),
            stored(&one, 1, transactional(2), Compression::None),
            stored(&one, 2, IDENTITY, Compression::None),
            marker(3, 1, ABORT_MARKER),
            stored(&one, 4, transactional(1), Compression::None),
            marker(5, 2, 1),
            marker(6, 1, 1),
        ]
        .concat();
        let aborted = [Aborted { producer_id: 1, first_offset: 0 }];
        let decoded = decode_all(bytes.into(), 0, END, &aborted).unwrap();
        assert_eq!((offsets(&decoded), decoded.next), (vec![1, 2, 4], 7));
    }

    #[test]
    fn a_flipped_bit_is_named_with_its_offset_and_the_place_behind_it() {
        let records: Vec<Record> = (0..3).map(|n| record(None, &n.to_string(), 1)).collect();
        let mut bytes = stored(&records, 10, IDENTITY, Compression::None);
        *bytes.last_mut().unwrap() ^= 1;
        let error = decode_all(bytes.into(), 10, END, &[]).unwrap_err();
        assert_eq!((error.offset, error.resume_at), (10, 13));
        assert!(error.what.contains("checksum"), "{error}");
    }

    fn numbered(base_offset: i64, count: i64) -> Vec<u8> {
        let records: Vec<Record> = (0..count).map(|n| record(None, &(base_offset + n).to_string(), 1)).collect();
        stored(&records, base_offset, IDENTITY, Compression::None)
    }

    fn damaged(mut batch: Vec<u8>, at: usize, with: u8) -> Vec<u8> {
        batch[at] ^= with;
        batch
    }

    #[test]
    fn good_batches_before_a_damaged_one_are_read_and_the_next_read_reports_the_damage() {
        let body = HEADER_BYTES + 2;
        let bytes = [numbered(10, 3), damaged(numbered(13, 3), body, 1), numbered(16, 3)].concat();
        let decoded = decode_all(bytes.clone().into(), 10, END, &[]).unwrap();
        assert_eq!((offsets(&decoded), decoded.next), (vec![10, 11, 12], 13));
        let rest = bytes[numbered(10, 3).len()..].to_vec();
        let error = decode_all(rest.into(), 13, END, &[]).unwrap_err();
        assert_eq!((error.offset, error.resume_at), (13, 16));
    }

    /// The places of a batch's length and of its highest offset delta, each with its most significant byte first.
    const LENGTH_AT: usize = 8;
    const DELTA_AT: usize = 23;
    const COUNT_AT: usize = 57;

    #[test]
    fn reading_resumes_no_later_than_at_the_batch_behind_the_damaged_one() {
        let too_far = damaged(numbered(10, 3), DELTA_AT + 1, 1);
        let error = decode_all([too_far, numbered(13, 3)].concat().into(), 10, END, &[]).unwrap_err();
        assert_eq!(error.resume_at, 13);
    }

    #[test]
    fn reading_resumes_no_later_than_the_written_end() {
        let too_far = damaged(damaged(numbered(10, 3), DELTA_AT, 0x40), COUNT_AT, 0x40);
        let error = decode_all(too_far.clone().into(), 10, 20, &[]).unwrap_err();
        assert_eq!(error.resume_at, 20);
        // The broker may have read its end before the record was written.
        let error = decode_all(too_far.into(), 10, 9, &[]).unwrap_err();
        assert_eq!(error.resume_at, 11, "reading leaves the damaged place");
    }

    #[test]
    fn one_damaged_field_of_the_last_batch_does_not_skip_what_comes_behind_it() {
        for too_far in [damaged(numbered(10, 3), DELTA_AT, 0x40), damaged(numbered(10, 3), COUNT_AT, 0x40)] {
            let error = decode_all(too_far.into(), 11, 1000, &[]).unwrap_err();
            assert_eq!(error.resume_at, 13);
        }
    }

    #[test]
    fn a_damaged_batch_that_claims_to_lie_before_the_reader_is_not_skipped_silently() {
        let negative = damaged(numbered(10, 3), DELTA_AT, 0x80);
        let error = decode_all(negative.into(), 12, 1000, &[]).unwrap_err();
        assert_eq!((error.offset, error.resume_at), (12, 13));
    }

    #[test]
    fn bytes_without_one_whole_batch_are_damaged_and_not_the_end_of_the_log() {
        let too_long = damaged(numbered(10, 3), LENGTH_AT, 0x01);
        let error = decode_all(too_long.into(), 10, 1000, &[]).unwrap_err();
        assert_eq!((error.offset, error.resume_at), (10, 13));
        let error = decode_all(vec![0; 11].into(), 10, 1000, &[]).unwrap_err();
        assert_eq!((error.offset, error.resume_at), (10, 11));
        let too_short = damaged(numbered(10, 3), LENGTH_AT + 3, 0xff);
        assert!(decode_all(too_short.into(), 10, 1000, &[]).is_err());
        assert_eq!(decode_all(Bytes::new(), 10, 1000, &[]).unwrap().next, 10);
    }

    #[test]
    fn decoding_stops_behind_the_batch_that_uses_the_budget_up() {
        const RECORD_BYTES: usize = 1 << 20;
        let large = [record(None, &"x".repeat(RECORD_BYTES), 1)];
        let bytes: Vec<u8> = (0..5).flat_map(|offset| stored(&large, offset, IDENTITY, Compression::Zstd)).collect();
        assert!(bytes.len() < RECORD_BYTES);
        let within = |bytes_max| decode(bytes.clone().into(), 0, END, &[], bytes_max).unwrap();
        assert_eq!(within(usize::MAX).next, 5);
        assert_eq!(within(3 * RECORD_BYTES).next, 2, "a record's headers repeat its value");
        assert_eq!(within(0).next, 1, "one batch is decoded whatever the budget");
    }

    #[test]
    fn the_budget_counts_what_small_records_take_in_memory() {
        let empty =
            Record { key: None, value: Bytes::new(), headers: Headers::EMPTY, timestamp: Timestamp::from_millis(1) };
        let many = vec![empty; 1000];
        let bytes = [stored(&many, 0, IDENTITY, Compression::Zstd), stored(&many, 1000, IDENTITY, Compression::Zstd)];
        let decoded = decode(bytes.concat().into(), 0, END, &[], 1000 * size_of::<StoredRecord>()).unwrap();
        assert_eq!(decoded.next, 1000);
    }

    #[test]
    fn a_batch_of_more_records_than_the_limit_is_refused_before_it_takes_memory() {
        let mut bytes = numbered(10, 3);
        bytes[COUNT_AT..COUNT_AT + 4].copy_from_slice(&(BATCH_RECORDS_MAX as i32 + 1).to_be_bytes());
        let sum = checksum(&bytes[CHECKED_FROM..]);
        bytes[CHECKED_FROM - 4..CHECKED_FROM].copy_from_slice(&sum.to_be_bytes());
        let error = decode_all(bytes.into(), 10, END, &[]).unwrap_err();
        assert!(error.what.contains("the limit is"), "{error}");
    }

    #[test]
    fn sequences_wrap_to_zero() {
        assert_eq!(next_sequence(0, 5), 5);
        assert_eq!(next_sequence(i32::MAX, 1), 0);
        assert_eq!(next_sequence(i32::MAX - 1, 3), 1);
    }

    proptest! {
        #[test]
        fn numbers_come_back(value: i64) {
            let mut bytes = BytesMut::new();
            put_varint(&mut bytes, value);
            prop_assert_eq!(bytes.len(), varint_len(value));
            let mut fields = Fields { bytes: bytes.freeze(), at: 0 };
            prop_assert_eq!(fields.varint(), Ok(value));
        }

        #[test]
        fn garbage_is_an_error_and_not_a_panic(mut bytes: Vec<u8>, flips: Vec<(usize, u8)>) {
            let _ = decode_all(bytes.clone().into(), 0, END, &[]);
            bytes = stored(&[record(Some("k"), "value", 1)], 3, IDENTITY, Compression::None);
            for (at, with) in flips {
                let at = at % bytes.len();
                bytes[at] ^= with;
            }
            if let Err(error) = decode_all(bytes.into(), 3, 4, &[]) {
                prop_assert_eq!(error.resume_at, 4, "within the partition, and behind the reader");
            }
        }
    }
}
