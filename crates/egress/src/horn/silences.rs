//! Places that do not answer at all, so that notices for them do not take every turn that there is. Pure: the time is passed in.
//!
//! A place that was silent so many times in a row is left alone for a while, and for twice as long each time that it still is. One answer,
//! whatever it says, and all is as before.

use std::collections::HashMap;
use std::time::Duration;

use whimbrel_model::Timestamp;

use super::limits::{SILENCE_PAUSE, SILENCE_PAUSE_MAX, SILENCES_MAX, SILENT_TIMES};
use super::pauses::Pauses;

#[derive(Default)]
pub(super) struct Silences {
    by_place: HashMap<String, Silence>,
    pauses: Pauses,
}

#[derive(Default)]
struct Silence {
    in_a_row: u32,
    pauses: u32,
}

impl Silences {
    /// How long the place is still left alone.
    pub(super) fn left(&self, place: &str, now: Timestamp) -> Option<Duration> {
        self.pauses.left(place, now)
    }

    pub(super) fn answered(&mut self, place: &str) {
        self.by_place.remove(place);
    }

    /// It was silent once more. Answers with how long it is left alone, where that begins now.
    pub(super) fn silent(&mut self, place: &str, now: Timestamp) -> Option<Duration> {
        // Those that were called before it was left alone say nothing new.
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
        // The next silence is enough to leave it alone again.
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

    /// The last of so many silences in a row.
    fn silent(silences: &mut Silences, times: u32, now: Timestamp) -> Option<Duration> {
        (0..times).map(|_| silences.silent("a", now)).last().flatten()
    }

    #[test]
    fn who_is_silent_again_and_again_is_left_alone_and_longer_each_time() {
        let mut silences = Silences::default();
        assert_eq!(silent(&mut silences, SILENT_TIMES - 1, at(0)), None);
        assert_eq!(silent(&mut silences, 1, at(0)), Some(SILENCE_PAUSE));
        assert_eq!(silences.left("a", at(4)), Some(Duration::from_secs(6)));
        assert_eq!(silent(&mut silences, 60, at(4)), None, "those were called before");
        assert_eq!(silences.left("b", at(4)), None);
        assert_eq!(silences.left("a", at(10)), None, "it is tried again");
        assert_eq!(silent(&mut silences, 1, at(10)), Some(2 * SILENCE_PAUSE));
        let mut now = 10;
        for _ in 0..20 {
            now += 10_000;
            silent(&mut silences, 1, at(now));
        }
        assert_eq!(silences.left("a", at(now)), Some(SILENCE_PAUSE_MAX));
    }

    #[test]
    fn an_answer_makes_everything_as_before() {
        let mut silences = Silences::default();
        silent(&mut silences, SILENT_TIMES, at(0));
        silences.answered("a");
        assert_eq!(silent(&mut silences, SILENT_TIMES - 1, at(20)), None);
        silences.answered("a");
        assert_eq!(silent(&mut silences, SILENT_TIMES - 1, at(20)), None);
    }

    #[test]
    fn as_many_places_as_one_likes_take_a_bounded_room() {
        let mut silences = Silences::default();
        for number in 0..2 * SILENCES_MAX {
            silences.silent(&number.to_string(), at(0));
        }
        assert!(silences.by_place.len() <= SILENCES_MAX);
    }
}
