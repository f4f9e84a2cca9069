//! The settings of stores that do not depend on the engine.

use std::time::Duration;

use whimbrel_model::limits::{RECEIPT_WINDOW_DEFAULT_MS, RETENTION_DEFAULT_MS};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerSettings {
    /// The time for which the end of a hold is remembered.
    pub remember: Duration,
}

impl Default for TimerSettings {
    fn default() -> Self {
        Self { remember: Duration::from_millis(RETENTION_DEFAULT_MS) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptSettings {
    /// The retention of the first answer.
    pub window: Duration,
    /// The retention of a publisher's id.
    pub id_window: Duration,
    /// The time after which another publisher may take an unfinished claim. It must be longer than any append takes.
    pub lease: Duration,
    /// The interval at which the offset is stored up to which the store is complete.
    pub note_interval: Duration,
}

impl Default for ReceiptSettings {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(RECEIPT_WINDOW_DEFAULT_MS),
            id_window: Duration::from_millis(RETENTION_DEFAULT_MS),
            lease: Duration::from_secs(60),
            note_interval: Duration::from_secs(2),
        }
    }
}
