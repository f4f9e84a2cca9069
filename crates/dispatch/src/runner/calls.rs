//! Calls of endpoints, and the handling of their results.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::ports::{AfterFailure, AttemptOutcome, AttemptRecord};
use whimbrel_model::subscription::{Envelope, Mode};
use whimbrel_model::{EVENTS_TOPIC, Event, Record, Timestamp};

use super::{CallDone, DeliveryCount, RETRY_AFTER, RunnerEffect, SubscriptionRunner};
use crate::call_verdict::{CallVerdict, DeliveryFailure, classify_response};
use crate::delivery_line::AfterAttempt;
use crate::line_set::{DeliveryRef, OutgoingMessage};
use crate::outbound_message::OutboundMessage;
use crate::pending_appends::DeathReason;
use crate::runner_clock::later;
use crate::window::ReadyDelivery;

/// The status of an endpoint that is permanently gone.
const GONE: u16 = 410;

impl SubscriptionRunner {
    pub(super) fn start_calls(&mut self, now: Timestamp) {
        if self.subscription.stored.spec.mode != Mode::Push {
            return;
        }
        let mut in_flight = self.lines.in_flight();
        while self.health.lets_through(in_flight, now) {
            let Some(outgoing) = self.next_outgoing(now) else { return };
            in_flight += 1;
            self.health.started();
            self.start_call(outgoing);
        }
    }

    fn start_call(&mut self, outgoing: OutgoingMessage) {
        let spec = &self.subscription.stored.spec;
        // The other envelopes contain the payload as text.
        let is_raw = spec.envelope == Envelope::Binary && !spec.secrets.is_empty();
        if is_raw && std::str::from_utf8(&outgoing.message.record.value).is_err() {
            self.history.called_unverifiably();
        }
        self.effects.push(RunnerEffect::Call(outgoing));
    }

    /// The next message to send. Lines take turns.
    pub(super) fn next_outgoing(&mut self, now: Timestamp) -> Option<OutgoingMessage> {
        let in_place = self.subscription.stored.spec.retries_in_place();
        let fresh = in_place || !self.retry_holds.is_full();
        loop {
            let (number, delivery) = self.lines.next_delivery(now, fresh)?;
            if let Some(outgoing) = self.outgoing(number, delivery, now) {
                self.health.took_one();
                return Some(outgoing);
            }
        }
    }

    fn outgoing(&mut self, number: u32, delivery: ReadyDelivery<Record>, now: Timestamp) -> Option<OutgoingMessage> {
        let source = self.sources.get(delivery.partition.topic)?;
        let line = self.lines.get_mut(number)?;
        let message = if source.is_retry {
            match OutboundMessage::from_origin_record(&delivery.body) {
                Some((message, _)) => message,
                None => {
                    let topic = Arc::clone(&source.topic);
                    self.effects.push(RunnerEffect::SkippedRetry { topic, offset: delivery.offset });
                    line.window.done(delivery.ticket);
                    return None;
                }
            }
        } else {
            OutboundMessage::of(&source.topic, delivery.partition, delivery.offset, line.run, delivery.body)
        };
        Some(OutgoingMessage {
            out: DeliveryRef { line: number, incarnation: line.incarnation, ticket: delivery.ticket },
            attempt: message.attempts_before + delivery.attempts + 1,
            started: now,
            message,
        })
    }

    pub(super) fn answered(&mut self, done: CallDone) {
        let CallDone { outgoing, called } = done;
        let now = self.now();
        let spec = &self.subscription.stored.spec;
        let verdict = classify_response(spec, outgoing.message.rule.as_deref(), called.outcome);
        let took = called.took;
        match verdict {
            CallVerdict::Success { status } => self.succeeded(outgoing, status, took, now),
            CallVerdict::Failure(failure) => self.failed(outgoing, failure, took, now),
            CallVerdict::Gone => {
                self.health.not_tried(now);
                // Until the catalogue has disabled the subscription, the pause bounds the rate of calls.
                let until = later(now, RETRY_AFTER);
                if let Some(line) = self.lines.at(outgoing.out.line, outgoing.out.incarnation) {
                    line.not_tried(outgoing.out.ticket, until);
                    self.note_gone(&outgoing, took, until, now);
                }
                self.disable("the endpoint answered 410: it is gone".to_owned());
            }
            CallVerdict::NotTried { why } => {
                self.health.not_tried(now);
                let until = later(now, RETRY_AFTER);
                if let Some(line) = self.lines.at(outgoing.out.line, outgoing.out.incarnation) {
                    line.not_tried(outgoing.out.ticket, until);
                }
                self.history.set_last_error(now, None, why);
            }
        }
    }

    /// Records the attempt for display, although it does not count against the retries.
    fn note_gone(&mut self, outgoing: &OutgoingMessage, took: Duration, until: Timestamp, now: Timestamp) {
        let (status, reason) = (Some(GONE), format!("answered {GONE}"));
        self.effects.push(RunnerEffect::Count(DeliveryCount::Gone));
        self.history.failed(now);
        self.history.set_last_error(now, status, reason.clone());
        let (reason, answer, next) = (reason.into(), bytes::Bytes::new(), AfterFailure::RetryAt(until));
        self.note(outgoing, took, AttemptOutcome::Failed { status, reason, answer, next });
    }

