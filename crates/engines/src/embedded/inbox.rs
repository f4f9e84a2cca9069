//! The `Inbox` port on an LSM beside the log.
//!
//! A write is one batch of the LSM over all its keyspaces, which the LSM's one journal takes whole or not at all. It survives the
//! process, and the machine too where it is asked to be synced: behind those the log may be trimmed. Reads take where the partition is
//! and what they find from one snapshot. [`keys`] has the formats, [`fold`] what a write leaves of each key, [`erase`] what happens to
//! what stood before a reset.
//!
//! A shared row and the number of its references are apart, so that releasing one writes a few bytes and not the row. Nothing here is
//! kept in memory by the number of users or messages. The store is a view of `_push`: after damage it begins empty ([`StoreGuard`]), and
//! the owners of the partitions fold the log again.

mod erase;
pub(crate) mod fold;
mod keys;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use fjall::{Database, Keyspace, OwnedWriteBatch as WriteBatch, PersistMode, Readable, Slice, Snapshot};
use whimbrel_model::Timestamp;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::timers::{Applied, At};
use whimbrel_model::ports::{Inbox, InboxError, InboxRead, InboxWrite, PortFuture, RowKey, reclaim_hour};

use super::background::yields;
use super::lsm::report::StoreReports;
use super::lsm::{self, LsmStore, StoreError, StoreGuard, StoreHandle, WorkThread, next_opening};
use super::sealing::{Sealing, flush};
use super::slices::{MEMTABLE_BYTES, small_database, small_keyspace};
use erase::Eraser;
use fold::Folded;
use keys::{PartitionState, Place, decode_references, reclaim_user};

/// Memory that the LSM may use for blocks of its tables.
const CACHE_BYTES: u64 = 32 << 20;
/// Bytes of rows that are not in tables yet.
const ROWS_MEMTABLE_BYTES: u64 = 16 << 20;
/// The LSM's journal, which a start reads again: what is beyond is in tables. The LSM allows no less.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// Keys of a question that is answered in turn with others; one for more gets a thread of its own.
const READ_IN_TURN_MAX: usize = 256;
/// Writes or reads that wait for their thread; further callers wait until there is space.
const WORKS_WAITING_MAX: usize = 1024;
const STORE: &str = "inboxes";
const WRITER: &str = "inbox-writer";
const READER: &str = "inbox-reader";

/// Inboxes in an LSM of the data folder.
pub struct LsmInbox {
    writer: WorkThread<StoreHandle<Inner>>,
    reader: WorkThread<StoreHandle<Inner>>,
    /// Dropped after the threads, which do the work that waits.
    store: StoreGuard<Inner>,
}

struct Inner {
    /// Which opening of the store this is: places of an earlier one are not erased.
    opening: u64,
    database: Database,
    /// By partition its state, and by place what is to be erased.
    partitions: Keyspace,
    boxes: Keyspace,
    rows: Keyspace,
    shared: Keyspace,
    references: Keyspace,
    reclaim: Keyspace,
    sealing: Sealing,
    /// Generations that are to be erased and that the eraser has not taken yet.
    emptied: Mutex<Vec<Place>>,
}

type Fault = lsm::Fault<InboxError>;

impl StoreError for InboxError {
    fn unavailable(reason: String) -> Self {
        Self::Unavailable(reason)
    }
}

/// A row that cannot be understood. The LSM itself works.
fn damaged(reason: &str) -> Fault {
    Fault::Refused(InboxError::Damaged(reason.to_owned()))
}

fn bytes_of(slice: Slice) -> Bytes {
    Bytes::copy_from_slice(&slice)
}

impl LsmInbox {
    pub fn open(path: &Path, reports: StoreReports) -> Result<Self, InboxError> {
        let failed = |error: std::io::Error| InboxError::Unavailable(error.to_string());
        // The LSM's threads have this name.
        let after_open = |_: &Arc<Inner>| yields("fjall:worker");
        let store = StoreGuard::open(STORE, path, reports, Inner::open, after_open).map_err(InboxError::Unavailable)?;
        let mut eraser = Eraser::default();
        let idle = move |store: &mut StoreHandle<Inner>| eraser.step(store);
        let writer = WorkThread::start_with_idle(WRITER, WORKS_WAITING_MAX, store.handle(), idle).map_err(failed)?;
        let reader = WorkThread::start(READER, WORKS_WAITING_MAX, store.handle()).map_err(failed)?;
        yields(WRITER);
        Ok(Self { writer, reader, store })
    }

    /// Reads on a thread that may block.
    async fn read<T: Send + 'static>(
        &self,
        keys: usize,
        work: impl FnOnce(&Inner) -> Result<T, Fault> + Send + 'static,
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
        work: impl FnOnce(&Inner) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, InboxError> {
        self.writer.write(move |store| store.run(work)).await
    }
}

impl LsmStore for Inner {
    fn database(&self) -> &Database {
        &self.database
    }

    fn keyspaces(&self) -> Vec<Keyspace> {
        self.bounded().map(|(keyspace, _)| keyspace.clone()).to_vec()
    }
}

