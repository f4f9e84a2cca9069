//! The check of every checksum: it finds each damaged place offline, and does not report changes of a running log as damage.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use support::{Folder, append, commit_texts, flip, key, small};
use whimbrel_storage::disk::RealDisk;
use whimbrel_storage::verify::{CheckReport, Verifier};
use whimbrel_storage::{Core, LogSettings, TopicRetention};

const BATCHES: u64 = 30;
const RECORDS_PER_BATCH: u64 = 5;
/// Limit of the reads of a check between which the test writes to the log. The check ends because the log stops growing.
const READS_MAX: u64 = 300;
/// Rounds of a check beside a log that is written to.
const ROUNDS: usize = 30;
/// The bytes that these rounds read together, at least.
const READ_BYTES_MIN: u64 = 1 << 20;

fn settings() -> LogSettings {
    LogSettings { segment_bytes: 8 << 10, index_interval_bytes: 2048, tail_bytes: 0, ..small() }
}

fn write(core: &Core, batches: std::ops::Range<u64>) {
    for batch in batches {
        commit_texts(core, key(1, 0), batch * RECORDS_PER_BATCH, RECORDS_PER_BATCH);
        commit_texts(core, key(1, 1), batch * RECORDS_PER_BATCH, RECORDS_PER_BATCH);
    }
}

/// A log after a kill: with segments, one of them active, and with frames that no checkpoint covers.
fn killed() -> Folder {
    let folder = Folder::new();
    let core = folder.core(settings()).0;
    core.create_partitions(1, 2).unwrap();
    write(&core, 0..BATCHES);
    core.checkpoint(0, &mut || {}).unwrap();
    write(&core, BATCHES..2 * BATCHES);
    folder.copy()
}

fn check(folder: &Path) -> CheckReport {
    check_counting(folder, Arc::default())
}

fn check_counting(folder: &Path, read: Arc<AtomicU64>) -> CheckReport {
    let meter = Arc::new(move |bytes| {
        read.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    });
    let mut verifier = Verifier::new(Arc::new(RealDisk::new()), folder, meter);
    let (targets, _) = verifier.plan().unwrap();
    for target in &targets {
        verifier.check(target).unwrap();
    }
    verifier.finish()
}

/// The contents of all files below the folder.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(contents(&entry.path()));
        } else {
            found.insert(entry.path(), fs::read(entry.path()).unwrap());
        }
    }
    found
}

#[test]
fn a_sound_log_is_read_whole_and_not_changed() {
    let folder = killed();
    let before = contents(folder.path());
    let read = Arc::new(AtomicU64::new(0));
    let report = check_counting(folder.path(), read.clone());
    assert_eq!((&report.findings[..], &report.not_checked[..]), (&[][..], &[][..]));
    assert!(report.files > folder.segments().len());
    let in_segments: u64 = folder.segments().iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(read.load(Ordering::Relaxed) > in_segments);
    assert!(contents(folder.path()) == before, "a check changes nothing");
}

#[test]
fn a_flipped_bit_anywhere_in_a_segment_is_found_by_file() {
    let folder = killed();
    let segment = folder.segments().remove(1);
    let bytes = fs::read(&segment).unwrap();
    for position in (0..bytes.len()).step_by(61) {
        flip(&segment, position);
        let report = check(folder.path());
        assert!(report.is_damaged(), "byte {position}");
        let found = &report.findings[0];
        assert_eq!(found.file, segment, "byte {position}");
        assert!(found.position <= position as u64, "{found:?}");
        fs::write(&segment, &bytes).unwrap();
    }
    assert!(!check(folder.path()).is_damaged());
}

#[test]
fn two_damaged_places_of_a_segment_are_both_found() {
    let folder = killed();
    let segment = folder.segments().remove(0);
    let len = fs::metadata(&segment).unwrap().len() as usize;
    flip(&segment, 60);
    flip(&segment, len - 1);
    let report = check(folder.path());
    let positions: Vec<u64> = report.findings.iter().map(|finding| finding.position).collect();
    assert_eq!(positions.len(), 2, "{:?}", report.findings);
    assert_eq!(positions[0], 0);
    assert!(positions[1] > len as u64 / 2);
}

