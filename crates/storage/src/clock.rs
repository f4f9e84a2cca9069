//! The wall clock of the log. The crate has no clock of its own: the caller that opens a store provides one.

use std::time::SystemTime;

/// Milliseconds since 1970-01-01T00:00:00Z.
pub trait StorageClock: Send + Sync + 'static {
    fn now_ms(&self) -> i64;

    /// The time that retention uses: never later than the current time. It stands still while the current time is in doubt.
    fn expiry_ms(&self) -> i64 {
        self.now_ms()
    }
}

/// The wall clock of the machine, for tools and tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct WallClock;

impl StorageClock for WallClock {
    fn now_ms(&self) -> i64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as i64
    }
}
