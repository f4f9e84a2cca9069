//! The counts of a run of people.

use std::fmt;

use crate::simulation::counts;

counts! {
    /// Counts of the events of a run.
    pub struct PeopleCounts {
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
        pub no_acks: u64,
        pub holds: u64,
        pub writes: u64,
        pub faults: PeopleFaultCounts,
    }
}

counts! {
    /// Counts of the faults of a run, and of what they caused.
    pub struct PeopleFaultCounts {
        pub owners: u64,
        pub zombies: u64,
        /// Owners that ended after a kick was saved and before it was sent.
        pub kicks_cut_off: u64,
        pub breaks: u64,
        pub gaps: u64,
        pub older_epochs: u64,
        pub deaths: u64,
        pub leases: u64,
        pub store_errors: u64,
        pub fall_backs: u64,
        pub jumps: u64,
    }
}

impl fmt::Display for PeopleCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, seen, seen_again, ephemeral, truncated, sessions, resumed, .. } = self;
        let Self { acks, kicks, no_acks, holds, writes, faults, .. } = self;
        write!(f, "{messages} messages; received {seen} times first, {seen_again} times again, ")?;
        writeln!(f, "{ephemeral} times ephemerally; {truncated} ranges truncated")?;
        write!(f, "{sessions} sessions, {resumed} resumed; {acks} acknowledgements; {kicks} kicks, ")?;
        writeln!(f, "{no_acks} of them for missing acknowledgements; {holds} holds; {writes} writes")?;
        write!(f, "{faults}")
    }
}

impl fmt::Display for PeopleFaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owners, zombies, kicks_cut_off, breaks, gaps, older_epochs, .. } = self;
        let Self { deaths, leases, store_errors, fall_backs, jumps, .. } = self;
        write!(f, "{owners} owners, {zombies} zombies, {kicks_cut_off} owners ended during a kick; ")?;
        write!(f, "{breaks} broken links, {gaps} gaps detected, {older_epochs} batches of older epochs; ")?;
        write!(
            f,
            "{deaths} deaths, {leases} leases lost; {store_errors} errors of the store, {fall_backs} fallbacks; "
        )?;
        write!(f, "{jumps} jumps of the clock")
    }
}
