//! The entries of a notebook in a folder: across restarts, torn tails, and beyond its bounds.

use std::fs::OpenOptions;

use bytes::Bytes;
use tempfile::TempDir;
use whimbrel_model::SystemClock;
use whimbrel_model::ports::{AfterFailure, DurationHistogram};

use super::super::lsm::testing::ObservedReports;
use super::*;

#[path = "tests/faults.rs"]
mod faults;

const SUB: SubscriptionNumber = SubscriptionNumber(7);
const ORDERS: PartitionId = PartitionId::new(TopicNumber(3), 1);

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + ms)
}

fn delivered(offset: u64) -> AttemptRecord {
    AttemptRecord {
        subscription: SUB,
        run: 1,
        partition: ORDERS,
        offset,
        attempt: 1,
        at: at(offset as i64),
        took_ms: 3,
        outcome: AttemptOutcome::Delivered { status: 200 },
    }
}

fn failed(offset: u64, attempt: u32, next: AfterFailure) -> AttemptRecord {
    let outcome = AttemptOutcome::Failed {
        status: attempt.is_multiple_of(2).then_some(503),
        reason: "status".into(),
        answer: Bytes::from(format!("busy, attempt {attempt}")),
        next,
    };
    AttemptRecord { attempt, at: at(i64::from(attempt) * 10_000), outcome, ..delivered(offset) }
}

fn open(folder: &TempDir) -> FileNotebook {
    open_with(folder, NotebookSettings::default())
}

fn open_with(folder: &TempDir, settings: NotebookSettings) -> FileNotebook {
    let (path, reports) = (folder.path().join("notebook"), StoreReports::default());
    FileNotebook::open(&path, settings, Arc::new(SystemClock), reports).unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The only slice of a family, and its length.
fn slice_of(folder: &TempDir, family: &str) -> (std::path::PathBuf, u64) {
    let files = std::fs::read_dir(folder.path().join("notebook")).unwrap().map(|entry| entry.unwrap().path());
    let mut files = files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(family));
    let file = files.next().expect("there is a slice");
    assert_eq!(files.next(), None, "there is one slice");
    let len = file.metadata().unwrap().len();
    (file, len)
}

#[tokio::test]
async fn attempts_are_returned_as_noted_in_the_order_of_their_times() {
    let (folder, offset) = (folder(), 1 << 40);
    let notebook = open(&folder);
    let notes = [
        failed(offset, 1, AfterFailure::RetryAt(at(20_000))),
        failed(offset, 2, AfterFailure::DeadLetter),
        failed(offset, 3, AfterFailure::Dropped),
        AttemptRecord { run: 2, at: at(50_000), ..delivered(offset) },
        AttemptRecord {
            run: u32::MAX,
            attempt: u32::MAX,
            took_ms: u32::MAX,
            at: at(60_000),
            outcome: AttemptOutcome::Delivered { status: 204 },
            ..delivered(offset)
        },
    ];
    for note in notes.iter().rev() {
        notebook.note(vec![delivered(offset - 1), note.clone(), delivered(offset + 1)]);
    }
    assert_eq!(notebook.attempts(SUB, ORDERS, offset).await, notes);
    assert_eq!(notebook.attempts(SUB, ORDERS, offset + 2).await, []);
}

#[tokio::test]
async fn attempts_of_others_are_not_shown() {
    let folder = folder();
    let notebook = open(&folder);
    let other_partition = PartitionId::new(ORDERS.topic, 2);
    let other_topic = PartitionId::new(TopicNumber(4), ORDERS.index);
    notebook.note(vec![
        AttemptRecord { subscription: SubscriptionNumber(8), ..delivered(5) },
        AttemptRecord { partition: other_partition, ..delivered(5) },
        AttemptRecord { partition: other_topic, ..delivered(5) },
    ]);
    assert_eq!(notebook.attempts(SUB, ORDERS, 5).await, []);
    notebook.note(vec![delivered(5)]);
    assert_eq!(notebook.attempts(SUB, ORDERS, 5).await, [delivered(5)]);
}