#[test]
fn a_segment_that_is_missing_or_cut_off_is_found() {
    for (index, is_cut) in [(0, false), (1, false), (1, true)] {
        let folder = killed();
        let segment = folder.segments().remove(index);
        if is_cut {
            let len = fs::metadata(&segment).unwrap().len();
            fs::File::options().write(true).open(&segment).unwrap().set_len(len / 2).unwrap();
        } else {
            fs::remove_file(&segment).unwrap();
        }
        let report = check(folder.path());
        assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        assert!(report.findings[0].meaning.contains("topic number 1, partition 0"), "{:?}", report.findings);
    }
}

/// A deletion renames the folder of the whole topic, so a partition that is missing alone was not deleted.
#[test]
fn a_partition_whose_folder_is_missing_is_found() {
    let folder = killed();
    let partition = folder.path().join("log/topics/1/0");
    fs::remove_dir_all(&partition).unwrap();
    let report = check(folder.path());
    let files: Vec<&PathBuf> = report.findings.iter().map(|finding| &finding.file).collect();
    assert_eq!(files, [&partition]);
    assert!(report.is_damaged());
}

#[test]
fn a_topic_that_was_deleted_after_the_checkpoint_is_not_missing() {
    let folder = killed();
    folder.core(settings()).0.delete_topic(1).unwrap();
    assert_eq!(check(folder.path()).findings, []);
}

#[test]
fn bytes_of_a_segment_that_no_checkpoint_covers_are_not_checked() {
    let folder = killed();
    let active = folder.segments().pop().unwrap();
    let mut bytes = fs::read(&active).unwrap();
    bytes.extend_from_slice(b"half of a batch that was being written");
    fs::write(&active, bytes).unwrap();
    fs::write(active.with_file_name("00000000000000009999.segment"), b"begun after the checkpoint").unwrap();
    assert_eq!(check(folder.path()).findings, []);
}

#[test]
fn an_index_that_points_elsewhere_is_harmless() {
    let folder = killed();
    let indexes = folder.files("log/topics/1/0", ".index");
    flip(&indexes[0], 3);
    fs::copy(&indexes[0], &indexes[1]).unwrap();
    let report = check(folder.path());
    let files: Vec<&PathBuf> = report.findings.iter().map(|finding| &finding.file).collect();
    assert_eq!(files, [&indexes[0], &indexes[1]]);
    assert!(!report.is_damaged());
}

#[test]
fn a_damaged_frame_is_found_unless_it_is_the_torn_tail() {
    let folder = killed();
    let journal = folder.journal();
    // The first block is the header of the file, and each frame fits into one block. The checkpoint covers the frames of the first half.
    let last = 4 * BATCHES as usize * 4096;
    for (position, is_damage) in [(10 * 4096 + 300, false), (last - 10 * 4096 + 300, true), (last + 300, false)] {
        let bytes = fs::read(&journal).unwrap();
        flip(&journal, position);
        let report = check(folder.path());
        assert_eq!(report.is_damaged(), is_damage, "{position}: {:?}", report.findings);
        if is_damage {
            assert_eq!((&report.findings[0].file, report.findings[0].position), (&journal, position as u64 - 300));
        }
        fs::write(&journal, bytes).unwrap();
    }
}

#[test]
fn a_damaged_copy_is_found_and_the_log_is_checked_by_the_other_one() {
    for name in ["FORMAT", "FORMAT.copy", "log/checkpoint", "log/checkpoint.copy"] {
        let folder = killed();
        flip(&folder.path().join(name), 5);
        flip(&folder.segments()[0], 60);
        let report = check(folder.path());
        let files: Vec<&PathBuf> = report.findings.iter().map(|finding| &finding.file).collect();
        assert_eq!(files, [&folder.path().join(name), &folder.segments()[0]]);
        assert!(report.findings[0].meaning.contains("nothing is lost"), "{:?}", report.findings);
    }
}

#[test]
fn without_the_format_or_the_checkpoint_the_log_is_reported_as_not_checked() {
    for name in ["FORMAT", "log/checkpoint"] {
        let folder = killed();
        let copy = format!("{name}.copy");
        for name in [name, &copy] {
            flip(&folder.path().join(name), 5);
        }
        let report = check(folder.path());
        assert_eq!(report.findings[0].file, folder.path().join(name));
        assert!(report.findings[0].meaning.contains("does not start"), "{:?}", report.findings);
        assert_eq!(report.not_checked[0].path, folder.path().join("log"));
    }
}

