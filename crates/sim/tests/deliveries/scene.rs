//! A world that is played by hand: each step is checked against what really happened.

use whimbrel_dispatch::window::WindowLimits;
use whimbrel_model::PartitionId;
use whimbrel_model::partitioner::partition_of;
use whimbrel_model::subscription::{OnExhausted, Ordering, RetryPolicy};
use whimbrel_sim::Rng;
use whimbrel_sim::deliveries::Check;
use whimbrel_sim::deliveries::log::TOPIC;
use whimbrel_sim::deliveries::world::{AppendFault, Settings, World};
use whimbrel_sim::trace::Trace;

/// Steps of one moment; more is a world that spins.
const STEPS_MAX: usize = 1_000_000;

pub fn ordered() -> Settings {
    Settings {
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

pub fn unordered() -> Settings {
    Settings { ordering: Ordering::None, ..ordered() }
}

pub fn without_retries(settings: Settings) -> Settings {
    Settings { retry: RetryPolicy { times: 0, schedule_ms: vec![1_000] }, ..settings }
}

pub struct Scene {
    pub world: World,
}

impl Scene {
    /// Node 0 owns the subscription.
    pub fn new(settings: Settings) -> Self {
        Self::with_partitions(settings, 1)
    }

    pub fn with_partitions(settings: Settings, partitions: u32) -> Self {
        let mut scene = Self { world: World::new(settings, 3, partitions, Rng::new(7), Trace::new(false)) };
        scene.take(0);
        scene
    }

    /// The step must not be one that can never be.
    pub fn sound<T>(&mut self, step: impl FnOnce(&mut World) -> Check<T>) -> T {
        step(&mut self.world).unwrap_or_else(|wrong| panic!("{}\n{wrong}", self.world.trace.last().join("\n")))
    }

    pub fn take(&mut self, node: usize) {
        self.sound(|world| world.take(node));
    }

    pub fn publish(&mut self, keys: &[&str]) {
        keys.iter().for_each(|key| self.world.publish((!key.is_empty()).then_some(*key), 10));
        (0..self.world.nodes.len()).for_each(|node| self.sound(|world| world.turn(node)));
    }

    pub fn save(&mut self, node: usize) {
        self.sound(|world| world.save(node, false));
    }

    /// Everything of the node that does not wait for time goes on.
    pub fn run(&mut self, node: usize) {
        self.run_but(node, false);
    }

    /// The same, but holds and dead letters stay on their way.
    pub fn run_but_appends(&mut self, node: usize) {
        self.run_but(node, true);
    }

    /// What can be read is, and goes out; no answer is heard.
    pub fn read(&mut self, node: usize) {
        let mut index = 0;
        while index < self.world.nodes[node].as_ref().map_or(0, |owner| owner.reads.len()) {
            let went_on = self.sound(|world| world.finish_read(node, index, false));
            index = if went_on { 0 } else { index + 1 };
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
        panic!("it goes on and on without time passing");
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

    /// The node's first hold or dead letter is written, or not.
    pub fn append(&mut self, node: usize, fault: AppendFault) {
        self.sound(|world| world.finish_append(node, 0, fault));
    }

    /// Time passes, and everything of the node that comes with it happens. Progress is saved when it is due.
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

    /// How often each message was taken, in the order of publishing.
    pub fn taken(&self) -> Vec<u32> {
        self.world.truth.messages.iter().map(|message| message.taken).collect()
    }

    pub fn watermark(&self, node: usize, index: u32) -> u64 {
        let owner = self.world.nodes[node].as_ref().expect("the node owns it");
        owner.line.window.watermark(PartitionId::new(TOPIC, index)).expect("it is open")
    }
}

/// A key that is in that partition among so many, for each of these.
pub fn key_with(places: &[(u32, u32)]) -> String {
    let fits = |key: &String| places.iter().all(|(count, index)| partition_of(key.as_bytes(), *count) == *index);
    (0..100_000).map(|number| format!("key{number}")).find(fits).expect("there is such a key")
}
