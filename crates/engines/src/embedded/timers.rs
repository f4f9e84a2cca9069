//! The `Timers` port on an LSM beside the log.
//!
//! A write is one batch over all keyspaces of the LSM, which its journal takes whole or not at all. It survives a crash of the process. If
//! the caller requests a sync, it also survives a crash of the machine: below such a write the log may be trimmed. A read takes the applied
//! offset and the rows from one snapshot. Holds are stored in due order with their payloads, and by id. Ends are in slices of time that are
//! dropped whole. Counts by topic and minute are updated with every write, and are the index of a topic's holds. [`keys`] defines the
//! formats; [`line`] explains why a hold that fires is deleted from neither index.
//!
//! Memory does not grow with the number of holds: memtables, cached blocks of tables, and cached index and filter blocks have the bounds
//! below.
//!
//! All work runs on threads that may block: a write waits for the disk and for the LSM if it must catch up, and so does a read. The store
//! is a view of `_holds`: after damage it starts empty ([`StoreGuard`]), and the owners of the shards fold the log again.

mod keys;
mod line;
mod read;
mod shard_eraser;
mod write;

#[cfg(test)]
mod merge_tests;

use std::path::Path;
use std::sync::Arc;

use fjall::compaction::filter::Factory;
use fjall::config::{BlockSizePolicy, FilterPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use whimbrel_model::ports::{
    ApplyOutcome, CountQuery, DueCursor, HoldQuery, PortFuture, StoredHold, Timers, TimersError, TimersRead,
    TimersWrite,
};
use whimbrel_model::{Hold, HoldEnd, HoldId, Timestamp};

use super::lsm::report::StoreReports;
use super::lsm::{self, Generation, LsmStore, StoreError, StoreGuard, StoreHandle, WorkThread, next_opening};
use super::memtable_sealer::{MemtableSealer, flush};
use super::slices::{MEMTABLE_BYTES, Slices, small_database, small_keyspace};
use super::thread_priority::lower_priority;
use crate::stores::TimerSettings;
use keys::TimerShardState;
use line::{BelowTheLine, ShardLines, TimeIn};
use shard_eraser::{EraserTask, ShardEraser};

/// Memory for cached blocks of the LSM's tables.
const CACHE_BYTES: u64 = 32 << 20;
/// Bytes of rows in a memtable. The LSM blocks writers when four memtables wait for its worker.
const ROWS_MEMTABLE_BYTES: u64 = 16 << 20;
/// Bytes of a block of rows. A scan reads many rows at once; a lookup by id reads one block for its row.
const ROWS_BLOCK_BYTES: u32 = 16 << 10;
/// The maximum size of the LSM's journal, which a start replays. Older writes are in tables. This is the minimum of the LSM; for moments it
/// uses two to three times as much.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// The maximum number of ids of a lookup that the shared reader thread executes; a larger lookup gets a thread of its own.
const GET_IN_TURN_MAX: usize = 64;
/// The maximum number of writes or reads in the queue of a thread; further callers wait until there is space.
const WRITES_WAITING_MAX: usize = 64;
const READS_WAITING_MAX: usize = 1024;
const STORE: &str = "holds";
const WRITER: &str = "holds-writer";
const READER: &str = "holds-reader";

/// Timers in an LSM of the data folder.
pub struct LsmTimers {
    reader: WorkThread<StoreHandle<TimerStore>>,
    writer: WorkThread<StoreHandle<TimerStore>>,
    eraser: ShardEraser,
    /// Dropped after the threads, which complete the queued work.
    store: StoreGuard<TimerStore>,
}

struct TimerStore {
    settings: TimerSettings,
    /// The number of this opening of the store. Chores of an earlier opening are skipped.
    opening: u64,
    database: Database,
    shards: Keyspace,
    rows: Keyspace,
    ids: Keyspace,
    late: Keyspace,
    late_ids: Keyspace,
    counts: Keyspace,
    lines: Arc<ShardLines>,
    ends: Slices,
    dead: Slices,
    sealing: MemtableSealer,
}

type TimersFault = lsm::StoreFault<TimersError>;

impl StoreError for TimersError {
    fn unavailable(reason: String) -> Self {
        Self::Unavailable(reason)
    }
}

/// A row that cannot be decoded. The LSM itself works.
fn damaged(reason: &str) -> TimersFault {
    TimersFault::Refused(TimersError::Damaged(reason.to_owned()))
}

/// Options for rows, which are read in order and by keys that exist. Such reads use no filters, so none are built.
fn rows_keyspace() -> KeyspaceCreateOptions {
    let options = small_keyspace().max_memtable_size(ROWS_MEMTABLE_BYTES).filter_policy(FilterPolicy::disabled());
    options.data_block_size_policy(BlockSizePolicy::all(ROWS_BLOCK_BYTES))
}

/// The compaction filters by keyspace: rows that a merge of tables may drop.
fn filters(lines: &Arc<ShardLines>) -> CompactionFilters {
    let lines = Arc::clone(lines);
    Arc::new(move |keyspace| {
        let time_in = match keyspace {
            "rows" => TimeIn::Key,
            "ids" => TimeIn::Value,
            _ => return None,
        };
        Some(Arc::new(BelowTheLine { lines: Arc::clone(&lines), time_in }))
    })
}

type CompactionFilters = Arc<dyn Fn(&str) -> Option<Arc<dyn Factory>> + Send + Sync>;

impl LsmTimers {
    pub fn open(path: &Path, settings: TimerSettings, reports: StoreReports) -> Result<Self, TimersError> {
        let failed = |error: std::io::Error| TimersError::Unavailable(error.to_string());
        let (chores, handed) = std::sync::mpsc::channel();
        let noted_chores = chores.clone();
        let after_open = move |inner: &Arc<TimerStore>| {
            // The name of the LSM's threads.
            lower_priority("fjall:worker");
            for place in Generation::emptied(&inner.shards).unwrap_or_default() {
                let _ = noted_chores.send(EraserTask::Erase { place, opening: inner.opening });
            }
        };
        let open = move |path: &Path| TimerStore::open(path, settings.clone());
        let store = StoreGuard::open(STORE, path, reports, open, after_open).map_err(TimersError::Unavailable)?;
        let reader = WorkThread::start(READER, READS_WAITING_MAX, store.handle()).map_err(failed)?;
        let writer = WorkThread::start(WRITER, WRITES_WAITING_MAX, store.handle()).map_err(failed)?;
        let eraser = ShardEraser::start(store.handle(), chores, handed).map_err(failed)?;
        lower_priority(WRITER);
        Ok(Self { reader, writer, eraser, store })
    }

    async fn read_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&TimerStore) -> Result<T, TimersFault> + Send + 'static,
    ) -> Result<T, TimersError> {
        let store = self.store.handle();
        let done = tokio::task::spawn_blocking(move || store.run(work)).await;
        done.unwrap_or_else(|error| Err(TimersError::Unavailable(error.to_string())))
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&TimerStore) -> Result<T, TimersFault> + Send + 'static,
    ) -> Result<T, TimersError> {
        self.writer.write(move |store| store.run(work)).await
    }
}

