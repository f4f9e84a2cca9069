//! Keyspaces by slices of time, dropped whole: what is forgotten after a time costs no tombstones and no scans.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fjall::compaction::Leveled;
use fjall::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy, PinningPolicy};
use fjall::{Database, DatabaseBuilder, Keyspace, KeyspaceCreateOptions};
use rustix::process::{Resource, getrlimit};
use whimbrel_model::Timestamp;

/// A window is covered by this many slices, and one more that it is leaving.
const SLICES_PER_WINDOW: i64 = 2;

/// Bytes of a keyspace's writes that are not in its tables yet. There are a handful of keyspaces.
pub(super) const MEMTABLE_BYTES: u64 = 8 << 20;

/// Bytes of a table. A merge takes several: with smaller ones it is over sooner, and the first level is smaller, which is rewritten
/// most often.
const TABLE_BYTES: u64 = 16 << 20;

/// Bits of a filter for each key: one lookup in a hundred for a key that is not there reads a block in vain.
const FILTER_BITS_PER_KEY: f32 = 10.0;

/// A keyspace whose memory does not grow with its size: filters and indexes of tables are in parts, which are read when they are
/// needed and stay in the cache or not, as all blocks.
pub(super) fn small_keyspace() -> KeyspaceCreateOptions {
    let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(FILTER_BITS_PER_KEY));
    KeyspaceCreateOptions::default()
        .max_memtable_size(MEMTABLE_BYTES)
        .filter_policy(FilterPolicy::all(filter))
        .index_block_pinning_policy(PinningPolicy::disabled())
        .filter_block_pinning_policy(PinningPolicy::disabled())
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
        .filter_block_partitioning_policy(PartitioningPolicy::all(true))
        .compaction_strategy(Arc::new(Leveled::default().with_table_target_size(TABLE_BYTES)))
}

/// The threads of an LSM that write tables and merge them. Of two, one would spin while the other merges.
const WORKERS: usize = 1;

/// The number of table files that an LSM keeps open for reads; the library would keep 900. A read of another table opens it in place of one of
/// these. Merges open their tables besides.
const OPEN_TABLES_MAX: u64 = 100;
/// There are seven LSMs: of few file descriptors, their tables take at most this part each.
const OPEN_TABLES_PART: u64 = 32;

/// The options of an LSM that all stores share.
pub(super) fn small_database(path: &Path, cache_bytes: u64) -> DatabaseBuilder<Database> {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open_tables = (descriptors / OPEN_TABLES_PART).clamp(1, OPEN_TABLES_MAX) as usize;
    Database::builder(path).cache_size(cache_bytes).worker_threads(WORKERS).max_cached_files(Some(open_tables))
}

pub(super) struct Slices {
    database: Database,
    family: &'static str,
    window_ms: i64,
    open: RwLock<BTreeMap<i64, Keyspace>>,
}

impl Slices {
    /// Finds the slices that an earlier process left. Their numbers are the time they begin at, so a changed window harms nothing.
    pub fn open(database: &Database, family: &'static str, window: Duration) -> fjall::Result<Self> {
        let mut open = BTreeMap::new();
        for name in database.list_keyspace_names() {
            let begins =
                name.strip_prefix(family).and_then(|rest| rest.strip_prefix('-')).and_then(|rest| rest.parse().ok());
            if let Some(begins) = begins {
                open.insert(begins, database.keyspace(&name, small_keyspace)?);
            }
        }
        let window_ms = (window.as_millis() as i64).max(SLICES_PER_WINDOW);
        Ok(Self { database: database.clone(), family, window_ms, open: RwLock::new(open) })
    }

    fn slice_ms(&self) -> i64 {
        self.window_ms / SLICES_PER_WINDOW
    }

    /// The slice of a time, made where it is not there.
    pub fn at(&self, time: Timestamp) -> fjall::Result<Keyspace> {
        let begins = time.as_millis().div_euclid(self.slice_ms()) * self.slice_ms();
        if let Some(slice) = self.open.read().unwrap_or_else(PoisonError::into_inner).get(&begins) {
            return Ok(slice.clone());
        }
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slice) = open.get(&begins) {
            return Ok(slice.clone());
        }
        let name = format!("{}-{begins}", self.family);
        let slice = self.database.keyspace(&name, small_keyspace)?;
        open.insert(begins, slice.clone());
        Ok(slice)
    }

    pub fn newest_first(&self) -> Vec<Keyspace> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).values().rev().cloned().collect()
    }

    /// Drops the slices that are wholly before the window that ends now.
    pub fn drop_before(&self, now: Timestamp) -> fjall::Result<()> {
        let limit = now.as_millis() - self.window_ms - self.slice_ms();
        let is_oldest_kept = |open: &BTreeMap<i64, Keyspace>| open.keys().next().is_none_or(|oldest| *oldest >= limit);
        if is_oldest_kept(&self.open.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        let gone: Vec<Keyspace> = {
            let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
            let kept = open.split_off(&limit);
            std::mem::replace(&mut *open, kept).into_values().collect()
        };
        gone.into_iter().try_for_each(|slice| self.database.delete_keyspace(slice))
    }
}
