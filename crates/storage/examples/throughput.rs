//! Measures the throughput of the log alone: durable appends in batches with checkpoints, then sequential reads. Compares both with the
//! device.
//!
//! `cargo run --release -p whimbrel-storage --example throughput -- [seconds] [partitions] [folder]`

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use whimbrel_storage::disk::RealDisk;
use whimbrel_storage::{
    DataFolder, LogRecord, LogReply, LogSettings, LogStore, LogTicket, LogWrite, PartitionKey, WallClock, WritePart,
};

const RECORDS_PER_BATCH: u32 = 1000;
const VALUE_BYTES: usize = 100;
const BATCHES_IN_FLIGHT: usize = 16;
const APPENDING_THREADS: u32 = 2;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u32| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (seconds, partitions) = (number(20), number(4));
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(folder).expect("a temporary folder can be made");
    let device = device_bandwidth(folder.path());
    let data = Arc::new(DataFolder::open(Arc::new(RealDisk::new()), folder.path().join("data").as_path()).unwrap());
    let (store, _) =
        LogStore::open(data, LogSettings::default(), Arc::new(WallClock), Box::new(|event| eprintln!("{event:?}")))
            .unwrap();
    let store = Arc::new(store);
    store.create_partitions(1, partitions).unwrap();

    let (appended, encoded_bytes, elapsed) = append(&store, partitions, Duration::from_secs(seconds.into()));
    let rate = appended as f64 / elapsed.as_secs_f64();
    // Every byte is written twice: to the journal and to its segment.
    let written = 2.0 * encoded_bytes as f64 / elapsed.as_secs_f64() / 1e6;
    println!("device, sequential, new space            {device:>12.0} MB/s");
    println!(
        "appended, durable, {seconds} s, {partitions} partitions    {rate:>12.0} records/s of {VALUE_BYTES} bytes"
    );
    println!("journal and segments together            {written:>12.0} MB/s, {:.2} of the device", written / device);
    let (read, elapsed) = read_all(&store, partitions);
    println!("read sequentially                        {:>12.0} records/s", read as f64 / elapsed.as_secs_f64());
}

/// Writes and syncs a new file.
fn device_bandwidth(folder: &Path) -> f64 {
    const FILE_BYTES: u64 = 1 << 30;
    let path = folder.join("device");
    let file = File::create(&path).expect("a file can be made");
    let chunk = vec![7; 1 << 20];
    let begun = Instant::now();
    for position in (0..FILE_BYTES).step_by(chunk.len()) {
        file.write_all_at(&chunk, position).expect("the disk has room");
    }
    file.sync_data().expect("the disk can be synced");
    let bandwidth = FILE_BYTES as f64 / begun.elapsed().as_secs_f64() / 1e6;
    std::fs::remove_file(path).ok();
    bandwidth
}

fn append(store: &Arc<LogStore>, partitions: u32, time: Duration) -> (u64, u64, Duration) {
    let (stop, appended, bytes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    thread::scope(|scope| {
        for thread in 0..APPENDING_THREADS {
            let (stop, appended, bytes) = (&stop, &appended, &bytes);
            scope.spawn(move || {
                let mut in_flight: VecDeque<LogTicket> = VecDeque::new();
                let mut partition = thread % partitions;
                while !stop.load(Ordering::Relaxed) {
                    let part = batch(PartitionKey { topic: 1, partition });
                    bytes.fetch_add(part.records.len() as u64, Ordering::Relaxed);
                    in_flight.push_back(store.submit(LogWrite::Append(vec![part])).expect("the queue has room"));
                    partition = (partition + APPENDING_THREADS) % partitions;
                    if in_flight.len() == BATCHES_IN_FLIGHT {
                        finish(in_flight.pop_front(), appended);
                    }
                }
                in_flight.into_iter().for_each(|ticket| finish(Some(ticket), appended));
            });
        }
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    (appended.into_inner(), bytes.into_inner(), begun.elapsed())
}

fn batch(partition: PartitionKey) -> WritePart {
    let value = [b'x'; VALUE_BYTES];
    let mut records = Vec::with_capacity(RECORDS_PER_BATCH as usize * (VALUE_BYTES + 20));
    for _ in 0..RECORDS_PER_BATCH {
        LogRecord::encode(&mut records, 1, None, &[], &value);
    }
    WritePart { partition, count: RECORDS_PER_BATCH, max_timestamp: 1, records }
}

fn finish(ticket: Option<LogTicket>, appended: &AtomicU64) {
    match ticket.map(LogTicket::wait) {
        Some(LogReply::Appended(_)) | None => appended.fetch_add(RECORDS_PER_BATCH.into(), Ordering::Relaxed),
        Some(other) => panic!("{other:?}"),
    };
}

fn read_all(store: &LogStore, partitions: u32) -> (u64, Duration) {
    const READ_BYTES: usize = 1 << 20;
    let begun = Instant::now();
    let mut read = 0;
    for partition in 0..partitions {
        let key = PartitionKey { topic: 1, partition };
        let (mut next, end) = store.bounds(key).unwrap();
        while next < end {
            let batches = store.read(key, next, READ_BYTES).unwrap();
            for batch in &batches.batches {
                read += batch.records().map(|(_, record)| u64::from(record.value.len() == VALUE_BYTES)).sum::<u64>();
            }
            next = batches.next;
        }
    }
    (read, begun.elapsed())
}
