//! The counts of a run of growths.

use std::fmt;

use crate::simulation::counts;

counts! {
    /// Counts of the events of a run.
    pub struct GrowthCounts {
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
    }
}

impl fmt::Display for GrowthCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, refused, unknown, begun, finished, .. } = self;
        let Self { rolled_back, taken_over, sessions_lost, crashes, pages, .. } = self;
        writeln!(f, "{acknowledged} messages acknowledged, {refused} refused, {unknown} of unknown outcome")?;
        writeln!(f, "{begun} growths begun, {finished} finished, {rolled_back} rolled back, {taken_over} taken over")?;
        write!(f, "{sessions_lost} sessions lost, {crashes} crashes, {pages} pages taken in")
    }
}
