//! A run: what a seed makes of a log, step by step, with the checker beside it.

mod group;
mod report;
mod restart;
mod upkeep;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Mutex};

use whimbrel_storage::{AppendError, Core, Event, PartitionKey, Settings, TopicRetention};

use crate::checker::{Check, Checker, Flipped};
use crate::disk::Injected;
use crate::model::{Model, TopicState};
use crate::trace::{Trace, panic_text};
use crate::{Profile, Rng, SimDisk};
pub use report::{Failure, Report};

const DATA_FOLDER: &str = "/data";
/// Topics of one run, those that were deleted included.
const TOPICS_MAX: u32 = 8;
const PARTITIONS_MAX: u32 = 4;
const STEPS_MIN: u64 = 40;
const STEPS_MAX: u64 = 160;
/// Opening is tried so often with faults; then once more without, and that must work.
const FAULTY_OPENINGS_MAX: u32 = 4;

/// Runs one seed.
pub fn run(seed: u64, profile: Profile) -> Result<Report, Box<Failure>> {
    run_with(seed, profile, false)
}

/// Runs one seed and prints each step.
pub fn run_traced(seed: u64, profile: Profile) -> Result<Report, Box<Failure>> {
    run_with(seed, profile, true)
}

fn run_with(seed: u64, profile: Profile, print: bool) -> Result<Report, Box<Failure>> {
    let mut world = World::new(seed, profile, print);
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| world.run()));
    let outcome = outcome.unwrap_or_else(|panic| Err(format!("a panic: {}", panic_text(&*panic))));
    match outcome {
        Ok(()) => Ok(world.report()),
        Err(message) => Err(Box::new(Failure { seed, profile, message, trace: world.trace.last() })),
    }
}

/// Everything of a run except the log itself, which comes and goes with crashes.
struct World {
    profile: Profile,
    rng: Rng,
    disk: SimDisk,
    settings: Settings,
    model: Model,
    flipped: Flipped,
    retention: BTreeMap<u32, TopicRetention>,
    now: i64,
    next_number: u64,
    /// What had been injected when the log was opened: without more of it, nothing may fail.
    injected_before: Injected,
    events: Arc<Mutex<Vec<Event>>>,
    trace: Trace,
    report: Report,
}

/// What a step does; the list has each as often as it is wanted.
#[derive(Debug, Clone, Copy)]
enum Step {
    Commit,
    Read,
    Time,
    Checkpoint,
    Relieve,
    Idle,
    Retain,
    Trim,
    Grow,
    Delete,
    Room,
    Flip,
    CheckAll,
    PowerOff,
    Restart,
}

const STEPS: [(Step, u64); 15] = [
    (Step::Commit, 52),
    (Step::Read, 12),
    (Step::Time, 5),
    (Step::Checkpoint, 5),
    (Step::Relieve, 5),
    (Step::Idle, 4),
    (Step::Retain, 3),
    (Step::Trim, 3),
    (Step::Grow, 3),
    (Step::Delete, 1),
    (Step::Room, 3),
    (Step::Flip, 2),
    (Step::CheckAll, 1),
    (Step::PowerOff, 3),
    (Step::Restart, 1),
];

impl World {
    fn new(seed: u64, profile: Profile, print: bool) -> Self {
        let mut rng = Rng::new(seed);
        let disk = SimDisk::new(rng.draw());
        disk.set_faults(profile.faults(&mut rng));
        Self {
            settings: profile.settings(&mut rng),
            profile,
            rng,
            disk,
            model: Model::default(),
            flipped: Flipped::default(),
            retention: BTreeMap::new(),
            now: 1_000_000,
            next_number: 1,
            injected_before: Injected::default(),
            events: Arc::default(),
            trace: Trace::new(print),
            report: Report::default(),
        }
    }

    fn report(&self) -> Report {
        let mut report = self.report;
        report.seeds = 1;
        report.injected = self.disk.injected();
        report.fingerprint = self.trace.fingerprint() ^ self.disk.calls();
        report
    }

    fn run(&mut self) -> Check {
        let mut core = self.open()?;
        self.grow(&core)?;
        for _ in 0..self.rng.between(STEPS_MIN, STEPS_MAX) {
            self.report.steps += 1;
            self.now += self.rng.below(100) as i64;
            let step = self.choose();
            if matches!(step, Step::Restart) || self.wants_restart() {
                core = self.restart(core)?;
            } else {
                self.step(step, &core)?;
                self.watch(&core)?;
            }
        }
        self.end(core)
    }

    fn choose(&mut self) -> Step {
        let mut left = self.rng.below(STEPS.iter().map(|(_, weight)| weight).sum());
        for (step, weight) in STEPS {
            if left < weight {
                return step;
            }
            left -= weight;
        }
        Step::Commit
    }

    /// A log that is closed for writing is used for a few steps more: it must refuse, and serve reads.
    fn wants_restart(&mut self) -> bool {
        self.disk.is_off() || (self.model.poisoned && self.rng.one_in(4))
    }

