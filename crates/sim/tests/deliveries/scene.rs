//! A scripted world of deliveries. Each step is compared with the true history.

use whimbrel_dispatch::window::WindowLimits;
use whimbrel_model::PartitionId;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::subscription::{OnExhausted, Ordering, RetryPolicy};
use whimbrel_sim::deliveries::log::TOPIC;
use whimbrel_sim::deliveries::truth::Starts;
use whimbrel_sim::deliveries::world::{AppendFault, DeliveryWorld, RunSettings};
use whimbrel_sim::trace::Trace;
use whimbrel_sim::{CheckResult, Rng};

/// Limit of the steps at one time. A world with more is in a loop.
const STEPS_MAX: usize = 1_000_000;

pub fn ordered() -> RunSettings {
    RunSettings {
        ordering: Ordering::Key,
        retry: RetryPolicy { times: 5, schedule_ms: vec![1_000, 10_000, 60_000] },
        on_exhausted: OnExhausted::DeadLetter,
        blocked_sleep_ms: 2_000,
        concurrency: 4,
        limits: WindowLimits { body_bytes: 1 << 20, parked_bytes: 1 << 20 },
        save_every_ms: 1_000,
        timeout_ms: 1_000,
        retry_holds: 1_000,
    }
}

pub fn unordered() -> RunSettings {
    RunSettings { ordering: Ordering::None, ..ordered() }
}

pub fn without_retries(settings: RunSettings) -> RunSettings {
    RunSettings { retry: RetryPolicy { times: 0, schedule_ms: vec![1_000] }, ..settings }
}

pub struct Scene {
    pub world: DeliveryWorld,
}

impl Scene {
    /// Makes node 0 the owner of the subscription.
    pub fn new(settings: RunSettings) -> Self {
        Self::with_partitions(settings, 1)
    }

    pub fn with_partitions(settings: RunSettings, partitions: u32) -> Self {
        let mut scene = Self { world: DeliveryWorld::new(settings, 3, partitions, Rng::new(7), Trace::new(false)) };
        scene.take(0);
        scene
    }

    /// Takes a step, and panics if it violates a rule.
    pub fn sound<T>(&mut self, step: impl FnOnce(&mut DeliveryWorld) -> CheckResult<T>) -> T {
        step(&mut self.world).unwrap_or_else(|wrong| panic!("{}\n{wrong}", self.world.trace.last().join("\n")))
    }

    pub fn take(&mut self, node: usize) {
        self.sound(|world| world.take(node));
    }

    /// Node 0 crashes, and node 1 takes over.
    pub fn fail_over(&mut self) {
        self.world.crash(0);
        self.take(1);
    }

    pub fn first_partition(&self) -> PartitionId {
        PartitionId::new(TOPIC, 0)
    }

    /// Sets the cursor of the first partition. The owner does not follow yet.
    pub fn seek(&mut self, offset: u64) {
        self.world.seek(Starts::from([(self.first_partition(), offset)]));
    }

    pub fn publish(&mut self, keys: &[&str]) {
        keys.iter().for_each(|key| self.world.publish((!key.is_empty()).then_some(*key), 10));
        (0..self.world.nodes.len()).for_each(|node| self.sound(|world| world.turn(node)));
    }

    pub fn save(&mut self, node: usize) {
        self.sound(|world| world.save(node, false));
    }

    /// Runs all operations of the node that do not wait for time.
    pub fn run(&mut self, node: usize) {
        self.run_but(node, false);
    }

    /// The same, but holds and dead letters are not appended.
    pub fn run_but_appends(&mut self, node: usize) {
        self.run_but(node, true);
    }

    /// Reads everything readable and begins the calls; no answer arrives.
    pub fn read(&mut self, node: usize) {
        let mut index = 0;
        while index < self.world.nodes[node].as_ref().map_or(0, |owner| owner.reads.len()) {
            let advanced = self.sound(|world| world.finish_read(node, index, false));
            index = if advanced { 0 } else { index + 1 };
        }
    }

    fn run_but(&mut self, node: usize, no_appends: bool) {
        self.sound(|world| world.pass(0));
        self.sound(|world| world.turn(node));
        for _ in 0..STEPS_MAX {
            if !self.step(node, no_appends) {
                return;
            }
        }
        panic!("the world loops without time passing");
    }

    fn step(&mut self, node: usize, no_appends: bool) -> bool {
        let Some(owner) = &self.world.nodes[node] else { return false };
        let (reads, calls, settling) = (owner.reads.len(), owner.calls.len(), owner.settling.len());
        for index in 0..calls {
            if self.sound(|world| world.finish_call(node, index)) {
                return true;
            }
        }
        for index in 0..reads {
            if self.sound(|world| world.finish_read(node, index, false)) {
                return true;
            }
        }
        if settling > 0 && !no_appends {
            self.append(node, AppendFault::None);
            return true;
        }
        false
    }

    /// Ends the node's first append of a hold or dead letter, with this fault.
    pub fn append(&mut self, node: usize, fault: AppendFault) {
        self.sound(|world| world.finish_append(node, 0, fault));
    }

    /// Lets time pass with all operations of the node. Progress is saved when it is due.
    pub fn wait(&mut self, node: usize, ms: i64) {
        let until = self.world.time + ms;
        self.run(node);
        while self.world.time < until {
            let save = self.world.nodes[node].as_ref().map_or(until, |owner| owner.save_due);
            let next = self.world.next_time().unwrap_or(until).min(save);
            let step = next.clamp(self.world.time + 1, until) - self.world.time;
            self.sound(|world| world.pass(step));
            self.run(node);
            if save <= self.world.time {
                self.save(node);
            }
        }
    }

    pub fn bad_key(&mut self, key: &str, for_ms: i64) {
        let until = self.world.time + for_ms;
        self.world.endpoint.bad_keys.insert(key.as_bytes().to_vec(), until);
    }

    /// How often the endpoint received each message, in the order of publishing.
    pub fn taken(&self) -> Vec<u32> {
        self.world.truth.messages.iter().map(|message| message.taken).collect()
    }

    pub fn watermark(&self, node: usize, index: u32) -> u64 {
        let owner = self.world.nodes[node].as_ref().expect("the node owns it");
        owner.line().window.watermark(PartitionId::new(TOPIC, index)).expect("it is open")
    }
}

/// A key that maps to the given partition for each given number of partitions.
pub fn key_with(places: &[(u32, u32)]) -> String {
    let fits = |key: &String| places.iter().all(|(count, index)| partition_of(key.as_bytes(), *count) == *index);
    (0..100_000).map(|number| format!("key{number}")).find(fits).expect("a matching key exists")
}
