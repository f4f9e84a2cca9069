//! Time as something that is passed in: the deciding parts ask a [`Clock`], tests and the simulator bring their own.

use crate::Timestamp;

/// Where the wall-clock time comes from.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;

    /// Microseconds of the present millisecond that have passed, where the clock is that fine.
    fn micros_into(&self) -> u16 {
        0
    }
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
