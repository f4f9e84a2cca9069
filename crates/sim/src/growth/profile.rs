//! The kinds of faults in a run of growths. The seed determines all of them.

use crate::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum GrowthProfile {
    /// Nodes that see no change of the entry for seconds, and keep their sessions.
    Stale,
    /// Nodes that cannot reach the coordination for seconds.
    Partitions,
    /// Nodes that pause for seconds, with appends that they have not sent yet.
    Frozen,
    /// Writes that are made late or not at all, and whose answers are lost.
    Unknown,
    /// Nodes that crash and start again.
    Crashes,
    /// All of the above together.
    Mixed,
    /// A breakage: a growth is finished without the confirmations of others.
    Unconfirmed,
    /// A breakage: nodes publish by key without a session.
    NoLease,
    /// A breakage: nodes acknowledge appends although the session has ended.
    EarlyAck,
    /// A breakage: a gate opens when the outcome of a write is unknown.
    Reopen,
    /// A breakage: a node that joined again uses the mapping that it had.
    StaleJoin,
    /// A breakage: readers process messages while the topic grows.
    BlindReader,
    /// A breakage: readers process messages before their node has read the entry under its session.
    HastyReader,
}

/// How often each kind of fault occurs: once in this many ticks; zero means never.
#[derive(Debug, Clone, Copy, Default)]
pub struct GrowthFaults {
    pub stale: u64,
    pub cut: u64,
    pub freeze: u64,
    pub crash: u64,
    /// Of writes: made and not answered.
    pub unanswered: u64,
    /// Of writes: neither made nor answered.
    pub lost: u64,
    /// Of writes: made up to seconds later.
    pub slow: u64,
}

impl GrowthProfile {
    pub(super) fn faults(self, rng: &mut Rng) -> GrowthFaults {
        let none = GrowthFaults::default();
        let unknown =
            GrowthFaults { unanswered: rng.between(2, 5), lost: rng.between(3, 8), slow: rng.between(2, 5), ..none };
        match self {
            Self::Stale | Self::Unconfirmed | Self::BlindReader => GrowthFaults { stale: rng.between(50, 300), ..none },
            Self::Partitions | Self::NoLease | Self::StaleJoin | Self::HastyReader => {
                GrowthFaults { cut: rng.between(100, 400), ..none }
            }
            Self::Frozen | Self::EarlyAck => GrowthFaults { freeze: rng.between(60, 300), ..none },
            Self::Unknown | Self::Reopen => unknown,
            Self::Crashes => GrowthFaults { crash: rng.between(100, 500), ..none },
            Self::Mixed => GrowthFaults {
                stale: rng.between(100, 800),
                cut: rng.between(200, 1_000),
                freeze: rng.between(200, 1_000),
                crash: rng.between(300, 2_000),
                ..unknown
            },
        }
    }
}
