//! `whimbrel bench`: rates and latencies of a server, compared with the performance of its device in the same minutes.
//!
//! Absolute results of a shared machine mean little, so each is compared with another of the same run: the device is probed between the
//! rounds, and each measurement alternates with its reference.

mod child_server;
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
