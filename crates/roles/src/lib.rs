//! The roles of Whimbrel: what runs between the doors and the log.
//!
//! A role knows the ports of `whimbrel_model::ports` and never an engine; no role imports another. There are `receive`, the
//! stateless door with the page for people; `center`, which owns holds and subscriptions; `worker`, which calls subscribers; `carrier`, which owns
//! what is for people; `gateway`, which holds their connections; `presence`, which knows who is there; and `horn`, which wakes who is not. What
//! they share is beside them: the registries of topics, subscriptions and platforms, the owners of shards, the links, whether people
//! can be reached, figures, the writer of events.

pub mod admin;
pub mod carrier;
pub mod center;
pub mod events;
pub mod figures;
pub mod gateway;
pub(crate) mod header_rules;
pub mod horn;
pub(crate) mod line_limit;
pub mod lingering;
pub mod links;
pub(crate) mod log_walk;
pub mod owners;
pub mod platforms;
pub mod presence;
pub mod presence_shards;
pub mod protocol;
pub mod reachability;
pub mod receive;
pub mod stats;
pub mod subscriptions;
pub mod topics;
pub mod worker;
