//! The log without its threads: everything it does is a call that runs to its end.
//!
//! [`Store`](crate::Store) runs it on two threads; the simulator runs it on none. Two calls may run at the same time: a commit
//! and one of the keeper's (a checkpoint, retention); reads run beside both.
//!
//! State, and who may change it:
//! - `journal`: commits only, except that a checkpoint trims it.
//! - `partitions`: the map by creation and deletion; each partition guards itself.
//! - `dirty`: partitions with batches that are not in segments, each once. Commits add, the keeper takes.
//! - `recent`: frames that memory still has. Commits add; commits and the keeper let go of those that are saved and too many.
//! - `refusal`: why nothing is accepted. `Poisoned` is for good, `Full` passes.

mod commit;
mod keep;
mod open;
mod scrub;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::checkpoint::Checkpoint;
use crate::disk::Disk;
use crate::error::{AppendError, Damage, ReadError};
use crate::fallback::Replaced;
use crate::folder::DataFolder;
use crate::journal::{Journal, Slots};
use crate::partition::{Arrival, Batches, Partition};
use crate::segment::BatchesOf;
use crate::{PartitionKey, Settings};

pub use commit::{Outcome, Part, Work};
pub use keep::TopicRetention;
pub use open::Recovered;
pub use scrub::{ColdSegment, Scrubbed};

/// Damaged places that are told of, each once; beyond, a disk is so broken that nobody needs more.
const TOLD_MAX: usize = 1000;

/// Something an operator wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Of a partition, where one is known.
    Damaged(Damage, Option<PartitionKey>),
    /// Retention could not read, seal or remove a segment, and went on with the others. Told once until it works again.
    SegmentUnreadable {
        key: PartitionKey,
        file: PathBuf,
        error: String,
    },
    /// A small file was damaged or missing at the start, and its second file is used.
    FileReplaced(Replaced),
    DiskFull(String),
    DiskHasRoom,
    /// Segments or a checkpoint could not be written for want of file descriptors or memory. Told once until a checkpoint succeeds.
    Delayed(String),
    Poisoned(String),
}

/// Where events go. It must not block.
pub type OnEvent = Box<dyn Fn(Event) + Send + Sync>;

pub struct Core {
    settings: Settings,
    disk: Arc<dyn Disk>,
    /// Of the log, below the data folder.
    root: PathBuf,
    slots: Arc<Slots>,
    journal: Mutex<JournalState>,
    partitions: RwLock<HashMap<PartitionKey, Arc<Partition>>>,
    dirty: Mutex<Vec<Arc<Partition>>>,
    recent: Mutex<Recent>,
    /// The last frame whose batches are all with their partitions.
    published: AtomicU64,
    /// Every frame up to this one is in segments, synced or not.
    saved: AtomicU64,
    /// Bytes of batches that are not in segments. For a moment below zero where the keeper is faster than the commit's account.
    unsaved_bytes: AtomicI64,
    bytes_since_checkpoint: AtomicU64,
    /// Held through a checkpoint or a retention pass: there is one keeper at a time.
    keeping: Mutex<()>,
    /// Files that were written and not synced. They are forgotten when a checkpoint has synced them, not before: for disks that
    /// sync by file, one that is missing here is one that a power loss takes.
    touched: Mutex<BTreeSet<PathBuf>>,
    /// As it is on the disk.
    last_checkpoint: Mutex<Option<Checkpoint>>,
    /// Held while topics are made or deleted. A checkpoint need not wait for it: a partition that is made after its marks were
    /// taken has only frames that come after it, and one that is deleted is not there when the marks are read.
    changing_topics: Mutex<()>,
    refusal: Mutex<Option<Refusal>>,
    /// It was told that writing is delayed.
    told_delayed: AtomicBool,
    /// Damage that was told of: a reader that comes back to it is no news.
    told: Mutex<HashSet<(String, u64)>>,
    /// Files that the last retention could not read.
    unreadable: Mutex<HashSet<PathBuf>>,
    retention: RwLock<HashMap<u32, TopicRetention>>,
    on_event: OnEvent,
    /// Last, so that the lock on the folder goes when everything else is gone.
    folder: Arc<DataFolder>,
}

struct JournalState {
    /// `None` until the generation of this start is durable: on a full disk that may take a while.
    journal: Option<Journal>,
    /// What the journal must be begun with.
    generation: u64,
    last_sequence: u64,
    /// The token of the newest fence of each name. They need not be durable: a restart voids all.
    fences: HashMap<String, u64>,
    fence_tokens: u64,
}

#[derive(Default)]
struct Recent {
    frames: VecDeque<RecentFrame>,
    bytes: u64,
}

struct RecentFrame {
    sequence: u64,
    bytes: u64,
    partitions: Vec<Arc<Partition>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Refusal {
    Full(String),
    Poisoned(String),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn topic_folder(&self, topic: u32) -> PathBuf {
        self.root.join("topics").join(topic.to_string())
    }

    fn checkpoint_path(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// Makes partitions `0..partitions` of a topic, those that are not there yet. Durable when it returns. The number of a deleted topic must
    /// not be used again: until the next checkpoint, the old topic's marks would describe the new one.
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
            let of = BatchesOf { secret: self.folder.secret, key };
            known.insert(key, Arc::new(Partition::new(of, folder, self.disk.clone(), &self.settings)));
        }
        Ok(())
    }

