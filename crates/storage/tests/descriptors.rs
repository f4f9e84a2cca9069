//! A shortage of file descriptors delays calls that open files. It is temporary and does not close the log.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use support::{DiskCall, Events, Folder, UnsyncedDisk, core_at, key, part, small, values};
use whimbrel_storage::{AppendError, Core, LogEvent, LogReply, LogSettings, LogWrite};

const EMFILE: i32 = 24;
/// More files than a checkpoint opens here.
const OPENS_MAX: i64 = 20;

fn settings() -> LogSettings {
    LogSettings { segment_bytes: 8 << 10, tail_bytes: 0, ..small() }
}

/// A log whose disk opens only as many files as the counter allows.
fn log() -> (Folder, Core, Events, Arc<AtomicI64>) {
    let (folder, left) = (Folder::new(), Arc::new(AtomicI64::new(i64::MAX)));
    let counted = Arc::clone(&left);
    let disk = UnsyncedDisk::failing(&Arc::new(AtomicBool::new(true)), EMFILE, move |call| {
        matches!(call, DiskCall::Open(_) | DiskCall::Create(_)) && counted.fetch_sub(1, Ordering::Relaxed) <= 0
    });
    let (core, _, events) = folder.core_on(disk, settings());
    core.create_partitions(1, 1).unwrap();
    (folder, core, events, left)
}

fn append(core: &Core, offset: u64) -> LogReply {
    let text = format!("{offset} {}", "x".repeat(5000));
    core.commit(&[LogWrite::Append(vec![part(key(1, 0), offset, &[&text])])]).remove(0)
}

#[test]
fn a_checkpoint_is_delayed_at_any_open_without_descriptors() {
    let (folder, core, events, left) = log();
    // The first append creates the journal file.
    assert_eq!(append(&core, 0), LogReply::Appended(vec![Ok(0)]));
    let mut offset = 1;
    for opens in 0..OPENS_MAX {
        left.store(opens, Ordering::Relaxed);
        for _ in 0..3 {
            assert_eq!(append(&core, offset), LogReply::Appended(vec![Ok(offset)]));
            offset += 1;
            match core.checkpoint(0, &mut || {}) {
                Ok(()) | Err(AppendError::Delayed(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(core.refusal(), None);
        left.store(i64::MAX, Ordering::Relaxed);
        core.checkpoint(0, &mut || {}).unwrap();
        let delayed = events.lock().unwrap().drain(..).filter(|event| matches!(event, LogEvent::Delayed(_))).count();
        if opens == 0 {
            assert_eq!(delayed, 1, "it is reported once");
        }
    }
    assert_eq!(offsets(&core), (0..offset).collect::<Vec<_>>());
    assert_eq!(offsets(&core_at(folder.copy().path(), settings())), (0..offset).collect::<Vec<_>>());
}

/// The offsets of all records, from their texts.
fn offsets(core: &Core) -> Vec<u64> {
    let of = |text: &String| text.split_once(' ').unwrap().0.parse().unwrap();
    values(core, key(1, 0), 0).iter().map(of).collect()
}

#[test]
fn a_journal_without_a_new_file_rejects_appends_until_it_gets_one() {
    let (_folder, core, _, left) = log();
    left.store(0, Ordering::Relaxed);
    let mut offset = 0;
    // Until the existing file is full.
    let refused = loop {
        match append(&core, offset) {
            LogReply::Appended(_) => offset += 1,
            LogReply::Failed(error) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(refused, AppendError::Delayed(_)), "{refused:?}");
    assert_eq!(core.refusal(), None);
    left.store(i64::MAX, Ordering::Relaxed);
    assert_eq!(append(&core, offset), LogReply::Appended(vec![Ok(offset)]));
}
