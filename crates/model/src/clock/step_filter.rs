//! Decides which steps of the wall clock to follow. Pure: samples of both clocks go in, the offset to use comes out.
//!
//! The wall clock is the steady clock plus an offset, and the offset changes only when the wall clock is set. A change within the allowed
//! skew is followed at once. A larger change is **in doubt** until it has lasted for the stepout (NTP's term); until then the time advances
//! by the steady clock. A step that is reverted before the stepout has no effect.
//!
//! Invariant: within any interval shorter than the stepout, the offset in use moves by at most twice the skew.

use std::time::Duration;

/// The clocks are read one after the other, so two samples may differ by this much without a step.
const NOISE: Duration = Duration::from_millis(10);

/// One reading of both clocks, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSample {
    /// The wall clock, since 1970-01-01T00:00:00Z.
    pub wall_us: i64,
    /// A monotonic clock that counts suspended time, with any origin.
    pub steady_us: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// A step up to this is followed at once.
    pub skew: Duration,
    /// A larger step is followed after it has lasted this long.
    pub stepout: Duration,
}

/// A change that is reported to operators. Steps are in milliseconds, positive if the wall clock moved forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockChange {
    /// The wall clock was set by more than the skew. It is not followed yet.
    Doubted { by_ms: i64 },
    /// The step was reverted before the stepout. It had no effect.
    Returned { lasted: Duration },
    /// The step has lasted for the stepout: the clock now follows the wall clock.
    Followed { by_ms: i64 },
    /// A doubt of the start has ended: the wall clock has reached the latest time in the log, or the stepout has passed.
    Accepted,
}

/// The difference of the wall clock at the start to the latest record of the log. One of the two is wrong, or the server was down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartDoubt {
    Behind { by_ms: i64 },
    Ahead { by_ms: i64 },
}

#[derive(Debug, Clone)]
pub struct StepFilter {
    skew_us: i64,
    stepout_us: i64,
    /// The offset that has lasted for the stepout.
    settled_us: i64,
    /// The offset in use: within the skew of the settled one.
    followed_us: i64,
    /// The wall clock's offset since `present_since_us`, within the skew.
    present_us: i64,
    present_since_us: i64,
    /// The steady time at which a step came into doubt.
    doubted_since_us: Option<i64>,
    /// The offset at the start was settled earlier, by the same steady clock.
    is_anchored: bool,
    /// The clock was behind the log at the start.
    behind: Option<Behind>,
    /// The latest time in the log, if the clock was ahead of it at the start.
    ahead_of_us: Option<i64>,
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
    /// Starts with the present wall clock.
    pub fn new(limits: StepLimits, sample: ClockSample) -> Self {
        let offset_us = sample.wall_us.saturating_sub(sample.steady_us);
        Self { is_anchored: false, ..Self::anchored(limits, sample, offset_us) }
    }

    /// Starts with an offset that was settled earlier, by the same steady clock.
    pub fn anchored(limits: StepLimits, sample: ClockSample, settled_us: i64) -> Self {
        Self {
            skew_us: micros(limits.skew.max(NOISE)),
            stepout_us: micros(limits.stepout),
            settled_us,
            followed_us: settled_us,
            present_us: settled_us,
            present_since_us: sample.steady_us,
            doubted_since_us: None,
            is_anchored: true,
            behind: None,
            ahead_of_us: None,
        }
    }

    /// Compares the clock with the latest time in the log, right after the start.
    ///
    /// If the wall clock is behind the log by more than the skew, the clock is in doubt until it reaches the log's time or the stepout has
    /// passed. If no settled offset confirms the wall clock, and it is ahead of the log by more than the stepout, it is in doubt until its
    /// offset has lasted for the stepout. A smaller lead is accepted.
    pub fn compare_with_log(&mut self, latest_us: i64, sample: ClockSample) -> Option<StartDoubt> {
        let ahead_us = sample.steady_us.saturating_add(self.followed_us).saturating_sub(latest_us);
        let behind_us = ahead_us.saturating_neg();
        if self.stepout_us == 0 {
            None
        } else if behind_us > self.skew_us {
            self.behind = Some(Behind { latest_us, since_us: sample.steady_us });
            Some(StartDoubt::Behind { by_ms: behind_us / 1000 })
        } else if ahead_us > self.stepout_us && !self.is_anchored {
            self.ahead_of_us = Some(latest_us);
            Some(StartDoubt::Ahead { by_ms: ahead_us / 1000 })
        } else {
            None
        }
    }