    /// Drops a topic with all its partitions. After a crash it is there whole or gone; after an error it is as it was, unless the
    /// log closed for writing.
    pub fn delete_topic(&self, topic: u32) -> io::Result<()> {
        let _changing = lock(&self.changing_topics);
        let folder = self.topic_folder(topic);
        let doomed = folder.with_extension("deleted");
        let partitions: Vec<Arc<Partition>> =
            self.all_partitions().into_iter().filter(|partition| partition.key.topic == topic).collect();
        {
            // The folder gets its new name while nobody writes to it. Only then are the partitions forgotten: a checkpoint
            // without them would be the end of what they hold, also where the folder came back.
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

    /// The partitions that exist now, in no order.
    pub fn partition_keys(&self) -> Vec<PartitionKey> {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// How many partitions a topic has.
    pub fn partition_count(&self, topic: u32) -> u32 {
        let known = self.partitions.read().unwrap_or_else(PoisonError::into_inner);
        known.keys().filter(|key| key.topic == topic).count() as u32
    }

    fn partition(&self, key: PartitionKey) -> Option<Arc<Partition>> {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    fn known_partition(&self, key: PartitionKey) -> Result<Arc<Partition>, ReadError> {
        self.partition(key).ok_or(ReadError::UnknownPartition(key))
    }

    fn all_partitions(&self) -> Vec<Arc<Partition>> {
        let known = self.partitions.read().unwrap_or_else(PoisonError::into_inner);
        let mut partitions: Vec<Arc<Partition>> = known.values().cloned().collect();
        drop(known);
        // In a fixed order, so that the same calls do the same to the disk.
        partitions.sort_unstable_by_key(|partition| partition.key);
        partitions
    }

    /// Reads from memory only; `None` where the disk must be asked, which [`Core::read`] does.
    pub fn read_memory(&self, key: PartitionKey, from: u64, max_bytes: usize) -> Result<Option<Batches>, ReadError> {
        self.known_partition(key)?.read_memory(from, max_bytes)
    }

    /// Reads batches from an offset on: at least one where one is there, then while they fit. May block on the disk.
    pub fn read(&self, key: PartitionKey, from: u64, max_bytes: usize) -> Result<Batches, ReadError> {
        let read = self.known_partition(key)?.read(from, max_bytes);
        if let Err(ReadError::Damaged(damage)) = &read {
            self.tell_of(damage, Some(key));
        }
        read
    }

    fn tell_of(&self, damage: &Damage, partition: Option<PartitionKey>) {
        let mut told = lock(&self.told);
        if told.len() < TOLD_MAX && told.insert((damage.file.clone(), damage.position)) {
            drop(told);
            (self.on_event)(Event::Damaged(damage.clone(), partition));
        }
    }

    /// Resolves when `from` is there to be read, or will never be.
    pub fn arrival(&self, key: PartitionKey, from: u64) -> Result<Arrival, ReadError> {
        Ok(Arrival::new(self.known_partition(key)?, from))
    }

    /// First kept and next offset.
    pub fn bounds(&self, key: PartitionKey) -> Result<(u64, u64), ReadError> {
        Ok(self.known_partition(key)?.bounds())
    }

    /// The first record at or after a time, in milliseconds. May block on the disk.
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

    /// Why nothing is accepted at the moment.
    pub fn refusal(&self) -> Option<AppendError> {
        lock(&self.refusal).as_ref().map(|refusal| match refusal {
            Refusal::Full(why) => AppendError::DiskFull(why.clone()),
            Refusal::Poisoned(why) => AppendError::Poisoned(why.clone()),
        })
    }

    /// Closes the log for writing, for good: after a failed sync nobody knows what is on the disk.
    fn poison(&self, what: &str, error: &io::Error) -> String {
        let why = format!("{what} failed: {error}; restart to recover");
        *lock(&self.refusal) = Some(Refusal::Poisoned(why.clone()));
        (self.on_event)(Event::Poisoned(why.clone()));
        why
    }

    /// Nothing was written and the cause passes: the next round tries again.
    fn delay(&self, what: &str, error: &io::Error) -> AppendError {
        let why = format!("{what}: {error}");
        if !self.told_delayed.swap(true, Ordering::Relaxed) {
            (self.on_event)(Event::Delayed(why.clone()));
        }
        AppendError::Delayed(why)
    }

    fn set_full(&self, why: String) {
        let mut refusal = lock(&self.refusal);
        if refusal.is_none() {
            *refusal = Some(Refusal::Full(why.clone()));
            drop(refusal);
            (self.on_event)(Event::DiskFull(why));
        }
    }

    fn clear_full(&self) {
        let mut refusal = lock(&self.refusal);
        if matches!(*refusal, Some(Refusal::Full(_))) {
            *refusal = None;
            drop(refusal);
            (self.on_event)(Event::DiskHasRoom);
        }
    }
}
