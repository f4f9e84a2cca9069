//! The clock of a process: the steady clock plus the offset that [`StepFilter`] accepts.
//!
//! Reading it reads only the steady clock. [`GuardedClock::check`] reads the wall clock; its owner calls it several times per second.
//! Between two checks, a step of the wall clock has no effect.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Clock, ClockChange, ClockSample, StartDoubt, StepFilter, StepLimits};
use crate::Timestamp;

/// The machine's clocks.
pub trait ClockSource: Send + Sync + 'static {
    /// Microseconds of a monotonic clock that counts suspended time.
    fn steady_us(&self) -> i64;

    /// Reads both clocks, as close together as possible.
    fn sample(&self) -> ClockSample;
}

impl<S: ClockSource> ClockSource for Arc<S> {
    fn steady_us(&self) -> i64 {
        (**self).steady_us()
    }

    fn sample(&self) -> ClockSample {
        (**self).sample()
    }
}

/// The expiry ceiling if nothing is in doubt: expiry uses the present time.
const NOT_IN_DOUBT: i64 = i64::MAX;

pub struct GuardedClock<S> {
    source: S,
    filter: Mutex<StepFilter>,
    /// The offset to add to the steady clock, from the filter.
    offset_us: AtomicI64,
    /// The time at which a step came into doubt, or the log's latest time if the clock started ahead of it, or [`NOT_IN_DOUBT`].
    expiry_ceiling_ms: AtomicI64,
    /// Records after this time were written by a run whose clock was in doubt until its end.
    trusted_until: Option<Timestamp>,
    start_doubt: Mutex<Option<(Timestamp, StartDoubt)>>,
}

impl<S: ClockSource> GuardedClock<S> {
    /// Starts with the present wall clock, or with the offset that an earlier process of the same boot settled on.
    pub fn start(source: S, limits: StepLimits, settled_us: Option<i64>) -> Self {
        let sample = source.sample();
        let filter = match settled_us {
            Some(settled_us) => StepFilter::anchored(limits, sample, settled_us),
            None => StepFilter::new(limits, sample),
        };
        let offset_us = AtomicI64::new(filter.offset_us());
        Self {
            source,
            filter: Mutex::new(filter),
            offset_us,
            expiry_ceiling_ms: AtomicI64::new(NOT_IN_DOUBT),
            trusted_until: None,
            start_doubt: Mutex::default(),
        }
    }

    /// Distrusts times in the log after `latest`: the run that wrote them ended with its clock in doubt.
    pub fn trusting_until(mut self, latest: Option<Timestamp>) -> Self {
        self.trusted_until = latest;
        self
    }

    fn filter(&self) -> MutexGuard<'_, StepFilter> {
        self.filter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the wall clock. Returns a change, to be reported as an event.
    pub fn check(&self) -> Option<ClockChange> {
        let sample = self.source.sample();
        let mut filter = self.filter();
        let change = filter.step(sample);
        self.offset_us.store(filter.offset_us(), Ordering::Release);
        self.hold_expiry(&filter);
        change
    }

