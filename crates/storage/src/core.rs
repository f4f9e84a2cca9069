//! The log without its threads. Every operation is a call that runs to its end.
//!
//! [`LogStore`](crate::LogStore) runs the log on two threads; the simulator runs it on none. One commit and one keeper call (a checkpoint,
//! retention) may run at the same time. Reads run beside both.
//!
//! State, and the operations that change it:
//! - `journal`: commits. A checkpoint trims it.
//! - `partitions`: creation and deletion change the map. Each partition has its own lock.
//! - `dirty`: partitions with batches that are not in segments, each once. Commits add them, the keeper takes them.
//! - `recent`: frames that are still in memory. Commits add them. Commits and the keeper evict saved frames above the limit.
//! - `refusal`: the reason why the log rejects appends. `Poisoned` is permanent, `Full` is temporary.

mod commit;
mod keeper;
mod open;
mod scrub;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::checkpoint::Checkpoint;
use crate::disk::Disk;
use crate::error::{AppendError, LogDamage, ReadError};
use crate::fallback::Replacement;
use crate::folder::DataFolder;
use crate::journal::{JournalSlots, LogJournal};
use crate::partition::{LogPartition, LogRead, OffsetArrival};
use crate::segment::BatchScope;
use crate::{LogSettings, PartitionKey};

pub use commit::{LogReply, LogWrite, WritePart};
pub use keeper::TopicRetention;
pub use open::LogRecovery;
pub use scrub::{ColdSegment, ScrubResult};

/// Limit of reported damaged places, each reported once. More reports do not help: the disk is broken.
const REPORTED_MAX: usize = 1000;

/// An incident for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// Damage, with its partition if that is known.
    Damaged(LogDamage, Option<PartitionKey>),
    /// Retention could not read, seal or remove a segment, and continued with the others. Emitted once until it is readable again.
    SegmentUnreadable {
        key: PartitionKey,
        file: PathBuf,
        error: String,
    },
    /// A small file was damaged or missing at the start. Its second file is used.
    FileReplaced(Replacement),
    DiskFull(String),
    DiskHasRoom,
    /// File descriptors or memory are short, so segments or a checkpoint could not be written. Emitted once until a checkpoint succeeds.
    Delayed(String),
    Poisoned(String),
}

/// The receiver of events. It must not block.
pub type OnEvent = Box<dyn Fn(LogEvent) + Send + Sync>;

pub struct Core {
    settings: LogSettings,
    disk: Arc<dyn Disk>,
    /// The folder of the log, below the data folder.
    root: PathBuf,
    slots: Arc<JournalSlots>,
    journal: Mutex<JournalState>,
    partitions: RwLock<HashMap<PartitionKey, Arc<LogPartition>>>,
    dirty: Mutex<Vec<Arc<LogPartition>>>,
    recent: Mutex<RecentFrames>,
    /// The last frame whose batches are all in their partitions.
    published: AtomicU64,
    /// The segments contain every frame up to this one, synced or not.
    saved: AtomicU64,
    /// Bytes of batches that are not in segments. Below zero for a moment if the keeper counts before the commit does.
    unsaved_bytes: AtomicI64,
    bytes_since_checkpoint: AtomicU64,
    /// Held during a checkpoint or a retention pass: only one of them runs at a time.
    keeping: Mutex<()>,
    /// Files that were written and not synced. Only a checkpoint that has synced them removes them. On disks that sync file by file, a
    /// power loss takes a file that is missing here.
    touched: Mutex<BTreeSet<PathBuf>>,
    /// The checkpoint on the disk.
    last_checkpoint: Mutex<Option<Checkpoint>>,
    /// Held while topics are created or deleted. A checkpoint need not wait for it: a partition created after the marks were taken has only
    /// later frames, and a deleted partition has no mark.
    changing_topics: Mutex<()>,
    refusal: Mutex<Option<RejectReason>>,
    /// The delay of writes was reported.
    delay_reported: AtomicBool,
    /// Reported damage. A reader that meets it again does not report it again.
    reported: Mutex<HashSet<(String, u64)>>,
    /// Files that the last retention pass could not read.
    unreadable: Mutex<HashSet<PathBuf>>,
    retention: RwLock<HashMap<u32, TopicRetention>>,
    on_event: OnEvent,
    /// The last field, so that the lock on the folder is released after everything else is dropped.
    folder: Arc<DataFolder>,
}

