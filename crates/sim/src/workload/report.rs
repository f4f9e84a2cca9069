//! The result of a run of the log: a reproducible failure, or counts of the events.

use std::fmt;

use crate::Profile;
use crate::disk::FaultCounts;

/// A failed run.
#[derive(Debug, Clone)]
pub struct LogFailure {
    pub seed: u64,
    pub profile: Profile,
    pub message: String,
    /// The last steps.
    pub trace: Vec<String>,
}

impl fmt::Display for LogFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.trace {
            writeln!(f, "  {step}")?;
        }
        writeln!(f, "seed {} of profile {} failed: {}", self.seed, self.profile.name(), self.message)?;
        write!(f, "again: whimbrel-sim --seed {} --fault {} --trace", self.seed, self.profile.name())
    }
}

/// Counts of the events of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogReport {
    pub seeds: u64,
    pub steps: u64,
    pub group_commits: u64,
    pub records: u64,
    pub power_losses: u64,
    pub kills: u64,
    /// Attempts to open the log that failed or were interrupted.
    pub failed_openings: u64,
    pub torn_tails: u64,
    /// Group commits with an unknown outcome that were found afterwards.
    pub unknown_landed: u64,
    pub unknown_gone: u64,
    pub bits_flipped: u64,
    pub damage: u64,
    /// Acknowledged records that flipped bits made unreadable.
    pub records_lost_to_flips: u64,
    pub injected: FaultCounts,
    /// A digest of all steps: the same for the same seed.
    pub fingerprint: u64,
}

impl LogReport {
    pub fn add(&mut self, other: &LogReport) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.group_commits += other.group_commits;
        self.records += other.records;
        self.power_losses += other.power_losses;
        self.kills += other.kills;
        self.failed_openings += other.failed_openings;
        self.torn_tails += other.torn_tails;
        self.unknown_landed += other.unknown_landed;
        self.unknown_gone += other.unknown_gone;
        self.bits_flipped += other.bits_flipped;
        self.damage += other.damage;
        self.records_lost_to_flips += other.records_lost_to_flips;
        self.injected.add(&other.injected);
        self.fingerprint ^= other.fingerprint.rotate_left((self.seeds % 64) as u32);
    }
}

impl fmt::Display for LogReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let injected = &self.injected;
        writeln!(f, "{} seeds, {} steps, fingerprint {:016x}", self.seeds, self.steps, self.fingerprint)?;
        writeln!(f, "{} group commits, {} records acknowledged", self.group_commits, self.records)?;
        writeln!(
            f,
            "{} power losses, {} kills, {} openings failed, {} torn tails",
            self.power_losses, self.kills, self.failed_openings, self.torn_tails
        )?;
        writeln!(f, "unknown outcomes: {} found afterwards, {} not", self.unknown_landed, self.unknown_gone)?;
        writeln!(
            f,
            "errors of the disk: {} reads, {} writes, {} syncs, {} names, {} for a full disk, {} lies",
            injected.read_errors,
            injected.write_errors,
            injected.sync_errors,
            injected.name_errors,
            injected.refused_for_room,
            injected.lies
        )?;
        write!(
            f,
            "{} bits flipped, {} reports of damage, {} records unreadable",
            self.bits_flipped, self.damage, self.records_lost_to_flips
        )
    }
}
