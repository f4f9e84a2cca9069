//! The settings of a worker.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::{Clock, SystemClock};

use super::limits::CONNECT_WITHIN_DEFAULT;
use whimbrel_api::endpoint::AddressGuard;

#[derive(Clone)]
pub struct WorkerSettings {
    /// The addresses that callbacks may reach.
    pub guard: AddressGuard,
    /// Root certificates in PEM that are trusted in addition to those of the machine.
    pub extra_roots_pem: Vec<u8>,
    /// The connect timeout of endpoints that set none.
    pub connect_timeout: Duration,
    /// The clock of the process.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for WorkerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guard, extra_roots_pem, connect_timeout, clock: _ } = self;
        let mut shown = f.debug_struct("WorkerSettings");
        shown.field("guard", guard).field("extra_roots_pem", extra_roots_pem);
        shown.field("connect_timeout", connect_timeout).finish_non_exhaustive()
    }
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            guard: AddressGuard::default(),
            extra_roots_pem: Vec::new(),
            connect_timeout: CONNECT_WITHIN_DEFAULT,
            clock: Arc::new(SystemClock),
        }
    }
}

/// The worker cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("callbacks cannot be made: {0}")]
pub struct WorkerError(pub(super) String);
