//! The result of a run of people: a reproducible failure, or counts of the events.

use std::fmt;

use super::profile::PeopleProfile;

/// A failed run.
#[derive(Debug, Clone)]
pub struct PeopleFailure {
    pub seed: u64,
    pub profile: PeopleProfile,
    pub message: String,
    /// The last steps.
    pub trace: Vec<String>,
}

impl fmt::Display for PeopleFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.trace {
            writeln!(f, "  {step}")?;
        }
        let profile = self.profile.name();
        writeln!(f, "seed {} of profile {profile} failed: {}", self.seed, self.message)?;
        write!(f, "again: whimbrel-sim --what people --seed {} --fault {profile} --trace", self.seed)
    }
}

/// Counts of the events of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeopleReport {
    pub seeds: u64,
    pub steps: u64,
    pub messages: u64,
    /// Messages that a seat received for the first time.
    pub seen: u64,
    /// Messages that the same seat received again, in another session or marked as repeated.
    pub seen_again: u64,
    pub ephemeral: u64,
    pub truncated: u64,
    pub sessions: u64,
    pub resumed: u64,
    pub acks: u64,
    pub kicks: u64,
    /// Owners that ended after a kick was saved and before it was sent.
    pub kicks_cut_off: u64,
    pub no_acks: u64,
    pub holds: u64,
    pub writes: u64,
    pub owners: u64,
    pub zombies: u64,
    pub breaks: u64,
    pub gaps: u64,
    pub older_epochs: u64,
    pub deaths: u64,
    pub leases: u64,
    pub store_errors: u64,
    pub fall_backs: u64,
    pub jumps: u64,
    /// A digest of all steps: the same for the same seed.
    pub fingerprint: u64,
}

impl PeopleReport {
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.messages += other.messages;
        self.seen += other.seen;
        self.seen_again += other.seen_again;
        self.ephemeral += other.ephemeral;
        self.truncated += other.truncated;
        self.sessions += other.sessions;
        self.resumed += other.resumed;
        self.acks += other.acks;
        self.kicks += other.kicks;
        self.kicks_cut_off += other.kicks_cut_off;
        self.no_acks += other.no_acks;
        self.holds += other.holds;
        self.writes += other.writes;
        self.owners += other.owners;
        self.zombies += other.zombies;
        self.breaks += other.breaks;
        self.gaps += other.gaps;
        self.older_epochs += other.older_epochs;
        self.deaths += other.deaths;
        self.leases += other.leases;
        self.store_errors += other.store_errors;
        self.fall_backs += other.fall_backs;
        self.jumps += other.jumps;
        self.fingerprint ^= other.fingerprint.rotate_left((self.seeds % 64) as u32);
    }
}

impl fmt::Display for PeopleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} seeds, {} steps, fingerprint {:016x}", self.seeds, self.steps, self.fingerprint)?;
        writeln!(
            f,
            "{} messages; received {} times first, {} times again, {} times ephemerally; {} ranges truncated",
            self.messages, self.seen, self.seen_again, self.ephemeral, self.truncated
        )?;
        writeln!(
            f,
            "{} sessions, {} resumed; {} acknowledgements; {} kicks, {} of them for missing acknowledgements, {} owners ended during one; {} holds; {} writes",
            self.sessions,
            self.resumed,
            self.acks,
            self.kicks,
            self.no_acks,
            self.kicks_cut_off,
            self.holds,
            self.writes
        )?;
        write!(
            f,
            "{} owners, {} zombies; {} broken links, {} gaps detected, {} batches of older epochs; {} deaths, {} leases lost; {} errors of \
             the store, {} fallbacks; {} jumps of the clock",
            self.owners,
            self.zombies,
            self.breaks,
            self.gaps,
            self.older_epochs,
            self.deaths,
            self.leases,
            self.store_errors,
            self.fall_backs,
            self.jumps
        )
    }
}
