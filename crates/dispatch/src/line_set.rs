//! The lines of a subscription: its cursor, and one line for each replay. Lines take turns. Pure.
//!
//! Each new line gets a new incarnation. Work that an earlier line with the same number began is void.

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_model::ports::{ProgressKey, ProgressRow};
use whimbrel_model::subscription::Ordering;
use whimbrel_model::{Record, Timestamp};

use super::delivery_line::{DeliveryLine, LineRules};
use super::outbound_message::OutboundMessage;
use super::progress_format;
use super::window::{DeliveryTicket, ReadyDelivery, WindowLimits};

/// The number of the cursor's line.
pub const CURSOR: u32 = 0;

/// A delivery in flight: the line, its incarnation, and the ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryRef {
    pub line: u32,
    pub incarnation: u64,
    pub ticket: DeliveryTicket,
}

/// A message that is in flight.
#[derive(Debug, Clone)]
pub struct OutgoingMessage {
    pub out: DeliveryRef,
    /// Attempts are numbered from 1.
    pub attempt: u32,
    pub started: Timestamp,
    pub message: OutboundMessage,
}

#[derive(Default)]
pub struct LineSet {
    lines: BTreeMap<u32, DeliveryLine<Record>>,
    last_incarnation: u64,
    /// The line whose message was delivered last.
    last_line: u32,
}

impl LineSet {
    /// Adds an empty line, in place of the one with that number.
    pub fn begin(&mut self, number: u32, run: u32, ordering: Ordering, limits: WindowLimits, rules: LineRules) {
        self.last_incarnation += 1;
        let line = DeliveryLine::new(number, run, self.last_incarnation, ordering, limits, rules);
        self.lines.insert(number, line);
    }

    pub fn remove(&mut self, number: u32) -> Option<DeliveryLine<Record>> {
        self.lines.remove(&number)
    }

    /// Removes the lines whose numbers are not wanted.
    pub fn retain(&mut self, is_wanted: impl Fn(u32) -> bool) {
        self.lines.retain(|number, _| is_wanted(*number));
    }

    pub fn numbers(&self) -> Vec<u32> {
        self.lines.keys().copied().collect()
    }

    pub fn cursor(&self) -> Option<&DeliveryLine<Record>> {
        self.get(CURSOR)
    }

