//! How a window stands: for figures, for whoever asks, and to be saved.

use whimbrel_model::PartitionId;

use super::partition::Partition;
use super::{Standing, Whereabouts, Window};

impl<B: Clone> Window<B> {
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn body_bytes(&self) -> usize {
        self.bodies.all()
    }

    pub fn parked_bytes(&self) -> usize {
        self.partitions.values().map(Partition::parked_bytes).sum()
    }

    /// Lanes that wait for a retry or behind a barrier, and messages without a body behind them.
    pub fn parked(&self) -> (u64, u64) {
        let lanes = self.partitions.values().map(|partition| partition.waiting_lanes()).sum();
        (lanes, self.partitions.values().map(|partition| partition.backlog_len).sum())
    }

    /// Whether reading has stopped at the bound of what is parked.
    pub fn is_full(&self) -> bool {
        self.partitions.values().any(|partition| partition.parked_bytes() > self.limits.parked_bytes)
    }

    /// Whether every partition is at its end with nothing unfinished: a replay is over.
    pub fn is_over(&self) -> bool {
        self.partitions.values().all(|partition| partition.is_at_end() && partition.unfinished.is_empty())
    }

    pub fn watermark(&self, id: PartitionId) -> Option<u64> {
        self.partitions.get(&id).map(Partition::watermark)
    }

    pub fn read_to(&self, id: PartitionId) -> Option<u64> {
        self.partitions.get(&id).map(|partition| partition.read_to)
    }

    pub fn unfinished(&self, id: PartitionId) -> u64 {
        self.partitions.get(&id).map_or(0, |partition| partition.standing().unfinished.len())
    }

    /// What is not done yet of a partition that has an end.
    pub fn left(&self, id: PartitionId) -> u64 {
        let Some(partition) = self.partitions.get(&id) else { return 0 };
        let ahead = partition.until.map_or(0, |until| until.saturating_sub(partition.read_to));
        partition.unfinished.len() + ahead
    }

    pub fn whereabouts(&self, id: PartitionId, offset: u64) -> Whereabouts {
        self.partitions.get(&id).map_or(Whereabouts::Ahead, |partition| partition.whereabouts(offset))
    }

    /// How far a partition has come.
    pub fn standing(&self, id: PartitionId) -> Option<Standing> {
        self.partitions.get(&id).map(Partition::standing)
    }

    /// What is to be saved of a partition that changed since it was last asked for.
    pub fn unsaved(&mut self) -> Vec<(PartitionId, Standing)> {
        let mut unsaved = Vec::new();
        for (id, partition) in &mut self.partitions {
            if std::mem::take(&mut partition.changed) {
                unsaved.push((*id, partition.standing()));
            }
        }
        unsaved
    }

    /// What was given out to be saved was not.
    pub fn not_saved(&mut self, ids: impl IntoIterator<Item = PartitionId>) {
        for id in ids {
            if let Some(partition) = self.partitions.get_mut(&id) {
                partition.changed = true;
            }
        }
    }
}
