//! A line of deliveries: the cursor of a subscription, or one of its replays. A window, and what comes after each answer. Pure.

use whimbrel_model::subscription::{Ordering, RetryPolicy};
use whimbrel_model::{PartitionId, Timestamp};

use super::judge::Failure;
use super::ladder::{Ladder, Step};
use super::letters::BroughtRetry;
use super::window::{Ticket, Window, WindowLimits};

/// How a line delivers. Changes with the subscription's specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineRules {
    pub retry: RetryPolicy,
    pub on_exhausted: whimbrel_model::subscription::OnExhausted,
    pub blocked_sleep: std::time::Duration,
    /// Whether a failed delivery waits where it is, or becomes a hold.
    pub in_place: bool,
}

impl LineRules {
    /// The ladder of a message; `own` is its own policy, where it brought one.
    pub fn ladder<'a>(&'a self, own: Option<&'a RetryPolicy>) -> Ladder<'a> {
        Ladder {
            policy: own.unwrap_or(&self.retry),
            on_exhausted: self.on_exhausted,
            blocked_sleep: self.blocked_sleep,
        }
    }
}

/// What is to be done after an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The ticket was not out any more: nothing.
    Stale,
    /// The message is done: delivered, or dropped.
    Done,
    /// It waits where it is.
    Parked(Timestamp),
    /// It becomes a hold, and is settled when that is durable.
    Hold(Timestamp),
    /// It becomes a dead letter, and is settled when that is durable.
    Bury,
}

pub struct Line<B> {
    /// Zero for the cursor; a replay's run.
    pub number: u32,
    pub run: u32,
    /// Tells this line from an earlier one under the same number: what was begun for that one is void.
    pub incarnation: u64,
    pub rules: LineRules,
    pub window: Window<B>,
}

impl<B: Clone> Line<B> {
    pub fn new(
        number: u32,
        run: u32,
        incarnation: u64,
        ordering: Ordering,
        limits: WindowLimits,
        rules: LineRules,
    ) -> Self {
        Self { number, run, incarnation, rules, window: Window::new(ordering, limits) }
    }

    pub fn succeeded(&mut self, ticket: Ticket) -> Next {
        if self.window.is_in_flight(ticket) && self.window.done(ticket) { Next::Done } else { Next::Stale }
    }

    /// After so many attempts at the message, this one included. `own` is the message's own policy, where it brought one.
    pub fn failed(
        &mut self,
        ticket: Ticket,
        attempts: u32,
        failure: &Failure,
        own: Option<&RetryPolicy>,
        now: Timestamp,
        random: u64,
    ) -> Next {
        if !self.window.is_in_flight(ticket) {
            return Next::Stale;
        }
        let rules = &self.rules;
        let ladder = rules.ladder(own);
        let step = if failure.is_final {
            ladder.end(now, failure.retry_after)
        } else {
            ladder.after(attempts, now, failure.retry_after, random)
        };
        match step {
            Step::RetryAt(until) if rules.in_place => {
                self.window.park(ticket, until, true);
                Next::Parked(until)
            }
            Step::RetryAt(due) => {
                self.window.settle(ticket);
                Next::Hold(due)
            }
            Step::DeadLetter => {
                self.window.settle(ticket);
                Next::Bury
            }
            Step::Drop => {
                self.window.done(ticket);
                Next::Done
            }
        }
    }

    /// Checks the saved retry time of a message that was read again, before the window takes the message in: see [`Ladder::resume`].
    /// `brought` is the retry data in the message's record.
    pub fn judge_saved_retry(&mut self, partition: PartitionId, offset: u64, brought: &BroughtRetry, now: Timestamp) {
        let ladder = self.rules.ladder(brought.own.as_ref());
        self.window.replan_saved_retry(partition, offset, |attempts, saved| {
            ladder.resume(brought.attempts_before.saturating_add(attempts), saved, now)
        });
    }

    /// It was no attempt: the message waits until then and is tried again.
    pub fn not_tried(&mut self, ticket: Ticket, until: Timestamp) -> Next {
        if self.window.park(ticket, until, false) { Next::Parked(until) } else { Next::Stale }
    }

    /// The hold or the dead letter is durable.
    pub fn settled(&mut self, ticket: Ticket) {
        self.window.done(ticket);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use whimbrel_model::TopicNumber;
    use whimbrel_model::subscription::OnExhausted;

    use super::super::window::{Arrival, Resume};
    use super::*;

    const PARTITION: PartitionId = PartitionId::new(TopicNumber(1), 0);
    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const DAY_MS: i64 = 86_400_000;

    /// The time until the next attempt of a message that an earlier process parked after one attempt.
    fn tried_again_in_ms(saved_in_ms: i64, brought: &BroughtRetry) -> i64 {
        let limits = WindowLimits { body_bytes: 1 << 20, parked_bytes: 1 << 20 };
        let rules = LineRules {
            retry: RetryPolicy { times: 5, schedule_ms: vec![1_000] },
            on_exhausted: OnExhausted::DeadLetter,
            blocked_sleep: Duration::from_secs(2),
            in_place: true,
        };
        let mut line = Line::new(0, 1, 1, Ordering::Key, limits, rules);
        let saved = Timestamp::from_millis(NOW.as_millis() + saved_in_ms);
        let resume =
            Resume { watermark: 3, read_to: 4, unfinished: [3].into_iter().collect(), retries: vec![(3, 1, saved)] };
        line.window.open(PARTITION, resume, None, false);
        line.window.next_read().expect("the partition is read again");
        assert!(line.window.has_saved_retry(PARTITION, 3) && !line.window.has_saved_retry(PARTITION, 4));
        line.judge_saved_retry(PARTITION, 3, brought, NOW);
        let arrival = Arrival { offset: 3, key: Some("k".into()), size: 10, body: Some(()) };
        line.window.take_in(PARTITION, vec![arrival], 4);
        line.window.next_time().expect("the message is parked").as_millis() - NOW.as_millis()
    }

    #[test]
    fn a_messages_own_retry_interval_outlives_its_owner() {
        let own = RetryPolicy { times: 3, schedule_ms: vec![7 * DAY_MS as u64] };
        let brought = BroughtRetry { attempts_before: 0, own: Some(own) };
        assert_eq!(tried_again_in_ms(6 * DAY_MS, &brought), 6 * DAY_MS);
        assert_eq!(tried_again_in_ms(20 * DAY_MS, &brought), 7 * DAY_MS, "beyond its own interval");
    }

    #[test]
    fn a_saved_time_beyond_the_subscriptions_schedule_waits_its_step() {
        assert_eq!(tried_again_in_ms(DAY_MS, &BroughtRetry::default()), 1_000);
        assert_eq!(tried_again_in_ms(500, &BroughtRetry::default()), 500);
    }

    #[test]
    fn attempts_before_the_retry_topic_count() {
        let own = RetryPolicy { times: 9, schedule_ms: vec![1_000, 1_000, 1_000, 7 * DAY_MS as u64] };
        let brought = BroughtRetry { attempts_before: 3, own: Some(own) };
        assert_eq!(tried_again_in_ms(6 * DAY_MS, &brought), 6 * DAY_MS);
    }
}