    pub fn get(&self, number: u32) -> Option<&DeliveryLine<Record>> {
        self.lines.get(&number)
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut DeliveryLine<Record>> {
        self.lines.get_mut(&number)
    }

    /// The line, unless another one with its number has replaced it.
    pub fn at(&mut self, number: u32, incarnation: u64) -> Option<&mut DeliveryLine<Record>> {
        self.get_mut(number).filter(|line| line.incarnation == incarnation)
    }

    pub fn iter(&self) -> impl Iterator<Item = &DeliveryLine<Record>> {
        self.lines.values()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut DeliveryLine<Record>> {
        self.lines.values_mut()
    }

    /// The next message to deliver, with the number of its line. A message without earlier attempts only if `fresh`.
    pub fn next_delivery(&mut self, now: Timestamp, fresh: bool) -> Option<(u32, ReadyDelivery<Record>)> {
        let next = |line: &mut DeliveryLine<Record>| {
            line.window.next_delivery(now, fresh).map(|delivery| (line.number, delivery))
        };
        let after = self.lines.range_mut(self.last_line.saturating_add(1)..).find_map(|(_, line)| next(line));
        let found = after.or_else(|| self.lines.range_mut(..=self.last_line).find_map(|(_, line)| next(line)))?;
        self.last_line = found.0;
        Some(found)
    }

    pub fn has_ready(&mut self, now: Timestamp) -> bool {
        self.lines.values_mut().any(|line| line.window.has_ready(now, true))
    }

    pub fn in_flight(&self) -> usize {
        self.iter().map(|line| line.window.in_flight()).sum()
    }

    pub fn body_bytes(&self) -> usize {
        self.iter().map(|line| line.window.body_bytes()).sum()
    }

    /// The numbers of waiting lanes and of messages without a body.
    pub fn parked(&self) -> (u64, u64) {
        let each = self.iter().map(|line| line.window.parked());
        each.fold((0, 0), |(lanes, messages), (more_lanes, more)| (lanes + more_lanes, messages + more))
    }

    pub fn are_full(&self) -> bool {
        self.iter().any(|line| line.window.is_full())
    }

    /// When the next parked lane is due.
    pub fn next_time(&self) -> Option<Timestamp> {
        self.iter().filter_map(|line| line.window.next_time()).min()
    }

    /// The runs of completed replays.
    pub fn completed_replays(&self) -> Vec<u32> {
        let are_over = |line: &&DeliveryLine<Record>| line.number != CURSOR && line.window.is_over();
        self.iter().filter(are_over).map(|line| line.number).collect()
    }

    /// Makes all parked lanes due at `now`.
    pub fn hurry(&mut self, now: Timestamp) {
        self.iter_mut().for_each(|line| line.window.hurry(now));
    }

    /// Moves the times of parked lanes after the clock was set back by `by`.
    pub fn set_back(&mut self, by: Duration) {
        self.iter_mut().for_each(|line| line.window.set_back(by));
    }

    /// Takes the rows of all partitions whose progress changed since the last call.
    pub fn unsaved(&mut self, failing_since: Option<Timestamp>) -> Vec<ProgressRow> {
        let mut rows = Vec::new();
        for line in self.lines.values_mut() {
            let (number, run) = (line.number, line.run);
            rows.extend(line.window.unsaved().into_iter().map(|(partition, progress)| ProgressRow {
                place: ProgressKey { line: number, partition },
                run,
                state: progress_format::encode(&progress, failing_since).into(),
            }));
        }
        rows
    }

    /// Marks rows as changed after they could not be saved.
    pub fn not_saved(&mut self, rows: &[ProgressRow]) {
        for row in rows {
            if let Some(line) = self.lines.get_mut(&row.place.line) {
                line.window.not_saved([row.place.partition]);
            }
        }
    }

    /// Marks the rows of all partitions as changed.
    pub fn save_all(&mut self) {
        for line in self.lines.values_mut() {
            let all = line.window.partition_ids();
            line.window.not_saved(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use whimbrel_model::subscription::Mode;
    use whimbrel_model::{Headers, PartitionId, SubscriptionSpec, TopicNumber};

    use super::super::window::{PartitionResume, ReadMessage};
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000);
    const PARTITION: PartitionId = PartitionId::new(TopicNumber(1), 0);

    /// Lines with these numbers, each with `count` messages that are ready.
    fn lines(numbers: &[u32], count: u64) -> LineSet {
        let limits = WindowLimits { body_bytes: 1 << 20, parked_bytes: 1 << 20 };
        let rules = LineRules::of(&SubscriptionSpec::new(Vec::new(), Mode::Push, None));
        let mut lines = LineSet::default();
        for number in numbers {
            lines.begin(*number, number + 1, Ordering::None, limits, rules.clone());
            let window = &mut lines.get_mut(*number).unwrap().window;
            window.open(PARTITION, PartitionResume::at(0), None, false);
            window.next_read().unwrap();
            let record = Record { key: None, value: Bytes::new(), headers: Headers::EMPTY, timestamp: NOW };
            let message = |offset| ReadMessage { offset, key: None, size: 1, body: Some(record.clone()) };
            window.take_in(PARTITION, (0..count).map(message).collect(), count);
        }
        lines
    }

    #[test]
    fn lines_take_turns() {
        let mut lines = lines(&[0, 3, 7], 2);
        let order: Vec<u32> = std::iter::from_fn(|| lines.next_delivery(NOW, true)).map(|(number, _)| number).collect();
        assert_eq!(order, [3, 7, 0, 3, 7, 0]);
        assert_eq!(lines.in_flight(), 6);
    }

    #[test]
    fn a_line_that_was_replaced_is_not_found_by_its_incarnation() {
        let mut lines = lines(&[0], 1);
        let earlier = lines.cursor().unwrap().incarnation;
        let rules = lines.cursor().unwrap().rules.clone();
        lines.begin(CURSOR, 2, Ordering::Key, WindowLimits { body_bytes: 1, parked_bytes: 1 }, rules);
        let present = lines.cursor().unwrap().incarnation;
        assert!(lines.at(CURSOR, earlier).is_none() && lines.at(CURSOR, present).is_some());
    }

    #[test]
    fn rows_are_unsaved_again_after_a_failed_save() {
        let mut lines = lines(&[0, 3], 1);
        let (_, delivery) = lines.next_delivery(NOW, true).unwrap();
        lines.get_mut(3).unwrap().succeeded(delivery.ticket);
        let rows = lines.unsaved(None);
        assert!(lines.unsaved(None).is_empty());
        lines.not_saved(&rows);
        assert_eq!(lines.unsaved(None), rows);
        lines.save_all();
        assert_eq!(lines.unsaved(None).len(), 2);
    }
}
