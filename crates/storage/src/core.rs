//! The log without its threads. Every operation is a call that runs to its end.
//!
//! [`LogStore`](crate::LogStore) runs the log on two threads; the simulator runs it on none. One commit and one keeper call (a checkpoint,
//! retention) may run at the same time. Reads run beside both.
//!
//! State, and the operations that change it:
//! - `journal`: commits. A checkpoint trims it.
//! - `partitions`: creation and deletion of topics. Each partition has its own lock.
//! - `unsaved`: batches that are not in segments. Commits add them, the keeper takes them.
//! - `recent`: frames that are still in memory. Commits add them. Commits and the keeper evict saved frames above the limit.
//! - `checkpoints`: checkpoints and retention passes.
//! - `health`: any operation that meets a failure or damage.

mod commit;
mod health;
mod keeper;
mod open;
mod partition_table;
mod scrub;
mod tail;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::checkpoint::Checkpoint;
use crate::disk::Disk;
use crate::error::{AppendError, ReadError};
use crate::folder::DataFolder;
use crate::journal::{JournalSlots, LogJournal};
use crate::layout::LogLayout;
use crate::partition::{LogPartition, LogRead, OffsetArrival};
use crate::segment::BatchScope;
use crate::{LogSettings, PartitionKey};
use health::LogHealth;
use partition_table::PartitionTable;
use tail::{RecentFrame, RecentFrames, UnsavedBatches};

pub use commit::{LogReply, LogWrite, WritePart};
pub use health::{LogEvent, OnEvent};
pub use keeper::TopicRetention;
pub use open::LogRecovery;
pub use scrub::{ColdSegment, ScrubResult};

pub struct Core {
    settings: LogSettings,
    disk: Arc<dyn Disk>,
    layout: LogLayout,
    slots: Arc<JournalSlots>,
    journal: Mutex<JournalState>,
    partitions: PartitionTable,
    unsaved: UnsavedBatches,
    recent: RecentFrames,
    bytes_since_checkpoint: AtomicU64,
    /// Locked during a checkpoint or a retention pass: only one of them runs at a time.
    checkpoints: Mutex<CheckpointState>,
    health: LogHealth,
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

struct CheckpointState {
    /// Files that were written and not synced. Only a checkpoint that has synced them removes them. On disks that sync file by file, a
    /// power loss takes a file that is missing here.
    touched: BTreeSet<PathBuf>,
    /// The checkpoint on the disk.
    last: Option<Checkpoint>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub fn settings(&self) -> &LogSettings {
        &self.settings
    }

    /// Creates the missing partitions of `0..partitions` of a topic. They are durable when the call returns. The number of a deleted topic
    /// must not be used again: until the next checkpoint, the old topic's marks would apply to the new one.
    pub fn create_partitions(&self, topic: u32, partitions: u32) -> io::Result<()> {
        let _changing = self.partitions.lock_topics();
        let keys = (0..partitions).map(|partition| PartitionKey { topic, partition });
        let missing: Vec<PartitionKey> = keys.filter(|key| self.partitions.get(*key).is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        for key in &missing {
            self.disk.create_dirs(&self.layout.partition(*key))?;
        }
        self.disk.sync_dir(&self.layout.topic(topic))?;
        self.disk.sync_dir(&self.layout.topics())?;
        let create = |key| {
            let of = BatchScope { secret: self.folder.secret, key };
            LogPartition::new(of, self.layout.partition(key), self.disk.clone(), &self.settings)
        };
        self.partitions.insert(missing.into_iter().map(create).collect());
        Ok(())
    }

    /// Deletes a topic with all its partitions. After a crash the topic exists completely or not at all. After an error it is unchanged,
    /// unless the log was closed for writing.
    pub fn delete_topic(&self, topic: u32) -> io::Result<()> {
        let _changing = self.partitions.lock_topics();
        let folder = self.layout.topic(topic);
        let doomed = folder.with_extension("deleted");
        let mut partitions = self.partitions.all();
        partitions.retain(|partition| partition.key.topic == topic);
        {
            // The folder is renamed while nothing writes to it. Only then are the partitions removed from the table: a checkpoint without
            // them would lose their records, also if the rename failed.
            let held: Vec<_> = partitions.iter().map(|partition| partition.hold()).collect();
            if self.disk.exists(&folder)? {
                self.disk.rename(&folder, &doomed)?;
            }
            self.partitions.remove_topic(topic);
            held.iter().for_each(|partition| self.unsaved.subtract(partition.delete()));
        }
        if let Err(error) = self.disk.sync_dir(&self.layout.topics()) {
            self.health.poison("deleting a topic", &error);
            return Err(error);
        }
        if let Err(error) = self.disk.remove_dirs(&doomed) {
            tracing::warn!(%error, "the files of a deleted topic could not be removed; the next start tries again");
        }
        Ok(())
    }

    /// The existing partitions, in no order.
    pub fn partition_keys(&self) -> Vec<PartitionKey> {
        self.partitions.keys()
    }

    /// The number of partitions of a topic.
    pub fn partition_count(&self, topic: u32) -> u32 {
        self.partitions.count(topic) as u32
    }

    fn known_partition(&self, key: PartitionKey) -> Result<Arc<LogPartition>, ReadError> {
        self.partitions.get(key).ok_or(ReadError::UnknownPartition(key))
    }

    /// Reads from memory only. Returns `None` if the records are on disk only; [`Core::read`] reads those.
    pub fn read_memory(&self, key: PartitionKey, from: u64, max_bytes: usize) -> Result<Option<LogRead>, ReadError> {
        self.known_partition(key)?.read_memory(from, max_bytes)
    }

    /// Reads batches from an offset on: at least one if there is one, then as many as fit. May block on the disk.
    pub fn read(&self, key: PartitionKey, from: u64, max_bytes: usize) -> Result<LogRead, ReadError> {
        let read = self.known_partition(key)?.read(from, max_bytes);
        if let Err(ReadError::Damaged(damage)) = &read {
            self.health.report_damage(damage, Some(key));
        }
        read
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
        self.partitions.all().iter().filter_map(|partition| partition.latest_time()).max()
    }

    pub fn bytes_on_disk(&self, key: PartitionKey) -> Result<u64, ReadError> {
        Ok(self.known_partition(key)?.bytes_on_disk())
    }

    /// The reason why the log rejects appends now.
    pub fn refusal(&self) -> Option<AppendError> {
        self.health.refusal()
    }
}
