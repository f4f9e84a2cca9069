//! Barriers of growths. A growth may map a key to another partition. Its messages there wait until the old partition's messages from
//! before the growth are done.

use whimbrel_model::partitioner::partition_of;
use whimbrel_model::{PartitionId, TopicNumber};

use super::DeliveryWindow;
use super::partition::{LaneKey, LaneState};
use whimbrel_catalogue::topics::Growth;

impl<B: Clone> DeliveryWindow<B> {
    /// Sets the growths of a topic. Before messages from after a growth are taken in, the growth must be set and all partitions must be
    /// open: a partition that is not open delays no lane.
    pub fn set_growths(&mut self, topic: TopicNumber, growths: &[Growth]) {
        if self.growths.get(&topic).is_none_or(|known| known.len() != growths.len()) {
            self.growths.insert(topic, growths.to_vec());
        }
    }

    /// Whether a message must wait for its key's messages in another partition.
    pub(super) fn is_behind(&self, id: PartitionId, offset: u64, key: &LaneKey) -> bool {
        let Some(growths) = self.growths.get(&id.topic) else { return false };
        let after = |growth: &&Growth| {
            let begins = if id.index < growth.from { growth.ends.get(id.index as usize).copied() } else { Some(0) };
            begins.is_some_and(|begins| offset >= begins)
        };
        growths.iter().filter(after).any(|growth| match key {
            LaneKey::Single(_) => false,
            LaneKey::Key(text) => {
                let old = partition_of(text, growth.from);
                old != id.index && !self.is_cleared(id.topic, old, growth, key)
            }
            // The keys of a partition are not known, so it waits for all old partitions.
            LaneKey::Whole => {
                (0..growth.from).any(|old| old != id.index && !self.is_cleared(id.topic, old, growth, key))
            }
        })
    }

    /// Whether the old partition's messages of a lane from before the growth are done.
    fn is_cleared(&self, topic: TopicNumber, old: u32, growth: &Growth, key: &LaneKey) -> bool {
        let Some(partition) = self.partitions.get(&PartitionId::new(topic, old)) else { return true };
        let end = growth.ends.get(old as usize).map_or(0, |end| partition.up_to(*end));
        if partition.read_to < end {
            // The lane may have no messages in the unread part, but that is unknown. Only the watermark shows that all of it is done.
            return partition.watermark() >= end;
        }
        match key {
            LaneKey::Whole => partition.watermark() >= end,
            _ => partition.lanes.get(key).and_then(|lane| lane.head()).is_none_or(|head| head >= end),
        }
    }

    /// Whether a read from `before` on has passed the partition's end at the time of a growth.
    pub(super) fn crossed_barrier(&self, id: PartitionId, before: u64) -> bool {
        if self.behind.is_empty() {
            return false;
        }
        let Some(partition) = self.partitions.get(&id) else { return false };
        let growths = self.growths.get(&id.topic).map(Vec::as_slice).unwrap_or_default();
        let mut ends = growths.iter().filter_map(|growth| growth.ends.get(id.index as usize));
        ends.any(|end| {
            let end = partition.up_to(*end);
            before < end && partition.read_to >= end
        })
    }

    /// Activates the waiting lanes of this key whose barrier is cleared.
    pub(super) fn recheck_barriers(&mut self, key: &LaneKey) {
        if self.behind.is_empty() {
            return;
        }
        let Some(waiting) = self.behind.remove(key) else { return };
        let mut still = Vec::new();
        for id in waiting {
            let Some(lane) = self.partitions.get(&id).and_then(|partition| partition.lanes.get(key)) else { continue };
            if lane.state != LaneState::Behind {
                continue;
            }
            let Some(head) = lane.head() else { continue };
            if self.is_behind(id, head, key) {
                still.push(id);
            } else {
                self.activate_lane(id, key, head);
            }
        }
        if !still.is_empty() {
            self.behind.insert(key.clone(), still);
        }
    }

    pub(super) fn recheck_all_barriers(&mut self) {
        let keys: Vec<LaneKey> = self.behind.keys().cloned().collect();
        for key in keys {
            self.recheck_barriers(&key);
        }
    }
}
