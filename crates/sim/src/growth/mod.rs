//! Growths of a topic that several nodes share, under simulated faults. The agreement on growths is the real code. Nodes see the catalogue
//! late, lose their sessions, pause or crash, and writes have unknown outcomes. Publishers send the messages of a key one after the other
//! through any node. Readers that respect the barriers must find the acknowledged messages in that order.
//!
//! - [`SimCoordination`](coordination::SimCoordination) is the coordination with leases, the entry of the topic, and all earlier states.
//! - [`SimNode`](node::SimNode) is one process: session, gate, its view of the entry and of the members.
//! - [`GrowthWorld`](world::GrowthWorld) has the log and every step that can happen.
//! - `driver` drives a world by a seed, then lets everything settle. The same seed makes the same run.

pub mod coordination;
mod driver;
pub mod node;
mod profile;
mod report;
mod truth;
pub mod world;

pub use profile::GrowthProfile;
pub use report::GrowthCounts;
