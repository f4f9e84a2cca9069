//! A run of presence: what a seed makes of a world, step by step, and how it settles.

use std::panic::AssertUnwindSafe;

use super::Check;
use super::profile::{PresenceProfile, Trouble};
use super::report::{PresenceFailure, PresenceReport};
use super::world::{TICK_MS, World};
use crate::Rng;
use crate::trace::{Trace, panic_text};

const GATEWAYS: usize = 3;
const STEPS_MIN: u64 = 150;
const STEPS_MAX: u64 = 500;
/// After so much quiet everything must be true: the longest rest of a writer, its questions, and what is still on its way.
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
    let trouble = profile.trouble(&mut rng);
    let failure = |message, trace| Box::new(PresenceFailure { seed, profile, message, trace });
    let world = World::new(GATEWAYS, trouble, profile, rng.fork(), Trace::new(print));
    let mut world = world.map_err(|message| failure(message, Vec::new()))?;
    let mut report = PresenceReport { seeds: 1, ..PresenceReport::default() };
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| drive(&mut world, &mut rng, trouble, &mut report)));
    let outcome = outcome.unwrap_or_else(|panic| Err(format!("a panic: {}", panic_text(&*panic))));
    outcome.map_err(|message| failure(message, world.trace.last()))?;
    for counts in world.writers.iter_mut().map(|writer| writer.all_counts()) {
        report.repeated += counts.repeated;
        report.refused += counts.refused;
        report.gaps += counts.gaps;
        report.asks += counts.asks;
        report.pictures += counts.pictures;
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

fn drive(world: &mut World, rng: &mut Rng, trouble: Trouble, report: &mut PresenceReport) -> Check {
    for _ in 0..rng.between(STEPS_MIN, STEPS_MAX) {
        report.steps += 1;
        for gateway in 0..GATEWAYS {
            (0..rng.below(3)).for_each(|_| world.live(gateway));
        }
        let gateway = rng.below(GATEWAYS as u64) as usize;
        if rng.one_in(trouble.death) {
            world.kill(gateway);
        }
        if rng.one_in(trouble.lease) {
            world.lose_lease(gateway);
        }
        if rng.one_in(trouble.restart) {
            let writer = rng.below(world.writers.len() as u64) as usize;
            world.restart(writer);
        }
        if rng.one_in(trouble.outage) {
            let until = world.now + rng.below(OUTAGE_MS_MAX);
            world.cut_until[rng.below(3) as usize] = until;
            report.outages += 1;
        }
        if rng.one_in(trouble.unheard) {
            world.unheard_until[gateway] = world.now + rng.below(OUTAGE_MS_MAX);
            report.unheard += 1;
        }
        world.tick()?;
    }
    settle(world)
}

/// The trouble ends; after a while everybody shows what is true.
fn settle(world: &mut World) -> Check {
    world.trouble = Trouble::default();
    world.cut_until = [0; 3];
    world.unheard_until.fill(0);
    for _ in 0..QUIET_MS / TICK_MS {
        world.tick()?;
    }
    world.is_true_everywhere()
}
