//! Measures the steps of a publish, each alone: encoding, checksums, a group commit on the real disk, reads from memory.

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use whimbrel_storage::disk::RealDisk;
use whimbrel_storage::{Core, DataFolder, LogRecord, LogSettings, LogWrite, PartitionKey, WritePart, format};

fn part(partition: u32, count: u32, value: &[u8]) -> WritePart {
    let mut records = Vec::new();
    for _ in 0..count {
        LogRecord::encode(&mut records, 1, Some(b"key"), &[], value);
    }
    WritePart { partition: PartitionKey { topic: 1, partition }, count, max_timestamp: 1, records }
}

fn core(folder: &std::path::Path, partitions: u32) -> Core {
    let data = DataFolder::open(Arc::new(RealDisk::new()), folder).expect("a temporary folder can be opened");
    let (core, _) =
        Core::open(Arc::new(data), LogSettings::default(), 0, Box::new(|_| {})).expect("an empty folder opens");
    core.create_partitions(1, partitions).expect("partitions can be made");
    core
}

fn encoding(criterion: &mut Criterion) {
    let value = [b'x'; 256];
    let mut buffer = Vec::with_capacity(1 << 20);
    criterion.bench_function("encode one record of 256 bytes", |bencher| {
        bencher.iter(|| {
            buffer.clear();
            LogRecord::encode(&mut buffer, 1, Some(b"key"), &[], black_box(&value));
        });
    });
    let mebibyte = Bytes::from(vec![7; 1 << 20]);
    let mut group = criterion.benchmark_group("checksum");
    group.throughput(Throughput::Bytes(mebibyte.len() as u64));
    group.bench_function("1 MiB", |bencher| bencher.iter(|| format::crc(black_box(&mebibyte))));
    group.finish();
}

fn committing(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let core = core(folder.path(), 64);
    let value = [b'x'; 256];
    let mut group = criterion.benchmark_group("one group commit, synced");
    for (name, works, partitions) in
        [("1 publish", 1, 1), ("64 publishes, 1 partition", 64, 1), ("64 publishes, 64 partitions", 64, 64)]
    {
        let works: Vec<LogWrite> =
            (0..works).map(|n| LogWrite::Append(vec![part(n % partitions, 1, &value)])).collect();
        group.throughput(Throughput::Elements(works.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| core.commit(black_box(&works)));
            core.checkpoint(0, &mut || {}).expect("the disk has room");
        });
    }
    group.finish();
}

fn reading(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let core = core(folder.path(), 1);
    core.commit(&[LogWrite::Append(vec![part(0, 1000, &[b'x'; 100])])]);
    let key = PartitionKey { topic: 1, partition: 0 };
    let mut group = criterion.benchmark_group("read from memory");
    group.throughput(Throughput::Elements(1000));
    group.bench_function("1000 records of 100 bytes", |bencher| {
        bencher.iter(|| {
            let read = core.read(key, 0, 1 << 20).expect("it was just written");
            read.batches.iter().flat_map(|batch| batch.records()).map(|(_, record)| record.value.len()).sum::<usize>()
        });
    });
    group.finish();
}

criterion_group!(benches, encoding, committing, reading);
criterion_main!(benches);
