//! Devices that a push service throttles, and when they pause the whole service. Pure: the time is passed in.
//!
//! A push service throttles one sender for one device, which says nothing about other devices. If one device could pause the service, its
//! owner could delay the notices of all users. If several devices of a service are throttled at nearly the same time, the service is
//! overloaded, and its origin is paused for a short time.

use std::collections::HashMap;
use std::time::Duration;

use whimbrel_model::Timestamp;

use super::limits::{ORIGIN_PAUSE_MAX, THROTTLED_DEVICES, THROTTLED_ORIGINS_MAX, THROTTLED_WITHIN};
use super::pauses::Pauses;

#[derive(Default)]
pub(super) struct DeviceThrottle {
    devices: Pauses,
    /// For each origin, the recently throttled devices: fewer than pause the origin.
    lately: HashMap<String, Vec<(String, Timestamp)>>,
}

impl DeviceThrottle {
    /// The remaining pause of the device with this endpoint.
    pub(super) fn left(&self, endpoint: &str, now: Timestamp) -> Option<Duration> {
        self.devices.left(endpoint, now)
    }

    /// Records that a device was throttled. Returns the pause of its whole origin if enough other devices were throttled too.
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
    fn one_device_never_pauses_its_origin() {
        let mut throttled = DeviceThrottle::default();
        for ms in 0..100 {
            assert_eq!(throttled.device(ORIGIN, "a", HOUR, at(ms)), None);
        }
        assert_eq!(throttled.left("a", at(99)), Some(HOUR));
        assert_eq!(throttled.left("b", at(99)), None);
    }

    #[test]
    fn several_devices_pause_their_origin_for_a_short_time() {
        let mut throttled = DeviceThrottle::default();
        let mut throttle = |number: usize| throttled.device(ORIGIN, &number.to_string(), HOUR, at(0));
        assert!((1..THROTTLED_DEVICES).all(|number| throttle(number).is_none()));
        assert_eq!(throttle(THROTTLED_DEVICES), Some(ORIGIN_PAUSE_MAX));
        assert_eq!(throttle(THROTTLED_DEVICES + 1), None, "the count restarted");
    }

    #[test]
    fn devices_of_other_origins_and_of_other_times_are_not_counted_together() {
        let mut throttled = DeviceThrottle::default();
        let apart = THROTTLED_WITHIN.as_millis() as i64 / (THROTTLED_DEVICES as i64 - 1);
        for number in 0..100 {
            assert_eq!(throttled.device(ORIGIN, &number.to_string(), HOUR, at(number * apart)), None);
            assert_eq!(throttled.device(&number.to_string(), &number.to_string(), HOUR, at(number * apart)), None);
        }
    }

    #[test]
    fn the_number_of_origins_is_bounded() {
        let mut throttled = DeviceThrottle::default();
        for number in 0..3 * THROTTLED_ORIGINS_MAX {
            throttled.device(&number.to_string(), "a", HOUR, at(0));
            assert!(throttled.lately.len() <= THROTTLED_ORIGINS_MAX);
        }
    }
}
