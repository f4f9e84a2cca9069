//! A data folder that is removed when the test ends, and short functions for appends and reads.

#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

mod unsynced;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub use unsynced::{DiskCall, UnsyncedDisk};
use whimbrel_storage::disk::RealDisk;
use whimbrel_storage::{
    Core, DataFolder, LogEvent, LogRecord, LogRecovery, LogReply, LogSettings, LogStore, LogWrite, OpenError,
    PartitionKey, WallClock, WritePart,
};

pub struct Folder(tempfile::TempDir);

pub type Events = Arc<Mutex<Vec<LogEvent>>>;

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A copy of the folder as it is on the disk now, as after a kill of the process.
    pub fn copy(&self) -> Self {
        let copy = Self::new();
        copy_tree(self.path(), copy.path());
        copy
    }

    pub fn try_folder(&self) -> Result<DataFolder, OpenError> {
        DataFolder::open(Arc::new(RealDisk::new()), self.path())
    }

    /// The log without its threads, the result of its recovery, and its events. The disk is not synced: these tests do not cut the power.
    pub fn core(&self, settings: LogSettings) -> (Core, LogRecovery, Events) {
        self.core_on(UnsyncedDisk::default(), settings)
    }

    /// The same on another disk.
    pub fn core_on(&self, disk: UnsyncedDisk, settings: LogSettings) -> (Core, LogRecovery, Events) {
        let events = Events::default();
        let reported = events.clone();
        let on_event = Box::new(move |event| reported.lock().unwrap().push(event));
        let folder = Arc::new(DataFolder::open(Arc::new(disk), self.path()).unwrap());
        let (core, recovered) = Core::open(folder, settings, 0, on_event).unwrap();
        (core, recovered, events)
    }

    /// The files of a folder with this suffix, in the order of their names.
    pub fn files(&self, folder: &str, suffix: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path().join(folder)).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.to_string_lossy().ends_with(suffix));
        files.sort();
        files
    }

    /// The segments of partition 0 of topic 1.
    pub fn segments(&self) -> Vec<PathBuf> {
        self.files("log/topics/1/0", ".segment")
    }

    /// The first file of the journal.
    pub fn journal(&self) -> PathBuf {
        self.files("log/journal", ".journal").remove(0)
    }

    pub fn unsynced_folder(&self) -> DataFolder {
        DataFolder::open(Arc::new(UnsyncedDisk::default()), self.path()).unwrap()
    }

    pub fn store(&self, settings: LogSettings) -> LogStore {
        let folder = Arc::new(self.try_folder().unwrap());
        LogStore::open(folder, settings, Arc::new(WallClock), Box::new(|_| {})).unwrap().0
    }
}

/// The log of a folder without its threads, on a disk that is not synced.
pub fn core_at(path: &Path, settings: LogSettings) -> Core {
    let folder = DataFolder::open(Arc::new(UnsyncedDisk::default()), path).unwrap();
    Core::open(Arc::new(folder), settings, 0, Box::new(|_| {})).unwrap().0
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub fn flip(path: &Path, position: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[position] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

/// Settings whose files are small enough for tests.
pub fn small() -> LogSettings {
    LogSettings {
        frame_bytes_max: 256 << 10,
        frame_bytes_target: 64 << 10,
        journal_file_bytes: 1 << 20,
        journal_bytes_max: 16 << 20,
        checkpoint_bytes: 2 << 20,
        segment_bytes: 64 << 10,
        index_interval_bytes: 4096,
        unsaved_bytes_max: 4 << 20,
        disk_reserve_bytes: 0,
        ..LogSettings::default()
    }
}

pub fn key(topic: u32, partition: u32) -> PartitionKey {
    PartitionKey { topic, partition }
}

/// Records with the given values. The time of each is its offset times ten.
pub fn part(partition: PartitionKey, from: u64, texts: &[&str]) -> WritePart {
    let mut records = Vec::new();
    for (offset, text) in (from..).zip(texts) {
        LogRecord::encode(&mut records, offset as i64 * 10, None, &[], text.as_bytes());
    }
    let max_timestamp = (from as i64 + texts.len() as i64 - 1) * 10;
    WritePart { partition, count: texts.len() as u32, max_timestamp, records }
}

/// Appends and returns the first offset.
pub fn append(store: &LogStore, partition: PartitionKey, texts: &[&str]) -> u64 {
    let (_, next) = store.bounds(partition).unwrap();
    match store.submit(LogWrite::Append(vec![part(partition, next, texts)])).unwrap().wait() {
        LogReply::Appended(offsets) => offsets[0].clone().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The text of a record of about 100 bytes that has its offset.
pub fn text(offset: u64) -> String {
    format!("record {offset} {}", "x".repeat(100))
}

/// Commits records with the [`text`]s of their offsets in one frame.
pub fn commit_texts(core: &Core, partition: PartitionKey, from: u64, count: u64) {
    let texts: Vec<String> = (from..from + count).map(text).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let outcome = core.commit(&[LogWrite::Append(vec![part(partition, from, &texts)])]).remove(0);
    assert_eq!(outcome, LogReply::Appended(vec![Ok(from)]));
}

/// All values from an offset on.
pub fn values(core: &Core, partition: PartitionKey, from: u64) -> Vec<String> {
    let (mut next, mut values) = (from, Vec::new());
    loop {
        let read = core.read(partition, next, 10_000).unwrap();
        if read.batches.is_empty() {
            return values;
        }
        for batch in &read.batches {
            let records = batch.records().filter(|(offset, _)| *offset >= next);
            values.extend(records.map(|(_, record)| String::from_utf8(record.value.to_vec()).unwrap()));
        }
        next = read.next;
    }
}
