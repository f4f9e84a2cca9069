//! The storage engines. Each engine has a folder; its files are named after the ports that they implement. The conformance suites hold all
//! engines of a port to the same contract. Roles do not depend on this crate; the server connects both.

pub mod conformance;
pub mod deep_check;
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
pub mod resolve;
pub mod store_removal;
pub mod stores;
