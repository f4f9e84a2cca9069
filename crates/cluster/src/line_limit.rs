//! Limits repeated log lines. In an outage of the log every shard and partition fails for the same reason, several times per second.
//!
//! Each place that logs has a [`LineLimit`] of its own. A line is repeated for the same reason after [`REPEATED_AFTER`] at the earliest.
//! Reasons name the broker, so each broker has its line.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two lines of one place for the same reason.
const REPEATED_AFTER: Duration = Duration::from_secs(5);
/// Bound on the reasons that are tracked. Lines for further reasons are suppressed until the oldest ones expire.
const REASONS_MAX: usize = 16;

/// The limit of one place that logs.
pub struct LineLimit(LazyLock<Mutex<SuppressedLines>>);

#[derive(Default)]
struct SuppressedLines {
    logged_at: HashMap<String, Instant>,
    left_out: u64,
}

impl Default for LineLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl LineLimit {
    pub const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    /// If a line for this reason must be logged now, the number of lines that were suppressed since the last one.
    pub fn admit(&self, reason: &str) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).admit(reason, Instant::now())
    }
}

impl SuppressedLines {
    fn admit(&mut self, reason: &str, now: Instant) -> Option<u64> {
        self.logged_at.retain(|_, at| now.duration_since(*at) < REPEATED_AFTER);
        if self.logged_at.contains_key(reason) || self.logged_at.len() >= REASONS_MAX {
            self.left_out += 1;
            return None;
        }
        self.logged_at.insert(reason.to_owned(), now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_line_has_the_number_of_suppressed_lines() {
        let (mut lines, now) = (SuppressedLines::default(), Instant::now());
        assert_eq!(lines.admit("broker 1", now), Some(0));
        for shard in 1..16 {
            assert_eq!(lines.admit("broker 1", now + Duration::from_millis(shard)), None);
        }
        assert_eq!(lines.admit("broker 2", now), Some(15), "another broker has a line of its own");
        assert_eq!(lines.admit("broker 1", now + REPEATED_AFTER), Some(0));
    }

    #[test]
    fn lines_with_changing_reasons_are_limited_too() {
        let (mut lines, now) = (SuppressedLines::default(), Instant::now());
        let admitted = (0..1000).filter(|each| lines.admit(&each.to_string(), now).is_some()).count();
        assert_eq!((admitted, lines.logged_at.len()), (REASONS_MAX, REASONS_MAX));
        assert_eq!(lines.admit("new", now + REPEATED_AFTER), Some((1000 - REASONS_MAX) as u64));
    }
}
