//! Presence under simulated trouble: the real books of gateways, the real spreading and the real ledgers of writers, on a network that
//! loses, repeats and reorders, with gateways that die, lose their leases or cannot be heard, and writers that restart. At every tick whatever
//! a store would be read as fresh for is held against what was true.
//!
//! - [`SimGateway`](gateway::SimGateway) is a gateway's process, and knows what was true at each of its numbers.
//! - [`SimWriter`](writer::SimWriter) is a ledger with a store that believes everything it is told, and complains about what must not be.
//! - [`World`](world::World) has every single step that can happen; it chooses nothing but what the network does.
//! - [`run_presence`] drives a world by a seed, then lets everything settle. The same seed makes the same run.

mod driver;
pub mod gateway;
mod profile;
mod report;
pub mod world;
pub mod writer;

pub use driver::{run_presence, run_presence_traced};
pub use profile::PresenceProfile;
pub use report::{PresenceFailure, PresenceReport};

/// What was found: an error is something that must never be.
pub type Check<T = ()> = Result<T, String>;
