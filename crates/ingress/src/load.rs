//! The load: bytes in progress to the log or to clients. Over its bound the server rejects requests instead of queueing them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::problem::{ApiProblem, Code};

/// The bytes in progress of all requests.
#[derive(Debug)]
pub(crate) struct InFlightBytes {
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Where the bytes go, for error texts.
    destination: &'static str,
}

/// The bytes of one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct LoadGuard {
    in_flight: Arc<InFlightBytes>,
    held: usize,
}

impl InFlightBytes {
    pub(crate) fn new(bytes_max: usize, destination: &'static str) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), bytes_max, destination })
    }

    pub(crate) fn begin(self: &Arc<Self>) -> LoadGuard {
        LoadGuard { in_flight: Arc::clone(self), held: 0 }
    }
}

impl LoadGuard {
    /// Adds `bytes`, or rejects the request.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ApiProblem> {
        let before = self.in_flight.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.held += bytes;
        // A request that is alone always passes: its own limits have checked it, and otherwise it could never pass.
        let alone = before + bytes == self.held;
        if before + bytes <= self.in_flight.bytes_max || alone {
            return Ok(());
        }
        let detail = format!("{before} bytes are in flight {}; retry later", self.in_flight.destination);
        Err(ApiProblem::new(Code::Overloaded, detail))
    }

    /// Grows to `bytes` in total.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), ApiProblem> {
        self.grow(bytes.saturating_sub(self.held))
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.in_flight.bytes.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_over_the_bound_is_rejected_until_others_end() {
        let in_flight = InFlightBytes::new(100, "into the log");
        let mut first = in_flight.begin();
        first.grow(80).unwrap();
        assert_eq!(in_flight.begin().grow(30).unwrap_err().code(), Code::Overloaded);
        in_flight.begin().grow(20).unwrap();
        drop(first);
        in_flight.begin().grow(300).expect("alone, any size passes");
        assert_eq!(in_flight.bytes.load(Ordering::Relaxed), 0);
    }
}