impl LsmStore for TimerStore {
    fn database(&self) -> &Database {
        &self.database
    }

    fn keyspaces(&self) -> Vec<Keyspace> {
        let fixed =
            [&self.shards, &self.rows, &self.ids, &self.late, &self.late_ids, &self.counts].map(Keyspace::clone);
        fixed.into_iter().chain(self.ends.newest_first()).chain(self.dead.newest_first()).collect()
    }
}

impl TimerStore {
    fn open(path: &Path, settings: TimerSettings) -> fjall::Result<Self> {
        let lines = Arc::<ShardLines>::default();
        let builder = small_database(path, CACHE_BYTES);
        let builder = builder.max_journaling_size(JOURNAL_BYTES_MAX).with_compaction_filter_factories(filters(&lines));
        let database = builder.open()?;
        let inner = Self {
            shards: database.keyspace("shards", small_keyspace)?,
            rows: database.keyspace("rows", rows_keyspace)?,
            ids: database.keyspace("ids", small_keyspace)?,
            late: database.keyspace("late", small_keyspace)?,
            late_ids: database.keyspace("late_ids", small_keyspace)?,
            counts: database.keyspace("counts", small_keyspace)?,
            ends: Slices::open(&database, "ends", settings.remember)?,
            dead: Slices::open(&database, "dead", settings.remember)?,
            sealing: MemtableSealer::default(),
            opening: next_opening(),
            lines,
            settings,
            database,
        };
        // Writes of an earlier process may be only in the page cache.
        inner.database.persist(PersistMode::SyncData)?;
        inner.note_lines()?;
        Ok(inner)
    }

