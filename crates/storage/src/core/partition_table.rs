//! The partitions of the log by key, and the retention of their topics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::keeper::TopicRetention;
use super::lock;
use crate::PartitionKey;
use crate::partition::LogPartition;

type PartitionMap = HashMap<PartitionKey, Arc<LogPartition>>;

#[derive(Default)]
pub(super) struct PartitionTable {
    partitions: RwLock<PartitionMap>,
    retention: RwLock<HashMap<u32, TopicRetention>>,
    /// Held while topics are created or deleted. A checkpoint need not wait for it: a partition created after the marks were taken has only
    /// later frames, and a deleted partition has no mark.
    changing_topics: Mutex<()>,
}

impl PartitionTable {
    /// Excludes other creations and deletions of topics while the guard exists.
    pub fn lock_topics(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing_topics)
    }

    fn read(&self) -> RwLockReadGuard<'_, PartitionMap> {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, PartitionMap> {
        self.partitions.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, key: PartitionKey) -> Option<Arc<LogPartition>> {
        self.read().get(&key).cloned()
    }

    /// All partitions in a fixed order, so that the same calls do the same to the disk.
    pub fn all(&self) -> Vec<Arc<LogPartition>> {
        let mut partitions: Vec<Arc<LogPartition>> = self.read().values().cloned().collect();
        partitions.sort_unstable_by_key(|partition| partition.key);
        partitions
    }

    /// The keys, in no order.
    pub fn keys(&self) -> Vec<PartitionKey> {
        self.read().keys().copied().collect()
    }

    pub fn count(&self, topic: u32) -> usize {
        self.read().keys().filter(|key| key.topic == topic).count()
    }

    pub fn insert(&self, partitions: Vec<LogPartition>) {
        self.write().extend(partitions.into_iter().map(|partition| (partition.key, Arc::new(partition))));
    }

    pub fn remove_topic(&self, topic: u32) {
        self.write().retain(|key, _| key.topic != topic);
        self.retention.write().unwrap_or_else(PoisonError::into_inner).remove(&topic);
    }

    pub fn set_retention(&self, topic: u32, retention: TopicRetention) {
        self.retention.write().unwrap_or_else(PoisonError::into_inner).insert(topic, retention);
    }

    pub fn retention(&self, topic: u32) -> Option<TopicRetention> {
        self.retention.read().unwrap_or_else(PoisonError::into_inner).get(&topic).copied()
    }
}
