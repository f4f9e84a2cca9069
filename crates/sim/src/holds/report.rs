//! The result of a run of holds: a reproducible failure, or counts of the events.

use std::fmt;

use super::profile::HoldsProfile;

/// A failed run.
#[derive(Debug, Clone)]
pub struct HoldsFailure {
    pub seed: u64,
    pub profile: HoldsProfile,
    pub message: String,
    /// The last steps.
    pub trace: Vec<String>,
}

impl fmt::Display for HoldsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.trace {
            writeln!(f, "  {step}")?;
        }
        let profile = self.profile.name();
        writeln!(f, "seed {} of profile {profile} failed: {}", self.seed, self.message)?;
        write!(f, "again: whimbrel-sim --what holds --seed {} --fault {profile} --trace", self.seed)
    }
}

/// Counts of the events of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HoldsReport {
    pub seeds: u64,
    pub steps: u64,
    pub holds: u64,
    pub fired: u64,
    pub withdrawn: u64,
    pub dead: u64,
    pub moved: u64,
    pub carried: u64,
    pub questions: u64,
    pub answered: u64,
    pub crashes: u64,
    pub takeovers: u64,
    pub unknown_commits: u64,
    pub store_falls: u64,
    pub trims: u64,
    /// The number of changes of wall clocks.
    pub clock_steps: u64,
    /// A digest of all steps: the same for the same seed.
    pub fingerprint: u64,
}

impl HoldsReport {
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.holds += other.holds;
        self.fired += other.fired;
        self.withdrawn += other.withdrawn;
        self.dead += other.dead;
        self.moved += other.moved;
        self.carried += other.carried;
        self.questions += other.questions;
        self.answered += other.answered;
        self.crashes += other.crashes;
        self.takeovers += other.takeovers;
        self.unknown_commits += other.unknown_commits;
        self.store_falls += other.store_falls;
        self.trims += other.trims;
        self.clock_steps += other.clock_steps;
        self.fingerprint ^= other.fingerprint.rotate_left((self.seeds % 64) as u32);
    }
}

impl fmt::Display for HoldsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} seeds, {} steps, fingerprint {:016x}", self.seeds, self.steps, self.fingerprint)?;
        writeln!(
            f,
            "{} holds: {} fired, {} withdrawn, {} dead; {} moves",
            self.holds, self.fired, self.withdrawn, self.dead, self.moved
        )?;
        writeln!(f, "{} questions, {} answered", self.questions, self.answered)?;
        write!(
            f,
            "{} crashes, {} takeovers, {} unknown commits, {} falls of the store, {} trims, {} carried, {} clocks set",
            self.crashes,
            self.takeovers,
            self.unknown_commits,
            self.store_falls,
            self.trims,
            self.carried,
            self.clock_steps
        )
    }
}
