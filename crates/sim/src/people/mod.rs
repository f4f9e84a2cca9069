//! Reaching people under simulated trouble: the real core of a carrier and the real state of gateways' sessions, on a log, a store, links and
//! devices that fail.
//!
//! - [`SimInbox`](store::SimInbox) is the store of inboxes; it complains about every write that takes away what somebody waits for.
//! - [`SimGateway`](gateway::SimGateway) is a gateway: real session states, and what a gateway's lane does with them.
//! - [`Truth`](truth::Truth) knows what every seat must have seen, and judges each frame that a device gets.
//! - [`World`](world::World) has every single step that can happen; it chooses nothing but how long things take.
//! - [`run_people`] drives a world by a seed, then lets everything settle. The same seed makes the same run.

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

pub use driver::{run_people, run_people_traced};
pub use profile::PeopleProfile;
pub use report::{PeopleFailure, PeopleReport};

/// What was found: an error is something that must never be.
pub type Check<T = ()> = Result<T, String>;
