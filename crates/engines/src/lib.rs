//! The engines: one folder per engine, the ports they implement in files of the same names, and the conformance suites that
//! hold all engines of a port to the same contract. Roles never see what is in here; the server wires it.

pub mod conformance;
pub mod deep_check;
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod rebuild;
#[cfg(feature = "redis")]
pub mod redis;
pub mod resolve;
