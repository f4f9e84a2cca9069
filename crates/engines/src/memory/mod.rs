//! The memory engine: ports in this process's memory, lost with the process.
//!
//! The server uses its sessions, which gateways send again. Tests of roles use it in place of an engine with a service or a folder. Each
//! store has a switch that makes it unavailable, for tests of failures.

mod devices;
mod sessions;

pub use devices::MemoryDevices;
pub use sessions::MemorySessions;
