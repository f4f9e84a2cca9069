//! The records that a partition writes to the log: at most one append at a time, and the others wait for it.

use super::CarrierRecord;

#[derive(Default)]
pub(super) struct PendingRecords {
    waiting: Vec<CarrierRecord>,
    is_appending: bool,
}

impl PendingRecords {
    pub fn push(&mut self, record: CarrierRecord) {
        self.waiting.push(record);
    }

    /// Whether every record is durable.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.is_appending
    }

    /// Starts the next append. `None` while one is in progress, or if no record waits.
    pub fn start_append(&mut self) -> Option<Vec<CarrierRecord>> {
        if self.is_appending || self.waiting.is_empty() {
            return None;
        }
        self.is_appending = true;
        Some(std::mem::take(&mut self.waiting))
    }

    pub fn appended(&mut self) {
        self.is_appending = false;
    }
}
