//! The result of a run of deliveries: a reproducible failure, or counts of the events.

use std::fmt;

use super::profile::DeliveriesProfile;

/// A failed run.
#[derive(Debug, Clone)]
pub struct DeliveriesFailure {
    pub seed: u64,
    pub profile: DeliveriesProfile,
    pub message: String,
    /// The last steps.
    pub trace: Vec<String>,
}

impl fmt::Display for DeliveriesFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.trace {
            writeln!(f, "  {step}")?;
        }
        let profile = self.profile.name();
        writeln!(f, "seed {} of profile {profile} failed: {}", self.seed, self.message)?;
        write!(f, "again: whimbrel-sim --what deliveries --seed {} --fault {profile} --trace", self.seed)
    }
}

/// Counts of the events of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeliveriesReport {
    pub seeds: u64,
    pub steps: u64,
    pub messages: u64,
    pub calls: u64,
    pub taken: u64,
    pub taken_again: u64,
    pub held: u64,
    pub buried: u64,
    pub dropped: u64,
    pub crashes: u64,
    pub takeovers: u64,
    pub seeks: u64,
    pub growths: u64,
    pub trims: u64,
    pub store_falls: u64,
    /// A digest of all steps: the same for the same seed.
    pub fingerprint: u64,
}

impl DeliveriesReport {
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.messages += other.messages;
        self.calls += other.calls;
        self.taken += other.taken;
        self.taken_again += other.taken_again;
        self.held += other.held;
        self.buried += other.buried;
        self.dropped += other.dropped;
        self.crashes += other.crashes;
        self.takeovers += other.takeovers;
        self.seeks += other.seeks;
        self.growths += other.growths;
        self.trims += other.trims;
        self.store_falls += other.store_falls;
        self.fingerprint ^= other.fingerprint.rotate_left((self.seeds % 64) as u32);
    }
}

impl fmt::Display for DeliveriesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} seeds, {} steps, fingerprint {:016x}", self.seeds, self.steps, self.fingerprint)?;
        writeln!(
            f,
            "{} messages, {} calls: {} taken, {} times again; {} holds, {} dead letters, {} dropped",
            self.messages, self.calls, self.taken, self.taken_again, self.held, self.buried, self.dropped
        )?;
        write!(
            f,
            "{} crashes, {} takeovers, {} seeks, {} growths, {} trims, {} falls of the store",
            self.crashes, self.takeovers, self.seeks, self.growths, self.trims, self.store_falls
        )
    }
}