struct JournalState {
    /// `None` until the generation of this start is durable. On a full disk that may take a while.
    journal: Option<LogJournal>,
    /// The generation with which the journal must begin.
    generation: u64,
    last_sequence: u64,
    /// The token of the newest fence of each name. Tokens need not be durable: a restart voids all of them.
    fences: HashMap<String, u64>,
    fence_tokens: u64,
}

#[derive(Default)]
struct RecentFrames {
    frames: VecDeque<RecentFrame>,
    bytes: u64,
}

struct RecentFrame {
    sequence: u64,
    bytes: u64,
    partitions: Vec<Arc<LogPartition>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RejectReason {
    Full(String),
    Poisoned(String),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub fn settings(&self) -> &LogSettings {
        &self.settings
    }

    fn topic_folder(&self, topic: u32) -> PathBuf {
        self.root.join("topics").join(topic.to_string())
    }

    fn checkpoint_path(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// Creates the missing partitions of `0..partitions` of a topic. They are durable when the call returns. The number of a deleted topic
    /// must not be used again: until the next checkpoint, the old topic's marks would apply to the new one.
    pub fn create_partitions(&self, topic: u32, partitions: u32) -> io::Result<()> {
        let _changing = lock(&self.changing_topics);
        let folder = self.topic_folder(topic);
        let missing: Vec<PartitionKey> = {
            let known = self.partitions.read().unwrap_or_else(PoisonError::into_inner);
            let keys = (0..partitions).map(|partition| PartitionKey { topic, partition });
            keys.filter(|key| !known.contains_key(key)).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        for key in &missing {
            self.disk.create_dirs(&folder.join(key.partition.to_string()))?;
        }
        self.disk.sync_dir(&folder)?;
        self.disk.sync_dir(&self.root.join("topics"))?;
        let mut known = self.partitions.write().unwrap_or_else(PoisonError::into_inner);
        for key in missing {
            let folder = folder.join(key.partition.to_string());
            let of = BatchScope { secret: self.folder.secret, key };
            known.insert(key, Arc::new(LogPartition::new(of, folder, self.disk.clone(), &self.settings)));
        }
        Ok(())
    }

    /// Deletes a topic with all its partitions. After a crash the topic exists completely or not at all. After an error it is unchanged,
    /// unless the log was closed for writing.
    pub fn delete_topic(&self, topic: u32) -> io::Result<()> {
        let _changing = lock(&self.changing_topics);
        let folder = self.topic_folder(topic);
        let doomed = folder.with_extension("deleted");
        let partitions: Vec<Arc<LogPartition>> =
            self.all_partitions().into_iter().filter(|partition| partition.key.topic == topic).collect();
        {
            // The folder is renamed while nothing writes to it. Only then are the partitions removed from the map: a checkpoint without
            // them would lose their records, also if the rename failed.
            let held: Vec<_> = partitions.iter().map(|partition| partition.hold()).collect();
            if self.disk.exists(&folder)? {
                self.disk.rename(&folder, &doomed)?;
            }
            let mut known = self.partitions.write().unwrap_or_else(PoisonError::into_inner);
            known.retain(|key, _| key.topic != topic);
            drop(known);
            for partition in &held {
                self.unsaved_bytes.fetch_sub(partition.delete() as i64, Ordering::Relaxed);
            }
        }
        self.retention.write().unwrap_or_else(PoisonError::into_inner).remove(&topic);
        if let Err(error) = self.disk.sync_dir(&self.root.join("topics")) {
            self.poison("deleting a topic", &error);
            return Err(error);
        }
        if let Err(error) = self.disk.remove_dirs(&doomed) {
            tracing::warn!(%error, "the files of a deleted topic could not be removed; the next start tries again");
        }
        Ok(())
    }

    /// The existing partitions, in no order.
    pub fn partition_keys(&self) -> Vec<PartitionKey> {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// The number of partitions of a topic.
    pub fn partition_count(&self, topic: u32) -> u32 {
        let known = self.partitions.read().unwrap_or_else(PoisonError::into_inner);
        known.keys().filter(|key| key.topic == topic).count() as u32
    }

    fn partition(&self, key: PartitionKey) -> Option<Arc<LogPartition>> {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    fn known_partition(&self, key: PartitionKey) -> Result<Arc<LogPartition>, ReadError> {
        self.partition(key).ok_or(ReadError::UnknownPartition(key))
    }

    fn all_partitions(&self) -> Vec<Arc<LogPartition>> {
        let known = self.partitions.read().unwrap_or_else(PoisonError::into_inner);
        let mut partitions: Vec<Arc<LogPartition>> = known.values().cloned().collect();
        drop(known);
        // A fixed order, so that the same calls do the same to the disk.
        partitions.sort_unstable_by_key(|partition| partition.key);
        partitions
    }

    /// Reads from memory only. Returns `None` if the records are on disk only; [`Core::read`] reads those.
    pub fn read_memory(&self, key: PartitionKey, from: u64, max_bytes: usize) -> Result<Option<LogRead>, ReadError> {
        self.known_partition(key)?.read_memory(from, max_bytes)
    }

    /// Reads batches from an offset on: at least one if there is one, then as many as fit. May block on the disk.
    pub fn read(&self, key: PartitionKey, from: u64, max_bytes: usize) -> Result<LogRead, ReadError> {
        let read = self.known_partition(key)?.read(from, max_bytes);
        if let Err(ReadError::Damaged(damage)) = &read {
            self.report_damage(damage, Some(key));
        }
        read
    }

    fn report_damage(&self, damage: &LogDamage, partition: Option<PartitionKey>) {
        let mut reported = lock(&self.reported);
        if reported.len() < REPORTED_MAX && reported.insert((damage.file.clone(), damage.position)) {
            drop(reported);
            (self.on_event)(LogEvent::Damaged(damage.clone(), partition));
        }
    }

    /// Resolves when `from` can be read, or never can be.
    pub fn arrival(&self, key: PartitionKey, from: u64) -> Result<OffsetArrival, ReadError> {
        Ok(OffsetArrival::new(self.known_partition(key)?, from))
    }

    /// The first kept offset and the next offset.
    pub fn bounds(&self, key: PartitionKey) -> Result<(u64, u64), ReadError> {
        Ok(self.known_partition(key)?.bounds())
    }

    /// The offset of the first record at or after a time, in milliseconds. May block on the disk.
    pub fn offset_at(&self, key: PartitionKey, time: i64) -> Result<u64, ReadError> {
        self.known_partition(key)?.offset_at(time)
    }

    /// The latest time of the records that partitions have in memory or in the segment that is being written, in milliseconds.
    pub fn latest_time(&self) -> Option<i64> {
        self.all_partitions().iter().filter_map(|partition| partition.latest_time()).max()
    }

    pub fn bytes_on_disk(&self, key: PartitionKey) -> Result<u64, ReadError> {
        Ok(self.known_partition(key)?.bytes_on_disk())
    }

    /// The reason why the log rejects appends now.
    pub fn refusal(&self) -> Option<AppendError> {
        lock(&self.refusal).as_ref().map(|refusal| match refusal {
            RejectReason::Full(why) => AppendError::DiskFull(why.clone()),
            RejectReason::Poisoned(why) => AppendError::Poisoned(why.clone()),
        })
    }

    /// Closes the log for writing, permanently: after a failed sync the contents of the disk are unknown.
    fn poison(&self, what: &str, error: &io::Error) -> String {
        let why = format!("{what} failed: {error}; restart to recover");
        *lock(&self.refusal) = Some(RejectReason::Poisoned(why.clone()));
        (self.on_event)(LogEvent::Poisoned(why.clone()));
        why
    }

    /// Reports a temporary shortage. Nothing was written, and the next round retries.
    fn delay(&self, what: &str, error: &io::Error) -> AppendError {
        let why = format!("{what}: {error}");
        if !self.delay_reported.swap(true, Ordering::Relaxed) {
            (self.on_event)(LogEvent::Delayed(why.clone()));
        }
        AppendError::Delayed(why)
    }

    fn set_full(&self, why: String) {
        let mut refusal = lock(&self.refusal);
        if refusal.is_none() {
            *refusal = Some(RejectReason::Full(why.clone()));
            drop(refusal);
            (self.on_event)(LogEvent::DiskFull(why));
        }
    }

    fn clear_full(&self) {
        let mut refusal = lock(&self.refusal);
        if matches!(*refusal, Some(RejectReason::Full(_))) {
            *refusal = None;
            drop(refusal);
            (self.on_event)(LogEvent::DiskHasRoom);
        }
    }
}
