//! Publishers choose the bytes of their payloads, which the journal and the segments store. They must never pass for frames or batches of
//! the log.

mod support;

use std::mem::offset_of;

use support::{Folder, flip, key, part, small, values};
use whimbrel_storage::format::{
    BATCH_HEADER_LEN, BATCH_MAGIC, BatchHeader, FRAME_ALIGNMENT, FRAME_HEADER_LEN, FRAME_MAGIC, FrameHeader, LogRecord,
    seal,
};
use whimbrel_storage::{LogWrite, PartitionKey, ReadError, WritePart};
use zerocopy::IntoBytes;

/// Generations that a publisher might guess.
const GUESSED_GENERATIONS: u64 = 40;
const RECORD_FIXED_BYTES: usize = 20;
const STARTS: u64 = 5;

/// Secrets that a publisher might guess.
const GUESSED_SECRETS: [u64; 4] = [0, 1, u64::MAX, 0x0123_4567_89ab_cdef];

/// A whole batch with one record.
fn forged_batch(secret: u64, partition: PartitionKey, base_offset: u64) -> Vec<u8> {
    let mut records = Vec::new();
    LogRecord::encode(&mut records, 1, None, &[], b"forged");
    let batch = BatchHeader {
        magic: BATCH_MAGIC,
        crc: 0.into(),
        secret: secret.into(),
        body_len: (records.len() as u32).into(),
        count: 1.into(),
        topic: partition.topic.into(),
        partition: partition.partition.into(),
        base_offset: base_offset.into(),
        max_timestamp: 1.into(),
        flags: 0.into(),
    };
    let mut batch = batch.as_bytes().to_vec();
    batch.extend_from_slice(&records);
    seal(&mut batch);
    batch
}

fn with_payload(partition: PartitionKey, payload: &[u8]) -> LogWrite {
    let mut records = Vec::new();
    LogRecord::encode(&mut records, 1, None, &[], payload);
    LogWrite::Append(vec![WritePart { partition, count: 1, max_timestamp: 1, records }])
}

/// A frame of that generation with one record for partition 0 of topic 2.
fn forged_frame(generation: u64, sequence: u64) -> Vec<u8> {
    let batch = forged_batch(0, key(2, 0), 5000);
    let frame = FrameHeader {
        magic: FRAME_MAGIC,
        crc: 0.into(),
        generation: generation.into(),
        sequence: sequence.into(),
        synced_upto: (sequence - 1).into(),
        body_len: (batch.len() as u32).into(),
        batches: 1.into(),
    };
    let mut frame = frame.as_bytes().to_vec();
    frame.extend_from_slice(&batch);
    seal(&mut frame);
    frame
}

/// A payload with a forged frame at each block of the journal, each for another generation.
fn payload() -> Vec<u8> {
    let before = FRAME_HEADER_LEN + BATCH_HEADER_LEN + RECORD_FIXED_BYTES;
    let mut payload = vec![b'x'; FRAME_ALIGNMENT - before];
    for generation in 1..=GUESSED_GENERATIONS {
        let mut block = forged_frame(generation, 1_000_000);
        block.resize(FRAME_ALIGNMENT, b'x');
        payload.extend(block);
    }
    payload
}

#[test]
fn a_payload_that_looks_like_a_frame_is_never_read_as_one() {
    let folder = Folder::new();
    let store = folder.store(small());
    store.create_partitions(1, 1).unwrap();
    store.create_partitions(2, 1).unwrap();
    drop(store);
    // Fills each journal file that a start can take with the payload.
    for _ in 0..STARTS {
        let store = folder.store(small());
        store.submit(with_payload(key(1, 0), &payload())).unwrap().wait();
    }
    // Behind the first small frame of each further start, the payload follows block by block.
    for start in 0..STARTS {
        let store = folder.store(small());
        store.submit(LogWrite::Append(vec![part(key(1, 0), 1, &["small"])])).unwrap().wait();
        let crashed = folder.copy();
        drop(store);
        let store = crashed.store(small());
        assert_eq!(store.bounds(key(2, 0)), Ok((0, 0)), "another topic got a message");
        assert_eq!(values(&store, key(1, 0), STARTS).len() as u64, start + 1);
    }
}

/// A segment with a small record, one with forged batches for the next offset in its payload, and a small one at that offset.
fn segment_with_forged_batches() -> Folder {
    let folder = Folder::new();
    let core = folder.core(small()).0;
    core.create_partitions(1, 1).unwrap();
    let payload: Vec<u8> =
        GUESSED_SECRETS.iter().flat_map(|secret| forged_batch(*secret, key(1, 0), FORGED_OFFSET)).collect();
    core.commit(&[LogWrite::Append(vec![part(key(1, 0), 0, &["before"])])]);
    core.commit(&[with_payload(key(1, 0), &payload)]);
    core.commit(&[LogWrite::Append(vec![part(key(1, 0), FORGED_OFFSET, &["after"])])]);
    core.checkpoint(0, &mut || {}).unwrap();
    folder
}

const FORGED_OFFSET: u64 = 2;

#[test]
fn a_batch_in_a_payload_behind_damage_is_not_read_as_one() {
    let second_batch = BATCH_HEADER_LEN + RECORD_FIXED_BYTES + "before".len();
    let last_of_header = second_batch + BATCH_HEADER_LEN - 1;
    for damaged in second_batch..=last_of_header {
        let folder = segment_with_forged_batches();
        flip(&folder.path().join(format!("log/topics/1/0/{:020}.segment", 0)), damaged);
        let core = folder.core(small()).0;
        let Err(ReadError::Damaged(damage)) = core.read(key(1, 0), 1, 1000) else {
            panic!("byte {damaged} is guarded")
        };
        assert_eq!(damage.resume_at, Some(FORGED_OFFSET), "byte {damaged}");
        assert_eq!(values(&core, key(1, 0), FORGED_OFFSET), ["after"], "byte {damaged}");
    }
}

#[test]
fn a_batch_in_a_payload_behind_a_damaged_length_takes_no_offsets_of_another_topic() {
    const LEN_LOST: usize = 0x1000;
    const FORGED_AT: usize = 0x0200;
    for secret in GUESSED_SECRETS {
        let folder = Folder::new();
        let core = folder.core(small()).0;
        core.create_partitions(1, 1).unwrap();
        core.create_partitions(2, 1).unwrap();
        // With the flipped bit in its length, the batch ends where the forged one begins.
        let mut payload = vec![b'x'; FORGED_AT + LEN_LOST - RECORD_FIXED_BYTES];
        let forged = forged_batch(secret, key(2, 0), 0);
        payload[FORGED_AT - RECORD_FIXED_BYTES..][..forged.len()].copy_from_slice(&forged);
        core.commit(&[with_payload(key(1, 0), &payload)]);
        core.commit(&[LogWrite::Append(vec![part(key(1, 0), 1, &["after"])])]);
        let crashed = folder.copy();
        let body_len = FRAME_ALIGNMENT + FRAME_HEADER_LEN + offset_of!(BatchHeader, body_len);
        flip(&crashed.path().join("log/journal/0000.journal"), body_len + 1);
        let (core, recovered, _) = crashed.core(small());
        assert_eq!(recovered.damage.len(), 1, "{recovered:?}");
        assert_eq!(core.bounds(key(2, 0)), Ok((0, 0)));
        assert_eq!(values(&core, key(1, 0), 1), ["after"]);
    }
}
