//! Time as something that is passed in: the deciding parts ask a [`Clock`], tests and the simulator bring their own.
//!
//! A server has one clock for the whole process, [`GuardedClock`]. [`SystemClock`] is for tools that measure and for tests.

mod guarded;
mod step_filter;

pub use guarded::{ClockSource, GuardedClock};
pub use step_filter::{ClockChange, Sample, StartDoubt, StepFilter, StepLimits};

use crate::Timestamp;

/// Where the wall-clock time comes from.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;

    /// Microseconds of the present millisecond that have passed, where the clock is that fine.
    fn micros_into(&self) -> u16 {
        0
    }

    /// The time that expiry and other destructive acts go by. It is [`Clock::now`], and stands still while a step of the wall
    /// clock is in doubt: what is deleted by a wrong time does not come back.
    fn expiry_now(&self) -> Timestamp {
        self.now()
    }

    /// Tells the latest time that the log has. The engine of the log calls this at the start, before anything expires.
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
