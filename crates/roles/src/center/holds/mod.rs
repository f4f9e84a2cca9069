//! The owner of a shard of holds.
//!
//! `shard` decides, and does nothing else: it takes what happened, with the time, and returns what to do. `owner` does it: it
//! reads and commits to the log, reads and writes the store, and answers. The protocol is the one of the model checker beside
//! the design; each rule has its test.

mod alarm;
pub mod clock;
mod commit;
pub mod figures;
pub mod owner;
pub mod settings;
pub mod shard;
pub mod unsaved;
pub mod wheel;
pub mod window;

#[cfg(test)]
mod testing;
