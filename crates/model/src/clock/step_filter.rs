//! Decides which steps of the wall clock are followed. Pure: samples of both clocks go in, the offset to use comes out.
//!
//! The wall clock is the steady clock plus an offset, and the offset changes only where the wall clock is set. A change within
//! the allowed skew is followed at once. A larger one is **in doubt** until it has lasted for the stepout (the word is NTP's):
//! meanwhile time goes on by the steady clock. An excursion that ends before the stepout leaves no trace.
//!
//! Invariant: within any stretch shorter than the stepout, the offset in use moves by at most twice the skew.

use std::time::Duration;

/// Two readings of one moment may differ by this much: the clocks are read one after the other.
const NOISE: Duration = Duration::from_millis(10);

/// One reading of both clocks, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Since 1970-01-01T00:00:00Z, by the wall clock.
    pub wall_us: i64,
    /// Of a clock that only runs forwards and counts suspended time, from any beginning.
    pub steady_us: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// A step up to this is followed at once.
    pub skew: Duration,
    /// A larger step is followed after it has lasted this long.
    pub stepout: Duration,
}

/// A change that operators are told of. Steps are in milliseconds, positive where the wall clock went forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockChange {
    /// The wall clock was set by more than the skew. It is not followed yet.
    Doubted { by_ms: i64 },
    /// The wall clock came back before the stepout. Nothing had followed it.
    Returned { lasted: Duration },
    /// The step has lasted: time goes on from where the wall clock is.
    Followed { by_ms: i64 },
    /// The wall clock has reached the latest record of the log, or has stayed behind it for the stepout.
    Accepted,
}

#[derive(Debug, Clone)]
pub struct StepFilter {
    skew_us: i64,
    stepout_us: i64,
    /// The offset that has lasted.
    settled_us: i64,
    /// The offset in use: within the skew of the settled one.
    followed_us: i64,
    /// The offset that the wall clock has had since then, give or take the skew.
    present_us: i64,
    present_since_us: i64,
    /// Since when a step is in doubt, by the steady clock.
    doubted_since_us: Option<i64>,
    /// The start was behind the log.
    behind: Option<Behind>,
}

