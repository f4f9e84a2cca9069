//! A histogram of latencies with fixed buckets: each power of two of nanoseconds has [`SUBS`] of them. The error of a quantile is below
//! 2 %, whatever its size, and recording costs an addition.

use std::time::Duration;

/// Buckets of each power of two.
const SUBS: usize = 64;
const SUB_BITS: u32 = SUBS.trailing_zeros();
/// Powers of two above the linear part: up to 2^42 ns, more than an hour.
const POWERS: usize = 36;

#[derive(Debug, Clone)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; SUBS * (POWERS + 1)], count: 0, max: Duration::ZERO }
    }
}

impl Histogram {
    pub fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(latency);
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// The quantile `share`; zero without samples.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(middle_of(bucket)).min(self.max);
            }
        }
        Duration::ZERO
    }
}

fn bucket_of(nanos: u64) -> usize {
    if nanos < SUBS as u64 {
        return nanos as usize;
    }
    let power = nanos.ilog2() - SUB_BITS;
    let sub = (nanos >> power) as usize - SUBS;
    ((power as usize + 1) * SUBS + sub).min(SUBS * (POWERS + 1) - 1)
}

fn middle_of(bucket: usize) -> u64 {
    if bucket < SUBS {
        return bucket as u64;
    }
    let (power, sub) = (bucket / SUBS - 1, bucket % SUBS);
    let low = ((SUBS + sub) as u64) << power;
    low + (1 << power) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_off_by_less_than_two_percent() {
        let mut histogram = Histogram::default();
        for micros in 1..=10_000u64 {
            histogram.record(Duration::from_micros(micros));
        }
        for (share, micros) in [(0.0001, 1.0), (0.5, 5000.0), (0.99, 9900.0), (1.0, 10_000.0)] {
            let seen = histogram.quantile(share).as_nanos() as f64 / 1000.0;
            assert!((seen / micros - 1.0).abs() < 0.02, "{share}: {seen} for {micros}");
        }
    }

    #[test]
    fn extreme_latencies_are_recorded_without_a_panic() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        histogram.record(Duration::ZERO);
        histogram.record(Duration::MAX);
        assert_eq!(histogram.count(), 2);
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn a_merged_histogram_has_the_samples_of_both() {
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        one.record(Duration::from_millis(1));
        other.record(Duration::from_millis(9));
        one.merge(&other);
        assert_eq!(one.count(), 2);
        assert!(one.quantile(1.0) > Duration::from_millis(8));
    }
}
