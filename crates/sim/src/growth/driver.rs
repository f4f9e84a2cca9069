//! Runs a seed of growths: the driver drives a world tick by tick, and finally lets it settle.

use std::panic::AssertUnwindSafe;

use super::profile::{GrowthFaults, GrowthProfile};
use super::report::{GrowthFailure, GrowthReport};
use super::world::GrowthWorld;
use crate::trace::{Trace, panic_text};
use crate::{CheckResult, Rng};

const TICKS_MIN: u64 = 1_000;
const TICKS_MAX: u64 = 4_000;
const GROWTH_EVERY: u64 = 150;
const OUTAGE_MS_MAX: u64 = 9_000;
const STALE_MS_MAX: u64 = 40_000;
/// After this many ticks without faults, every growth must have ended and every node must accept every key.
const SETTLE_TICKS: u64 = 4_000;

/// Runs one seed.
pub fn run_growth(seed: u64, profile: GrowthProfile) -> Result<GrowthReport, Box<GrowthFailure>> {
    run_with(seed, profile, false)
}

/// Runs one seed and prints each step.
pub fn run_growth_traced(seed: u64, profile: GrowthProfile) -> Result<GrowthReport, Box<GrowthFailure>> {
    run_with(seed, profile, true)
}

fn run_with(seed: u64, profile: GrowthProfile, print: bool) -> Result<GrowthReport, Box<GrowthFailure>> {
    let mut rng = Rng::new(seed);
    let faults = profile.faults(&mut rng);
    let mut world = GrowthWorld::new(faults, profile, rng.fork(), Trace::new(print));
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| drive(&mut world, &mut rng, faults)));
    let outcome = outcome.unwrap_or_else(|panic| Err(format!("a panic: {}", panic_text(&*panic))));
    let failure = |message| Box::new(GrowthFailure { seed, profile, message, trace: world.trace.last() });
    outcome.map_err(failure)?;
    Ok(GrowthReport { seeds: 1, fingerprint: world.trace.fingerprint(), ..world.report })
}

fn drive(world: &mut GrowthWorld, rng: &mut Rng, faults: GrowthFaults) -> CheckResult {
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
