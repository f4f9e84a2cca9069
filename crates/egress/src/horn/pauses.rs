//! Pauses of endpoints, with their ends. Pure: the time is passed in.

use std::collections::HashMap;
use std::time::Duration;

use whimbrel_model::Timestamp;

use super::limits::{PAUSE_MAX, PAUSES_MAX};

/// The pauses by key: a provider, an origin of a push service, or a device's endpoint.
#[derive(Default)]
pub(super) struct Pauses {
    until: HashMap<String, Timestamp>,
}

impl Pauses {
    /// The remaining pause. `None`: the endpoint may be called.
    pub(super) fn left(&self, place: &str, now: Timestamp) -> Option<Duration> {
        let left = self.until.get(place)?.as_millis().saturating_sub(now.as_millis());
        u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_millis)
    }

    /// Starts a pause. An earlier pause that ends later stays.
    pub(super) fn ask(&mut self, place: &str, wait: Duration, now: Timestamp) {
        let wait = i64::try_from(wait.min(PAUSE_MAX).as_millis()).unwrap_or(i64::MAX);
        let until = Timestamp::from_millis(now.as_millis().saturating_add(wait));
        if self.until.get(place).is_some_and(|known| *known >= until) {
            return;
        }
        if self.until.len() >= PAUSES_MAX {
            self.until.retain(|_, until| *until > now);
        }
        if self.until.len() >= PAUSES_MAX {
            let first = self.until.iter().min_by_key(|(_, until)| **until).map(|(place, _)| place.clone());
            self.until.remove(&first.unwrap_or_default());
        }
        self.until.insert(place.to_owned(), until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_pause_ends_at_its_time_and_affects_no_other_endpoint() {
        let mut pauses = Pauses::default();
        pauses.ask("fcm", Duration::from_secs(10), at(1_000));
        pauses.ask("fcm", Duration::from_secs(1), at(1_000));
        assert_eq!(pauses.left("fcm", at(4_000)), Some(Duration::from_secs(7)));
        assert_eq!(pauses.left("fcm", at(11_000)), None);
        assert_eq!(pauses.left("apns", at(4_000)), None);
    }

    #[test]
    fn a_pause_is_bounded() {
        let mut pauses = Pauses::default();
        pauses.ask("fcm", Duration::MAX, at(0));
        assert_eq!(pauses.left("fcm", at(0)), Some(PAUSE_MAX));
    }

    #[test]
    fn the_number_of_pauses_is_bounded() {
        let mut pauses = Pauses::default();
        for number in 0..2 * PAUSES_MAX {
            pauses.ask(&number.to_string(), Duration::from_secs(60 + number as u64), at(0));
        }
        assert_eq!(pauses.until.len(), PAUSES_MAX);
        assert!(pauses.left(&(2 * PAUSES_MAX - 1).to_string(), at(0)).is_some());
    }
}