#[tokio::test]
async fn notes_of_every_size_are_returned_from_many_chunks() {
    let folder = folder();
    let notebook = open(&folder);
    let mut seed = 1u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let notes: Vec<AttemptRecord> = (0..4_000)
        .map(|number| {
            let answer = Bytes::from(vec![next(256) as u8; next(4 << 10) as usize]);
            let next_time = at(number * 1_000 + next(1 << 40) as i64);
            let outcome = match next(3) {
                0 => AttemptOutcome::Delivered { status: next(1000) as u16 },
                1 => AttemptOutcome::Delivered { status: 200 },
                _ => {
                    let next = AfterFailure::RetryAt(next_time);
                    AttemptOutcome::Failed { status: None, reason: "ümlaut".into(), answer, next }
                }
            };
            let (run, attempt, took_ms) = (next(3) as u32, 1 + next(4) as u32, next(1 << 32) as u32);
            let offset = next(100);
            AttemptRecord { run, attempt, took_ms, at: at(number), outcome, ..delivered(offset) }
        })
        .collect();
    notes.chunks(100).for_each(|some| notebook.note(some.to_vec()));
    for offset in 0..100 {
        let wanted: Vec<_> = notes.iter().filter(|note| note.offset == offset).cloned().collect();
        assert!(notebook.attempts(SUB, ORDERS, offset).await == wanted, "offset {offset}");
    }
}

#[tokio::test]
async fn an_answer_is_kept_up_to_its_bound() {
    let folder = folder();
    let notebook = open(&folder);
    let answer = Bytes::from(vec![b'x'; whimbrel_model::ports::ANSWER_KEPT_BYTES + 1]);
    let outcome =
        AttemptOutcome::Failed { status: None, reason: "y".repeat(5_000).into(), answer, next: AfterFailure::Dropped };
    notebook.note(vec![AttemptRecord { outcome, ..delivered(1) }]);
    let found = notebook.attempts(SUB, ORDERS, 1).await;
    let AttemptOutcome::Failed { reason, answer, .. } = &found[0].outcome else { panic!("it failed") };
    assert_eq!((reason.len(), answer.len()), (1 << 10, whimbrel_model::ports::ANSWER_KEPT_BYTES));
}

#[tokio::test]
async fn notes_survive_a_restart_and_the_slice_is_continued() {
    let folder = folder();
    let notebook = open(&folder);
    notebook.note(vec![delivered(5)]);
    notebook.note_minute(ORDERS.topic, at(0), MinuteRow { published: 4, ..MinuteRow::default() });
    drop(notebook);
    let notebook = open(&folder);
    notebook.note(vec![failed(5, 9, AfterFailure::Dropped)]);
    assert_eq!(notebook.attempts(SUB, ORDERS, 5).await, [delivered(5), failed(5, 9, AfterFailure::Dropped)]);
    assert_eq!(notebook.minutes(ORDERS.topic, at(0), at(1)).await[0].1.published, 4);
    slice_of(&folder, "attempts");
    slice_of(&folder, "minutes");
}

#[tokio::test]
async fn a_torn_tail_is_cut_wherever_it_was_torn() {
    let folder = folder();
    let notebook = open(&folder);
    notebook.note(vec![delivered(1)]);
    notebook.close().await;
    let (path, whole) = slice_of(&folder, "attempts");
    notebook.note(vec![failed(1, 2, AfterFailure::Dropped)]);
    drop(notebook);
    let bytes = std::fs::read(&path).unwrap();
    for len in (whole as usize..bytes.len()).chain([0, 5]) {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let notebook = open(&folder);
        let expected = if len < whole as usize { vec![] } else { vec![delivered(1)] };
        assert_eq!(notebook.attempts(SUB, ORDERS, 1).await, expected, "{len} bytes are left");
        notebook.note(vec![failed(1, 3, AfterFailure::DeadLetter)]);
        let after = notebook.attempts(SUB, ORDERS, 1).await;
        assert_eq!(after.last(), Some(&failed(1, 3, AfterFailure::DeadLetter)), "a later entry is found");
        drop(notebook);
        slice_of(&folder, "attempts");
    }
}

