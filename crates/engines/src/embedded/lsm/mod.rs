//! LSMs of the data folder, with the failure handling that the LSM library does not have.
//!
//! The library refuses writes after its first I/O error, truncates a damaged journal without a report, and panics on unexpected state. The
//! stores here recover: [`guard`] opens a view of the log again or starts it empty, [`mirror`] keeps two copies of data that is not in a
//! log. [`folder`] and [`journal`] find damage before the library hides it, [`report`] reports it. [`thread`] keeps disk stalls away from
//! the threads that serve requests.

pub(super) mod fault;
pub(super) mod folder;
pub(super) mod generation;
pub(super) mod guard;
pub(super) mod journal;
pub(super) mod manifest;
pub(super) mod mirror;
pub(super) mod report;
#[cfg(test)]
pub(super) mod testing;
pub(super) mod thread;
pub(crate) mod verify;

pub(super) use fault::{StoreError, StoreFault};
pub(super) use generation::{Generation, PREFIX_BYTES};
pub(super) use guard::{LsmStore, StoreGuard, StoreHandle, next_opening};
pub(super) use thread::WorkThread;
