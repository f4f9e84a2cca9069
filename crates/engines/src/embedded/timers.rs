//! The `Timers` port on an LSM beside the log.
//!
//! A write is one batch of the LSM over all its keyspaces, which the LSM's one journal takes whole or not at all. It survives the
//! process, and the machine too where it is asked to be synced: behind those the log may be trimmed. Reads take where the shard is and what they
//! find from one snapshot. Holds are kept in due order with their payloads, and by id; ends in slices of time that are dropped
//! whole; counts by topic and minute are kept with every write, and lead to what a topic has. [`keys`] has the formats, [`line`]
//! says why a hold that fires is deleted from neither.
//!
//! Nothing here is kept in memory by the number of holds: writes that are not in tables yet, blocks of tables that were read,
//! and the index and filter blocks among them are bounded below, whatever the store holds. [`writer`] says why one thread writes,
//! [`reader`] why another answers.
//!
//! Everything runs on threads that may block: a write waits for the disk, and for the LSM where it must catch up, and so does a read.

mod erase;
mod keys;
mod line;
mod read;
mod reader;
mod write;
mod writer;

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
use super::sealing::{Sealing, flush};
use super::slices::{MEMTABLE_BYTES, Slices, small_keyspace};
use erase::Eraser;
use keys::{Place, ShardState};
use line::{BelowTheLine, Lines, TimeIn};
use reader::Reader;
use writer::Writer;

/// Memory that the LSM may use for blocks of its tables.
const CACHE_BYTES: u64 = 32 << 20;
/// Bytes of rows that are not in tables yet. The LSM stops writers when four such heaps wait for its worker.
const ROWS_MEMTABLE_BYTES: u64 = 16 << 20;
/// Bytes of a block of rows: scans read many rows at once, a question for an id reads one block for its row.
const ROWS_BLOCK_BYTES: u32 = 16 << 10;
/// The LSM's journal, which a start reads again: what is beyond is in tables. The LSM allows no less; it keeps two to three times as
/// much for moments.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// Threads of the LSM that write tables and merge them. Of two, one would spin while the other merges.
const WORKERS: usize = 1;
/// Ids of a question that is answered in turn with others; one for more gets a thread of its own.
const GET_IN_TURN_MAX: usize = 64;

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
    inner: Arc<Inner>,
    reader: Reader,
    writer: Writer,
    eraser: Eraser,
}

struct Inner {
    settings: TimerSettings,
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

fn unavailable(error: fjall::Error) -> TimersError {
    TimersError::Unavailable(error.to_string())
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
    pub fn open(path: &Path, settings: TimerSettings) -> Result<Self, TimersError> {
        let lines = Arc::<Lines>::default();
        let builder = Database::builder(path).cache_size(CACHE_BYTES).worker_threads(WORKERS);
        let builder = builder.max_journaling_size(JOURNAL_BYTES_MAX).with_compaction_filter_factories(filters(&lines));
        let database = builder.open().map_err(unavailable)?;
        let keyspace =
            |name, options: fn() -> KeyspaceCreateOptions| database.keyspace(name, options).map_err(unavailable);
        let inner = Inner {
            shards: keyspace("shards", small_keyspace)?,
            rows: keyspace("rows", rows_keyspace)?,
            ids: keyspace("ids", small_keyspace)?,
            late: keyspace("late", small_keyspace)?,
            late_ids: keyspace("late_ids", small_keyspace)?,
            counts: keyspace("counts", small_keyspace)?,
            ends: Slices::open(&database, "ends", settings.remember).map_err(unavailable)?,
            dead: Slices::open(&database, "dead", settings.remember).map_err(unavailable)?,
            sealing: Sealing::default(),
            lines,
            settings,
            database,
        };
        // What an earlier process left may be in no more than the machine's memory.
        inner.database.persist(PersistMode::SyncData).map_err(unavailable)?;
        inner.note_lines()?;
        let inner = Arc::new(inner);
        let reader = Reader::start(Arc::clone(&inner))?;
        let (writer, eraser) = (Writer::start(Arc::clone(&inner))?, Eraser::start(Arc::clone(&inner))?);
        // The LSM's threads have this name.
        yields("fjall:worker");
        yields(Writer::THREAD);
        Ok(Self { inner, reader, writer, eraser })
    }

    /// Runs where blocking harms nobody.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, TimersError> + Send + 'static,
    ) -> Result<T, TimersError> {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.unwrap_or_else(|error| Err(TimersError::Unavailable(error.to_string())))
    }
}

impl Inner {
    /// Where the shard is, in what is read.
    fn state(&self, reader: &impl Readable, shard: u32) -> Result<Option<ShardState>, TimersError> {
        let Some(value) = reader.get(&self.shards, shard.to_be_bytes()).map_err(unavailable)? else { return Ok(None) };
        let damaged = || TimersError::Damaged(format!("where shard {shard} is cannot be read"));
        ShardState::decode(&value).ok_or_else(damaged).map(Some)
    }

    /// The lines as an earlier process left them.
    fn note_lines(&self) -> Result<(), TimersError> {
        for entry in self.shards.iter() {
            let (key, value) = entry.into_inner().map_err(unavailable)?;
            if let (Ok(shard), Some(state)) = (<[u8; 4]>::try_from(&key[..]), ShardState::decode(&value)) {
                let place = Place { shard: u32::from_be_bytes(shard), generation: state.generation };
                self.lines.note(place, state.line);
            }
        }
        Ok(())
    }

    fn keyspaces(&self) -> impl Iterator<Item = Keyspace> + use<> {
        let fixed =
            [&self.shards, &self.rows, &self.ids, &self.late, &self.late_ids, &self.counts].map(Keyspace::clone);
        fixed.into_iter().chain(self.ends.newest_first()).chain(self.dead.newest_first())
    }

    /// So that the next start finds no journal that it would have to read again, or a short one.
    fn flush(&self) -> Result<(), TimersError> {
        flush(&self.keyspaces().collect::<Vec<_>>().iter().collect::<Vec<_>>()).map_err(unavailable)
    }

    /// For the writer's thread alone, as every write.
    fn open_shard(&self, shard: u32, epoch: u64) -> Result<Option<u64>, TimersError> {
        let known = self.state(&self.database.snapshot(), shard)?;
        let state = known.unwrap_or(ShardState::UNKNOWN);
        if epoch < state.epoch {
            return Ok(None);
        }
        if known.is_none() || epoch > state.epoch {
            let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&self.shards, shard.to_be_bytes(), ShardState { epoch, ..state }.encode());
            batch.commit().map_err(unavailable)?;
        } else {
            self.database.persist(PersistMode::SyncData).map_err(unavailable)?;
        }
        Ok(Some(state.applied))
    }
}

impl Timers for LsmTimers {
    fn open(&self, shard: u32, epoch: u64) -> PortFuture<'_, Result<Option<u64>, TimersError>> {
        Box::pin(self.writer.write(move |inner| inner.open_shard(shard, epoch)))
    }

    fn apply(&self, shard: u32, write: Write) -> PortFuture<'_, Result<Applied, TimersError>> {
        Box::pin(async move {
            let (applied, chore) = self.writer.write(move |inner| inner.apply(shard, write)).await?;
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
                return self.reader.get(shard, ids).await;
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
            if let Err(error) = self.writer.write(Inner::flush).await {
                tracing::warn!(%error, "the next start reads more of the holds' journal than it would need to");
            }
        })
    }
}
