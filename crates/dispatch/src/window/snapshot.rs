//! The state of a window, for metrics, requests and saving.

use whimbrel_model::PartitionId;

use super::partition::WindowPartition;
use super::{DeliveryTicket, DeliveryWindow, PartitionProgress, WindowMessageState};

impl<B: Clone> DeliveryWindow<B> {
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The partition and offset of a message in flight, or being settled.
    pub fn place_of(&self, ticket: DeliveryTicket) -> Option<(PartitionId, u64)> {
        self.out.get(&ticket).copied()
    }

    pub fn body_bytes(&self) -> usize {
        self.bodies.all()
    }

    pub fn parked_bytes(&self) -> usize {
        self.partitions.values().map(WindowPartition::parked_bytes).sum()
    }

    /// The number of lanes that wait for a retry or behind a barrier, and the number of messages without a body in all lanes.
    pub fn parked(&self) -> (u64, u64) {
        let lanes = self.partitions.values().map(|partition| partition.waiting_lanes()).sum();
        (lanes, self.partitions.values().map(|partition| partition.backlog_len).sum())
    }

    /// Whether reading has paused at the bound of parked state.
    pub fn is_full(&self) -> bool {
        self.partitions.values().any(|partition| partition.parked_bytes() > self.limits.parked_bytes)
    }

    /// Whether all partitions are at their end without unfinished messages: the replay is complete.
    pub fn is_over(&self) -> bool {
        self.partitions.values().all(|partition| partition.is_at_end() && partition.unfinished.is_empty())
    }

    pub fn watermark(&self, id: PartitionId) -> Option<u64> {
        self.partitions.get(&id).map(WindowPartition::watermark)
    }

    pub fn read_to(&self, id: PartitionId) -> Option<u64> {
        self.partitions.get(&id).map(|partition| partition.read_to)
    }

    pub fn unfinished(&self, id: PartitionId) -> u64 {
        self.partitions.get(&id).map_or(0, |partition| partition.progress().unfinished.len())
    }

    /// The number of offsets of a replayed partition that are not done yet.
    pub fn left(&self, id: PartitionId) -> u64 {
        let Some(partition) = self.partitions.get(&id) else { return 0 };
        let ahead = partition.until.map_or(0, |until| until.saturating_sub(partition.read_to));
        partition.unfinished.len() + ahead
    }

    pub fn message_state(&self, id: PartitionId, offset: u64) -> WindowMessageState {
        self.partitions.get(&id).map_or(WindowMessageState::Ahead, |partition| partition.message_state(offset))
    }

    pub fn progress(&self, id: PartitionId) -> Option<PartitionProgress> {
        self.partitions.get(&id).map(WindowPartition::progress)
    }

    /// Takes the progress of all partitions that changed since the last call.
    pub fn unsaved(&mut self) -> Vec<(PartitionId, PartitionProgress)> {
        let mut unsaved = Vec::new();
        for (id, partition) in &mut self.partitions {
            if std::mem::take(&mut partition.changed) {
                unsaved.push((*id, partition.progress()));
            }
        }
        unsaved
    }

    /// Marks partitions as changed after their progress could not be saved.
    pub fn not_saved(&mut self, ids: impl IntoIterator<Item = PartitionId>) {
        for id in ids {
            if let Some(partition) = self.partitions.get_mut(&id) {
                partition.changed = true;
            }
        }
    }
}
