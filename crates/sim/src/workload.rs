//! Runs a seed of the log, step by step, with the checker beside it.

mod group;
mod report;
mod restart;
mod upkeep;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use whimbrel_storage::{AppendError, Core, LogEvent, LogSettings, PartitionKey, TopicRetention};

use crate::checker::{CheckResult, Checker, FlippedBits};
use crate::disk::FaultCounts;
use crate::model::{Model, TopicState};
use crate::simulation::{SeedRun, Simulation};
use crate::trace::Trace;
use crate::{Profile, Rng, SimDisk};
pub use report::LogCounts;

const DATA_FOLDER: &str = "/data";
/// The topics of one run, including deleted ones.
const TOPICS_MAX: u32 = 8;
const PARTITIONS_MAX: u32 = 4;
const STEPS_MIN: u64 = 40;
const STEPS_MAX: u64 = 160;
/// Attempts to open the log with faults. The next attempt has none and must succeed.
const FAULTY_OPENINGS_MAX: u32 = 4;

/// The state of a run except the log itself, which restarts with each crash.
pub struct LogWorld {
    profile: Profile,
    rng: Rng,
    disk: SimDisk,
    settings: LogSettings,
    model: Model,
    flipped: FlippedBits,
    retention: BTreeMap<u32, TopicRetention>,
    now: i64,
    next_number: u64,
    /// The injected faults when the log was opened. Without more of them, nothing may fail.
    injected_before: FaultCounts,
    events: Arc<Mutex<Vec<LogEvent>>>,
    trace: Trace,
    counts: LogCounts,
}

/// The kinds of steps. `STEPS` has their weights.
#[derive(Debug, Clone, Copy)]
enum StepKind {
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

const STEPS: [(StepKind, u64); 15] = [
    (StepKind::Commit, 52),
    (StepKind::Read, 12),
    (StepKind::Time, 5),
    (StepKind::Checkpoint, 5),
    (StepKind::Relieve, 5),
    (StepKind::Idle, 4),
    (StepKind::Retain, 3),
    (StepKind::Trim, 3),
    (StepKind::Grow, 3),
    (StepKind::Delete, 1),
    (StepKind::Room, 3),
    (StepKind::Flip, 2),
    (StepKind::CheckAll, 1),
    (StepKind::PowerOff, 3),
    (StepKind::Restart, 1),
];

impl Simulation for Profile {
    const PART: &'static str = "log";
    const BROKEN: &'static [Self] = &[Self::LyingSync, Self::ResealedFlips];
    type Run = LogWorld;

    fn start(self, mut rng: Rng, trace: Trace) -> CheckResult<LogWorld> {
        let disk = SimDisk::new(rng.draw());
        disk.set_faults(self.faults(&mut rng));
        Ok(LogWorld {
            settings: self.settings(&mut rng),
            profile: self,
            rng,
            disk,
            model: Model::default(),
            flipped: FlippedBits::default(),
            retention: BTreeMap::new(),
            now: 1_000_000,
            next_number: 1,
            injected_before: FaultCounts::default(),
            events: Arc::default(),
            trace,
            counts: LogCounts::default(),
        })
    }
}

impl SeedRun for LogWorld {
    type Counts = LogCounts;

    fn trace(&self) -> &Trace {
        &self.trace
    }

    fn counts(&self) -> LogCounts {
        LogCounts { injected: self.disk.injected(), ..self.counts }
    }

    fn fingerprint(&self) -> u64 {
        self.trace.fingerprint() ^ self.disk.calls()
    }

    fn drive(&mut self) -> CheckResult {
        let mut core = self.open()?;
        self.grow(&core)?;
        for _ in 0..self.rng.between(STEPS_MIN, STEPS_MAX) {
            self.trace.steps += 1;
            self.now += self.rng.below(100) as i64;
            let step = self.choose();
            if matches!(step, StepKind::Restart) || self.wants_restart() {
                core = self.restart(core)?;
            } else {
                self.step(step, &core)?;
                self.watch(&core)?;
            }
        }
        self.end(core)
    }
}

impl LogWorld {
    fn choose(&mut self) -> StepKind {
        let mut left = self.rng.below(STEPS.iter().map(|(_, weight)| weight).sum());
        for (step, weight) in STEPS {
            if left < weight {
                return step;
            }
            left -= weight;
        }
        StepKind::Commit
    }

    /// Whether to restart. A log that is closed for writing stays in use for a few steps: it must reject appends and serve reads.
    fn wants_restart(&mut self) -> bool {
        self.disk.is_off() || (self.model.poisoned && self.rng.one_in(4))
    }

