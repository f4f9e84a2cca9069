//! The time that the log goes by. The storage knows no clock of its own: whoever opens a store brings one.

use std::time::SystemTime;

/// Milliseconds since 1970-01-01T00:00:00Z.
pub trait Clock: Send + Sync + 'static {
    fn now_ms(&self) -> i64;

    /// The time that retention goes by: not later than the present, and standing still while the present is in doubt.
    fn expiry_ms(&self) -> i64 {
        self.now_ms()
    }
}

/// The machine's own wall clock, for tools and tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as i64
    }
}
