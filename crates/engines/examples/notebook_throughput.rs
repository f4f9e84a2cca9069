//! Measures the notebook: notes written per second, the cost of a note for its caller, and the time of a look-up.
//!
//! ```text
//! cargo run --release -p whimbrel-engines --no-default-features --example notebook_throughput -- [notes] [folder]
//! ```
//!
//! The folder is emptied first; without one a temporary folder is taken.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use whimbrel_engines::embedded::{FileNotebook, NotebookSettings, StoreReports};
use whimbrel_model::ports::{AfterFailure, AttemptOutcome, AttemptRecord, AttemptStore};
use whimbrel_model::{PartitionId, SubscriptionNumber, Timestamp, TopicNumber};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const START_MS: i64 = 1_800_000_000_000;
const SUBSCRIPTIONS: u64 = 8;
const PARTITIONS: u64 = 4;
/// Notes per call, as a dispatcher hands them over.
const TOGETHER: u64 = 64;
/// One of this many notes is a failure, with an answer of `ANSWER_BYTES`.
const FAILED_EVERY: u64 = 1_000;
const ANSWER_BYTES: usize = 512;
/// The maximum number of notes before the caller waits for the notebook's writes: the notebook drops notes beyond its bound.
const AHEAD_MAX: u64 = 256 << 10;
const LOOKS: u64 = 20;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let notes: u64 = arguments.next().map_or(10_000_000, |text| text.parse().expect("a number of notes"));
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let folder = arguments.next().map_or(temporary.path().join("notebook"), PathBuf::from);
    let _ = std::fs::remove_dir_all(&folder);
    let clock = std::sync::Arc::new(whimbrel_model::SystemClock);
    let notebook = FileNotebook::open(&folder, NotebookSettings::default(), clock, StoreReports::default())
        .expect("the thread starts");

    let (began, mut noting, mut ahead) = (Instant::now(), Duration::ZERO, 0);
    for first in (0..notes).step_by(TOGETHER as usize) {
        let some: Vec<_> = (first..notes.min(first + TOGETHER)).map(note).collect();
        let asked = Instant::now();
        notebook.note(some);
        noting += asked.elapsed();
        ahead += TOGETHER;
        if ahead >= AHEAD_MAX {
            notebook.close().await;
            ahead = 0;
        }
    }
    notebook.close().await;
    let took = began.elapsed();
    let files = std::fs::read_dir(&folder).expect("the folder is there");
    let bytes: u64 = files.flatten().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
    println!("{notes} notes in {took:.2?}: {:.2} M/s, making them included", notes as f64 / took.as_secs_f64() / 1e6);
    println!("a call with {TOGETHER} of them took {:.0} ns", noting.as_nanos() as f64 / (notes / TOGETHER) as f64);
    println!(
        "{:.1} MB are kept, {:.1} bytes a note where nothing was dropped",
        bytes as f64 / 1e6,
        bytes as f64 / notes as f64
    );

    let mut looks: Vec<Duration> = Vec::new();
    for number in 0..LOOKS {
        let wanted = note(notes - 1 - number * (notes / LOOKS));
        let asked = Instant::now();
        let found = notebook.attempts(wanted.subscription, wanted.partition, wanted.offset).await;
        looks.push(asked.elapsed());
        assert!(number > 0 || found == [wanted], "the newest note is there");
    }
    looks.sort();
    println!("a look-up took {:.1?} in the middle, {:.1?} at most", looks[looks.len() / 2], looks[looks.len() - 1]);
}

fn note(number: u64) -> AttemptRecord {
    let group = number / TOGETHER % (SUBSCRIPTIONS * PARTITIONS);
    let outcome = if number.is_multiple_of(FAILED_EVERY) {
        let (answer, next) = (Bytes::from(vec![b'x'; ANSWER_BYTES]), AfterFailure::DeadLetter);
        AttemptOutcome::Failed { status: Some(500), reason: "status".into(), answer, next }
    } else {
        AttemptOutcome::Delivered { status: 200 }
    };
    AttemptRecord {
        subscription: SubscriptionNumber((group / PARTITIONS) as u32),
        run: 1,
        partition: PartitionId::new(TopicNumber(3), (group % PARTITIONS) as u32),
        offset: number,
        attempt: 1,
        at: Timestamp::from_millis(START_MS + (number / 100) as i64),
        took_ms: (number % 200) as u32,
        outcome,
    }
}
