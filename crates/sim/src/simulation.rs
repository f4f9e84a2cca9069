//! One run of a simulation by its seed, and its result: a failure that the seed repeats, or counts of the events.
//!
//! A [`Simulation`] is a profile of faults. It starts a [`SeedRun`], which the same seed drives in the same way. A panic is a failure.

use std::fmt;
use std::ops::Range;
use std::panic::AssertUnwindSafe;

use clap::ValueEnum;

use crate::trace::{Trace, panic_text};
use crate::{CheckResult, Rng};

/// A profile of faults of one simulated part. Its names are the values of `--fault`.
pub trait Simulation: ValueEnum + Copy + PartialEq + fmt::Debug + 'static {
    /// The part, as the value of `--what`.
    const PART: &'static str;
    /// The breakages that a run must detect.
    const BROKEN: &'static [Self] = &[];
    type Run: SeedRun;

    fn start(self, rng: Rng, trace: Trace) -> CheckResult<Self::Run>;

    /// The profiles without violations.
    fn clean() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied().filter(|profile| !Self::BROKEN.contains(profile))
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The state of a run.
pub trait SeedRun {
    type Counts: Counts;

    /// Takes all steps, and lets everything settle.
    fn drive(&mut self) -> CheckResult;

    fn trace(&self) -> &Trace;

    fn steps(&self) -> u64 {
        self.trace().steps
    }

    fn counts(&self) -> Self::Counts;

    /// A digest of all steps: the same for the same seed.
    fn fingerprint(&self) -> u64 {
        self.trace().fingerprint()
    }
}

/// Numbers of events that are added up over seeds.
pub trait Counts: fmt::Debug + Copy + Default + PartialEq {
    fn add(&mut self, other: &Self);
}

impl Counts for u64 {
    fn add(&mut self, other: &Self) {
        *self += other;
    }
}

/// Declares a struct of counts, which are added field by field.
macro_rules! counts {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $counts:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: $counts,)* }

        impl $crate::simulation::Counts for $name {
            fn add(&mut self, other: &Self) {
                $($crate::simulation::Counts::add(&mut self.$field, &other.$field);)*
            }
        }
    };
}
pub(crate) use counts;

/// The result of a run, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunReport<C> {
    pub seeds: u64,
    pub steps: u64,
    pub counts: C,
    pub fingerprint: u64,
}

pub type ReportOf<S> = RunReport<<<S as Simulation>::Run as SeedRun>::Counts>;

impl<C: Counts> RunReport<C> {
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.counts.add(&other.counts);
        self.fingerprint ^= other.fingerprint.rotate_left((self.seeds % 64) as u32);
    }
}

impl<C: fmt::Display> fmt::Display for RunReport<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, steps, counts, fingerprint } = self;
        write!(f, "{seeds} seeds, {steps} steps, fingerprint {fingerprint:016x}\n{counts}")
    }
}

/// A failed run.
#[derive(Debug, Clone)]
pub struct RunFailure<S> {
    pub seed: u64,
    pub profile: S,
    pub message: String,
    /// The last steps.
    pub trace: Vec<String>,
}

impl<S: Simulation> fmt::Display for RunFailure<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.trace {
            writeln!(f, "  {step}")?;
        }
        let (seed, profile, part) = (self.seed, self.profile.name(), S::PART);
        writeln!(f, "seed {seed} of profile {profile} failed: {}", self.message)?;
        write!(f, "again: whimbrel-sim --what {part} --seed {seed} --fault {profile} --trace")
    }
}

/// Runs one seed.
pub fn run<S: Simulation>(seed: u64, profile: S) -> Result<ReportOf<S>, Box<RunFailure<S>>> {
    run_with(seed, profile, false)
}

/// Runs seeds until one fails, and adds up their reports.
pub fn run_all<S: Simulation>(seeds: Range<u64>, profile: S) -> Result<ReportOf<S>, Box<RunFailure<S>>> {
    let mut report = ReportOf::<S>::default();
    for seed in seeds {
        report.add(&run(seed, profile)?);
    }
    Ok(report)
}

/// Runs one seed and prints each step.
pub fn run_traced<S: Simulation>(seed: u64, profile: S) -> Result<ReportOf<S>, Box<RunFailure<S>>> {
    run_with(seed, profile, true)
}

fn run_with<S: Simulation>(seed: u64, profile: S, print: bool) -> Result<ReportOf<S>, Box<RunFailure<S>>> {
    let failure = |message, trace| Box::new(RunFailure { seed, profile, message, trace });
    let started = profile.start(Rng::new(seed), Trace::new(print));
    let mut run = started.map_err(|message| failure(message, Vec::new()))?;
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| run.drive()));
    let outcome = outcome.unwrap_or_else(|panic| Err(format!("a panic: {}", panic_text(&*panic))));
    outcome.map_err(|message| failure(message, run.trace().last()))?;
    Ok(RunReport { seeds: 1, steps: run.steps(), counts: run.counts(), fingerprint: run.fingerprint() })
}
