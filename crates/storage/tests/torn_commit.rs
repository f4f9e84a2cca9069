//! A commit over several partitions with a torn frame is all or nothing after recovery, wherever the frame was torn.

mod support;

use std::path::{Path, PathBuf};

use support::{Folder, key, part};
use whimbrel_storage::{Core, LogReply, LogSettings, LogWrite, PartitionKey};

const PARTITIONS: u32 = 3;
const SECTOR_BYTES: usize = 512;

/// Small files: each torn frame needs a folder of its own.
fn tiny() -> LogSettings {
    LogSettings {
        frame_bytes_max: 8 << 10,
        frame_bytes_target: 8 << 10,
        journal_file_bytes: 32 << 10,
        journal_bytes_max: 128 << 10,
        checkpoint_bytes: 64 << 10,
        unsaved_bytes_max: 64 << 10,
        disk_reserve_bytes: 0,
        ..LogSettings::default()
    }
}

fn keys() -> Vec<PartitionKey> {
    (0..PARTITIONS).map(|partition| key(1, partition)).collect()
}

fn commit(core: &Core, from: u64, text: &str) -> LogReply {
    let LogReply::FenceOpened(token) = core.commit(&[LogWrite::OpenFence("f".into())]).remove(0) else {
        panic!("a fence opens");
    };
    let parts = keys().into_iter().map(|key| part(key, from, &[text])).collect();
    core.commit(&[LogWrite::Commit { fence: "f".into(), token, parts }]).remove(0)
}

/// A folder with an acknowledged commit, and the frame that the next commit would write.
struct Torn {
    folder: Folder,
    journal: PathBuf,
    position: usize,
    before: Vec<u8>,
    frame: Vec<u8>,
}

impl Torn {
    fn new(text: &str) -> Self {
        let folder = Folder::new();
        let core = folder.core(tiny()).0;
        core.create_partitions(1, PARTITIONS).unwrap();
        assert_eq!(commit(&core, 0, "acknowledged"), LogReply::Committed(vec![0; PARTITIONS as usize]));
        let journal = only_journal(folder.path());
        let before = std::fs::read(&journal).unwrap();
        let crashed = folder.copy();
        assert_eq!(commit(&core, 1, text), LogReply::Committed(vec![1; PARTITIONS as usize]));
        let after = std::fs::read(&journal).unwrap();
        let position = before.iter().zip(&after).position(|(old, new)| old != new).unwrap();
        let end = after.len() - before.iter().rev().zip(after.iter().rev()).position(|(old, new)| old != new).unwrap();
        assert_eq!(position % 4096, 0, "frames are aligned");
        Self {
            folder: crashed,
            journal: only_journal(Path::new("")),
            position,
            before,
            frame: after[position..end].to_vec(),
        }
    }

    /// Recovers with `frame` in place of the commit's frame. Returns the number of partitions with the commit's record.
    fn partitions_with(&self, frame: &[u8]) -> usize {
        let folder = self.folder.copy();
        let mut journal = self.before.clone();
        journal[self.position..self.position + frame.len()].copy_from_slice(frame);
        std::fs::write(folder.path().join(&self.journal), journal).unwrap();
        let (core, recovered, _) = folder.core(tiny());
        assert_eq!(recovered.damage, [], "a torn tail is no damage");
        let with = keys().into_iter().filter(|key| {
            let (first, next) = core.bounds(*key).unwrap();
            assert_eq!(first, 0);
            assert_eq!(support::values(&core, *key, 0).len() as u64, next);
            assert_eq!(support::values(&core, *key, 0)[0], "acknowledged");
            next == 2
        });
        let with = with.count();
        // In either case, the log continues from there.
        let next = if with > 0 { 2 } else { 1 };
        assert_eq!(commit(&core, next, "on"), LogReply::Committed(vec![next; PARTITIONS as usize]));
        with
    }
}

/// The journal file with the frames.
fn only_journal(folder: &Path) -> PathBuf {
    folder.join("log/journal/0000.journal")
}

#[test]
fn a_commit_torn_at_any_byte_is_all_or_nothing() {
    let torn = Torn::new("torn");
    for len in 0..torn.frame.len() {
        assert_eq!(torn.partitions_with(&torn.frame[..len]), 0, "{len} of {} bytes", torn.frame.len());
    }
    assert_eq!(torn.partitions_with(&torn.frame), PARTITIONS as usize);
}

#[test]
fn a_commit_with_any_set_of_sectors_written_is_all_or_nothing() {
    let torn = Torn::new(&"torn ".repeat(150));
    let sectors = torn.frame.len().div_ceil(SECTOR_BYTES);
    assert!((4..=8).contains(&sectors), "{sectors} sectors");
    for written in 0..1u32 << sectors {
        let mut frame = vec![0; torn.frame.len()];
        for (index, sector) in torn.frame.chunks(SECTOR_BYTES).enumerate() {
            if written & 1 << index != 0 {
                frame[index * SECTOR_BYTES..][..sector.len()].copy_from_slice(sector);
            }
        }
        let expected = if written + 1 == 1 << sectors { PARTITIONS as usize } else { 0 };
        assert_eq!(torn.partitions_with(&frame), expected, "sectors {written:b}");
    }
}

#[test]
fn a_commit_torn_over_an_earlier_frame_is_all_or_nothing() {
    let torn = Torn::new(&"torn ".repeat(50));
    let earlier = Torn::new(&"older".repeat(50)).frame;
    assert_eq!(earlier.len(), torn.frame.len());
    // The older frame has a wrong checksum. Otherwise it would be the same commit with another text.
    let mut stale = earlier;
    stale[4] ^= 1;
    for len in 0..torn.frame.len() {
        let mut frame = stale.clone();
        frame[..len].copy_from_slice(&torn.frame[..len]);
        assert_eq!(torn.partitions_with(&frame), 0, "{len} of {} bytes", torn.frame.len());
    }
}
