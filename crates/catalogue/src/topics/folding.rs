//! How far the owners of a topic's partitions are behind what was appended to them, as far as this process sees both.
//!
//! Topics that are folded into a state (`_holds`, `_push`) take no more than their owners can fold: a bound instead of a lag that grows.
//! An owner elsewhere is not seen, and bounds nothing here unless somebody tells how far it has come.

use std::sync::atomic::{AtomicU64, Ordering};

/// The owner is not in this process.
const ELSEWHERE: u64 = u64::MAX;

#[derive(Debug, Default)]
pub struct Folding {
    partitions: Box<[Partition]>,
}

#[derive(Debug)]
struct Partition {
    /// The offset behind the last record that was appended from here.
    appended: AtomicU64,
    /// The offset behind the last record that its owner has folded.
    folded: AtomicU64,
    /// The same of an owner elsewhere, as far as it was told.
    told: AtomicU64,
}

impl Folding {
    pub fn new(partitions: u32) -> Self {
        let partition = || Partition {
            appended: AtomicU64::new(0),
            folded: AtomicU64::new(ELSEWHERE),
            told: AtomicU64::new(ELSEWHERE),
        };
        Self { partitions: (0..partitions).map(|_| partition()).collect() }
    }

    pub fn appended(&self, partition: u32, offset: u64) {
        if let Some(partition) = self.partitions.get(partition as usize) {
            partition.appended.fetch_max(offset + 1, Ordering::Relaxed);
        }
    }

    /// The owner, which is here, has folded everything before that offset.
    pub fn folded(&self, partition: u32, before: u64) {
        if let Some(partition) = self.partitions.get(partition as usize) {
            partition.folded.store(before, Ordering::Relaxed);
        }
    }

    /// The owner is no longer here.
    pub fn left(&self, partition: u32) {
        self.folded(partition, ELSEWHERE);
    }

    /// An owner elsewhere has folded at least everything before that offset.
    pub fn told(&self, partition: u32, before: u64) {
        if let Some(partition) = self.partitions.get(partition as usize) {
            partition.told.store(before, Ordering::Relaxed);
        }
    }

    /// The partitions whose owner is elsewhere and that something was appended to from here.
    pub fn owned_elsewhere(&self) -> impl Iterator<Item = u32> {
        let is_meant = |partition: &Partition| {
            partition.folded.load(Ordering::Relaxed) == ELSEWHERE && partition.appended.load(Ordering::Relaxed) > 0
        };
        (0..).zip(&self.partitions).filter(move |(_, partition)| is_meant(partition)).map(|(number, _)| number)
    }

    /// Records that were appended and are not folded.
    pub fn behind(&self, partition: u32) -> u64 {
        let Some(partition) = self.partitions.get(partition as usize) else { return 0 };
        let folded = match partition.folded.load(Ordering::Relaxed) {
            ELSEWHERE => partition.told.load(Ordering::Relaxed),
            folded => folded,
        };
        partition.appended.load(Ordering::Relaxed).saturating_sub(folded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_and_not_folded_is_behind_while_the_owner_is_here() {
        let folding = Folding::new(2);
        folding.appended(1, 99);
        assert_eq!(folding.behind(1), 0, "its owner is elsewhere");
        folding.folded(1, 40);
        assert_eq!(folding.behind(1), 60);
        folding.appended(1, 50);
        assert_eq!(folding.behind(1), 60, "appends may be told of in any order");
        folding.folded(1, 100);
        assert_eq!(folding.behind(1), 0);
        folding.folded(1, 0);
        folding.left(1);
        assert_eq!(folding.behind(1), 0);
        assert_eq!(folding.behind(7), 0, "there is no such partition");
        assert_eq!(folding.owned_elsewhere().collect::<Vec<_>>(), [1]);
        folding.told(1, 90);
        assert_eq!(folding.behind(1), 10, "somebody said how far the owner elsewhere is");
        folding.folded(1, 95);
        assert_eq!(folding.behind(1), 5, "an owner here is known better");
        assert_eq!(folding.owned_elsewhere().count(), 0);
    }
}
