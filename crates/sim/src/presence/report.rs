//! The counts of a run of presence.

use std::fmt;

use crate::simulation::counts;

counts! {
    /// Counts of the events of a run.
    pub struct PresenceCounts {
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
    }
}

impl fmt::Display for PresenceCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { news, packets, lost, repeated, refused, gaps, asks, pictures, unanswered, .. } = self;
        let Self { restarts, deaths, leases_lost, outages, unreachable, fresh, not_fresh, .. } = self;
        write!(f, "{news} session changes in {packets} packets; {lost} messages lost, {repeated} packets repeated, ")?;
        writeln!(f, "{refused} rejected as void")?;
        writeln!(f, "{gaps} gaps, {asks} requests, {pictures} snapshots, {unanswered} unanswered")?;
        write!(f, "{restarts} restarts of writers, {deaths} deaths of gateways, {leases_lost} leases lost, ")?;
        writeln!(f, "{outages} outages, {unreachable} unreachable gateways")?;
        write!(f, "{fresh} checks of fresh stores, all true; {not_fresh} rejected as not fresh")
    }
}
