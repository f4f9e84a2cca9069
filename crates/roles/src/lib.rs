//! The roles of Whimbrel: what runs between the doors and the log.
//!
//! A role knows the ports of `whimbrel_model::ports` and never an engine; no role imports another. Today there are `receive`,
//! the stateless door with the page for people; `center`, which owns holds and subscriptions; and `worker`, which calls subscribers. What they
//! share is beside them: the registries of topics and subscriptions, the owners of shards, figures, the writer of events.

pub mod admin;
pub mod carrier;
pub mod center;
pub mod events;
pub mod figures;
pub mod gateway;
pub(crate) mod header_rules;
pub mod horn;
pub mod links;
pub(crate) mod log_walk;
pub mod owners;
pub mod platforms;
pub mod presence;
pub mod protocol;
pub mod receive;
pub mod stats;
pub mod subscriptions;
pub mod topics;
pub mod worker;
