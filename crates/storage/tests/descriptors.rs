//! A want of file descriptors delays what needs a file, and closes nothing: it passes.

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use support::{Events, Folder, UnsyncedDisk, core_at, key, part, small, values};
use whimbrel_storage::{AppendError, Core, DataFolder, Event, Outcome, Settings, Work};

const EMFILE: i32 = 24;
/// More than a checkpoint opens here.
const OPENS_MAX: i64 = 20;

fn settings() -> Settings {
    Settings { segment_bytes: 8 << 10, tail_bytes: 0, ..small() }
}

/// A log whose disk opens so many files more, and then none until there are more again.
fn log() -> (Folder, Core, Events, Arc<AtomicI64>) {
    let (folder, events) = (Folder::new(), Events::default());
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let (counted, told) = (Arc::clone(&left), Arc::clone(&events));
    let disk = UnsyncedDisk::with_open(move |_| {
        if counted.fetch_sub(1, Ordering::Relaxed) > 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(EMFILE)) }
    });
    let data = Arc::new(DataFolder::open(Arc::new(disk), folder.path()).unwrap());
    let on_event = Box::new(move |event| told.lock().unwrap().push(event));
    let core = Core::open(data, settings(), 0, on_event).unwrap().0;
    core.create_partitions(1, 1).unwrap();
    (folder, core, events, left)
}

fn append(core: &Core, offset: u64) -> Outcome {
    let text = format!("{offset} {}", "x".repeat(5000));
    core.commit(&[Work::Append(vec![part(key(1, 0), offset, &[&text])])]).remove(0)
}

#[test]
fn a_checkpoint_without_descriptors_is_delayed_wherever_they_run_out() {
    let (folder, core, events, left) = log();
    // The first one makes the journal's file.
    assert_eq!(append(&core, 0), Outcome::Appended(vec![Ok(0)]));
    let mut offset = 1;
    for opens in 0..OPENS_MAX {
        left.store(opens, Ordering::Relaxed);
        for _ in 0..3 {
            assert_eq!(append(&core, offset), Outcome::Appended(vec![Ok(offset)]));
            offset += 1;
            match core.checkpoint(0, &mut || {}) {
                Ok(()) | Err(AppendError::Delayed(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(core.refusal(), None);
        left.store(i64::MAX, Ordering::Relaxed);
        core.checkpoint(0, &mut || {}).unwrap();
        let delayed = events.lock().unwrap().drain(..).filter(|event| matches!(event, Event::Delayed(_))).count();
        if opens == 0 {
            assert_eq!(delayed, 1, "it is told once");
        }
    }
    assert_eq!(offsets(&core), (0..offset).collect::<Vec<_>>());
    assert_eq!(offsets(&core_at(folder.copy().path(), settings())), (0..offset).collect::<Vec<_>>());
}

/// The offsets of all records, by their texts.
fn offsets(core: &Core) -> Vec<u64> {
    let of = |text: &String| text.split_once(' ').unwrap().0.parse().unwrap();
    values(core, key(1, 0), 0).iter().map(of).collect()
}

#[test]
fn a_journal_that_gets_no_file_refuses_until_it_gets_one() {
    let (_folder, core, _, left) = log();
    left.store(0, Ordering::Relaxed);
    let mut offset = 0;
    // Until the file that is there is full.
    let refused = loop {
        match append(&core, offset) {
            Outcome::Appended(_) => offset += 1,
            Outcome::Failed(error) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(refused, AppendError::Delayed(_)), "{refused:?}");
    assert_eq!(core.refusal(), None);
    left.store(i64::MAX, Ordering::Relaxed);
    assert_eq!(append(&core, offset), Outcome::Appended(vec![Ok(offset)]));
}
