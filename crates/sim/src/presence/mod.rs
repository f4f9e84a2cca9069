//! Presence under simulated faults: the real packet logs of gateways, the real spreading and the real trackers of writers. The network
//! loses, repeats and reorders messages. Gateways end, lose their leases or are unreachable; writers restart. Each tick compares every
//! store that a reader would accept as fresh with the true state.
//!
//! - [`PresenceGateway`](gateway::PresenceGateway) is the process of a gateway, with the true state at each of its numbers.
//! - [`SimWriter`](writer::SimWriter) is a ledger with a store that applies every order. It reports violations.
//! - [`PresenceWorld`](world::PresenceWorld) has every single step that can happen. It draws only the behaviour of the network.
//! - `driver` drives a world by a seed, then lets everything settle. The same seed makes the same run.

mod driver;
pub mod gateway;
mod profile;
mod report;
pub mod world;
pub mod writer;

pub use profile::PresenceProfile;
pub use report::PresenceCounts;
