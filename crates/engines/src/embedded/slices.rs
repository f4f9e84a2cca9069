//! Keyspaces by slices of time. An expired slice is dropped whole, which costs no tombstones and no scans.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fjall::compaction::Leveled;
use fjall::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy, PinningPolicy};
use fjall::{Database, DatabaseBuilder, Keyspace, KeyspaceCreateOptions};
use rustix::process::{Resource, getrlimit};
use whimbrel_model::Timestamp;

/// The number of slices that cover a window. One more is partly outside the window.
const SLICES_PER_WINDOW: i64 = 2;

/// The maximum bytes in the memtable of a keyspace. There are a handful of keyspaces.
pub(super) const MEMTABLE_BYTES: u64 = 8 << 20;

/// Bytes of a table. A merge takes several tables: smaller ones make merges shorter and keep the first level small, which is rewritten most
/// often.
const TABLE_BYTES: u64 = 16 << 20;

/// Bits of a filter for each key: of 100 lookups for an absent key, one reads a block in vain.
const FILTER_BITS_PER_KEY: f32 = 10.0;

/// Options for a keyspace whose memory does not grow with its size. Filters and indexes of tables are partitioned; the partitions are read
/// when needed and cached like other blocks.
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

/// The number of threads of an LSM that flush and merge tables. With two, one would spin while the other merges.
const WORKERS: usize = 1;

/// The number of table files that an LSM keeps open for reads; the library would keep 900. A read of another table opens it in place of one
/// of these. Merges open their tables besides.
const OPEN_TABLES_MAX: u64 = 100;
/// The seven LSMs may use a part of the file descriptors. With a low limit, the tables of each take at most one part in this many.
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
    /// Finds the slices of an earlier process. Their numbers are their start times, so a changed window is harmless.
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

    /// The slice of a time. Creates it if it is missing.
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

    /// Drops the slices that end before the window that ends now.
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
