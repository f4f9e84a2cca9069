//! Changes with correct checksums, which the log cannot detect.

use std::path::Path;

use bytes::Bytes;
use whimbrel_storage::format::{
    BatchHeader, FRAME_ALIGNMENT, FRAME_HEADER_LEN, FolderSecret, FrameHeader, LogBatch, seal,
};

use crate::SimDisk;
use crate::checker::FileKind;

/// Changes the last byte of a record in a segment or a journal file and corrects all checksums. Returns what it changed.
pub fn change_a_record(disk: &SimDisk, path: &Path) -> Option<&'static str> {
    let contents = disk.contents(path)?;
    match FileKind::of(path) {
        FileKind::Segment(..) => {
            let batch = batch_at(&contents)?;
            let len = batch.bytes.len();
            // Unsynced bytes are changed in the cache.
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

/// The batch at the start, of any folder: its own secret is used.
fn batch_at(bytes: &[u8]) -> Option<LogBatch> {
    let header = BatchHeader::read(bytes)?;
    LogBatch::read(&Bytes::copy_from_slice(bytes), FolderSecret(header.secret.get())).ok()
}

fn change_last_byte(batch: &mut [u8]) {
    if let Some(byte) = batch.last_mut() {
        *byte ^= 0x20;
    }
    seal(batch);
}

/// The position and length of the frame with the highest number in a journal file: the segments do not have that one yet.
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
