//! People under simulated faults: the real core of a carrier and the real state of gateways' sessions, on a faulty log, store, links and
//! devices.
//!
//! - [`SimInbox`](store::SimInbox) is the store of inboxes. It rejects every write that removes a message for which a seat waits.
//! - [`SimGateway`](gateway::SimGateway) is a gateway: real session states, and the work of a gateway's lane with them.
//! - [`PeopleTruth`](truth::PeopleTruth) records the messages that every seat must receive, and checks each frame of a device.
//! - [`PeopleWorld`](world::PeopleWorld) has every single step that can happen. It draws only the durations.
//! - `driver` drives a world by a seed, then lets everything settle. The same seed makes the same run.

mod devices;
mod driver;
mod gateway;
mod kicks;
mod links;
mod owners;
mod profile;
mod report;
pub mod store;
pub mod truth;
pub mod world;

pub use profile::PeopleProfile;
pub use report::{PeopleCounts, PeopleFaultCounts};