    fn step(&mut self, step: StepKind, core: &Core) -> CheckResult {
        match step {
            StepKind::Commit => self.commit(core),
            StepKind::Read => self.read(core),
            StepKind::Time => self.time(core),
            StepKind::Checkpoint => self.checkpoint(core),
            StepKind::Relieve => self.relieve(core),
            StepKind::Idle => self.idle(core),
            StepKind::Retain => self.retain(core),
            StepKind::Trim => self.trim(core),
            StepKind::Grow => self.grow(core),
            StepKind::Delete => self.delete(core),
            StepKind::Room => self.room(core),
            StepKind::Flip => self.flip_while_running(),
            StepKind::CheckAll => self.check_all(core),
            StepKind::PowerOff => {
                let calls = self.rng.between(1, 60);
                self.trace.note(|| format!("the power goes at call {calls}"));
                self.disk.lose_power_after(calls);
                Ok(())
            }
            StepKind::Restart => Ok(()),
        }
    }

    /// Checks the rules that hold after every step.
    fn watch(&mut self, core: &Core) -> CheckResult {
        match core.refusal() {
            Some(AppendError::Poisoned(why)) => {
                if !self.something_failed() {
                    return Err(format!("the log closed although the disk did not fail: {why}"));
                }
                self.model.poisoned = true;
            }
            Some(AppendError::DiskFull(why)) if !self.profile.fills_disk() => {
                return Err(format!("the log reports a full disk: {why}"));
            }
            _ if self.model.poisoned => return Err("a log closed for writing accepts appends again".to_owned()),
            _ => {}
        }
        let events = std::mem::take(&mut *self.events.lock().map_err(|_| "the lock of the events is poisoned")?);
        for event in events {
            if let LogEvent::Damaged(damage, ..) = event {
                self.counts.damage += 1;
                if self.flipped.total == 0 {
                    return Err(format!("damage was reported without a flipped bit: {damage}"));
                }
            }
        }
        Ok(())
    }

    /// Whether the disk failed since the log was opened.
    fn something_failed(&self) -> bool {
        let without_room = |injected: FaultCounts| FaultCounts { refused_for_room: 0, ..injected }.total();
        self.disk.is_off() || without_room(self.disk.injected()) > without_room(self.injected_before)
    }

    fn checker<'a>(&'a self, core: &'a Core) -> Checker<'a> {
        Checker { core, model: &self.model, disk: &self.disk, flipped: &self.flipped }
    }

    /// Checks the log without faults. Does nothing while the power is off.
    fn look(&mut self, look: impl FnOnce(&mut Self) -> CheckResult) -> CheckResult {
        if self.disk.is_off() {
            return Ok(());
        }
        self.disk.set_quiet(true);
        let looked = look(self);
        self.disk.set_quiet(false);
        looked
    }

    fn check_all(&mut self, core: &Core) -> CheckResult {
        self.trace.note(|| "everything is checked".to_owned());
        self.look(|world| world.checker(core).check_all())
    }

    fn any_partition(&mut self) -> Option<PartitionKey> {
        let alive = self.model.alive();
        (!alive.is_empty()).then(|| *self.rng.pick(&alive))
    }

    fn read(&mut self, core: &Core) -> CheckResult {
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
            // An I/O error of the disk is not damage. The next reader retries.
            if self.disk.injected().read_errors == failed_before {
                return Err(format!("reading {key} at {from}: {read:?}"));
            }
        }
        self.look(|world| world.checker(core).check_read(key, from, max_bytes).map(drop))
    }

    fn time(&mut self, core: &Core) -> CheckResult {
        let Some(key) = self.any_partition() else { return Ok(()) };
        let time = self.now - self.rng.below(6000) as i64 + 100;
        self.trace.note(|| format!("look for time {time} in {key}"));
        self.look(|world| world.checker(core).check_offset_at(key, time))
    }

    /// Ends the faults. The log must accept appends, keep everything through one more power loss, and match the model.
    fn end(&mut self, core: Core) -> CheckResult {
        self.trace.note(|| "the disk behaves from now on".to_owned());
        self.disk.set_faults(crate::disk::Faults { sync_by_file: self.rng.one_in(2), ..Default::default() });
        self.disk.set_budget(u64::MAX / 2);
        self.disk.keep_power();
        self.look(|world| world.checker(&core).check_all())?;
        let mut core = if self.model.poisoned || self.disk.is_off() { self.restart_honestly(core)? } else { core };
        core.watch_room(self.now);
        if let Some(refusal) = core.refusal() {
            return Err(format!("the disk has no faults, and the log rejects appends: {refusal}"));
        }
        for _ in 0..5 {
            self.commit(&core)?;
        }
        if self.model.poisoned {
            return Err("the disk has no faults, and the log closed".to_owned());
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