    fn step(&mut self, step: Step, core: &Core) -> Check {
        match step {
            Step::Commit => self.commit(core),
            Step::Read => self.read(core),
            Step::Time => self.time(core),
            Step::Checkpoint => self.checkpoint(core),
            Step::Relieve => self.relieve(core),
            Step::Idle => self.idle(core),
            Step::Retain => self.retain(core),
            Step::Trim => self.trim(core),
            Step::Grow => self.grow(core),
            Step::Delete => self.delete(core),
            Step::Room => self.room(core),
            Step::Flip => self.flip_while_running(),
            Step::CheckAll => self.check_all(core),
            Step::PowerOff => {
                let calls = self.rng.between(1, 60);
                self.trace.note(|| format!("the power goes at call {calls}"));
                self.disk.lose_power_after(calls);
                Ok(())
            }
            Step::Restart => Ok(()),
        }
    }

    /// What must hold after every step.
    fn watch(&mut self, core: &Core) -> Check {
        match core.refusal() {
            Some(AppendError::Poisoned(why)) => {
                if !self.something_failed() {
                    return Err(format!("the log closed although the disk did not fail: {why}"));
                }
                self.model.poisoned = true;
            }
            Some(AppendError::DiskFull(why)) if !self.profile.fills_disk() => {
                return Err(format!("the log says that the disk is full: {why}"));
            }
            _ if self.model.poisoned => return Err("a log that was closed for writing opened by itself".to_owned()),
            _ => {}
        }
        let events = std::mem::take(&mut *self.events.lock().map_err(|_| "the events' lock broke")?);
        for event in events {
            if let Event::Damaged(damage, ..) = event {
                self.report.damage += 1;
                if self.flipped.total == 0 {
                    return Err(format!("damage was told of, and no bit was flipped: {damage}"));
                }
            }
        }
        Ok(())
    }

    /// Did the disk give a reason to fail since the log was opened?
    fn something_failed(&self) -> bool {
        let without_room = |injected: Injected| Injected { refused_for_room: 0, ..injected }.total();
        self.disk.is_off() || without_room(self.disk.injected()) > without_room(self.injected_before)
    }

    fn checker<'a>(&'a self, core: &'a Core) -> Checker<'a> {
        Checker { core, model: &self.model, disk: &self.disk, flipped: &self.flipped }
    }

    /// Looks at the log while the disk behaves; nothing can be seen while the power is off.
    fn look(&mut self, look: impl FnOnce(&mut Self) -> Check) -> Check {
        if self.disk.is_off() {
            return Ok(());
        }
        self.disk.set_quiet(true);
        let looked = look(self);
        self.disk.set_quiet(false);
        looked
    }

    fn check_all(&mut self, core: &Core) -> Check {
        self.trace.note(|| "everything is checked".to_owned());
        self.look(|world| world.checker(core).check_all())
    }

    fn any_partition(&mut self) -> Option<PartitionKey> {
        let alive = self.model.alive();
        (!alive.is_empty()).then(|| *self.rng.pick(&alive))
    }

    fn read(&mut self, core: &Core) -> Check {
        let Some(key) = self.any_partition() else { return Ok(()) };
        let next = self.model.partitions[&key].next();
        let from = self.rng.below(next + 3);
        let max_bytes = *self.rng.pick(&[0, 1, 200, 2000, 100_000]);
        self.trace.note(|| format!("read {key} at {from}, {max_bytes} bytes"));
        let failed_before = self.disk.injected().read_errors;
        let read = core.read(key, from, max_bytes);
        if self.disk.is_off() {
            return Ok(());
        }
        if let Err(whimbrel_storage::ReadError::Io { .. }) = read {
            // A disk that does not answer is no damage, and the next reader tries again.
            if self.disk.injected().read_errors == failed_before {
                return Err(format!("reading {key} at {from}: {read:?}"));
            }
        }
        self.look(|world| world.checker(core).check_read(key, from, max_bytes).map(drop))
    }

    fn time(&mut self, core: &Core) -> Check {
        let Some(key) = self.any_partition() else { return Ok(()) };
        let time = self.now - self.rng.below(6000) as i64 + 100;
        self.trace.note(|| format!("look for time {time} in {key}"));
        self.look(|world| world.checker(core).check_offset_at(key, time))
    }

    /// The disk behaves from now on: the log must accept, keep everything through one more power loss, and be as it should be.
    fn end(&mut self, core: Core) -> Check {
        self.trace.note(|| "the disk behaves from now on".to_owned());
        self.disk.set_faults(crate::disk::Faults { sync_by_file: self.rng.one_in(2), ..Default::default() });
        self.disk.set_budget(u64::MAX / 2);
        self.disk.keep_power();
        self.look(|world| world.checker(&core).check_all())?;
        let mut core = if self.model.poisoned || self.disk.is_off() { self.restart_honestly(core)? } else { core };
        core.watch_room(self.now);
        if let Some(refusal) = core.refusal() {
            return Err(format!("nothing is wrong with the disk, and the log refuses: {refusal}"));
        }
        for _ in 0..5 {
            self.commit(&core)?;
        }
        if self.model.poisoned {
            return Err("nothing is wrong with the disk, and the log closed".to_owned());
        }
        core = self.restart_honestly(core)?;
        for key in self.model.alive() {
            let time = self.now - self.rng.below(6000) as i64;
            self.checker(&core).check_offset_at(key, time)?;
        }
        self.checker(&core).check_all()
    }

    fn topics_in(&self, wanted: impl Fn(TopicState) -> bool) -> Vec<u32> {
        self.model.topics.iter().filter(|(_, state)| wanted(**state)).map(|(topic, _)| *topic).collect()
    }

    fn data_folder() -> &'static Path {
        Path::new(DATA_FOLDER)
    }
}