    /// The state of the shard, from the same reader as the other rows.
    fn state(&self, reader: &impl Readable, shard: u32) -> Result<Option<TimerShardState>, TimersFault> {
        let Some(value) = reader.get(&self.shards, shard.to_be_bytes())? else { return Ok(None) };
        let bad = || damaged(&format!("the state of shard {shard} cannot be decoded"));
        TimerShardState::decode(&value).ok_or_else(bad).map(Some)
    }

    /// Loads the lines that an earlier process stored.
    fn note_lines(&self) -> fjall::Result<()> {
        for entry in self.shards.iter() {
            let (key, value) = entry.into_inner()?;
            if let (Ok(shard), Some(state)) = (<[u8; 4]>::try_from(&key[..]), TimerShardState::decode(&value)) {
                let place = Generation { part: u32::from_be_bytes(shard), generation: state.generation };
                self.lines.note(place, state.line);
            }
        }
        Ok(())
    }

    /// Flushes all memtables, so that the next start has no journal to replay, or a short one.
    fn flush(&self) -> Result<(), TimersFault> {
        Ok(flush(&self.keyspaces().iter().collect::<Vec<_>>())?)
    }

    /// Only for the writer thread, like every write.
    fn open_shard(&self, shard: u32, epoch: u64) -> Result<Option<u64>, TimersFault> {
        let known = self.state(&self.database.snapshot(), shard)?;
        let state = known.unwrap_or(TimerShardState::UNKNOWN);
        if epoch < state.epoch {
            return Ok(None);
        }
        if known.is_none() || epoch > state.epoch {
            let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&self.shards, shard.to_be_bytes(), TimerShardState { epoch, ..state }.encode());
            batch.commit()?;
        } else {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(Some(state.applied))
    }
}

impl Timers for LsmTimers {
    fn open(&self, shard: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, TimersError>> {
        Box::pin(self.write(move |inner| inner.open_shard(shard, epoch)))
    }

    fn apply(&self, shard: u32, write: TimersWrite) -> PortFuture<'_, Result<ApplyOutcome, TimersError>> {
        Box::pin(async move {
            let (applied, chore) = self.write(move |inner| inner.apply(shard, write)).await?;
            if let Some(chore) = chore {
                self.eraser.take(chore);
            }
            Ok(applied)
        })
    }

    fn due(
        &self,
        shard: u32,
        after: Option<DueCursor>,
        until: Timestamp,
        limit: usize,
        max_bytes: usize,
    ) -> TimersRead<'_, Vec<Arc<Hold>>> {
        Box::pin(self.read_blocking(move |inner| inner.due(shard, after.as_ref(), until, limit, max_bytes)))
    }

    fn get(&self, shard: u32, ids: Vec<HoldId>) -> TimersRead<'_, Vec<Option<StoredHold>>> {
        Box::pin(async move {
            if ids.len() <= GET_IN_TURN_MAX {
                return self.reader.read(move |store| store.run(|inner| inner.get(shard, &ids))).await;
            }
            self.read_blocking(move |inner| inner.get(shard, &ids)).await
        })
    }

    fn list(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<Arc<Hold>>> {
        Box::pin(self.read_blocking(move |inner| inner.list(shard, &query)))
    }

    fn dead(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<(HoldId, HoldEnd)>> {
        Box::pin(self.read_blocking(move |inner| inner.dead(shard, &query)))
    }

    fn count(&self, shard: u32, query: CountQuery) -> TimersRead<'_, Vec<(Timestamp, u64)>> {
        Box::pin(self.read_blocking(move |inner| inner.count(shard, &query)))
    }

    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(async {
            if let Err(error) = self.write(TimerStore::flush).await {
                tracing::warn!(%error, "cannot flush the holds; the next start replays a longer journal");
            }
        })
    }
}