    /// The result of the comparison with the log: the log's latest time and the doubt. Returns it once, to be reported as an event.
    pub fn take_start_doubt(&self) -> Option<(Timestamp, StartDoubt)> {
        self.start_doubt.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The difference of the wall clock to this clock while a step is in doubt, in milliseconds; otherwise 0.
    pub fn unfollowed_ms(&self) -> i64 {
        let sample = self.source.sample();
        self.filter().unfollowed_us(sample) / 1000
    }

    /// The offset that a later process of the same boot may start with, in microseconds. `None` while the start itself is in doubt.
    pub fn settled_us(&self) -> Option<i64> {
        self.filter().settled_us()
    }

    /// The log's latest trusted time, while the clock's start ahead of the log is in doubt.
    pub fn ahead_of(&self) -> Option<Timestamp> {
        let ceiling_us = self.filter().expiry_ceiling_us()?;
        Some(Timestamp::from_millis(ceiling_us.div_euclid(1000)))
    }

    fn hold_expiry(&self, filter: &StepFilter) {
        if filter.is_in_doubt() {
            let of_start_ms = filter.expiry_ceiling_us().map_or(i64::MAX, |ceiling_us| ceiling_us.div_euclid(1000));
            self.expiry_ceiling_ms.fetch_min(self.now().as_millis().min(of_start_ms), Ordering::AcqRel);
        } else {
            self.expiry_ceiling_ms.store(NOT_IN_DOUBT, Ordering::Release);
        }
    }

    fn now_us(&self) -> i64 {
        self.source.steady_us().saturating_add(self.offset_us.load(Ordering::Acquire))
    }
}

impl<S: ClockSource> Clock for GuardedClock<S> {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now_us().div_euclid(1000))
    }

    fn micros_into(&self) -> u16 {
        self.now_us().rem_euclid(1000) as u16
    }

    fn expiry_now(&self) -> Timestamp {
        let ceiling = Timestamp::from_millis(self.expiry_ceiling_ms.load(Ordering::Acquire));
        self.now().min(ceiling)
    }

    fn compare_with_log(&self, latest: Timestamp) {
        let latest = self.trusted_until.map_or(latest, |trusted| trusted.min(latest));
        let sample = self.source.sample();
        let mut filter = self.filter();
        let doubt = filter.compare_with_log(latest.as_millis().saturating_mul(1000), sample);
        self.hold_expiry(&filter);
        *self.start_doubt.lock().unwrap_or_else(PoisonError::into_inner) = doubt.map(|doubt| (latest, doubt));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Clocks that a test sets.
    #[derive(Default)]
    struct ManualClock {
        steady_us: AtomicI64,
        step_us: AtomicI64,
    }

    impl ClockSource for ManualClock {
        fn steady_us(&self) -> i64 {
            self.steady_us.load(Ordering::Relaxed)
        }

        fn sample(&self) -> ClockSample {
            let steady_us = self.steady_us();
            ClockSample { wall_us: 1_000_000_000_000 + steady_us + self.step_us.load(Ordering::Relaxed), steady_us }
        }
    }

    #[test]
    fn expiry_time_stops_while_a_step_is_in_doubt_and_the_clock_advances() {
        let source = Arc::new(ManualClock::default());
        let limits = StepLimits { skew: Duration::from_millis(500), stepout: Duration::from_secs(60) };
        let clock = GuardedClock::start(Arc::clone(&source), limits, None);
        let pass = |seconds: i64| source.steady_us.fetch_add(seconds * 1_000_000, Ordering::Relaxed);
        let began = clock.now().as_millis();
        source.step_us.store(86_400_000_000, Ordering::Relaxed);
        assert_eq!(clock.now().as_millis(), began, "a step has no effect before the next check");
        assert!(matches!(clock.check(), Some(ClockChange::Doubted { .. })));
        pass(20);
        assert_eq!(clock.check(), None);
        assert_eq!(clock.now().as_millis(), began + 20_000);
        assert_eq!(clock.expiry_now().as_millis(), began);
        assert_eq!(clock.unfollowed_ms(), 86_400_000);
        source.step_us.store(0, Ordering::Relaxed);
        assert!(matches!(clock.check(), Some(ClockChange::Returned { .. })));
        assert_eq!(clock.expiry_now().as_millis(), began + 20_000);
        source.step_us.store(86_400_000_000, Ordering::Relaxed);
        clock.check();
        pass(60);
        assert!(matches!(clock.check(), Some(ClockChange::Followed { .. })));
        assert_eq!(clock.expiry_now().as_millis(), began + 80_000 + 86_400_000);
    }

    #[test]
    fn expiry_time_stays_at_the_latest_time_of_the_log_after_a_start_ahead_of_it() {
        let source = Arc::new(ManualClock::default());
        let limits = StepLimits { skew: Duration::from_millis(500), stepout: Duration::from_secs(60) };
        let clock = GuardedClock::start(Arc::clone(&source), limits, None);
        let began = clock.now().as_millis();
        let latest = Timestamp::from_millis(began - 86_400_000);
        clock.compare_with_log(latest);
        let doubt = StartDoubt::Ahead { by_ms: 86_400_000 };
        assert_eq!(clock.take_start_doubt(), Some((latest, doubt)));
        assert_eq!((clock.expiry_now(), clock.now().as_millis()), (latest, began), "time is that of the wall clock");
        source.steady_us.fetch_add(59_000_000, Ordering::Relaxed);
        assert_eq!(clock.check(), None);
        assert_eq!((clock.expiry_now(), clock.settled_us()), (latest, None));
        source.steady_us.fetch_add(1_000_000, Ordering::Relaxed);
        assert_eq!(clock.check(), Some(ClockChange::Accepted));
        assert_eq!(clock.expiry_now().as_millis(), began + 60_000);
    }
}
