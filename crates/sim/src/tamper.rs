//! Changes that carry a right checksum: what a log without checksums would let through.

use std::path::Path;

use bytes::Bytes;
use whimbrel_storage::format::{
    Batch, BatchHeader, FRAME_ALIGNMENT, FRAME_HEADER_LEN, FolderSecret, FrameHeader, seal,
};

use crate::SimDisk;
use crate::checker::FileKind;

/// Changes the last byte of a record in a segment or a journal file and makes all checksums right again. Says what it changed.
pub fn change_a_record(disk: &SimDisk, path: &Path) -> Option<&'static str> {
    let contents = disk.contents(path)?;
    match FileKind::of(path) {
        FileKind::Segment(..) => {
            let batch = batch_at(&contents)?;
            let len = batch.bytes.len();
            // What is not synced yet is changed where programs see it.
            disk.tamper(path, |bytes| bytes.get_mut(..len).map_or((), change_last_byte));
            Some("a batch")
        }
        FileKind::Journal => {
            let (at, len) = last_frame_with_batches(&contents)?;
            disk.tamper(path, |bytes| {
                let Some(frame) = bytes.get_mut(at..at + len) else { return };
                let mut from = FRAME_HEADER_LEN;
                while let Some(batch) = batch_at(&frame[from..]) {
                    change_last_byte(&mut frame[from..from + batch.bytes.len()]);
                    from += batch.bytes.len();
                    if from >= frame.len() {
                        break;
                    }
                }
                seal(frame);
            });
            Some("a frame")
        }
        FileKind::Index | FileKind::Other => None,
    }
}

/// The batch that begins here, of whatever folder: it is changed from within.
fn batch_at(bytes: &[u8]) -> Option<Batch> {
    let header = BatchHeader::read(bytes)?;
    Batch::read(&Bytes::copy_from_slice(bytes), FolderSecret(header.secret.get())).ok()
}

fn change_last_byte(batch: &mut [u8]) {
    if let Some(byte) = batch.last_mut() {
        *byte ^= 0x20;
    }
    seal(batch);
}

/// Of the frames that stand in a journal file, the one with the highest number: that one is not in the segments yet.
fn last_frame_with_batches(contents: &[u8]) -> Option<(usize, usize)> {
    (0..contents.len())
        .step_by(FRAME_ALIGNMENT)
        .filter_map(|at| {
            let header = FrameHeader::read(&contents[at..])?;
            let frame = contents.get(at..at + header.frame_len())?;
            (header.batches.get() > 0 && header.is_whole(frame)).then_some((header.sequence.get(), at, frame.len()))
        })
        .max()
        .map(|(_, at, len)| (at, len))
}
