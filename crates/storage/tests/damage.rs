//! Flipped bits on a real disk: the log reports their file and position, never returns wrong data, and reads the rest.

mod support;

use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use support::{DiskCall, Events, Folder, UnsyncedDisk, commit_texts, flip, key, small, text};
use whimbrel_storage::fallback::aside;
use whimbrel_storage::format::{BATCH_HEADER_LEN, BatchHeader, FRAME_HEADER_LEN};
use whimbrel_storage::{Core, DataFolder, LogEvent, LogSettings, OpenError, PartitionKey, ReadError};

const FRAMES: u64 = 40;
const RECORDS_PER_FRAME: u64 = 5;
const RECORDS: u64 = FRAMES * RECORDS_PER_FRAME;
/// The numbers of the errors "Input/output error" and "Permission denied".
const EIO: i32 = 5;
const EACCES: i32 = 13;

fn settings() -> LogSettings {
    LogSettings { segment_bytes: 8 << 10, index_interval_bytes: 2048, tail_bytes: 0, ..small() }
}

/// A log with two partitions, written frame by frame.
fn written() -> (Folder, Core) {
    let folder = Folder::new();
    let core = folder.core(settings()).0;
    core.create_partitions(1, 2).unwrap();
    for frame in 0..FRAMES {
        commit_texts(&core, key(1, 0), frame * RECORDS_PER_FRAME, RECORDS_PER_FRAME);
        commit_texts(&core, key(1, 1), frame * RECORDS_PER_FRAME, RECORDS_PER_FRAME);
    }
    (folder, core)
}

/// A log whose records are all in segments.
fn checkpointed() -> Folder {
    let (folder, core) = written();
    core.checkpoint(0, &mut || {}).unwrap();
    folder
}

/// Reads a whole partition and continues behind damage. Returns the offsets of the records and the damage.
fn read_around(core: &Core, partition: PartitionKey) -> (Vec<u64>, Vec<whimbrel_storage::LogDamage>) {
    let (mut from, next) = core.bounds(partition).unwrap();
    let (mut offsets, mut damage) = (Vec::new(), Vec::new());
    while from < next {
        match core.read(partition, from, 1000) {
            Ok(read) => {
                for (offset, record) in read.batches.iter().flat_map(|batch| batch.records().collect::<Vec<_>>()) {
                    assert_eq!(record.value, text(offset), "never wrong data");
                    offsets.extend((offset >= from).then_some(offset));
                }
                from = read.next;
            }
            Err(ReadError::Damaged(found)) => {
                from = found.resume_at.filter(|at| *at > from).expect("damage leads on");
                damage.push(found);
            }
            Err(error) => panic!("{error}"),
        }
    }
    (offsets, damage)
}

fn all() -> Vec<u64> {
    (0..RECORDS).collect()
}

#[test]
fn a_flipped_bit_in_a_segment_is_reported_with_its_place_and_the_rest_is_read() {
    let folder = checkpointed();
    let segments = folder.segments();
    assert!(segments.len() > 2);
    let batch_bytes =
        BATCH_HEADER_LEN as u64 + (0..RECORDS_PER_FRAME).map(|offset| 20 + text(offset).len() as u64).sum::<u64>();
    flip(&segments[1], 100);
    let (core, recovered, events) = folder.core(settings());
    assert_eq!(recovered.damage, [], "segments are not read at the start");
    let (offsets, damage) = read_around(&core, key(1, 0));
    assert_eq!(damage.len(), 1);
    assert_eq!((damage[0].file.as_str(), damage[0].position), (segments[1].to_str().unwrap(), 0));
    let lost = RECORDS - offsets.len() as u64;
    let lost_at_most = (2048 / batch_bytes + 2) * RECORDS_PER_FRAME;
    assert!(
        (RECORDS_PER_FRAME..=lost_at_most).contains(&lost),
        "{lost} records lost, up to the next place of the index"
    );
    assert_eq!(*events.lock().unwrap(), [LogEvent::Damaged(damage[0].clone(), Some(key(1, 0)))]);
    assert_eq!(read_around(&core, key(1, 1)), (all(), Vec::new()), "the other partition is whole");
}

