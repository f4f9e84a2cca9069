//! The health of a subscription's endpoint: whether a call may start now, and since when all attempts have failed. Pure.
//!
//! It combines the circuit breaker, the limit on concurrent calls, the rate, and the pause that the endpoint requested with a 429. Health
//! belongs to a URL: another URL, or a resumed subscription, starts afresh.

use std::time::Duration;

use whimbrel_model::Timestamp;
use whimbrel_model::subscription::{RETRY_AFTER_MAX, StoredSubscription};

use super::breaker::{Breaker, BreakerSettings};
use super::call_verdict::DeliveryFailure;
use super::concurrency_limit::ConcurrencyLimit;
use super::runner_clock::later;
use super::throttle::Throttle;

/// How long the subscription pauses after a 429 without `Retry-After`.
const HELD_OFF_DEFAULT: Duration = Duration::from_secs(1);

pub struct EndpointHealth {
    settings: BreakerSettings,
    /// The URL to which the breaker and the concurrency limit apply.
    url: Option<String>,
    was_active: bool,
    breaker: Breaker,
    concurrency: ConcurrencyLimit,
    throttle: Option<Throttle>,
    /// Until when the endpoint requested that no calls are made.
    held_off: Option<Timestamp>,
    failing_since: Option<Timestamp>,
}

impl EndpointHealth {
    pub fn new(stored: &StoredSubscription, settings: BreakerSettings) -> Self {
        Self {
            settings,
            url: url_of(stored),
            was_active: stored.is_active(),
            breaker: Breaker::new(settings),
            concurrency: ConcurrencyLimit::new(stored.spec.concurrency),
            throttle: stored.spec.rate.map(Throttle::new),
            held_off: None,
            failing_since: None,
        }
    }

    /// Applies the catalogue's entry. Returns true if an operator changed the URL or resumed the subscription: health is reset then, except
    /// for the failing time.
    pub fn follow(&mut self, stored: &StoredSubscription) -> bool {
        self.concurrency.set_most(stored.spec.concurrency);
        self.throttle = stored.spec.rate.map(Throttle::new);
        let is_resumed = stored.is_active() && !self.was_active;
        self.was_active = stored.is_active();
        let url = url_of(stored);
        let is_reset = self.url != url || is_resumed;
        if is_reset {
            self.url = url;
            self.breaker = Breaker::new(self.settings);
            self.concurrency = ConcurrencyLimit::new(stored.spec.concurrency);
            self.held_off = None;
        }
        is_reset
    }

    /// Whether a call may start while `in_flight` calls are in progress.
    pub fn lets_through(&mut self, in_flight: usize, now: Timestamp) -> bool {
        self.held_off.is_none_or(|until| until <= now)
            && in_flight < self.concurrency.limit() as usize
            && self.breaker.lets_through(now)
            && self.rate_allows(now)
    }

    /// Whether the subscription's rate allows a delivery now. It must then be counted with [`Self::took_one`].
    pub fn rate_allows(&mut self, now: Timestamp) -> bool {
        self.throttle.as_mut().is_none_or(|throttle| throttle.lets_through(now))
    }

    pub fn took_one(&mut self) {
        if let Some(throttle) = &mut self.throttle {
            throttle.take();
        }
    }

    pub fn started(&mut self) {
        self.breaker.started();
    }

    /// Records a success. Returns true if the breaker was not closed.
    pub fn succeeded(&mut self) -> bool {
        self.concurrency.succeeded();
        self.breaker.succeeded()
    }

    /// Records a failure. Returns true if the breaker opened.
    pub fn failed(&mut self, failure: &DeliveryFailure, now: Timestamp) -> bool {
        if failure.strain {
            self.concurrency.strained(now);
        }
        if failure.throttled {
            let wait = failure.retry_after.unwrap_or(HELD_OFF_DEFAULT).min(RETRY_AFTER_MAX);
            self.held_off = self.held_off.max(Some(later(now, wait)));
        }
        if failure.endpoint {
            return self.breaker.failed(now);
        }
        // The endpoint answers and rejects only this message.
        self.breaker.succeeded();
        false
    }

    /// Records that a call was not made.
    pub fn not_tried(&mut self, now: Timestamp) {
        self.breaker.not_tried(now);
    }

    pub fn concurrency(&self) -> u32 {
        self.concurrency.limit()
    }

