//! Runs a seed of deliveries: the driver chooses the steps of a world, and finally lets the world settle.

use whimbrel_model::PartitionId;

use super::log::RETRIES;
use super::profile::{DeliveriesProfile, DeliveryFaults};
use super::report::DeliveriesCounts;
use super::truth::Starts;
use super::world::{AppendFault, DeliveryWorld};
use crate::simulation::{SeedRun, Simulation};
use crate::trace::Trace;
use crate::{CheckResult, Rng};

const NODES: usize = 3;
const KEYS: u64 = 6;
const STEPS_MIN: u64 = 400;
const STEPS_MAX: u64 = 1_500;
const PARTITIONS_MAX: u32 = 9;
/// Limit of steps without any time passing. A world with more is in a loop.
const STEPS_AT_ONE_TIME_MAX: u64 = 20_000;
/// Time for which the endpoint continues to fail while everything else settles.
const SETTLE_FAILS_MS: i64 = 60_000;
/// The time that passes if nothing has a time of its own. The periodic work of the runner takes place meanwhile.
const IDLE_MS: i64 = 500;
/// Limit of time steps until everything must have settled.
const SETTLE_ROUNDS_MAX: u64 = 50_000;

pub struct DeliveriesRun {
    rng: Rng,
    world: DeliveryWorld,
    faults: DeliveryFaults,
    owner: usize,
    counts: DeliveriesCounts,
}

impl Simulation for DeliveriesProfile {
    const PART: &'static str = "deliveries";
    type Run = DeliveriesRun;

    fn start(self, mut rng: Rng, trace: Trace) -> CheckResult<DeliveriesRun> {
        let settings = Self::settings(&mut rng);
        let faults = self.faults(&mut rng);
        let partitions = rng.between(1, 3) as u32;
        let mut world = DeliveryWorld::new(settings, NODES, partitions, rng.fork(), trace);
        world.endpoint = self.endpoint(&mut rng);
        world.log.page = *rng.pick(&[1, 3, 20]);
        Ok(DeliveriesRun { rng, world, faults, owner: 0, counts: DeliveriesCounts::default() })
    }
}

impl SeedRun for DeliveriesRun {
    type Counts = DeliveriesCounts;

    fn drive(&mut self) -> CheckResult {
        self.run()
    }

    fn trace(&self) -> &Trace {
        &self.world.trace
    }

    fn counts(&self) -> DeliveriesCounts {
        let (world, truth) = (&self.world, &self.world.truth);
        DeliveriesCounts {
            messages: truth.messages.len() as u64,
            calls: world.calls,
            taken: truth.taken,
            taken_again: truth.taken_again,
            held: truth.held,
            buried: truth.buried,
            dropped: truth.dropped,
            growths: world.log.growths.len() as u64,
            ..self.counts
        }
    }
}

impl DeliveriesRun {
    fn run(&mut self) -> CheckResult {
        self.world.take(0)?;
        for _ in 0..self.rng.between(STEPS_MIN, STEPS_MAX) {
            self.inject_faults()?;
            match self.rng.below(100) {
                0..12 => self.publish(),
                12..22 => {
                    let ms = *self.rng.pick(&[0, 1, 10, 100, 1_000]);
                    self.world.pass(ms)?;
                    self.each_turns()?;
                }
                22..26 => {
                    let node = self.rng.below(NODES as u64) as usize;
                    self.world.follow(node)?;
                }
                _ => {
                    let node = self.rng.below(NODES as u64) as usize;
                    self.advance(node)?;
                }
            }
        }
        self.settle()
    }

    fn publish(&mut self) {
        let key = (!self.rng.one_in(6)).then(|| format!("k{}", self.rng.below(KEYS)));
        let size = self.rng.below(100) as usize;
        if self.rng.one_in(10) {
            let count = u64::from(self.world.log.count);
            let index = self.rng.below(count) as u32;
            self.world.log.skip_one(PartitionId::new(super::log::TOPIC, index));
        }
        self.world.publish(key.as_deref(), size);
    }

    fn each_turns(&mut self) -> CheckResult {
        (0..NODES).try_for_each(|node| self.world.turn(node))
    }