#[test]
fn every_byte_of_a_segment_is_guarded() {
    let folder = checkpointed();
    let segment = folder.segments().remove(0);
    let bytes = std::fs::read(&segment).unwrap();
    for position in (0..bytes.len()).step_by(97).chain(0..BATCH_HEADER_LEN) {
        flip(&segment, position);
        let core = folder.core(settings()).0;
        let (offsets, damage) = read_around(&core, key(1, 0));
        assert!(!damage.is_empty() && offsets.len() < RECORDS as usize, "byte {position}");
        std::fs::write(&segment, &bytes).unwrap();
    }
    let core = folder.core(settings()).0;
    assert_eq!(read_around(&core, key(1, 0)), (all(), Vec::new()));
}

#[test]
fn damage_before_an_offset_is_not_in_its_way() {
    let folder = checkpointed();
    let segment = folder.segments().remove(0);
    std::fs::remove_file(segment.with_extension("index")).unwrap();
    let core = folder.core(settings()).0;
    let (_, end) = core.bounds(key(1, 0)).unwrap();
    drop(core);
    flip(&segment, 60);
    let core = folder.core(settings()).0;
    let Err(ReadError::Damaged(damage)) = core.read(key(1, 0), 0, 100) else { panic!("the first record is damaged") };
    let resume_at = damage.resume_at.unwrap();
    assert!(resume_at > 0 && resume_at < end);
    assert_eq!(core.read(key(1, 0), resume_at, 100).unwrap().batches[0].base(), resume_at);
}

#[test]
fn an_index_that_is_damaged_swapped_or_missing_costs_only_time() {
    let folder = checkpointed();
    let indexes = folder.files("log/topics/1/0", ".index");
    let whole: Vec<Vec<u8>> = indexes.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(whole[0].len() >= 2 * 24);
    let check = || {
        let core = folder.core(settings()).0;
        assert_eq!(read_around(&core, key(1, 0)), (all(), Vec::new()));
        for offset in (0..RECORDS).step_by(7) {
            assert_eq!(
                core.read(key(1, 0), offset, 1).unwrap().next,
                offset / RECORDS_PER_FRAME * RECORDS_PER_FRAME + 5
            );
            // `part` gives each record its offset times ten as its time.
            assert_eq!(core.offset_at(key(1, 0), offset as i64 * 10), Ok(offset));
        }
    };
    for position in 0..whole[0].len() {
        flip(&indexes[0], position);
        check();
        std::fs::write(&indexes[0], &whole[0]).unwrap();
    }
    std::fs::write(&indexes[0], &whole[0][..whole[0].len() - 5]).unwrap();
    std::fs::write(&indexes[1], b"nonsense that is no index").unwrap();
    check();
    std::fs::write(&indexes[0], &whole[1]).unwrap();
    std::fs::write(&indexes[1], &whole[0]).unwrap();
    check();
    indexes.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    check();
}

#[test]
fn a_damaged_journal_frame_that_was_synced_is_reported_and_costs_its_own_records_only() {
    let (folder, _core) = written();
    let crashed = folder.copy();
    let journal = crashed.journal();
    // The first block is the header of the file, and each frame fits into one block: the tenth frame is the fifth of partition 1.
    flip(&journal, 10 * 4096 + 300);
    let (core, recovered, events) = crashed.core(settings());
    assert_eq!(recovered.damage.len(), 1, "{:?}", recovered.damage);
    let damage = &recovered.damage[0];
    assert_eq!(damage.file, "0000.journal");
    assert!(damage.position > 9 * 4096 && damage.position <= 11 * 4096, "{damage:?}");
    assert!(events.lock().unwrap().contains(&LogEvent::Damaged(damage.clone(), None)));
    assert_eq!(read_around(&core, key(1, 0)), (all(), Vec::new()));
    let (offsets, damage) = read_around(&core, key(1, 1));
    let lost: Vec<u64> = all().into_iter().filter(|offset| !offsets.contains(offset)).collect();
    assert_eq!(lost, (20..25).collect::<Vec<_>>());
    assert_eq!(damage[0].resume_at, Some(25));
    commit_texts(&core, key(1, 1), RECORDS, 1);
}

#[test]
fn the_offsets_of_a_damaged_last_frame_of_a_partition_are_not_reused() {
    let folder = Folder::new();
    let core = folder.core(settings()).0;
    core.create_partitions(1, 2).unwrap();
    commit_texts(&core, key(1, 1), 0, 1);
    commit_texts(&core, key(1, 1), 1, 4);
    commit_texts(&core, key(1, 0), 0, 1);
    let crashed = folder.copy();
    let journal = crashed.journal();
    flip(&journal, 2 * 4096 + 300);
    for restart in 0..2 {
        let (core, recovered, _) = crashed.core(settings());
        assert_eq!(recovered.damage.len(), if restart == 0 { 1 } else { 0 });
        assert_eq!(core.bounds(key(1, 1)), Ok((0, 5)), "restart {restart}");
        let (offsets, damage) = read_around(&core, key(1, 1));
        assert_eq!((offsets, damage.len(), damage[0].resume_at), (vec![0], 1, Some(5)));
    }
    let core = crashed.core(settings()).0;
    commit_texts(&core, key(1, 1), 5, 1);
    assert_eq!(read_around(&core, key(1, 1)).0, [0, 5]);
    drop(core);
    assert_eq!(read_around(&crashed.core(settings()).0, key(1, 1)).0, [0, 5]);
}

