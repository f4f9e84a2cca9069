//! The Redis engine: the `Timers`, `Receipts`, `Progress`, `Inbox`, `Sessions` and `Devices` ports on one Redis, or on a Redis Cluster.
//!
//! In reading order: [`settings`] (where Redis is, and how long it may take), `connection` (one connection that all share and
//! that comes back by itself; what of Redis's own settings concerns us), `timers` with `layout` and `write` (the holds of a shard
//! as keys, members and one script's arguments), `forget` (removing them all), `receipts` with `unconfirmed` (ends of claims that Redis has not
//! confirmed), `progress`, `inbox`, `sessions`,
//! `devices`, `loss` (detects that Redis was emptied), `reply` (Redis's answers, taken apart).
//! What Redis itself decides is in `lua/`, one script for each step that must be one.
//!
//! All keys of a shard, of a brought id, of a subscription, of a user, have a hash tag in common, so that a Cluster keeps them together, and a
//! script names every key that it touches. It must never read from a replica, nor write anything outside of a script: what
//! is not checked in the same step is not checked.

mod connection;
mod devices;
mod forget;
mod inbox;
mod layout;
mod loss;
mod progress;
mod receipts;
mod reply;
mod sessions;
pub mod settings;
mod timers;
mod unconfirmed;
mod write;

pub use connection::RedisConnection;
pub use devices::RedisDevices;
pub use forget::forget_holds;
pub use inbox::RedisInbox;
pub use loss::LossWatch;
pub use progress::RedisProgress;
pub use receipts::RedisReceipts;
pub use sessions::RedisSessions;
pub use settings::{RedisSettings, RedisStartError};
pub use timers::RedisTimers;
