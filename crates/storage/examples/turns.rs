//! Measures the latency of a small append and a large commit: each alone, and both together.
//!
//! `cargo run --release -p whimbrel-storage --example turns -- [seconds] [folder]`

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use whimbrel_storage::disk::RealDisk;
use whimbrel_storage::{
    DataFolder, LogRecord, LogReply, LogSettings, LogStore, LogWrite, PartitionKey, WallClock, WritePart,
};

const APPEND_BYTES: usize = 100;
const COMMIT_BYTES: usize = 256 << 10;
const COMMITTING_THREADS: u32 = 16;
const APPENDING_THREADS: u32 = 16;
const FENCE: &str = "shard";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(5);
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(folder).expect("a temporary folder can be made");
    let data = Arc::new(DataFolder::open(Arc::new(RealDisk::new()), folder.path().join("data").as_path()).unwrap());
    let (store, _) =
        LogStore::open(data, LogSettings::default(), Arc::new(WallClock), Box::new(|event| eprintln!("{event:?}")))
            .unwrap();
    store.create_partitions(1, COMMITTING_THREADS + APPENDING_THREADS).unwrap();
    let Ok(LogReply::FenceOpened(token)) = store.submit(LogWrite::OpenFence(FENCE.into())).map(|ticket| ticket.wait())
    else {
        panic!("a fence opens");
    };
    let append = |partition| LogWrite::Append(vec![part(partition, APPEND_BYTES)]);
    let commit =
        |bytes| move |partition| LogWrite::Commit { fence: FENCE.into(), token, parts: vec![part(partition, bytes)] };
    let time = Duration::from_secs(seconds);
    let run = |what: &str, works: &[(u32, &(dyn Fn(u32) -> LogWrite + Sync))]| {
        println!("{what}");
        for (times, (threads, _)) in measure(&store, time, works).into_iter().zip(works) {
            print(times, *threads, time);
        }
    };
    run("small appends, one caller", &[(1, &append)]);
    run("small commits, one caller", &[(1, &commit(APPEND_BYTES))]);
    run("large commits", &[(COMMITTING_THREADS, &commit(COMMIT_BYTES))]);
    run(
        "small appends beside large commits",
        &[(APPENDING_THREADS, &append), (COMMITTING_THREADS, &commit(COMMIT_BYTES))],
    );
}

fn part(partition: u32, bytes: usize) -> WritePart {
    let mut records = Vec::with_capacity(bytes + 20);
    LogRecord::encode(&mut records, 1, None, &[], &vec![b'x'; bytes]);
    WritePart { partition: PartitionKey { topic: 1, partition }, count: 1, max_timestamp: 1, records }
}

/// Runs each kind of request on its threads, with one outstanding request per thread. Returns the latencies.
fn measure(store: &LogStore, time: Duration, works: &[(u32, &(dyn Fn(u32) -> LogWrite + Sync))]) -> Vec<Vec<Duration>> {
    let stop = AtomicBool::new(false);
    let mut first_partition = 0;
    thread::scope(|scope| {
        let mut kinds = Vec::new();
        for (threads, work) in works {
            let partitions = first_partition..first_partition + threads;
            first_partition += threads;
            let callers: Vec<_> = partitions
                .map(|partition| {
                    let stop = &stop;
                    scope.spawn(move || {
                        let mut times = Vec::new();
                        while !stop.load(Ordering::Relaxed) {
                            let work = work(partition);
                            let begun = Instant::now();
                            match store.submit(work).map(|ticket| ticket.wait()) {
                                Ok(LogReply::Appended(_) | LogReply::Committed(_)) => times.push(begun.elapsed()),
                                other => panic!("{other:?}"),
                            }
                        }
                        times
                    })
                })
                .collect();
            kinds.push(callers);
        }
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let times = |callers: Vec<thread::ScopedJoinHandle<'_, Vec<Duration>>>| {
            callers.into_iter().flat_map(|caller| caller.join().expect("a caller does not panic")).collect()
        };
        kinds.into_iter().map(times).collect()
    })
}

fn print(mut times: Vec<Duration>, threads: u32, time: Duration) {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let rate = times.len() as f64 / time.as_secs_f64();
    println!(
        "  {threads:>3} callers: {rate:>8.0}/s, p50 {:>9.1?}, p99 {:>9.1?}, longest {:>9.1?}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
