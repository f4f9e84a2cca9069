//! The owner of a shard of holds.
//!
//! `shard` decides, and does nothing else: it takes what happened, with the time, and returns what to do. `owner` does it: it
//! reads and commits to the log, reads and writes the store, and answers. The protocol is the one of the model checker beside
//! the design; each rule has its test.

mod alarm;
pub mod aside;
mod blocked;
pub mod clock;
mod commit;
pub mod figures;
mod log_calls;
pub mod owner;
pub mod settings;
pub mod shard;
pub mod unsaved;
pub mod wheel;
pub mod window;

use std::collections::HashMap;

use whimbrel_model::HoldId;

/// What is kept by a hold's id. Each fold and each decision looks here several times; the hash is seeded at random, so that nobody
/// can choose ids that meet.
pub(crate) type IdMap<V> = HashMap<HoldId, V, foldhash::fast::RandomState>;

#[cfg(test)]
mod testing;
