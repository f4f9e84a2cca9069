//! What a worker needs to know.

use super::guard::AddressGuard;

#[derive(Debug, Clone, Default)]
pub struct WorkerSettings {
    /// Where callbacks may go.
    pub guard: AddressGuard,
    /// Certificates in PEM that are believed beside those of the machine.
    pub extra_roots_pem: Vec<u8>,
}

/// A worker that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("callbacks cannot be made: {0}")]
pub struct WorkerError(pub(super) String);
