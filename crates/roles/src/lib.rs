//! The roles of Whimbrel: what runs between the doors and the log.
//!
//! A role knows the ports of `whimbrel_model::ports` and never an engine; no role imports another. Today there is `receive`,
//! the stateless door, with the registry of topics and the page for people that it serves; and the writer of events.

pub mod admin;
pub mod center;
pub mod events;
pub mod figures;
pub(crate) mod log_walk;
pub mod owners;
pub mod receive;
pub mod stats;
pub mod subscriptions;
pub mod topics;
pub mod worker;
