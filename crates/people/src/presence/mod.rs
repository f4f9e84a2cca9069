//! The role `presence`: who is online, where, since when, and how fresh that answer is.
//!
//! A gateway's comings and goings are gathered by its [`reporter`] into numbered packets, each sent on two paths; a [`proxy`] spreads them
//! over the writers of every data centre; a [`writer`] follows its [`ledger`], writes its shard of the store `Sessions` and publishes to
//! `_presence`; a [`reader`] answers from the store and refuses where that is stale. [`station`] is all of it in one process, and what other
//! nodes ask of it over [`service`].
//!
//! Presence shows; it decides nothing. Who may have a session is the carrier's affair, and nothing here reaches a device.

pub mod book;
pub mod debounce;
pub mod events;
pub mod figures;
pub mod following;
pub mod ledger;
pub mod limits;
pub mod living;
pub mod packet;
pub mod peers;
pub mod proxy;
pub mod reader;
pub mod remote;
pub mod reporter;
pub mod service;
pub mod settings;
pub mod station;
mod watch;
pub mod wire;
pub mod writer;

pub use events::{NoEvents, PresenceEvent, PresenceEvents, PresenceTopic};
pub use following::PRESENCE_ROLE;
pub use living::Living;
pub use packet::shard_of;
pub use peers::PresencePeers;
pub use remote::Remote;
pub use reporter::GatewayReporter;
pub use service::{PresenceDoor, presence_service};
pub use settings::{PresenceSettings, PresenceSettingsError};
pub use station::{Station, StationParts};
