//! Routes requests about subscriptions to their owners: the port `Dispatch`, and its service on the internal port.
//!
//! The owner of a shard owns the subscriptions of that shard, so there is no ownership here. [`router`] calls the
//! [`LocalDispatch`](super::LocalDispatch) of this node, or another node, where [`service`] answers.

pub mod router;
#[cfg(test)]
mod router_tests;
pub mod service;

pub use router::DispatchRouter;
pub use service::dispatch_service;