    pub fn offset_us(&self) -> i64 {
        self.followed_us
    }

    /// The offset that a later start may use. `None` while this start is in doubt itself.
    pub fn settled_us(&self) -> Option<i64> {
        self.ahead_of_us.is_none().then_some(self.settled_us)
    }

    pub fn is_in_doubt(&self) -> bool {
        self.doubted_since_us.is_some() || self.behind.is_some() || self.ahead_of_us.is_some()
    }

    /// Nothing after this time expires while the start is in doubt, in microseconds.
    pub fn expiry_ceiling_us(&self) -> Option<i64> {
        self.ahead_of_us
    }

    /// The difference of the wall clock to the time in use, in microseconds, at this sample.
    pub fn unfollowed_us(&self, sample: ClockSample) -> i64 {
        let is_step = self.doubted_since_us.is_some();
        if is_step { self.seen_us(sample).saturating_sub(self.followed_us) } else { 0 }
    }

    fn seen_us(&self, sample: ClockSample) -> i64 {
        sample.wall_us.saturating_sub(sample.steady_us)
    }

    fn is_near(&self, a_us: i64, b_us: i64) -> bool {
        a_us.saturating_sub(b_us).saturating_abs() <= self.skew_us
    }

    pub fn step(&mut self, sample: ClockSample) -> Option<ClockChange> {
        let change = self.follow(sample);
        let now_us = sample.steady_us.saturating_add(self.followed_us);
        let is_over = |behind: &mut Behind| {
            now_us >= behind.latest_us || sample.steady_us.saturating_sub(behind.since_us) >= self.stepout_us
        };
        let has_lasted = sample.steady_us.saturating_sub(self.present_since_us) >= self.stepout_us;
        let is_settled = self.doubted_since_us.is_none() && has_lasted;
        let is_accepted = self.behind.take_if(is_over).is_some() | self.ahead_of_us.take_if(|_| is_settled).is_some();
        change.or(is_accepted.then_some(ClockChange::Accepted))
    }

