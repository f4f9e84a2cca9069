//! A run of people: what a seed makes of a world, step by step, and how it settles.

use std::panic::AssertUnwindSafe;

use whimbrel_model::people::Platform;
use whimbrel_model::push::{Notify, PushKick, PushMessage};

use super::Check;
use super::devices::Acks;
use super::profile::{PeopleProfile, Trouble};
use super::report::{PeopleFailure, PeopleReport};
use super::world::{GATEWAYS, USERS, World, user_name};
use crate::Rng;
use crate::trace::{Trace, panic_text};

const STEPS_MIN: u64 = 100;
const STEPS_MAX: u64 = 400;
/// How long a step lasts at most.
const STEP_MS_MAX: u64 = 150;
/// After so much quiet everybody who is there has everything: retries of who was silent, and what was on its way.
const QUIET_MS: u64 = 30_000;
/// How long each device is there at the end.
const WAVE_MS: u64 = 10_000;
const WAVES: usize = 3;

/// Runs one seed.
pub fn run_people(seed: u64, profile: PeopleProfile) -> Result<PeopleReport, Box<PeopleFailure>> {
    run_with(seed, profile, false)
}

/// Runs one seed and prints each step.
pub fn run_people_traced(seed: u64, profile: PeopleProfile) -> Result<PeopleReport, Box<PeopleFailure>> {
    run_with(seed, profile, true)
}

fn run_with(seed: u64, profile: PeopleProfile, print: bool) -> Result<PeopleReport, Box<PeopleFailure>> {
    let mut rng = Rng::new(seed);
    let trouble = profile.trouble(&mut rng);
    let mut world = World::new(trouble, profile, rng.fork(), Trace::new(print));
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| drive(&mut world, &mut rng, trouble)));
    let outcome = outcome.unwrap_or_else(|panic| Err(format!("a panic: {}", panic_text(&*panic))));
    outcome.map_err(|message| Box::new(PeopleFailure { seed, profile, message, trace: world.trace.last() }))?;
    Ok(PeopleReport { fingerprint: world.trace.fingerprint(), ..world.report })
}

fn drive(world: &mut World, rng: &mut Rng, trouble: Trouble) -> Check {
    let mut brought: Vec<PushMessage> = Vec::new();
    for _ in 0..rng.between(STEPS_MIN, STEPS_MAX) {
        world.report.steps += 1;
        if rng.one_in(2) {
            let message = message(rng, world.report.messages, &mut brought);
            world.push(message);
        }
        for device in 0..world.devices.len() {
            match world.devices[device].session {
                None if rng.one_in(25) => {
                    let acks = *rng.pick(&[Acks::Promptly, Acks::Promptly, Acks::Late, Acks::Never]);
                    world.connect(device, !rng.one_in(3), acks);
                }
                // Who was kicked does not leave: somebody else sees to that.
                Some(session) if rng.one_in(30) && !world.was_kicked(session) => world.disconnect(device),
                _ => {}
            }
        }
        if rng.one_in(40) {
            kick(world, rng);
        }
        if rng.one_in(10) {
            world.sync();
        }
        go_wrong(world, rng, trouble)?;
        world.pass(rng.between(1, STEP_MS_MAX))?;
    }
    settle(world)
}

fn go_wrong(world: &mut World, rng: &mut Rng, trouble: Trouble) -> Check {
    if rng.one_in(trouble.crash) {
        world.crash_owner();
    }
    if rng.one_in(trouble.end) {
        world.end_owner();
    }
    if rng.one_in(trouble.replace) {
        world.replace_owner();
    }
    let gateway = rng.below(GATEWAYS as u64) as usize;
    if rng.one_in(trouble.link) {
        world.break_link(gateway);
    }
    if rng.one_in(trouble.death) {
        world.kill_gateway(gateway);
    }
    if rng.one_in(trouble.lease) {
        world.lose_lease(gateway);
    }
    if rng.one_in(trouble.jump) {
        let by = rng.between(0, 5_000) as i64;
        world.jump(if rng.one_in(2) { by } else { -by });
    }
    if rng.one_in(trouble.fall_back) {
        world.store_falls_back(false)?;
    }
    if rng.one_in(trouble.lose) {
        world.store_falls_back(true)?;
    }
    Ok(())
}

fn message(rng: &mut Rng, number: u64, brought: &mut Vec<PushMessage>) -> PushMessage {
    if !brought.is_empty() && rng.one_in(8) {
        let mut again = rng.pick(&brought[brought.len().saturating_sub(3)..]).clone();
        // By both of its names, or by one of them.
        match (rng.below(3), again.also.take()) {
            (0, also) => again.also = also,
            (1, Some(also)) => again.id = also,
            _ => {}
        }
        return again;
    }
    let mut uids: Vec<String> = (0..USERS).map(|user| user_name(user).as_str().to_owned()).collect();
    let count = rng.between(1, USERS as u64) as usize;
    while uids.len() > count {
        uids.remove(rng.below(uids.len() as u64) as usize);
    }
    let platform = |rng: &mut Rng| {
        let names: [&str; 4] = ["web", "ios", "tv", "bare"];
        Platform::new(names[rng.below(4) as usize]).expect("a good name")
    };
    let mut message = PushMessage { id: format!("m{number}"), uids, store: !rng.one_in(6), ..PushMessage::default() };
    match rng.below(8) {
        0 => message.platforms = Some(vec![platform(rng), platform(rng)]),
        1 => message.except_platforms = vec![platform(rng)],
        2 => message.ttl_ms = Some(rng.between(100, 20_000)),
        3 => message.collapse_key = Some(format!("k{}", rng.below(2))),
        4 => message.notify = Some(Notify::default()),
        5 | 6 if message.store => {
            message.brought = true;
            message.also = rng.one_in(2).then(|| format!("o{number}"));
            brought.push(message.clone());
        }
        _ => {}
    }
    message
}

/// Somebody kicks a user's sessions, or those of a platform.
fn kick(world: &mut World, rng: &mut Rng) {
    let uid = user_name(rng.below(USERS as u64) as usize);
    let platform = rng.one_in(2).then(|| Platform::new("web").expect("a good name"));
    let kick = PushKick { uid: uid.as_str().to_owned(), platform, session: None, reason: "because".to_owned() };
    world.kick(kick, &uid);
}

/// The trouble ends. After a while the rules of platforms hold, nobody is there who was kicked, and who was there and who comes then has
/// everything; at last nobody waits for anything.
fn settle(world: &mut World) -> Check {
    world.calm_down();
    world.pass(QUIET_MS)?;
    for ((uid, platform), count) in world.there() {
        let most = if platform == "ios" { 2 } else { 1 };
        if count > most {
            return Err(format!("{uid} has {count} sessions on {platform}"));
        }
    }
    world.owner_knows_who_is_there()?;
    world.nobody_is_there_who_was_kicked()?;
    for wave in 0..WAVES {
        for device in 0..world.devices.len() {
            world.disconnect(device);
        }
        world.pass(2_000)?;
        for device in 0..world.devices.len() {
            if world.devices[device].place == wave {
                world.connect(device, true, Acks::Promptly);
            }
        }
        world.pass(WAVE_MS)?;
        for device in world.devices.iter().filter(|device| device.place == wave && device.keeps()) {
            if device.session.is_none() {
                return Err(format!("{} {} could not stay", device.uid, device.name));
            }
            if let Some(missing) = world.truth.missing(&device.seat, u64::MAX) {
                return Err(format!("{} {} is there and has not seen {missing}", device.uid, device.name));
            }
        }
        world.owner_knows_who_is_there()?;
    }
    world.is_all_done()
}
