//! The attempts of a subscription: their rates, the last error, and the records that the notebook does not have yet. Pure.

use whimbrel_catalogue::topics::rate_meter::RateMeter;
use whimbrel_model::Timestamp;
use whimbrel_model::ports::{AttemptRecord, LastError};

/// The number of records that are gathered before they are handed over.
const RECORDS_AT_ONCE: usize = 4096;
/// The time over which rates are averaged, in seconds.
const RATE_SECONDS: u32 = 60;

#[derive(Default)]
pub struct AttemptHistory {
    records: Vec<AttemptRecord>,
    delivered: RateMeter,
    failed: RateMeter,
    last_error: Option<LastError>,
    /// The number of signed callbacks whose body is not UTF-8.
    unverifiable: u64,
}

impl AttemptHistory {
    pub fn record(&mut self, record: AttemptRecord) {
        self.records.push(record);
    }

    /// Takes the records that were not taken yet.
    pub fn take_records(&mut self) -> Option<Vec<AttemptRecord>> {
        (!self.records.is_empty()).then(|| std::mem::take(&mut self.records))
    }

    pub fn is_full(&self) -> bool {
        self.records.len() >= RECORDS_AT_ONCE
    }

    pub fn delivered(&self, now: Timestamp) {
        self.delivered.add(now, 1);
    }

    pub fn failed(&self, now: Timestamp) {
        self.failed.add(now, 1);
    }

    /// Deliveries and failed attempts per second.
    pub fn rates(&self, now: Timestamp) -> (f64, f64) {
        (self.delivered.per_second(now, RATE_SECONDS), self.failed.per_second(now, RATE_SECONDS))
    }

    pub fn set_last_error(&mut self, now: Timestamp, status: Option<u16>, reason: String) {
        self.last_error = Some(LastError { at_ms: now.as_millis(), status, reason });
    }

    pub fn last_error(&self) -> Option<&LastError> {
        self.last_error.as_ref()
    }

    pub fn called_unverifiably(&mut self) {
        self.unverifiable += 1;
    }

    pub fn unverifiable(&self) -> u64 {
        self.unverifiable
    }
}
