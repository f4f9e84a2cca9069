//! The check of a log that changes: one change happens between two disk calls of the check, for each pair of calls. The check must report
//! no damage, and must check every file.

mod support;

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use support::{Folder, UnsyncedDisk, key, part, small};
use whimbrel_storage::verify::Verifier;
use whimbrel_storage::{Core, LogSettings, LogWrite, PartitionKey, TopicRetention};

/// Limit of the calls of one check. A check of these logs makes fewer.
const CALLS_MAX: u64 = 2000;
const RECORDS_PER_BATCH: usize = 5;

type Change = Box<dyn FnOnce() + Send>;

fn settings() -> LogSettings {
    LogSettings {
        frame_bytes_max: 8 << 10,
        frame_bytes_target: 4 << 10,
        journal_file_bytes: 32 << 10,
        segment_bytes: 4 << 10,
        index_interval_bytes: 1024,
        tail_bytes: 0,
        ..small()
    }
}

fn write(core: &Core, partition: PartitionKey, batches: usize) {
    let text = "x".repeat(100);
    for _ in 0..batches {
        let (_, next) = core.bounds(partition).unwrap();
        core.commit(&[LogWrite::Append(vec![part(partition, next, &[&*text; RECORDS_PER_BATCH])])]);
    }
}

fn checkpoint(core: &Core) {
    core.checkpoint(0, &mut || {}).unwrap();
}

/// A log of two topics, with segments and with frames that no checkpoint covers.
fn written() -> (Folder, Core) {
    let folder = Folder::new();
    let core = folder.core(settings()).0;
    fill(&core);
    (folder, core)
}

fn fill(core: &Core) {
    for topic in [1, 2] {
        core.create_partitions(topic, 1).unwrap();
        write(core, key(topic, 0), 12);
    }
    checkpoint(core);
    for topic in [1, 2] {
        write(core, key(topic, 0), 2);
    }
}

/// Checks a new log for each call of the check, with the change just before that call.
fn check_with_change_at_each_call(make: impl Fn() -> (Folder, Change)) {
    for at in 0..CALLS_MAX {
        let (folder, change) = make();
        let (calls, change) = (AtomicU64::new(0), Arc::new(Mutex::new(Some(change))));
        let pending = change.clone();
        let disk = UnsyncedDisk::with(move |_| {
            if calls.fetch_add(1, Ordering::Relaxed) == at {
                let change = pending.lock().unwrap().take().unwrap();
                change();
            }
            Ok(())
        });
        let mut verifier = Verifier::new(Arc::new(disk), folder.path(), Arc::new(|_| Ok(())));
        for target in verifier.plan().unwrap().0 {
            verifier.check(&target).unwrap();
        }
        let report = verifier.finish();
        assert_eq!((report.findings, report.not_checked), (Vec::new(), Vec::new()), "a change before call {at}");
        let is_over = change.lock().unwrap().is_some();
        if is_over {
            assert!(at > 0, "the check made no call");
            return;
        }
    }
    panic!("the check made more than {CALLS_MAX} calls");
}

/// Journal files are reused, and segments are dropped, sealed and begun.
#[test]
fn checkpoints_that_release_files_are_not_damage() {
    check_with_change_at_each_call(|| {
        let (folder, core) = written();
        let change = move || {
            for _ in 0..3 {
                write(&core, key(1, 0), 20);
                core.trim(key(1, 0), core.bounds(key(1, 0)).unwrap().1 - 20).unwrap();
                checkpoint(&core);
            }
        };
        (folder, Box::new(change))
    });
}

/// Retention drops the segment that the checkpoint names as the one being written, and amends the checkpoint.
#[test]
fn retention_between_two_checkpoints_is_not_damage() {
    for is_expired in [false, true] {
        check_with_change_at_each_call(|| {
            let (folder, core) = written();
            let change = move || {
                write(&core, key(1, 0), 20);
                core.relieve_memory(0).unwrap();
                let bytes = if is_expired { 0 } else { 8 << 10 };
                core.set_retention(1, TopicRetention { time: None, bytes: Some(bytes) });
                core.retain(0).unwrap();
            };
            (folder, Box::new(change))
        });
    }
}

#[test]
fn a_deletion_of_a_topic_is_not_damage() {
    for has_checkpoint in [false, true] {
        check_with_change_at_each_call(|| {
            let (folder, core) = written();
            let change = move || {
                core.delete_topic(2).unwrap();
                if has_checkpoint {
                    checkpoint(&core);
                }
            };
            (folder, Box::new(change))
        });
    }
}

#[test]
fn the_first_start_on_a_folder_is_not_damage() {
    for has_format in [false, true] {
        check_with_change_at_each_call(|| {
            let folder = Folder::new();
            if has_format {
                drop(folder.unsynced_folder());
            }
            let path = folder.path().to_owned();
            (folder, Box::new(move || fill(&support::core_at(&path, settings()))))
        });
    }
}

/// A start cuts segments and indexes back, replaces journal files of another length, and begins a generation.
#[test]
fn a_restart_is_not_damage() {
    for journal_file_bytes in [32 << 10, 64 << 10] {
        check_with_change_at_each_call(|| {
            let (folder, core) = written();
            core.relieve_memory(0).unwrap();
            drop(core);
            let path = folder.path().to_owned();
            let change = move || {
                let core = support::core_at(&path, LogSettings { journal_file_bytes, ..settings() });
                write(&core, key(1, 0), 30);
                checkpoint(&core);
                write(&core, key(1, 0), 30);
            };
            (folder, Box::new(change))
        });
    }
}

/// The first start of this version on a folder of a version that wrote no copies.
#[test]
fn copies_that_a_start_writes_for_the_first_time_are_not_damage() {
    check_with_change_at_each_call(|| {
        let (folder, core) = written();
        drop(core);
        for name in ["FORMAT.copy", "log/checkpoint.copy"] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        let path = folder.path().to_owned();
        (folder, Box::new(move || drop(support::core_at(&path, settings()))))
    });
}
