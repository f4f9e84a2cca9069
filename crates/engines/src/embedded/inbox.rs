//! The `Inbox` port on an LSM beside the log.
//!
//! A write is one batch over all keyspaces of the LSM, which its journal takes whole or not at all. It survives a crash of the process. If
//! the caller requests a sync, it also survives a crash of the machine: below such a write the log may be trimmed. A read takes the applied
//! offset and the rows from one snapshot. [`keys`] defines the formats, [`inbox_fold`](crate::stores::inbox_fold) the result of a write for each key; [`partition_eraser`]
//! deletes the rows from before a reset.
//!
//! A shared row and the number of its references have separate keys, so that releasing a reference writes a few bytes and not the row.
//! Memory does not grow with the number of users or messages. The store is a view of `_push`: after damage it starts empty
//! ([`StoreGuard`]), and the owners of the partitions fold the log again.

mod keys;
mod partition_eraser;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use fjall::{Database, Keyspace, OwnedWriteBatch as WriteBatch, PersistMode, Readable, Slice, Snapshot};
use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::timers::{ApplyOutcome, AtOffset};
use whimbrel_model::ports::{Inbox, InboxError, InboxRead, InboxWrite, PortFuture, RowKey, reclaim_hour};

use super::lsm::report::StoreReports;
use super::lsm::{self, Generation, LsmStore, StoreError, StoreGuard, StoreHandle, WorkThread, next_opening};
use super::memtable_sealer::{MemtableSealer, flush};
use super::slices::{MEMTABLE_BYTES, small_database, small_keyspace};
use super::thread_priority::lower_priority;
use crate::stores::inbox_fold::FoldedWrite;
use keys::{PartitionState, decode_references, reclaim_user};
use partition_eraser::PartitionEraser;

/// Memory for cached blocks of the LSM's tables.
const CACHE_BYTES: u64 = 32 << 20;
/// Bytes of rows in the memtable, before they are written to a table.
const ROWS_MEMTABLE_BYTES: u64 = 16 << 20;
/// The maximum size of the LSM's journal, which a start replays. Older writes are in tables. This is the minimum of the LSM.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// The maximum number of keys of a lookup that the shared reader thread executes; a larger lookup gets a thread of its own.
const READ_IN_TURN_MAX: usize = 256;
/// The maximum number of writes or reads in the queue of a thread; further callers wait until there is space.
const WORKS_WAITING_MAX: usize = 1024;
const STORE: &str = "inboxes";
const WRITER: &str = "inbox-writer";
const READER: &str = "inbox-reader";

/// Inboxes in an LSM of the data folder.
pub struct LsmInbox {
    writer: WorkThread<StoreHandle<InboxStore>>,
    reader: WorkThread<StoreHandle<InboxStore>>,
    /// Dropped after the threads, which complete the queued work.
    store: StoreGuard<InboxStore>,
}

struct InboxStore {
    /// The number of this opening of the store. Places of an earlier opening are not erased.
    opening: u64,
    database: Database,
    /// The state of each partition, and the places to erase.
    partitions: Keyspace,
    boxes: Keyspace,
    rows: Keyspace,
    shared: Keyspace,
    references: Keyspace,
    reclaim: Keyspace,
    sealing: MemtableSealer,
    /// Generations to erase that the eraser has not taken yet.
    emptied: Mutex<Vec<Generation>>,
}

type InboxFault = lsm::StoreFault<InboxError>;

impl StoreError for InboxError {
    fn unavailable(reason: String) -> Self {
        Self::Unavailable(reason)
    }
}

/// A row that cannot be decoded. The LSM itself works.
fn damaged(reason: &str) -> InboxFault {
    InboxFault::Refused(InboxError::Damaged(reason.to_owned()))
}

fn bytes_of(slice: Slice) -> Bytes {
    Bytes::copy_from_slice(&slice)
}

