//! What a worker needs to know.

use std::time::Duration;

use super::guard::AddressGuard;
use super::limits::CONNECT_WITHIN_DEFAULT;

#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Where callbacks may go.
    pub guard: AddressGuard,
    /// Certificates in PEM that are believed beside those of the machine.
    pub extra_roots_pem: Vec<u8>,
    /// How long a connection may take to stand, where the endpoint does not say.
    pub connect_timeout: Duration,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self { guard: AddressGuard::default(), extra_roots_pem: Vec::new(), connect_timeout: CONNECT_WITHIN_DEFAULT }
    }
}

/// A worker that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("callbacks cannot be made: {0}")]
pub struct WorkerError(pub(super) String);