#[test]
fn a_damaged_count_of_records_does_not_cost_later_records() {
    let folder = Folder::new();
    let core = folder.core(settings()).0;
    core.create_partitions(1, 1).unwrap();
    commit_texts(&core, key(1, 0), 0, 1);
    commit_texts(&core, key(1, 0), 1, 4);
    commit_texts(&core, key(1, 0), 5, 1);
    commit_texts(&core, key(1, 0), 6, 1);
    let crashed = folder.copy();
    let journal = crashed.journal();
    // The only batch of the second frame now has a count of twenty records instead of four.
    flip(&journal, 2 * 4096 + FRAME_HEADER_LEN + offset_of!(BatchHeader, count));
    let core = crashed.core(settings()).0;
    assert_eq!(core.bounds(key(1, 0)), Ok((0, 7)));
    assert_eq!(read_around(&core, key(1, 0)).0, [0, 5, 6]);
}

/// Opens the log of a folder whose small files may be damaged.
fn open(folder: &Folder) -> Result<(Core, Vec<LogEvent>), OpenError> {
    open_on(UnsyncedDisk::default(), folder)
}

fn open_on(disk: UnsyncedDisk, folder: &Folder) -> Result<(Core, Vec<LogEvent>), OpenError> {
    let data = DataFolder::open(Arc::new(disk), folder.path())?;
    let events = Events::default();
    events.lock().unwrap().extend(data.finding.clone().map(LogEvent::FileReplaced));
    let reported = events.clone();
    let core = Core::open(data.into(), settings(), 0, Box::new(move |event| reported.lock().unwrap().push(event)))?.0;
    let events = events.lock().unwrap().clone();
    Ok((core, events))
}

#[track_caller]
fn assert_whole(core: &Core) {
    assert_eq!(read_around(core, key(1, 0)), (all(), Vec::new()));
    assert_eq!(read_around(core, key(1, 1)), (all(), Vec::new()));
}

/// Damages each byte of the file in turn: the log opens from the other copy, and reports only damage to the file itself.
fn damage_each_byte(name: &str, is_reported: bool) {
    let folder = checkpointed();
    let path = folder.path().join(name);
    let len = std::fs::read(&path).unwrap().len();
    for position in 0..len {
        flip(&path, position);
        let (core, events) = open(&folder).unwrap_or_else(|error| panic!("byte {position}: {error}"));
        assert_whole(&core);
        let reported: Vec<PathBuf> = events
            .iter()
            .map(|event| match event {
                LogEvent::FileReplaced(replaced) => replaced.file.clone(),
                other => panic!("byte {position}: {other:?}"),
            })
            .collect();
        let expected = if is_reported { vec![path.clone()] } else { Vec::new() };
        // Some changes of FORMAT do not change its meaning, such as the case of a digit.
        if !reported.is_empty() || name != "FORMAT" {
            assert_eq!(reported, expected, "byte {position}");
            assert_eq!(aside(&path).exists(), is_reported);
        }
        drop(core);
        assert_eq!(open(&folder).unwrap().1, [], "byte {position}: one start repairs it");
    }
}

#[test]
fn a_checkpoint_with_any_byte_changed_is_read_from_its_copy() {
    damage_each_byte("log/checkpoint", true);
}

#[test]
fn a_copy_of_the_checkpoint_with_any_byte_changed_is_not_missed() {
    damage_each_byte("log/checkpoint.copy", false);
}

#[test]
fn a_format_with_any_byte_changed_is_read_from_its_copy() {
    damage_each_byte("FORMAT", true);
}

#[test]
fn a_copy_of_the_format_with_any_byte_changed_is_written_again() {
    damage_each_byte("FORMAT.copy", false);
}

