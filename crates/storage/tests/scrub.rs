//! The scrub of cold segments: it reports damage once, skips segments that are being written, and releases dropped segments.

mod support;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use support::{DiskCall, Events, Folder, UnsyncedDisk, flip, key, part, small};
use whimbrel_storage::verify::ReadMeter;
use whimbrel_storage::{ColdSegment, Core, LogEvent, LogSettings, LogWrite, ScrubResult};

/// How long a deletion waits for a scrub. A scrub of a missing file that does not wait for the deletion ends much earlier.
const SCRUB_WAIT: Duration = Duration::from_millis(500);

fn settings() -> LogSettings {
    LogSettings { segment_bytes: 600 << 10, tail_bytes: 0, ..small() }
}

/// A log with several segments of more than one read each, the last of which is being written.
fn written() -> (Folder, Core, Events) {
    let folder = Folder::new();
    let (core, _, events) = folder.core(settings());
    fill(&core);
    (folder, core, events)
}

fn fill(core: &Core) {
    core.create_partitions(1, 1).unwrap();
    let text = "x".repeat(1000);
    for batch in 0..160 {
        core.commit(&[LogWrite::Append(vec![part(key(1, 0), batch * 8, &[&*text; 8])])]);
    }
    core.checkpoint(0, &mut || {}).unwrap();
}

fn free_meter() -> ReadMeter {
    Arc::new(|_| Ok(()))
}

fn file_of(folder: &Folder, segment: ColdSegment) -> PathBuf {
    folder.path().join(format!("log/topics/1/0/{:020}.segment", segment.base))
}

#[test]
fn a_sound_segment_is_read_whole_and_the_one_being_written_is_left_out() {
    let (folder, core, events) = written();
    let cold = core.cold_segments();
    assert_eq!(cold.len() + 1, folder.segments().len());
    for segment in cold {
        let read = Arc::new(AtomicU64::new(0));
        let counted = read.clone();
        let meter: ReadMeter = Arc::new(move |bytes| {
            counted.fetch_add(bytes, Ordering::Relaxed);
            Ok(())
        });
        assert_eq!(core.scrub(segment, &meter).unwrap(), ScrubResult::Read { damaged: 0 });
        let len = std::fs::metadata(file_of(&folder, segment)).unwrap().len();
        assert!(read.load(Ordering::Relaxed) >= len);
    }
    assert_eq!(*events.lock().unwrap(), []);
}

#[test]
fn a_damaged_place_is_reported_once() {
    let (folder, core, events) = written();
    let segment = core.cold_segments()[1];
    let path = file_of(&folder, segment);
    flip(&path, 100);
    for _ in 0..3 {
        assert_eq!(core.scrub(segment, &free_meter()).unwrap(), ScrubResult::Read { damaged: 1 });
    }
    assert!(core.read(key(1, 0), segment.base, 1).is_err(), "a reader meets it too");
    let events = events.lock().unwrap();
    let [LogEvent::Damaged(damage, Some(partition))] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&*damage.file, damage.position, *partition), (path.to_str().unwrap(), 0, key(1, 0)));
}

#[test]
fn a_segment_that_is_dropped_during_the_scrub_is_released() {
    let (_folder, core, events) = written();
    let core = Arc::new(core);
    let segment = core.cold_segments()[0];
    let (dropping, reads) = (core.clone(), Arc::new(AtomicU64::new(0)));
    let counted = reads.clone();
    let meter: ReadMeter = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        dropping.trim(key(1, 0), u64::MAX).unwrap();
        dropping.checkpoint(0, &mut || {}).unwrap();
        Ok(())
    });
    assert_eq!(core.scrub(segment, &meter).unwrap(), ScrubResult::Dropped);
    assert_eq!(reads.load(Ordering::Relaxed), 1, "at the next read");
    assert_eq!(core.scrub(segment, &free_meter()).unwrap(), ScrubResult::Dropped);
    assert_eq!(*events.lock().unwrap(), []);
}

/// A deletion first renames the folder of the topic and then marks its partitions as deleted. A scrub in between finds no file.
#[test]
fn a_segment_whose_topic_is_being_deleted_is_not_damaged() {
    let folder = Folder::new();
    let core: Arc<OnceLock<Arc<Core>>> = Arc::default();
    let (scrubbed, result) = mpsc::channel();
    let (scrubbing, early) = (core.clone(), Arc::new(Mutex::new(None)));
    let (result, noted) = (Mutex::new(result), early.clone());
    let disk = UnsyncedDisk::with(move |call| {
        let is_deletion = |to: &Path| to.extension().is_some_and(|extension| extension == "deleted");
        if !matches!(call, DiskCall::Renamed(to) if is_deletion(to)) {
            return Ok(());
        }
        let (core, scrubbed) = (scrubbing.get().unwrap().clone(), scrubbed.clone());
        std::thread::spawn(move || scrubbed.send(core.scrub(core.cold_segments()[0], &free_meter()).unwrap()));
        *noted.lock().unwrap() = Some(result.lock().unwrap().recv_timeout(SCRUB_WAIT));
        Ok(())
    });
    let (opened, _, events) = folder.core_on(disk, settings());
    let core = core.get_or_init(|| Arc::new(opened));
    fill(core);
    core.delete_topic(1).unwrap();
    let early = early.lock().unwrap().take().unwrap();
    assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "the scrub waits for the deletion");
    assert_eq!(*events.lock().unwrap(), []);
}

#[test]
fn a_segment_whose_file_is_gone_is_damaged() {
    let (folder, core, events) = written();
    let segment = core.cold_segments()[1];
    std::fs::remove_file(file_of(&folder, segment)).unwrap();
    assert_eq!(core.scrub(segment, &free_meter()).unwrap(), ScrubResult::Read { damaged: 1 });
    assert!(matches!(events.lock().unwrap()[..], [LogEvent::Damaged(_, Some(_))]));
}

#[test]
fn a_scrub_ends_when_its_meter_fails() {
    let (_folder, core, events) = written();
    let meter: ReadMeter = Arc::new(|_| Err(std::io::ErrorKind::Interrupted.into()));
    assert!(core.scrub(core.cold_segments()[0], &meter).is_err());
    assert_eq!(*events.lock().unwrap(), []);
}
