//! The simulator: the real storage code on a disk that fails, and the real deciding parts of holds, of deliveries, of reaching people and of
//! presence on logs, stores, endpoints and networks that fail, by seed, with checkers that know what must be true.
//!
//! - [`SimDisk`] is the disk's faulty twin.
//! - [`Model`](model::Model) is the log as it should be, in memory and without cleverness.
//! - [`growth`] has several nodes that grow a topic which they share.
//! - [`holds`] does the same for the owners of holds, [`deliveries`] for those of subscriptions, [`presence`] for gateways
//!   and the writers of who is online, [`people`] for carriers, gateways and devices.
//! - [`run`] drives a `Core` by a seed and compares the two at every step. The same seed makes the same run; one that fails
//!   says what was wrong and what was done last.
//!
//! It must never use time, threads or chance that a seed does not give.

mod checker;
pub mod deliveries;
pub mod disk;
pub mod growth;
pub mod holds;
pub mod model;
pub mod people;
pub mod presence;
mod profile;
mod rng;
mod tamper;
pub mod trace;
mod workload;

pub use deliveries::{DeliveriesFailure, DeliveriesProfile, DeliveriesReport, run_deliveries, run_deliveries_traced};
pub use disk::SimDisk;
pub use growth::{GrowthFailure, GrowthProfile, GrowthReport, run_growth, run_growth_traced};
pub use holds::{HoldsFailure, HoldsProfile, HoldsReport, run_holds, run_holds_traced};
pub use people::{PeopleFailure, PeopleProfile, PeopleReport, run_people, run_people_traced};
pub use presence::{PresenceFailure, PresenceProfile, PresenceReport, run_presence, run_presence_traced};
pub use profile::Profile;
pub use rng::Rng;
pub use workload::{Failure, Report, run, run_traced};
