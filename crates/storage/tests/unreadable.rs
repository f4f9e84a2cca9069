//! Sectors that the disk cannot read. After a few failures the log reports them as damage, and readers continue behind them.

mod support;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::{DiskCall, Events, Folder, UnsyncedDisk, flip, key, part, small};
use whimbrel_storage::verify::ReadMeter;
use whimbrel_storage::{Core, LogDamage, LogEvent, LogSettings, LogWrite, ReadError, ScrubResult};

const FRAMES: u64 = 300;
const SECTOR: u64 = 4096;
/// Reads of one place that may fail before it is reported as damaged.
const FAILURES_BEFORE: usize = 2;

/// Bytes of one file that cannot be read.
type Bad = Arc<Mutex<Option<(PathBuf, Range<u64>)>>>;

fn settings() -> LogSettings {
    LogSettings { segment_bytes: 64 << 10, tail_bytes: 0, unreadable_for: Duration::ZERO, ..small() }
}

fn text(offset: u64) -> String {
    format!("record {offset} {}", "x".repeat(1000))
}

fn written() -> (Folder, Core, Events, Bad) {
    written_with(settings())
}

/// A log with several segments, on a disk with bad sectors.
fn written_with(settings: LogSettings) -> (Folder, Core, Events, Bad) {
    let bad = Bad::default();
    let sectors = Arc::clone(&bad);
    let disk = UnsyncedDisk::failing(&Arc::new(AtomicBool::new(true)), libc::EIO, move |call| {
        let DiskCall::Read(path, read) = call else { return false };
        let bad = sectors.lock().unwrap();
        bad.as_ref().is_some_and(|(file, bytes)| file == path && read.start < bytes.end && bytes.start < read.end)
    });
    let (folder, core, events) = written_on(disk, settings);
    (folder, core, events, bad)
}

fn written_on(disk: UnsyncedDisk, settings: LogSettings) -> (Folder, Core, Events) {
    let folder = Folder::new();
    let (core, _, events) = folder.core_on(disk, settings);
    core.create_partitions(1, 1).unwrap();
    for frame in 0..FRAMES {
        core.commit(&[LogWrite::Append(vec![part(key(1, 0), frame, &[&text(frame)])])]);
    }
    core.checkpoint(0, &mut || {}).unwrap();
    (folder, core, events)
}

fn segment(folder: &Folder, base: u64) -> PathBuf {
    folder.path().join(format!("log/topics/1/0/{base:020}.segment"))
}

fn free_meter() -> ReadMeter {
    Arc::new(|_| Ok(()))
}

