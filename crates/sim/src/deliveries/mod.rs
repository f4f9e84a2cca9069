//! Deliveries under simulated faults: the real runner of a subscription. Several owners run it on a log, a store and an endpoint that fail
//! in every way that their contracts allow.
//!
//! - [`DeliveryWorld`](world::DeliveryWorld) has every single step that can happen. A seed or a scene chooses the steps.
//! - [`DeliveryTruth`](truth::DeliveryTruth) records the true history of each message and reports violations.
//! - `driver` drives a world by a seed, then lets everything settle. The same seed makes the same run.

mod driver;
pub mod endpoint;
pub mod log;
pub mod owner;
mod profile;
mod report;
pub mod store;
pub mod truth;
pub mod world;

pub use profile::DeliveriesProfile;
pub use report::DeliveriesCounts;
