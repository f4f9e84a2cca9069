//! What kinds of trouble a run of presence has. All of it follows from the seed.

use crate::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresenceProfile {
    /// Packets, questions and answers that are lost, repeated and reordered.
    Network,
    /// Paths that are cut for seconds, one or both, and gateways that cannot be asked.
    Outages,
    /// Writers that restart, with their store or without it.
    Writers,
    /// Gateways that die and come back.
    Deaths,
    /// Gateways that live and lose their leases.
    Leases,
    /// Gateways that keep their leases and can neither be heard nor asked for seconds.
    Unheard,
    /// All of the above together.
    Mixed,
    /// A breakage: writers that take a packet as often as it comes.
    NoDedupe,
    /// A breakage: writers that do not see that a number is missing.
    NoGaps,
    /// A breakage: stores that keep what is void.
    NoVoid,
    /// A breakage: writers to whom a gateway that was heard once is heard.
    OldNews,
}

/// How often each kind of trouble comes: once in so many, or never where it is zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trouble {
    /// Of messages.
    pub lost: u64,
    pub repeated: u64,
    pub slow: u64,
    /// Of steps.
    pub outage: u64,
    pub restart: u64,
    pub death: u64,
    pub lease: u64,
    pub unheard: u64,
}

impl PresenceProfile {
    /// Those that must be clean.
    pub const ALL: [Self; 7] =
        [Self::Network, Self::Outages, Self::Writers, Self::Deaths, Self::Leases, Self::Unheard, Self::Mixed];
    /// Those that must be found out.
    pub const BREAKAGES: [Self; 4] = [Self::NoDedupe, Self::NoGaps, Self::NoVoid, Self::OldNews];

    pub fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Outages => "outages",
            Self::Writers => "writers",
            Self::Deaths => "deaths",
            Self::Leases => "leases",
            Self::Unheard => "unheard",
            Self::Mixed => "mixed",
            Self::NoDedupe => "no-dedupe",
            Self::NoGaps => "no-gaps",
            Self::NoVoid => "no-void",
            Self::OldNews => "old-news",
        }
    }

    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::BREAKAGES).find(|profile| profile.name() == name)
    }

    pub(super) fn trouble(self, rng: &mut Rng) -> Trouble {
        let network = Trouble {
            lost: *rng.pick(&[2, 3, 5, 20]),
            repeated: *rng.pick(&[0, 2, 5, 20]),
            slow: *rng.pick(&[0, 3, 10]),
            ..Trouble::default()
        };
        let mild = Trouble { lost: 30, repeated: 10, slow: 10, ..Trouble::default() };
        match self {
            Self::Network | Self::NoDedupe | Self::NoGaps => network,
            Self::Outages => Trouble { outage: rng.between(20, 60), ..mild },
            Self::Writers => Trouble { restart: rng.between(20, 80), ..mild },
            Self::Deaths | Self::NoVoid => Trouble { death: rng.between(30, 100), ..mild },
            Self::Leases => Trouble { lease: rng.between(20, 80), ..mild },
            // Nothing is slow, so that what is told as fresh can be held against the truth closely.
            Self::Unheard | Self::OldNews => Trouble { unheard: rng.between(20, 100), slow: 0, ..mild },
            Self::Mixed => Trouble {
                outage: rng.between(60, 200),
                restart: rng.between(40, 150),
                death: rng.between(60, 200),
                lease: rng.between(60, 200),
                unheard: rng.between(60, 200),
                ..network
            },
        }
    }
}
