//! Holds under simulated trouble: the real deciding part of a shard's owner, several of it at once, on a log and a store that
//! fail in every way that their contracts allow.
//!
//! - [`World`](world::World) has every single step that can happen: a call is answered, an answer arrives, a node crashes.
//! - [`Truth`](truth::Truth) knows what was really decided, and complains about what must not be.
//! - [`run_holds`] drives a world by a seed, then lets everything settle. The same seed makes the same run.

pub mod answers;
mod driver;
pub mod log;
pub mod node;
mod profile;
mod report;
pub mod store;
pub mod truth;
pub mod world;

pub use driver::{run_holds, run_holds_traced};
pub use profile::HoldsProfile;
pub use report::{HoldsFailure, HoldsReport};

/// What was found: an error is something that must never be.
pub type Check<T = ()> = Result<T, String>;
