//! Back-off for endpoints that do not respond, so that their notices do not occupy all concurrent calls. Pure: the time is passed in.
//!
//! After [`SILENT_TIMES`] consecutive calls without a response, calls to an endpoint are paused. The pause doubles each time that the next
//! call gets no response either. Any response resets the state.

use std::collections::HashMap;
use std::time::Duration;

use whimbrel_model::Timestamp;

use super::limits::{SILENCE_PAUSE, SILENCE_PAUSE_MAX, SILENCES_MAX, SILENT_TIMES};
use super::pauses::Pauses;

#[derive(Default)]
pub(super) struct ProviderBackoff {
    by_place: HashMap<String, Unresponsive>,
    pauses: Pauses,
}

#[derive(Default)]
struct Unresponsive {
    in_a_row: u32,
    pauses: u32,
}

impl ProviderBackoff {
    /// The remaining pause of the endpoint.
    pub(super) fn left(&self, place: &str, now: Timestamp) -> Option<Duration> {
        self.pauses.left(place, now)
    }

    pub(super) fn answered(&mut self, place: &str) {
        self.by_place.remove(place);
    }

    /// Records a call without a response. Returns the length of the pause if one begins now.
    pub(super) fn silent(&mut self, place: &str, now: Timestamp) -> Option<Duration> {
        // Calls that began before the pause do not count.
        if self.left(place, now).is_some() {
            return None;
        }
        if self.by_place.len() >= SILENCES_MAX && !self.by_place.contains_key(place) {
            self.by_place.clear();
        }
        let silence = self.by_place.entry(place.to_owned()).or_default();
        silence.in_a_row += 1;
        if silence.in_a_row < SILENT_TIMES {
            return None;
        }
        // One further call without a response starts the next pause.
        silence.in_a_row = SILENT_TIMES - 1;
        let pause = SILENCE_PAUSE.saturating_mul(1 << silence.pauses.min(8)).min(SILENCE_PAUSE_MAX);
        silence.pauses += 1;
        self.pauses.ask(place, pause, now);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    /// The result of the last of `times` calls without a response.
    fn silent(silences: &mut ProviderBackoff, times: u32, now: Timestamp) -> Option<Duration> {
        (0..times).map(|_| silences.silent("a", now)).last().flatten()
    }

    #[test]
    fn an_unresponsive_endpoint_is_paused_for_longer_each_time() {
        let mut silences = ProviderBackoff::default();
        assert_eq!(silent(&mut silences, SILENT_TIMES - 1, at(0)), None);
        assert_eq!(silent(&mut silences, 1, at(0)), Some(SILENCE_PAUSE));
        assert_eq!(silences.left("a", at(4)), Some(Duration::from_secs(6)));
        assert_eq!(silent(&mut silences, 60, at(4)), None, "these calls began before the pause");
        assert_eq!(silences.left("b", at(4)), None);
        assert_eq!(silences.left("a", at(10)), None, "it is called again");
        assert_eq!(silent(&mut silences, 1, at(10)), Some(2 * SILENCE_PAUSE));
        let mut now = 10;
        for _ in 0..20 {
            now += 10_000;
            silent(&mut silences, 1, at(now));
        }
        assert_eq!(silences.left("a", at(now)), Some(SILENCE_PAUSE_MAX));
    }

    #[test]
    fn a_response_resets_the_back_off() {
        let mut silences = ProviderBackoff::default();
        silent(&mut silences, SILENT_TIMES, at(0));
        silences.answered("a");
        assert_eq!(silent(&mut silences, SILENT_TIMES - 1, at(20)), None);
        silences.answered("a");
        assert_eq!(silent(&mut silences, SILENT_TIMES - 1, at(20)), None);
    }

    #[test]
    fn the_number_of_endpoints_is_bounded() {
        let mut silences = ProviderBackoff::default();
        for number in 0..2 * SILENCES_MAX {
            silences.silent(&number.to_string(), at(0));
        }
        assert!(silences.by_place.len() <= SILENCES_MAX);
    }
}
