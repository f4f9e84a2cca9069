//! A publisher chooses its payload's bytes, and the journal keeps them: they must never pass for the journal's own.

mod support;

use support::{Folder, key, part, small, values};
use whimbrel_storage::format::{
    BATCH_HEADER_LEN, BATCH_MAGIC, BatchHeader, FRAME_ALIGNMENT, FRAME_HEADER_LEN, FRAME_MAGIC, FrameHeader, Record,
    seal,
};
use whimbrel_storage::{Part, Work};
use zerocopy::IntoBytes;

/// Generations that somebody might guess.
const GUESSED_GENERATIONS: u64 = 40;
const RECORD_FIXED_BYTES: usize = 20;
const STARTS: u64 = 5;

/// A frame of that generation with one record for partition 0 of topic 2.
fn forged_frame(generation: u64, sequence: u64) -> Vec<u8> {
    let mut records = Vec::new();
    Record::encode(&mut records, 1, None, &[], b"forged");
    let batch = BatchHeader {
        magic: BATCH_MAGIC,
        crc: 0.into(),
        body_len: (records.len() as u32).into(),
        count: 1.into(),
        topic: 2.into(),
        partition: 0.into(),
        base_offset: 5000.into(),
        max_timestamp: 1.into(),
        flags: 0.into(),
    };
    let mut batch = batch.as_bytes().to_vec();
    batch.extend_from_slice(&records);
    seal(&mut batch);
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

/// A payload that has a forged frame at each of the journal's blocks, for one generation each.
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
fn a_payload_that_looks_like_a_frame_is_never_taken_for_one() {
    let folder = Folder::new();
    let store = folder.store(small());
    store.create_partitions(1, 1).unwrap();
    store.create_partitions(2, 1).unwrap();
    drop(store);
    // Whatever file of the journal a start takes, an earlier one has left the payload in it.
    for _ in 0..STARTS {
        let store = folder.store(small());
        let mut records = Vec::new();
        Record::encode(&mut records, 1, None, &[], &payload());
        let work = Work::Append(vec![Part { partition: key(1, 0), count: 1, max_timestamp: 1, records }]);
        store.submit(work).unwrap().wait();
    }
    // Behind the first small frame of each further start lies the payload, block by block.
    for start in 0..STARTS {
        let store = folder.store(small());
        store.submit(Work::Append(vec![part(key(1, 0), 1, &["small"])])).unwrap().wait();
        let crashed = folder.copy();
        drop(store);
        let store = crashed.store(small());
        assert_eq!(store.bounds(key(2, 0)), Ok((0, 0)), "somebody else's topic got a message");
        assert_eq!(values(&store, key(1, 0), STARTS).len() as u64, start + 1);
    }
}
