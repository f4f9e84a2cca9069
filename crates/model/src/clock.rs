//! Time as a parameter: pure modules get the time from a [`Clock`]; tests and the simulator supply their own.
//!
//! A server has one clock for the whole process, [`GuardedClock`]. [`SystemClock`] is for tools that measure, and for tests.

mod guarded;
mod step_filter;

pub use guarded::{ClockSource, GuardedClock};
pub use step_filter::{ClockChange, ClockSample, StartDoubt, StepFilter, StepLimits};

use crate::Timestamp;

/// The source of wall-clock time.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;

    /// Microseconds within the present millisecond; 0 if the clock has no such resolution.
    fn micros_into(&self) -> u16 {
        0
    }

    /// The time for expiry and other irreversible deletions. It equals [`Clock::now`], but does not advance while a step of the wall clock
    /// is in doubt: deletions by a wrong time cannot be undone.
    fn expiry_now(&self) -> Timestamp {
        self.now()
    }

    /// Compares the clock with the latest time in the log. The log's engine calls this at the start, before anything expires.
    fn compare_with_log(&self, _latest: Timestamp) {}
}

/// The machine's own wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(since_epoch.as_millis() as i64)
    }

    fn micros_into(&self) -> u16 {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        (since_epoch.subsec_micros() % 1000) as u16
    }
}
