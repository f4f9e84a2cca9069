//! LSMs of the data folder, and what the LSM library leaves to its users.
//!
//! The library stops for good at its first I/O error, cuts a damaged journal without a word, and panics where it is not sure. The stores
//! here go on: [`guard`] opens a view of the log again or begins it from nothing, [`mirror`] keeps two copies of data that
//! no log has. [`journal`] finds damage before the library hides it, [`report`] reports it. [`thread`] keeps the disk's
//! pauses away from the threads that serve requests.

pub(super) mod fault;
pub(super) mod guard;
pub(super) mod journal;
pub(super) mod mirror;
pub(super) mod report;
#[cfg(test)]
mod testing;
pub(super) mod thread;
pub(crate) mod verify;

pub(super) use fault::{Fault, StoreError};
pub(super) use guard::{LsmStore, StoreGuard, StoreHandle, next_opening};
pub(super) use thread::WorkThread;
