//! The Redis engine: the `Timers`, `Receipts`, `Progress`, `Inbox`, `Sessions` and `Devices` ports on one Redis, or on a Redis Cluster.
//!
//! In reading order: [`settings`] (addresses and timeouts), `connection` (the shared connection, and warnings about settings of Redis),
//! `timers` with `layout` and `write` (the keys of a shard of holds, and the arguments of one write), `removal` (removes the holds),
//! `receipts` with `unconfirmed_outcomes` (outcomes of claims that Redis has not confirmed), `progress`, `inbox`, `sessions`, `devices`,
//! `loss` (detects that Redis lost its data), `reply` (reads the replies of scripts). The decisions that must be atomic are in `lua/`, one
//! script for each.
//!
//! All keys of a shard share a hash tag, so that a Cluster stores them together. So do the keys of a publisher's id, of a subscription, and
//! of a user. A script names every key that it touches. This engine must never read from a replica and never write outside of a script:
//! only a check in the same script as the write is safe.

mod connection;
mod devices;
mod inbox;
mod layout;
mod loss;
mod progress;
mod receipts;
mod removal;
mod reply;
mod sessions;
pub mod settings;
mod timers;
mod unconfirmed_outcomes;
mod write;

pub use connection::RedisConnection;
pub use devices::RedisDevices;
pub use inbox::RedisInbox;
pub use loss::LossWatch;
pub use progress::RedisProgress;
pub use receipts::RedisReceipts;
pub use removal::remove_holds;
pub use sessions::RedisSessions;
pub use settings::{RedisSettings, RedisStartError};
pub use timers::RedisTimers;
