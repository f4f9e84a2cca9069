//! The role `presence`: which users are online, where, since when, and how fresh that answer is.
//!
//! A gateway's [`reporter`] gathers arrivals and departures into numbered packets and sends each on two paths. A [`proxy`] spreads them
//! over the writers of every data centre. A [`writer`] follows its [`gateway_tracker`], writes its shard of the store `Sessions` and
//! publishes to `_presence`. A [`reader`] answers from the store, and rejects queries if it is stale. [`node`] assembles these in one
//! process, and [`service`] serves other nodes.
//!
//! Presence decides nothing: carriers admit sessions, and nothing here reaches a device.

pub mod cluster_follower;
pub mod debounce;
pub mod events;
pub mod gateway_tracker;
pub mod limits;
pub mod live_members;
pub mod metrics;
pub mod node;
pub mod packet;
pub mod packet_log;
pub mod peers;
pub mod proxy;
pub mod reader;
pub mod remote;
pub mod reporter;
pub mod service;
pub mod settings;
mod staleness;
mod wire;
pub mod writer;

pub use cluster_follower::PRESENCE_ROLE;
pub use events::{NoEvents, PresenceEvent, PresenceEvents, PresenceTopic};
pub use live_members::LiveMembers;
pub use node::{PresenceNode, PresenceNodeParts};
pub use packet::shard_of;
pub use peers::PresencePeers;
pub use remote::Remote;
pub use reporter::GatewayReporter;
pub use service::presence_service;
pub use settings::{PresenceSettings, PresenceSettingsError};
