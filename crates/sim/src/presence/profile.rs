//! The faults of a run of presence. The seed determines all of them.

use crate::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PresenceProfile {
    /// Packets, requests and answers that are lost, repeated and reordered.
    Network,
    /// Paths that are cut for seconds, one or both, and gateways that cannot be asked.
    Outages,
    /// Writers that restart, with or without their stores.
    Writers,
    /// Gateways that die and come back.
    Deaths,
    /// Running gateways that lose their leases.
    Leases,
    /// Gateways with leases that are unreachable in both directions for seconds.
    Unheard,
    /// All of the above together.
    Mixed,
    /// A breakage: writers that apply repeated packets.
    NoDedupe,
    /// A breakage: writers that do not detect a missing number.
    NoGaps,
    /// A breakage: stores that keep void sessions.
    NoVoid,
    /// A breakage: writers that count a gateway as heard forever after the first packet.
    OldNews,
}

/// The frequency of each fault: one in this many, or never if zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct PresenceFaults {
    /// Faults of messages.
    pub lost: u64,
    pub repeated: u64,
    pub slow: u64,
    /// Faults of steps.
    pub outage: u64,
    pub restart: u64,
    pub death: u64,
    pub lease: u64,
    pub unreachable: u64,
}

impl PresenceProfile {
    pub(super) fn faults(self, rng: &mut Rng) -> PresenceFaults {
        let network = PresenceFaults {
            lost: *rng.pick(&[2, 3, 5, 20]),
            repeated: *rng.pick(&[0, 2, 5, 20]),
            slow: *rng.pick(&[0, 3, 10]),
            ..PresenceFaults::default()
        };
        let mild = PresenceFaults { lost: 30, repeated: 10, slow: 10, ..PresenceFaults::default() };
        match self {
            Self::Network | Self::NoDedupe | Self::NoGaps => network,
            Self::Outages => PresenceFaults { outage: rng.between(20, 60), ..mild },
            Self::Writers => PresenceFaults { restart: rng.between(20, 80), ..mild },
            Self::Deaths | Self::NoVoid => PresenceFaults { death: rng.between(30, 100), ..mild },
            Self::Leases => PresenceFaults { lease: rng.between(20, 80), ..mild },
            // No message is slow, so that the age of fresh answers can be checked closely.
            Self::Unheard | Self::OldNews => PresenceFaults { unreachable: rng.between(20, 100), slow: 0, ..mild },
            Self::Mixed => PresenceFaults {
                outage: rng.between(60, 200),
                restart: rng.between(40, 150),
                death: rng.between(60, 200),
                lease: rng.between(60, 200),
                unreachable: rng.between(60, 200),
                ..network
            },
        }
    }
}
