//! A log in memory beside a window: what a scene is played on.

use bytes::Bytes;
use whimbrel_model::partitioner::partition_of;

use super::*;
use crate::saved;

pub const TOPIC: TopicNumber = TopicNumber(1);
pub const RETRIES: PartitionId = PartitionId { topic: TopicNumber(9), index: 0 };
/// Bytes of each message, unless another number is given.
pub const SIZE: usize = 10;
/// Reads that a scene may need at one moment; more is a window that asks in circles.
const ROUNDS_MAX: usize = 10_000;

pub fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

pub fn place(index: u32) -> PartitionId {
    PartitionId::new(TOPIC, index)
}

pub struct Scene {
    pub window: Window<u64>,
    pub now: Timestamp,
    pub size: usize,
    ordering: Ordering,
    limits: WindowLimits,
    /// Key and size by offset.
    log: HashMap<PartitionId, Vec<(String, usize)>>,
    first: HashMap<PartitionId, u64>,
    pub count: u32,
    pub growths: Vec<Growth>,
}

impl Scene {
    pub fn new(ordering: Ordering) -> Self {
        Self::with_limits(ordering, 1 << 20, 1 << 20)
    }

    pub fn with_limits(ordering: Ordering, body_bytes: usize, parked_bytes: usize) -> Self {
        let limits = WindowLimits { body_bytes, parked_bytes };
        let mut scene = Self {
            window: Window::new(ordering, limits),
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

    /// With so many partitions from the beginning.
    pub fn with_partitions(ordering: Ordering, partitions: u32) -> Self {
        let mut scene = Self::new(ordering);
        scene.count = partitions;
        (0..partitions).for_each(|index| scene.open(place(index), 0));
        scene
    }

    pub fn open(&mut self, id: PartitionId, from: u64) {
        self.window.open(id, Resume::at(from), None, id == RETRIES);
        self.log.entry(id).or_default();
    }

    pub fn open_retries(&mut self) {
        self.open(RETRIES, 0);
    }

    pub fn publish_retry(&mut self) {
        self.log.get_mut(&RETRIES).unwrap().push((String::new(), SIZE));
    }

    /// Into the key's partition; without a key into the first. Answers with its place.
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

    /// The topic grows, and the window is told.
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

    pub fn arrival(&self, id: PartitionId, offset: u64) -> Arrival<u64> {
        let (key, size) = &self.log[&id][offset as usize];
        let key = (!key.is_empty()).then(|| Bytes::from(key.clone()));
        Arrival { offset, key, size: *size, body: Some(offset) }
    }

    /// Carries out all reads that are wanted and find something.
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
            assert!(rounds < ROUNDS_MAX, "it asks in circles: {wanted:?}");
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
                assert!(lost.is_empty(), "a scene that loses something says so");
            } else {
                self.window.take_in(wanted.partition, arrivals, next);
            }
        }
        empty.into_iter().for_each(|wanted| self.window.read_over(wanted));
        rounds
    }

    pub fn next(&mut self) -> Option<Delivery<u64>> {
        self.window.next_delivery(self.now, FRESH)
    }

    /// Another owner begins from what is saved of this one.
    pub fn restart(&mut self) {
        let mut fresh = Window::new(self.ordering, self.limits);
        for id in self.window.partition_ids() {
            let standing = self.window.partitions[&id].standing();
            let (resume, _) = saved::decode(&saved::encode(&standing, None)).unwrap();
            fresh.open(id, resume, None, id == RETRIES);
        }
        fresh.set_growths(TOPIC, &self.growths);
        self.window = fresh;
    }

    /// Delivers everything that can be, successfully; the places in order.
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

/// A key that is in the first partition number among so many partitions, in the second among so many, and so on.
pub fn key_with(places: &[(u32, u32)]) -> String {
    let fits = |key: &String| places.iter().all(|(count, index)| partition_of(key.as_bytes(), *count) == *index);
    (0..100_000).map(|number| format!("key{number}")).find(fits).expect("there is such a key")
}
