//! The result of a run of presence: a reproducible failure, or counts of the events.

use std::fmt;

use super::profile::PresenceProfile;

/// A failed run.
#[derive(Debug, Clone)]
pub struct PresenceFailure {
    pub seed: u64,
    pub profile: PresenceProfile,
    pub message: String,
    /// The last steps.
    pub trace: Vec<String>,
}

impl fmt::Display for PresenceFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.trace {
            writeln!(f, "  {step}")?;
        }
        let profile = self.profile.name();
        writeln!(f, "seed {} of profile {profile} failed: {}", self.seed, self.message)?;
        write!(f, "again: whimbrel-sim --what presence --seed {} --fault {profile} --trace", self.seed)
    }
}

/// Counts of the events of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PresenceReport {
    pub seeds: u64,
    pub steps: u64,
    /// Sessions that began or ended.
    pub news: u64,
    pub packets: u64,
    pub lost: u64,
    pub repeated: u64,
    pub refused: u64,
    pub gaps: u64,
    pub asks: u64,
    pub pictures: u64,
    pub unanswered: u64,
    pub restarts: u64,
    pub deaths: u64,
    pub leases_lost: u64,
    pub outages: u64,
    pub unreachable: u64,
    /// Checks of stores from which a reader would have answered, and those that it would have rejected.
    pub fresh: u64,
    pub not_fresh: u64,
    /// A digest of all steps: the same for the same seed.
    pub fingerprint: u64,
}

impl PresenceReport {
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.news += other.news;
        self.packets += other.packets;
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.refused += other.refused;
        self.gaps += other.gaps;
        self.asks += other.asks;
        self.pictures += other.pictures;
        self.unanswered += other.unanswered;
        self.restarts += other.restarts;
        self.deaths += other.deaths;
        self.leases_lost += other.leases_lost;
        self.outages += other.outages;
        self.unreachable += other.unreachable;
        self.fresh += other.fresh;
        self.not_fresh += other.not_fresh;
        self.fingerprint ^= other.fingerprint.rotate_left((self.seeds % 64) as u32);
    }
}

impl fmt::Display for PresenceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} seeds, {} steps, fingerprint {:016x}", self.seeds, self.steps, self.fingerprint)?;
        writeln!(
            f,
            "{} session changes in {} packets; {} messages lost, {} packets repeated, {} rejected as void",
            self.news, self.packets, self.lost, self.repeated, self.refused
        )?;
        writeln!(
            f,
            "{} gaps, {} requests, {} snapshots, {} unanswered",
            self.gaps, self.asks, self.pictures, self.unanswered
        )?;
        writeln!(
            f,
            "{} restarts of writers, {} deaths of gateways, {} leases lost, {} outages, {} unreachable gateways",
            self.restarts, self.deaths, self.leases_lost, self.outages, self.unreachable
        )?;
        write!(f, "{} checks of fresh stores, all true; {} rejected as not fresh", self.fresh, self.not_fresh)
    }
}
