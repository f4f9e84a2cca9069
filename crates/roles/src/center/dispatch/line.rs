//! A line of deliveries: the cursor of a subscription, or one of its replays. A window, and what comes after each answer. Pure.

use whimbrel_model::Timestamp;
use whimbrel_model::subscription::{Ordering, RetryPolicy};

use super::judge::Failure;
use super::ladder::{Ladder, Step};
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

    /// It was no attempt: the message waits until then and is tried again.
    pub fn not_tried(&mut self, ticket: Ticket, until: Timestamp) -> Next {
        if self.window.park(ticket, until, false) { Next::Parked(until) } else { Next::Stale }
    }

    /// The hold or the dead letter is durable.
    pub fn settled(&mut self, ticket: Ticket) {
        self.window.done(ticket);
    }
}
