//! The engines: one folder per engine, the ports they implement in files of the same names, and the conformance suites that
//! hold all engines of a port to the same contract. Roles never see what is in here; the server wires it.

pub mod conformance;
pub mod embedded;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod resolve;