    pub(super) fn succeeded(&mut self, outgoing: OutgoingMessage, status: u16, took: Duration, now: Timestamp) {
        if self.health.succeeded() {
            let name = &self.subscription.name;
            let event = Event::new("breaker_closed", format!("the endpoint of `{name}` works again"));
            self.publish(Some(event.with("subscription", name)));
        }
        self.fails_no_more();
        let Some(line) = self.lines.at(outgoing.out.line, outgoing.out.incarnation) else { return };
        if line.succeeded(outgoing.out.ticket) == AfterAttempt::Stale {
            return;
        }
        self.history.delivered(now);
        let message = &outgoing.message;
        let delay_ms = (now.as_millis() - message.since.as_millis()).max(0) as u64;
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        // The time that a consumer held a message is not the duration of a callback.
        let callback_us = (self.subscription.stored.spec.mode == Mode::Push).then_some(took_us);
        let topic = message.place.topic;
        self.effects.push(RunnerEffect::Count(DeliveryCount::Delivered { topic, delay_ms, callback_us }));
        self.note(&outgoing, took, AttemptOutcome::Delivered { status });
    }

    /// Handles a failed attempt: decides about the next step and starts it.
    pub(super) fn failed(
        &mut self,
        outgoing: OutgoingMessage,
        failure: DeliveryFailure,
        took: Duration,
        now: Timestamp,
    ) {
        self.note_health(&failure, now);
        let random = self.random();
        let own = outgoing.message.own_retry().cloned();
        let Some(line) = self.lines.at(outgoing.out.line, outgoing.out.incarnation) else { return };
        let next = line.failed(outgoing.out.ticket, outgoing.attempt, &failure, own.as_ref(), now, random);
        if next == AfterAttempt::Stale {
            return;
        }
        self.history.failed(now);
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let callback_us = (self.subscription.stored.spec.mode == Mode::Push).then_some(took_us);
        let topic = outgoing.message.place.topic;
        self.effects.push(RunnerEffect::Count(DeliveryCount::Failed { topic, callback_us }));
        let after = match next {
            AfterAttempt::Parked(until) | AfterAttempt::Hold(until) => AfterFailure::RetryAt(until),
            AfterAttempt::Bury => AfterFailure::DeadLetter,
            AfterAttempt::Done | AfterAttempt::Stale => AfterFailure::Dropped,
        };
        let outcome = AttemptOutcome::Failed {
            status: failure.status,
            reason: failure.reason.as_str().into(),
            answer: failure.answer.clone(),
            next: after,
        };
        self.note(&outgoing, took, outcome);
        let OutgoingMessage { out, attempt, message, .. } = outgoing;
        match next {
            AfterAttempt::Hold(due) => self.hold(out, message, attempt, due, now),
            AfterAttempt::Bury => {
                let why = DeathReason { reason: &failure.reason, failure: Some(&failure) };
                self.bury(out, message, attempt, why, now);
            }
            AfterAttempt::Done => self.dropped(&message, &failure),
            AfterAttempt::Parked(_) | AfterAttempt::Stale => {}
        }
    }

    /// Applies a failure to the endpoint's health. If messages have their own callbacks or are pulled, there is no common endpoint:
    /// failures of one target are no evidence about others.
    fn note_health(&mut self, failure: &DeliveryFailure, now: Timestamp) {
        self.history.set_last_error(now, failure.status, failure.reason.clone());
        let spec = &self.subscription.stored.spec;
        if spec.endpoint.as_ref().is_none_or(|endpoint| endpoint.url.is_none()) {
            return;
        }
        self.fails_since(now);
        if self.health.failed(failure, now) {
            let name = &self.subscription.name;
            let detail = format!("the endpoint of `{name}` fails; calls to it are paused: {}", failure.reason);
            let event = Event::warning("breaker_opened", detail).with("subscription", name);
            self.publish(Some(event.with("reason", &failure.reason)));
        }
    }

    fn dropped(&mut self, message: &OutboundMessage, failure: &DeliveryFailure) {
        self.effects.push(RunnerEffect::Count(DeliveryCount::Dropped));
        // A dropped event causes no event, or a loop could result.
        if *message.topic == *EVENTS_TOPIC {
            return;
        }
        let name = &self.subscription.name;
        let detail = format!(
            "subscription `{name}` dropped message {} of `{}` after its last attempt: {}",
            message.id, message.topic, failure.reason
        );
        let event = Event::warning("message_dropped", detail).with("subscription", name).with("id", &message.id);
        self.publish(Some(event));
    }

    pub(super) fn note(&mut self, outgoing: &OutgoingMessage, took: Duration, outcome: AttemptOutcome) {
        self.history.record(AttemptRecord {
            subscription: self.subscription.number(),
            run: outgoing.message.run,
            partition: outgoing.message.place,
            offset: outgoing.message.offset,
            attempt: outgoing.attempt,
            at: outgoing.started,
            took_ms: u32::try_from(took.as_millis()).unwrap_or(u32::MAX),
            outcome,
        });
    }
}
