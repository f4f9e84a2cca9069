//! The `Timers` port on an LSM beside the log.
//!
//! A write is one batch of the LSM over all its keyspaces, which the LSM's one journal takes whole or not at all. It survives the
//! process, and the machine too where it is asked to be synced: behind those the log may be trimmed. Reads take where the shard is and what they
//! find from one snapshot. Holds are kept in due order with their payloads, and by id; ends in slices of time that are dropped
//! whole; counts by topic and minute are kept with every write, and lead to what a topic has. [`keys`] has the formats, [`line`]
//! says why a hold that fires is deleted from neither.
//!
//! Nothing here is kept in memory by the number of holds: writes that are not in tables yet, blocks of tables that were read,
//! and the index and filter blocks among them are bounded below, whatever the store holds.
//!
//! Everything runs on threads that may block: a write waits for the disk, and for the LSM where it must catch up, and so does a read.
//! The store is a view of `_holds`: after damage it begins empty ([`StoreGuard`]), and the owners of the shards fold the log again.

mod erase;
mod keys;
mod line;
mod read;
mod write;

#[cfg(test)]
mod merged;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fjall::compaction::filter::Factory;
use fjall::config::{BlockSizePolicy, FilterPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use whimbrel_model::ports::{
    Applied, CountQuery, DueCursor, HoldQuery, Known, PortFuture, Timers, TimersError, TimersRead, Write,
};
use whimbrel_model::{Hold, HoldEnd, HoldId, Timestamp};

use super::background::yields;
use super::lsm::report::StoreReports;
use super::lsm::{self, LsmStore, StoreError, StoreGuard, StoreHandle, WorkThread, next_opening};
use super::sealing::{Sealing, flush};
use super::slices::{MEMTABLE_BYTES, Slices, small_database, small_keyspace};
use erase::{Chore, Eraser};
use keys::{Place, ShardState};
use line::{BelowTheLine, Lines, TimeIn};

/// Memory that the LSM may use for blocks of its tables.
const CACHE_BYTES: u64 = 32 << 20;
/// Bytes of rows that are not in tables yet. The LSM stops writers when four such heaps wait for its worker.
const ROWS_MEMTABLE_BYTES: u64 = 16 << 20;
/// Bytes of a block of rows: scans read many rows at once, a question for an id reads one block for its row.
const ROWS_BLOCK_BYTES: u32 = 16 << 10;
/// The LSM's journal, which a start reads again: what is beyond is in tables. The LSM allows no less; it keeps two to three times as
/// much for moments.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// Ids of a question that is answered in turn with others; one for more gets a thread of its own.
const GET_IN_TURN_MAX: usize = 64;
/// Writes and reads that wait for their thread; further callers wait until there is space.
const WRITES_WAITING_MAX: usize = 64;
const READS_WAITING_MAX: usize = 1024;
const STORE: &str = "holds";
const WRITER: &str = "holds-writer";
const READER: &str = "holds-reader";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerSettings {
    /// How long it is remembered what became of a hold.
    pub remember: Duration,
}

impl Default for TimerSettings {
    fn default() -> Self {
        Self { remember: Duration::from_millis(whimbrel_model::limits::RETENTION_DEFAULT_MS) }
    }
}

/// Timers in an LSM of the data folder.
pub struct LsmTimers {
    reader: WorkThread<StoreHandle<Inner>>,
    writer: WorkThread<StoreHandle<Inner>>,
    eraser: Eraser,
    /// Dropped after the threads, which do the work that waits.
    store: StoreGuard<Inner>,
}

struct Inner {
    settings: TimerSettings,
    /// Which opening of the store this is: chores of an earlier one are not done.
    opening: u64,
    database: Database,
    shards: Keyspace,
    rows: Keyspace,
    ids: Keyspace,
    late: Keyspace,
    late_ids: Keyspace,
    counts: Keyspace,
    lines: Arc<Lines>,
    ends: Slices,
    dead: Slices,
    sealing: Sealing,
}

type Fault = lsm::Fault<TimersError>;

impl StoreError for TimersError {
    fn unavailable(reason: String) -> Self {
        Self::Unavailable(reason)
    }
}

/// A row that cannot be understood. The LSM itself works.
fn damaged(reason: &str) -> Fault {
    Fault::Refused(TimersError::Damaged(reason.to_owned()))
}

/// Read in order, and by keys that are known to be there: filters would be built for nobody.
fn rows_keyspace() -> KeyspaceCreateOptions {
    let options = small_keyspace().max_memtable_size(ROWS_MEMTABLE_BYTES).filter_policy(FilterPolicy::disabled());
    options.data_block_size_policy(BlockSizePolicy::all(ROWS_BLOCK_BYTES))
}

/// What merges of tables may leave out, by keyspace.
fn filters(lines: &Arc<Lines>) -> CompactionFilters {
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
        let after_open = move |inner: &Arc<Inner>| {
            // The LSM's threads have this name.
            yields("fjall:worker");
            for place in erase::noted(inner).unwrap_or_default() {
                let _ = noted_chores.send(Chore::Erase { place, opening: inner.opening });
            }
        };
        let open = move |path: &Path| Inner::open(path, settings.clone());
        let store = StoreGuard::open(STORE, path, reports, open, after_open).map_err(TimersError::Unavailable)?;
        let reader = WorkThread::start(READER, READS_WAITING_MAX, store.handle()).map_err(failed)?;
        let writer = WorkThread::start(WRITER, WRITES_WAITING_MAX, store.handle()).map_err(failed)?;
        let eraser = Eraser::start(store.handle(), chores, handed).map_err(failed)?;
        yields(WRITER);
        Ok(Self { reader, writer, eraser, store })
    }

    /// Reads on a thread that may block.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, TimersError> {
        let store = self.store.handle();
        let done = tokio::task::spawn_blocking(move || store.run(work)).await;
        done.unwrap_or_else(|error| Err(TimersError::Unavailable(error.to_string())))
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, TimersError> {
        self.writer.write(move |store| store.run(work)).await
    }
}