#[tokio::test]
async fn a_tail_that_was_never_written_is_cut() {
    let folder = folder();
    let notebook = open(&folder);
    notebook.note(vec![delivered(1)]);
    drop(notebook);
    let (path, whole) = slice_of(&folder, "attempts");
    // A machine that loses power may leave a length without its bytes.
    OpenOptions::new().write(true).open(&path).unwrap().set_len(whole + 4096).unwrap();
    let notebook = open(&folder);
    assert_eq!(notebook.attempts(SUB, ORDERS, 1).await, [delivered(1)]);
    notebook.note(vec![delivered(2)]);
    assert_eq!(notebook.attempts(SUB, ORDERS, 2).await, [delivered(2)]);
    assert!(path.metadata().unwrap().len() < whole + 4096, "the tail is cut off before the next chunk");
}

#[tokio::test]
async fn a_slice_of_another_format_is_not_changed() {
    let folder = folder();
    let path = folder.path().join("notebook");
    std::fs::create_dir_all(&path).unwrap();
    let newer = path.join("attempts-1700000000000.slice");
    std::fs::write(&newer, b"WBNOTES\x02and more").unwrap();
    let notebook = open_with(&folder, NotebookSettings { keep: Duration::MAX, ..NotebookSettings::default() });
    notebook.note(vec![delivered(1)]);
    assert_eq!(notebook.attempts(SUB, ORDERS, 1).await, [delivered(1)]);
    assert_eq!(std::fs::read(newer).unwrap(), b"WBNOTES\x02and more");
}

#[tokio::test]
async fn a_success_costs_less_than_ten_bytes() {
    let folder = folder();
    let notebook = open(&folder);
    let notes = (0..10_000u64).map(|number| AttemptRecord {
        // As many in flight, which end out of order.
        took_ms: 20 + (number % 150) as u32,
        ..delivered(5_000_000 + (number ^ 15))
    });
    notebook.note(notes.collect());
    notebook.close().await;
    let (_, len) = slice_of(&folder, "attempts");
    assert!(len < 100_000, "{len} bytes for 10 000 successes");
}

#[tokio::test]
async fn rows_of_one_minute_add_up_and_others_are_apart() {
    let folder = folder();
    let notebook = open(&folder);
    let minute = |number: i64| Timestamp::from_millis(number * 60_000);
    let mut callback = DurationHistogram::default();
    [5, 1_000, 1_000_000].into_iter().for_each(|us| callback.note(us));
    let row = MinuteRow { delivered: 3, callback, ..MinuteRow::default() };
    for number in [-1, 0, 1, 2] {
        notebook.note_minute(ORDERS.topic, minute(number), row.clone());
    }
    notebook.close().await;
    notebook.note_minute(ORDERS.topic, minute(1), row.clone());
    notebook.note_minute(TopicNumber(99), minute(1), row.clone());
    let mut twice = row.clone();
    twice.add(&row);
    let rows = notebook.minutes(ORDERS.topic, minute(0), minute(2)).await;
    assert_eq!(rows, [(minute(0), row.clone()), (minute(1), twice)]);
    assert_eq!(notebook.minutes(ORDERS.topic, minute(-1), minute(0)).await, [(minute(-1), row)]);
    assert_eq!(notebook.minutes(ORDERS.topic, minute(2), minute(2)).await, []);
}

#[test]
fn a_full_heap_drops_notes_and_never_waits() {
    // No thread takes from this heap.
    let notebook = FileNotebook { heap: Arc::default(), reports: slice_reports(), thread: Mutex::new(None) };
    let notes: Vec<_> = (0..100_000).map(delivered).collect();
    (0..20).for_each(|_| notebook.note(notes.clone()));
    assert_eq!(notebook.heap.waiting().note_count, 500_000);
    let answer = Bytes::from(vec![0; 16 << 10]);
    let outcome = AttemptOutcome::Failed { status: None, reason: "".into(), answer, next: AfterFailure::Dropped };
    (0..5_000).for_each(|_| notebook.note(vec![AttemptRecord { outcome: outcome.clone(), ..delivered(1) }]));
    assert_eq!(notebook.heap.waiting().note_bytes, BYTES_WAITING_MAX);
    (0..100_000).for_each(|_| notebook.note_minute(ORDERS.topic, at(0), MinuteRow::default()));
    assert_eq!(notebook.heap.waiting().minutes.len(), MINUTES_WAITING_MAX);
}