    /// Advances one random operation of a node. Returns false if there is none.
    fn advance(&mut self, node: usize) -> CheckResult<bool> {
        let Some(owner) = &self.world.nodes[node] else { return Ok(false) };
        if owner.saving.is_some() {
            let is_lost = self.rng.one_in(self.faults.save_answer_lost);
            self.world.finish_save(node, is_lost)?;
            return Ok(true);
        }
        let (reads, calls, settling) = (owner.reads.len(), owner.calls.len(), owner.settling.len());
        let all = reads + calls + settling;
        if all == 0 {
            return Ok(false);
        }
        // Starts at a random operation and takes the first one that can advance.
        let from = self.rng.below(all as u64) as usize;
        for index in (from..all).chain(0..from) {
            let went_on = if index < reads {
                let fails = self.rng.one_in(self.faults.read_fails);
                self.world.finish_read(node, index, fails)?
            } else if index < reads + calls {
                self.world.finish_call(node, index - reads)?
            } else {
                let fault = match self.rng.below(2) {
                    0 if self.rng.one_in(self.faults.append_fails) => AppendFault::Fails,
                    1 if self.rng.one_in(self.faults.append_answer_lost) => AppendFault::AnswerLost,
                    _ => AppendFault::None,
                };
                self.world.finish_append(node, index - reads - calls, fault)?;
                true
            };
            if went_on {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn inject_faults(&mut self) -> CheckResult {
        let faults = self.faults;
        if self.rng.one_in(faults.crash) {
            self.counts.crashes += 1;
            self.world.crash(self.owner);
        }
        if self.world.nodes[self.owner].is_none() && self.rng.one_in(5) {
            self.take(self.owner)?;
        }
        if self.rng.one_in(faults.take_over) {
            self.counts.takeovers += 1;
            self.take((self.owner + 1) % NODES)?;
        }
        if self.rng.one_in(faults.fall_back) {
            self.counts.store_falls += 1;
            let saves = self.rng.between(1, 3) as usize;
            self.world.store.fall_back(saves);
            self.world.note(|| format!("the store loses its last {saves} saves"));
            // The current owner does not notice; a successor does.
        }
        if self.rng.one_in(faults.away) {
            self.world.store.is_away = !self.world.store.is_away;
        }
        if self.rng.one_in(faults.seek) {
            self.counts.seeks += 1;
            let mut starts = Starts::new();
            for id in self.world.log.ids() {
                let (first, end) = (self.world.log.first(id), self.world.log.end(id));
                starts.insert(id, self.rng.between(first, end));
            }
            self.world.seek(starts);
        }
        if self.rng.one_in(faults.grow) && self.world.log.count < PARTITIONS_MAX {
            let to = self.world.log.count + self.rng.between(1, 2) as u32;
            self.world.grow(to);
        }
        if self.rng.one_in(faults.trim) {
            self.counts.trims += 1;
            for id in self.world.log.ids().collect::<Vec<_>>() {
                let (first, end) = (self.world.log.first(id), self.world.log.end(id));
                let to = self.rng.between(first, end.min(first + 15));
                self.world.log.trim(id, to);
            }
        }
        if self.rng.one_in(faults.bad_key) {
            let until = self.world.time + *self.rng.pick(&[100, 5_000, 3_600_000]);
            let key = format!("k{}", self.rng.below(KEYS));
            self.world.endpoint.bad_keys.insert(key.into_bytes(), until);
        }
        if self.rng.one_in(faults.down) {
            self.world.endpoint.down_until = self.world.time + *self.rng.pick(&[100, 5_000, 600_000]);
        }
        Ok(())
    }

    fn take(&mut self, node: usize) -> CheckResult {
        let is_behind = self.rng.one_in(self.faults.seek.min(3));
        let believed = if is_behind { &self.world.earlier } else { &self.world.catalogue };
        if self.world.take_behind(node, believed.clone())? {
            self.owner = node;
        }
        Ok(())
    }

    /// Ends all faults except those of the endpoint, which fails for a limited time. One owner must finish everything.
    fn settle(&mut self) -> CheckResult {
        self.faults = DeliveryFaults::default();
        self.world.store.is_away = false;
        self.world.note(|| "faults end here".to_owned());
        let endpoint = &mut self.world.endpoint;
        (endpoint.fails, endpoint.late, endpoint.never, endpoint.no_worker) = (0, 0, 0, 0);
        let latest = self.world.time + SETTLE_FAILS_MS;
        endpoint.down_until = endpoint.down_until.min(latest);
        endpoint.bad_keys.values_mut().for_each(|until| *until = latest.min(*until));
        self.take((self.owner + 1) % NODES)?;
        for _ in 0..SETTLE_ROUNDS_MAX {
            let mut steps = 0;
            for node in 0..NODES {
                self.world.follow(node)?;
            }
            while self.advance_any()? {
                steps += 1;
                if steps > STEPS_AT_ONE_TIME_MAX {
                    return Err("it does not settle: it loops without time passing".to_owned());
                }
            }
            if self.is_at_rest() {
                return self.world.truth.nothing_is_missing(&self.world.log);
            }
            let next = self.world.next_time().unwrap_or(self.world.time + IDLE_MS);
            self.world.pass((next - self.world.time).max(1))?;
            self.each_turns()?;
        }
        Err(format!("it does not settle: {:?}", self.world.next_time()))
    }

    fn advance_any(&mut self) -> CheckResult<bool> {
        for node in 0..NODES {
            if self.advance(node)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Everything is read and done, no hold is pending, and zombies have noticed that they are fenced.
    fn is_at_rest(&self) -> bool {
        let others = (0..NODES).filter(|node| *node != self.owner);
        let mut others = others.filter_map(|node| self.world.nodes[node].as_ref());
        let Some(owner) = &self.world.nodes[self.owner] else { return false };
        let is_through = |id: PartitionId| owner.line().window.watermark(id) == Some(self.world.log.end(id));
        self.world.holds.waiting() == 0
            && owner.runner.has_appended_all()
            && owner.calls.is_empty()
            && self.world.log.ids().chain([RETRIES]).all(is_through)
            && others.all(|zombie| zombie.calls.is_empty() && zombie.settling.is_empty())
    }
}
