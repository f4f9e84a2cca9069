//! The faults of a run of people. The seed determines all of them.

use crate::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PeopleProfile {
    /// Devices that connect and disconnect, and acknowledge late or never. No other fault.
    Devices,
    /// Carriers that crash, or give their partition up in order.
    Crashes,
    /// Carriers that are replaced and continue for a while.
    Zombies,
    /// Links between gateways and carriers that break, with the messages in transit.
    Links,
    /// Gateways that die, or lose their leases.
    Gateways,
    /// A store that does not respond, falls back to an earlier state, or is lost.
    Store,
    /// A clock that jumps.
    Clock,
    /// All of the above together.
    Mixed,
    /// A breakage: gateways that do not detect lost messages.
    NoGaps,
    /// A breakage: a carrier that counts sent messages as acknowledged.
    SentIsAcked,
    /// A breakage: a store that loses writes and reports success.
    LostWrites,
    /// A breakage: a store that removes one reference too many.
    DoubleRelease,
    /// A breakage: gateways that do not announce their sessions to a new owner.
    NoAnnounce,
    /// A breakage: gateways that ignore kicks.
    NoKicks,
}

/// The frequency of each fault: one in this many steps or calls, or never if zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct PeopleFaults {
    pub crash: u64,
    pub end: u64,
    pub replace: u64,
    pub link: u64,
    pub death: u64,
    pub lease: u64,
    /// Faults of calls of the store.
    pub store: u64,
    pub fall_back: u64,
    pub lose: u64,
    pub jump: u64,
}

impl PeopleProfile {
    pub(super) fn faults(self, rng: &mut Rng) -> PeopleFaults {
        let none = PeopleFaults::default();
        match self {
            Self::Devices | Self::SentIsAcked | Self::DoubleRelease | Self::NoKicks => none,
            Self::Crashes | Self::NoAnnounce => {
                PeopleFaults { crash: rng.between(30, 90), end: rng.between(60, 200), ..none }
            }
            Self::Zombies => PeopleFaults { replace: rng.between(25, 80), ..none },
            Self::Links | Self::NoGaps => PeopleFaults { link: rng.between(8, 40), ..none },
            Self::Gateways => PeopleFaults { death: rng.between(40, 120), lease: rng.between(40, 120), ..none },
            Self::Store => PeopleFaults {
                store: *rng.pick(&[0, 30, 100]),
                fall_back: *rng.pick(&[0, 60, 150]),
                lose: *rng.pick(&[0, 150, 300]),
                ..none
            },
            Self::LostWrites => none,
            Self::Clock => PeopleFaults { jump: rng.between(15, 60), crash: rng.between(60, 200), ..none },
            Self::Mixed => PeopleFaults {
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
