//! `whimbrel bench`: rates and latencies of a server beside what its device does in the same minutes.
//!
//! Absolute figures of a shared machine mean little, so each is put beside another of the same run: the device is probed between the
//! rounds, and what is measured takes turns with what it is compared to.

mod child;
mod deliver;
mod device;
mod exposition;
mod histogram;
mod hold;
mod load;
mod people;
mod publish;
mod report;
mod stage;
mod wire;

pub use deliver::deliver;
pub use deliver::sink::run as sink;
pub use hold::hold;
pub use people::crowd::run as crowd;
pub use people::{connect, push};
pub use publish::publish;
