//! The simulator. It runs the real storage code on a faulty disk, and the real deciding parts of holds, deliveries, people and presence on
//! faulty logs, stores, endpoints and networks. A seed determines each run, and checkers compare it with the rules.
//!
//! - [`SimDisk`] is the faulty disk.
//! - [`Model`](model::Model) is the expected log, as simple lists in memory.
//! - [`growth`] runs several nodes that grow a shared topic.
//! - [`holds`] runs the owners of holds, [`deliveries`] those of subscriptions, [`presence`] gateways and presence writers, [`people`]
//!   carriers, gateways and devices.
//! - [`run`] runs a seed of any of them. The same seed makes the same run. A failure reports the violation and the last steps.
//!
//! It must never use time, threads or random numbers that the seed does not determine.

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
mod simulation;
mod tamper;
pub mod trace;
mod workload;

pub use checker::CheckResult;
pub use deliveries::DeliveriesProfile;
pub use disk::SimDisk;
pub use growth::GrowthProfile;
pub use holds::HoldsProfile;
pub use people::PeopleProfile;
pub use presence::PresenceProfile;
pub use profile::Profile;
pub use rng::Rng;
pub use simulation::{ReportOf, RunFailure, RunReport, Simulation, run, run_all, run_traced};
