//! Messages that the log can no longer return, because retention or damage removed them while they were parked. They are settled under
//! tickets, and their lanes advance.

use std::ops::Range;

use whimbrel_model::PartitionId;

use super::partition::{LaneKey, LaneState};
use super::{DeliveryTicket, DeliveryWindow, ReadMessage, ReadRequest};

impl<B: Clone> DeliveryWindow<B> {
    /// Takes bodies that were read again: all messages from `wanted.from` to before `next`. Returns the offsets that the log no longer
    /// has. They are settled like failures, under tickets.
    pub fn take_again(
        &mut self,
        wanted: ReadRequest,
        arrivals: Vec<ReadMessage<B>>,
        next: u64,
    ) -> Vec<(DeliveryTicket, u64)> {
        let id = wanted.partition;
        let Some(partition) = self.partitions.get_mut(&id) else { return Vec::new() };
        if !std::mem::replace(&mut partition.reading_again, false) {
            return Vec::new();
        }
        let mut missing_from = wanted.from;
        let mut lost = Vec::new();
        for arrival in arrivals {
            lost.extend(self.lose(id, missing_from, arrival.offset));
            missing_from = arrival.offset + 1;
            self.return_body(id, arrival);
        }
        lost.extend(self.lose(id, missing_from, next));
        lost
    }

    /// Skips a range that the log can no longer return. Reading continues after it. Returns at most `most` lost messages, to be settled
    /// under their tickets. Call again while it returns that many.
    pub fn gone(&mut self, id: PartitionId, gone: Range<u64>, most: usize) -> Vec<(DeliveryTicket, u64)> {
        let Some(partition) = self.partitions.get_mut(&id) else { return Vec::new() };
        let before = partition.read_to;
        let lost = partition.without_body(&gone, most);
        let mut unread = Vec::new();
        if lost.len() < most && gone.contains(&partition.read_to) {
            // Messages that an earlier owner had not finished, and that were not read again yet, are lost as well.
            unread = partition.unfinished_ahead(gone.end).take(most - lost.len()).collect();
            match unread.last() {
                Some(last) if lost.len() + unread.len() == most => partition.read_to = last + 1,
                _ => partition.read_to = partition.up_to(gone.end),
            }
            unread.iter().for_each(|offset| partition.adopt_lost(*offset));
            partition.drop_finished_resume();
        }
        let mut tickets: Vec<_> = lost.iter().map(|(offset, key)| (self.lose_one(id, *offset, key), *offset)).collect();
        tickets.extend(unread.into_iter().map(|offset| (self.out_without_body(id, offset), offset)));
        if self.crossed_barrier(id, before) {
            self.recheck_all_barriers();
        }
        tickets
    }

    /// Loses the offsets from `from` to before `to` whose bodies were requested and are missing.
    fn lose(&mut self, id: PartitionId, from: u64, to: u64) -> Vec<(DeliveryTicket, u64)> {
        let mut lost = Vec::new();
        loop {
            let mut wanted = self.partitions[&id].awaiting_body.range((from, LaneKey::Single(0))..);
            let Some((offset, key)) = wanted.next().filter(|(offset, _)| *offset < to).cloned() else { return lost };
            lost.push((self.lose_one(id, offset, &key), offset));
        }
    }

    /// Removes a lost message from its lane, and issues its ticket. If it was the head, the lane advances.
    fn lose_one(&mut self, id: PartitionId, offset: u64, key: &LaneKey) -> DeliveryTicket {
        let partition = self.partitions.get_mut(&id).expect("the partition is open");
        let lane = &partition.lanes[key];
        let was_head = lane.head() == Some(offset);
        if let LaneState::Parked(until) = lane.state
            && was_head
        {
            self.parked.remove(&(until, id, key.clone()));
        }
        partition.lose(offset, key);
        if was_head {
            self.advance_lane(id, key);
            self.recheck_barriers(key);
        }
        self.update_awaiting_body(id);
        self.out_without_body(id, offset)
    }

    fn out_without_body(&mut self, id: PartitionId, offset: u64) -> DeliveryTicket {
        let ticket = self.new_ticket();
        self.out.insert(ticket, (id, offset));
        ticket
    }
}
