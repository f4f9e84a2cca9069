//! A scene for tests: a window and a log in memory.

use bytes::Bytes;
use whimbrel_model::partitioner::partition_of;

use super::*;
use crate::progress_format;

pub const TOPIC: TopicNumber = TopicNumber(1);
pub const RETRIES: PartitionId = PartitionId { topic: TopicNumber(9), index: 0 };
/// The size of each message in bytes, unless another one is given.
pub const SIZE: usize = 10;
/// The most reads that a scene may need at one time. More means that the window requests the same reads repeatedly.
const ROUNDS_MAX: usize = 10_000;

pub fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

pub fn place(index: u32) -> PartitionId {
    PartitionId::new(TOPIC, index)
}

pub struct WindowScene {
    pub window: DeliveryWindow<u64>,
    pub now: Timestamp,
    pub size: usize,
    ordering: Ordering,
    limits: WindowLimits,
    log: HashMap<PartitionId, Vec<(String, usize)>>,
    first: HashMap<PartitionId, u64>,
    pub count: u32,
    pub growths: Vec<Growth>,
}

impl WindowScene {
    pub fn new(ordering: Ordering) -> Self {
        Self::with_limits(ordering, 1 << 20, 1 << 20)
    }

    pub fn with_limits(ordering: Ordering, body_bytes: usize, parked_bytes: usize) -> Self {
        let limits = WindowLimits { body_bytes, parked_bytes };
        let mut scene = Self {
            window: DeliveryWindow::new(ordering, limits),
            now: at(0),
            size: SIZE,
            ordering,
            limits,
            log: HashMap::new(),
            first: HashMap::new(),
            count: 1,
            growths: Vec::new(),
        };
        scene.open(place(0), 0);
        scene
    }

    /// A scene with these messages, which the window has read.
    pub fn having_read(ordering: Ordering, keys: &[&str]) -> Self {
        let mut scene = Self::new(ordering);
        scene.publish_all(keys);
        scene.read();
        scene
    }

    /// A scene that starts with this number of partitions.
    pub fn with_partitions(ordering: Ordering, partitions: u32) -> Self {
        let mut scene = Self::new(ordering);
        scene.count = partitions;
        (0..partitions).for_each(|index| scene.open(place(index), 0));
        scene
    }

    pub fn open(&mut self, id: PartitionId, from: u64) {
        self.window.open(id, PartitionResume::at(from), None, id == RETRIES);
        self.log.entry(id).or_default();
    }

    pub fn open_retries(&mut self) {
        self.open(RETRIES, 0);
    }

    pub fn publish_retry(&mut self) {
        self.log.get_mut(&RETRIES).unwrap().push((String::new(), SIZE));
    }

    /// Publishes into the key's partition; without a key into partition 0. Returns the message's place.
    pub fn publish_sized(&mut self, key: &str, size: usize) -> (PartitionId, u64) {
        let index = if key.is_empty() { 0 } else { partition_of(key.as_bytes(), self.count) };
        let log = self.log.entry(place(index)).or_default();
        log.push((key.to_owned(), size));
        (place(index), log.len() as u64 - 1)
    }

    pub fn publish(&mut self, key: &str) -> (PartitionId, u64) {
        self.publish_sized(key, SIZE)
    }

    pub fn publish_all(&mut self, keys: &[&str]) {
        keys.iter().for_each(|key| {
            self.publish(key);
        });
    }

    pub fn grow(&mut self, to: u32) {
        let ends = (0..self.count).map(|index| self.log.get(&place(index)).map_or(0, |log| log.len() as u64));
        self.growths.push(Growth { at_ms: 0, from: self.count, to, ends: ends.collect() });
        self.count = to;
        (0..to).for_each(|index| self.open(place(index), 0));
        self.window.set_growths(TOPIC, &self.growths);
    }

    pub fn trim(&mut self, id: PartitionId, first: u64) {
        self.first.insert(id, first);
    }

    pub fn arrival(&self, id: PartitionId, offset: u64) -> ReadMessage<u64> {
        let (key, size) = &self.log[&id][offset as usize];
        let key = (!key.is_empty()).then(|| Bytes::from(key.clone()));
        ReadMessage { offset, key, size: *size, body: Some(offset) }
    }

    /// Performs all requested reads that find messages.
    pub fn read(&mut self) {
        self.rounds_of_reading();
    }

    pub fn rounds_of_reading(&mut self) -> usize {
        let mut empty = Vec::new();
        let mut rounds = 0;
        while let Some(wanted) = self.window.next_read() {
            let end = self.log[&wanted.partition].len() as u64;
            if wanted.from >= end {
                empty.push(wanted);
                continue;
            }
            rounds += 1;
            assert!(rounds < ROUNDS_MAX, "the same reads are requested repeatedly: {wanted:?}");
            let from = wanted.from.max(self.first.get(&wanted.partition).copied().unwrap_or(0));
            let (mut arrivals, mut bytes) = (Vec::new(), 0);
            for offset in from..end {
                let arrival = self.arrival(wanted.partition, offset);
                bytes += arrival.size;
                if bytes > wanted.max_bytes && !arrivals.is_empty() {
                    break;
                }
                arrivals.push(arrival);
            }
            let next = arrivals.last().map_or(from, |last| last.offset + 1);
            if wanted.again {
                let lost = self.window.take_again(wanted, arrivals, next);
                assert!(lost.is_empty(), "this scene loses no message");
            } else {
                self.window.take_in(wanted.partition, arrivals, next);
            }
        }
        empty.into_iter().for_each(|wanted| self.window.end_read(wanted));
        rounds
    }

    pub fn next(&mut self) -> Option<ReadyDelivery<u64>> {
        self.window.next_delivery(self.now, FRESH)
    }

    /// Parks the next delivery until a time, after a failed attempt.
    pub fn park_next(&mut self, until_ms: i64) {
        let out = self.next().expect("a message is ready");
        assert!(self.window.park(out.ticket, at(until_ms), true));
    }

    /// Continues at a time, and performs the reads of what is due then.
    pub fn read_at(&mut self, ms: i64) {
        self.now = at(ms);
        self.window.has_ready(self.now, FRESH);
        self.read();
    }

    pub fn restart(&mut self) {
        let mut fresh = DeliveryWindow::new(self.ordering, self.limits);
        for id in self.window.partition_ids() {
            let progress = self.window.partitions[&id].progress();
            let (resume, _) = progress_format::decode(&progress_format::encode(&progress, None)).unwrap();
            fresh.open(id, resume, None, id == RETRIES);
        }
        fresh.set_growths(TOPIC, &self.growths);
        self.window = fresh;
    }

    /// Delivers all messages successfully. Returns their places in order.
    pub fn deliver_all(&mut self) -> Vec<(u32, u64)> {
        let mut delivered = Vec::new();
        loop {
            self.window.has_ready(self.now, FRESH);
            self.read();
            let Some(out) = self.next() else { return delivered };
            delivered.push((out.partition.index, out.offset));
            self.window.done(out.ticket);
        }
    }
}

/// A key that each pair maps: with that number of partitions (first), to that partition (second).
pub fn key_with(places: &[(u32, u32)]) -> String {
    let fits = |key: &String| places.iter().all(|(count, index)| partition_of(key.as_bytes(), *count) == *index);
    (0..100_000).map(|number| format!("key{number}")).find(fits).expect("there is such a key")
}