/// Reads as every reader does: retries after errors, and continues behind damage. Returns offsets, damage and the number of errors.
fn read_around(core: &Core) -> (Vec<u64>, Vec<LogDamage>, usize) {
    let (mut from, mut offsets, mut damage, mut failures) = (0, Vec::new(), Vec::new(), 0);
    while from < FRAMES {
        match core.read(key(1, 0), from, 10_000) {
            Ok(read) => {
                for (offset, record) in read.batches.iter().flat_map(|batch| batch.records().collect::<Vec<_>>()) {
                    assert_eq!(record.value, text(offset), "never wrong data");
                    offsets.push(offset);
                }
                from = read.next;
            }
            Err(ReadError::Damaged(found)) => {
                from = found.resume_at.filter(|at| *at > from).expect("damage leads on");
                damage.push(found);
            }
            Err(ReadError::Io { .. }) => {
                failures += 1;
                assert!(failures < 1000, "the reader is stuck at {from}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    (offsets, damage, failures)
}

#[test]
fn an_unreadable_sector_is_damage_after_a_few_failures_and_costs_its_own_records_only() {
    let (folder, core, events, bad) = written();
    let cold = core.cold_segments();
    assert!(cold.len() > 2, "{cold:?}");
    let file = segment(&folder, cold[1].base);
    *bad.lock().unwrap() = Some((file.clone(), 5 * SECTOR..6 * SECTOR));
    let (offsets, damage, failures) = read_around(&core);
    assert_eq!((damage.len(), failures), (1, FAILURES_BEFORE), "{damage:?}");
    let missing: Vec<u64> = (0..FRAMES).filter(|offset| !offsets.contains(offset)).collect();
    // Records of 1 kB: only those in the sector are missing.
    assert!((4..=6).contains(&missing.len()), "{missing:?}");
    assert!(missing.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    assert_eq!(damage[0].file, file.display().to_string());
    assert!((4 * SECTOR..6 * SECTOR).contains(&damage[0].position), "{:?}", damage[0]);
    assert_eq!(*events.lock().unwrap(), [LogEvent::Damaged(damage[0].clone(), Some(key(1, 0)))]);
    // A further read of the same place does not fail first.
    assert_eq!(read_around(&core), (offsets, damage, 0));
    assert_eq!(events.lock().unwrap().len(), 1, "it is reported once");
}

#[test]
fn a_segment_that_cannot_be_read_at_all_is_skipped() {
    let (folder, core, _, bad) = written();
    let cold = core.cold_segments();
    *bad.lock().unwrap() = Some((segment(&folder, cold[1].base), 0..u64::MAX));
    let (offsets, damage, _) = read_around(&core);
    assert_eq!(damage[0].resume_at, Some(cold[2].base));
    assert_eq!(offsets, (0..cold[1].base).chain(cold[2].base..FRAMES).collect::<Vec<_>>());
}

#[test]
fn a_segment_whose_file_is_missing_is_skipped() {
    let (folder, core, _, _) = written();
    let cold = core.cold_segments();
    std::fs::remove_file(segment(&folder, cold[1].base)).unwrap();
    let (offsets, damage, _) = read_around(&core);
    assert_eq!((damage.len(), damage[0].resume_at), (1, Some(cold[2].base)));
    assert_eq!(offsets, (0..cold[1].base).chain(cold[2].base..FRAMES).collect::<Vec<_>>());
}

#[test]
fn the_segment_that_is_written_to_is_read_behind_an_unreadable_sector() {
    let (folder, core, _, bad) = written();
    let active = FRAMES - 1;
    let cold = core.cold_segments();
    *bad.lock().unwrap() = Some((folder.segments().pop().unwrap(), 0..SECTOR));
    assert!(cold.last().unwrap().base < active);
    let (offsets, damage, _) = read_around(&core);
    assert_eq!(damage.len(), 1);
    assert_eq!(offsets.last(), Some(&active));
    core.commit(&[LogWrite::Append(vec![part(key(1, 0), FRAMES, &[&text(FRAMES)])])]);
    core.checkpoint(0, &mut || {}).unwrap();
    assert_eq!(core.read(key(1, 0), FRAMES, 1).unwrap().next, FRAMES + 1);
}

#[test]
fn a_temporary_failure_is_no_damage() {
    let (folder, core, events, bad) = written();
    let base = core.cold_segments()[1].base;
    for _ in 0..10 {
        *bad.lock().unwrap() = Some((segment(&folder, base), 0..SECTOR));
        for _ in 0..FAILURES_BEFORE {
            assert!(matches!(core.read(key(1, 0), base, 1), Err(ReadError::Io { .. })));
        }
        *bad.lock().unwrap() = None;
        assert_eq!(core.read(key(1, 0), base, 1).unwrap().next, base + 1);
    }
    assert_eq!(*events.lock().unwrap(), []);
}

#[test]
fn a_place_that_is_unreadable_for_a_moment_is_no_damage_after_any_number_of_reads() {
    let pause = Duration::from_millis(300);
    let (folder, core, events, bad) = written_with(LogSettings { unreadable_for: pause, ..settings() });
    let base = core.cold_segments()[1].base;
    *bad.lock().unwrap() = Some((segment(&folder, base), 0..SECTOR));
    let began = Instant::now();
    for _ in 0..20 {
        let failed = core.read(key(1, 0), base, 1).unwrap_err();
        assert!(matches!(failed, ReadError::Io { .. }) || began.elapsed() >= pause, "{failed}");
    }
    std::thread::sleep(pause);
    assert!(matches!(core.read(key(1, 0), base, 1), Err(ReadError::Damaged(_))));
    assert_eq!(events.lock().unwrap().len(), 1);
}

#[test]
fn a_search_by_time_passes_an_unreadable_sector() {
    let (folder, core, _, bad) = written();
    let cold = core.cold_segments();
    *bad.lock().unwrap() = Some((segment(&folder, cold[1].base), 0..u64::MAX));
    // The time of a record is its offset times ten.
    let (time, mut found) = (cold[1].base as i64 * 10, None);
    for _ in 0..=FAILURES_BEFORE {
        found = core.offset_at(key(1, 0), time).ok();
    }
    assert_eq!(found, Some(cold[2].base));
}

#[test]
fn the_scrub_continues_behind_an_unreadable_sector() {
    let (folder, core, events, bad) = written();
    let cold = core.cold_segments()[1];
    let file = segment(&folder, cold.base);
    *bad.lock().unwrap() = Some((file.clone(), 2 * SECTOR..3 * SECTOR));
    // A second damaged place, behind the first.
    flip(&file, 10 * SECTOR as usize);
    assert_eq!(core.scrub(cold, &free_meter()).unwrap(), ScrubResult::Read { damaged: 2 });
    assert_eq!(events.lock().unwrap().len(), 2);
}

#[test]
fn an_offline_disk_costs_no_record() {
    let is_away = Arc::new(AtomicBool::new(false));
    let is_open = |call: DiskCall<'_>| matches!(call, DiskCall::Open(_) | DiskCall::Create(_));
    let (_folder, core, _) = written_on(UnsyncedDisk::failing(&is_away, libc::EIO, is_open), settings());
    is_away.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        let read = core.read(key(1, 0), 0, 10_000);
        assert!(matches!(read, Err(ReadError::Io { .. })), "{read:?}");
    }
    is_away.store(false, Ordering::SeqCst);
    let (offsets, damage, _) = read_around(&core);
    assert_eq!((offsets.len() as u64, damage.len()), (FRAMES, 0), "{damage:?}");
}
