//! One line of deliveries: the cursor of a subscription, or one of its replays. It combines a window with the steps after each answer.
//! Pure.

use std::time::Duration;

use whimbrel_model::subscription::{OnExhausted, Ordering, RetryPolicy};
use whimbrel_model::{PartitionId, SubscriptionSpec, Timestamp};

use super::call_verdict::DeliveryFailure;
use super::outbound_message::RetryData;
use super::retry_schedule::{RetrySchedule, RetryStep};
use super::window::{DeliveryTicket, DeliveryWindow, WindowLimits};

/// The delivery rules of a line, from the subscription's specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineRules {
    pub retry: RetryPolicy,
    pub on_exhausted: OnExhausted,
    pub blocked_sleep: Duration,
    /// Whether a failed message waits in the window. Otherwise it becomes a hold.
    pub in_place: bool,
}

impl LineRules {
    pub fn of(spec: &SubscriptionSpec) -> Self {
        Self {
            retry: spec.retry.clone(),
            on_exhausted: spec.on_exhausted,
            blocked_sleep: Duration::from_millis(spec.blocked_sleep_ms),
            in_place: spec.retries_in_place(),
        }
    }

    /// The retry schedule of a message; `own` is the message's own policy, if any.
    pub fn retry_schedule<'a>(&'a self, own: Option<&'a RetryPolicy>) -> RetrySchedule<'a> {
        RetrySchedule {
            policy: own.unwrap_or(&self.retry),
            on_exhausted: self.on_exhausted,
            blocked_sleep: self.blocked_sleep,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterAttempt {
    /// The ticket was not in flight: nothing to do.
    Stale,
    /// The message is done: delivered, or dropped.
    Done,
    /// The message waits in the window.
    Parked(Timestamp),
    /// The message becomes a hold. It is done when the hold is durable.
    Hold(Timestamp),
    /// The message becomes a dead letter. It is done when the dead letter is durable.
    Bury,
}

pub struct DeliveryLine<B> {
    /// Zero for the cursor; the run of a replay.
    pub number: u32,
    pub run: u32,
    /// Distinguishes this line from earlier ones with the same number. Work of an earlier line is void.
    pub incarnation: u64,
    pub rules: LineRules,
    pub window: DeliveryWindow<B>,
}

impl<B: Clone> DeliveryLine<B> {
    pub fn new(
        number: u32,
        run: u32,
        incarnation: u64,
        ordering: Ordering,
        limits: WindowLimits,
        rules: LineRules,
    ) -> Self {
        Self { number, run, incarnation, rules, window: DeliveryWindow::new(ordering, limits) }
    }

    pub fn succeeded(&mut self, ticket: DeliveryTicket) -> AfterAttempt {
        if self.window.is_in_flight(ticket) && self.window.done(ticket) {
            AfterAttempt::Done
        } else {
            AfterAttempt::Stale
        }
    }

    /// Handles a failed attempt. `attempts` includes it; `own` is the message's own retry policy, if any.
    pub fn failed(
        &mut self,
        ticket: DeliveryTicket,
        attempts: u32,
        failure: &DeliveryFailure,
        own: Option<&RetryPolicy>,
        now: Timestamp,
        random: u64,
    ) -> AfterAttempt {
        if !self.window.is_in_flight(ticket) {
            return AfterAttempt::Stale;
        }
        let rules = &self.rules;
        let retry_schedule = rules.retry_schedule(own);
        let step = if failure.is_final {
            retry_schedule.end(now, failure.retry_after)
        } else {
            retry_schedule.after(attempts, now, failure.retry_after, random)
        };
        match step {
            RetryStep::RetryAt(until) if rules.in_place => {
                self.window.park(ticket, until, true);
                AfterAttempt::Parked(until)
            }
            RetryStep::RetryAt(due) => {
                self.window.settle(ticket);
                AfterAttempt::Hold(due)
            }
            RetryStep::DeadLetter => {
                self.window.settle(ticket);
                AfterAttempt::Bury
            }
            RetryStep::Drop => {
                self.window.done(ticket);
                AfterAttempt::Done
            }
        }
    }

    /// Checks the saved retry time of a message that was read again, before the window takes the message in: see [`RetrySchedule::resume`].
    /// `brought` is the retry data in the message's record.
    pub fn judge_saved_retry(&mut self, partition: PartitionId, offset: u64, brought: &RetryData, now: Timestamp) {
        let retry_schedule = self.rules.retry_schedule(brought.own.as_ref());
        self.window.replan_saved_retry(partition, offset, |attempts, saved| {
            retry_schedule.resume(brought.attempts_before.saturating_add(attempts), saved, now)
        });
    }

    /// Handles a delivery that was not attempted: the message waits until `until`.
    pub fn not_tried(&mut self, ticket: DeliveryTicket, until: Timestamp) -> AfterAttempt {
        if self.window.park(ticket, until, false) { AfterAttempt::Parked(until) } else { AfterAttempt::Stale }
    }

    /// Completes a message whose hold or dead letter is durable.
    pub fn settled(&mut self, ticket: DeliveryTicket) {
        self.window.done(ticket);
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::TopicNumber;
    use whimbrel_model::subscription::Mode;

    use super::super::window::{PartitionResume, ReadMessage};
    use super::*;

    const PARTITION: PartitionId = PartitionId::new(TopicNumber(1), 0);
    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const DAY_MS: i64 = 86_400_000;

    /// The time until the next attempt of a message that an earlier process parked after one attempt.
    fn retried_in_ms(saved_in_ms: i64, brought: &RetryData) -> i64 {
        let limits = WindowLimits { body_bytes: 1 << 20, parked_bytes: 1 << 20 };
        let spec = SubscriptionSpec::new(Vec::new(), Mode::Push, None);
        let retry = RetryPolicy { times: 5, schedule_ms: vec![1_000] };
        let rules = LineRules::of(&SubscriptionSpec { retry, ..spec });
        let mut line = DeliveryLine::new(0, 1, 1, Ordering::Key, limits, rules);
        let saved = Timestamp::from_millis(NOW.as_millis() + saved_in_ms);
        let resume = PartitionResume {
            watermark: 3,
            read_to: 4,
            unfinished: [3].into_iter().collect(),
            retries: vec![(3, 1, saved)],
        };
        line.window.open(PARTITION, resume, None, false);
        line.window.next_read().expect("the partition is read again");
        assert!(line.window.has_saved_retry(PARTITION, 3) && !line.window.has_saved_retry(PARTITION, 4));
        line.judge_saved_retry(PARTITION, 3, brought, NOW);
        let arrival = ReadMessage { offset: 3, key: Some("k".into()), size: 10, body: Some(()) };
        line.window.take_in(PARTITION, vec![arrival], 4);
        line.window.next_time().expect("the message is parked").as_millis() - NOW.as_millis()
    }

    #[test]
    fn a_messages_own_retry_interval_survives_its_owner() {
        let own = RetryPolicy { times: 3, schedule_ms: vec![7 * DAY_MS as u64] };
        let brought = RetryData { attempts_before: 0, own: Some(own) };
        assert_eq!(retried_in_ms(6 * DAY_MS, &brought), 6 * DAY_MS);
        assert_eq!(retried_in_ms(20 * DAY_MS, &brought), 7 * DAY_MS, "beyond its own interval");
    }

    #[test]
    fn a_saved_time_beyond_the_schedule_waits_its_step() {
        assert_eq!(retried_in_ms(DAY_MS, &RetryData::default()), 1_000);
        assert_eq!(retried_in_ms(500, &RetryData::default()), 500);
    }

    #[test]
    fn attempts_in_a_retry_record_count() {
        let own = RetryPolicy { times: 9, schedule_ms: vec![1_000, 1_000, 1_000, 7 * DAY_MS as u64] };
        let brought = RetryData { attempts_before: 3, own: Some(own) };
        assert_eq!(retried_in_ms(6 * DAY_MS, &brought), 6 * DAY_MS);
    }
}