    pub fn breaker(&self) -> &'static str {
        self.breaker.word()
    }

    /// The time since which all attempts have failed.
    pub fn failing_since(&self) -> Option<Timestamp> {
        self.failing_since
    }

    /// Records a failed attempt. Returns for how long all attempts have failed, in milliseconds.
    pub fn fails_for_ms(&mut self, now: Timestamp) -> i64 {
        now.as_millis() - self.failing_since.get_or_insert(now).as_millis()
    }

    /// Continues the failing time that an earlier owner saved.
    pub fn fails_since(&mut self, saved: Option<Timestamp>) {
        self.failing_since = self.failing_since.into_iter().chain(saved).min();
    }

    /// Clears the failing time. Returns false if there was none.
    pub fn fails_no_more(&mut self) -> bool {
        self.failing_since.take().is_some()
    }

    /// Until when the endpoint gets no calls, if that is known.
    pub fn barred_until(&self) -> Option<Timestamp> {
        self.breaker.next_time().max(self.held_off)
    }

    /// The times at which a call may become possible. They may have passed.
    pub fn times(&self) -> impl Iterator<Item = Timestamp> {
        let rate = self.throttle.as_ref().and_then(Throttle::next_time);
        self.breaker.next_time().into_iter().chain(self.held_off).chain(rate)
    }

    /// Moves the times after the clock was set back by `by`.
    pub fn set_back(&mut self, by: Duration) {
        self.breaker.set_back(by);
        self.held_off = self.held_off.map(|until| until.saturating_sub(by));
        self.failing_since = self.failing_since.map(|since| since.saturating_sub(by));
    }
}

fn url_of(stored: &StoredSubscription) -> Option<String> {
    stored.spec.endpoint.as_ref().and_then(|endpoint| endpoint.url.clone())
}

#[cfg(test)]
mod tests {
    use whimbrel_model::subscription::{Endpoint, Mode, RunState};
    use whimbrel_model::{SubscriptionNumber, SubscriptionSpec};

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn stored(url: &str, state: RunState) -> StoredSubscription {
        let endpoint =
            Endpoint { url: Some(url.to_owned()), timeout_ms: 1, connect_timeout_ms: None, headers: Vec::new() };
        StoredSubscription {
            number: SubscriptionNumber(1),
            spec: SubscriptionSpec {
                concurrency: 8,
                ..SubscriptionSpec::new(vec!["orders".to_owned()], Mode::Push, Some(endpoint))
            },
            state,
            run: 1,
            last_run: 1,
            starts: Vec::new(),
            replays: Vec::new(),
            created_at_ms: 0,
            deleting: false,
        }
    }

    fn health() -> EndpointHealth {
        let settings = BreakerSettings { failures: 2, ..BreakerSettings::default() };
        EndpointHealth::new(&stored("http://a/", RunState::Active), settings)
    }

    fn failure(throttled: bool) -> DeliveryFailure {
        DeliveryFailure {
            status: Some(503),
            reason: "answered 503".to_owned(),
            answer: bytes::Bytes::new(),
            retry_after: None,
            strain: true,
            endpoint: true,
            throttled,
            is_final: false,
        }
    }

    #[test]
    fn another_url_or_a_resume_resets_the_health_and_nothing_else_does() {
        let mut health = health();
        let open = |health: &mut EndpointHealth| {
            assert!(!health.failed(&failure(false), at(0)));
            assert!(health.failed(&failure(false), at(0)), "the second failure opens the breaker");
        };
        let is_open = |health: &mut EndpointHealth| !health.lets_through(0, at(1));
        open(&mut health);
        assert!(!health.follow(&stored("http://a/", RunState::Active)) && is_open(&mut health));
        assert!(health.follow(&stored("http://b/", RunState::Active)) && !is_open(&mut health));
        open(&mut health);
        assert!(!health.follow(&stored("http://b/", RunState::Paused)) && is_open(&mut health));
        assert!(health.follow(&stored("http://b/", RunState::Active)) && !is_open(&mut health));
        assert_eq!(health.concurrency(), 8);
    }

    #[test]
    fn a_429_pauses_all_calls_and_halves_their_number() {
        let mut health = health();
        health.failed(&failure(true), at(0));
        assert!(!health.lets_through(0, at(999)) && health.lets_through(0, at(1_000)));
        assert!(health.lets_through(3, at(1_000)) && !health.lets_through(4, at(1_000)));
        assert_eq!(health.barred_until(), Some(at(1_000)));
        health.set_back(Duration::from_millis(400));
        assert!(health.lets_through(0, at(600)));
    }

    #[test]
    fn the_failing_time_runs_from_the_first_failure_or_that_of_an_earlier_owner() {
        let mut health = health();
        assert_eq!(health.fails_for_ms(at(1_000)), 0);
        assert_eq!(health.fails_for_ms(at(5_000)), 4_000);
        health.fails_since(Some(at(200)));
        health.fails_since(None);
        assert_eq!(health.fails_for_ms(at(5_000)), 4_800);
        assert!(health.fails_no_more() && !health.fails_no_more());
        assert_eq!(health.failing_since(), None);
    }
}
