//! A meter of messages per second: a ring of slots, each an atomic with its second and count.

use std::sync::atomic::{AtomicU64, Ordering};

use whimbrel_model::Timestamp;

/// Seconds in the ring: more than the longest rate, and a power of two.
const RING_SECONDS: usize = 64;

/// Counts messages in each of the last seconds. Writes are lock-free; a read is a snapshot.
#[derive(Debug)]
pub struct RateMeter {
    /// The high half is the second, modulo 2³². The low half is the count, which saturates.
    slots: [AtomicU64; RING_SECONDS],
}

impl Default for RateMeter {
    fn default() -> Self {
        Self { slots: [const { AtomicU64::new(0) }; RING_SECONDS] }
    }
}

impl RateMeter {
    pub fn add(&self, now: Timestamp, count: u32) {
        let second = second_of(now);
        let slot = &self.slots[second as usize % RING_SECONDS];
        // The closure always returns a value, so this cannot fail.
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |packed| {
            let counted = if (packed >> 32) as u32 == second { packed as u32 } else { 0 };
            Some(u64::from(second) << 32 | u64::from(counted.saturating_add(count)))
        });
    }

    /// Messages per second over the last whole seconds before the present one, at most 60.
    pub fn per_second(&self, now: Timestamp, seconds: u32) -> f64 {
        let seconds = seconds.clamp(1, 60);
        let this_second = second_of(now);
        let total: u64 = (1..=seconds)
            .map(|back| {
                let second = this_second.wrapping_sub(back);
                let packed = self.slots[second as usize % RING_SECONDS].load(Ordering::Relaxed);
                if (packed >> 32) as u32 == second { u64::from(packed as u32) } else { 0 }
            })
            .sum();
        total as f64 / f64::from(seconds)
    }
}

fn second_of(time: Timestamp) -> u32 {
    time.as_millis().div_euclid(1000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1000)
    }

    #[test]
    fn a_rate_covers_the_last_whole_seconds() {
        let meter = RateMeter::default();
        meter.add(at(1000), 10);
        meter.add(at(1001), 20);
        meter.add(at(1002), 99);
        assert_eq!(meter.per_second(at(1002), 10), 3.0);
        assert_eq!(meter.per_second(at(1002), 1), 20.0);
    }

    #[test]
    fn counts_older_than_the_ring_are_dropped() {
        let meter = RateMeter::default();
        meter.add(at(1000), 10);
        assert_eq!(meter.per_second(at(1000 + RING_SECONDS as i64), 60), 0.0);
        meter.add(at(1000 + RING_SECONDS as i64), 1);
        assert_eq!(meter.per_second(at(1001 + RING_SECONDS as i64), 1), 1.0);
    }
}
