//! How far the owners of partitions are behind the records that were appended, as far as this process can tell.
//!
//! Topics that owners fold (`_holds`, `_push`) accept no more records than their owners can fold, so that their lag is bounded. The
//! progress of an owner on another node is unknown here unless it is reported; without a report it sets no bound.

use std::sync::atomic::{AtomicU64, Ordering};

/// The owner is on another node, or its progress is unknown.
const REMOTE: u64 = u64::MAX;

#[derive(Debug, Default)]
pub struct FoldBacklog {
    partitions: Box<[PartitionBacklog]>,
}

#[derive(Debug)]
struct PartitionBacklog {
    /// The offset after the last record that this process appended.
    appended: AtomicU64,
    /// The offset after the last record that the local owner has folded.
    folded: AtomicU64,
    /// The same for a remote owner, as last reported.
    remote_folded: AtomicU64,
}

impl FoldBacklog {
    pub fn new(partitions: u32) -> Self {
        let partition = || PartitionBacklog {
            appended: AtomicU64::new(0),
            folded: AtomicU64::new(REMOTE),
            remote_folded: AtomicU64::new(REMOTE),
        };
        Self { partitions: (0..partitions).map(|_| partition()).collect() }
    }

    pub fn appended(&self, partition: u32, offset: u64) {
        if let Some(partition) = self.partitions.get(partition as usize) {
            partition.appended.fetch_max(offset + 1, Ordering::Relaxed);
        }
    }

    /// Records that the local owner has folded all records before this offset.
    pub fn folded(&self, partition: u32, before: u64) {
        if let Some(partition) = self.partitions.get(partition as usize) {
            partition.folded.store(before, Ordering::Relaxed);
        }
    }

    /// Records that the owner is not on this node any more.
    pub fn owner_left(&self, partition: u32) {
        self.folded(partition, REMOTE);
    }

    /// Records that a remote owner has folded at least all records before this offset.
    pub fn set_remote_folded(&self, partition: u32, before: u64) {
        if let Some(partition) = self.partitions.get(partition as usize) {
            partition.remote_folded.store(before, Ordering::Relaxed);
        }
    }

    /// The partitions with a remote owner to which this process has appended.
    pub fn owned_remotely(&self) -> impl Iterator<Item = u32> {
        let is_meant = |partition: &PartitionBacklog| {
            partition.folded.load(Ordering::Relaxed) == REMOTE && partition.appended.load(Ordering::Relaxed) > 0
        };
        (0..).zip(&self.partitions).filter(move |(_, partition)| is_meant(partition)).map(|(number, _)| number)
    }

    /// The number of records that were appended and are not folded.
    pub fn behind(&self, partition: u32) -> u64 {
        let Some(partition) = self.partitions.get(partition as usize) else { return 0 };
        let folded = match partition.folded.load(Ordering::Relaxed) {
            REMOTE => partition.remote_folded.load(Ordering::Relaxed),
            folded => folded,
        };
        partition.appended.load(Ordering::Relaxed).saturating_sub(folded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_the_local_owner_has_not_folded_are_behind() {
        let backlog = FoldBacklog::new(2);
        backlog.appended(1, 99);
        assert_eq!(backlog.behind(1), 0, "the owner is remote");
        backlog.folded(1, 40);
        assert_eq!(backlog.behind(1), 60);
        backlog.appended(1, 50);
        assert_eq!(backlog.behind(1), 60, "appends may be recorded in any order");
        backlog.folded(1, 100);
        assert_eq!(backlog.behind(1), 0);
        backlog.folded(1, 0);
        backlog.owner_left(1);
        assert_eq!(backlog.behind(1), 0);
        assert_eq!(backlog.behind(7), 0, "the partition does not exist");
        assert_eq!(backlog.owned_remotely().collect::<Vec<_>>(), [1]);
        backlog.set_remote_folded(1, 90);
        assert_eq!(backlog.behind(1), 10, "the progress of the remote owner was reported");
        backlog.folded(1, 95);
        assert_eq!(backlog.behind(1), 5, "the progress of a local owner has precedence");
        assert_eq!(backlog.owned_remotely().count(), 0);
    }
}