impl Inner {
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
            sealing: Sealing::default(),
            emptied: Mutex::default(),
            opening: next_opening(),
            database,
        };
        // Writes of an earlier process may be in the machine's memory only.
        inner.database.persist(PersistMode::SyncData)?;
        let noted = erase::noted(&inner)?;
        inner.emptied().extend(noted);
        Ok(inner)
    }

    fn emptied(&self) -> std::sync::MutexGuard<'_, Vec<Place>> {
        self.emptied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_emptied(&self) -> Vec<Place> {
        std::mem::take(&mut *self.emptied())
    }

    /// The keyspaces that have what is erased with a generation.
    fn erased(&self) -> [&Keyspace; 5] {
        [&self.boxes, &self.rows, &self.shared, &self.references, &self.reclaim]
    }

    /// Every keyspace, with the bytes of writes that it may keep out of tables.
    fn bounded(&self) -> [(&Keyspace, u64); 6] {
        let (small, rows) = (MEMTABLE_BYTES, ROWS_MEMTABLE_BYTES);
        let [boxes, own, shared, references, reclaim] = self.erased();
        [(&self.partitions, small), (boxes, small), (own, rows), (shared, rows), (references, small), (reclaim, small)]
    }

    /// Where the partition is, in what is read.
    fn state(&self, reader: &impl Readable, partition: u32) -> Result<Option<PartitionState>, Fault> {
        let value = reader.get(&self.partitions, partition.to_be_bytes())?;
        let bad = || damaged(&format!("the position of partition {partition} cannot be read"));
        value.map(|value| PartitionState::decode(&value).ok_or_else(bad)).transpose()
    }

    /// For the writer's thread alone, as every write.
    fn open_partition(&self, partition: u32, epoch: u64) -> Result<Option<u64>, Fault> {
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

    /// For the writer's thread alone: it reads where the partition is and how often shared rows are referred to, and then commits.
    fn apply(&self, partition: u32, write: &InboxWrite) -> Result<Applied, Fault> {
        let before = self.state(&self.database.snapshot(), partition)?.unwrap_or(PartitionState::UNKNOWN);
        if write.epoch < before.epoch {
            return Ok(Applied::OlderEpoch);
        }
        if write.expected != before.applied {
            return Ok(Applied::Behind { at: before.applied });
        }
        let generation = before.generation.wrapping_add(u32::from(write.reset));
        let place = Place { partition, generation };
        let folded = Folded::of(write);
        // What is not synced survives the process: the log is what survives the machine.
        let durability = if write.synced { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch =
            WriteBatch::with_capacity(self.database.clone(), folded.keys() + 2).durability(Some(durability));
        self.add_changes(&mut batch, place, &folded)?;
        let after = PartitionState { epoch: write.epoch, applied: write.applied, generation };
        batch.insert(&self.partitions, partition.to_be_bytes(), after.encode());
        let emptied = write.reset.then_some(Place { partition, generation: before.generation });
        if let Some(emptied) = emptied {
            batch.insert(&self.partitions, emptied.prefix(), []);
        }
        batch.commit()?;
        self.emptied().extend(emptied);
        self.sealing.after_write(&self.database, &self.bounded())?;
        Ok(Applied::Done)
    }

    fn add_changes(&self, batch: &mut WriteBatch, place: Place, folded: &Folded<'_>) -> Result<(), Fault> {
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
            let before = before.ok_or_else(|| damaged(&format!("the references to {seq} cannot be read")))?;
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

    /// Reads where the partition is and something else from one snapshot.
    fn at<T>(&self, partition: u32, read: impl FnOnce(&Snapshot, Place) -> Result<T, Fault>) -> Result<At<T>, Fault> {
        let snapshot = self.database.snapshot();
        let state = self.state(&snapshot, partition)?.unwrap_or(PartitionState::UNKNOWN);
        let found = read(&snapshot, Place { partition, generation: state.generation })?;
        Ok(At { applied: state.applied, found })
    }

    fn boxes(&self, partition: u32, uids: &[Uid]) -> Result<At<Vec<Option<Bytes>>>, Fault> {
        self.at(partition, |snapshot, place| {
            let found = uids.iter().map(|uid| snapshot.get(&self.boxes, place.user(uid.as_str())));
            found.map(|found| Ok(found?.map(bytes_of))).collect()
        })
    }

    fn rows(&self, partition: u32, keys: &[RowKey]) -> Result<At<Vec<Option<Bytes>>>, Fault> {
        self.at(partition, |snapshot, place| {
            let found = keys.iter().map(|key| match key {
                RowKey::Own { uid, seq } => snapshot.get(&self.rows, place.own(uid.as_str(), *seq)),
                RowKey::Shared { seq } => snapshot.get(&self.shared, place.shared(*seq)),
            });
            found.map(|found| Ok(found?.map(bytes_of))).collect()
        })
    }

    fn reclaimable(&self, partition: u32, before: Timestamp, limit: usize) -> Result<At<Vec<Uid>>, Fault> {
        self.at(partition, |snapshot, place| {
            let range = place.reclaim(0, "")..place.reclaim(reclaim_hour(before), "");
            let read = |entry: fjall::Guard| -> Result<Uid, Fault> {
                let key = entry.key()?;
                let uid = reclaim_user(&key).and_then(|uid| Uid::new(uid).ok());
                uid.ok_or_else(|| damaged("a user's id in the index of boxes cannot be read"))
            };
            snapshot.range(&self.reclaim, range).take(limit).map(read).collect()
        })
    }
}

impl Inbox for LsmInbox {
    fn open(&self, partition: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, InboxError>> {
        Box::pin(self.write(move |inner| inner.open_partition(partition, epoch)))
    }

    fn apply(&self, partition: u32, write: InboxWrite) -> PortFuture<'_, Result<Applied, InboxError>> {
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
                tracing::warn!(%error, "the next start reads more of the inboxes' journal than it would need to");
            }
        })
    }
}