impl LsmStore for Inner {
    fn database(&self) -> &Database {
        &self.database
    }

    fn keyspaces(&self) -> Vec<Keyspace> {
        let fixed =
            [&self.shards, &self.rows, &self.ids, &self.late, &self.late_ids, &self.counts].map(Keyspace::clone);
        fixed.into_iter().chain(self.ends.newest_first()).chain(self.dead.newest_first()).collect()
    }
}

impl Inner {
    fn open(path: &Path, settings: TimerSettings) -> fjall::Result<Self> {
        let lines = Arc::<Lines>::default();
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
            sealing: Sealing::default(),
            opening: next_opening(),
            lines,
            settings,
            database,
        };
        // Writes of an earlier process may be in the machine's memory only.
        inner.database.persist(PersistMode::SyncData)?;
        inner.note_lines()?;
        Ok(inner)
    }

    /// Where the shard is, in what is read.
    fn state(&self, reader: &impl Readable, shard: u32) -> Result<Option<ShardState>, Fault> {
        let Some(value) = reader.get(&self.shards, shard.to_be_bytes())? else { return Ok(None) };
        let bad = || damaged(&format!("the position of shard {shard} cannot be read"));
        ShardState::decode(&value).ok_or_else(bad).map(Some)
    }

    /// The lines as an earlier process left them.
    fn note_lines(&self) -> fjall::Result<()> {
        for entry in self.shards.iter() {
            let (key, value) = entry.into_inner()?;
            if let (Ok(shard), Some(state)) = (<[u8; 4]>::try_from(&key[..]), ShardState::decode(&value)) {
                let place = Place { shard: u32::from_be_bytes(shard), generation: state.generation };
                self.lines.note(place, state.line);
            }
        }
        Ok(())
    }

    /// So that the next start finds no journal that it would have to read again, or a short one.
    fn flush(&self) -> Result<(), Fault> {
        Ok(flush(&self.keyspaces().iter().collect::<Vec<_>>())?)
    }

    /// For the writer's thread alone, as every write.
    fn open_shard(&self, shard: u32, epoch: u64) -> Result<Option<u64>, Fault> {
        let known = self.state(&self.database.snapshot(), shard)?;
        let state = known.unwrap_or(ShardState::UNKNOWN);
        if epoch < state.epoch {
            return Ok(None);
        }
        if known.is_none() || epoch > state.epoch {
            let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&self.shards, shard.to_be_bytes(), ShardState { epoch, ..state }.encode());
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

    fn apply(&self, shard: u32, write: Write) -> PortFuture<'_, Result<Applied, TimersError>> {
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
        Box::pin(self.apart(move |inner| inner.due(shard, after.as_ref(), until, limit, max_bytes)))
    }

    fn get(&self, shard: u32, ids: Vec<HoldId>) -> TimersRead<'_, Vec<Option<Known>>> {
        Box::pin(async move {
            if ids.len() <= GET_IN_TURN_MAX {
                return self.reader.read(move |store| store.run(|inner| inner.get(shard, &ids))).await;
            }
            self.apart(move |inner| inner.get(shard, &ids)).await
        })
    }

    fn list(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<Arc<Hold>>> {
        Box::pin(self.apart(move |inner| inner.list(shard, &query)))
    }

    fn dead(&self, shard: u32, query: HoldQuery) -> TimersRead<'_, Vec<(HoldId, HoldEnd)>> {
        Box::pin(self.apart(move |inner| inner.dead(shard, &query)))
    }

    fn count(&self, shard: u32, query: CountQuery) -> TimersRead<'_, Vec<(Timestamp, u64)>> {
        Box::pin(self.apart(move |inner| inner.count(shard, &query)))
    }

    fn close(&self) -> PortFuture<'_, ()> {
        Box::pin(async {
            if let Err(error) = self.write(Inner::flush).await {
                tracing::warn!(%error, "the next start reads more of the holds' journal than it would need to");
            }
        })
    }
}
