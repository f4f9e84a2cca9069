//! Tests of the codec of record batches: round trips, damage, bounds.

use super::*;
use proptest::prelude::*;

const IDENTITY: BatchIdentity =
    BatchIdentity { producer_id: 7, producer_epoch: 1, base_sequence: 0, is_transactional: false };

/// A written end that does not limit the test.
const END: u64 = u64::MAX;

fn decode_all(
    bytes: Bytes,
    from: u64,
    written_end: u64,
    aborted: &[AbortedTransaction],
) -> Result<DecodedRecords, MalformedBatch> {
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

/// A batch as a broker returns it.
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

fn offsets(decoded: &DecodedRecords) -> Vec<u64> {
    decoded.records.iter().map(|stored| stored.offset).collect()
}

#[test]
fn records_are_decoded_as_encoded_with_every_compression() {
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
    let aborted = [AbortedTransaction { producer_id: 1, first_offset: 0 }];
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
fn one_damaged_field_of_the_last_batch_does_not_skip_later_batches() {
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
fn a_record_that_could_not_be_decompressed_is_written_uncompressed() {
    let value = Bytes::from(vec![b'x'; 128 << 20]);
    let large = [Record { key: None, value, headers: Headers::EMPTY, timestamp: Timestamp::from_millis(1) }];
    let bytes = stored(&large, 0, IDENTITY, Compression::Zstd);
    let decoded = decode_all(bytes.into(), 0, END, &[]).unwrap();
    assert_eq!(decoded.records[0].record.value.len(), 128 << 20);
}

#[test]
fn the_budget_counts_the_memory_of_small_records() {
    let empty =
        Record { key: None, value: Bytes::new(), headers: Headers::EMPTY, timestamp: Timestamp::from_millis(1) };
    let many = vec![empty; 1000];
    let bytes = [stored(&many, 0, IDENTITY, Compression::Zstd), stored(&many, 1000, IDENTITY, Compression::Zstd)];
    let decoded = decode(bytes.concat().into(), 0, END, &[], 1000 * size_of::<StoredRecord>()).unwrap();
    assert_eq!(decoded.next, 1000);
}

#[test]
fn a_batch_with_too_many_records_is_rejected_before_it_takes_memory() {
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
        let mut fields = FieldReader { bytes: bytes.freeze(), at: 0 };
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
