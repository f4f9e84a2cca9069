//! Runs a seed of presence: the driver chooses the steps of a world, and finally lets the world settle.

use std::panic::AssertUnwindSafe;

use super::profile::{PresenceFaults, PresenceProfile};
use super::report::{PresenceFailure, PresenceReport};
use super::world::{PresenceWorld, TICK_MS};
use crate::trace::{Trace, panic_text};
use crate::{CheckResult, Rng};

const GATEWAYS: usize = 3;
const STEPS_MIN: u64 = 150;
const STEPS_MAX: u64 = 500;
/// Time without faults after which every writer must be correct: it covers a writer's longest pause, its requests, and transit.
const QUIET_MS: u64 = 20_000;
const OUTAGE_MS_MAX: u64 = 8_000;

/// Runs one seed.
pub fn run_presence(seed: u64, profile: PresenceProfile) -> Result<PresenceReport, Box<PresenceFailure>> {
    run_with(seed, profile, false)
}

/// Runs one seed and prints each step.
pub fn run_presence_traced(seed: u64, profile: PresenceProfile) -> Result<PresenceReport, Box<PresenceFailure>> {
    run_with(seed, profile, true)
}

fn run_with(seed: u64, profile: PresenceProfile, print: bool) -> Result<PresenceReport, Box<PresenceFailure>> {
    let mut rng = Rng::new(seed);
    let faults = profile.faults(&mut rng);
    let failure = |message, trace| Box::new(PresenceFailure { seed, profile, message, trace });
    let world = PresenceWorld::new(GATEWAYS, faults, profile, rng.fork(), Trace::new(print));
    let mut world = world.map_err(|message| failure(message, Vec::new()))?;
    let mut report = PresenceReport { seeds: 1, ..PresenceReport::default() };
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| drive(&mut world, &mut rng, faults, &mut report)));
    let outcome = outcome.unwrap_or_else(|panic| Err(format!("a panic: {}", panic_text(&*panic))));
    outcome.map_err(|message| failure(message, world.trace.last()))?;
    for counts in world.writers.iter_mut().map(|writer| writer.all_counts()) {
        report.repeated += counts.repeated;
        report.refused += counts.refused;
        report.gaps += counts.gaps;
        report.asks += counts.asks;
        report.pictures += counts.snapshots;
        report.unanswered += counts.unanswered;
    }
    Ok(PresenceReport {
        news: world.news,
        packets: world.packets,
        lost: world.lost,
        restarts: world.restarts,
        deaths: world.deaths,
        leases_lost: world.leases_lost,
        fresh: world.fresh,
        not_fresh: world.not_fresh,
        fingerprint: world.trace.fingerprint(),
        ..report
    })
}

fn drive(world: &mut PresenceWorld, rng: &mut Rng, faults: PresenceFaults, report: &mut PresenceReport) -> CheckResult {
    for _ in 0..rng.between(STEPS_MIN, STEPS_MAX) {
        report.steps += 1;
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
            report.outages += 1;
        }
        if rng.one_in(faults.unreachable) {
            world.unreachable_until[gateway] = world.now + rng.below(OUTAGE_MS_MAX);
            report.unreachable += 1;
        }
        world.tick()?;
    }
    settle(world)
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
