//! Holds under simulated faults: the real deciding part of a shard's owner, several of them at once, on a log and a store that fail in
//! every way that their contracts allow.
//!
//! - [`HoldsWorld`](world::HoldsWorld) has every single step that can happen: a call is answered, an answer arrives, a node crashes.
//! - [`HoldsTruth`](truth::HoldsTruth) records the true decisions and reports violations.
//! - `driver` drives a world by a seed, then lets everything settle. The same seed makes the same run.

pub mod answers;
mod driver;
pub mod log;
pub mod node;
mod profile;
mod report;
pub mod store;
pub mod truth;
pub mod world;

pub use profile::HoldsProfile;
pub use report::HoldsCounts;
