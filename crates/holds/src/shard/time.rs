//! The time of a shard: its owner's clock, and the last reading of the process's clocks.

use whimbrel_cluster::owner_clock::{ClockReading, OwnerClock};
use whimbrel_model::Timestamp;

#[derive(Debug)]
pub(super) struct ShardTime {
    clock: OwnerClock,
    wall: Timestamp,
    /// The time for decisions about expiry. It is never later than the owner's clock.
    pub(super) expiry: Timestamp,
}

impl ShardTime {
    pub(super) fn new(reading: ClockReading, skew_ms: i64) -> Self {
        Self { clock: OwnerClock::new(reading, skew_ms), wall: reading.wall, expiry: reading.expiry }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Takes a reading. Returns the step of the owner's clock in milliseconds, if any.
    pub(super) fn read(&mut self, reading: ClockReading) -> Option<i64> {
        let step_ms = self.clock.read(reading);
        (self.wall, self.expiry) = (reading.wall, reading.expiry.min(self.clock.now()));
        step_ms
    }

    /// Continues from the time of a predecessor's decision at least, within the clock skew.
    pub(super) fn no_lower_than(&mut self, decided_at: Timestamp) {
        self.clock.no_lower_than(decided_at, self.wall);
    }
}
