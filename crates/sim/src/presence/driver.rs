//! Runs a seed of presence: the driver chooses the steps of a world, and finally lets the world settle.

use super::profile::{PresenceFaults, PresenceProfile};
use super::report::PresenceCounts;
use super::world::{PresenceWorld, TICK_MS};
use crate::simulation::{SeedRun, Simulation};
use crate::trace::Trace;
use crate::{CheckResult, Rng};

const GATEWAYS: usize = 3;
const STEPS_MIN: u64 = 150;
const STEPS_MAX: u64 = 500;
/// Time without faults after which every writer must be correct: it covers a writer's longest pause, its requests, and transit.
const QUIET_MS: u64 = 20_000;
const OUTAGE_MS_MAX: u64 = 8_000;

pub struct PresenceRun {
    world: PresenceWorld,
    rng: Rng,
}

impl Simulation for PresenceProfile {
    const PART: &'static str = "presence";
    const BROKEN: &'static [Self] = &[Self::NoDedupe, Self::NoGaps, Self::NoVoid, Self::OldNews];
    type Run = PresenceRun;

    fn start(self, mut rng: Rng, trace: Trace) -> CheckResult<PresenceRun> {
        let faults = self.faults(&mut rng);
        let world = PresenceWorld::new(GATEWAYS, faults, self, rng.fork(), trace)?;
        Ok(PresenceRun { world, rng })
    }
}

impl SeedRun for PresenceRun {
    type Counts = PresenceCounts;

    fn drive(&mut self) -> CheckResult {
        let Self { world, rng } = self;
        let faults = world.faults;
        for _ in 0..rng.between(STEPS_MIN, STEPS_MAX) {
            world.trace.steps += 1;
            for gateway in 0..GATEWAYS {
                (0..rng.below(3)).for_each(|_| world.live(gateway));
            }
            let gateway = rng.below(GATEWAYS as u64) as usize;
            if rng.one_in(faults.death) {
                world.kill(gateway);
            }
            if rng.one_in(faults.lease) {
                world.lose_lease(gateway);
            }
            if rng.one_in(faults.restart) {
                let writer = rng.below(world.writers.len() as u64) as usize;
                world.restart(writer);
            }
            if rng.one_in(faults.outage) {
                let until = world.now + rng.below(OUTAGE_MS_MAX);
                world.cut_until[rng.below(3) as usize] = until;
                world.counts.outages += 1;
            }
            if rng.one_in(faults.unreachable) {
                world.unreachable_until[gateway] = world.now + rng.below(OUTAGE_MS_MAX);
                world.counts.unreachable += 1;
            }
            world.tick()?;
        }
        settle(world)
    }

    fn trace(&self) -> &Trace {
        &self.world.trace
    }

    fn counts(&self) -> PresenceCounts {
        let mut all = self.world.counts;
        for counts in self.world.writers.iter().map(|writer| writer.all_counts()) {
            all.repeated += counts.repeated;
            all.refused += counts.refused;
            all.gaps += counts.gaps;
            all.asks += counts.asks;
            all.pictures += counts.snapshots;
            all.unanswered += counts.unanswered;
        }
        all
    }
}

/// Ends the faults. After a while every writer shows the true state.
fn settle(world: &mut PresenceWorld) -> CheckResult {
    world.faults = PresenceFaults::default();
    world.cut_until = [0; 3];
    world.unreachable_until.fill(0);
    for _ in 0..QUIET_MS / TICK_MS {
        world.tick()?;
    }
    world.is_true_everywhere()
}
