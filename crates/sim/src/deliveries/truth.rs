//! The true history of each message, and the rules that it must obey.

use std::collections::{BTreeMap, HashMap};

use roaring::RoaringTreemap;
use whimbrel_model::PartitionId;
use whimbrel_model::subscription::Ordering;

use super::log::{RETRIES, SimTopic};
use crate::CheckResult;

/// A message. Its number is its position in the order of publishing.
#[derive(Debug, Clone)]
pub struct SentMessage {
    pub id: PartitionId,
    pub offset: u64,
    pub key: Option<Vec<u8>>,
    pub published_at: i64,
    /// The time at which the endpoint first received it, and how often it did.
    pub taken_at: Option<i64>,
    pub taken: u32,
    pub is_buried: bool,
    pub is_dropped: bool,
    pub is_held: bool,
}

impl SentMessage {
    /// Whether the message is finished: received, buried or dropped.
    fn is_over(&self) -> bool {
        self.taken_at.is_some() || self.is_buried || self.is_dropped
    }
}

/// Messages with an order among them, and the number of leading ones that are finished.
#[derive(Debug, Default)]
struct OrderLane {
    numbers: Vec<usize>,
    through: usize,
}

/// The start offsets of a run of the cursor.
pub type Starts = BTreeMap<PartitionId, u64>;

#[derive(Debug)]
pub struct DeliveryTruth {
    pub ordering: Ordering,
    pub messages: Vec<SentMessage>,
    /// All runs. The first one has the number 1.
    pub runs: Vec<Starts>,
    by_key: HashMap<Vec<u8>, OrderLane>,
    by_partition: HashMap<PartitionId, OrderLane>,
    /// The offsets that an owner of that run may report as done. Retries belong to no run.
    settled: HashMap<(u32, PartitionId), RoaringTreemap>,
    pub taken: u64,
    pub taken_again: u64,
    pub buried: u64,
    pub dropped: u64,
    pub held: u64,
}

impl DeliveryTruth {
    pub fn new(ordering: Ordering) -> Self {
        Self {
            ordering,
            messages: Vec::new(),
            runs: vec![Starts::new()],
            by_key: HashMap::new(),
            by_partition: HashMap::new(),
            settled: HashMap::new(),
            taken: 0,
            taken_again: 0,
            buried: 0,
            dropped: 0,
            held: 0,
        }
    }

    pub fn published(&mut self, id: PartitionId, offset: u64, key: Option<Vec<u8>>, published_at: i64) {
        let number = self.messages.len();
        self.by_partition.entry(id).or_default().numbers.push(number);
        if let Some(key) = &key {
            self.by_key.entry(key.clone()).or_default().numbers.push(number);
        }
        self.messages.push(SentMessage {
            id,
            offset,
            key,
            published_at,
            taken_at: None,
            taken: 0,
            is_buried: false,
            is_dropped: false,
            is_held: false,
        });
    }

    /// The number of the newest run, from 1.
    pub fn run(&self) -> u32 {
        self.runs.len() as u32
    }

    pub fn start(&self, run: u32, id: PartitionId) -> u64 {
        self.runs.get(run as usize - 1).and_then(|starts| starts.get(&id)).copied().unwrap_or(0)
    }

    fn is_in_run(&self, message: &SentMessage, run: u32) -> bool {
        message.offset >= self.start(run, message.id)
    }

    /// Records that the endpoint received a message. The order counts only for first receipts.
    pub fn taken(&mut self, number: usize, run: u32, at: i64, log: &SimTopic) -> CheckResult {
        self.messages[number].taken += 1;
        if self.messages[number].taken_at.is_some() {
            self.taken_again += 1;
            return Ok(());
        }
        self.in_order(number, run, log)?;
        self.taken += 1;
        self.messages[number].taken_at = Some(at);
        Ok(())
    }

    fn in_order(&mut self, number: usize, run: u32, log: &SimTopic) -> CheckResult {
        let message = &self.messages[number];
        // A held, buried or dropped message no longer belongs to its lane.
        if self.ordering == Ordering::None || message.is_held || message.is_buried || message.is_dropped {
            return Ok(());
        }
        let (id, key) = (message.id, message.key.clone());
        let is_through = |other: &SentMessage| other.is_over() || other.offset < log.first(other.id);
        let of_key = key.and_then(|key| self.by_key.get_mut(&key));
        let of_partition = self.by_partition.get_mut(&id).filter(|_| self.ordering == Ordering::Partition);
        for lane in of_key.into_iter().chain(of_partition) {
            while lane.numbers.get(lane.through).is_some_and(|other| is_through(&self.messages[*other])) {
                lane.through += 1;
            }
            let earlier = lane.numbers[lane.through..].iter().take_while(|other| **other < number);
            let start = |id| self.runs.get(run as usize - 1).and_then(|starts| starts.get(&id)).copied().unwrap_or(0);
            let mut earlier = earlier.map(|other| &self.messages[*other]);
            if let Some(other) = earlier.find(|other| other.offset >= start(other.id) && !is_through(other)) {
                let (its, of) = (other.offset, other.id);
                return Err(format!(
                    "message {number} of {id} was delivered before {of}:{its}, which precedes it in its lane"
                ));
            }
        }
        Ok(())
    }

    /// Records that an owner of that run may report a message as done: a success, a durable hold or dead letter, or a drop.
    pub fn settled(&mut self, run: u32, id: PartitionId, offset: u64) {
        let run = if id == RETRIES { 0 } else { run };
        self.settled.entry((run, id)).or_default().insert(offset);
    }

    /// Checks that the watermark of an owner of that run passed only done messages, from the end of the last check on.
    pub fn check_watermark(&self, run: u32, id: PartitionId, from: u64, watermark: u64, log: &SimTopic) -> CheckResult {
        let of = if id == RETRIES { 0 } else { run };
        let settled = self.settled.get(&(of, id));
        let from = if id == RETRIES { from } else { from.max(self.start(run, id)) };
        let records = log.records(id);
        let begin = records.partition_point(|stored| stored.offset < from);
        for stored in records[begin..].iter().take_while(|stored| stored.offset < watermark) {
            let offset = stored.offset;
            if !settled.is_some_and(|settled| settled.contains(offset)) && offset >= log.first(id) {
                return Err(format!(
                    "the watermark {watermark} of {id} in run {run} passed {offset}, which is not done"
                ));
            }
        }
        Ok(())
    }

    /// Checks at the end that each message of the last run and each held one was delivered, is a dead letter, or was dropped.
    pub fn nothing_is_missing(&self, log: &SimTopic) -> CheckResult {
        let run = self.run();
        for (number, message) in self.messages.iter().enumerate() {
            let is_gone = message.offset < log.first(message.id);
            let must = message.is_held || self.is_in_run(message, run);
            if must && !message.is_over() && !is_gone {
                return Err(format!("message {number} at {}:{} was never delivered", message.id, message.offset));
            }
        }
        Ok(())
    }
}
