//! How questions about a subscription find its owner: the port `Dispatch`, and the internal port's side of it.
//!
//! The owner of a shard owns the subscriptions of that shard, so there is nothing to own here. [`router`] asks at the
//! [`DispatchDesk`](super::DispatchDesk) of this node or at another's, which [`service`] answers there; [`wire`] has the words.

pub mod router;
#[cfg(test)]
mod router_tests;
pub mod service;
pub mod wire;
#[cfg(test)]
mod wire_tests;

pub use router::DispatchRouter;
pub use service::{DispatchDoor, dispatch_service};
