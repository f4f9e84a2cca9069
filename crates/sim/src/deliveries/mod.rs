//! Deliveries under simulated trouble: the real window, line, ladder and saved progress of a subscription, run by several owners, on a
//! log, a store and an endpoint that misbehave in every way that their contracts allow.
//!
//! - [`World`](world::World) has every single step that can happen; it chooses nothing, a seed or a scene does.
//! - [`Truth`](truth::Truth) knows what really happened to each message, and complains about what must not be.
//! - [`run_deliveries`] drives a world by a seed, then lets everything settle. The same seed makes the same run.

mod driver;
pub mod endpoint;
pub mod log;
pub mod owner;
mod profile;
mod report;
pub mod store;
pub mod truth;
pub mod world;

pub use driver::{run_deliveries, run_deliveries_traced};
pub use profile::DeliveriesProfile;
pub use report::{DeliveriesFailure, DeliveriesReport};

/// What was found: an error is something that must never be.
pub type Check<T = ()> = Result<T, String>;