#[test]
fn a_check_ends_when_its_meter_fails() {
    let folder = killed();
    let ends = Arc::new(AtomicBool::new(false));
    let stopped = ends.clone();
    let meter = Arc::new(move |_| match stopped.load(Ordering::Relaxed) {
        true => Err(std::io::ErrorKind::Interrupted.into()),
        false => Ok(()),
    });
    let mut verifier = Verifier::new(Arc::new(RealDisk::new()), folder.path(), meter);
    let (targets, _) = verifier.plan().unwrap();
    ends.store(true, Ordering::Relaxed);
    assert!(verifier.check(targets.last().unwrap()).is_err());
    assert_eq!(verifier.finish().findings, []);
}

/// The same without threads: the test appends between any two reads of the check, and sometimes makes a checkpoint that releases journal
/// files and segments. So each of these happens at each point of the check.
#[test]
fn writes_between_any_two_reads_are_not_reported_as_damage() {
    let settings = LogSettings {
        frame_bytes_max: 8 << 10,
        frame_bytes_target: 4 << 10,
        journal_file_bytes: 32 << 10,
        segment_bytes: 4 << 10,
        ..settings()
    };
    for reads_per_checkpoint in [1, 2, 5, 20, 1000] {
        let folder = Folder::new();
        let core = Arc::new(folder.core(settings.clone()).0);
        core.create_partitions(1, 1).unwrap();
        let write = move |core: &Core| {
            let (_, next) = core.bounds(key(1, 0)).unwrap();
            (0..4).for_each(|batch| commit_texts(core, key(1, 0), next + batch * RECORDS_PER_BATCH, RECORDS_PER_BATCH));
        };
        (0..5).for_each(|_| write(&core));
        core.checkpoint(0, &mut || {}).unwrap();
        (0..5).for_each(|_| write(&core));
        let (written, reads) = (core.clone(), AtomicU64::new(0));
        let meter = Arc::new(move |_| {
            let reads = reads.fetch_add(1, Ordering::Relaxed);
            if reads < READS_MAX {
                write(&written);
            }
            if reads < READS_MAX && reads % reads_per_checkpoint == 0 {
                let (_, next) = written.bounds(key(1, 0)).unwrap();
                written.trim(key(1, 0), next.saturating_sub(100)).unwrap();
                written.checkpoint(0, &mut || {}).unwrap();
            }
            Ok(())
        });
        let mut verifier = Verifier::new(Arc::new(RealDisk::new()), folder.path(), meter);
        for target in verifier.plan().unwrap().0 {
            verifier.check(&target).unwrap();
        }
        assert_eq!(verifier.finish().findings, [], "a checkpoint every {reads_per_checkpoint} reads");
    }
}

/// Appends, checkpoints and retention run at full speed: files appear, grow, are reused and disappear during the check.
#[test]
fn a_log_that_is_written_to_is_not_reported_as_damaged() {
    let folder = Folder::new();
    let settings = LogSettings {
        checkpoint_bytes: 64 << 10,
        checkpoint_interval: Duration::from_millis(5),
        journal_bytes_max: 4 << 20,
        ..settings()
    };
    let store = folder.store(settings);
    store.create_partitions(1, 2).unwrap();
    store.set_retention(1, TopicRetention { time: None, bytes: Some(64 << 10) });
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for partition in 0..2 {
            let (store, ends) = (&store, &ends);
            scope.spawn(move || {
                let text = "x".repeat(1000);
                while !ends.load(Ordering::Relaxed) {
                    append(store, key(1, partition), &[&*text; 8]);
                }
            });
        }
        scope.spawn(|| {
            // Topic numbers are never reused.
            for topic in (2..).take_while(|_| !ends.load(Ordering::Relaxed)) {
                store.retain(0).unwrap();
                store.create_partitions(topic, 1).unwrap();
                append(&store, key(topic, 0), &["deleted soon"]);
                store.checkpoint(0, &mut || {}).unwrap();
                store.delete_topic(topic).unwrap();
            }
        });
        let read = Arc::new(AtomicU64::new(0));
        let mut reports = Vec::new();
        // Under load, the first rounds may find a log that is still almost empty.
        while reports.len() < ROUNDS || read.load(Ordering::Relaxed) <= READ_BYTES_MIN {
            reports.push(check_counting(folder.path(), read.clone()));
        }
        ends.store(true, Ordering::Relaxed);
        let findings: Vec<_> = reports.iter().flat_map(|report| &report.findings).collect();
        assert!(findings.is_empty(), "{findings:?}");
    });
}
