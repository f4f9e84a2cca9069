//! Devices that a push service asked to leave alone for a while, and when their word counts for all of that service. Pure: the time is
//! passed in.
//!
//! A service throttles what one sender sends to one device. That says nothing about the others, and whoever has a device could otherwise
//! have everybody's notices held back. When several of its devices are throttled at nearly the same time, it is the service that has
//! enough, and its origin is left alone for a short time.

use std::collections::HashMap;
use std::time::Duration;

use whimbrel_model::Timestamp;

use super::limits::{ORIGIN_PAUSE_MAX, THROTTLED_DEVICES, THROTTLED_ORIGINS_MAX, THROTTLED_WITHIN};
use super::pauses::Pauses;

#[derive(Default)]
pub(super) struct Throttled {
    devices: Pauses,
    /// By origin: the devices that were throttled lately, fewer than would speak for all.
    lately: HashMap<String, Vec<(String, Timestamp)>>,
}

impl Throttled {
    /// How long the device of this endpoint is still to be left alone.
    pub(super) fn left(&self, endpoint: &str, now: Timestamp) -> Option<Duration> {
        self.devices.left(endpoint, now)
    }

    /// The device was throttled. Answers with how long its whole origin is to be left alone, where enough others were as well.
    pub(super) fn device(&mut self, origin: &str, endpoint: &str, wait: Duration, now: Timestamp) -> Option<Duration> {
        self.devices.ask(endpoint, wait, now);
        if self.lately.len() >= THROTTLED_ORIGINS_MAX && !self.lately.contains_key(origin) {
            self.lately.clear();
        }
        let devices = self.lately.entry(origin.to_owned()).or_default();
        let is_lately = |at: Timestamp| {
            let age_ms = now.as_millis().saturating_sub(at.as_millis());
            (0..THROTTLED_WITHIN.as_millis() as i64).contains(&age_ms)
        };
        devices.retain(|(other, at)| other != endpoint && is_lately(*at));
        devices.push((endpoint.to_owned(), now));
        if devices.len() < THROTTLED_DEVICES {
            return None;
        }
        self.lately.remove(origin);
        Some(wait.min(ORIGIN_PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &str = "https://push.example.com";
    const HOUR: Duration = Duration::from_secs(3_600);

    const fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn one_device_speaks_for_itself_however_often_it_is_throttled() {
        let mut throttled = Throttled::default();
        for ms in 0..100 {
            assert_eq!(throttled.device(ORIGIN, "a", HOUR, at(ms)), None);
        }
        assert_eq!(throttled.left("a", at(99)), Some(HOUR));
        assert_eq!(throttled.left("b", at(99)), None);
    }

    #[test]
    fn several_devices_speak_for_their_origin_and_for_a_short_time() {
        let mut throttled = Throttled::default();
        let mut told = |number: usize| throttled.device(ORIGIN, &number.to_string(), HOUR, at(0));
        assert!((1..THROTTLED_DEVICES).all(|number| told(number).is_none()));
        assert_eq!(told(THROTTLED_DEVICES), Some(ORIGIN_PAUSE_MAX));
        assert_eq!(told(THROTTLED_DEVICES + 1), None, "it is counted anew");
    }

    #[test]
    fn devices_of_other_origins_and_of_other_times_are_not_counted_together() {
        let mut throttled = Throttled::default();
        let apart = THROTTLED_WITHIN.as_millis() as i64 / (THROTTLED_DEVICES as i64 - 1);
        for number in 0..100 {
            assert_eq!(throttled.device(ORIGIN, &number.to_string(), HOUR, at(number * apart)), None);
            assert_eq!(throttled.device(&number.to_string(), &number.to_string(), HOUR, at(number * apart)), None);
        }
    }

    #[test]
    fn as_many_origins_and_devices_as_one_likes_take_a_bounded_room() {
        let mut throttled = Throttled::default();
        for number in 0..3 * THROTTLED_ORIGINS_MAX {
            throttled.device(&number.to_string(), "a", HOUR, at(0));
            assert!(throttled.lately.len() <= THROTTLED_ORIGINS_MAX);
        }
    }
}