/// A wall clock that was behind the latest record of the log when the process started.
#[derive(Debug, Clone, Copy)]
struct Behind {
    latest_us: i64,
    since_us: i64,
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl StepFilter {
    /// Begins with the wall clock as it is.
    pub fn new(limits: StepLimits, sample: Sample) -> Self {
        Self::anchored(limits, sample, sample.wall_us.saturating_sub(sample.steady_us))
    }

    /// Begins with an offset that was settled before, by the same steady clock.
    pub fn anchored(limits: StepLimits, sample: Sample, settled_us: i64) -> Self {
        Self {
            skew_us: micros(limits.skew.max(NOISE)),
            stepout_us: micros(limits.stepout),
            settled_us,
            followed_us: settled_us,
            present_us: settled_us,
            present_since_us: sample.steady_us,
            doubted_since_us: None,
            behind: None,
        }
    }

    /// Tells of the latest time that the log has, right after the start. Where the wall clock is behind it by more than the skew,
    /// one of the two was wrong, and the clock is in doubt until they meet or the stepout has passed. Answers by how much it is
    /// behind then, in milliseconds.
    pub fn compare_with_log(&mut self, latest_us: i64, sample: Sample) -> Option<i64> {
        let behind_us = latest_us.saturating_sub(sample.steady_us.saturating_add(self.followed_us));
        if behind_us <= self.skew_us || self.stepout_us == 0 {
            return None;
        }
        self.behind = Some(Behind { latest_us, since_us: sample.steady_us });
        Some(behind_us / 1000)
    }

    /// What to add to the steady clock.
    pub fn offset_us(&self) -> i64 {
        self.followed_us
    }

    /// The offset that a later start may begin with.
    pub fn settled_us(&self) -> i64 {
        self.settled_us
    }

    pub fn is_in_doubt(&self) -> bool {
        self.doubted_since_us.is_some() || self.behind.is_some()
    }

    /// How far the wall clock is from the time in use, in microseconds, as it was last seen.
    pub fn unfollowed_us(&self, sample: Sample) -> i64 {
        let is_step = self.doubted_since_us.is_some();
        if is_step { self.seen_us(sample).saturating_sub(self.followed_us) } else { 0 }
    }

    fn seen_us(&self, sample: Sample) -> i64 {
        sample.wall_us.saturating_sub(sample.steady_us)
    }

    fn is_near(&self, a_us: i64, b_us: i64) -> bool {
        a_us.saturating_sub(b_us).saturating_abs() <= self.skew_us
    }

    pub fn step(&mut self, sample: Sample) -> Option<ClockChange> {
        let change = self.follow(sample);
        let now_us = sample.steady_us.saturating_add(self.followed_us);
        let is_over = |behind: &mut Behind| {
            now_us >= behind.latest_us || sample.steady_us.saturating_sub(behind.since_us) >= self.stepout_us
        };
        let is_accepted = self.behind.take_if(is_over).is_some();
        change.or(is_accepted.then_some(ClockChange::Accepted))
    }

    fn follow(&mut self, sample: Sample) -> Option<ClockChange> {
        let seen_us = self.seen_us(sample);
        let was_present_us = self.present_us;
        if !self.is_near(seen_us, self.present_us) {
            (self.present_us, self.present_since_us) = (seen_us, sample.steady_us);
        }
        let has_lasted = sample.steady_us.saturating_sub(self.present_since_us) >= self.stepout_us;
        if self.is_near(seen_us, self.settled_us) {
            self.followed_us = seen_us;
            if has_lasted {
                self.settled_us = seen_us;
            }
            let since_us = self.doubted_since_us.take()?;
            let lasted_us = sample.steady_us.saturating_sub(since_us);
            return Some(ClockChange::Returned { lasted: Duration::from_micros(lasted_us.max(0) as u64) });
        }
        let by_ms = seen_us.saturating_sub(self.followed_us) / 1000;
        if has_lasted {
            (self.settled_us, self.followed_us) = (seen_us, seen_us);
            self.doubted_since_us = None;
            return Some(ClockChange::Followed { by_ms });
        }
        let is_new = self.doubted_since_us.is_none();
        self.doubted_since_us.get_or_insert(sample.steady_us);
        // Another step on top of the one in doubt is told too.
        (is_new || was_present_us != self.present_us).then_some(ClockChange::Doubted { by_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: StepLimits = StepLimits { skew: Duration::from_millis(500), stepout: Duration::from_secs(300) };
    const S: i64 = 1_000_000;
    const DAY: i64 = 86_400 * S;
    const BEGAN: i64 = 1_700_000_000 * S;

    fn sample(steady_us: i64, step_us: i64) -> Sample {
        Sample { wall_us: BEGAN + steady_us + step_us, steady_us }
    }

    fn filter() -> StepFilter {
        StepFilter::new(LIMITS, sample(0, 0))
    }

    #[test]
    fn a_small_step_is_followed_at_once() {
        let mut filter = filter();
        assert_eq!(filter.step(sample(S, 400_000)), None);
        assert_eq!(filter.offset_us(), BEGAN + 400_000);
        assert_eq!(filter.step(sample(2 * S, -400_000)), None);
        assert_eq!(filter.offset_us(), BEGAN - 400_000);
    }

    #[test]
    fn an_excursion_is_not_followed_and_its_end_is_told() {
        for step in [DAY, -DAY, 8 * DAY] {
            let mut filter = filter();
            assert_eq!(filter.step(sample(S, step)), Some(ClockChange::Doubted { by_ms: step / 1000 }));
            assert!(filter.is_in_doubt());
            assert_eq!(filter.step(sample(15 * S, step)), None, "it is told once");
            assert_eq!(filter.offset_us(), BEGAN);
            assert_eq!(filter.unfollowed_us(sample(15 * S, step)), step);
            let ended = filter.step(sample(16 * S, 0));
            assert_eq!(ended, Some(ClockChange::Returned { lasted: Duration::from_secs(15) }));
            assert!(!filter.is_in_doubt());
            assert_eq!(filter.offset_us(), BEGAN);
        }
    }

    #[test]
    fn a_step_that_lasts_is_followed_both_ways() {
        let mut filter = filter();
        filter.step(sample(S, DAY));
        assert_eq!(filter.step(sample(300 * S, DAY)), None, "one second less than the stepout");
        assert_eq!(filter.step(sample(301 * S, DAY)), Some(ClockChange::Followed { by_ms: DAY / 1000 }));
        assert_eq!(filter.offset_us(), BEGAN + DAY);
        filter.step(sample(400 * S, 0));
        assert_eq!(filter.offset_us(), BEGAN + DAY);
        assert_eq!(filter.step(sample(700 * S, 0)), Some(ClockChange::Followed { by_ms: -DAY / 1000 }));
        assert_eq!(filter.offset_us(), BEGAN);
    }

    #[test]
    fn a_second_step_begins_its_own_stepout() {
        let mut filter = filter();
        filter.step(sample(S, DAY));
        assert_eq!(filter.step(sample(200 * S, 2 * DAY)), Some(ClockChange::Doubted { by_ms: 2 * DAY / 1000 }));
        assert_eq!(filter.step(sample(400 * S, 2 * DAY)), None);
        assert_eq!(filter.step(sample(500 * S, 2 * DAY)), Some(ClockChange::Followed { by_ms: 2 * DAY / 1000 }));
    }

    #[test]
    fn a_start_with_an_earlier_anchor_doubts_a_clock_that_was_set_meanwhile() {
        let mut filter = StepFilter::anchored(LIMITS, sample(10 * S, DAY), BEGAN);
        assert!(matches!(filter.step(sample(10 * S, DAY)), Some(ClockChange::Doubted { .. })));
        assert_eq!(filter.offset_us(), BEGAN);
    }

    #[test]
    fn a_start_behind_the_log_is_in_doubt_until_they_meet_or_it_has_lasted() {
        let mut filter = filter();
        assert_eq!(filter.compare_with_log(BEGAN + 400_000, sample(0, 0)), None, "within the skew");
        assert_eq!(filter.compare_with_log(BEGAN - DAY, sample(0, 0)), None, "a clock ahead of the log is a downtime");
        assert!(!filter.is_in_doubt());
        assert_eq!(filter.compare_with_log(BEGAN + 10 * S, sample(0, 0)), Some(10_000));
        assert!(filter.is_in_doubt());
        assert_eq!(filter.step(sample(9 * S, 0)), None);
        assert_eq!(filter.step(sample(10 * S, 0)), Some(ClockChange::Accepted));
        assert!(!filter.is_in_doubt());
        filter.compare_with_log(BEGAN + DAY, sample(10 * S, 0));
        assert_eq!(filter.step(sample(309 * S, 0)), None);
        assert_eq!(filter.step(sample(310 * S, 0)), Some(ClockChange::Accepted));
    }

    #[test]
    fn without_a_stepout_every_step_is_followed_at_once() {
        let limits = StepLimits { stepout: Duration::ZERO, ..LIMITS };
        let mut filter = StepFilter::new(limits, sample(0, 0));
        assert_eq!(filter.step(sample(S, DAY)), Some(ClockChange::Followed { by_ms: DAY / 1000 }));
    }

    #[test]
    fn a_ramp_of_small_steps_is_not_a_way_around() {
        let mut filter = filter();
        for step in 1..=100 {
            filter.step(sample(step * S, step * 400_000));
        }
        assert!(filter.offset_us() - BEGAN <= 1_000_000, "{}", filter.offset_us() - BEGAN);
        assert!(filter.is_in_doubt());
    }

    proptest! {
        /// Whatever the wall clock does, the time in use moves by no more than twice the skew within a stepout, unless something
        /// has lasted for one; and once the wall clock is left alone, it is followed after one stepout.
        #[test]
        fn it_does_not_follow_what_does_not_last(
            steps in proptest::collection::vec((1i64..60, prop_oneof![Just(0i64), -2_000_000i64..2_000_000, -DAY..DAY]), 1..80),
        ) {
            let mut filter = filter();
            let (mut now, mut history) = (0, vec![(0, filter.offset_us())]);
            let mut last = 0;
            for (pass, step) in steps {
                now += pass * S;
                last = step;
                let change = filter.step(sample(now, step));
                if let Some(ClockChange::Followed { .. }) = change {
                    history.clear();
                }
                history.push((now, filter.offset_us()));
                let recent = history.iter().filter(|(at, _)| now - at < 300 * S).map(|(_, offset)| *offset);
                let (least, most) = recent.fold((i64::MAX, i64::MIN), |(a, b), offset| (a.min(offset), b.max(offset)));
                prop_assert!(most - least <= 4 * 500_000, "{least} to {most}");
                prop_assert_eq!(filter.is_in_doubt(), filter.unfollowed_us(sample(now, step)) != 0);
            }
            filter.step(sample(now + 300 * S, last));
            filter.step(sample(now + 600 * S, last));
            prop_assert_eq!(filter.offset_us(), BEGAN + last);
            prop_assert!(!filter.is_in_doubt());
        }
    }
}
