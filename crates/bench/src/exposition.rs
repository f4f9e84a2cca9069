//! Histograms of the server's `/metrics`. Two readings are subtracted, so that only the samples between them count.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::BenchError;

/// Cumulative counts of a histogram's buckets, over all labels, by upper bound. Bounds are in nanoseconds, so that they are ordered;
/// the last one is unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buckets(BTreeMap<u64, u64>);

pub fn fetch(address: SocketAddr) -> Result<String, BenchError> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

impl Buckets {
    /// The histogram of seconds with that name.
    pub fn of(figures: &str, name: &str) -> Self {
        let mut buckets = BTreeMap::new();
        for line in figures.lines() {
            let labels = line.strip_prefix(name).and_then(|rest| rest.strip_prefix("_bucket{"));
            let Some((labels, count)) = labels.and_then(|rest| rest.split_once("} ")) else { continue };
            let Some(bound) = labels.split("le=\"").nth(1).and_then(|rest| rest.split('"').next()) else { continue };
            let Ok(count) = count.trim().parse::<f64>() else { continue };
            let bound = match bound.parse::<f64>() {
                Ok(seconds) if seconds.is_finite() => (seconds * 1e9).round() as u64,
                _ => u64::MAX,
            };
            *buckets.entry(bound).or_default() += count as u64;
        }
        Self(buckets)
    }

    /// The samples since an earlier reading.
    pub fn since(mut self, earlier: &Self) -> Self {
        for (bound, count) in &mut self.0 {
            *count = count.saturating_sub(earlier.0.get(bound).copied().unwrap_or(0));
        }
        self
    }

    pub fn count(&self) -> u64 {
        self.0.values().next_back().copied().unwrap_or(0)
    }

    /// The quantile `share`, interpolated within its bucket as Prometheus does. Beyond the last bound it is that bound.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = self.count() as f64 * share;
        let (mut below, mut low) = (0, 0);
        for (&bound, &count) in &self.0 {
            if count as f64 >= wanted && count > below {
                if bound == u64::MAX {
                    return Duration::from_nanos(low);
                }
                let part = (wanted - below as f64) / (count - below) as f64;
                return Duration::from_nanos(low + ((bound - low) as f64 * part) as u64);
            }
            (below, low) = (count, bound);
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: &str = "# TYPE late_seconds histogram\n\
        late_seconds_bucket{le=\"0.001\"} 50\n\
        late_seconds_bucket{le=\"0.01\"} 100\n\
        late_seconds_bucket{le=\"+Inf\"} 100\n\
        late_seconds_sum 1\n\
        late_seconds_count 100\n\
        other_seconds_bucket{le=\"0.001\"} 7\n";

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let buckets = Buckets::of(FIGURES, "late_seconds");
        assert_eq!(buckets.count(), 100);
        assert_eq!(buckets.quantile(0.5), Duration::from_millis(1));
        assert_eq!(buckets.quantile(1.0), Duration::from_millis(10));
        assert_eq!(buckets.quantile(0.75), Duration::from_micros(5500));
    }

    #[test]
    fn only_samples_after_the_earlier_reading_count() {
        let earlier = Buckets::of(FIGURES, "late_seconds");
        let labelled = "late_seconds_bucket{shard=\"0\",le=\"0.001\"} 50\n\
            late_seconds_bucket{shard=\"0\",le=\"0.01\"} 100\n\
            late_seconds_bucket{shard=\"1\",le=\"0.01\"} 9\n\
            late_seconds_bucket{shard=\"0\",le=\"+Inf\"} 100\n\
            late_seconds_bucket{shard=\"1\",le=\"+Inf\"} 9\n";
        let since = Buckets::of(labelled, "late_seconds").since(&earlier);
        assert_eq!((since.count(), since.quantile(1.0)), (9, Duration::from_millis(10)));
    }

    #[test]
    fn a_missing_histogram_counts_nothing() {
        let none = Buckets::of("<html>", "late_seconds");
        assert_eq!((none.count(), none.quantile(0.99)), (0, Duration::ZERO));
    }
}