impl LsmInbox {
    pub fn open(path: &Path, reports: StoreReports) -> Result<Self, InboxError> {
        let failed = |error: std::io::Error| InboxError::Unavailable(error.to_string());
        // The name of the LSM's threads.
        let after_open = |_: &Arc<InboxStore>| lower_priority("fjall:worker");
        let store =
            StoreGuard::open(STORE, path, reports, InboxStore::open, after_open).map_err(InboxError::Unavailable)?;
        let mut eraser = PartitionEraser::default();
        let idle = move |store: &mut StoreHandle<InboxStore>| eraser.step(store);
        let writer = WorkThread::start_with_idle(WRITER, WORKS_WAITING_MAX, store.handle(), idle).map_err(failed)?;
        let reader = WorkThread::start(READER, WORKS_WAITING_MAX, store.handle()).map_err(failed)?;
        lower_priority(WRITER);
        Ok(Self { writer, reader, store })
    }

    /// Reads on a thread that may block.
    async fn read<T: Send + 'static>(
        &self,
        keys: usize,
        work: impl FnOnce(&InboxStore) -> Result<T, InboxFault> + Send + 'static,
    ) -> Result<T, InboxError> {
        if keys <= READ_IN_TURN_MAX {
            return self.reader.read(move |store| store.run(work)).await;
        }
        let store = self.store.handle();
        let done = tokio::task::spawn_blocking(move || store.run(work)).await;
        done.unwrap_or_else(|error| Err(InboxError::Unavailable(error.to_string())))
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&InboxStore) -> Result<T, InboxFault> + Send + 'static,
    ) -> Result<T, InboxError> {
        self.writer.write(move |store| store.run(work)).await
    }
}

impl LsmStore for InboxStore {
    fn database(&self) -> &Database {
        &self.database
    }

    fn keyspaces(&self) -> Vec<Keyspace> {
        self.bounded().map(|(keyspace, _)| keyspace.clone()).to_vec()
    }
}

impl InboxStore {
    fn open(path: &Path) -> fjall::Result<Self> {
        let builder = small_database(path, CACHE_BYTES);
        let database = builder.max_journaling_size(JOURNAL_BYTES_MAX).open()?;
        let rows_keyspace = || small_keyspace().max_memtable_size(ROWS_MEMTABLE_BYTES);
        let inner = Self {
            partitions: database.keyspace("partitions", small_keyspace)?,
            boxes: database.keyspace("boxes", small_keyspace)?,
            rows: database.keyspace("rows", rows_keyspace)?,
            shared: database.keyspace("shared", rows_keyspace)?,
            references: database.keyspace("references", small_keyspace)?,
            reclaim: database.keyspace("reclaim", small_keyspace)?,
            sealing: MemtableSealer::default(),
            emptied: Mutex::default(),
            opening: next_opening(),
            database,
        };
        // Writes of an earlier process may be only in the page cache.
        inner.database.persist(PersistMode::SyncData)?;
        let noted = Generation::emptied(&inner.partitions)?;
        inner.emptied().extend(noted);
        Ok(inner)
    }

    fn emptied(&self) -> std::sync::MutexGuard<'_, Vec<Generation>> {
        self.emptied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_emptied(&self) -> Vec<Generation> {
        std::mem::take(&mut *self.emptied())
    }

    fn erased(&self) -> [&Keyspace; 5] {
        [&self.boxes, &self.rows, &self.shared, &self.references, &self.reclaim]
    }

    /// Every keyspace, with the maximum bytes in its memtable.
    fn bounded(&self) -> [(&Keyspace, u64); 6] {
        let (small, rows) = (MEMTABLE_BYTES, ROWS_MEMTABLE_BYTES);
        let [boxes, own, shared, references, reclaim] = self.erased();
        [(&self.partitions, small), (boxes, small), (own, rows), (shared, rows), (references, small), (reclaim, small)]
    }

