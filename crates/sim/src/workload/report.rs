//! The counts of a run of the log.

use std::fmt;

use crate::disk::FaultCounts;
use crate::simulation::counts;

counts! {
    /// Counts of the events of a run.
    pub struct LogCounts {
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
    }
}

impl fmt::Display for LogCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group_commits, records, power_losses, kills, failed_openings, torn_tails, .. } = self;
        let Self { unknown_landed, unknown_gone, bits_flipped, damage, records_lost_to_flips, .. } = self;
        let FaultCounts { read_errors, write_errors, sync_errors, name_errors, refused_for_room, lies } = self.injected;
        writeln!(f, "{group_commits} group commits, {records} records acknowledged")?;
        write!(f, "{power_losses} power losses, {kills} kills, {failed_openings} openings failed, ")?;
        writeln!(f, "{torn_tails} torn tails")?;
        writeln!(f, "unknown outcomes: {unknown_landed} found afterwards, {unknown_gone} not")?;
        write!(f, "errors of the disk: {read_errors} reads, {write_errors} writes, {sync_errors} syncs, ")?;
        writeln!(f, "{name_errors} names, {refused_for_room} for a full disk, {lies} lies")?;
        write!(f, "{bits_flipped} bits flipped, {damage} reports of damage, {records_lost_to_flips} records unreadable")
    }
}
