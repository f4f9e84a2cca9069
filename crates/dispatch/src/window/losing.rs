//! What the log cannot give any more, because retention or damage took it while it was parked: it is settled under tickets, and its
//! lanes go on.

use std::ops::Range;

use whimbrel_model::PartitionId;

use super::partition::{LaneKey, LaneState};
use super::{Arrival, ReadWanted, Ticket, Window};

impl<B: Clone> Window<B> {
    /// Bodies that were asked for again: everything that was read from `wanted.from` to before `next`.
    /// Answers with the offsets that the log has no more, if any: they are settled like failures, under tickets.
    pub fn take_again(&mut self, wanted: ReadWanted, arrivals: Vec<Arrival<B>>, next: u64) -> Vec<(Ticket, u64)> {
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
            self.feed(id, arrival);
        }
        lost.extend(self.lose(id, missing_from, next));
        lost
    }

    /// The log cannot give these any more. What comes next is read from behind them; what was parked among them is lost: at most `most`
    /// of those are answered with, to be settled under their tickets. Call again while it answers with as many.
    pub fn gone(&mut self, id: PartitionId, gone: Range<u64>, most: usize) -> Vec<(Ticket, u64)> {
        let Some(partition) = self.partitions.get_mut(&id) else { return Vec::new() };
        let before = partition.read_to;
        let lost = partition.without_body(&gone, most);
        let mut unread = Vec::new();
        if lost.len() < most && gone.contains(&partition.read_to) {
            // What an earlier owner had not finished, and was not read again yet, is lost as well.
            unread = partition.unfinished_ahead(gone.end).take(most - lost.len()).collect();
            match unread.last() {
                Some(last) if lost.len() + unread.len() == most => partition.read_to = last + 1,
                _ => partition.read_to = partition.up_to(gone.end),
            }
            unread.iter().for_each(|offset| partition.adopt_lost(*offset));
            partition.left_behind();
        }
        let mut tickets: Vec<_> = lost.iter().map(|(offset, key)| (self.lose_one(id, *offset, key), *offset)).collect();
        tickets.extend(unread.into_iter().map(|offset| (self.out_without_body(id, offset), offset)));
        if self.crossed_barrier(id, before) {
            self.look_at_all_behind();
        }
        tickets
    }

    /// Offsets from `from` to before `to` whose bodies were wanted and are not there.
    fn lose(&mut self, id: PartitionId, from: u64, to: u64) -> Vec<(Ticket, u64)> {
        let mut lost = Vec::new();
        loop {
            let mut wanted = self.partitions[&id].hungry.range((from, LaneKey::Single(0))..);
            let Some((offset, key)) = wanted.next().filter(|(offset, _)| *offset < to).cloned() else { return lost };
            lost.push((self.lose_one(id, offset, &key), offset));
        }
    }

    /// The log has not got a message of a lane any more: it is settled, and where it was the head, the lane goes on.
    fn lose_one(&mut self, id: PartitionId, offset: u64, key: &LaneKey) -> Ticket {
        let partition = self.partitions.get_mut(&id).expect("it is open");
        let lane = &partition.lanes[key];
        let was_head = lane.head() == Some(offset);
        if let LaneState::Parked(until) = lane.state
            && was_head
        {
            self.parked.remove(&(until, id, key.clone()));
        }
        partition.lose(offset, key);
        if was_head {
            self.lane_goes_on(id, key);
            self.look_behind(key);
        }
        self.note_hunger(id);
        self.out_without_body(id, offset)
    }

    fn out_without_body(&mut self, id: PartitionId, offset: u64) -> Ticket {
        let ticket = self.new_ticket();
        self.out.insert(ticket, (id, offset));
        ticket
    }
}
