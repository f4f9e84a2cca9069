//! The result of a run of growths: a reproducible failure, or counts of the events.

use std::fmt;

use super::profile::GrowthProfile;

/// A failed run.
#[derive(Debug, Clone)]
pub struct GrowthFailure {
    pub seed: u64,
    pub profile: GrowthProfile,
    pub message: String,
    /// The last steps.
    pub trace: Vec<String>,
}

impl fmt::Display for GrowthFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.trace {
            writeln!(f, "  {step}")?;
        }
        let profile = self.profile.name();
        writeln!(f, "seed {} of profile {profile} failed: {}", self.seed, self.message)?;
        write!(f, "again: whimbrel-sim --what growth --seed {} --fault {profile} --trace", self.seed)
    }
}

/// Counts of the events of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrowthReport {
    pub seeds: u64,
    pub ticks: u64,
    pub acknowledged: u64,
    pub refused: u64,
    /// Appends that ended and were not acknowledged.
    pub unknown: u64,
    pub begun: u64,
    pub finished: u64,
    pub rolled_back: u64,
    /// Growths that ended on another node than the one that began them.
    pub taken_over: u64,
    pub sessions_lost: u64,
    pub crashes: u64,
    pub pages: u64,
    /// A digest of all steps: the same for the same seed.
    pub fingerprint: u64,
}

impl GrowthReport {
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.ticks += other.ticks;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.begun += other.begun;
        self.finished += other.finished;
        self.rolled_back += other.rolled_back;
        self.taken_over += other.taken_over;
        self.sessions_lost += other.sessions_lost;
        self.crashes += other.crashes;
        self.pages += other.pages;
        self.fingerprint ^= other.fingerprint.rotate_left((self.seeds % 64) as u32);
    }
}

impl fmt::Display for GrowthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} seeds, {} ticks, fingerprint {:016x}", self.seeds, self.ticks, self.fingerprint)?;
        writeln!(
            f,
            "{} messages acknowledged, {} refused, {} of unknown outcome",
            self.acknowledged, self.refused, self.unknown
        )?;
        writeln!(
            f,
            "{} growths begun, {} finished, {} rolled back, {} taken over",
            self.begun, self.finished, self.rolled_back, self.taken_over
        )?;
        write!(f, "{} sessions lost, {} crashes, {} pages taken in", self.sessions_lost, self.crashes, self.pages)
    }
}