    fn follow(&mut self, sample: ClockSample) -> Option<ClockChange> {
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
        // A further step on top of the one in doubt is reported too.
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

    fn sample(steady_us: i64, step_us: i64) -> ClockSample {
        ClockSample { wall_us: BEGAN + steady_us + step_us, steady_us }
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
    fn a_reverted_step_is_not_followed_and_its_end_is_reported() {
        for step in [DAY, -DAY, 8 * DAY] {
            let mut filter = filter();
            assert_eq!(filter.step(sample(S, step)), Some(ClockChange::Doubted { by_ms: step / 1000 }));
            assert!(filter.is_in_doubt());
            assert_eq!(filter.step(sample(15 * S, step)), None, "it is reported once");
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
        assert!(!filter.is_in_doubt());
        let behind = StartDoubt::Behind { by_ms: 10_000 };
        assert_eq!(filter.compare_with_log(BEGAN + 10 * S, sample(0, 0)), Some(behind));
        assert!(filter.is_in_doubt());
        assert_eq!(filter.step(sample(9 * S, 0)), None);
        assert_eq!(filter.step(sample(10 * S, 0)), Some(ClockChange::Accepted));
        assert!(!filter.is_in_doubt());
        filter.compare_with_log(BEGAN + DAY, sample(10 * S, 0));
        assert_eq!(filter.step(sample(309 * S, 0)), None);
        assert_eq!(filter.step(sample(310 * S, 0)), Some(ClockChange::Accepted));
    }

    #[test]
    fn a_start_ahead_of_the_log_is_in_doubt_until_it_has_lasted() {
        let mut filter = filter();
        assert_eq!(filter.compare_with_log(BEGAN - 300 * S, sample(0, 0)), None, "not more than the stepout");
        let ahead = StartDoubt::Ahead { by_ms: DAY / 1000 };
        assert_eq!(filter.compare_with_log(BEGAN - DAY, sample(0, 0)), Some(ahead));
        assert_eq!(filter.step(sample(299 * S, 0)), None);
        assert_eq!((filter.expiry_ceiling_us(), filter.settled_us()), (Some(BEGAN - DAY), None));
        assert_eq!(filter.step(sample(300 * S, 0)), Some(ClockChange::Accepted));
        assert_eq!((filter.expiry_ceiling_us(), filter.settled_us()), (None, Some(BEGAN)));
        assert!(!filter.is_in_doubt());
    }

    #[test]
    fn a_start_ahead_of_the_log_whose_clock_is_corrected_doubts_until_the_correction_has_lasted() {
        let mut filter = filter();
        filter.compare_with_log(BEGAN - DAY, sample(0, 0));
        assert!(matches!(filter.step(sample(60 * S, -DAY)), Some(ClockChange::Doubted { .. })));
        assert_eq!(filter.step(sample(359 * S, -DAY)), None);
        assert_eq!(filter.expiry_ceiling_us(), Some(BEGAN - DAY));
        assert!(matches!(filter.step(sample(360 * S, -DAY)), Some(ClockChange::Followed { .. })));
        assert!(!filter.is_in_doubt());
    }

    #[test]
    fn a_start_with_an_anchor_may_be_ahead_of_the_log() {
        let mut filter = StepFilter::anchored(LIMITS, sample(0, 0), BEGAN);
        assert_eq!(filter.compare_with_log(BEGAN - DAY, sample(0, 0)), None, "the server was down");
    }

    #[test]
    fn without_a_stepout_every_step_is_followed_at_once() {
        let limits = StepLimits { stepout: Duration::ZERO, ..LIMITS };
        let mut filter = StepFilter::new(limits, sample(0, 0));
        assert_eq!(filter.step(sample(S, DAY)), Some(ClockChange::Followed { by_ms: DAY / 1000 }));
        assert_eq!(filter.compare_with_log(BEGAN - DAY, sample(S, DAY)), None);
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
        /// However the wall clock moves after a start ahead of the log, nothing after the log's time expires before the clock's offset has
        /// lasted for the stepout. A wall clock without further steps is accepted.
        #[test]
        fn a_start_ahead_of_the_log_expires_nothing_before_the_clock_has_kept_its_time(
            steps in proptest::collection::vec((1i64..200, prop_oneof![Just(0i64), -2_000_000i64..2_000_000, -DAY..DAY]), 1..40),
        ) {
            let mut filter = filter();
            filter.compare_with_log(BEGAN - DAY, sample(0, 0));
            let (mut now, mut last, mut seen) = (0, 0, vec![(0, 0)]);
            for (pass, step) in steps {
                now += pass * S;
                last = step;
                let was_ahead = filter.expiry_ceiling_us().is_some();
                filter.step(sample(now, step));
                seen.push((now, step));
                let recent = seen.iter().filter(|(at, _)| now - at < 300 * S).map(|(_, step)| *step);
                let (least, most) = recent.fold((i64::MAX, i64::MIN), |(a, b), step| (a.min(step), b.max(step)));
                if was_ahead && filter.expiry_ceiling_us().is_none() {
                    prop_assert!(now >= 300 * S && most - least <= 4 * 500_000, "{now}: {least} to {most}");
                }
            }
            filter.step(sample(now + 300 * S, last));
            filter.step(sample(now + 600 * S, last));
            prop_assert_eq!(filter.expiry_ceiling_us(), None);
            prop_assert!(!filter.is_in_doubt());
        }

        /// However the wall clock moves, the offset in use moves by at most twice the skew within a stepout, unless a step has lasted for
        /// one. A wall clock without further steps is followed after one stepout.
        #[test]
        fn the_time_follows_no_step_that_does_not_last(
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