    /// The state of the partition, from the same reader as the other rows.
    fn state(&self, reader: &impl Readable, partition: u32) -> Result<Option<PartitionState>, InboxFault> {
        let value = reader.get(&self.partitions, partition.to_be_bytes())?;
        let bad = || damaged(&format!("the state of partition {partition} cannot be decoded"));
        value.map(|value| PartitionState::decode(&value).ok_or_else(bad)).transpose()
    }

    /// Only for the writer thread, like every write.
    fn open_partition(&self, partition: u32, epoch: u64) -> Result<Option<u64>, InboxFault> {
        let known = self.state(&self.database.snapshot(), partition)?;
        let state = known.unwrap_or(PartitionState::UNKNOWN);
        if epoch < state.epoch {
            return Ok(None);
        }
        if known.is_none() || epoch > state.epoch {
            let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&self.partitions, partition.to_be_bytes(), PartitionState { epoch, ..state }.encode());
            batch.commit()?;
        } else {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(Some(state.applied))
    }

    /// Only for the writer thread: it reads the applied offset and the reference counts of shared rows, and then commits.
    fn apply(&self, partition: u32, write: &InboxWrite) -> Result<ApplyOutcome, InboxFault> {
        let before = self.state(&self.database.snapshot(), partition)?.unwrap_or(PartitionState::UNKNOWN);
        if write.epoch < before.epoch {
            return Ok(ApplyOutcome::OlderEpoch);
        }
        if write.expected != before.applied {
            return Ok(ApplyOutcome::Behind { at: before.applied });
        }
        let generation = before.generation.wrapping_add(u32::from(write.reset));
        let place = Generation { part: partition, generation };
        let folded = FoldedWrite::of(write);
        // A write without a sync survives a crash of the process. After a crash of the machine, the log has it.
        let durability = if write.synced { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch =
            WriteBatch::with_capacity(self.database.clone(), folded.keys() + 2).durability(Some(durability));
        self.add_changes(&mut batch, place, &folded)?;
        let after = PartitionState { epoch: write.epoch, applied: write.applied, generation };
        batch.insert(&self.partitions, partition.to_be_bytes(), after.encode());
        let emptied = write.reset.then_some(Generation { part: partition, generation: before.generation });
        if let Some(emptied) = emptied {
            batch.insert(&self.partitions, emptied.prefix(), []);
        }
        batch.commit()?;
        self.emptied().extend(emptied);
        self.sealing.after_write(&self.database, &self.bounded())?;
        Ok(ApplyOutcome::Done)
    }

    fn add_changes(
        &self,
        batch: &mut WriteBatch,
        place: Generation,
        folded: &FoldedWrite<'_>,
    ) -> Result<(), InboxFault> {
        for (uid, after) in &folded.boxes {
            match after.state {
                Some(state) => batch.insert(&self.boxes, place.user(uid), &state[..]),
                None => batch.remove(&self.boxes, place.user(uid)),
            }
            if after.was != after.hour {
                if let Some(was) = after.was {
                    batch.remove(&self.reclaim, place.reclaim(was, uid));
                }
                if let Some(hour) = after.hour {
                    batch.insert(&self.reclaim, place.reclaim(hour, uid), []);
                }
            }
        }
        for ((uid, seq), row) in &folded.own {
            match row {
                Some(row) => batch.insert(&self.rows, place.own(uid, *seq), &row[..]),
                None => batch.remove(&self.rows, place.own(uid, *seq)),
            }
        }
        for (seq, after) in &folded.shared {
            let key = place.shared(*seq);
            let before = self.references.get(&key)?;
            let before = before.map_or(Some(0), |value| decode_references(&value));
            let before = before.ok_or_else(|| damaged(&format!("the reference count of {seq} cannot be decoded")))?;
            let (references, new) = after.after(before);
            if let Some(row) = new {
                batch.insert(&self.shared, key.clone(), &row[..]);
            }
            if references == 0 && before > 0 {
                batch.remove(&self.shared, key.clone());
                batch.remove(&self.references, key);
            } else if references != before {
                batch.insert(&self.references, key, references.to_be_bytes());
            }
        }
        Ok(())
    }

    /// Reads the applied offset and other rows from one snapshot.
    fn at<T>(
        &self,
        partition: u32,
        read: impl FnOnce(&Snapshot, Generation) -> Result<T, InboxFault>,
    ) -> Result<AtOffset<T>, InboxFault> {
        let snapshot = self.database.snapshot();
        let state = self.state(&snapshot, partition)?.unwrap_or(PartitionState::UNKNOWN);
        let found = read(&snapshot, Generation { part: partition, generation: state.generation })?;
        Ok(AtOffset { applied: state.applied, found })
    }

    fn boxes(&self, partition: u32, uids: &[Uid]) -> Result<AtOffset<Vec<Option<Bytes>>>, InboxFault> {
        self.at(partition, |snapshot, place| {
            let found = uids.iter().map(|uid| snapshot.get(&self.boxes, place.user(uid.as_str())));
            found.map(|found| Ok(found?.map(bytes_of))).collect()
        })
    }

    fn rows(&self, partition: u32, keys: &[RowKey]) -> Result<AtOffset<Vec<Option<Bytes>>>, InboxFault> {
        self.at(partition, |snapshot, place| {
            let found = keys.iter().map(|key| match key {
                RowKey::Own { uid, seq } => snapshot.get(&self.rows, place.own(uid.as_str(), *seq)),
                RowKey::Shared { seq } => snapshot.get(&self.shared, place.shared(*seq)),
            });
            found.map(|found| Ok(found?.map(bytes_of))).collect()
        })
    }

    fn reclaimable(&self, partition: u32, before: Timestamp, limit: usize) -> Result<AtOffset<Vec<Uid>>, InboxFault> {
        self.at(partition, |snapshot, place| {
            let range = place.reclaim(0, "")..place.reclaim(reclaim_hour(before), "");
            let read = |entry: fjall::Guard| -> Result<Uid, InboxFault> {
                let key = entry.key()?;
                let uid = reclaim_user(&key).and_then(|uid| Uid::new(uid).ok());
                uid.ok_or_else(|| damaged("a user's id in the index of boxes cannot be decoded"))
            };
            snapshot.range(&self.reclaim, range).take(limit).map(read).collect()
        })
    }
}

impl Inbox for LsmInbox {
    fn open(&self, partition: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, InboxError>> {
        Box::pin(self.write(move |inner| inner.open_partition(partition, epoch)))
    }

    fn apply(&self, partition: u32, write: InboxWrite) -> PortFuture<'_, Result<ApplyOutcome, InboxError>> {
        Box::pin(self.write(move |inner| inner.apply(partition, &write)))
    }

    fn boxes(&self, partition: u32, uids: Vec<Uid>) -> InboxRead<'_, Vec<Option<Bytes>>> {
        Box::pin(self.read(uids.len(), move |inner| inner.boxes(partition, &uids)))
    }

    fn rows(&self, partition: u32, keys: Vec<RowKey>) -> InboxRead<'_, Vec<Option<Bytes>>> {
        Box::pin(self.read(keys.len(), move |inner| inner.rows(partition, &keys)))
    }

    fn reclaimable(&self, partition: u32, before: Timestamp, limit: usize) -> InboxRead<'_, Vec<Uid>> {
        Box::pin(self.read(limit, move |inner| inner.reclaimable(partition, before, limit)))
    }

    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(async {
            let flushed = self.write(|inner| Ok(flush(&inner.bounded().map(|(keyspace, _)| keyspace))?));
            if let Err(error) = flushed.await {
                tracing::warn!(%error, "cannot flush the inboxes; the next start replays a longer journal");
            }
        })
    }
}
