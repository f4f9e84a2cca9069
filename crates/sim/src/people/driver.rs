//! Runs a seed of people: the driver chooses the steps of a world, and finally lets the world settle.

use whimbrel_model::people::Platform;
use whimbrel_model::push::{Notify, PushKick, PushMessage};

use super::devices::AckMode;
use super::profile::{PeopleFaults, PeopleProfile};
use super::report::PeopleCounts;
use super::world::{GATEWAYS, PeopleWorld, USERS, user_name};
use crate::simulation::{SeedRun, Simulation};
use crate::trace::Trace;
use crate::{CheckResult, Rng};

const STEPS_MIN: u64 = 100;
const STEPS_MAX: u64 = 400;
/// The maximum time of a step.
const STEP_MS_MAX: u64 = 150;
/// Time without faults after which every connected device has everything: it covers retries and messages in transit.
const QUIET_MS: u64 = 30_000;
/// The time for which each device is connected at the end.
const WAVE_MS: u64 = 10_000;
const WAVES: usize = 3;

pub struct PeopleRun {
    world: PeopleWorld,
    rng: Rng,
}

impl Simulation for PeopleProfile {
    const PART: &'static str = "people";
    const BROKEN: &'static [Self] =
        &[Self::NoGaps, Self::SentIsAcked, Self::LostWrites, Self::DoubleRelease, Self::NoAnnounce, Self::NoKicks];
    type Run = PeopleRun;

    fn start(self, mut rng: Rng, trace: Trace) -> CheckResult<PeopleRun> {
        let faults = self.faults(&mut rng);
        Ok(PeopleRun { world: PeopleWorld::new(faults, self, rng.fork(), trace), rng })
    }
}

impl SeedRun for PeopleRun {
    type Counts = PeopleCounts;

    fn drive(&mut self) -> CheckResult {
        drive(&mut self.world, &mut self.rng)
    }

    fn trace(&self) -> &Trace {
        &self.world.trace
    }

    fn counts(&self) -> PeopleCounts {
        self.world.counts
    }
}

fn drive(world: &mut PeopleWorld, rng: &mut Rng) -> CheckResult {
    let faults = world.faults;
    let mut brought: Vec<PushMessage> = Vec::new();
    for _ in 0..rng.between(STEPS_MIN, STEPS_MAX) {
        world.trace.steps += 1;
        if rng.one_in(2) {
            let message = message(rng, world.counts.messages, &mut brought);
            world.push(message);
        }
        for device in 0..world.devices.len() {
            match world.devices[device].session {
                None if rng.one_in(25) => {
                    let acks = *rng.pick(&[AckMode::Promptly, AckMode::Promptly, AckMode::Late, AckMode::Never]);
                    world.connect(device, !rng.one_in(3), acks);
                }
                // Kicked devices do not leave by themselves: the kick must end their sessions.
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
        inject_faults(world, rng, faults)?;
        world.pass(rng.between(1, STEP_MS_MAX))?;
    }
    settle(world)
}

fn inject_faults(world: &mut PeopleWorld, rng: &mut Rng, faults: PeopleFaults) -> CheckResult {
    if rng.one_in(faults.crash) {
        world.crash_owner();
    }
    if rng.one_in(faults.end) {
        world.end_owner();
    }
    if rng.one_in(faults.replace) {
        world.replace_owner();
    }
    let gateway = rng.below(GATEWAYS as u64) as usize;
    if rng.one_in(faults.link) {
        world.break_link(gateway);
    }
    if rng.one_in(faults.death) {
        world.kill_gateway(gateway);
    }
    if rng.one_in(faults.lease) {
        world.lose_lease(gateway);
    }
    if rng.one_in(faults.jump) {
        let by = rng.between(0, 5_000) as i64;
        world.jump(if rng.one_in(2) { by } else { -by });
    }
    if rng.one_in(faults.fall_back) {
        world.store_falls_back(false)?;
    }
    if rng.one_in(faults.lose) {
        world.store_falls_back(true)?;
    }
    Ok(())
}

fn message(rng: &mut Rng, number: u64, brought: &mut Vec<PushMessage>) -> PushMessage {
    if !brought.is_empty() && rng.one_in(8) {
        let mut again = rng.pick(&brought[brought.len().saturating_sub(3)..]).clone();
        // Repeats a message under both of its names, or under one of them.
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
        Platform::new(names[rng.below(4) as usize]).expect("a valid name")
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

/// Kicks all sessions of a user, or those of one platform.
fn kick(world: &mut PeopleWorld, rng: &mut Rng) {
    let uid = user_name(rng.below(USERS as u64) as usize);
    let platform = rng.one_in(2).then(|| Platform::new("web").expect("a valid name"));
    let kick = PushKick { uid: uid.as_str().to_owned(), platform, session: None, reason: "because".to_owned() };
    world.kick(kick, &uid);
}

/// Ends the faults. After a while the rules of platforms hold, no kicked session remains, and all connected devices have everything, also
/// those that connect now. Finally no message is stored.
fn settle(world: &mut PeopleWorld) -> CheckResult {
    world.end_faults();
    world.pass(QUIET_MS)?;
    for ((uid, platform), count) in world.connected() {
        let most = if platform == "ios" { 2 } else { 1 };
        if count > most {
            return Err(format!("{uid} has {count} sessions on {platform}"));
        }
    }
    world.owner_has_the_connected_sessions()?;
    world.no_kicked_session_remains()?;
    for wave in 0..WAVES {
        for device in 0..world.devices.len() {
            world.disconnect(device);
        }
        world.pass(2_000)?;
        for device in 0..world.devices.len() {
            if world.devices[device].place == wave {
                world.connect(device, true, AckMode::Promptly);
            }
        }
        world.pass(WAVE_MS)?;
        for device in world.devices.iter().filter(|device| device.place == wave && device.keeps()) {
            if device.session.is_none() {
                return Err(format!("{} {} could not stay", device.uid, device.name));
            }
            if let Some(missing) = world.truth.missing(&device.seat, u64::MAX) {
                return Err(format!("{} {} is connected and has not received {missing}", device.uid, device.name));
            }
        }
        world.owner_has_the_connected_sessions()?;
    }
    world.is_nothing_left()
}
