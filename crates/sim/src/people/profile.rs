//! What kinds of trouble a run of people has. All of it follows from the seed.

use crate::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeopleProfile {
    /// Devices that come and go, acknowledge late or never, and nothing worse.
    Devices,
    /// Carriers that crash, or give their partition up in order.
    Crashes,
    /// Carriers that are replaced and go on for a while.
    Zombies,
    /// Ways between gateways and carriers that break, with what is on them.
    Links,
    /// Gateways that die, or lose their leases.
    Gateways,
    /// A store that does not answer, falls back to an earlier state, or is lost.
    Store,
    /// A clock that jumps.
    Clock,
    /// All of the above together.
    Mixed,
    /// A breakage: gateways that do not see that something before was lost.
    NoGaps,
    /// A breakage: a carrier that counts as acknowledged what it sent.
    SentIsAcked,
    /// A breakage: a store that loses what was written, and says that it was.
    LostWrites,
    /// A breakage: a store that takes away one reference too many.
    DoubleRelease,
    /// A breakage: gateways that do not announce their sessions to a new owner.
    NoAnnounce,
    /// A breakage: gateways that close nobody.
    NoKicks,
}

/// How often each kind of trouble comes: once in so many steps or calls, or never where it is zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trouble {
    pub crash: u64,
    pub end: u64,
    pub replace: u64,
    pub link: u64,
    pub death: u64,
    pub lease: u64,
    /// Of calls of the store.
    pub store: u64,
    pub fall_back: u64,
    pub lose: u64,
    pub jump: u64,
}

impl PeopleProfile {
    /// Those that must be clean.
    pub const ALL: [Self; 8] = [
        Self::Devices,
        Self::Crashes,
        Self::Zombies,
        Self::Links,
        Self::Gateways,
        Self::Store,
        Self::Clock,
        Self::Mixed,
    ];
    /// Those that must be found out.
    pub const BREAKAGES: [Self; 6] =
        [Self::NoGaps, Self::SentIsAcked, Self::LostWrites, Self::DoubleRelease, Self::NoAnnounce, Self::NoKicks];

    pub fn name(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Crashes => "crashes",
            Self::Zombies => "zombies",
            Self::Links => "links",
            Self::Gateways => "gateways",
            Self::Store => "store",
            Self::Clock => "clock",
            Self::Mixed => "mixed",
            Self::NoGaps => "no-gaps",
            Self::SentIsAcked => "sent-is-acked",
            Self::LostWrites => "lost-writes",
            Self::DoubleRelease => "double-release",
            Self::NoAnnounce => "no-announce",
            Self::NoKicks => "no-kicks",
        }
    }

    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::BREAKAGES).find(|profile| profile.name() == name)
    }

    pub(super) fn trouble(self, rng: &mut Rng) -> Trouble {
        let none = Trouble::default();
        match self {
            Self::Devices | Self::SentIsAcked | Self::DoubleRelease | Self::NoKicks => none,
            Self::Crashes | Self::NoAnnounce => {
                Trouble { crash: rng.between(30, 90), end: rng.between(60, 200), ..none }
            }
            Self::Zombies => Trouble { replace: rng.between(25, 80), ..none },
            Self::Links | Self::NoGaps => Trouble { link: rng.between(8, 40), ..none },
            Self::Gateways => Trouble { death: rng.between(40, 120), lease: rng.between(40, 120), ..none },
            Self::Store => Trouble {
                store: *rng.pick(&[0, 30, 100]),
                fall_back: *rng.pick(&[0, 60, 150]),
                lose: *rng.pick(&[0, 150, 300]),
                ..none
            },
            Self::LostWrites => none,
            Self::Clock => Trouble { jump: rng.between(15, 60), crash: rng.between(60, 200), ..none },
            Self::Mixed => Trouble {
                crash: rng.between(80, 300),
                end: rng.between(200, 400),
                replace: rng.between(80, 300),
                link: rng.between(30, 120),
                death: rng.between(120, 400),
                lease: rng.between(120, 400),
                store: rng.between(80, 400),
                fall_back: rng.between(150, 500),
                lose: *rng.pick(&[0, 400]),
                jump: rng.between(80, 300),
            },
        }
    }
}
