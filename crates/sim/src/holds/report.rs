//! The counts of a run of holds.

use std::fmt;

use crate::simulation::counts;

counts! {
    /// Counts of the events of a run.
    pub struct HoldsCounts {
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
    }
}

impl fmt::Display for HoldsCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holds, fired, withdrawn, dead, moved, carried, questions, answered, .. } = self;
        let Self { crashes, takeovers, unknown_commits, store_falls, trims, clock_steps, .. } = self;
        writeln!(f, "{holds} holds: {fired} fired, {withdrawn} withdrawn, {dead} dead; {moved} moves")?;
        writeln!(f, "{questions} questions, {answered} answered")?;
        write!(f, "{crashes} crashes, {takeovers} takeovers, {unknown_commits} unknown commits, ")?;
        write!(f, "{store_falls} falls of the store, {trims} trims, {carried} carried, {clock_steps} clocks set")
    }
}