#[tokio::test]
async fn beyond_the_bound_the_oldest_slices_are_deleted() {
    let folder = folder();
    let bytes_max = 256 << 10;
    let settings = NotebookSettings { attempts_bytes_max: bytes_max, ..NotebookSettings::default() };
    let notebook = open_with(&folder, settings);
    let answer = |offset: u64| Bytes::from(vec![offset as u8; 8 << 10]);
    for offset in 0..100 {
        let next = AfterFailure::Dropped;
        let outcome = AttemptOutcome::Failed { status: None, reason: "".into(), answer: answer(offset), next };
        notebook.note(vec![AttemptRecord { outcome, ..delivered(offset) }]);
        notebook.close().await;
    }
    let entries = std::fs::read_dir(folder.path().join("notebook")).unwrap();
    let total: u64 = entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(total <= bytes_max + (16 << 10), "{total}");
    let mut kept = Vec::new();
    for offset in 0..100 {
        kept.extend(notebook.attempts(SUB, ORDERS, offset).await.iter().map(|note| note.offset));
    }
    assert!(kept.len() >= 16, "most of the bound is used: {kept:?}");
    assert!(kept.is_sorted() && kept.last() == Some(&99) && kept[0] == 100 - kept.len() as u64, "{kept:?}");
}

fn slice_reports() -> SliceReports {
    SliceReports::new(StoreReport::of_optional(StoreReports::default(), STORE))
}

fn shelf(folder: &TempDir, bytes_max: u64) -> Shelf {
    let (slice_time, keep) = (Duration::from_secs(600), Duration::from_secs(3600));
    Shelf::new(folder.path(), "attempts", ShelfSettings { slice_time, bytes_max, keep }, slice_reports())
}

fn moment(ms: i64) -> Moment {
    Moment { now: at(ms), expiry: at(ms) }
}

#[test]
fn a_slice_ends_after_its_duration_and_is_deleted_when_it_expires() {
    let (folder, mut minutes) = (folder(), 0);
    let mut shelf = shelf(&folder, 1 << 30);
    let mut counts = Vec::new();
    while minutes < 120 {
        shelf.append(b"chunk", moment(minutes * 60_000)).unwrap();
        counts.push(shelf.seen().len());
        minutes += 5;
    }
    assert_eq!(counts[..6], [1, 1, 2, 2, 3, 3]);
    assert_eq!(counts.last(), Some(&7), "an hour, and the slice that it began in");
    assert_eq!(shelf.seen()[0].begins, at(50 * 60_000));
}

#[test]
fn slices_stay_in_order_when_the_clock_is_set_back() {
    let folder = folder();
    let mut shelf = shelf(&folder, 1 << 20);
    // More than the size of one slice of such a shelf.
    let full = vec![0; 80 << 10];
    for time in [0, 500_000, 100_000, 500_002] {
        shelf.append(&full, moment(time)).unwrap();
    }
    let begins: Vec<_> = shelf.seen().iter().map(|slice| slice.begins).collect();
    assert_eq!(begins, [at(0), at(500_000), at(500_001), at(500_002)]);
}

#[test]
fn no_slice_is_too_old_while_the_clock_is_in_doubt() {
    let folder = folder();
    let mut shelf = shelf(&folder, 1 << 30);
    shelf.append(b"chunk", moment(0)).unwrap();
    let in_eight_days = at(8 * 86_400_000);
    shelf.append(b"chunk", Moment { now: in_eight_days, expiry: at(1_000) }).unwrap();
    shelf.append(b"chunk", Moment { now: in_eight_days, expiry: at(1_000) }).unwrap();
    assert_eq!(shelf.seen().len(), 2, "the old slice is still there");
    // The old slice ends where the next one begins, and is kept for an hour after that.
    let expiry = at(8 * 86_400_000 + 2 * 3_600_000);
    shelf.append(b"chunk", Moment { now: in_eight_days, expiry }).unwrap();
    assert_eq!(shelf.seen().len(), 1);
}
