//! Runs a seed of growths: the driver drives a world tick by tick, and finally lets it settle.

use super::profile::{GrowthFaults, GrowthProfile};
use super::report::GrowthCounts;
use super::world::GrowthWorld;
use crate::simulation::{SeedRun, Simulation};
use crate::trace::Trace;
use crate::{CheckResult, Rng};

const TICKS_MIN: u64 = 1_000;
const TICKS_MAX: u64 = 4_000;
const GROWTH_EVERY: u64 = 150;
const OUTAGE_MS_MAX: u64 = 9_000;
const STALE_MS_MAX: u64 = 40_000;
/// After this many ticks without faults, every growth must have ended and every node must accept every key.
const SETTLE_TICKS: u64 = 4_000;

pub struct GrowthRun {
    world: GrowthWorld,
    rng: Rng,
}

impl Simulation for GrowthProfile {
    const PART: &'static str = "growth";
    const BROKEN: &'static [Self] = &[
        Self::Unconfirmed,
        Self::NoLease,
        Self::EarlyAck,
        Self::Reopen,
        Self::StaleJoin,
        Self::BlindReader,
        Self::HastyReader,
    ];
    type Run = GrowthRun;

    fn start(self, mut rng: Rng, trace: Trace) -> CheckResult<GrowthRun> {
        let faults = self.faults(&mut rng);
        Ok(GrowthRun { world: GrowthWorld::new(faults, self, rng.fork(), trace), rng })
    }
}

impl SeedRun for GrowthRun {
    type Counts = GrowthCounts;

    fn drive(&mut self) -> CheckResult {
        drive(&mut self.world, &mut self.rng)
    }

    fn trace(&self) -> &Trace {
        &self.world.trace
    }

    fn counts(&self) -> GrowthCounts {
        self.world.counts
    }
}

fn drive(world: &mut GrowthWorld, rng: &mut Rng) -> CheckResult {
    let faults = world.faults;
    for _ in 0..rng.between(TICKS_MIN, TICKS_MAX) {
        let node = rng.below(world.nodes.len() as u64) as usize;
        if rng.one_in(GROWTH_EVERY) {
            world.begin_growth(node);
        }
        let (now, for_ms) = (world.now, rng.below(OUTAGE_MS_MAX));
        if rng.one_in(faults.stale) {
            world.nodes[node].stale_until = now + rng.below(STALE_MS_MAX);
        }
        if rng.one_in(faults.cut) {
            world.nodes[node].cut_until = now + for_ms;
        }
        if rng.one_in(faults.freeze) {
            world.nodes[node].frozen_until = now + for_ms;
        }
        if rng.one_in(faults.crash) {
            world.crash(node);
        }
        world.tick()?;
    }
    settle(world)
}

/// Ends the faults. After a while no topic is growing, and every node accepts every key.
fn settle(world: &mut GrowthWorld) -> CheckResult {
    world.faults = GrowthFaults::default();
    for node in &mut world.nodes {
        (node.cut_until, node.frozen_until, node.stale_until) = (0, 0, 0);
    }
    for _ in 0..SETTLE_TICKS {
        world.tick()?;
    }
    world.is_settled()?;
    world.check()
}
