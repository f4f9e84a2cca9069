//! The simulator: the real storage code on a disk that fails, by seed, with a checker that knows what must be true.
//!
//! - [`SimDisk`] is the disk's faulty twin.
//! - [`Model`](model::Model) is the log as it should be, in memory and without cleverness.
//! - [`run`] drives a `Core` by a seed and compares the two at every step. The same seed makes the same run; one that fails
//!   says what was wrong and what was done last.
//!
//! It must never use time, threads or chance that a seed does not give.

mod checker;
pub mod disk;
pub mod model;
mod profile;
mod rng;
mod tamper;
mod workload;

pub use disk::SimDisk;
pub use profile::Profile;
pub use rng::Rng;
pub use workload::{Failure, Report, run, run_traced};