#[test]
fn a_missing_small_file_is_read_from_its_copy_and_reported() {
    for name in ["FORMAT", "log/checkpoint"] {
        let folder = checkpointed();
        std::fs::remove_file(folder.path().join(name)).unwrap();
        let (core, events) = open(&folder).unwrap();
        assert_whole(&core);
        let [LogEvent::FileReplaced(replaced)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((&replaced.file, &*replaced.why), (&folder.path().join(name), "it is missing"));
        assert!(folder.path().join(name).exists());
    }
}

/// A disk that cannot open or create this file.
fn disk_without(path: &Path, errno: i32) -> UnsyncedDisk {
    let path = path.to_owned();
    UnsyncedDisk::failing(&Arc::new(AtomicBool::new(true)), errno, move |call| match call {
        DiskCall::Open(opened) | DiskCall::Create(opened) => opened == path,
        _ => false,
    })
}

#[test]
fn a_small_file_that_the_disk_cannot_read_is_read_from_its_copy_and_reported() {
    for name in ["FORMAT", "log/checkpoint"] {
        let folder = checkpointed();
        let path = folder.path().join(name);
        let (core, events) = open_on(disk_without(&path, EIO), &folder).unwrap();
        assert_whole(&core);
        let [LogEvent::FileReplaced(replaced)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(replaced.file, path);
        assert!(replaced.why.contains("os error 5"), "{}", replaced.why);
        assert!(path.exists() && aside(&path).exists(), "the file is written again, and the unreadable one kept");
        drop(core);
        assert_eq!(open(&folder).unwrap().1, []);
    }
}

#[test]
fn a_small_file_that_cannot_be_opened_for_another_reason_is_not_replaced() {
    for name in ["FORMAT", "log/checkpoint"] {
        let folder = checkpointed();
        let path = folder.path().join(name);
        assert!(open_on(disk_without(&path, EACCES), &folder).is_err());
        assert!(!aside(&path).exists());
    }
}

#[test]
fn a_folder_without_the_copies_gets_them_with_the_next_start() {
    let folder = checkpointed();
    for name in ["FORMAT.copy", "log/checkpoint.copy"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    let (core, events) = open(&folder).unwrap();
    assert_whole(&core);
    assert_eq!(events, []);
    for name in ["FORMAT", "log/checkpoint"] {
        let read = |name: String| std::fs::read(folder.path().join(name)).unwrap();
        assert!(read(name.to_owned()) == read(format!("{name}.copy")), "{name}");
    }
}

#[test]
fn a_small_file_that_is_damaged_with_its_copy_is_rejected_by_name_and_nothing_is_changed() {
    for name in ["FORMAT", "log/checkpoint"] {
        let folder = checkpointed();
        let (path, copy) = (folder.path().join(name), folder.path().join(format!("{name}.copy")));
        let whole = std::fs::read(&path).unwrap();
        for without_copy in [false, true] {
            flip(&path, 5);
            if without_copy {
                std::fs::remove_file(&copy).unwrap()
            } else {
                flip(&copy, 6)
            }
            match open(&folder).map(drop) {
                Err(OpenError::Unreadable { path: refused, why }) => {
                    assert_eq!(refused, path);
                    assert!(why.contains(copy.to_str().unwrap()), "{why}");
                }
                other => panic!("{name}: {other:?}"),
            }
            std::fs::write(&path, &whole).unwrap();
            std::fs::write(&copy, &whole).unwrap();
        }
        assert_whole(&open(&folder).unwrap().0);
    }
}

#[test]
fn a_first_checkpoint_interrupted_before_its_file_is_no_damage() {
    let folder = Folder::new();
    drop(folder.core(settings()));
    std::fs::remove_file(folder.path().join("log/checkpoint")).unwrap();
    std::fs::remove_dir_all(folder.path().join("log/journal")).unwrap();
    assert_eq!(open(&folder).unwrap().1, []);
}

#[test]
fn a_checkpoint_that_is_missing_with_its_copy_is_not_taken_for_a_new_log() {
    let checkpointed = checkpointed();
    let (journalled, _core) = written();
    for folder in [checkpointed, journalled.copy()] {
        let names = ["log/checkpoint", "log/checkpoint.copy"].map(|name| folder.path().join(name));
        let bytes = std::fs::read(&names[0]).unwrap();
        names.iter().for_each(|name| std::fs::remove_file(name).unwrap());
        match open(&folder).map(drop) {
            Err(OpenError::Unreadable { path, .. }) => assert_eq!(path, names[0]),
            other => panic!("{other:?}"),
        }
        std::fs::write(&names[0], &bytes).unwrap();
        assert_whole(&open(&folder).unwrap().0);
    }
}
