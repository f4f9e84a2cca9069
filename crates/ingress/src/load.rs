//! How many bytes are on their way, into the log or to clients: a bound instead of a growing queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::problem::{Code, Problem};

/// The bytes under way, of everybody.
#[derive(Debug)]
pub(crate) struct InFlight {
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Where the bytes are going, for who is refused.
    whither: &'static str,
}

/// The bytes that one request holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Load {
    in_flight: Arc<InFlight>,
    held: usize,
}

impl InFlight {
    pub(crate) fn new(bytes_max: usize, whither: &'static str) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), bytes_max, whither })
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Load {
        Load { in_flight: Arc::clone(self), held: 0 }
    }
}

impl Load {
    /// Takes so many bytes more, or refuses the request.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let before = self.in_flight.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.held += bytes;
        // A request that is alone is let through whatever its size: its own limits have judged it, and it could never pass else.
        let alone = before + bytes == self.held;
        if before + bytes <= self.in_flight.bytes_max || alone {
            return Ok(());
        }
        let detail = format!("{before} bytes are on their way {}; come again in a moment", self.in_flight.whither);
        Err(Problem::new(Code::Overloaded, detail))
    }

    /// Takes what is missing to so many bytes.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Problem> {
        self.grow(bytes.saturating_sub(self.held))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.in_flight.bytes.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_the_bound_is_refused_until_others_have_ended() {
        let in_flight = InFlight::new(100, "into the log");
        let mut first = in_flight.begin();
        first.grow(80).unwrap();
        assert_eq!(in_flight.begin().grow(30).unwrap_err().code(), Code::Overloaded);
        in_flight.begin().grow(20).unwrap();
        drop(first);
        in_flight.begin().grow(300).expect("alone, any size passes");
        assert_eq!(in_flight.bytes.load(Ordering::Relaxed), 0);
    }
}
